import asyncio

import pytest

from millrace.model.checksum import Buffer
from millrace.server.cache import Fetch, PageCache, PendingRead
from millrace.server.cache.cache import EXTENT_COST_BYTES
from millrace.server.errors import ShuttingDownError, StorageError
from tests.server.cache.pages import PAGE, cache_of, content, read_of, settled

SEGMENT = 7


class Tier2:
    """Answers fetches at once, or when told to; remembers them."""

    def __init__(self) -> None:
        self.fetches: list[tuple[int, int]] = []
        self.damaged: range | None = None
        self.chunk_end: int | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.running = 0
        self.running_max = 0

    async def fetch(self, offset: int, size: int) -> bytes:
        self.fetches.append((offset, size))
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await asyncio.sleep(0)
            await self.open.wait()
        finally:
            self.running -= 1
        if self.damaged is not None and offset in self.damaged:
            raise StorageError(f"damaged at {offset}")
        end = offset + size
        if self.damaged is not None and offset < self.damaged.start:
            end = min(end, self.damaged.start)
        if self.chunk_end is not None and offset < self.chunk_end:
            end = min(end, self.chunk_end)
        return content(offset, end - offset)


async def read(cache: PageCache, offset: int, size: int, fetch: Fetch, *, end: int | None = None) -> bytes:
    return b"".join(await read_of(cache, SEGMENT, offset, size, fetch, end=end))


async def put(cache: PageCache, offset: int, data: Buffer, *, segment_id: int = SEGMENT) -> None:
    """Let the cache fetch these bytes."""

    async def fetch(start: int, size: int) -> Buffer:
        return memoryview(data)[start - offset : start - offset + size]

    await read_of(cache, segment_id, offset, len(data), fetch)


def got(cache: PageCache, offset: int, size: int) -> bytes | None:
    pieces = cache.get(SEGMENT, offset, size)
    return None if pieces is None else b"".join(pieces)


@pytest.mark.asyncio
async def test_a_miss_is_fetched_to_the_end_of_its_page_and_then_served_at_once() -> None:
    cache, tier2 = cache_of(), Tier2()

    assert await read(cache, 100, 50, tier2.fetch, end=10 * PAGE) == content(100, 50)

    assert tier2.fetches == [(100, PAGE - 100)]
    assert got(cache, 200, 5000) == content(200, PAGE - 200)
    assert got(cache, 99, 1) is None
    assert got(cache, PAGE, 1) is None
    cache.check()


@pytest.mark.asyncio
async def test_a_hit_copies_nothing_and_its_view_cannot_be_written() -> None:
    cache = cache_of()
    data = bytearray(content(0, PAGE))
    await put(cache, 0, data)

    [piece] = cache.get(SEGMENT, 10, 100) or []

    assert piece.obj is data
    assert piece.readonly


@pytest.mark.asyncio
async def test_a_read_over_several_pages_fetches_them_at_once() -> None:
    cache, tier2 = cache_of(), Tier2()

    assert await read(cache, 0, 4 * PAGE, tier2.fetch) == content(0, 4 * PAGE)

    assert tier2.fetches == [(0, PAGE), (PAGE, PAGE), (2 * PAGE, PAGE), (3 * PAGE, PAGE)]
    assert tier2.running_max == 4


@pytest.mark.asyncio
async def test_only_what_is_missing_is_fetched() -> None:
    cache, tier2 = cache_of(), Tier2()
    await put(cache, 1000, content(1000, 500))

    assert await read(cache, 0, PAGE, tier2.fetch) == content(0, PAGE)

    assert tier2.fetches == [(0, 1000), (1500, PAGE - 1500)]
    cache.check()


