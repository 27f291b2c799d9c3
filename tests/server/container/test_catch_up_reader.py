"""Catch-up reads over chunks that are damaged, missing, or replaced while they are read."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from millrace.server.cache import CacheOptions, PageCache
from millrace.server.container.catch_up_reader import CatchUpReader
from millrace.server.container.container import SegmentContainer
from millrace.server.container.options import ContainerOptions
from millrace.server.container.state.segment import DamagedRange, Segment
from millrace.server.errors import SegmentDamagedError, SegmentNotFoundError, SegmentTruncatedError
from millrace.server.host.clock import SystemClock
from millrace.server.object_store.url import StoreUrl
from millrace.server.options import ServerOptions
from millrace.server.ownership import FolderOwnership
from millrace.server.tier2 import ChunkId, ChunkRecord, IndexEntry, chunk_name, encode_chunk, times_of
from millrace.wire.limits import KIB
from tests.server.container.states import new_state
from tests.support.clock import ManualClock
from tests.support.measured_storage import MeasuredStorage
from tests.support.memory_log import LogMedium, MemoryLog
from tests.support.storage import FaultyStorage
from tests.support.tables import table

CONTENT = bytes(range(250)) * 1000


async def published(storage: FaultyStorage, start: int, end: int, *, epoch: int = 1) -> ChunkRecord:
    chunk = ChunkId(segment_id=7, start_offset=start, length=end - start, container_epoch=epoch)
    pieces = encode_chunk(
        chunk, [memoryview(CONTENT)[start:end]], index=[], start_events=0, end_events=0, end_wall_time_us=0,
        page_size=64 * KIB,
    )  # fmt: skip
    await storage.publish(chunk_name(chunk), pieces)
    return ChunkRecord(start, end - start, chunk_name(chunk), sum(map(len, pieces)), 0, 0, 0)


async def reader_of(*borders: int) -> tuple[CatchUpReader, FaultyStorage, Segment]:
    storage = FaultyStorage()
    segment = Segment(segment_id=7, name="raw/a", created_us=0)
    for start, end in pairwise(borders):
        segment.chunks.append(await published(storage, start, end))
    segment.length = segment.next_offset = segment.flushed_offset = borders[-1]
    return CatchUpReader(storage=storage, cache=PageCache(CacheOptions())), storage, segment


async def read(reader: CatchUpReader, segment: Segment, offset: int, size: int) -> bytes:
    found = reader.read(segment, offset, size)
    return b"".join(found if isinstance(found, list) else await found)


async def read_all(reader: CatchUpReader, segment: Segment, start: int) -> bytes:
    content = b""
    while start + len(content) < segment.length:
        content += await read(reader, segment, start + len(content), 50_000)
    return content


@pytest.mark.asyncio
async def test_reads_cross_the_borders_of_chunks() -> None:
    """Behaviour 17: the same bytes from tier 2."""
    reader, _, segment = await reader_of(0, 10, 70_000, 70_001, len(CONTENT))
    for start in (0, 5, 10, 69_999, 70_000, 70_001, len(CONTENT) - 1):
        assert await read_all(reader, segment, start) == CONTENT[start:]


@pytest.mark.asyncio
async def test_a_footer_is_read_once_for_all_that_wait_for_it() -> None:
    """Also when the one that began to read it is cancelled: then another one does."""

    class Waiting(FaultyStorage):
        reads = 0

        async def read(self, name: str, *, offset: int, size: int) -> bytes:
            self.reads += 1
            await asyncio.sleep(0)
            return await super().read(name, offset=offset, size=size)

    storage = Waiting()
    chunk = await published(storage, 0, len(CONTENT))
    reader = CatchUpReader(storage=storage, cache=PageCache(CacheOptions()))
    first, *others = [asyncio.ensure_future(reader.footer(chunk)) for _ in range(4)]
    await asyncio.sleep(0)
    assert storage.reads == 1
    first.cancel()

    footers = await asyncio.gather(*others)

    assert first.cancelled()
    assert storage.reads == 2
    assert footers == [await reader.footer(chunk)] * 3


@pytest.mark.asyncio
async def test_a_damaged_page_refuses_itself_alone(tmp_path: Path) -> None:
    """Behaviour 41: a flipped bit in a chunk: only that range refuses, with file and offset."""
    reader, storage, segment = await reader_of(0, len(CONTENT))
    name = segment.chunks[0].name
    data = bytearray(await storage.read(name, offset=0, size=1 << 20))
    data[96 + 100_000] ^= 4
    storage.replace(name, bytes(data))
    assert await read(reader, segment, 0, 200_000) == CONTENT[: 64 * KIB]
    with pytest.raises(SegmentDamagedError) as caught:
        await read(reader, segment, 100_000, 10)
    assert name in str(caught.value)
    assert str(96 + 64 * KIB) in str(caught.value)
    assert await read_all(reader, segment, 128 * KIB) == CONTENT[128 * KIB :]


@pytest.mark.asyncio
async def test_a_missing_chunk_refuses_its_range_alone() -> None:
    """Behaviour 41: the same for a chunk that is gone."""
    reader, storage, segment = await reader_of(0, 1000, 2000, 3000)
    await storage.delete(segment.chunks[1].name)
    assert await read(reader, segment, 0, 1000) == CONTENT[:1000]
    with pytest.raises(SegmentDamagedError):
        await read(reader, segment, 1000, 1000)
    assert await read(reader, segment, 2000, 1000) == CONTENT[2000:3000]


@pytest.mark.asyncio
async def test_reads_stop_before_what_is_known_to_be_lost() -> None:
    reader, _, segment = await reader_of(0, 1000, 2000)
    segment.damages.append(DamagedRange(1500, 1600, "the log"))
    assert await read(reader, segment, 1200, 1000) == CONTENT[1200:1500]


@pytest.mark.asyncio
async def test_a_chunk_that_is_replaced_while_it_is_read_is_read_from_its_successor() -> None:
    """Behaviour 16: small chunks are rewritten with what follows, and deleted, at any time."""
    reader, storage, segment = await reader_of(0, 1000)
    old = segment.chunks[0]
    new = await published(storage, 0, 2000, epoch=2)

    class Replacing(FaultyStorage):
        async def read(self, name: str, *, offset: int, size: int) -> bytes:
            if name == old.name and segment.chunks == [old]:
                segment.chunks[:] = [new]
                segment.length = segment.flushed_offset = 2000
                await storage.delete(old.name)
                await asyncio.sleep(0)
            return await storage.read(name, offset=offset, size=size)

    reader = CatchUpReader(storage=Replacing(), cache=PageCache(CacheOptions()))
    assert await read(reader, segment, 500, 200) == CONTENT[500:700]


@table(
    ("start_offset", "deleted", "error"),
    [(1000, False, SegmentTruncatedError), (0, True, SegmentNotFoundError), (0, False, SegmentDamagedError)],
)
@table("offset", [0, 900])
@pytest.mark.asyncio
async def test_a_read_under_which_the_chunks_go_tells_why(
    start_offset: int, deleted: bool, error: type[Exception], offset: int
) -> None:
    """Behaviours 16 and 41: truncated or deleted meanwhile, or damaged; never taken for one another."""
    _, storage, segment = await reader_of(0, 1000, 2000)
    first = segment.chunks[0]

    class Dropping(FaultyStorage):
        async def read(self, name: str, *, offset: int, size: int) -> bytes:
            if first in segment.chunks and name == first.name:
                segment.start_offset, segment.deleted = start_offset, deleted
                segment.chunks.remove(first)
                await storage.delete(name)
            return await storage.read(name, offset=offset, size=size)

    reader = CatchUpReader(storage=Dropping(), cache=PageCache(CacheOptions()))
    container = SegmentContainer(
        state=new_state(),
        log=MemoryLog(LogMedium()),
        reader=reader,
        options=ContainerOptions(),
        clock=SystemClock(),
        ownership=FolderOwnership(1),
    )
    with pytest.raises(error):
        await container.reads.read(segment, offset, 50)
    if not deleted:
        assert b"".join(await container.reads.read(segment, 1500, 50)) == CONTENT[1500:1550]


@pytest.mark.asyncio
async def test_the_sparse_indexes_of_a_few_chunks_only_are_held_in_memory() -> None:
    """Section 5: a segment of a terabyte costs some thousand entries, also after a reader planned to read all of it."""
    storage = FaultyStorage()
    reader = CatchUpReader(storage=storage, cache=PageCache(CacheOptions()), indexes_count_max=2)
    segment = Segment(segment_id=7, name="raw/a", created_us=0)
    for start in range(0, 50_000, 10_000):
        chunk = ChunkId(segment_id=7, start_offset=start, length=10_000, container_epoch=1)
        index = [IndexEntry(offset, offset, offset) for offset in range(start, start + 10_000, 1000)]
        pieces = encode_chunk(
            chunk, [memoryview(CONTENT)[start : start + 10_000]], index=index, start_events=start,
            end_events=start + 10_000, end_wall_time_us=start + 10_000, page_size=64 * KIB,
        )  # fmt: skip
        await storage.publish(chunk_name(chunk), pieces)
        end, size = start + 10_000, sum(map(len, pieces))
        times = times_of(index)
        segment.chunks.append(ChunkRecord(start, 10_000, chunk_name(chunk), size, start, end, end, *times))
        segment.index.merge(index[:1])
    segment.length = segment.next_offset = segment.flushed_offset = 50_000

    for _ in range(2):
        await reader.load_index(segment, 0, 50_000)
        segment.index.check()
        assert len(segment.index) == 2 * 10 + 3
        await reader.load_index(segment, 12_500, 12_501)
        near = segment.index.floor(12_500)
        assert near is not None
        assert near.offset == 12_000


# --- a store that is far away ---

FAR_S = 0.03


class Far:
    """A segment of eight chunks in a store whose answers take their time, which a manual clock counts."""

    def __init__(self, *, chunk_size: int, count: int, cache: CacheOptions) -> None:
        self.clock = ManualClock()
        self.storage = MeasuredStorage(FaultyStorage(), clock=self.clock, latency_s=FAR_S)
        self.segment = Segment(segment_id=7, name="raw/a", created_us=0)
        self.cache = PageCache(cache)
        self.reader = CatchUpReader(storage=self.storage, cache=self.cache)
        self._chunk_size = chunk_size
        self._count = count

    async def publish(self) -> "Far":
        for start in range(0, self._chunk_size * self._count, self._chunk_size):
            chunk = ChunkId(segment_id=7, start_offset=start, length=self._chunk_size, container_epoch=1)
            pieces = encode_chunk(
                chunk, [bytes(self._chunk_size)], index=[], start_events=0, end_events=0, end_wall_time_us=0,
                page_size=64 * KIB,
            )  # fmt: skip
            await self.storage.inner.publish(chunk_name(chunk), pieces)
            size = sum(map(len, pieces))
            self.segment.chunks.append(ChunkRecord(start, self._chunk_size, chunk_name(chunk), size, 0, 0, 0))
        length = self._chunk_size * self._count
        self.segment.length = self.segment.next_offset = self.segment.flushed_offset = length
        return self

    async def read_through(self, *, size: int) -> int:
        """Read the segment from its start in steps of `size` bytes, as a subscription does; return how many waited."""
        offset = waits = 0
        while offset < self.segment.length:
            found = self.reader.read(self.segment, offset, size)
            if not isinstance(found, list):
                waits += 1
                found = await found
            offset += sum(map(len, found))
        return waits

    @property
    def waited_s(self) -> float:
        return self.clock.monotonic_s() - ManualClock().monotonic_s()


def far_cache(scale: int = 64) -> CacheOptions:
    """Return the cache that a server with a store has, everything a `scale`th as large."""
    options = ServerOptions(store=StoreUrl.parse("s3://bucket/prefix")).for_storage().cache
    return replace(
        options,
        budget_bytes=options.budget_bytes // scale,
        page_size_bytes=options.page_size_bytes // scale,
        read_ahead_bytes=options.read_ahead_bytes // scale,
    )


@pytest.mark.asyncio
async def test_a_sequential_reader_of_a_far_store_seldom_waits() -> None:
    """Its read-ahead has no gap where a chunk ends: once it is up to speed, each page is there or on its way."""
    far = await Far(chunk_size=130_000, count=40, cache=far_cache()).publish()
    waits = await far.storage.served(far.read_through(size=16 * KIB))
    # 5.2 MB, of which 512 KB are read ahead: 10 times two answers, and a few until it is up to speed.
    assert far.waited_s < 30 * FAR_S
    assert waits < 30
    assert 8 <= far.storage.gets_at_once_max <= 32
    # A footer for each chunk, and of its 130,000 bytes three or four parts of pages of 64 KiB.
    assert far.storage.counts.gets <= 40 * 4


@pytest.mark.asyncio
async def test_readers_of_the_same_pages_share_their_gets() -> None:
    far = await Far(chunk_size=130_000, count=10, cache=far_cache()).publish()
    await far.storage.served(far.read_through(size=16 * KIB))
    alone = far.storage.counts.gets
    far.cache.drop_segment(7)

    async def together() -> None:
        await asyncio.gather(*(far.read_through(size=16 * KIB) for _ in range(5)))

    await far.storage.served(together())
    assert far.storage.counts.gets - alone <= alone - 10, "the footers are there already"


@pytest.mark.asyncio
async def test_many_readers_stay_below_the_bounds_of_gets_and_memory() -> None:
    options = far_cache()
    far = await Far(chunk_size=130_000, count=20, cache=options).publish()
    unread_max = 0

    async def one(start: int) -> None:
        nonlocal unread_max
        offset = start * 130_000
        while offset < far.segment.length:
            found = far.reader.read(far.segment, offset, 16 * KIB)
            pieces = found if isinstance(found, list) else await found
            offset += sum(map(len, pieces))
            unread_max = max(unread_max, far.cache.statistics().unread_bytes)

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, range(20)))

    await far.storage.served(all_of_them())
    assert far.storage.gets_at_once_max <= 32
    assert unread_max <= options.budget_bytes * options.read_ahead_share
