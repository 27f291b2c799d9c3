"""Streams: named sets of segments that partition the key space."""

from .catalog import Catalog
from .controller import StreamController
from .options import StreamsOptions
from .runner import StreamsRunner, StreamsStatistics

__all__ = ["Catalog", "StreamController", "StreamsOptions", "StreamsRunner", "StreamsStatistics"]
