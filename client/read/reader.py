"""The reader of a stream: the events between two cuts, in the order of each key.

The segments at the reader's position are fetched at once, each by a `BlockStream` with its share of the window. Events
are handed out block by block, so the next one is usually there without waiting. The position of the reader is exact to
the event; a cancelled wait loses none.

Where the stream was scaled the reader continues with the successors once it has read everything that was replaced
together (see `millrace.model.lineage`), so the events of a key stay in order and the position is a cut at any
moment.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from millrace.client.admin.streams import stream_history, stream_info
from millrace.client.errors import (
    ClientClosedError,
    CutTruncatedError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    ServerFailedError,
    StreamNotFoundError,
)
from millrace.client.transport.channel import Channel
from millrace.model.cut import StreamCut
from millrace.model.errors import MillraceError
from millrace.model.event import Event
from millrace.model.lineage import Lineage, Replacement, StreamPart, parts_of_history
from millrace.model.stream import StreamInfo
from millrace.wire import messages as m
from millrace.wire.limits import KIB, MIB

from .arrow import LARGE_BLOCK_ROWS_MIN, batch_of_many
from .block_stream import BlockStream, PlacedBlock
from .cut_resolution import resolve_cut

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


class Reader:
    """Reads one stream. Made by `client.reader`; an async context manager and iterator; belongs to one event loop.

    One task at a time may wait for it.
    """

    def __init__(
        self,
        channel: Channel,
        stream: StreamInfo,
        *,
        start: StreamCut,
        end: StreamCut | None,
        options: ReaderOptions,
        is_from_head: bool = False,
    ) -> None:
        self._channel = channel
        self.stream = stream.name
        self._stream_id = stream.stream_id
        self._options = options
        self._lineage: Lineage[StreamPart] = Lineage(stream.segments)
        self._sealed = stream.sealed
        # Whether it is to start at the head, and has not yet: a truncation moves the head, and the reader with it.
        self._is_at_head = is_from_head
        # The position in each segment that is being read, after what was handed out; together they are a cut.
        self._places: dict[int, tuple[int, int]] = dict(start.positions)
        # How far each segment is read, and which of them as a whole; segments created later are after the end cut.
        self._is_bounded = end is not None
        self._limits = {} if end is None else stream.progress(end)
        self._whole = set() if end is None else self._lineage.before(end.places)
        self._sources: dict[int, BlockStream] = {}
        for segment_id in self._places:
            self._add_source(segment_id)
        # Whether a segment may have been finished since the successors were last fetched.
        self._advance_wanted = True
        # Asks what the stream is now: a segment ended, and nothing is known that replaced it.
        self._refreshing: asyncio.Task[None] | None = None
        self._failure: MillraceError | None = None
        # Sources that have something, in the order in which it came; each at most once.
        self._ready: deque[BlockStream] = deque()
        self._waiting: asyncio.Future[None] | None = None
        # The block that is being handed out, the rest of its events, and the last of them that left.
        self._current: PlacedBlock | None = None
        self._events: Iterator[Event] = iter(())
        self._last: Event | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        """Begin to fetch."""
        self._channel.check()
        for source in self._sources.values():
            source.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Fetch no more; `position` can still be asked for."""
        self._closed = True
        if self._refreshing is not None and not self._channel.guard.forked:
            self._refreshing.cancel()
        for source in self._sources.values():
            source.close()
        self._wake()

    def __aiter__(self) -> Self:
        """Iterate over the events."""
        return self

    async def __anext__(self) -> Event:
        """Return the next event. Cancelling loses nothing.

        Raises:
            StopAsyncIteration: the end cut, or the end of a sealed stream, is reached.
            CutTruncatedError: what comes next was truncated away; a reader from its `resume_at` reads what is left.
            StreamNotFoundError: the stream was deleted.
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
        """Yield the events as record batches, with the columns of `millrace.client.read.arrow`; needs pyarrow.

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
        """Return the cut after what was handed out: a reader started there continues without gap or repeat."""
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
        if placed is None:
            return False
        events = placed.block.events(segment_id=placed.segment_id, offset=placed.offset)
        if placed.start or placed.end < len(events):
            events = events[placed.start : placed.end]
        self._current, self._events, self._last = placed, iter(events), None
        return True

    async def _take_block(self) -> PlacedBlock | None:
        """Return the next block that holds an event, None at the end. Waits in one place, before anything is taken."""
        if self._current is not None and self._rest_of_current() is None:
            self._leave(self._current)
        while True:
            if self._closed:
                raise ClientClosedError("the reader was closed")
            # Everything that was taken was handed out here, so what is finished was handed out to its end.
            if self._advance_wanted:
                self._advance()
            try:
                placed = self._take_ready()
            except (SegmentTruncatedError, SegmentNotFoundError):
                if not await self._moved_with_head():
                    raise
                continue
            if placed is not None:
                self._is_at_head = False
                return placed
            self._channel.check()
            if self._advance_wanted:
                continue  # what was just taken held no event, and was the last of its segment
            if self._failure is not None:
                failure, self._failure = self._failure, None
                self._advance_wanted = True
                raise failure
            if self._is_over():
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    async def _moved_with_head(self) -> bool:
        """Go to the head of the stream as it is now, if the reader has not left the old one; return whether it did.

        Raises:
            CutTruncatedError, StreamNotFoundError: in the words of someone who starts to read here. What the reader
                held was handed out, what follows is lost.
        """
        info = await self._stream_now()
        try:
            resolve_cut(self.position(), info, known=self._lineage.by_id.values())
        except CutTruncatedError as error:
            if not self._is_at_head or error.resume_at is None:
                raise
            for source in self._sources.values():
                source.close()
            self._sources.clear()
            self._ready.clear()
            self._lineage, self._sealed = Lineage[StreamPart](info.segments), info.sealed
            self._places = dict(error.resume_at.positions)
            for segment_id in self._places:
                self._add_source(segment_id)
                self._sources[segment_id].start()
            self._advance_wanted = True
            return True
        return False

    async def _stream_now(self) -> StreamInfo:
        info = stream_info(await self._channel.request(m.GetStream(self.stream)))
        if info.stream_id != self._stream_id:
            raise StreamNotFoundError(f"{self.stream} was deleted; the one of that name now is another stream")
        return info

    # --- successors ---

    def _add_source(self, segment_id: int) -> None:
        place = self._places[segment_id]
        self._sources[segment_id] = BlockStream(
            self._channel,
            segment_id,
            start=place,
            end=self._limits.get(segment_id, place) if self._is_bounded else None,
            window_bytes=self._options.segment_window_bytes(len(self._places)),
            on_change=self._changed,
        )

    def _goes_on(self, segment_id: int) -> bool:
        """Return whether successors of a segment, if there are any, are to be read."""
        return not self._is_bounded or segment_id in self._whole

    def _is_over(self) -> bool:
        """Return whether all was read. Successors of what is finished were fetched just before."""
        return self._refreshing is None and all(source.finished for source in self._sources.values())

    def _advance(self) -> None:
        """Continue with the successors of what was handed out to its end. No block may be current."""
        self._advance_wanted = False
        finished = deque(segment_id for segment_id, source in self._sources.items() if source.finished)
        while finished:
            segment_id = finished.popleft()
            if segment_id not in self._sources or not self._goes_on(segment_id):
                continue
            replacement = self._lineage.replacement(segment_id)
            if replacement is None:
                if not self._sealed:
                    self._refresh()
            elif all(self._is_finished(each.segment_id) for each in replacement.predecessors):
                finished.extend(self._replace(replacement))

    def _is_finished(self, segment_id: int) -> bool:
        source = self._sources.get(segment_id)
        return source is not None and source.finished

    def _replace(self, replacement: Replacement[StreamPart]) -> list[int]:
        """Read the successors in place of their predecessors; return those of them of which nothing is wanted."""
        for segment in replacement.predecessors:
            self._sources.pop(segment.segment_id).close()
            del self._places[segment.segment_id]
        added = [segment.segment_id for segment in replacement.successors]
        self._places.update((segment_id, (0, 0)) for segment_id in added)
        for segment_id in added:
            self._add_source(segment_id)
            self._sources[segment_id].start()
        return [segment_id for segment_id in added if self._sources[segment_id].finished]

    def _refresh(self) -> None:
        if self._refreshing is None and not self._closed:
            self._refreshing = asyncio.create_task(
                self._ask_lineage(), name=f"reader of {self.stream} finds successors"
            )
            self._refreshing.add_done_callback(self._refreshed)

    async def _ask_lineage(self) -> None:
        """Learn what replaced the segments that have ended."""
        # What ends while the answer is on its way is not in it: that is asked for next.
        ended = [
            segment_id for segment_id, source in self._sources.items() if source.finished and self._goes_on(segment_id)
        ]
        info = await self._stream_now()
        # The reader may have left some of them meanwhile: those whose replacement it knew before. They may be deleted.
        ended = [segment_id for segment_id in ended if segment_id in self._sources]
        listed: dict[int, StreamPart] = {segment.segment_id: segment for segment in info.segments}
        if any(segment_id not in listed for segment_id in self._sources):
            # Truncated away after it was read: who replaced it is left in the history.
            history = stream_history(await self._channel.request(m.GetStreamHistory(self.stream)))
            listed = {segment.segment_id: segment for segment in parts_of_history(history)} | listed
        strange = [each for each in ended if each not in listed or not (info.sealed or listed[each].sealed_epoch)]
        if strange:
            raise ServerFailedError(f"{self.stream}: segments {strange} have ended, and nothing has replaced them")
        self._lineage = Lineage(listed.values())
        self._sealed = info.sealed

    def _refreshed(self, task: "asyncio.Task[None]") -> None:
        self._refreshing = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, MillraceError):
            self._failure = error
        elif error is not None:
            raise error  # our own bug: the loop's exception handler names it
        else:
            self._advance_wanted = True
        self._wake()

    # --- blocks ---

    def _take_ready(self) -> PlacedBlock | None:
        """Return a block that is here and holds an event, of each segment in turn."""
        ready = self._ready
        while ready:
            source = ready[0]
            placed = source.take()
            ready.popleft()
            if source.ready:
                ready.append(source)
            elif source.finished:
                self._advance_wanted = True
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

    def _changed(self, source: BlockStream) -> None:
        if source.ready and source not in self._ready:
            self._ready.append(source)
        if source.finished:
            self._advance_wanted = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _rest_of_current(self) -> PlacedBlock | None:
        """Return the part of the current block that was not handed out, None if there is none."""
        current = self._current
        if current is None or self._last is None:
            return current
        start = self._last.index + 1
        return current._replace(start=start) if start < current.end else None

    def _leave(self, placed: PlacedBlock) -> None:
        """Count a block as handed out."""
        self._places[placed.segment_id] = placed.next_place
        if self._current is not None and self._current[:2] == placed[:2]:
            self._current, self._events, self._last = None, iter(()), None
