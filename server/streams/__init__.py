"""Streams: named sets of segments that partition the key space."""

from .catalog import Catalog
from .clock_history_file import ClockHistoryFile, boot_id
from .controller import StreamController
from .expiry_loop import ExpiryRunner, WritersStatistics
from .options import StreamsOptions, WritersOptions
from .policy_loop import StreamsRunner, StreamsStatistics

__all__ = [
    "Catalog",
    "ClockHistoryFile",
    "ExpiryRunner",
    "StreamController",
    "StreamsOptions",
    "StreamsRunner",
    "StreamsStatistics",
    "WritersOptions",
    "WritersStatistics",
    "boot_id",
]