@pytest.mark.asyncio
async def test_a_miss_is_looked_up_once() -> None:
    """What is awaited are the bytes that were fetched, also when the cache has dropped them meanwhile."""
    cache, tier2 = cache_of(), Tier2()

    found = cache.read(SEGMENT, 0, 100, tier2.fetch)
    await settled()
    cache.drop_segment(SEGMENT)

    assert isinstance(found, PendingRead)
    assert b"".join(await found) == content(0, 100)
    assert tier2.fetches == [(0, 100)]


@pytest.mark.asyncio
async def test_a_read_that_is_dropped_is_fetched_all_the_same() -> None:
    cache, tier2 = cache_of(), Tier2()

    cache.read(SEGMENT, 0, 100, tier2.fetch)
    await settled()

    assert got(cache, 0, 100) == content(0, 100)


@pytest.mark.asyncio
async def test_concurrent_misses_of_the_same_bytes_share_one_fetch() -> None:
    cache, tier2 = cache_of(), Tier2()

    results = await asyncio.gather(*[read(cache, at, 100, tier2.fetch, end=PAGE) for at in range(0, 1000, 10)])

    assert results == [content(at, 100) for at in range(0, 1000, 10)]
    assert tier2.fetches == [(0, PAGE)]
    assert cache.statistics().joins_total == 99
    assert cache.statistics().protected_bytes == 0  # waiting together is not using it again


@pytest.mark.asyncio
async def test_a_cancelled_reader_does_not_cancel_the_others() -> None:
    cache, tier2 = cache_of(), Tier2()
    tier2.open.clear()
    first, second = (asyncio.ensure_future(read(cache, 0, 100, tier2.fetch)) for _ in range(2))
    await settled()

    first.cancel()
    await settled()
    tier2.open.set()

    assert await second == content(0, 100)
    assert first.cancelled()
    assert tier2.fetches == [(0, 100)]


@pytest.mark.asyncio
async def test_a_fetch_whose_readers_all_went_away_is_kept() -> None:
    cache, tier2 = cache_of(), Tier2()
    tier2.open.clear()
    reader = asyncio.ensure_future(read(cache, 0, 100, tier2.fetch))
    await settled()
    reader.cancel()
    tier2.open.set()
    await settled()

    assert got(cache, 0, 100) == content(0, 100)


@pytest.mark.asyncio
async def test_a_failed_fetch_reaches_all_who_wait_and_is_not_remembered() -> None:
    cache, tier2 = cache_of(), Tier2()
    tier2.damaged = range(1)

    results = await asyncio.gather(*[read(cache, 0, 100, tier2.fetch) for _ in range(5)], return_exceptions=True)

    assert [type(result) for result in results] == [StorageError] * 5
    assert tier2.fetches == [(0, 100)]
    tier2.damaged = None
    assert await read(cache, 0, 100, tier2.fetch) == content(0, 100)
    assert cache.statistics().fetch_failures_total == 1
    cache.check()


@pytest.mark.asyncio
async def test_a_failed_fetch_without_a_waiter_is_no_warning() -> None:
    cache, tier2 = cache_of(), Tier2()
    tier2.open.clear()
    tier2.damaged = range(1)
    reader = asyncio.ensure_future(read(cache, 0, 100, tier2.fetch))
    await settled()
    reader.cancel()
    tier2.open.set()
    await settled()

    assert cache.statistics().fetch_failures_total == 1


@pytest.mark.asyncio
async def test_damage_refuses_the_read_that_starts_in_it_and_no_other() -> None:
    """Behaviour 41: only that range refuses; everything else is served, also by readers who read at the same time."""
    cache, tier2 = cache_of(read_ahead_bytes=0), Tier2()
    tier2.damaged = range(1000, 1500)

    results = await asyncio.gather(
        read(cache, 0, PAGE, tier2.fetch),
        read(cache, 1000, 100, tier2.fetch),
        read(cache, 1400, 100, tier2.fetch),
        read(cache, 1600, 100, tier2.fetch),
        read(cache, 3000, 2000, tier2.fetch),
        return_exceptions=True,
    )

    assert results[0] == content(0, 1000)
    assert isinstance(results[1], StorageError)
    assert isinstance(results[2], StorageError)
    assert results[3] == content(1600, 100)
    assert results[4] == content(3000, 2000)
    cache.check()


