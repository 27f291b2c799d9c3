"""An object store at a distance, and the stack of a server over it."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from millrace.model.checksum import Buffer
from millrace.server.object_store import (
    ObjectInfo,
    ObjectStore,
    ObjectStoreOptions,
    RetryingStore,
    StoredObject,
    StoreUrl,
)
from millrace.server.object_store.cloud import CloudStore


class FarStore:
    """An `ObjectStore` over another one: each PUT and each GET begins after a delay, in seconds.

    Lists and deletes do not: no append waits for them.
    """

    def __init__(self, store: ObjectStore, latency_s: float) -> None:
        self._store = store
        self._latency_s = latency_s
        self.gets = 0
        # When each PUT was asked for, by `time.perf_counter`.
        self.put_at_s: list[float] = []

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        """Store a new object, see `ObjectStore`."""
        await self._put()
        return await self._store.create(key, pieces)

    async def replace(self, key: str, content: Buffer, *, tag: str) -> str:
        """Store an object in place of another one, see `ObjectStore`."""
        await self._put()
        return await self._store.replace(key, content, tag=tag)

    async def get(self, key: str) -> StoredObject:
        """Return a whole object, see `ObjectStore`."""
        await self._get()
        return await self._store.get(key)

    async def read(self, key: str, *, offset: int, size: int) -> bytes:
        """Return a part of an object, see `ObjectStore`."""
        await self._get()
        return await self._store.read(key, offset=offset, size=size)

    async def size(self, key: str) -> int:
        """Return the size of an object, see `ObjectStore`."""
        await self._get()
        return await self._store.size(key)

    def list(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield pages of a listing, see `ObjectStore`."""
        return self._store.list(prefix, after=after)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, see `ObjectStore`."""
        await self._store.delete(keys)

    async def close(self) -> None:
        """Close the other store."""
        await self._store.close()

    async def _put(self) -> None:
        self.put_at_s.append(time.perf_counter())
        await asyncio.sleep(self._latency_s)

    async def _get(self) -> None:
        self.gets += 1
        await asyncio.sleep(self._latency_s)


async def connect(url: str) -> CloudStore:
    """Return the store that a URL names, with the credentials of the environment."""
    return await CloudStore.connect(StoreUrl.parse(url), attempt_s=ObjectStoreOptions().attempt_s)


async def clear(store: ObjectStore) -> None:
    """Delete everything below the prefix of a store: what was measured takes the disk of the next measurement."""
    pages = [page async for page in store.list()]
    for page in pages:
        await store.delete([info.key for info in page])


def retrying(store: ObjectStore) -> RetryingStore:
    """Return a store as the log of a server has it."""
    return RetryingStore(store, ObjectStoreOptions()).with_hedged_creates()
