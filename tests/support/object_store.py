"""An object store in memory, exact to the contract: no threads, no clock, and as many clients as a test wants."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import pytest
from sortedcontainers import SortedDict

from millrace.model.checksum import Buffer
from millrace.server.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError, StoreFullError
from millrace.server.object_store import ObjectInfo, StoredObject, StoreUrl
from millrace.server.object_store.cloud import CloudStore
from tests.support.s3 import Bucket

PAGE_SIZE_MAX: Final = 1000


async def _turn() -> None:
    await asyncio.sleep(0)


class MemoryObjectStore:
    """An `ObjectStore` that lives as long as the process. What is in it outlives `close`, as in a bucket.

    A tag is the checksum of the content, as that of S3: content that returns to an earlier state has its tag, too.

    Args:
        page_size_max: most objects on a page of a listing.
        pause: awaited before and after each step, so that calls at the same time mix; a simulation draws their order.

    Attributes:
        objects: by key.
        quota_bytes: of all objects together; a put that would exceed it is refused. None: no quota.
    """

    def __init__(self, *, page_size_max: int = PAGE_SIZE_MAX, pause: Callable[[], Awaitable[None]] = _turn) -> None:
        self.objects: SortedDict[str, bytes] = SortedDict()
        self.quota_bytes: int | None = None
        self._page_size_max = page_size_max
        self._pause = pause

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        """Store an object under a free key, see `ObjectStore`."""
        await self._pause()
        content = b"".join(pieces)
        if key in self.objects:
            raise ObjectExistsError("the key has an object", subject=key)
        self._check_quota(key, len(content))
        self.objects[key] = content
        await self._pause()
        return tag_of(content)

    async def replace(self, key: str, content: Buffer, *, tag: str) -> str:
        """Store an object in place of one with this tag, see `ObjectStore`."""
        await self._pause()
        present = self.objects.get(key)
        if present is None or tag_of(present) != tag:
            raise ObjectChangedError("the object has another tag, or there is none", subject=key)
        self._check_quota(key, len(content) - len(present))
        self.objects[key] = bytes(content)
        await self._pause()
        return tag_of(content)

    async def get(self, key: str) -> StoredObject:
        """Return a whole object, see `ObjectStore`."""
        await self._pause()
        content = self._content(key)
        await self._pause()
        return StoredObject(content, tag_of(content))

    async def read(self, key: str, *, offset: int, size: int) -> bytes:
        """Return a part of an object, see `ObjectStore`."""
        assert offset >= 0
        assert size >= 0
        await self._pause()
        part = self._content(key)[offset : offset + size]
        await self._pause()
        return part

    async def size(self, key: str) -> int:
        """Return the size of an object, see `ObjectStore`."""
        await self._pause()
        return len(self._content(key))

    async def list(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield pages of objects by key, see `ObjectStore`. Each is of the moment in which it is asked for."""
        while page := await self._page(prefix, after):
            yield page
            if len(page) < self._page_size_max:
                return
            after = page[-1].key

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, see `ObjectStore`."""
        await self._pause()
        for key in keys:
            self.objects.pop(key, None)
        await self._pause()

    async def close(self) -> None:
        """Keep everything: the bucket stays when a client leaves."""

    async def _page(self, prefix: str, after: str) -> Sequence[ObjectInfo]:
        await self._pause()
        page: list[ObjectInfo] = []
        for key in self.objects.irange(minimum=max(prefix, after)):
            if not key.startswith(prefix) or len(page) == self._page_size_max:
                break
            if key > after:
                page.append(ObjectInfo(key, len(self.objects[key])))
        return page

    @property
    def used_bytes(self) -> int:
        """Bytes of all objects together."""
        return sum(map(len, self.objects.values()))

    def _check_quota(self, key: str, added_bytes: int) -> None:
        if self.quota_bytes is not None and added_bytes > max(0, self.quota_bytes - self.used_bytes):
            raise StoreFullError("it is full (403 QuotaExceeded)", subject=key, changed_nothing=True)

    def _content(self, key: str) -> bytes:
        content = self.objects.get(key)
        if content is None:
            raise ObjectNotFoundError("the object does not exist", subject=key)
        return content


def tag_of(content: Buffer) -> str:
    """Return the tag of an object with this content."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


async def cloud(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> CloudStore:
    """Return a client of a bucket, one attempt a call; the environment of the test is from then on that for it."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return await CloudStore.connect(StoreUrl.parse(bucket.url), attempt_s=60.0)
