"""The client: one server, its segments and streams.

    async with millrace.connect("127.0.0.1:9240") as client:
        await client.create_stream("shop/orders", millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(4)))
        async with client.writer("shop/orders") as writer:
            await writer.write(b"...", key="customer-3")

It keeps two connections, made when they are needed and made again when they are lost: one for requests and writes, one
for reads, so that a reader who takes little does not hold up anyone's acks. A client belongs to one event loop.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

from millrace.wire.errors import InvalidNameError as WireInvalidNameError
from millrace.wire.frames import (
    CreateStream,
    CutPosition,
    DeleteStream,
    Done,
    GetStream,
    GetWriter,
    Index,
    ListStreams,
    Ping,
    Pong,
    SealStream,
    Seek,
    StreamList,
    TruncateStream,
    WriterOpened,
)
from millrace.wire.frames import StreamInfo as StreamInfoMessage
from millrace.wire.limits import LIST_PAGE_COUNT_MAX, MIB
from millrace.wire.names import checked_name, checked_writer_id

from .batch import SegmentRange, plan_ranges, read_range
from .cuts import HEAD, TAIL, Cut, StreamCut
from .errors import InvalidArgumentError, InvalidNameError
from .feed import SegmentFeed
from .forks import ForkGuard
from .options import ClientOptions, parse_address
from .reader import Reader, ReaderOptions, resolve_cut
from .segments import Segments
from .session import Session, SessionStatistics
from .streams import StreamConfig, StreamInfo, stream_info
from .writer import Writer, WriterOptions

if TYPE_CHECKING:
    import pyarrow as pa

SEEK_WINDOW_BYTES = 1 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatistics:
    """What the two connections of a client have done."""

    writes: SessionStatistics
    reads: SessionStatistics


class CutRequest:
    """A cut to be asked for: `await` it for the tail, or one of its methods for another place."""

    def __init__(self, client: "Client", stream: str, at_time: "int | datetime | None") -> None:
        self._client = client
        self._stream = stream
        self._at_time = at_time

    def __await__(self) -> Generator[object, None, StreamCut]:
        """Return the tail as it is now, or the cut at the time that was given."""
        if self._at_time is not None:
            return self.at_time(self._at_time).__await__()
        return self.tail().__await__()

    async def tail(self) -> StreamCut:
        """Return the cut behind everything that is durable now."""
        return (await self._client.stream_info(self._stream)).tail()

    async def head(self) -> StreamCut:
        """Return the cut in front of everything that is left."""
        return (await self._client.stream_info(self._stream)).head()

    async def at_time(self, when: int | datetime) -> StreamCut:
        """Return the cut in front of the first event of each segment with this timestamp or a later one.

        Events with the writer's clock as their timestamp are found exactly. One whose caller gave it a timestamp in the
        future of its writing is found too; one that was dated back may lie in front of the cut.

        Args:
            when: Unix microseconds, or a datetime with a time zone.
        """
        return await self._client._cut_at(self._stream, _unix_us(when))  # noqa: SLF001  # the other half of one class


class Client:
    """A client of one server. Made by `connect`; an async context manager."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        self.address = parse_address(address)
        self.options = options
        guard = ForkGuard()
        self._writes = Session(self.address, options, guard)
        self._reads = Session(self.address, options, guard)
        self.segments = Segments(writes=self._writes, reads=self._reads)

    async def __aenter__(self) -> Self:
        """Connect, in one attempt.

        Raises:
            ServerUnreachableError: nothing answers there.
            AuthenticationError: the token is refused.
        """
        await self._writes.connection()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    def __await__(self) -> Generator[object, None, Self]:
        """Connect; the caller closes."""
        return self.__aenter__().__await__()

    async def close(self) -> None:
        """Close both connections; what waits fails with `ClientClosedError`."""
        await self._writes.close()
        await self._reads.close()

    async def ping(self) -> float:
        """Return the seconds of a round trip to the server."""
        connection = await self._writes.connection()
        started_s = perf_counter()  # uvloop's own clock counts in milliseconds
        await connection.request(Ping(), Pong)
        return perf_counter() - started_s

    def statistics(self) -> ClientStatistics:
        """Return what the connections have done and what waits in them."""
        return ClientStatistics(writes=self._writes.statistics(), reads=self._reads.statistics())

    # --- streams ---

    async def create_stream(self, name: str, configuration: StreamConfig | None = None) -> bool:
        """Create a stream; False if there was one of that name, whose configuration is then left as it is.

        Raises:
            InvalidNameError: the name is not of the form scope/name.
        """
        configuration = configuration or StreamConfig()
        request = CreateStream(_checked(name), configuration.scaling.segment_count, configuration.to_json())
        return bool((await self._writes.request(request, StreamInfoMessage)).created)

    async def stream_info(self, name: str) -> StreamInfo:
        """Return what a stream is now.

        Raises:
            StreamNotFoundError: there is none.
        """
        return stream_info(await self._writes.request(GetStream(_checked(name)), StreamInfoMessage))

    async def list_streams(self, prefix: str = "") -> AsyncIterator[str]:
        """Yield the names of the streams that start with `prefix`, in their order."""
        after = ""
        while True:
            page = await self._writes.request(ListStreams(prefix, after, LIST_PAGE_COUNT_MAX), StreamList)
            for name in page.names:
                yield name.name
            if not page.more or not page.names:
                return
            after = page.names[-1].name

    async def seal_stream(self, name: str) -> StreamInfo:
        """Let a stream take no more events, for ever; sealing it again changes nothing.

        Raises:
            StreamNotFoundError: there is none.
        """
        return stream_info(await self._writes.request(SealStream(_checked(name)), StreamInfoMessage))

    async def delete_stream(self, name: str) -> bool:
        """Delete a sealed stream with everything in it; False if there is none.

        Raises:
            StreamNotSealedError: it is not sealed.
        """
        return bool((await self._writes.request(DeleteStream(_checked(name)), Done)).changed)

    async def truncate_stream(self, name: str, cut: Cut) -> StreamInfo:
        """Drop the events in front of a cut; of a block that the cut goes through, all events stay.

        Raises:
            CutInvalidError: the cut is one of another stream.
            OffsetBeyondEndError: the cut lies beyond the end.
        """
        if not isinstance(cut, StreamCut):
            cut = resolve_cut(cut, await self.stream_info(name))
        elif cut.stream != name:
            raise InvalidArgumentError(f"a cut of {cut.stream} cannot be used for {name}")
        positions = [CutPosition(segment_id, place.offset) for segment_id, place in cut.positions]
        return stream_info(await self._writes.request(TruncateStream(_checked(name), positions), StreamInfoMessage))

    def stream_cut(self, name: str, *, at_time: int | datetime | None = None) -> CutRequest:
        """Return a request for a cut: `await client.stream_cut(name)` is the tail as it is now.

        `await client.stream_cut(name).at_time(...)` and `.head()` are other places; see `CutRequest`.
        """
        return CutRequest(self, name, at_time)

    # --- events ---

    def writer(self, stream: str, *, writer_id: str | None = None, options: WriterOptions | None = None) -> Writer:
        """Return a writer of a stream, to be entered with `async with`.

        Args:
            writer_id: makes the writer persistent: its event numbers go on where they ended, and whoever had the id
                before is fenced. Without one the writer is new, and gone with the context.

        Raises:
            InvalidNameError: a writer id of other than 1 to 255 printable bytes.
        """
        if writer_id is not None:
            try:
                checked_writer_id(writer_id)
            except WireInvalidNameError as error:
                raise InvalidNameError(str(error)) from None
        return Writer(self._writes, _checked(stream), writer_id=writer_id, options=options or WriterOptions())

    async def writer_state(self, stream: str, writer_id: str) -> dict[int, int] | None:
        """Return the last event number that a writer stored in each segment, None if it was never opened.

        So the outcome of a write whose wait was cancelled, or whose process died, can be asked for by its number.
        """
        info = await self.stream_info(stream)
        request = GetWriter(writer_id, [segment.segment_id for segment in info.segments])
        reply = await self._writes.request(request, WriterOpened)
        return {state.segment_id: state.last_event_number for state in reply.states} if reply.known else None

    @asynccontextmanager
    async def reader(
        self, stream: str, *, start: Cut = HEAD, end: Cut | None = None, options: ReaderOptions | None = None
    ) -> AsyncIterator[Reader]:
        """Return a reader of the events from `start` to `end`, to be entered with `async with`.

        Args:
            end: None reads on as events come, until the stream is sealed; TAIL is the tail at this moment.

        Raises:
            StreamNotFoundError: there is none.
            CutTruncatedError: `start` lies behind the truncation.
            CutInvalidError, OffsetBeyondEndError: a cut that does not fit the stream.
        """
        info = await self.stream_info(stream)
        async with Reader(
            self._reads,
            info,
            start=resolve_cut(start, info),
            end=None if end is None else resolve_cut(end, info),
            options=options or ReaderOptions(),
        ) as reader:
            yield reader

    # --- parallel reading ---

    async def plan_ranges(
        self, stream: str, *, start: Cut = HEAD, end: Cut = TAIL, max_bytes: int = 64 * MIB
    ) -> list[SegmentRange]:
        """Return ranges that hold exactly the events between two cuts, each about `max_bytes`, to be read in parallel.

        Raises like `reader`.
        """
        info = await self.stream_info(stream)
        return await plan_ranges(
            self._reads, start=resolve_cut(start, info), end=resolve_cut(end, info), max_bytes=max_bytes
        )

    def read_range(self, part: SegmentRange) -> "AsyncIterator[pa.RecordBatch]":
        """Return an iterator of the events of a range as record batches; needs pyarrow. See `batch.read_range`."""
        return read_range(self._reads, part)

    # --- inside ---

    async def _cut_at(self, stream: str, timestamp_us: int) -> StreamCut:
        info = await self.stream_info(stream)
        places = await asyncio.gather(
            *(self._place_at(segment.segment_id, timestamp_us, end_offset=segment.length) for segment in info.segments)
        )
        ids = (segment.segment_id for segment in info.segments)
        return StreamCut.of(stream, zip(ids, places, strict=True))

    async def _place_at(self, segment_id: int, timestamp_us: int, *, end_offset: int) -> tuple[int, int]:
        """Return the place of the first event at or after a time; the server names a border near in front of it."""
        reply = await self._writes.request(Seek(segment_id, timestamp_us), Index)
        if not reply.entries:
            return end_offset, 0
        changed = asyncio.Event()
        feed = SegmentFeed(
            self._reads,
            segment_id,
            start=(reply.entries[0].offset, 0),
            end=(end_offset, 0),
            window_bytes=SEEK_WINDOW_BYTES,
            on_change=lambda _: changed.set(),
        )
        feed.start()
        try:
            while True:
                placed = feed.take()
                if placed is not None:
                    event_index = placed.block.first_at_or_after(timestamp_us)
                    if event_index is not None:
                        return placed.offset, event_index
                elif feed.finished:
                    return end_offset, 0
                else:
                    changed.clear()
                    await changed.wait()
        finally:
            feed.close()


def connect(
    address: str,
    *,
    token: str | None = None,
    tls: bool | ssl.SSLContext | None = None,
    options: ClientOptions | None = None,
) -> Client:
    """Return a client of the server at `host:port`, to be entered with `async with` (or awaited, and closed by you).

    Args:
        token, tls: instead of those in `options`.

    Raises:
        ValueError: the address is none.
    """
    options = options or ClientOptions()
    if token is not None:
        options = replace(options, token=token)
    if tls is not None:
        options = replace(options, tls=tls)
    return Client(address, options)


def _checked(name: str) -> str:
    try:
        return checked_name(name, kind="stream")
    except WireInvalidNameError as error:
        raise InvalidNameError(str(error)) from None


def _unix_us(when: int | datetime) -> int:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidArgumentError("a datetime without a time zone names no moment")
        return int(when.timestamp() * 1_000_000)
    return when
