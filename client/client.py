"""The client: one server, its segments and streams.

    async with millrace.connect("127.0.0.1:9240") as client:
        await client.create_stream("shop/orders", millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(4)))
        async with client.writer("shop/orders") as writer:
            await writer.write(b"...", key="customer-3")

It keeps two connections, made when they are needed and made again when they are lost: one for requests and writes, one
for reads, so that a slow reader delays no acks. A client belongs to one event loop.
"""

import json
import ssl
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from millrace.client.admin.bookmarks import Bookmarks, Cursors
from millrace.client.admin.cuts import CutRequest, Cuts
from millrace.client.admin.readers import Choices, OneChoice, Readers
from millrace.client.admin.segments import Segments
from millrace.client.read.byte_reader import ByteReader
from millrace.client.read.cut_resolution import Distance, distance, fetch_event
from millrace.client.read.ranges import SegmentRange, ranges_between, read_range, split_range
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.client.read.segment_scan import SegmentScan
from millrace.client.read.streams_reader import StreamsReader
from millrace.client.streams import fetch_history, stream_info
from millrace.client.transport.channel import Channel, ChannelStatistics, waits_of
from millrace.client.transport.fork_guard import ForkGuard
from millrace.client.write.byte_writer import ByteWriter
from millrace.client.write.options import WriterOptions
from millrace.client.write.writer import Writer
from millrace.client.write.writer_info import WriterInfo, fetch_writer_info
from millrace.model.cut import HEAD, CutChoice, StreamCut, TimeCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.event import Event, EventPosition
from millrace.model.lineage import Epoch, StreamPart, parts_of_history
from millrace.model.names import checked_name, checked_writer_id
from millrace.model.policy import StreamConfig
from millrace.model.selection import Selection
from millrace.model.slice import Slice, slice_of
from millrace.model.stream import Border, StreamInfo, scaled_ranges
from millrace.wire import messages as m
from millrace.wire.limits import MIB

from .errors import WriterExpiredError
from .options import ClientOptions, parse_address
from .waiting import Waiting

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatistics:
    """What the two connections of a client have done.

    Attributes:
        waiting: why the client waits for the server, since when; None while it does not.
    """

    writes: ChannelStatistics
    reads: ChannelStatistics
    waiting: Waiting | None


