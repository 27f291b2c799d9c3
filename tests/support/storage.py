"""Chunk storage that waits, fills up or fails when a test says so."""

import asyncio
from collections.abc import Callable, Sequence

from millrace.server.errors import StorageError
from millrace.server.tier2 import MemoryStorage
from millrace.wire.checksum import Buffer


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
        other._chunks = self._chunks.copy()
        other.size_bytes = self.size_bytes
        return other

    def replace(self, name: str, data: bytes) -> None:
        """Damage a chunk."""
        assert name in self._chunks
        self._chunks[name] = data

    def names(self, prefix: str = "segments/") -> list[str]:
        """Return the names of the chunks there are."""
        return [name for name in self._chunks if name.startswith(prefix)]
