"""The reader of a stream: the events between two cuts, in the order of each key.

The segments at the reader's position are fetched in parallel, each by a `BlockStream` with its share of the window.
Whole blocks are fetched ahead, so the next event is usually available without waiting. The position of the reader is
exact to the event; a cancelled wait loses none.

If the stream was scaled, the reader continues with the successors once it has read all segments that were replaced
together (see `millrace.model.lineage`). So the events of a key stay in order, and the position is always a valid cut.

A reader waits out an outage of the server, for up to `ClientOptions.outage_timeout_s`, and then continues.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import TYPE_CHECKING, Final, Self

from millrace.client.errors import (
    ClientClosedError,
    CutTruncatedError,
    OutageTimeoutError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    ServerFailedError,
    StreamNotFoundError,
)
from millrace.client.streams import fetch_history, fetch_stream
from millrace.client.transport.channel import Channel
from millrace.model.cut import StreamCut
from millrace.model.errors import BlockCorruptError, InvalidArgumentError, MillraceError
from millrace.model.event import Event
from millrace.model.lineage import Lineage, StreamPart, parts_of_history
from millrace.model.position import START, Position
from millrace.model.shown import short
from millrace.model.slice import Slice
from millrace.model.stream import StreamInfo
from millrace.wire.limits import KIB, MIB

from .block_stream import BlockStream, PlacedBlock
from .cut_resolution import resolve_cut
from .event_reader import EventReader

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENT_WINDOW_BYTES_MIN: Final = 64 * KIB
SEGMENT_WINDOW_BYTES_MAX: Final = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """Options of a reader.

    Attributes:
        window_bytes: read-ahead over all segments together, also after splits; each segment has at least 64 KiB.
            Several streams share it.
        discover_interval_s: how often a reader of patterns looks for new streams.
        block_bytes_max: the largest block to fetch, unless a larger one fits the window of its segment. At a larger
            block the reader raises EventTooLargeError, with the id of the segment in `subject` and the size of the
            block in `length`. None for no limit.
    """

    window_bytes: int = 32 * MIB
    discover_interval_s: float = 5.0
    block_bytes_max: int | None = None

    def __post_init__(self) -> None:
        if self.window_bytes < SEGMENT_WINDOW_BYTES_MIN:
            raise InvalidArgumentError(f"window_bytes={self.window_bytes} must be at least {SEGMENT_WINDOW_BYTES_MIN}")
        if self.discover_interval_s <= 0:
            raise InvalidArgumentError(f"discover_interval_s={self.discover_interval_s} must be above 0")


class Reader(EventReader):
    """Reads one stream. Made by `client.reader`; an async context manager and iterator; belongs to one event loop.

    Several tasks may share it (see `EventReader`), and then share its position.
    """

    def __init__(
        self,
        channel: Channel,
        stream: StreamInfo,
        *,
        start: StreamCut,
        end: StreamCut | None,
        options: ReaderOptions,
        key: str | None = None,
        is_from_head: bool = False,
    ) -> None:
        super().__init__()
        self._channel = channel
        self.stream = stream.name
        self._stream_id = stream.stream_id
        self._options = options
        self.key = key
        self._lineage: Lineage[StreamPart] = Lineage(stream.segments)
        # The lineage is known up to this epoch.
        self._epoch = stream.epoch
        self._sealed = stream.sealed
        # Whether it still has to start at the head: a truncation moves the head, and the reader with it.
        self._is_at_head = is_from_head
        # The position in each segment that is being read, after the events returned so far; together they form a cut.
        self._places: dict[int, tuple[int, int]] = dict(start.positions)
        # Where to stop in each segment, and which to read completely; later segments are after the end cut.
        self._is_bounded = end is not None
        self._limits = {} if end is None else stream.progress(end)
        self._whole = set() if end is None else self._lineage.before(end.places)
        self._sources: dict[int, BlockStream] = {}
        # Whether a segment may have been finished since the successors were last fetched.
        self._advance_wanted = True
        # Fetches the stream again: a segment ended, and its successors are not known yet.
        self._refreshing: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        # Sources with data, in the order of arrival; each at most once.
        self._ready: deque[BlockStream] = deque()
        # Called when `poll` may return a block again; for readers of several streams.
        self.on_change: Callable[[], None] = lambda: None
        # Blocks that were taken, but not returned because of an error: they come again, so no event is skipped.
        self._returned: deque[PlacedBlock] = deque()
        # The current block, and the indexes of the events to return; `_events` holds the remaining ones.
        self._current: PlacedBlock | None = None
        self._indexes: Sequence[int] = ()
        # Segments that `stop_before` has stopped, although they may hold more events.
        self._stopped: set[int] = set()

    _unlisted = frozenset({"begin", "has_stream", "leave", "on_change", "poll", "rest", "take_batch"})

    def _facts(self) -> Iterator[str]:
        yield f"of {self.stream} at {self._channel.address}"
        if self.key is not None:
            yield f"key {short(self.key)}"
        yield "closed" if self._closed else "at its end" if self.is_over else "open"

    async def __aenter__(self) -> Self:
        """Start fetching."""
        self._channel.check()
        self._start_sources()
        return self

    def close(self) -> None:
        """Stop fetching; `position` can still be called."""
        self._closed = True
        if self._refreshing is not None and not self._channel.guard.forked:
            self._refreshing.cancel()
        for source in self._sources.values():
            source.close()
        self._wake()

    async def arrow_batches(self) -> "AsyncIterator[pa.RecordBatch]":
        """Yield the events as record batches, with the columns of `millrace.client.read.arrow`; needs pyarrow.

        A batch counts as read when it is yielded. Raises like `__anext__`.
        """
        while True:
            async with self._turn:
                if (placed := await self._take_block()) is None:
                    return
                batch = self.take_batch(placed)
            yield batch

    def position(self, *, before: Event | None = None) -> StreamCut:
        """Return the cut after the events returned so far: a reader started there continues without gap or repeat.

        The position of a reader of one key is valid only for readers of that key.

        Args:
            before: an event of the current block: the cut is before it in its segment.

        Raises:
            InvalidArgumentError: `before` is not an event of the current block.
        """
        places = dict(self._places)
        if (current := self._current) is not None:
            rest = self.rest()
            places[current.segment_id] = current.next_place if rest is None else Position(rest.offset, rest.start)
        if before is not None:
            places[before.segment] = self._place_of(before)
        return StreamCut.of(self.stream, places)

    def stop_before(self, event: Event) -> None:
        """Stop reading the segment of an event and its successors: the position there stays before the event.

        The other segments are read on. The reader ends when all segments are stopped, or have ended.

        Args:
            event: an event of the current block.

        Raises:
            InvalidArgumentError: it is not an event of the current block.
        """
        place = self._place_of(event)
        self._current, self._events = None, iter(())
        self._returned = deque(placed for placed in self._returned if placed.segment_id != event.segment)
        self._places[event.segment] = place
        self._stopped.add(event.segment)
        self._sources[event.segment].close()

    # --- inside ---

    async def _next_block(self) -> bool:
        placed = await self._take_block()
        if placed is None:
            return False
        self.begin(placed)
        return True

    def begin(self, placed: PlacedBlock) -> Iterator[Event]:
        """Make a block the current one, and return its events, each of which counts as read when it is taken.

        Raises:
            BlockCorruptError: a key, or the name of a header, is not UTF-8. The block comes again.
        """
        try:
            events = placed.block.events(segment_id=placed.segment_id, offset=placed.offset)
        except BlockCorruptError as error:
            self._returned.appendleft(placed)
            raise placed.corrupt(error) from None
        indexes = placed.indexes(self.key)
        if len(indexes) < len(events):
            events = [events[index] for index in indexes]
        self._current, self._indexes, self._events = placed, indexes, iter(events)
        return self._events

    def take_batch(self, placed: PlacedBlock) -> "pa.RecordBatch":
        """Return the events of a block as a record batch, together with further small blocks that are available.

        The events count as read. Needs pyarrow.

        Raises:
            BlockCorruptError: a key, or the name of a header, is not UTF-8. The blocks come again.
        """
        from .arrow import LARGE_BLOCK_ROWS_MIN, batch_of_many

        blocks = [placed]
        rows = placed.end - placed.start
        while rows < LARGE_BLOCK_ROWS_MIN and (more := self._take_company()) is not None:
            blocks.append(more)
            rows += more.end - more.start
        try:
            batch = batch_of_many(blocks, key=self.key)
        except BlockCorruptError:
            # What is left of the current block comes again by itself.
            self._returned.extendleft(reversed(blocks if self._current is None else blocks[1:]))
            raise
        for block in blocks:
            self.leave(block)
        return batch

    def _place_of(self, event: Event) -> Position:
        """Return the position before an event of the current block."""
        current, place = self._current, event.position
        if current is None or current[:2] != place[:2] or not current.start <= place.event_index < current.end:
            raise InvalidArgumentError(f"{place} is not an event of the current block")
        return Position(place.offset, place.event_index)

    def rest(self) -> PlacedBlock | None:
        """Return the unread rest of the current block, None if there is none."""
        current, left = self._current, length_hint(self._events)
        return None if current is None or not left else current._replace(start=self._indexes[-left])

    async def _take_block(self) -> PlacedBlock | None:
        """Return the rest of the current block, or the next block with events; None at the end.

        Waits only before it takes a block, so cancelling loses none.
        """
        if (rest := self.rest()) is not None:
            return rest
        if self._current is not None:
            self.leave(self._current)
        while (placed := await self.poll()) is None and not self.is_over:
            await self._wait()
        return placed

    async def poll(self) -> PlacedBlock | None:
        """Return an available block with events, if any. There must be no current block. Raises like `__anext__`."""
        try:
            return await self._poll()
        except MillraceError as error:
            if not error.retriable:
                raise
            raise OutageTimeoutError(f"{self.stream}: {error}", resume_at=self.position()) from error

    async def _poll(self) -> PlacedBlock | None:
        while True:
            if self._closed:
                raise ClientClosedError("the reader was closed")
            if self._returned:
                return self._returned.popleft()
            # No block is current, so every finished source was read to its end.
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
                continue  # the block just taken was empty, and the last of its segment
            if self._failure is not None:
                failure, self._failure = self._failure, None
                self._advance_wanted = True
                raise failure
            return None

    async def _moved_with_head(self) -> bool:
        """Move to the current head of the stream, if the reader is still at the old head; return whether it moved.

        Raises:
            CutTruncatedError, StreamNotFoundError: as for a reader that starts at this position; the next events are
                lost.
        """
        info = await self._stream_now()
        try:
            resolve_cut(self.position(), info, known=self._lineage.by_id.values(), key=self.key)
        except CutTruncatedError as error:
            if not self._is_at_head or error.resume_at is None:
                raise
            for source in self._sources.values():
                source.close()
            self._sources.clear()
            self._ready.clear()
            self._lineage, self._epoch, self._sealed = Lineage[StreamPart](info.segments), info.epoch, info.sealed
            self._places = dict(error.resume_at.positions)
            self._start_sources()
            self._advance_wanted = True
            return True
        return False

    async def _stream_now(self, *, replaced_from: int = 0) -> StreamInfo:
        timeout_s = self._channel.options.outage_timeout_s
        info = await fetch_stream(self._channel, self.stream, replaced_from=replaced_from, timeout_s=timeout_s)
        if info.stream_id != self._stream_id:
            raise StreamNotFoundError(f"{self.stream} was deleted; another stream has its name now")
        return info

    # --- successors ---

    def _start_sources(self) -> None:
        """Start a source for each segment at the position that has none.

        New segments share the part of the window that the others leave: after a scaling, that of their predecessors.
        """
        new = [each for each in self._places if each not in self._sources and self._lineage.by_id[each].holds(self.key)]
        if not new:
            return
        left_bytes = self._options.window_bytes - sum(source.window_bytes for source in self._sources.values())
        window_bytes = min(SEGMENT_WINDOW_BYTES_MAX, max(SEGMENT_WINDOW_BYTES_MIN, left_bytes // len(new)))
        for segment_id in new:
            place = self._places[segment_id]
            source = self._sources[segment_id] = BlockStream(
                self._channel,
                segment_id,
                start=place,
                end=self._limits.get(segment_id, place) if self._is_bounded else None,
                window_bytes=window_bytes,
                block_bytes_max=self._options.block_bytes_max,
                on_change=self._changed,
            )
            source.start()

    def _is_passed(self, segment_id: int) -> bool:
        """Return whether a segment was read to its end, so that its successors come next, if it has any."""
        if segment_id in self._stopped or (self._is_bounded and segment_id not in self._whole):
            return False
        if not self._lineage.by_id[segment_id].holds(self.key):
            # The segment is skipped, but its successors may hold the key.
            return self._lineage.replacement(segment_id) is not None
        source = self._sources.get(segment_id)
        if source is not None:
            return source.finished
        # A new successor without a source: it is passed only if it is known to be empty.
        return self._is_bounded and self._limits[segment_id] == START

    @property
    def is_over(self) -> bool:
        """Whether the reader is at its end; valid after `poll` has returned None."""
        return self._refreshing is None and all(source.finished for source in self._sources.values())

    def _advance(self) -> None:
        """Continue with the successors of segments read to their end. There must be no current block."""
        self._advance_wanted = False
        for segment_id in self._lineage.advance(self._places, self._is_passed, start=(0, 0)):
            source = self._sources.pop(segment_id, None)
            if source is not None:
                source.close()
        self._start_sources()
        if not self._sealed and self._refreshing is None and self._unreplaced():
            self._refreshing = asyncio.create_task(
                self._ask_lineage(), name=f"reader of {self.stream} finds successors"
            )
            self._refreshing.add_done_callback(self._refreshed)

    def _unreplaced(self) -> list[int]:
        """Return the segments that have ended, and whose successors are not known yet."""
        return [each for each in self._places if self._is_passed(each) and self._lineage.replacement(each) is None]

    async def _ask_lineage(self) -> None:
        """Fetch the successors of the segments that have ended."""
        # Segments that end during the request may be missing in the reply: the next request covers them.
        ended = self._unreplaced()
        info = await self._stream_now(replaced_from=self._epoch + 1)
        # Meanwhile the reader may have left some of them, and they may have been deleted.
        ended = [segment_id for segment_id in ended if segment_id in self._sources]
        listed: dict[int, StreamPart] = {segment.segment_id: segment for segment in info.segments}
        known = self._lineage.by_id
        if any(each not in listed and not part.sealed_epoch for each, part in known.items()):
            # A segment was replaced and truncated: only the history still names its successors.
            timeout_s = self._channel.options.outage_timeout_s
            history = await fetch_history(self._channel, self.stream, timeout_s=timeout_s)
            listed = {segment.segment_id: segment for segment in parts_of_history(history)} | listed
        else:
            # Known replaced segments do not change, and only those after the position matter.
            passed = self._lineage.before(self._places)
            kept = {each: part for each, part in known.items() if part.sealed_epoch and each not in passed}
            listed = kept | listed
        strange = [each for each in ended if each not in listed or not (info.sealed or listed[each].sealed_epoch)]
        if strange:
            raise ServerFailedError(f"{self.stream}: segments {strange} have ended, but have no successors")
        self._lineage = Lineage(listed.values())
        self._epoch, self._sealed = info.epoch, info.sealed

    def _refreshed(self, task: "asyncio.Task[None]") -> None:
        self._refreshing = None
        if not task.cancelled():
            self._failure = task.exception()
            self._advance_wanted |= self._failure is None
            self._wake()

    # --- blocks ---

    def _take_ready(self) -> PlacedBlock | None:
        """Return an available block with events, round robin over the segments."""
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
                if placed.indexes(self.key):
                    return placed
                self.leave(placed)
        return None

    def _take_company(self) -> PlacedBlock | None:
        """Return a further block for a batch, like `_take_ready`; errors are left for the next call."""
        try:
            return self._returned.popleft() if self._returned else self._take_ready()
        except MillraceError:
            return None

    def _changed(self, source: BlockStream) -> None:
        if source.ready and source not in self._ready:
            self._ready.append(source)
        if source.finished:
            self._advance_wanted = True
        self._wake()

    def _wake(self) -> None:
        self.on_change()
        super()._wake()

    def leave(self, placed: PlacedBlock) -> None:
        """Count a block as read."""
        self._places[placed.segment_id] = placed.next_place
        if self._current is not None and self._current[:2] == placed[:2]:
            self._current, self._events = None, iter(())


OpenReader = Callable[[Slice, ReaderOptions], Awaitable[Reader]]
"""Returns a reader of one stream, to be entered."""
