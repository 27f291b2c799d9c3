"""The reader of several streams at once: their events as they come, each stream in turn.

Each stream has a `Reader`, so the events of each of its keys stay in order, and its position is a cut at any moment.
Between streams there is no order. Streams that match a pattern join when they are found, from their head on, and those
that are deleted leave.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from millrace.client.errors import ClientClosedError, StreamNotFoundError
from millrace.client.transport.channel import Channel
from millrace.model.cut import StreamCut
from millrace.model.errors import MillraceError
from millrace.model.event import Event
from millrace.model.shown import short
from millrace.model.slice import Slice

from .block_stream import PlacedBlock
from .event_reader import EventReader
from .reader import SEGMENT_WINDOW_BYTES_MIN, OpenReader, Reader, ReaderOptions

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

Discover = Callable[[], Awaitable[list[Slice]]]
"""Returns the slices to read of the streams that match a pattern now."""


@dataclass(slots=True, eq=False)
class _Member:
    """A stream with its reader.

    Attributes:
        is_found: the stream only matched a pattern, so it may be deleted.
        is_woken: `poll` of its reader may return a block.
    """

    reader: Reader
    is_found: bool
    is_woken: bool = False


class StreamsReader(EventReader):
    """Reads several streams. Made by `client.reader`; an async context manager and iterator; belongs to one event loop.

    Several tasks may share it (see `EventReader`), and then share its positions.

    Args:
        named: streams that must exist; the others match a pattern, and may be deleted.
    """

    has_stream: ClassVar[bool] = True

    def __init__(
        self,
        channel: Channel,
        parts: Sequence[Slice],
        *,
        named: Collection[str],
        open_reader: OpenReader,
        discover: Discover | None,
        options: ReaderOptions,
    ) -> None:
        super().__init__()
        self._channel = channel
        self._parts = parts
        self._named = named
        self._open_reader = open_reader
        self._discover = discover
        self._options = options
        self._members: dict[str, _Member] = {}
        # The final positions of streams that were read to their ends.
        self._ended: dict[str, StreamCut] = {}
        self._woken: deque[_Member] = deque()
        self._discovering: asyncio.Task[None] | None = None
        # The error that ended the search for new streams.
        self._failure: BaseException | None = None
        # The current block; `_events` holds its remaining events.
        self._current: tuple[_Member, PlacedBlock] | None = None
        self._stream_of: dict[int, str] = {}

    _unlisted = frozenset({"has_stream"})

    def _facts(self) -> Iterator[str]:
        yield f"of {short(tuple(self._members))} at {self._channel.address}"
        yield "closed" if self._closed else "open"

    async def __aenter__(self) -> Self:
        """Start fetching."""
        try:
            for part in self._parts:
                try:
                    await self._join(part)
                except StreamNotFoundError:
                    if part.stream in self._named:
                        raise
                    # It was deleted after it was listed.
        except BaseException:
            self.close()
            raise
        if self._discover is not None:
            self._discovering = asyncio.create_task(self._discover_streams(), name="find streams that match")
            self._discovering.add_done_callback(self._discovered)
        return self

    def close(self) -> None:
        """Stop fetching; `positions` can still be called."""
        self._closed = True
        if self._discovering is not None and not self._channel.guard.forked:
            self._discovering.cancel()
        for member in self._members.values():
            member.reader.close()
        self._wake()

    async def arrow_batches(self) -> "AsyncIterator[pa.RecordBatch]":
        """Yield the events as record batches of one stream each, with a last column `stream`; needs pyarrow.

        The other columns are those of `millrace.client.read.arrow`. A batch counts as read when it is yielded.
        Raises like `__anext__`.
        """
        from .arrow import with_stream

        while True:
            async with self._turn:
                if (found := await self._take_block()) is None:
                    return
                member, placed = found
                batch = with_stream(member.reader.take_batch(placed), member.reader.stream)
                self._current = None
            yield batch

    def stream_of(self, event: Event) -> str:
        """Return the name of the stream of an event that this reader returned."""
        return self._stream_of[event.segment]

    def positions(self) -> dict[str, StreamCut]:
        """Return the cut after the events returned so far, for each stream.

        A reader with these cuts as `start` continues without gap or repeat, and reads new streams from their heads.
        """
        return {**self._ended, **{name: member.reader.position() for name, member in self._members.items()}}

    # --- inside ---

    async def _next_block(self) -> bool:
        found = await self._take_block()
        if found is None:
            return False
        member, placed = found
        self._events = member.reader.begin(placed)
        self._current = found
        self._stream_of[placed.segment_id] = member.reader.stream
        return True

    async def _take_block(self) -> tuple[_Member, PlacedBlock] | None:
        """Return the rest of the current block, or the next block with events; None at the end."""
        if self._current is not None:
            member, placed = self._current
            if (rest := member.reader.rest()) is not None:
                return member, rest
            member.reader.leave(placed)
            self._current = None
        while True:
            if self._closed:
                raise ClientClosedError("the reader was closed")
            self._channel.check()
            while self._woken:
                if (found := await self._poll(self._woken.popleft())) is not None:
                    return found
            if self._failure is not None:
                raise self._failure.with_traceback(None)  # or each raise would add to it
            if not self._members and self._discover is None:
                return None
            await self._wait()

    async def _poll(self, member: _Member) -> tuple[_Member, PlacedBlock] | None:
        """Return an available block of one stream, if any; mark the stream to be polled again when needed."""
        member.is_woken = False
        try:
            placed = await member.reader.poll()
        except StreamNotFoundError:
            if not member.is_found:
                self._changed(member)
                raise
            self._leave(member)
            return None
        except BaseException:  # a cancelled wait, too
            self._changed(member)
            raise
        if placed is not None:
            self._changed(member)  # at the end of the queue
            return member, placed
        if member.reader.is_over:
            self._ended[member.reader.stream] = member.reader.position()
            self._leave(member)
        return None

    def _changed(self, member: _Member) -> None:
        if not member.is_woken:
            member.is_woken = True
            self._woken.append(member)
        self._wake()

    def _leave(self, member: _Member) -> None:
        """Stop reading a stream."""
        del self._members[member.reader.stream]
        member.reader.on_change = lambda: None
        member.reader.close()

    async def _join(self, part: Slice) -> None:
        """Start reading a stream."""
        share_bytes = self._options.window_bytes // max(len(self._parts), len(self._members) + 1)
        options = replace(self._options, window_bytes=max(SEGMENT_WINDOW_BYTES_MIN, share_bytes))
        reader = await self._open_reader(part, options)
        member = self._members[part.stream] = _Member(reader, is_found=part.stream not in self._named)
        reader.on_change = lambda: self._changed(member)
        await reader.__aenter__()
        self._changed(member)

    async def _discover_streams(self) -> None:
        """Add new streams that match a pattern, periodically; retry after transient errors."""
        assert self._discover is not None
        while True:
            await self._channel.clock.sleep(self._options.discover_interval_s)
            try:
                for part in await self._discover():
                    if part.stream not in self._members and part.stream not in self._ended:
                        await self._join(part)
            except StreamNotFoundError:
                continue  # it was deleted after it was listed
            except MillraceError as error:
                if not error.retriable:
                    raise
                logger.info("search for new streams failed, will retry error=%s", error)

    def _discovered(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            self._failure = task.exception()
            self._wake()
