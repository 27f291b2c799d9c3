"""Chunk storage at a distance: it counts what it is asked, and answers after as long as a test says."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from millrace.model.checksum import Buffer
from millrace.server.tier2 import ChunkInfo, ChunkStorage
from tests.support.clock import ManualClock

T = TypeVar("T")


@dataclass
class Counts:
    """Requests as an object store counts them."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0


@dataclass
class Read:
    """A read of a chunk."""

    name: str
    offset: int
    size: int


@dataclass
class MeasuredStorage:
    """Passes requests on to another storage, `latency_s` after they came.

    Attributes:
        gets_at_once_max: how many reads were under way at the same time, at most; likewise `deletes_at_once_max`.
        reads: the reads, in order.
        requests: all of them in the order in which they were made, as PUT, GET, LIST or DELETE and the name.
    """

    inner: ChunkStorage
    clock: ManualClock
    latency_s: float = 0.0
    counts: Counts = field(default_factory=Counts)
    reads: list[Read] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    gets_at_once_max: int = 0
    deletes_at_once_max: int = 0
    _gets: int = 0
    _deletes: int = 0

    async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Count a PUT."""
        self.counts.puts += 1
        self.requests.append(("PUT", name))
        await self.clock.sleep(self.latency_s)
        await self.inner.publish(name, pieces)

    async def read(self, name: str, *, offset: int, size: int) -> bytes:
        """Count a GET."""
        self.counts.gets += 1
        self.requests.append(("GET", name))
        self.reads.append(Read(name, offset, size))
        self._gets += 1
        self.gets_at_once_max = max(self.gets_at_once_max, self._gets)
        try:
            await self.clock.sleep(self.latency_s)
            return await self.inner.read(name, offset=offset, size=size)
        finally:
            self._gets -= 1

    async def list(self, prefix: str = "") -> list[ChunkInfo]:
        """Count a LIST."""
        self.counts.lists += 1
        self.requests.append(("LIST", prefix))
        await self.clock.sleep(self.latency_s)
        return await self.inner.list(prefix)

    async def delete(self, name: str) -> None:
        """Count a DELETE."""
        self.counts.deletes += 1
        self.requests.append(("DELETE", name))
        self._deletes += 1
        self.deletes_at_once_max = max(self.deletes_at_once_max, self._deletes)
        try:
            await self.clock.sleep(self.latency_s)
            await self.inner.delete(name)
        finally:
            self._deletes -= 1

    async def delete_temporary_files(self, prefix: str = "") -> int:
        """Pass it on: in an object store there are none."""
        return await self.inner.delete_temporary_files(prefix)

    async def close(self) -> None:
        """Close the other one."""
        await self.inner.close()

    async def served(self, work: Coroutine[None, None, T]) -> T:
        """Return what `work` returns, while the clock moves from one answer of the storage to the next."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await self.clock.advance(self.latency_s)
        return task.result()
