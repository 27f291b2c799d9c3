"""Tier 2: where the bytes of segments live for ever, in immutable chunks."""

from .layout import ChunkFooter, ChunkId, IndexEntry, chunk_name, encode_chunk, parse_chunk_name, segment_prefix
from .local import LocalStorage
from .options import Tier2Options
from .reader import open_chunk, read_chunk, verify_chunk
from .scoped import ScopedStorage
from .storage import ChunkInfo, ChunkStorage

__all__ = [
    "ChunkFooter",
    "ChunkId",
    "ChunkInfo",
    "ChunkStorage",
    "IndexEntry",
    "LocalStorage",
    "ScopedStorage",
    "Tier2Options",
    "chunk_name",
    "encode_chunk",
    "open_chunk",
    "parse_chunk_name",
    "read_chunk",
    "segment_prefix",
    "verify_chunk",
]
