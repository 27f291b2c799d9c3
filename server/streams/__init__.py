"""Streams: named sets of segments that partition the key space."""

from .catalog import Catalog
from .controller import StreamController
from .expiry_loop import ExpiryRunner, WritersStatistics
from .options import StreamsOptions, WritersOptions
from .policy_loop import StreamsRunner, StreamsStatistics
from .uptime import Uptime, boot_id

__all__ = [
    "Catalog",
    "ExpiryRunner",
    "StreamController",
    "StreamsOptions",
    "StreamsRunner",
    "StreamsStatistics",
    "Uptime",
    "WritersOptions",
    "WritersStatistics",
    "boot_id",
]
