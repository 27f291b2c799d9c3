"""Streams: named sets of segments that partition the key space."""

from .catalog import Catalog, labels_of
from .controller import StreamController
from .expiry_runner import ExpiryRunner, WritersStatistics
from .options import StreamsOptions, WritersOptions
from .runner import StreamsRunner, StreamsStatistics
from .timeline_file import TimelineFile, boot_id

__all__ = [
    "Catalog",
    "ExpiryRunner",
    "StreamController",
    "StreamsOptions",
    "StreamsRunner",
    "StreamsStatistics",
    "TimelineFile",
    "WritersOptions",
    "WritersStatistics",
    "boot_id",
    "labels_of",
]
