"""Chunks stored as objects: each under its name, stored whole or not at all by one conditional put."""

import asyncio
from collections.abc import Sequence

from millrace.model.checksum import Buffer
from millrace.server.errors import ChunkExistsError, ChunkNotFoundError, ObjectExistsError, ObjectNotFoundError
from millrace.server.object_store import RetryingStore

from .storage import CHUNK_SUFFIX, ChunkInfo, check_chunk_name, check_chunk_prefix


class ObjectStorage:
    """A `ChunkStorage` over an object store. Belongs to one event loop.

    Args:
        store: treats an existing chunk with the same bytes as success, completes cancelled puts, and ends each call
            after a bounded time. Closed with this.
        puts_count_max: chunks that are written at once; further ones wait.
    """

    def __init__(self, store: RetryingStore, *, puts_count_max: int) -> None:
        self._store = store
        self._puts = asyncio.Semaphore(puts_count_max)

    async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Store a chunk, see `ChunkStorage`. A cancelled publish that has begun still completes, if it has the time."""
        check_chunk_name(name)
        async with self._puts:
            try:
                await self._store.create(name, pieces)
            except ObjectExistsError as error:
                raise ChunkExistsError("another chunk has this name", subject=name) from error

    async def read(self, name: str, *, offset: int, size: int) -> bytes:
        """Read a part of a chunk, see `ChunkStorage`."""
        check_chunk_name(name)
        try:
            return await self._store.read(name, offset=offset, size=size)
        except ObjectNotFoundError as error:
            raise ChunkNotFoundError("the chunk does not exist", subject=name) from error

    async def list(self, prefix: str = "") -> list[ChunkInfo]:
        """List chunks by name, see `ChunkStorage`. Other objects in the store are left out."""
        check_chunk_prefix(prefix)
        pages = [page async for page in self._store.list(prefix)]
        return [ChunkInfo(each.key, each.size) for page in pages for each in page if each.key.endswith(CHUNK_SUFFIX)]

    async def delete(self, name: str) -> None:
        """Delete a chunk, see `ChunkStorage`."""
        await self._store.delete([check_chunk_name(name)])

    async def delete_temporary_files(self, prefix: str = "") -> int:
        """Do nothing: an incomplete put leaves nothing. See `ChunkStorage`."""
        check_chunk_prefix(prefix)
        return 0

    async def close(self) -> None:
        """Give operations in progress a moment, and close the store. A cut one is stored wholly or not at all."""
        await self._store.close()
