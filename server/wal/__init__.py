"""The write-ahead log (tier 1): whatever is acknowledged is here first, and is read from here only to recover."""

from .log import Wal, WalStatistics
from .log_end import Ending
from .options import WalOptions
from .protocol import Log, LogStatistics
from .recovery import Recovery, log_paths
from .report import Damage, LogOwner, RecoveredBatch, RecoveryReport

__all__ = [
    "Damage",
    "Ending",
    "Log",
    "LogOwner",
    "LogStatistics",
    "RecoveredBatch",
    "Recovery",
    "RecoveryReport",
    "Wal",
    "WalOptions",
    "WalStatistics",
    "log_paths",
]
