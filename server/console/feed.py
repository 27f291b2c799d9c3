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
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.client.client import Client, connect
from millrace.client.errors import CutTruncatedError, StreamNotFoundError
from millrace.client.options import ClientOptions
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.model.cut import HEAD, CutChoice, StreamCut
from millrace.model.errors import MillraceError
from millrace.model.event import Event
from millrace.model.event_json import event_json
from millrace.model.position import Position
from millrace.wire.limits import KIB

from .counters import FeedCounters
from .options import FeedOptions
from .sse import KEEP_ALIVE, encode_message

CHUNK_SIZE_BYTES: Final = 64 * KIB
"""Small messages are sent together, up to this."""
WINDOWS_HELD: Final = 2
"""The memory of a reader: its window here, and as much on its way from the server."""
EVENT_SIZE_BYTES: Final = 600
"""Memory of an event beside its value (measured, rounded up)."""
RETRY_MS: Final = 2000
OPENING_TIMEOUT_S: Final = 5.0
"""For each request that has to be answered before a feed begins; less than the listener gives a whole answer."""


class FeedOverError(Exception):
    """Nothing will ever come after the place to which a peer has come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
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


async def feed(
    wanted: Wanted,
    *,
    address: str,
    token: str,
    options: FeedOptions,
    counters: FeedCounters,
    hold: Callable[[int], None],
) -> AsyncGenerator[bytes]:
    """Yield chunks of whole messages. The first one comes at once, when it is known that the feed can begin.

    Close it (`aclose`): that ends its connection to the server. Cancelling does so, too.

    Args:
        hold: called with the memory that the feed holds from then on, in bytes.

    Raises:
        MillraceError: what is wanted cannot be read; only before the first chunk.
        FeedOverError: it was read to its end before; only before the first chunk.
    """
    asked = ClientOptions(client_name="millrace-console", request_timeout_s=OPENING_TIMEOUT_S)
    window = ReaderOptions(window_bytes=options.feed_window_bytes)
    reader_bytes = WINDOWS_HELD * options.feed_window_bytes
    hold(reader_bytes)
    start, begun = wanted.start, False
    async with connect(address, token=token, options=asked) as client:
        while True:
            try:
                async with client.reader(wanted.stream, start=start, key=wanted.key, options=window) as reader:
                    place, ahead = reader.position(), None
                    if wanted.is_resumed and not begun:
                        ahead = await _last_events(client, reader)
                    begun = True
                    yield encode_message(last_id=str(place), retry_ms=RETRY_MS)
                    async for chunk in _chunks(
                        reader, ahead, options=options, counters=counters, hold=lambda size: hold(reader_bytes + size)
                    ):
                        yield chunk
                return
            except CutTruncatedError as error:
                begun = True
                start = HEAD if error.resume_at is None else error.resume_at
                content = {"error": str(error), "resume_at": str(start)}
                yield encode_message(content, last_id=str(error.resume_at or ""), event="truncated")
            except StreamNotFoundError as error:
                if not begun:
                    raise
                yield encode_message({"reason": "deleted", "error": str(error)}, event="end")
                return
            except MillraceError as error:
                if not begun:
                    raise
                yield encode_message({"error": f"{type(error).__name__}: {error}"}, event="failed")
                return


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


async def _chunks(
    reader: Reader,
    ahead: list[Event] | None,
    *,
    options: FeedOptions,
    counters: FeedCounters,
    hold: Callable[[int], None],
) -> AsyncGenerator[bytes]:
    """Yield the messages of what a reader reads, from events on that it has handed out. Raises like it."""
    told = reader.position()
    events = await _next_events(reader, within_s=options.keepalive_s) if ahead is None else ahead
    while events != []:
        cut = reader.position()
        if events is None:
            yield KEEP_ALIVE if cut == told else encode_message(last_id=str(cut))
        else:
            hold(sum(EVENT_SIZE_BYTES + len(event.value) for event in events))
            for chunk, count in _gathered(events, cut):
                counters.events_total += count
                yield chunk
            hold(0)
        told = cut
        events = await _next_events(reader, within_s=options.keepalive_s)
    yield encode_message({"reason": "sealed"}, last_id=str(reader.position()), event="end")


async def _next_events(reader: Reader, *, within_s: float) -> list[Event] | None:
    """Return the next events of a reader, none at its end, None if none came in time. Raises like it."""
    try:
        async with asyncio.timeout(within_s) as limit:
            return await reader.next_events()
    except TimeoutError:
        if not limit.expired():
            raise
        return None


def _gathered(events: Sequence[Event], cut: StreamCut) -> Iterator[tuple[bytes, int]]:
    """Yield the messages of the events of one block, those of small ones together, and how many they are."""
    messages: list[bytes] = []
    size_bytes = 0
    for event, after in zip(events, _cuts_after(events, cut), strict=True):
        message = encode_message(event_json(event), last_id=str(after))
        messages.append(message)
        size_bytes += len(message)
        if size_bytes >= CHUNK_SIZE_BYTES:
            yield b"".join(messages), len(messages)
            messages, size_bytes = [], 0
    if messages:
        yield b"".join(messages), len(messages)


def _cuts_after(events: Sequence[Event], cut: StreamCut) -> Iterator[StreamCut]:
    """Yield the cut after each event of a block, the last of which is `cut`."""
    places = cut.places
    for event in events[:-1]:
        places[event.segment] = Position(event.offset, event.index + 1)
        yield StreamCut.of(cut.stream, places)
    yield cut