class Client:
    """A client of one server. Made by `connect`; an async context manager."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        self.address = parse_address(address)
        self.options = options
        guard = ForkGuard()
        self._waits = waits_of(self.address, options)
        self._writes = Channel(self.address, options, guard, waits=self._waits)
        self._reads = Channel(self.address, options, guard, session_id=self._writes.session_id, waits=self._waits)
        self.segments = Segments(writes=self._writes, reads=self._reads)
        self._cuts = Cuts(writes=self._writes, reads=self._reads)
        self._readers = Readers(writes=self._writes, reads=self._reads, cuts=self._cuts)

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
        await connection.send_request(m.Ping())
        return perf_counter() - started_s

    def statistics(self) -> ClientStatistics:
        """Return what the connections have done and what waits in them."""
        return ClientStatistics(
            writes=self._writes.statistics(), reads=self._reads.statistics(), waiting=self._waits.current
        )

    # --- streams ---

    async def create_stream(
        self, name: str, configuration: StreamConfig | None = None, *, cursors: Iterable[str] = ()
    ) -> bool:
        """Create a stream; False if there was one of that name, of which nothing is then changed.

        Args:
            cursors: names of cursors at its head. They are there from the start: retention by consumption keeps for
                each of these consumers all that is written, whenever it comes. See `cursors(name).set_many`, too.

        Raises:
            InvalidNameError: the name is not of the form scope/name.
            InvalidArgumentError: a name of a cursor is none, or given twice.
        """
        configuration = configuration or StreamConfig()
        count = configuration.scaling.segment_count
        request = m.CreateStream(
            _checked(name), count, configuration.to_json(), [m.CursorName(each) for each in cursors]
        )
        return bool((await self._writes.request(request)).created)

    async def stream_info(self, name: str) -> StreamInfo:
        """Return what a stream is now.

        Raises:
            StreamNotFoundError: there is none.
        """
        return await self._cuts.fetch(name)

    async def list_streams(self, prefix: str = "", *, tag: str = "") -> AsyncIterator[str]:
        """Yield the names of the streams that start with `prefix` and have the tag, if one is given, in their order."""
        async for name in self._readers.listed(prefix, tag=tag):
            yield name

    async def update_stream(self, name: str, configuration: StreamConfig) -> StreamInfo:
        """Give a stream another configuration; return what it is then.

        With a new `ScalingPolicy.fixed(n)` it has n open segments then: some were split, or neighbours merged, and the
        order per key holds across. A stream that was scaled by hand since stays so while only something else changes,
        and gets its n segments back from an update that changes nothing. By any other policy, segments change later.

        Raises:
            StreamNotFoundError: there is none.
        """
        request = m.UpdateStream(_checked(name), configuration.to_json())
        return stream_info(await self._writes.request(request))

    async def scale_stream(
        self, name: str, *, seal: Iterable[int], ranges: Iterable[tuple[Border, Border]]
    ) -> StreamInfo:
        """Replace segments of a stream by new ones that cover the same keys, in one step; return what it is then.

        Writers continue in the new ones; readers read them after those that they replace. Repeating it changes nothing.

        Args:
            seal: ids of open segments.
            ranges: keys of each new segment, from one border up to, not with, another: numbers from 0 to 1, or exact
                integers out of 2^64. A float that is printed as a border of the stream is that border.

        Raises:
            StreamNotFoundError, StreamSealedError: there is nothing to scale.
            InvalidArgumentError: the ranges do not cover exactly what the sealed segments do, or a segment is not open.
        """
        info = await self.stream_info(name)
        sealed_ids = list(seal)
        # Those which were deleted meanwhile are in the history only: a scale that is repeated means their borders.
        segments: list[StreamPart] = list(info.segments)
        if any(segment_id not in {each.segment_id for each in segments} for segment_id in sealed_ids):
            segments += parts_of_history(await self.stream_history(name))
        borders = [
            m.KeyRangeRecord(part.low, part.high - 1)
            for part in scaled_ranges(ranges, segments=(each for each in segments if each.segment_id in sealed_ids))
        ]
        return stream_info(await self._writes.request(m.ScaleStream(name, sealed_ids, borders)))

    async def stream_history(self, name: str) -> list[Epoch]:
        """Return the epochs of a stream, the first one first: what was split and merged, when and why.

        Raises:
            StreamNotFoundError: there is none.
        """
        return await fetch_history(self._writes, _checked(name))

    async def explain_stream(self, name: str) -> dict[str, Any]:
        """Return what the policies of a stream see, decided last and wait for, and which cursor holds which bytes.

        Raises:
            StreamNotFoundError: there is none.
        """
        reply = await self._writes.request(m.ExplainStream(_checked(name)))
        facts: dict[str, Any] = json.loads(reply.facts)
        return facts

    def bookmarks(self, stream: str) -> Bookmarks:
        """Return the bookmarks of a stream: named cuts that the server keeps."""
        return Bookmarks(self._writes, _checked(stream), kind=m.CutKind.BOOKMARK, use_cuts=self._cuts.use)

    def cursors(self, stream: str) -> Cursors:
        """Return the cursors of a stream: how far its consumers have come."""
        timeout_s = self.options.outage_timeout_s
        cuts = Cuts(writes=self._writes, reads=self._reads, timeout_s=timeout_s)
        return Cursors(
            self._writes, _checked(stream), kind=m.CutKind.CURSOR, use_cuts=cuts.use, save_timeout_s=timeout_s
        )

    async def seal_stream(self, name: str) -> StreamInfo:
        """Let a stream take no more events, forever; sealing it again changes nothing.

        Raises:
            StreamNotFoundError: there is none.
        """
        return stream_info(await self._writes.request(m.SealStream(_checked(name))))

    async def delete_stream(self, name: str) -> bool:
        """Delete a sealed stream with everything in it; False if there is none.

        Raises:
            StreamNotSealedError: it is not sealed.
        """
        return bool((await self._writes.request(m.DeleteStream(_checked(name)))).changed)

    async def truncate_stream(self, name: str, cut: CutChoice) -> StreamInfo:
        """Drop the events before a cut; of a block that the cut goes through, all events stay.

        Raises:
            CutInvalidError: the cut is one of another stream, or goes through the inside of an append, and then
                `start_offset` is the border before it.
            OffsetBeyondEndError: the cut is beyond the end.
        """

        async def truncate(cuts: list[StreamCut]) -> StreamInfo:
            positions = [m.CutPosition(segment_id, place.offset) for segment_id, place in cuts[0].positions]
            return stream_info(await self._writes.request(m.TruncateStream(_checked(name), positions)))

        if not isinstance(cut, StreamCut):
            return await self._cuts.use(name, [cut], truncate)
        if cut.stream != name:
            raise InvalidArgumentError(f"a cut of {cut.stream} cannot be used for {name}")
        return await truncate([cut])

    def stream_cut(
        self,
        name: str,
        *,
        at_time: int | datetime | None = None,
        after_events: int | None = None,
        after_bytes: int | None = None,
        start: CutChoice = HEAD,
        as_end: bool = False,
    ) -> CutRequest:
        """Return a request for a cut: `await client.stream_cut(name)` is the tail as it is now.

        `await client.stream_cut(name).at_time(...)`, `.after_events(...)`, `.after_bytes(...)` and `.head()` are other
        places, of which the arguments are short forms; see `CutRequest`.

        Raises:
            InvalidArgumentError: more than one place is asked for.
        """
        if sum(each is not None for each in (at_time, after_events, after_bytes)) > 1:
            raise InvalidArgumentError("a cut is at a time, or after so many events, or after so many bytes")
        if at_time is not None:
            return CutRequest(self._cuts, name, lambda request: request.at_time(at_time, as_end=as_end))
        if after_events is not None:
            return CutRequest(self._cuts, name, lambda request: request.after_events(after_events, start=start))
        if after_bytes is not None:
            return CutRequest(self._cuts, name, lambda request: request.after_bytes(after_bytes, start=start))
        return CutRequest(self._cuts, name, CutRequest.tail)

    async def distance(self, start: CutChoice, end: CutChoice, *, stream: str | None = None) -> Distance:
        """Return the bytes and events between two cuts of one stream.

        Args:
            stream: needed only where neither is a `StreamCut`.

        Raises like `reader`.
        """
        names = {cut.stream for cut in (start, end) if isinstance(cut, StreamCut)} | ({stream} if stream else set())
        if len(names) != 1:
            raise InvalidArgumentError(f"a distance is one inside of one stream, not of {sorted(names) or 'none'}")

        async def measure(info: StreamInfo) -> Distance:
            first, last = await self._cuts.choose(start, info), await self._cuts.choose(end, info, is_end=True)
            return await distance(self._reads, info, start=first, end=last)

        return await self._cuts.search(names.pop(), measure)

    # --- events ---

    def writer(
        self,
        stream: str,
        *,
        writer_id: str | None = None,
        start_over_if_expired: bool = False,
        options: WriterOptions | None = None,
    ) -> Writer:
        """Return a writer of a stream, to be entered with `async with`.

        Args:
            writer_id: makes the writer persistent: what is written with a sequence is stored once, whatever is killed
                (see `Writer.stored_through`), and the writer that had the id before is fenced. Without one the writer
                is new, and ends with the context.
            start_over_if_expired: open an id that was idle for so long that its event numbers were deleted, and number
                its events from 1 again; without it, opening such an id raises WriterExpiredError.

        Raises:
            InvalidNameError: a writer id of other than 1 to 255 printable bytes.
        """
        return Writer(
            self._writes,
            _checked(stream),
            writer_id=None if writer_id is None else checked_writer_id(writer_id),
            start_over_if_expired=start_over_if_expired,
            options=options or WriterOptions(),
        )

    async def writer_state(self, stream: str, writer_id: str) -> dict[int, int] | None:
        """Return the last event number that a writer stored in each segment, None if it was never opened.

        So the outcome of a write whose wait was cancelled can be asked for by its number: every one up to the last is
        stored, once. A program that starts again resumes after `writer.stored_through`, not after these numbers.

        Raises:
            StreamNotFoundError: there is none.
            WriterExpiredError: it was opened once, and its event numbers are not known any more.
            RequestTimeoutError: the stream changed faster than it could be asked about, for `request_timeout_s`.
        """
        info = await self.writer_info(stream, writer_id)
        if info is None:
            return None
        if info.expired_us is not None:
            raise WriterExpiredError(f"writer {writer_id!r} was idle for too long: its event numbers were deleted")
        return info.last_event_numbers

    async def writer_info(self, stream: str, writer_id: str) -> WriterInfo | None:
        """Return what the server knows of a writer and of its events in a stream, None if it was never opened.

        Of one that has expired it knows that and when, for as long as it had kept the rest. Raises like `writer_state`,
        but for WriterExpiredError.
        """
        return await fetch_writer_info(self._writes, _checked(stream), writer_id)

    async def reset_sequences(self, stream: str, writer_id: str, *, stored_through: int) -> bool:
        """Let a writer that was refused for its sequences resume; return False if none was refused: nothing is changed.

        A writer that has the id open is fenced.

        Args:
            stored_through: the next life resumes after this sequence: everything up to it counts as stored, nothing
                above it. -1 is before the first one. Only reading the stream can tell.

        Raises:
            StreamNotFoundError: there is none.
            WriterFencedError, WriterExpiredError: there is no such writer, or nothing is known of it any more.
        """
        info = await self._writes.request(m.GetStream(_checked(stream)))
        request = m.ResetSequences(checked_writer_id(writer_id), info.stream_id, stored_through)
        return bool((await self._writes.request(request)).changed)

    @overload
    def reader(
        self,
        stream: str | Slice,
        *,
        start: OneChoice = HEAD,
        end: OneChoice | None = None,
        key: str | None = None,
        options: ReaderOptions | None = None,
    ) -> AbstractAsyncContextManager[Reader]: ...

    @overload
    def reader(
        self,
        stream: list[str] | list[Slice] | list[str | Slice],
        *,
        start: Choices = HEAD,
        end: Choices | None = None,
        key: str | None = None,
        options: ReaderOptions | None = None,
    ) -> AbstractAsyncContextManager[StreamsReader]: ...

    def reader(
        self,
        stream: str | Slice | Sequence[str | Slice],
        *,
        start: Choices = HEAD,
        end: Choices | None = None,
        key: str | None = None,
        options: ReaderOptions | None = None,
    ) -> AbstractAsyncContextManager[Reader] | AbstractAsyncContextManager[StreamsReader]:
        """Return a reader of the events from `start` to `end`, to be entered with `async with`.

        Args:
            stream: its name, or a slice, which has start, end and key in it. With a list of these, and of patterns like
                `plant/sensor-*`, it is a `StreamsReader`; streams that come to match join from their heads on.
            start, end: cuts, or their texts. Of a `TimeCut` no event of that time or newer lies before the start, and
                no older one after the end. For several streams one for all, or one for each by its name; without a
                start of its own a stream is read from its head. TAIL is that of all of them at one moment.
            end: None reads on as events come, until the stream is sealed; TAIL is the tail at this moment. With an end
                no streams join.
            key: read the events of this key only, and only from the segments that may hold it.

        Raises:
            StreamNotFoundError: there is none.
            CutTruncatedError: `start` was truncated away.
            CutInvalidError, OffsetBeyondEndError: a cut that does not fit the stream.
            CutOrderError: `start` is after `end`.
            InvalidArgumentError: a stream is given twice, or a cut for one that is not read.
        """
        options = options or ReaderOptions()
        if not isinstance(stream, str | Slice):
            return self._readers.several(stream, start=start, end=end, key=key, options=options)
        if isinstance(start, Mapping) or isinstance(end, Mapping):
            raise InvalidArgumentError("cuts by the names of streams are for a list of streams")
        return self._readers.one(slice_of(stream, start=start, end=end, key=key), options)

    async def stream_cuts(self, streams: Iterable[str]) -> dict[str, StreamCut]:
        """Return the tails of several streams, given by name or pattern, all as of one moment of the server.

        What was durable before something else is in these cuts if that is, whatever their streams.

        Raises:
            StreamNotFoundError: there is no stream of one of these names.
            InvalidArgumentError: they are more than 1,000, or too many segments.
        """
        return await self._readers.tails(await self._readers.names(Selection.of(streams)))

    # --- parallel reading ---

    async def plan_ranges(
        self,
        stream: str | Slice,
        *,
        start: OneChoice = HEAD,
        end: OneChoice | None = None,
        key: str | None = None,
        max_bytes: int = 64 * MIB,
    ) -> list[SegmentRange]:
        """Return ranges that hold exactly the events between two cuts, each about `max_bytes`, to be read in parallel.

        Args:
            stream, start, key: see `reader`.
            end: None: the tail at this moment.

        Raises like `reader`.
        """
        if max_bytes < 1:
            raise InvalidArgumentError(f"max_bytes={max_bytes} must be above 0")
        part = slice_of(stream, start=start, end=end, key=key)

        async def plan(info: StreamInfo) -> list[SegmentRange]:
            first, last = await self._cuts.bounds(part, info)
            ranges = ranges_between(first, info.tail() if last is None else last, info, key=part.key)
            return [each for whole in ranges for each in await self.split_range(whole, max_bytes=max_bytes)]

        return await self._cuts.search(part.stream, plan)

    def read_range(self, part: SegmentRange) -> "AsyncIterator[pa.RecordBatch]":
        """Return an iterator of the events of a range as record batches; needs pyarrow. See `ranges.read_range`."""
        return read_range(self._reads, part)

    async def split_range(self, part: SegmentRange, *, max_bytes: int) -> list[SegmentRange]:
        """Return ranges that hold exactly the events of a range, each about `max_bytes`."""
        return await split_range(self._reads, part, max_bytes=max_bytes)

    def segment_scan(self, segment_id: int) -> SegmentScan:
        """Return the scan of one segment of events: it finds positions by counting events or bytes."""
        return SegmentScan(self._reads, segment_id)

    async def cut_at_time_in(self, stream: StreamInfo, choice: TimeCut, *, as_end: bool) -> StreamCut:
        """Return the cut at a time as `stream_cut`, in a stream as it was when it was described.

        Raises:
            SegmentTruncatedError, SegmentNotFoundError: some of it is truncated by now.
        """
        return await self._cuts.choose(choice, stream, is_end=as_end)

    async def fetch_event(self, position: EventPosition) -> Event:
        """Return the event at a position, as `event.position` names it; only its block is read.

        Raises:
            SegmentNotFoundError, SegmentTruncatedError: it was truncated away.
            OffsetBeyondEndError, CutInvalidError, BlockCorruptError: no event is there.
        """
        return await fetch_event(self._reads, position)

    # --- bytes ---

    def byte_writer(
        self,
        stream: str,
        *,
        writer_id: str | None = None,
        start_over_if_expired: bool = False,
        delivery_timeout_s: float | None = None,
    ) -> ByteWriter:
        """Return a writer of bytes at the end of a stream of one segment, to be entered with `async with`.

        Args:
            writer_id: the writer that had the id before is fenced.
            start_over_if_expired: see `writer`.
            delivery_timeout_s: see `WriterOptions`.
        """
        return ByteWriter(
            self._writes,
            _checked(stream),
            writer_id=None if writer_id is None else checked_writer_id(writer_id),
            start_over_if_expired=start_over_if_expired,
            delivery_timeout_s=delivery_timeout_s,
        )

    def byte_reader(self, stream: str, *, offset: int = 0, follow: bool = False) -> ByteReader:
        """Return a reader of the bytes of a stream of one segment, to be entered with `async with`.

        Args:
            follow: wait at the tail for more, until the stream is sealed.
        """
        if offset < 0:
            raise InvalidArgumentError(f"{offset} is no offset")
        return ByteReader(self._reads, _checked(stream), offset=offset, follow=follow)


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
    return checked_name(name, kind="stream")