@pytest.mark.asyncio
async def test_a_reader_who_joined_a_fetch_that_failed_before_his_bytes_asks_for_his_own() -> None:
    cache, tier2 = cache_of(), Tier2()
    tier2.damaged = range(10)

    results = await asyncio.gather(
        read(cache, 0, PAGE, tier2.fetch), read(cache, 20, 100, tier2.fetch), return_exceptions=True
    )

    assert isinstance(results[0], StorageError)
    assert results[1] == content(20, 100)


@pytest.mark.asyncio
async def test_a_fetch_may_end_early_and_the_next_read_continues_there() -> None:
    cache, tier2 = cache_of(), Tier2()
    tier2.chunk_end = 1500

    assert await read(cache, 0, PAGE, tier2.fetch) == content(0, 1500)
    assert await read(cache, 1500, PAGE, tier2.fetch) == content(1500, PAGE)


@pytest.mark.asyncio
async def test_the_budget_holds_whatever_is_read() -> None:
    cache, tier2 = cache_of(pages=4), Tier2()

    for page in range(50):
        await read(cache, page * PAGE, PAGE, tier2.fetch)
        assert cache.statistics().size_bytes <= cache.statistics().budget_bytes
        cache.check()

    assert cache.statistics().extent_count <= 4
    assert cache.statistics().evicted_bytes_total >= 46 * PAGE


@pytest.mark.asyncio
async def test_tiny_extents_are_charged_for_their_objects() -> None:
    """A budget of a few pages cannot become a million objects."""
    cache = cache_of(pages=4)

    for segment_id in range(1000):
        await put(cache, 0, b"x", segment_id=segment_id)

    assert cache.statistics().extent_count == 4 * (PAGE + EXTENT_COST_BYTES) // (EXTENT_COST_BYTES + 1)


@pytest.mark.asyncio
async def test_a_view_that_keeps_much_more_alive_is_copied() -> None:
    cache = cache_of()
    big = content(0, 50_000)
    await put(cache, 0, memoryview(big)[:PAGE])
    await put(cache, PAGE, content(PAGE, PAGE))

    pieces = cache.get(SEGMENT, 0, 2 * PAGE) or []

    assert b"".join(pieces) == content(0, 2 * PAGE)
    assert [memoryview(piece.obj).nbytes for piece in pieces] == [PAGE, PAGE]
    assert cache.statistics().size_bytes == 2 * (PAGE + EXTENT_COST_BYTES)


