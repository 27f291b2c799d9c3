"""A feed: the events of a stream as messages, from a place on, for as long as the peer receives them.

    (no kind)    an event, as `millrace read --json` prints it
    truncated    the next events were truncated: the feed continues at `resume_at`
    end          the stream is sealed (or deleted), and all its events were sent; `reason` is which
    failed       the next events cannot be read, for the reason `error`

The `id` of each message is the cut after it: a feed from there on has all later events, and none that were sent. The
first message, and one after a pause in which the place has moved, has an `id` only, so that a reconnecting peer knows
its place before it has received an event. A message that ends the feed repeats its own place, and a feed from there
ends at once.

A feed is a client of the server like any other: it reads in the order of each key, over all splits and merges, it waits
while the container recovers, and the server's limits apply to it.

A feed that cannot send, or gets no memory for the next block, rests: it closes its reader and its connection to the
server, and keeps its position only. Later it fetches again from there.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from millrace.client.client import Client, connect
from millrace.client.errors import CutTruncatedError, StreamNotFoundError
from millrace.client.options import ClientOptions
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.model.cut import HEAD, CutChoice, StreamCut
from millrace.model.errors import EventTooLargeError, MillraceError
from millrace.model.event import Event
from millrace.model.event_json import event_json
from millrace.model.position import Position
from millrace.wire.limits import KIB

from .counters import FeedCounters
from .feed_places import FeedMemory
from .options import FeedOptions
from .sse import KEEP_ALIVE, encode_message

CHUNK_SIZE_BYTES: Final = 64 * KIB
"""Small messages are sent together, up to this size."""
BLOCK_COPIES: Final = 3
"""Copies of a block in memory: its bytes, its events, and the next block, which the reader is fetching."""
IDLE_S: Final = 0.1
"""A reader that has fetched a large block is closed after this time without events, because it holds a window."""
EVENT_SIZE_BYTES: Final = 600
"""Memory of an event beside its value (measured, rounded up)."""
CHUNK_COPIES: Final = 2
"""Copies of a chunk being sent: the messages, and the HTTP frame around them."""
RETRY_MS: Final = 2000
OPENING_TIMEOUT_S: Final = 5.0
"""For each request that has to be answered before a feed begins; less than the listener allows for a whole answer."""


class FeedOverError(Exception):
    """The place of a reconnecting peer is at the end of a stream that gets no further events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest:
    """The parameters of a feed.

    Attributes:
        start: where to begin.
        key: only the events of this key; None for all.
        is_resumed: whether `start` is the position of an earlier feed.
    """

    stream: str
    start: CutChoice
    key: str | None
    is_resumed: bool


class _NoRoomError(Exception):
    """No memory is available for the next block."""


