"""Streams: named sets of segments that partition the key space."""

from .controller import StreamController

__all__ = ["StreamController"]
