"""The write-ahead log (tier 1): whatever is acknowledged is here first, and is read from here only to recover."""

from .batch import KIND_APPENDS, KIND_CONTROL, RecoveredRun, Run
from .findings import Damage, LogOwner, RecoveredBatch, RecoveryReport
from .log import Wal, WalStatistics
from .options import WalOptions
from .recovery import Recovery, log_paths
from .tail import Ending

__all__ = [
    "KIND_APPENDS",
    "KIND_CONTROL",
    "Damage",
    "Ending",
    "LogOwner",
    "RecoveredBatch",
    "RecoveredRun",
    "Recovery",
    "RecoveryReport",
    "Run",
    "Wal",
    "WalOptions",
    "WalStatistics",
    "log_paths",
]
