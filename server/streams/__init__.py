"""Streams: named sets of segments that partition the key space."""

from .catalog import Catalog, labels_of
from .controller import StreamController
from .options import StreamsOptions
from .runner import StreamsRunner, StreamsStatistics

__all__ = ["Catalog", "StreamController", "StreamsOptions", "StreamsRunner", "StreamsStatistics", "labels_of"]
