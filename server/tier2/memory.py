"""Chunks kept in memory, for development and tests."""

from collections.abc import Sequence

from sortedcontainers import SortedDict

from millrace.server.errors import ChunkCorruptError, ChunkNotFoundError, NoSpaceError
from millrace.wire.checksum import Buffer

from .storage import ChunkInfo, check_chunk_name, check_chunk_prefix


class MemoryStorage:
    """A `ChunkStorage` that lives as long as the process, with the same behaviour as the durable ones.

    Args:
        capacity_bytes: what it may hold; a publish above that is refused with NoSpaceError, as a full disk would.
    """

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.size_bytes = 0
        self._chunks: SortedDict[str, bytes] = SortedDict()

    async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Store a chunk, see `ChunkStorage`."""
        check_chunk_name(name)
        size = sum(map(len, pieces))
        present = self._chunks.get(name)
        if present is not None:
            if len(present) != size:
                raise ChunkCorruptError(
                    name, min(len(present), size), f"{len(present)} bytes where {size} belong, wrong"
                )
            return
        if self.capacity_bytes is not None and self.size_bytes + size > self.capacity_bytes:
            raise NoSpaceError(f"{size} bytes do not fit into {self.capacity_bytes - self.size_bytes}", subject=name)
        self._chunks[name] = b"".join(pieces)
        self.size_bytes += size

    async def read(self, name: str, *, offset: int, size: int) -> bytes:
        """Read a part of a chunk, see `ChunkStorage`."""
        assert offset >= 0
        assert size >= 0
        data = self._chunks.get(check_chunk_name(name))
        if data is None:
            raise ChunkNotFoundError("no such chunk", subject=name)
        return data[offset : offset + size]

    async def list(self, prefix: str = "") -> list[ChunkInfo]:
        """List chunks by name, see `ChunkStorage`."""
        check_chunk_prefix(prefix)
        found = []
        for name in self._chunks.irange(minimum=prefix):
            if not name.startswith(prefix):
                break
            found.append(ChunkInfo(name, len(self._chunks[name])))
        return found

    async def delete(self, name: str) -> None:
        """Delete a chunk, see `ChunkStorage`."""
        data = self._chunks.pop(check_chunk_name(name), None)
        if data is not None:
            self.size_bytes -= len(data)

    async def close(self) -> None:
        """Forget everything."""
        self._chunks.clear()
        self.size_bytes = 0
