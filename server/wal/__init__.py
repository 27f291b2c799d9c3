"""The write-ahead log (tier 1): written and synced before every acknowledgement, read only to recover."""

from .fitting import TIER2_BYTES_MIN, needed_bytes
from .log import Wal
from .log_end import Ending
from .log_head import NEWEST_NAME, LogHead, read_log_head
from .log_objects import LOG_PREFIX, decode_log_object, is_fence_size, parse_log_name
from .object_recovery import ObjectRecovery
from .object_wal import ObjectWal, ObjectWalStatistics
from .options import WalOptions
from .protocol import Log, LogStatistics
from .recovery import Recovery, log_paths
from .report import NOTHING_ACCEPTED, AcceptedLoss, Damage, LogOwner, RecoveredBatch, RecoveryReport

__all__ = [
    "LOG_PREFIX",
    "NEWEST_NAME",
    "NOTHING_ACCEPTED",
    "TIER2_BYTES_MIN",
    "AcceptedLoss",
    "Damage",
    "Ending",
    "Log",
    "LogHead",
    "LogOwner",
    "LogStatistics",
    "ObjectRecovery",
    "ObjectWal",
    "ObjectWalStatistics",
    "RecoveredBatch",
    "Recovery",
    "RecoveryReport",
    "Wal",
    "WalOptions",
    "decode_log_object",
    "is_fence_size",
    "log_paths",
    "needed_bytes",
    "parse_log_name",
    "read_log_head",
]
