"""The page cache of catch-up reads.

It stores *extents*: ranges of segments, disjoint, at most a page long, never across a border of the page grid. A miss
at some offset fetches from there to the end of its page, or to the next extent or fetch in progress; so no byte is
fetched twice, and no byte before the requested one is needed to serve it (it may be damaged, or truncated).

    read(...)    returns what is in memory at once, without a coroutine; else starts to fetch the missing bytes, one
                 fetch for however many readers wait for them, and returns an awaitable

The bytes of a segment never change, so no extent can be stale. `eviction` decides which extents leave: a repeated read
of bytes in the same extent counts as reuse; a single pass over it, in however small steps, does not.

Memory. An extent costs its bytes and a fixed sum for the objects around them; a view that keeps much more memory alive
than it shows is copied. Views that were handed out stay valid after their extent was evicted, and are then charged to
the reader. Everything belongs to one event loop and is called in it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, replace
from typing import Any, Final

from millrace.model.checksum import Buffer
from millrace.server.errors import ServerError, ShuttingDownError

from .eviction import SegmentedLru
from .options import CacheOptions
from .read_ahead import Run, SequentialReaders
from .spans import Spans

EXTENT_COST_BYTES: Final = 1024
"""Charged for each extent beside its bytes: the objects that make it up, so that tiny extents are bounded too."""

Fetch = Callable[[int, int], Awaitable[Buffer]]
"""`fetch(offset, size)` reads a segment from tier 2, at least one byte from `offset` on and at most `size`. It returns
fewer bytes where it must (a chunk ends, a damaged page begins) and raises a `ServerError` if not even one can be read.
The bytes must not change afterwards."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the bytes of a read come from; the fields are arguments of `PageCache.read`."""

    fetch: Fetch
    end: int
    border_after: Callable[[int], int] | None

    def fetch_end(self, offset: int, page_end: int) -> int:
        """Return the end of a fetch that starts at `offset`."""
        end = min(self.end, page_end)
        return end if self.border_after is None else min(end, self.border_after(offset))


@dataclass(slots=True, kw_only=True)
class CacheStatistics:
    """Counters since the start, and current sizes."""

    budget_bytes: int
    size_bytes: int = 0
    protected_bytes: int = 0
    extent_count: int = 0
    fetch_count: int = 0
    """Fetches under way or waiting for their turn."""
    unread_bytes: int = 0
    """Bytes fetched ahead, or on their way, and not read yet."""
    hits_total: int = 0
    """Reads answered from memory alone."""
    misses_total: int = 0
    joins_total: int = 0
    """Reads that waited for a fetch already in progress."""
    fetches_total: int = 0
    fetches_ahead_total: int = 0
    fetch_failures_total: int = 0
    fetched_bytes_total: int = 0
    evicted_bytes_total: int = 0
    evicted_unread_bytes_total: int = 0
    """Bytes fetched ahead and evicted before anyone read them: wasted work, a sign of too small a budget."""


class PendingRead:
    """A read whose bytes are being fetched: await it once for its pieces, or drop it; the fetches continue."""

    __slots__ = ("_finish",)

    def __init__(self, finish: Callable[[], Coroutine[Any, Any, list[memoryview]]]) -> None:
        self._finish = finish

    def __await__(self) -> Generator[Any, None, list[memoryview]]:
        return self._finish().__await__()


class _Extent:
    """Cached bytes [offset, end) of a segment."""

    __slots__ = ("cost", "data", "end", "offset", "read_until", "segment_id", "unread")

    def __init__(self, segment_id: int, offset: int, data: memoryview, *, unread: bool) -> None:
        self.segment_id = segment_id
        self.offset = offset
        self.data = data
        self.end = offset + len(data)
        self.cost = memoryview(data.obj).nbytes + EXTENT_COST_BYTES
        # The furthest place that was read: a read that starts below it uses the extent again.
        self.read_until = offset
        # Read ahead, and not read since.
        self.unread = unread


class _Flight:
    """A fetch of [offset, end) in progress, which any number of readers may await."""

    __slots__ = ("ahead", "discarded", "end", "offset", "segment_id", "task")

    def __init__(self, segment_id: int, offset: int, end: int, *, ahead: bool) -> None:
        self.segment_id = segment_id
        self.offset = offset
        self.end = end
        self.ahead = ahead
        # The range was dropped or truncated meanwhile: waiting readers are served, nothing is cached.
        self.discarded = False
        self.task: asyncio.Task[memoryview]


