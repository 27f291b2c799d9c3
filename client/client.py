"""The client: one server, its segments and streams.

    async with millrace.connect("127.0.0.1:9240") as client:
        await client.create_stream("shop/orders", millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(4)))
        async with client.writer("shop/orders") as writer:
            await writer.write(b"...", key="customer-3")

It keeps two connections, made when they are needed and made again when they are lost: one for requests and writes, one
for reads, so that a slow reader delays no acks. A client belongs to one event loop.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from secrets import token_bytes
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, overload

from millrace.client.admin.readers import Choices, ReadOne, ReadSeveral, StreamList
from millrace.client.admin.segments import Segments
from millrace.client.admin.stream_control import StreamControl
from millrace.client.read.byte_reader import ByteReader
from millrace.client.read.cut_resolution import fetch_event
from millrace.client.read.ranges import KeptBlocks, SegmentRange, ranges_between, read_range, split_range
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.client.read.segment_scan import SegmentScan
from millrace.client.read.streams_reader import StreamsReader
from millrace.client.streams import fetch_open_segments
from millrace.client.transactions.control import Transactions
from millrace.client.transactions.outcome import ListedTransaction, TransactionOutcome
from millrace.client.transactions.producers import ProducerInfo, delete_producer, producer_info, reset_producer
from millrace.client.transactions.transaction import Transaction
from millrace.client.transport.channel import CHANCE, Channel, ChannelStatistics, waits_of
from millrace.client.transport.client_guard import ClientGuard
from millrace.client.transport.clock import SYSTEM_CLOCK, Clock
from millrace.client.transport.dialing import Dialer
from millrace.client.write.byte_writer import ByteWriter
from millrace.client.write.options import WriterOptions
from millrace.client.write.writer import Writer
from millrace.client.write.writer_info import WriterInfo, fetch_writer_info
from millrace.model.cut import HEAD, Place, StreamCut, TimeCut, check_stream, chosen
from millrace.model.errors import InvalidArgumentError
from millrace.model.event import Event, EventPosition
from millrace.model.names import checked_stream_name, checked_writer_id
from millrace.model.producer import Producer
from millrace.model.slice import Slice, slice_of
from millrace.model.stream import StreamInfo
from millrace.wire import messages as m
from millrace.wire.limits import MIB, SESSION_ID_SIZE_BYTES

from .errors import WriterExpiredError
from .frames import DataFrames
from .options import ClientOptions, chosen_addresses, chosen_options, parse_addresses
from .waiting import WaitInfo

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
    waiting: WaitInfo | None


class Client(StreamControl, DataFrames):
    """A client of one server. Made by `connect`; an async context manager."""

    def __init__(
        self,
        address: str,
        options: ClientOptions,
        *,
        clock: Clock = SYSTEM_CLOCK,
        chance: Callable[[], float] = CHANCE.random,
    ) -> None:
        self.address = parse_addresses(address)
        self.options = options
        guard = ClientGuard()
        self._waits = waits_of(self.address, options, clock=clock)
        dialer = Dialer(clock=clock)
        writes, reads = (
            Channel(
                self.address,
                options,
                guard,
                clock=clock,
                chance=chance,
                connect=dialer.dial,
                find_other=dialer.find_other,
                session_id=session_id,
                waits=self._waits,
            )
            for session_id in [token_bytes(SESSION_ID_SIZE_BYTES)] * 2
        )
        super().__init__(writes=writes, reads=reads)
        self.segments = Segments(writes=writes, reads=reads)
        self._transactions = Transactions(
            writes, fetch_tails=lambda names: self._readers.tails(names, named=()), find_cut=self._cuts.find
        )

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
        """Close both connections; what waits fails with `ClientClosedError`. Open transactions end by their leases.

        Closing again does nothing, and in a forked child nothing is touched.

        Raises:
            WrongLoopError: this is not the event loop of the client; nothing is closed.
        """
        if not self._writes.guard.forked:
            self._writes.guard.check()
        self._transactions.close()
        try:
            await self._writes.close()
        finally:
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

    # --- events ---

    def writer(
        self,
        stream: str,
        *,
        writer_id: str | None = None,
        start_over_if_expired: bool = False,
        exclusive: bool = False,
        expected: Place | None = None,
        options: WriterOptions | None = None,
    ) -> Writer:
        """Return a writer of a stream, to be entered with `async with`.

        Args:
            writer_id: makes the writer persistent: what is written with a sequence is stored once, whatever is killed
                (see `Writer.stored_through`), and the writer that had the id before is fenced. Without one the writer
                is new, and ends with the context.
            start_over_if_expired: open an id that was idle for so long that its event numbers were deleted, and number
                its events from 1 again; without it, opening such an id raises WriterExpiredError.
            exclusive: from its opening on the stream takes events from this writer alone, over scalings and restarts,
                until `Writer.release`, or another exclusive writer, which takes the stream over and fences this one.
            expected: the exclusive writer is opened only if the stream ends there: a place, as a cut or in words (see
                `Place`), which are looked up when it is opened; HEAD is for a stream without events.

        Raises:
            InvalidNameError: a writer id of other than 1 to 255 printable bytes.
            InvalidArgumentError: `expected` is no place in the stream, or the writer is not to be exclusive.
        """
        if expected is not None and not exclusive:
            raise InvalidArgumentError("only an exclusive writer can expect the stream to end somewhere")
        end = None if expected is None else chosen(expected)
        check_stream(stream, end)
        return Writer(
            self._writes,
            checked_stream_name(stream),
            writer_id=None if writer_id is None else checked_writer_id(writer_id),
            start_over_if_expired=start_over_if_expired,
            exclusive=exclusive,
            expected=end if end is None or isinstance(end, StreamCut) else partial(self._cuts.find, stream, end),
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
        return await fetch_writer_info(self._writes, checked_stream_name(stream), writer_id)

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
        info = await fetch_open_segments(self._writes, checked_stream_name(stream))
        request = m.ResetSequences(checked_writer_id(writer_id), info.stream_id, stored_through)
        return bool((await self._writes.request(request)).changed)

    # --- transactions ---

    def transaction(
        self,
        streams: str | Iterable[str],
        *,
        name: str | None = None,
        lease_s: float = 30.0,
        producer: Producer | tuple[str, str, str, int] | None = None,
        options: WriterOptions | None = None,
    ) -> Transaction:
        """Return a transaction over one or several streams, to be entered with `async with`; leaving it commits.

        Entering one with a name begins it. One without begins with its first events: what keeps it from beginning is
        raised by `flush`, `commit` and the futures of its events. If one of that name is open it is joined: its streams
        must be the same, and what is in it already is committed or deleted by those who know of it (see
        `Transaction.commit`). If that is prepared, it can be committed or aborted here. After an abort a name is free
        again.

        Args:
            name: says later whether it was committed, and lets another process commit it once it is prepared; without
                one it cannot be prepared.
            lease_s: the server aborts it when it has heard nothing of it for so long, 1 s to a day as a rule; the
                client sees to that by itself.
            producer: as whom it is committed, once and not again, however long ago that was; entering lets its run take
                over. Who joins to write branches needs none.
            options: of the writers of its streams.

        Raises:
            InvalidNameError, InvalidArgumentError: of a stream, the name or the lease; or one of the name is open over
                other streams.
            StreamNotFoundError, StreamSealedError: of one of the streams.
            TransactionCommittedError: one of that name was committed.
            ProducerCommittedError: the producer has committed this sequence, or a later one.
            ProducerFencedError: a newer run of the producer has begun.
            ProducerInUseError: another holder has the writer id; see `reset_producer`.
            ProducersFullError: the server knows too many producers.
            TransactionsFullError: too many are open.
        """
        return self._transactions.make(streams, name=name, lease_s=lease_s, producer=producer, options=options)

    async def begin_transaction(
        self,
        streams: str | Iterable[str],
        *,
        name: str | None = None,
        lease_s: float = 30.0,
        producer: Producer | tuple[str, str, str, int] | None = None,
        options: WriterOptions | None = None,
    ) -> Transaction:
        """Return a transaction that was entered; the caller commits or aborts it. See `transaction`."""
        made = self.transaction(streams, name=name, lease_s=lease_s, producer=producer, options=options)
        return await made.__aenter__()

    async def transaction_outcome(self, name: str) -> TransactionOutcome:
        """Return what is known of the transaction that has a name; its state is *unknown* if that is nothing."""
        return await self._transactions.outcome(name)

    async def commit_transaction(self, name: str) -> TransactionOutcome:
        """Commit a prepared transaction by its name, from any process; committing again changes nothing.

        Raises:
            InvalidArgumentError: it is open, and not prepared.
            TransactionUnknownError: there is none of that name, or it was forgotten.
            TransactionAbortedError: it was aborted.
        """
        return await self._transactions.commit(name)

    async def abort_transaction(self, name: str | None = None, *, number: int | None = None) -> bool:
        """Abort an open or prepared transaction, from any process; False if it was aborted before.

        Args:
            name: of the transaction.
            number: in place of the name, for example of a transaction without a name; `list_transactions` yields it.

        Raises:
            InvalidArgumentError: neither a name nor a number is given, or both are.
            TransactionCommittedError: it was committed.
            TransactionUnknownError: there is none of that name, or it was forgotten.
        """
        if (name is None) == (number is None):
            raise InvalidArgumentError("abort_transaction takes the name of a transaction, or its number")
        return await self._transactions.abort(name or "", number=number or 0)

    async def producer_info(self, writer_id: str) -> ProducerInfo:
        """Return what is known of a producer: holder, run, last sequence, and the runs that were replaced.

        Raises:
            ProducerUnknownError: no transaction ever began with it.
        """
        return await producer_info(self._writes, writer_id)

    async def reset_producer(self, writer_id: str, *, holder: str | None = None) -> bool:
        """Give the writer id of a producer to another holder, whose sequences start over; its runs so far stay fenced.

        Only if the holder it has is gone for good: what that would commit again is not recognised any more. False, and
        nothing is changed, if the new holder has it already.

        Args:
            holder: None: it is that of the next transaction that begins with this writer id.

        Raises:
            ProducerUnknownError: no transaction ever began with it.
            ProducerInUseError: yet another holder has taken it over meanwhile.
        """
        return await reset_producer(self._writes, writer_id, holder=holder)

    async def delete_producer(self, writer_id: str, *, last_sequence: int | None = None) -> bool:
        """Delete a producer and abort its open transactions; False if the server does not know it.

        The next transaction with the writer id begins a new producer: a sequence that was committed can be committed
        again, and runs that were replaced can begin again. So only delete it if no program sends that again.

        Args:
            last_sequence: the last sequence that was committed, as `producer_info` returns it; None for none.

        Raises:
            ProducerCommittedError: the last sequence is another one; nothing was changed.
        """
        return await delete_producer(self._writes, writer_id, last_sequence=last_sequence)

    async def list_transactions(self, *, after: int = 0) -> AsyncGenerator[ListedTransaction]:
        """Yield the transactions of all clients that are open or prepared, in the order of their numbers.

        Those that begin or end meanwhile may be among them or not.

        Args:
            after: only numbers above this one: where an earlier listing was left.
        """
        async for listed in self._transactions.listed(after=after):
            yield listed

    @overload
    def reader(self, stream: str | Slice, **arguments: Unpack[ReadOne]) -> AbstractAsyncContextManager[Reader]: ...
    @overload
    def reader(
        self, stream: StreamList, **arguments: Unpack[ReadSeveral]
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
            start, end: places, as cuts or in words: see `Place`. Of a time no event of that time or newer lies before
                the start, and no older one after the end. For several streams one for all, or one for each by its name;
                without a start of its own a stream is read from its head. TAIL is that of all at one moment.
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
            if not isinstance(stream, Iterable):
                raise InvalidArgumentError(f"a reader is of a stream, a slice, or a list of these, not {stream!r:.120}")
            return self._readers.several(stream, start=start, end=end, key=key, options=options)
        if isinstance(start, Mapping) or isinstance(end, Mapping):
            raise InvalidArgumentError("cuts by the names of streams are for a list of streams")
        return self._readers.one(slice_of(stream, start=start, end=end, key=key), options)

    # --- parallel reading ---

    async def plan_ranges(
        self,
        stream: str | Slice,
        *,
        start: Place = HEAD,
        end: Place | None = None,
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

    def read_range(self, part: SegmentRange, *, kept: KeptBlocks | None = None) -> "AsyncIterator[pa.RecordBatch]":
        """Return an iterator of the events of a range as record batches; needs pyarrow. See `ranges.read_range`."""
        return read_range(self._reads, part, kept=kept)

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
            checked_stream_name(stream),
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
        return ByteReader(self._reads, checked_stream_name(stream), offset=offset, follow=follow)


def connect(
    address: str | None = None,
    *,
    token: str | None = None,
    tls: bool | ssl.SSLContext | None = None,
    options: ClientOptions | None = None,
) -> Client:
    """Return a client of the server at `host:port`, to be entered with `async with` (or awaited, and closed by you).

    Args:
        address: without one that of the environment variable MILLRACE_ADDRESS, else 127.0.0.1:9240. Several, with
            commas between them, are dialed in turn, from the one that served last, the next one after an error or a
            second of silence: of a server and its standby.
        token, tls: instead of those in `options`. With neither token, that of the variable MILLRACE_TOKEN is sent, or
            that in the file of the variable MILLRACE_TOKEN_FILE, which is read once, here.

    Raises:
        InvalidArgumentError: the address, the token or the token file is invalid; it is a ValueError, too.
    """
    return Client(str(chosen_addresses(address)), chosen_options(options, token=token, tls=tls))
