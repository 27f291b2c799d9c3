"""The write-ahead log (tier 1): everything that is acknowledged is here first, and is read from here only to recover."""

from .batch import KIND_APPENDS, KIND_CONTROL, RecoveredRun, Run
from .log import Wal, WalStatistics
from .options import WalOptions
from .recovery import Damage, RecoveredBatch, RecoveryReport
from .tail import Ending

__all__ = [
    "KIND_APPENDS",
    "KIND_CONTROL",
    "Damage",
    "Ending",
    "RecoveredBatch",
    "RecoveredRun",
    "RecoveryReport",
    "Run",
    "Wal",
    "WalOptions",
    "WalStatistics",
]