@pytest.mark.asyncio
@pytest.mark.parametrize("step", [PAGE, PAGE // 8])
async def test_a_catch_up_storm_does_not_evict_what_is_read_again(step: int) -> None:
    """Behaviour 18: a reader far from the tail, in steps of any size, does not take the others' pages away."""
    cache, tier2 = cache_of(pages=16), Tier2()
    hot = range(100 * PAGE, 104 * PAGE, PAGE)
    for _ in range(2):
        for offset in hot:
            await read(cache, offset, PAGE, tier2.fetch)

    for offset in range(0, 64 * PAGE, step):
        await read(cache, offset, step, tier2.fetch, end=64 * PAGE)

    assert [got(cache, offset, PAGE) for offset in hot] == [content(offset, PAGE) for offset in hot]


@pytest.mark.asyncio
async def test_a_sequential_reader_finds_its_pages_there() -> None:
    cache, tier2 = cache_of(pages=64, read_ahead_bytes=4 * PAGE, read_ahead_share=0.5), Tier2()
    offset = hits = 0
    while offset < 40 * PAGE:
        found = cache.read(SEGMENT, offset, PAGE // 2, tier2.fetch, end=40 * PAGE)
        if isinstance(found, list):
            hits += 1
        pieces = found if isinstance(found, list) else await found
        assert b"".join(pieces) == content(offset, sum(map(len, pieces)))
        offset += sum(map(len, pieces))
        await settled()
        cache.check()

    assert hits >= 78
    assert sorted(tier2.fetches) == [(page * PAGE, PAGE) for page in range(40)]
    assert tier2.running_max > 1
    assert cache.statistics().unread_bytes == 0


@pytest.mark.asyncio
async def test_pages_fetched_ahead_and_not_read_are_bounded() -> None:
    """Many readers that start and go away leave no more than the share of the budget."""
    cache, tier2 = cache_of(pages=64, read_ahead_bytes=16 * PAGE, read_ahead_share=0.25), Tier2()

    for segment_id in range(50):
        for offset in (0, PAGE):
            await read_of(cache, segment_id, offset, PAGE, tier2.fetch, end=100 * PAGE)
            await settled()
            assert cache.statistics().unread_bytes <= 0.25 * cache.statistics().budget_bytes
            cache.check()

    assert cache.statistics().fetches_ahead_total > 0


@pytest.mark.asyncio
async def test_fetches_at_once_are_bounded_and_reading_ahead_gives_way() -> None:
    cache, tier2 = cache_of(pages=64, fetches_max=2), Tier2()
    await read(cache, 0, PAGE, tier2.fetch)
    tier2.open.clear()
    readers = [asyncio.ensure_future(read(cache, page * PAGE, PAGE, tier2.fetch)) for page in range(20, 30)]
    await settled()

    ahead = asyncio.ensure_future(read(cache, PAGE, PAGE, tier2.fetch, end=100 * PAGE))
    await settled()
    tier2.open.set()
    await asyncio.gather(ahead, *readers)

    assert tier2.running_max == 2
    assert cache.statistics().fetches_ahead_total == 0


@pytest.mark.asyncio
async def test_a_dropped_segment_does_not_come_back_from_a_fetch() -> None:
    """Behaviour 19: delete and create the same name: nothing old shines through."""
    cache, tier2 = cache_of(), Tier2()
    await put(cache, PAGE, content(PAGE, PAGE))
    await put(cache, 0, content(0, 10), segment_id=SEGMENT + 1)
    tier2.open.clear()
    reader = asyncio.ensure_future(read(cache, 0, 100, tier2.fetch))
    await settled()

    cache.drop_segment(SEGMENT)
    tier2.open.set()

    assert await reader == content(0, 100)
    assert got(cache, 0, 1) is None
    assert got(cache, PAGE, 1) is None
    assert b"".join(cache.get(SEGMENT + 1, 0, 10) or []) == content(0, 10)
    cache.check()


@pytest.mark.asyncio
async def test_truncation_drops_what_is_wholly_below() -> None:
    cache, tier2 = cache_of(), Tier2()
    await read(cache, 0, 4 * PAGE, tier2.fetch)

    cache.truncate(SEGMENT, 2 * PAGE + 1)

    assert got(cache, PAGE, 1) is None
    assert got(cache, 2 * PAGE + 1, 2 * PAGE) == content(2 * PAGE + 1, 2 * PAGE - 1)
    cache.check()


@pytest.mark.asyncio
async def test_close_releases_the_waiters() -> None:
    """Behaviour 48: what is in flight fails inside the deadline of the shutdown."""
    cache, tier2 = cache_of(fetches_max=1), Tier2()
    tier2.open.clear()
    readers = [asyncio.ensure_future(read(cache, page * PAGE, 10, tier2.fetch)) for page in range(3)]
    await settled()

    await cache.close()

    for reader in readers:
        with pytest.raises(ShuttingDownError):
            await reader
    with pytest.raises(ShuttingDownError):
        await read(cache, 0, 10, tier2.fetch)
    assert got(cache, 0, 1) is None
    assert cache.statistics().extent_count == 0
    cache.check()
