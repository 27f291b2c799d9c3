"""One feed: the events of a stream as messages, from a place on, for as long as somebody takes them.

    (no kind)    an event, as `millrace read --json` prints it
    truncated    what came next was truncated away: `resume_at` is where the feed continues
    end          nothing will come any more: the stream is sealed (or deleted), `reason` says which
    failed       what comes next cannot be read, `error` says why

The `id` of each message is the cut after it: a feed from there on has all that follows, and nothing of what was sent.
The first message, and one after a silence in which the place has moved, has an `id` only, so that a peer which comes
back knows its place before it has seen an event. Where a message ends the feed there is no place to come back to but
its own, and a feed from there ends at once.

A feed is a client of the server, as any other: it reads in the order of each key, over all splits and merges, it
waits while the container is recovered, and the server's bounds hold for it.

A feed that cannot send, or gets no memory for the block that comes next, rests: it closes its reader and its connection
to the server, and keeps its position only. It fetches again from there.
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
"""Small messages are sent together, up to this."""
BLOCK_COPIES: Final = 3
"""Of a block in memory: its bytes, its events, and the next block, which the reader fetches meanwhile."""
IDLE_S: Final = 0.1
"""A reader that has fetched a large block is closed if no event comes for so long: a feed that waits holds a window."""
EVENT_SIZE_BYTES: Final = 600
"""Memory of an event beside its value (measured, rounded up)."""
CHUNK_COPIES: Final = 2
"""Of what is being sent: the messages, and the frame of HTTP around them."""
RETRY_MS: Final = 2000
OPENING_TIMEOUT_S: Final = 5.0
"""For each request that has to be answered before a feed begins; less than the listener gives a whole answer."""


class FeedOverError(Exception):
    """Nothing will ever come after the place to which a peer has come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest:
    """What a feed is asked for.

    Attributes:
        start: where to begin.
        key: only the events of this key; None for all.
        is_resumed: whether `start` is where another feed was left.
    """

    stream: str
    start: CutChoice
    key: str | None
    is_resumed: bool


class _NoRoomError(Exception):
    """There is no memory for the block that was fetched."""


class Feed:
    """One feed: an iterator of chunks of whole messages. The first one comes when it is known that the feed can begin.

    `__anext__` raises

        MillraceError   what is wanted cannot be read; only before the first chunk
        FeedOverError   it was read to its end before; only before the first chunk

    Close it (`aclose`): that ends its connection to the server. Cancelling does so, too.
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
        # Where the next message begins, and whether the first one was sent, and the last one.
        self._start = wanted.start
        self._has_begun = self._is_over = False
        # The size of the block that may be fetched, and the memory for it, both above the window: 0 if there is none.
        self._block_length = self._block_bytes = 0
        # The segment whose block that is, until the position is after the block.
        self._awaited_segment: int | None = None
        self._source: AsyncGenerator[bytes] | None = None
        self._room: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        """Iterate over the chunks."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk, which is called for when most of the one before was taken."""
        self._memory.sending(0)
        # A block that comes slowly may take until a comment is due, or it would be fetched in vain in each turn.
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
        """Hold the position only, until the next chunk is asked for. Not while a chunk is awaited."""
        await self.aclose()
        self._memory.rest()

    async def _has_room(self) -> bool:
        """Wait for memory for the block that comes next, at most until a comment is due; return whether there is."""
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
        """Yield chunks from the position on, which is moved along."""
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
        """Allow blocks of so many bytes, of which each segment may fetch one. Raises like `_hold`."""
        self._block_length, self._awaited_segment = length, segment_id
        segments_count = len(self._start.places) if isinstance(self._start, StreamCut) else 1
        self._hold(segment_id, (BLOCK_COPIES + segments_count - 1) * length)

    def _hold(self, segment_id: int, block_bytes: int) -> None:
        """Hold memory for a block of a segment, beside what is held for another one.

        Raises:
            _NoRoomError: there is none now.
        """
        self._block_bytes = max(self._block_bytes, block_bytes)
        if not self._memory.hold(self._block_bytes):
            self._awaited_segment = segment_id
            raise _NoRoomError

    async def _chunks(self, reader: Reader, ahead: list[Event] | None) -> AsyncGenerator[bytes]:
        """Yield the messages of what a reader reads, from events on that it has handed out. Raises like it.

        Ends early if there is memory for a block and no event comes after that block.

        Raises:
            _NoRoomError: the next block has to be fetched again, when there is room for it.
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
                # A reader that is closed before it has the block would never get one that comes slowly.
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
        """Return a message after which there are no others."""
        self._is_over = True
        return encode_message(content, last_id=last_id, event=event)


def _memory_of(events: Sequence[Event], cut: StreamCut) -> int:
    """Return about how much memory a block takes while its events are sent, in bytes; `cut` is after it."""
    first = events[0]
    place = cut.places.get(first.segment)
    stored_bytes = 0 if place is None else max(0, place.offset - first.offset)
    size_bytes = max(stored_bytes, sum(len(event.value) for event in events))
    return BLOCK_COPIES * size_bytes + EVENT_SIZE_BYTES * len(events)


async def _last_events(client: Client, reader: Reader) -> list[Event] | None:
    """Return the next events of a stream that will get no others; None where others may come, or it takes long.

    Raises:
        FeedOverError: there is none.
    """
    if not (await client.stream_info(reader.stream)).sealed:
        return None
    # It is never waited for; but much of it may have to be passed to find one event of a key.
    events = await _next_events(reader, within_s=OPENING_TIMEOUT_S / 2)
    if events == []:
        raise FeedOverError
    return events


async def _next_events(reader: Reader, *, within_s: float) -> list[Event] | None:
    """Return the next events of a reader, none at its end, None if none came in time. Raises like it."""
    try:
        async with asyncio.timeout(within_s) as limit:
            return await reader.next_events()
    except TimeoutError:
        if not limit.expired():
            raise
        return None


def _gathered(events: Sequence[Event], cut: StreamCut) -> Iterator[tuple[bytes, int, StreamCut]]:
    """Yield the messages of the events of one block, those of small ones together, their number, and the cut after."""
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
    """Yield the cut after each event of a block, the last of which is `cut`."""
    places = cut.places
    for event in events[:-1]:
        places[event.segment] = Position(event.offset, event.index + 1)
        yield StreamCut.of(cut.stream, places)
    yield cut