class Feed:
    """One feed: an iterator of chunks of whole messages. The first chunk is returned once the feed is known to work.

    `__anext__` raises

        MillraceError   the events cannot be read; only before the first chunk
        FeedOverError   the feed was read to its end before; only before the first chunk

    Close it (`aclose`) to close its connection to the server. Cancelling does so, too.
    """

    def __init__(
        self,
        wanted: FeedRequest,
        *,
        address: str,
        token: str,
        options: FeedOptions,
        counters: FeedCounters,
        memory: FeedMemory,
    ) -> None:
        self._wanted = wanted
        self._address = address
        self._token = token
        self._options = options
        self._counters = counters
        self._memory = memory
        # Where the next message begins, and whether the first message was sent, and the last one.
        self._start = wanted.start
        self._has_begun = self._is_over = False
        # The size of the block that may be fetched, and the memory for it, both above the window: 0 if none.
        self._block_length = self._block_bytes = 0
        # The segment of that block, until the position is after it.
        self._awaited_segment: int | None = None
        self._source: AsyncGenerator[bytes] | None = None
        self._room: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        """Iterate over the chunks."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk, which is requested when most of the previous one was received."""
        self._memory.sending(0)
        # A block that arrives slowly may take until the next comment, otherwise it would be fetched in vain in each
        # turn.
        least_s = 0.0 if self._awaited_segment is None else self._options.keepalive_s
        if self._source is not None and self._memory.is_turn_over(least_s):
            await self.rest()
        while True:
            if self._source is None:
                if self._is_over:
                    raise StopAsyncIteration
                if not await self._has_room():
                    return KEEP_ALIVE
                self._source = self._messages()
            try:
                chunk = await anext(self._source)
            except _NoRoomError:
                self._source = None
                self._memory.rest()
            else:
                self._memory.sending(CHUNK_COPIES * len(chunk))
                return chunk

    async def rest(self) -> None:
        """Keep the position only, until the next chunk is requested. Not while a chunk is awaited."""
        await self.aclose()
        self._memory.rest()

    async def _has_room(self) -> bool:
        """Wait for memory for the next block, at most until the next comment; return whether it is available."""
        if self._room is None:
            self._room = asyncio.create_task(self._memory.room(self._block_bytes), name="memory of a feed")
        await asyncio.wait([self._room], timeout=self._options.keepalive_s if self._has_begun else None)
        if not self._room.done():
            return False
        room, self._room = self._room, None
        room.result()
        return True

    async def aclose(self) -> None:
        """Close the connection to the server."""
        room, self._room = self._room, None
        if room is not None:
            room.cancel()
            await asyncio.gather(room, return_exceptions=True)
        source, self._source = self._source, None
        if source is not None:
            await source.aclose()

    async def _messages(self) -> AsyncGenerator[bytes]:
        """Yield chunks from the position on, which advances."""
        wanted = self._wanted
        asked = ClientOptions(client_name="millrace-console", request_timeout_s=OPENING_TIMEOUT_S)
        async with connect(self._address, token=self._token, options=asked) as client:
            while True:
                try:
                    options = ReaderOptions(
                        window_bytes=self._options.feed_window_bytes, block_bytes_max=self._block_length
                    )
                    async with client.reader(
                        wanted.stream, start=self._start, key=wanted.key, options=options
                    ) as reader:
                        ahead = None
                        if not self._has_begun:
                            place = reader.position()
                            if wanted.is_resumed:
                                ahead = await _last_events(client, reader)
                            self._has_begun, self._start = True, place
                            yield encode_message(last_id=str(place), retry_ms=RETRY_MS)
                        async for chunk in self._chunks(reader, ahead):
                            yield chunk
                    if self._is_over:
                        return
                    self._forget_block()
                except EventTooLargeError as error:
                    self._hold_before_fetch(int(error.subject), error.length or 0)
                except CutTruncatedError as error:
                    self._forget_block()
                    self._has_begun = True
                    self._start = HEAD if error.resume_at is None else error.resume_at
                    content = {"error": str(error), "resume_at": str(self._start)}
                    yield encode_message(content, last_id=str(error.resume_at or ""), event="truncated")
                except StreamNotFoundError as error:
                    if not self._has_begun:
                        raise
                    yield self._last({"reason": "deleted", "error": str(error)}, event="end")
                    return
                except MillraceError as error:
                    if not self._has_begun:
                        raise
                    yield self._last({"error": f"{type(error).__name__}: {error}"}, event="failed")
                    return

    def _forget_block(self) -> None:
        """Allow no large block, and hold no memory for one."""
        self._block_length = self._block_bytes = 0
        self._awaited_segment = None
        self._memory.hold(0)

    def _hold_before_fetch(self, segment_id: int, length: int) -> None:
        """Hold memory for blocks of this size, one for each segment. Raises like `_hold`."""
        self._block_length, self._awaited_segment = length, segment_id
        segments_count = len(self._start.places) if isinstance(self._start, StreamCut) else 1
        self._hold(segment_id, (BLOCK_COPIES + segments_count - 1) * length)

    def _hold(self, segment_id: int, block_bytes: int) -> None:
        """Hold memory for a block of a segment, beside the memory held for another one.

        Raises:
            _NoRoomError: no memory is available now.
        """
        self._block_bytes = max(self._block_bytes, block_bytes)
        if not self._memory.hold(self._block_bytes):
            self._awaited_segment = segment_id
            raise _NoRoomError

    async def _chunks(self, reader: Reader, ahead: list[Event] | None) -> AsyncGenerator[bytes]:
        """Yield the messages of the reader's events, starting with the events in `ahead`. Raises like the reader.

        Ends early if memory is held for a block and no event follows after that block.

        Raises:
            _NoRoomError: the next block has to be fetched again, when memory is available.
        """
        begun = told = reader.position()
        events = await self._next_events(reader) if ahead is None else ahead
        while events != []:
            cut = reader.position()
            awaited = self._awaited_segment
            if awaited is not None and cut.places.get(awaited) != begun.places.get(awaited):
                self._awaited_segment = None
            if events is None:
                self._start = cut
                # If the reader were closed before it has the block, a block that arrives slowly would never be read.
                if self._block_bytes and self._awaited_segment is None:
                    return
                yield KEEP_ALIVE if cut == told else encode_message(last_id=str(cut))
            else:
                self._hold(events[0].segment, max(0, _memory_of(events, cut) - self._options.feed_window_bytes))
                for chunk, count, after in _gathered(events, cut):
                    self._counters.events_total += count
                    self._start = after
                    yield chunk
            told = cut
            events = await self._next_events(reader)
        yield self._last({"reason": "sealed"}, last_id=str(reader.position()), event="end")

    async def _next_events(self, reader: Reader) -> list[Event] | None:
        is_idle_soon = self._block_bytes and self._awaited_segment is None
        return await _next_events(reader, within_s=IDLE_S if is_idle_soon else self._options.keepalive_s)

    def _last(self, content: Mapping[str, str], *, event: str, last_id: str = "") -> bytes:
        """Return a message that ends the feed."""
        self._is_over = True
        return encode_message(content, last_id=last_id, event=event)


