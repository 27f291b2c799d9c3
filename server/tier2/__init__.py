"""Tier 2: the long-term storage of segments, in files that never change (chunks)."""

from .event_times import ANY_TIMES, NO_TIMES, EventTimes, event_times
from .identity import ChunkRecord
from .layout import (
    ChunkFooter,
    ChunkId,
    IndexEntry,
    chunk_name,
    encode_chunk,
    parse_chunk_name,
    segment_prefix,
    times_of,
)
from .local import LocalStorage
from .object_storage import ObjectStorage
from .options import Tier2Options
from .reader import open_chunk, read_chunk, verify_chunk
from .scoped import ScopedStorage
from .storage import ChunkInfo, ChunkStorage

__all__ = [
    "ANY_TIMES",
    "NO_TIMES",
    "ChunkFooter",
    "ChunkId",
    "ChunkInfo",
    "ChunkRecord",
    "ChunkStorage",
    "EventTimes",
    "IndexEntry",
    "LocalStorage",
    "ObjectStorage",
    "ScopedStorage",
    "Tier2Options",
    "chunk_name",
    "encode_chunk",
    "event_times",
    "open_chunk",
    "parse_chunk_name",
    "read_chunk",
    "segment_prefix",
    "times_of",
    "verify_chunk",
]
