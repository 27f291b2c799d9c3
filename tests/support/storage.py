"""Chunk storage in memory; it waits, fills up or fails when a test says so."""

import asyncio
import re
from collections.abc import Callable, Sequence

from sortedcontainers import SortedDict

from millrace.model.checksum import Buffer
from millrace.server.errors import ChunkExistsError, ChunkNotFoundError, NoSpaceError, StorageError
from millrace.server.tier2 import ChunkInfo
from millrace.server.tier2.storage import check_chunk_name, check_chunk_prefix

SCOPE = re.compile("^c[0-9a-f]{4}/")


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
        data = b"".join(pieces)
        size = len(data)
        present = self._chunks.get(name)
        if present is not None:
            if present != data:
                raise ChunkExistsError("another chunk has this name", subject=name)
            return
        if self.capacity_bytes is not None and self.size_bytes + size > self.capacity_bytes:
            raise NoSpaceError(f"{size} bytes do not fit into {self.capacity_bytes - self.size_bytes}", subject=name)
        self._chunks[name] = data
        self.size_bytes += size

    async def read(self, name: str, *, offset: int, size: int) -> bytes:
        """Read a part of a chunk, see `ChunkStorage`."""
        assert offset >= 0
        assert size >= 0
        data = self._chunks.get(check_chunk_name(name))
        if data is None:
            raise ChunkNotFoundError("the chunk does not exist", subject=name)
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

    async def delete_temporary_files(self, prefix: str = "") -> int:
        """Do nothing: what it publishes is there at once. See `ChunkStorage`."""
        check_chunk_prefix(prefix)
        return 0

    async def close(self) -> None:
        """Forget everything."""
        self._chunks.clear()
        self.size_bytes = 0

    def take_over(self, other: "MemoryStorage") -> None:
        """Replace the content by that of another storage."""
        self._chunks = other._chunks.copy()
        self.size_bytes = other.size_bytes


class FaultyStorage(MemoryStorage):
    """A `ChunkStorage` in memory with faults; its content outlives the server that used it."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        self.open = asyncio.Event()
        self.open.set()
        # Called with "before" or "after", "publish" or "delete", and the name.
        self.on_step: Callable[[str, str, str], None] = lambda when, action, name: None
        self.failing = False

    async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
        await self.open.wait()
        if self.failing:
            raise StorageError("the medium failed", subject=name)
        self.on_step("before", "publish", name)
        await super().publish(name, pieces)
        self.on_step("after", "publish", name)

    async def delete(self, name: str) -> None:
        self.on_step("before", "delete", name)
        await super().delete(name)
        self.on_step("after", "delete", name)

    async def close(self) -> None:
        """Keep everything."""

    def copy(self) -> "FaultyStorage":
        """Return what another process finds."""
        other = FaultyStorage(capacity_bytes=self.capacity_bytes)
        other.take_over(self)
        return other

    def replace(self, name: str, data: bytes) -> None:
        """Damage a chunk."""
        assert name in self._chunks
        self._chunks[name] = data

    def content(self, name: str) -> bytes:
        """Return the bytes of a chunk or of a copy."""
        data: bytes = self._chunks[name]
        return data

    def names(self, prefix: str = "segments/") -> list[str]:
        """Return the names of the chunks there are, of all containers; the prefix is one within their scopes."""
        return [name for name in self._chunks if SCOPE.sub("", name).startswith(prefix)]