class PageCache:
    """Pages of segments within a byte budget, see the module."""

    def __init__(self, options: CacheOptions) -> None:
        self._options = options
        self._extents: Spans[_Extent] = Spans()
        self._flights: Spans[_Flight] = Spans()
        self._policy: SegmentedLru[_Extent] = SegmentedLru(
            budget_bytes=options.budget_bytes,
            protected_bytes_max=int(options.budget_bytes * options.protected_share),
        )
        self._readers = SequentialReaders(options)
        self._gate = asyncio.Semaphore(options.fetches_max)
        self._tasks: set[asyncio.Task[memoryview]] = set()
        self._closed = False
        self._statistics = CacheStatistics(budget_bytes=options.budget_bytes)
        self._unread_bytes_max = int(options.budget_bytes * options.read_ahead_share)

    def get(self, segment_id: int, offset: int, size: int) -> list[memoryview] | None:
        """Return cached bytes from `offset` on, in pieces, up to `size`; None if the first byte is not cached.

        Returns fewer than `size` if the cached bytes end earlier. Nothing is copied.
        """
        assert size > 0
        pieces = []
        position, stop = offset, offset + size
        while position < stop and (extent := self._extents.covering(segment_id, position)) is not None:
            pieces.append(self._take(extent, position, stop))
            position += len(pieces[-1])
        return pieces or None

    def read(
        self,
        segment_id: int,
        offset: int,
        size: int,
        fetch: Fetch,
        *,
        end: int | None = None,
        border_after: Callable[[int], int] | None = None,
    ) -> list[memoryview] | PendingRead:
        """Return bytes from `offset` on, in pieces, at least one byte and up to `size`.

        Cached bytes are returned at once, fewer than `size` if they end earlier. If the first byte is not cached,
        fetches of everything missing up to `size` are in progress when this returns; awaiting the result waits for
        them, without another lookup. For a sequential reader, pages ahead of it are fetched in both cases.

        The awaited result has fewer bytes than `size` if a fetch returned fewer or failed; the error is raised by the
        read that starts there. Concurrent reads of the same bytes share one fetch and its error; an error is not
        cached. Cancelling is safe, and does not cancel the fetch for others.

        Args:
            segment_id: the segment.
            offset: the first requested byte.
            size: the most bytes to return, at least 1.
            fetch: reads the segment from tier 2.
            end: the first offset that `fetch` cannot read: up to there pages are fetched whole, and ahead of a
                sequential reader. By default the end of this read.
            border_after: returns the first offset above the given one that a fetch from there does not reach, because
                another chunk begins. A fetch that ended short of its page would leave a gap in the read-ahead.

        Raises:
            ServerError: the error of fetching the first byte; when awaited.
            ShuttingDownError: the cache was closed.
        """
        limit = offset + size if end is None else end
        source = _Source(fetch, limit, border_after)
        stop = min(offset + size, limit)
        assert offset < stop
        run = self._readers.take(segment_id, offset)
        pieces = self.get(segment_id, offset, stop - offset)
        if pieces is not None:
            self._statistics.hits_total += 1
            position = offset + sum(map(len, pieces))
            self._fetch_ahead(run, segment_id, position, source)
            self._readers.put(run, segment_id, start=offset, end=position)
            return pieces
        self._statistics.misses_total += 1
        steps = self._plan(segment_id, offset, stop, source)
        self._fetch_ahead(run, segment_id, stop, source)

        async def finish() -> list[memoryview]:
            # Another read's fetch, which this one waited for, may have returned fewer bytes than expected, and none of
            # ours. It is over now, so planning again starts a fetch at our offset, or waits for another one.
            found = await self._collect(steps)
            while not found:
                found = await self._collect(self._plan(segment_id, offset, stop, source))
            self._readers.put(run, segment_id, start=offset, end=offset + sum(map(len, found)))
            return found

        return PendingRead(finish)

    def truncate(self, segment_id: int, offset: int) -> None:
        """Drop extents wholly below `offset`. A straddling extent stays: callers keep to the valid range."""
        self._drop(segment_id, below=offset)

    def drop_segment(self, segment_id: int) -> None:
        """Drop all of a segment; fetches in progress for it are not cached."""
        self._drop(segment_id, below=None)

    def statistics(self) -> CacheStatistics:
        """Return counters and sizes."""
        return replace(
            self._statistics,
            size_bytes=self._policy.size_bytes,
            protected_bytes=self._policy.protected_bytes,
            extent_count=len(self._extents),
            fetch_count=len(self._tasks),
        )

    async def close(self) -> None:
        """Cancel the fetches under way and forget everything. Readers that wait get ShuttingDownError."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for extent in list(self._extents):
            self._remove(extent)
        self._check()

    def check(self) -> None:
        """Assert all invariants, in linear time; mutators assert those that cost nothing."""
        self._check()
        self._policy.check()
        assert {id(extent) for extent in self._policy} == {id(extent) for extent in self._extents}
        page_size = self._options.page_size_bytes
        previous: _Extent | None = None
        for extent in self._extents:
            assert extent.offset < extent.end == extent.offset + len(extent.data)
            assert extent.offset // page_size == (extent.end - 1) // page_size
            assert extent.offset <= extent.read_until <= extent.end
            assert not (extent.unread and extent.read_until > extent.offset)
            assert previous is None or previous.segment_id < extent.segment_id or previous.end <= extent.offset
            previous = extent
        assert all(not flight.discarded and not flight.task.done() for flight in self._flights)
        ahead = sum(flight.end - flight.offset for flight in self._flights if flight.ahead)
        assert self._statistics.unread_bytes == ahead + sum(len(e.data) for e in self._extents if e.unread)

    def _check(self) -> None:
        assert len(self._extents) == len(self._policy)
        assert self._policy.size_bytes <= self._options.budget_bytes
        assert len(self._flights) <= len(self._tasks)
        assert self._statistics.unread_bytes >= 0

    # Reading

    def _plan(
        self, segment_id: int, offset: int, stop: int, source: _Source
    ) -> list[tuple[memoryview | _Flight, int, int]]:
        """Return the source of each part of [offset, stop), and start the fetches for the missing parts."""
        if self._closed:
            raise ShuttingDownError("the cache is closed")
        steps: list[tuple[memoryview | _Flight, int, int]] = []
        position = offset
        while position < stop:
            extent = self._extents.covering(segment_id, position)
            if extent is not None:
                piece = self._take(extent, position, stop)
                until = position + len(piece)
                steps.append((piece, position, until))
            else:
                flight = self._flights.covering(segment_id, position)
                if flight is None:
                    flight = self._start(segment_id, position, source, ahead=False)
                else:
                    self._statistics.joins_total += 1
                until = min(stop, flight.end)
                steps.append((flight, position, until))
            position = until
        return steps

    async def _collect(self, steps: list[tuple[memoryview | _Flight, int, int]]) -> list[memoryview]:
        """Wait for the parts in order and stop at the first short one; raise only if our first byte failed."""
        pieces: list[memoryview] = []
        for source, position, until in steps:
            if isinstance(source, memoryview):
                pieces.append(source)
                continue
            # Waiting, unlike awaiting, does not hand a cancellation on to the fetch.
            await asyncio.wait([source.task])
            if source.task.cancelled():
                raise ShuttingDownError("the cache was closed while reading")
            error = source.task.exception()
            if error is not None:
                # Another reader's fetch may have failed before it reached our bytes: they are fetched again.
                if isinstance(error, ServerError) and (pieces or source.offset < position):
                    break
                raise error
            part = source.task.result()[max(0, position - source.offset) : until - source.offset]
            if part:
                pieces.append(part)
                self._mark_read(source.segment_id, position, position + len(part))
            if len(part) < until - position:
                break
        return pieces

    def _take(self, extent: _Extent, start: int, stop: int) -> memoryview:
        """Return the bytes of an extent from `start` on, up to `stop`, and note that they are read."""
        end = min(stop, extent.end)
        if start < extent.read_until:
            self._policy.use_again(extent)
        self._advance(extent, end)
        return extent.data[start - extent.offset : end - extent.offset]

    def _mark_read(self, segment_id: int, start: int, end: int) -> None:
        """Note a read that waited for a fetch. However many waited for one fetch, that is not using it again."""
        extent = self._extents.covering(segment_id, start)
        if extent is not None:
            self._advance(extent, min(end, extent.end))

    def _advance(self, extent: _Extent, end: int) -> None:
        extent.read_until = max(extent.read_until, end)
        if extent.unread:
            extent.unread = False
            self._statistics.unread_bytes -= len(extent.data)

    # Fetching

    def _start(self, segment_id: int, offset: int, source: _Source, *, ahead: bool) -> _Flight:
        """Start a fetch from `offset` to the end of its page, or to the next extent or fetch in progress."""
        end = source.fetch_end(offset, self._page_end(offset))
        end = self._extents.next_start(segment_id, offset, end)
        end = self._flights.next_start(segment_id, offset, end)
        assert offset < end
        flight = _Flight(segment_id, offset, end, ahead=ahead)
        flight.task = asyncio.create_task(self._fly(flight, source.fetch), name=f"cache fetch {segment_id}@{offset}")
        flight.task.add_done_callback(lambda task: self._landed(flight, task))
        self._flights.add(flight)
        self._tasks.add(flight.task)
        self._statistics.fetches_total += 1
        if ahead:
            self._statistics.fetches_ahead_total += 1
            self._statistics.unread_bytes += end - offset
        return flight

    async def _fly(self, flight: _Flight, fetch: Fetch) -> memoryview:
        size = flight.end - flight.offset
        async with self._gate:
            data = memoryview(await fetch(flight.offset, size))
        assert 0 < len(data) <= size, "the fetch broke its contract"
        # Remove the flight and add its bytes in one step, so that no other read misses both.
        self._take_off(flight)
        self._statistics.fetched_bytes_total += len(data)
        if not flight.discarded and not self._closed:
            self._insert(flight.segment_id, flight.offset, data, unread=flight.ahead)
        return data

    def _landed(self, flight: _Flight, task: asyncio.Task[memoryview]) -> None:
        self._tasks.discard(task)
        self._take_off(flight)
        # Retrieving the exception marks it as seen: perhaps no reader waits, and one that does receives it anyway.
        if not task.cancelled() and task.exception() is not None:
            self._statistics.fetch_failures_total += 1

    def _take_off(self, flight: _Flight) -> None:
        if flight not in self._flights:
            return
        self._flights.remove(flight)
        if flight.ahead:
            self._statistics.unread_bytes -= flight.end - flight.offset

    def _fetch_ahead(self, run: Run, segment_id: int, position: int, source: _Source) -> None:
        """Start fetches for the pages that a sequential reader, now at `position`, will want next."""
        start, stop = self._readers.plan(run, end=position, limit=source.end)
        while start < stop:
            present = self._extents.covering(segment_id, start) or self._flights.covering(segment_id, start)
            if present is None:
                if (
                    self._gate.locked()
                    or self._statistics.unread_bytes + self._options.page_size_bytes > self._unread_bytes_max
                ):
                    break
                present = self._start(segment_id, start, source, ahead=True)
            start = present.end
        run.horizon = start

    # Keeping

    def _insert(self, segment_id: int, offset: int, data: memoryview, *, unread: bool) -> None:
        position, stop = offset, offset + len(data)
        while position < stop:
            extent = self._extents.covering(segment_id, position)
            if extent is not None:
                position = extent.end
                continue
            end = self._extents.next_start(segment_id, position, min(stop, self._page_end(position)))
            self._admit(_Extent(segment_id, position, _compact(data[position - offset : end - offset]), unread=unread))
            position = end
        self._check()

    def _admit(self, extent: _Extent) -> None:
        for victim in self._policy.admit(extent, extent.cost):
            self._statistics.evicted_bytes_total += len(victim.data)
            if victim.unread:
                self._statistics.evicted_unread_bytes_total += len(victim.data)
            self._forget(victim)
        self._extents.add(extent)
        if extent.unread:
            self._statistics.unread_bytes += len(extent.data)

    def _remove(self, extent: _Extent) -> None:
        self._policy.remove(extent)
        self._forget(extent)

    def _forget(self, extent: _Extent) -> None:
        self._extents.remove(extent)
        if extent.unread:
            self._statistics.unread_bytes -= len(extent.data)

    def _drop(self, segment_id: int, *, below: int | None) -> None:
        for extent in self._extents.below(segment_id, below):
            self._remove(extent)
        for flight in self._flights.below(segment_id, below):
            flight.discarded = True
            self._take_off(flight)
        self._check()

    def _page_end(self, offset: int) -> int:
        page_size = self._options.page_size_bytes
        return (offset // page_size + 1) * page_size


def _compact(view: memoryview) -> memoryview:
    """Return the bytes of `view`, copied if it keeps more than an eighth above its own size alive."""
    alive = memoryview(view.obj).nbytes
    if alive - len(view) > len(view) // 8:
        return memoryview(bytes(view))
    return view.toreadonly()