def _memory_of(events: Sequence[Event], cut: StreamCut) -> int:
    """Return the approximate memory of a block while its events are sent, in bytes; `cut` is after it."""
    first = events[0]
    place = cut.places.get(first.segment)
    stored_bytes = 0 if place is None else max(0, place.offset - first.offset)
    size_bytes = max(stored_bytes, sum(len(event.value) for event in events))
    return BLOCK_COPIES * size_bytes + EVENT_SIZE_BYTES * len(events)


async def _last_events(client: Client, reader: Reader) -> list[Event] | None:
    """Return the next events if the stream gets no others; None if it may, or the check takes too long.

    Raises:
        FeedOverError: there are no events.
    """
    if not (await client.stream_info(reader.stream)).sealed:
        return None
    # This never waits for new events; but many events may have to be skipped to find one of a key.
    events = await _next_events(reader, within_s=OPENING_TIMEOUT_S / 2)
    if events == []:
        raise FeedOverError
    return events


async def _next_events(reader: Reader, *, within_s: float) -> list[Event] | None:
    """Return the next events of a reader, none at its end, None if none arrived in time. Raises like it."""
    try:
        async with asyncio.timeout(within_s) as limit:
            return await reader.next_events()
    except TimeoutError:
        if not limit.expired():
            raise
        return None


def _gathered(events: Sequence[Event], cut: StreamCut) -> Iterator[tuple[bytes, int, StreamCut]]:
    """Yield the messages of one block, small ones joined, with the number of events, and the cut after."""
    messages: list[bytes] = []
    size_bytes = 0
    for event, after in zip(events, _cuts_after(events, cut), strict=True):
        message = encode_message(event_json(event), last_id=str(after))
        messages.append(message)
        size_bytes += len(message)
        if size_bytes >= CHUNK_SIZE_BYTES:
            yield b"".join(messages), len(messages), after
            messages, size_bytes = [], 0
    if messages:
        yield b"".join(messages), len(messages), cut


def _cuts_after(events: Sequence[Event], cut: StreamCut) -> Iterator[StreamCut]:
    """Yield the cut after each event of a block; the last one is `cut`."""
    places = cut.places
    for event in events[:-1]:
        places[event.segment] = Position(event.offset, event.index + 1)
        yield StreamCut.of(cut.stream, places)
    yield cut
