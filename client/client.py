"""The client: one server, its segments and streams.

    async with millrace.connect("127.0.0.1:9240") as client:
        await client.create_stream("shop/orders", millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(4)))
        async with client.writer("shop/orders") as writer:
            await writer.write(b"...", key="customer-3")

A client keeps two connections, which it opens on demand and reopens when they are lost: one for requests and writes,
one for reads, so that a slow reader delays no acks. A client belongs to one event loop.
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
    """Statistics of the two connections of a client.

    Attributes:
        waiting: why and since when the client waits for the server; None while it does not wait.
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
            ServerUnreachableError: no server answers at the address.
            AuthenticationError: the server rejected the token.
        """
        await self._writes.connection()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    def __await__(self) -> Generator[object, None, Self]:
        """Connect; the caller closes the client."""
        return self.__aenter__().__await__()

    async def close(self) -> None:
        """Close both connections. Pending calls raise `ClientClosedError`; open transactions end by lease expiry.

        Closing again does nothing. In a forked child the connections of the parent stay open.

        Raises:
            WrongLoopError: called from another event loop than the client's; the client stays open.
        """
        if not self._writes.guard.forked:
            self._writes.guard.check()
        self._transactions.close()
        try:
            await self._writes.close()
        finally:
            await self._reads.close()

    async def ping(self) -> float:
        """Return the time of a round trip to the server, in seconds."""
        connection = await self._writes.connection()
        started_s = perf_counter()  # uvloop's own clock counts in milliseconds
        await connection.send_request(m.Ping())
        return perf_counter() - started_s

    def statistics(self) -> ClientStatistics:
        """Return the statistics of the connections, and the current wait for the server."""
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
            writer_id: makes writes with a sequence idempotent across restarts of writer and server (see
                `Writer.stored_through`). Opening the writer fences the previous writer with this id. Without an id the
                writer is new, and ends with the context.
            start_over_if_expired: open an expired id, whose event numbers the server has deleted, and number its
                events from 1 again. Without it, opening an expired id raises WriterExpiredError.
            exclusive: once this writer is open, the stream accepts events from no other writer, across scalings and
                restarts, until `Writer.release` or until another exclusive writer takes over and fences this one.
            expected: open the exclusive writer only if the stream ends at this place, a cut or words (see `Place`).
                Words are resolved when the writer is opened; HEAD stands for a stream without events.

        Raises:
            InvalidNameError: the writer id is not 1 to 255 printable bytes.
            InvalidArgumentError: `expected` is not a place in the stream, or is given without `exclusive`.
        """
        if expected is not None and not exclusive:
            raise InvalidArgumentError("`expected` needs an exclusive writer: pass exclusive=True")
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
        """Return the last event number that a writer stored in each segment, None if the writer was never opened.

        This tells the outcome of a write whose wait was cancelled: every event number up to the last is stored, exactly
        once. A program that restarts resumes after `writer.stored_through`, not after these numbers.

        Raises:
            StreamNotFoundError: the stream does not exist.
            WriterExpiredError: the writer was opened once, but the server has deleted its event numbers.
            RequestTimeoutError: for `request_timeout_s`, the stream was scaled faster than its segments could be
                fetched.
        """
        info = await self.writer_info(stream, writer_id)
        if info is None:
            return None
        if info.expired_us is not None:
            raise WriterExpiredError(f"writer {writer_id!r} was idle for too long: its event numbers were deleted")
        return info.last_event_numbers

    async def writer_info(self, stream: str, writer_id: str) -> WriterInfo | None:
        """Return the state of a writer and of its events in a stream, None if the writer was never opened.

        Of an expired writer the server still knows when it expired, for as long again as it kept the event numbers.
        Raises like `writer_state`, except WriterExpiredError.
        """
        return await fetch_writer_info(self._writes, checked_stream_name(stream), writer_id)

    async def reset_sequences(self, stream: str, writer_id: str, *, stored_through: int) -> bool:
        """Reset the sequences of a writer after SequencesRefusedError; False, and no change, if none was refused.

        An open writer with this id is fenced.

        Args:
            stored_through: the last sequence that counts as stored; the next writer with the id resumes after it. -1 is
                before the first one. Read the stream to find the right value.

        Raises:
            StreamNotFoundError: the stream does not exist.
            WriterFencedError, WriterExpiredError: the writer is unknown, or its state has expired.
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

        Entering a transaction with a name begins it. A transaction without a name begins with its first events: if it
        cannot begin, `flush`, `commit` and the futures of its events raise the reason.

        If a transaction of this name is already open, entering joins it. It must be over the same streams. Events
        already in it are committed or deleted by the program that knows its branches (see `Transaction.commit`). A
        prepared transaction can be joined to commit or abort it. An abort makes the name free again.

        Args:
            name: identifies the transaction to other processes: they can look up its outcome, and commit it once it is
                prepared. Only a transaction with a name can be prepared.
            lease_s: the server aborts the transaction when its lease was not renewed for this long, usually 1 s to a
                day. The client renews the lease in the background.
            producer: commit at most once per (producer id, sequence), however long ago that was. Entering the context
                fences older runs of the same producer. Not needed by processes that only write to branches.
            options: of the writers of its streams.

        Raises:
            InvalidNameError, InvalidArgumentError: the name of a stream, the name of the transaction or the lease is
                invalid; or a transaction of this name is open over other streams.
            StreamNotFoundError, StreamSealedError: a stream does not exist, or is sealed.
            TransactionCommittedError: a transaction of this name was committed.
            ProducerCommittedError: the producer has committed this sequence, or a later one.
            ProducerFencedError: a newer run of the producer has begun.
            ProducerInUseError: another holder uses the writer id; see `reset_producer`.
            ProducersFullError: the server has reached its limit of producers.
            TransactionsFullError: too many transactions are open.
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
        """Begin a transaction and return it; the caller commits or aborts it. See `transaction`."""
        made = self.transaction(streams, name=name, lease_s=lease_s, producer=producer, options=options)
        return await made.__aenter__()

    async def transaction_outcome(self, name: str) -> TransactionOutcome:
        """Return the outcome of a transaction by its name; *unknown* if the server does not know the name."""
        return await self._transactions.outcome(name)

    async def commit_transaction(self, name: str) -> TransactionOutcome:
        """Commit a prepared transaction by its name, from any process. Idempotent.

        Raises:
            InvalidArgumentError: the transaction is open, but not prepared.
            TransactionUnknownError: the server does not know the name, or no longer.
            TransactionAbortedError: the transaction was aborted.
        """
        return await self._transactions.commit(name)

    async def abort_transaction(self, name: str | None = None, *, number: int | None = None) -> bool:
        """Abort an open or prepared transaction, from any process; False if it is aborted already.

        Args:
            name: of the transaction.
            number: instead of the name, for example for a transaction without one; see `list_transactions`.

        Raises:
            InvalidArgumentError: neither a name nor a number is given, or both are.
            TransactionCommittedError: the transaction was committed.
            TransactionUnknownError: the server does not know the name or number, or no longer.
        """
        if (name is None) == (number is None):
            raise InvalidArgumentError("abort_transaction takes the name of a transaction, or its number")
        return await self._transactions.abort(name or "", number=number or 0)

    async def producer_info(self, writer_id: str) -> ProducerInfo:
        """Return the state of a producer: holder, run, last committed sequence, and fenced runs.

        Raises:
            ProducerUnknownError: no transaction has begun with this producer.
        """
        return await producer_info(self._writes, writer_id)

    async def reset_producer(self, writer_id: str, *, holder: str | None = None) -> bool:
        """Transfer the writer id of a producer to another holder, whose sequences start over. Earlier runs stay fenced.

        Do this only if the current holder is gone for good: its commits are no longer deduplicated. Returns False, and
        changes nothing, if the new holder has the id already.

        Args:
            holder: the new holder; None for the holder of the next transaction that begins with this writer id.

        Raises:
            ProducerUnknownError: no transaction has begun with this producer.
            ProducerInUseError: a third holder has taken the id over in the meantime.
        """
        return await reset_producer(self._writes, writer_id, holder=holder)

    async def delete_producer(self, writer_id: str, *, last_sequence: int | None = None) -> bool:
        """Delete a producer and abort its open transactions; False if the server does not know it.

        The next transaction with the writer id begins a new producer, without deduplication and fencing from before: a
        committed sequence can be committed again, and fenced runs can begin again. So delete a producer only if no
        program will retry its sequences.

        Args:
            last_sequence: the expected last committed sequence, as `producer_info` returns it; None for none.

        Raises:
            ProducerCommittedError: the last committed sequence differs; nothing was changed.
        """
        return await delete_producer(self._writes, writer_id, last_sequence=last_sequence)

    async def list_transactions(self, *, after: int = 0) -> AsyncGenerator[ListedTransaction]:
        """Yield the open and prepared transactions of all clients, by ascending number.

        Transactions that begin or end during the listing may be missing.

        Args:
            after: yield only numbers above this one, to continue an earlier listing.
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
            stream: the name of a stream, or a slice, which includes start, end and key. A list of names, slices and
                patterns like `plant/sensor-*` returns a `StreamsReader`. Streams created later that match a pattern
                join, and are read from their heads.
            start, end: places, as cuts or in words; see `Place`. A start by time includes every event of that time or
                newer, an end by time every older event. For several streams, pass one place for all or a mapping by
                name; a stream without a start is read from its head. TAIL is the tail of all streams at one moment.
            end: None follows the stream until it is sealed; TAIL is the current tail. With an end, no streams join.
            key: read only the events with this key, and only the segments that may contain it.

        Raises:
            StreamNotFoundError: the stream does not exist.
            CutTruncatedError: the events at `start` were truncated.
            CutInvalidError, OffsetBeyondEndError: a cut does not fit the stream.
            CutOrderError: `start` is after `end`.
            InvalidArgumentError: a stream is given twice, or a cut is given for a stream that is not read.
        """
        options = options or ReaderOptions()
        if not isinstance(stream, str | Slice):
            if not isinstance(stream, Iterable):
                raise InvalidArgumentError(f"a reader takes a stream, a slice, or a list of these, not {stream!r:.120}")
            return self._readers.several(stream, start=start, end=end, key=key, options=options)
        if isinstance(start, Mapping) or isinstance(end, Mapping):
            raise InvalidArgumentError("a mapping of cuts needs a list of streams")
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
        """Return ranges of about `max_bytes` that hold exactly the events between two cuts, to read in parallel.

        Args:
            stream, start, key: see `reader`.
            end: None for the current tail.

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
        """Iterate over the events of a range as record batches; needs pyarrow. See `ranges.read_range`."""
        return read_range(self._reads, part, kept=kept)

    async def split_range(self, part: SegmentRange, *, max_bytes: int) -> list[SegmentRange]:
        """Split a range into ranges of about `max_bytes` that hold exactly its events."""
        return await split_range(self._reads, part, max_bytes=max_bytes)

    def segment_scan(self, segment_id: int) -> SegmentScan:
        """Return a scan of one segment, which finds positions by counting events or bytes."""
        return SegmentScan(self._reads, segment_id)

    async def cut_at_time_in(self, stream: StreamInfo, choice: TimeCut, *, as_end: bool) -> StreamCut:
        """Return the cut at a time, like `stream_cut`, in the segments that a `StreamInfo` lists.

        Raises:
            SegmentTruncatedError, SegmentNotFoundError: a part of the stream was truncated since.
        """
        return await self._cuts.choose(choice, stream, is_end=as_end)

    async def fetch_event(self, position: EventPosition) -> Event:
        """Return the event at a position (`event.position`); only its block is read.

        Raises:
            SegmentNotFoundError, SegmentTruncatedError: the event was truncated.
            OffsetBeyondEndError, CutInvalidError, BlockCorruptError: the position is not that of an event.
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
        """Return a writer that appends bytes to a stream of one segment, to be entered with `async with`.

        Args:
            writer_id: opening the writer fences the previous writer with this id.
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
            follow: wait for new bytes at the tail, until the stream is sealed.
        """
        if offset < 0:
            raise InvalidArgumentError(f"offset must be at least 0, not {offset}")
        return ByteReader(self._reads, checked_stream_name(stream), offset=offset, follow=follow)


def connect(
    address: str | None = None,
    *,
    token: str | None = None,
    tls: bool | ssl.SSLContext | None = None,
    options: ClientOptions | None = None,
) -> Client:
    """Return a client of the server at `host:port`, to be entered with `async with`, or awaited and then closed.

    Args:
        address: defaults to the environment variable MILLRACE_ADDRESS, then to 127.0.0.1:9240. Several addresses,
            separated by commas (a server and its standby), are tried in turn, beginning with the one used last. The
            client goes on to the next address after an error, or after a second without a reply.
        token, tls: override those in `options`. Without a token, the client sends the value of MILLRACE_TOKEN, or the
            content of the file MILLRACE_TOKEN_FILE, which is read once, here.

    Raises:
        InvalidArgumentError: the address, the token or the token file is invalid; also a ValueError.
    """
    return Client(str(chosen_addresses(address)), chosen_options(options, token=token, tls=tls))
