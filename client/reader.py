"""The reader of a stream: the events between two cuts, in the order of each segment.

All segments are fetched at once, each within its share of the window. Events are handed out block by block, so the next
one is usually there without waiting. The place of the reader is exact to the event; a cancelled wait loses none.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from millrace.wire.limits import KIB, MIB

from .arrow import LARGE_BLOCK_ROWS_MIN, batch_of_many
from .blocks import Event
from .cuts import HEAD, TAIL, Cut, StreamCut
from .errors import (
    ClientClosedError,
    CutInvalidError,
    CutTruncatedError,
    ErrorFacts,
    MillraceError,
    OffsetBeyondEndError,
)
from .feed import PlacedBlock, SegmentFeed
from .session import Session
from .streams import StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENT_WINDOW_BYTES_MIN: Final = 64 * KIB
SEGMENT_WINDOW_BYTES_MAX: Final = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """Options of a reader.

    Attributes:
        window_bytes: fetched ahead over all segments together; each has at least 64 KiB.
    """

    window_bytes: int = 32 * MIB

    def __post_init__(self) -> None:
        if self.window_bytes < SEGMENT_WINDOW_BYTES_MIN:
            raise ValueError(f"window_bytes={self.window_bytes} must be at least {SEGMENT_WINDOW_BYTES_MIN}")

    def segment_window_bytes(self, segment_count: int) -> int:
        """Return the share of one of so many segments."""
        share = self.window_bytes // max(1, segment_count)
        return min(SEGMENT_WINDOW_BYTES_MAX, max(SEGMENT_WINDOW_BYTES_MIN, share))


def resolve_cut(cut: Cut, stream: StreamInfo) -> StreamCut:
    """Return the cut with a place in each segment of the stream.

    Raises:
        CutInvalidError: it is one of another stream, or of other segments.
        CutTruncatedError: it lies behind the truncation; says what is lost.
        OffsetBeyondEndError: it lies beyond the end.
    """
    if cut is HEAD:
        return stream.head()
    if cut is TAIL:
        return stream.tail()
    assert isinstance(cut, StreamCut)
    if cut.stream != stream.name:
        raise CutInvalidError(f"a cut of {cut.stream} cannot be used for {stream.name}")
    segments = {segment.segment_id: segment for segment in stream.segments}
    if set(cut.places) != set(segments):
        raise CutInvalidError(f"the cut names segments {sorted(cut.places)}, {stream.name} has {sorted(segments)}")
    for segment_id, (offset, event_index) in cut.positions:
        segment = segments[segment_id]
        if offset < segment.start_offset:
            raise CutTruncatedError(
                ErrorFacts(
                    message=f"segment {segment_id} is truncated: the cut is at {offset}, "
                    f"{segment.start_offset - offset} bytes are lost",
                    subject=stream.name,
                    start_offset=segment.start_offset,
                    length=segment.length,
                )
            )
        if offset > segment.length or (offset == segment.length and event_index):
            raise OffsetBeyondEndError(
                ErrorFacts(
                    message=f"the cut is at {offset} in segment {segment_id}",
                    subject=stream.name,
                    start_offset=segment.start_offset,
                    length=segment.length,
                )
            )
    return cut


class Reader:
    """Reads one stream. Made by `client.reader`; an async context manager and iterator; belongs to one event loop.

    One task at a time may wait for it.
    """

    def __init__(
        self, session: Session, stream: StreamInfo, *, start: StreamCut, end: StreamCut | None, options: ReaderOptions
    ) -> None:
        self._session = session
        self.stream = stream.name
        self._places: dict[int, tuple[int, int]] = dict(start.positions)
        ends = end.places if end is not None else {}
        window_bytes = options.segment_window_bytes(len(self._places))
        self._feeds = [
            SegmentFeed(
                session,
                segment_id,
                start=place,
                end=ends.get(segment_id),
                window_bytes=window_bytes,
                on_change=self._changed,
            )
            for segment_id, place in self._places.items()
        ]
        # Feeds that have something, in the order in which it came; each at most once.
        self._ready: deque[SegmentFeed] = deque()
        self._waiting: asyncio.Future[None] | None = None
        # The block that is being handed out, the rest of its events, and the last of them that left.
        self._current: PlacedBlock | None = None
        self._events: Iterator[Event] = iter(())
        self._last: Event | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        """Begin to fetch."""
        self._session.check()
        for feed in self._feeds:
            feed.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Fetch no more. `position` still says how far the reader came."""
        self._closed = True
        for feed in self._feeds:
            feed.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def __aiter__(self) -> Self:
        """Iterate over the events."""
        return self

    async def __anext__(self) -> Event:
        """Return the next event. Cancelling loses nothing.

        Raises:
            StopAsyncIteration: the end cut, or the end of a sealed stream, is reached.
            SegmentTruncatedError: what comes next was truncated away.
            SegmentDamagedError, BlockCorruptError: what comes next cannot be trusted.
            MillraceError: the server cannot be reached.
        """
        for event in self._events:
            self._last = event
            return event
        if not await self._next_block():
            raise StopAsyncIteration
        self._last = next(self._events)
        return self._last

    async def next_events(self) -> list[Event]:
        """Return the next events, as many as come without waiting twice; empty at the end. Cancelling loses nothing.

        Raises like `__anext__`.
        """
        events = list(self._events)
        if not events:
            if not await self._next_block():
                return []
            events = list(self._events)
        self._last = events[-1]
        return events

    async def arrow_batches(self) -> "AsyncIterator[pa.RecordBatch]":
        """Yield the events as record batches, with the columns of `millrace.client.arrow`; needs pyarrow.

        A batch counts as read when it is handed out. Raises like `__anext__`.
        """
        rest = self._rest_of_current()
        if rest is not None:
            self._leave(rest)
            yield batch_of_many([rest])
        while (placed := await self._take_block()) is not None:
            blocks = [placed]
            rows = placed.end - placed.start
            # Only what is here already: nothing waits for company.
            while rows < LARGE_BLOCK_ROWS_MIN and (more := self._take_company()) is not None:
                blocks.append(more)
                rows += more.end - more.start
            batch = batch_of_many(blocks)
            for block in blocks:
                self._leave(block)
            yield batch

    def position(self) -> StreamCut:
        """Return the cut behind what was handed out: a reader started there goes on without gap or repeat."""
        places = dict(self._places)
        current = self._current
        if current is not None:
            rest = self._rest_of_current()
            places[current.segment_id] = current.next_place if rest is None else (rest.offset, rest.start)
        return StreamCut.of(self.stream, places)

    # --- inside ---

    async def _next_block(self) -> bool:
        """Make the next block the current one; return whether there is one."""
        placed = await self._take_block()
        if self._current is not None:
            self._leave(self._current)
        if placed is None:
            return False
        events = placed.block.events(segment_id=placed.segment_id, offset=placed.offset)
        if placed.start or placed.end < len(events):
            events = events[placed.start : placed.end]
        self._current, self._events, self._last = placed, iter(events), None
        return True

    async def _take_block(self) -> PlacedBlock | None:
        """Return the next block that holds an event, None at the end. Waits in one place, before anything is taken."""
        while True:
            placed = self._take_ready()
            if placed is not None:
                return placed
            if self._closed:
                raise ClientClosedError("the reader was closed")
            self._session.check()
            if all(feed.finished for feed in self._feeds):
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def _take_ready(self) -> PlacedBlock | None:
        """Return a block that is here and holds an event, of each segment in turn."""
        ready = self._ready
        while ready:
            feed = ready[0]
            placed = feed.take()
            ready.popleft()
            if feed.ready:
                ready.append(feed)
            if placed is not None:
                if placed.start < placed.end:
                    return placed
                self._leave(placed)
        return None

    def _take_company(self) -> PlacedBlock | None:
        """As `_take_ready`, for a batch that holds something already: an error is left for the next call."""
        try:
            return self._take_ready()
        except MillraceError:
            return None

    def _changed(self, feed: SegmentFeed) -> None:
        if feed.ready and feed not in self._ready:
            self._ready.append(feed)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _rest_of_current(self) -> PlacedBlock | None:
        """Return the part of the current block that was not handed out, None if there is none."""
        current = self._current
        if current is None or self._last is None:
            return current
        start = self._last.event_index + 1
        return current._replace(start=start) if start < current.end else None

    def _leave(self, placed: PlacedBlock) -> None:
        """Count a block as handed out."""
        self._places[placed.segment_id] = placed.next_place
        if self._current is not None and self._current[:2] == placed[:2]:
            self._current, self._events, self._last = None, iter(()), None
