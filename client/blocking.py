"""The client for threads: the same surface, without `await`.

    with millrace.blocking.connect("127.0.0.1:9240") as client:
        client.create_stream("shop/orders")
        with client.writer("shop/orders") as writer:
            writer.write(b"...", key="customer-3").result()

One event loop runs in one background thread for each client; every call hands its work to that loop and waits. Methods
are derived from those of the async client (`millrace.client.loop_thread`): what is written out here is what differs for
threads. What is read crosses the threads a block at a time, not an event at a time. A client may be used by many
threads; a writer too, and each thread's events stay in the order it wrote them. Threads that share a reader share its
events: each event goes to one of them, and all of them see the end.
A thread that waits for a reader is ended by closing the client in another one: it sees `ClientClosedError`.

Ctrl-C during a call cancels the call in the loop and raises KeyboardInterrupt, and nothing that was read is lost.
"""

import asyncio
import concurrent.futures
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from millrace.client.admin.bookmarks import Bookmarks as AsyncBookmarks
from millrace.client.admin.bookmarks import Cursors as AsyncCursors
from millrace.client.admin.readers import ReadOne, ReadSeveral, StreamList
from millrace.client.admin.segments import Segments as AsyncSegments
from millrace.client.read.event_reader import INFER_COUNT
from millrace.client.read.reader import Reader as AsyncReader
from millrace.client.read.streams_reader import StreamsReader as AsyncStreamsReader
from millrace.client.transactions.branch import Branch as AsyncBranch
from millrace.client.transactions.branch import BranchToken
from millrace.client.transactions.outcome import TransactionState
from millrace.client.transactions.transaction import Transaction as AsyncTransaction
from millrace.client.write.arguments import owned
from millrace.client.write.events import EVENT_COST_BYTES, WriteResult
from millrace.client.write.refused_events import WriteFuture
from millrace.client.write.writer import Writer as AsyncWriter
from millrace.model.block_packing import Headers, checked_headers
from millrace.model.cut import Place, StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.event import Event
from millrace.model.extras import needs
from millrace.model.slice import Slice

from .byte_files import ByteReader, ByteWriter
from .client import Client as AsyncClient
from .client import ClientStatistics
from .client import connect as connect_async
from .errors import ClientClosedError
from .loop_thread import Blocking, LoopThread, OpenProxy, documented, iterated, opened, started, waited, wrapped
from .options import ClientOptions

if TYPE_CHECKING:
    import pyarrow as pa

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class Segments(Blocking[AsyncSegments]):
    """The segments of a server: see `millrace.client.admin.segments.Segments`."""

    create = waited(AsyncSegments.create)
    append = waited(AsyncSegments.append)
    append_nowait = started(AsyncSegments.append)
    read = waited(AsyncSegments.read)
    tail = iterated(AsyncSegments.tail)
    info = waited(AsyncSegments.info)
    seal = waited(AsyncSegments.seal)
    truncate = waited(AsyncSegments.truncate)
    delete = waited(AsyncSegments.delete)
    merge = waited(AsyncSegments.merge)
    list = iterated(AsyncSegments.list)
    get_attribute = waited(AsyncSegments.get_attribute)
    set_attribute = waited(AsyncSegments.set_attribute)


class Bookmarks(Blocking[AsyncBookmarks]):
    """The bookmarks of a stream: see `millrace.client.admin.bookmarks`."""

    save = waited(AsyncBookmarks.save)
    save_many = waited(AsyncBookmarks.save_many)
    save_when = waited(AsyncBookmarks.save_when)
    list = waited(AsyncBookmarks.list)
    get = waited(AsyncBookmarks.get)
    forget = waited(AsyncBookmarks.forget)


class Cursors(Blocking[AsyncCursors]):
    """The cursors of a stream: see `millrace.client.admin.bookmarks`."""

    set = waited(AsyncCursors.set)
    set_many = waited(AsyncCursors.set_many)
    list = waited(AsyncCursors.list)
    get = waited(AsyncCursors.get)
    forget = waited(AsyncCursors.forget)


class _EventSink(Protocol):
    """What takes events, and may have to be waited for."""

    async def drain(self) -> None:
        """Wait for room."""
        ...


W = TypeVar("W", bound=_EventSink)


def _accepted(
    method: Callable[Concatenate[W, P], "asyncio.Future[T]"],
) -> "Callable[Concatenate[Blocking[W], P], concurrent.futures.Future[T]]":
    """Return the method that waits for room and calls `method`, whose errors it raises; the future is its future."""

    @documented(method)
    def accept(self: Blocking[W], /, *args: P.args, **kwargs: P.kwargs) -> "concurrent.futures.Future[T]":
        result: concurrent.futures.Future[T] = concurrent.futures.Future()

        async def write() -> None:
            await self._target.drain()
            method(self._target, *args, **kwargs).add_done_callback(lambda done: _copy_outcome(done, result))

        self._loop.call(write)
        return result

    return accept


class Writer(OpenProxy[AsyncWriter]):
    """Writes events to one stream: see `millrace.client.write.writer.Writer`.

    Made, and opened, by `client.writer`. Leaving `with` flushes and closes it; without `with`, call `close`.

    Each `write` crosses the threads, which costs tens of microseconds: `write_many` is for many events. Both wait while
    the buffer of the writer is full; `write_many` raises here and now.
    """

    def __init__(self, loop: LoopThread, writer: AsyncWriter, manager: AbstractAsyncContextManager[Any]) -> None:
        super().__init__(loop, writer, manager)
        # What threads handed over to the loop, counted under the lock, and what the loop has taken of it.
        self._lock = threading.Lock()
        self._handed_bytes = 0
        self._taken_bytes = 0

    @property
    def stream(self) -> str:
        """The name of its stream."""
        return self._target.stream

    def write(
        self,
        value: bytes,
        *,
        key: str | None = None,
        sequence: int | None = None,
        timestamp_us: int | None = None,
        headers: Headers | None = None,
    ) -> "concurrent.futures.Future[WriteResult]":
        """Take one event; the future is done when it is durable. Waits only while the buffer of the writer is full.

        The events of a thread are written in the order of its calls. If an event is not taken, its future holds the
        error. `flush` and leaving the writer raise the error too, unless the program has asked the future for it. A
        call that waits raises the error itself. See `millrace.client.write.writer.Writer.write` for the arguments and
        the errors.
        """
        # Copies: the caller may change them before the loop takes the event.
        value = owned(value)
        cost_bytes = len(value) + EVENT_COST_BYTES
        if headers:
            headers, headers_size = checked_headers(headers)
            cost_bytes += headers_size
        if key is not None:
            cost_bytes += len(key)
        writer = self._target
        with self._lock:
            has_room = writer.has_room(self._handed_bytes - self._taken_bytes + cost_bytes)
            if has_room:
                self._handed_bytes += cost_bytes
        if not has_room:
            return self._write_when_drained(
                value, key=key, sequence=sequence, timestamp_us=timestamp_us, headers=headers
            )
        result = WriteFuture()

        def take() -> None:
            try:
                future = writer.write(value, key=key, sequence=sequence, timestamp_us=timestamp_us, headers=headers)
                future.add_done_callback(lambda done: _copy_outcome(done, result))
            except Exception as error:  # noqa: BLE001  # any error: the future holds it, and `flush` raises it
                result.refuse(error, writer.refused)
            self._taken_bytes += cost_bytes

        self._loop.post(take)
        return result

    _write_when_drained = _accepted(AsyncWriter.write)
    write_many = _accepted(AsyncWriter.write_many)
    write_arrow = _accepted(AsyncWriter.write_arrow)
    flush = waited(AsyncWriter.flush)
    release = waited(AsyncWriter.release)

    @property
    def last_event_numbers(self) -> dict[int, int]:
        """The number of the last durable event of this writer in each segment."""
        return self._target.last_event_numbers

    @property
    def stored_through(self) -> int:
        """Everything that was written with a sequence up to this one is durable; -1 if nothing is."""
        return self._target.stored_through

    @property
    def pending_bytes(self) -> int:
        """Size of what was written and is not yet durable, with the cost of its objects."""
        return self._target.pending_bytes

    @property
    def known(self) -> bool:
        """Whether the server had seen the writer id before, and knows what it stored."""
        return self._target.known


class Branch(Blocking[AsyncBranch]):
    """A branch of a transaction: see `millrace.client.transactions.branch.Branch`. Made by `transaction.branch`."""

    write = _accepted(AsyncBranch.write)
    write_many = _accepted(AsyncBranch.write_many)
    write_arrow = _accepted(AsyncBranch.write_arrow)
    flush = waited(AsyncBranch.flush)
    finish = waited(AsyncBranch.finish)

    @property
    def streams(self) -> tuple[str, ...]:
        """Those of the transaction."""
        return self._target.streams

    @property
    def append_size_max(self) -> int:
        """The largest append that the server takes, in bytes, as far as it is known."""
        return self._target.append_size_max

    @property
    def number(self) -> int:
        """The server's own number of the transaction."""
        return self._target.number

    @property
    def branch(self) -> int:
        """The number of this one in the transaction."""
        return self._target.branch

    @property
    def token(self) -> BranchToken | None:
        """What a commit takes; None until it is finished."""
        return self._target.token


class Transaction(OpenProxy[AsyncTransaction]):
    """A transaction: see `millrace.client.transactions.transaction.Transaction`.

    Made, and begun, by `client.transaction`. Each `write` waits for the loop: `write_many` is for many events.
    """

    write = _accepted(AsyncTransaction.write)
    write_many = _accepted(AsyncTransaction.write_many)
    write_arrow = _accepted(AsyncTransaction.write_arrow)
    flush = waited(AsyncTransaction.flush)
    prepare = waited(AsyncTransaction.prepare)
    commit = waited(AsyncTransaction.commit)
    abort = waited(AsyncTransaction.abort)
    ping = waited(AsyncTransaction.ping)

    @documented(AsyncTransaction.branch)
    def branch(self) -> Branch:
        """Return another branch."""

        async def make() -> AsyncBranch:
            return self._target.branch()

        return Branch(self._loop, self._loop.call(make))

    @documented(AsyncTransaction.release)
    def release(self) -> None:
        """Write and renew nothing any more."""

        async def release() -> None:
            self._target.release()

        self._loop.call(release)

    @documented(AsyncTransaction.abandon)
    def abandon(self) -> None:
        """Abort without waiting for it."""

        async def abandon() -> None:
            self._target.abandon()

        self._loop.call(abandon)

    @documented(AsyncTransaction.advance)
    def advance(self, stream: str, cursor: str, cut: Place, *, expected: Place | None) -> None:
        """Let a cursor move with the commit."""

        async def advance() -> None:
            self._target.advance(stream, cursor, cut, expected=expected)

        self._loop.call(advance)

    @property
    def streams(self) -> tuple[str, ...]:
        """That it is over."""
        return self._target.streams

    @property
    def name(self) -> str | None:
        """Of the transaction; None if only its number names it."""
        return self._target.name

    @property
    def append_size_max(self) -> int:
        """The largest append that the server takes, in bytes, as far as it is known."""
        return self._target.append_size_max

    @property
    def number(self) -> int:
        """The server's own, of this transaction."""
        return self._target.number

    @property
    def joined(self) -> bool:
        """Whether it was open, or prepared, before."""
        return self._target.joined

    @property
    def state(self) -> TransactionState:
        """Where it is, as far as this object knows."""
        return self._target.state


class _EventSource(Protocol):
    """A reader in the loop."""

    async def next_events(self) -> list[Event]:
        """Return the events of one block; empty at the end."""
        ...

    def arrow_batches(self) -> "AsyncIterator[pa.RecordBatch]":
        """Return an iterator of the events as record batches."""
        ...

    has_stream: ClassVar[bool]


S_co = TypeVar("S_co", bound=_EventSource, covariant=True)


def _arrow_batches_of(source: _EventSource) -> "AsyncIterator[pa.RecordBatch]":
    return source.arrow_batches()


class _EventReader(OpenProxy[S_co]):
    """An iterator of events, of which the loop gives a block at a time."""

    def __init__(self, loop: LoopThread, reader: S_co, manager: AbstractAsyncContextManager[Any]) -> None:
        super().__init__(loop, reader, manager)
        # The block in hand, and the rest of its events: an iterator of a list, whose steps are atomic.
        self._block: list[Event] = []
        self._events: Iterator[Event] = iter(())
        # Held by the thread that takes the next block, which may have to wait for it.
        self._turn = threading.Lock()

    def __iter__(self) -> Self:
        """Iterate over the events."""
        return self

    def __next__(self) -> Event:
        """Return the next event, waiting for it. Several threads may share it, see `EventReader`."""
        while (event := next(self._events, None)) is None:
            self._loop.check()  # in a forked child no thread gives the turn back
            with self._turn:
                if not length_hint(self._events):
                    self._take(self._loop.call(self._target.next_events))
                    if not self._block:
                        raise StopIteration
        return event

    @documented(AsyncReader.next_events)
    def next_events(self) -> list[Event]:
        """Return the events that are left of the block in hand, or wait for the next one; empty at the end.

        A block is what came together: for programs that process, and commit, as much as there is.
        """
        self._loop.check()
        with self._turn:
            left = list(self._events)
            return left or self._loop.call(self._target.next_events)

    def _take(self, events: list[Event]) -> None:
        self._block, self._events = events, iter(events)

    _arrow_batches = iterated(_arrow_batches_of)

    def arrow_batches(self) -> "Iterator[pa.RecordBatch]":
        """Yield the events as record batches; not after events were taken one by one from a block that has more.

        Raises:
            InvalidArgumentError: events of a block are left; take them first.
        """
        self._check_none_left()
        return self._arrow_batches()

    def to_arrow(self, *, json: "bool | pa.Schema" = False, infer_count: int = INFER_COUNT) -> "pa.RecordBatchReader":
        """Return the events as a stream of Arrow batches: see `millrace.client.read.event_reader.EventReader.to_arrow`.

        Any thread may read it; several threads share its batches.

        Raises:
            InvalidArgumentError: events of a block are left; take them first.
        """
        self._check_none_left()
        with needs("arrow"):
            from millrace.client.read.arrow_reader import open_arrow

        loop, source = self._loop, self._target
        return loop.call(
            lambda: open_arrow(
                source.arrow_batches(), has_stream=source.has_stream, json=json, infer_count=infer_count, wait=loop.call
            )
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return what `to_arrow` does as a capsule, so that a reader is itself something that Arrow libraries read."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _check_none_left(self) -> None:
        if self._first_left is not None:
            raise InvalidArgumentError("events of the block in hand are left: take them first")

    @property
    def _first_left(self) -> Event | None:
        """The event that comes next, if it is in hand."""
        left = length_hint(self._events)
        return self._block[-left] if left else None


class Reader(_EventReader[AsyncReader]):
    """Reads one stream: see `millrace.client.read.reader.Reader`. An iterator of events.

    Made, and opened, by `client.reader`. Leaving `with` closes it; without `with`, call `close`.
    """

    @documented(AsyncReader.position)
    def position(self, *, before: Event | None = None) -> StreamCut:
        """Return the cut after everything that was handed out, or before an event."""
        cut, left = self._target.position(before=before), self._first_left
        return cut if left is None or before is not None else _before(left, cut)


class StreamsReader(_EventReader[AsyncStreamsReader]):
    """Reads several streams: see `millrace.client.read.streams_reader`. An iterator of events.

    Made, opened and closed as a `Reader`.
    """

    def stream_of(self, event: Event) -> str:
        """Return the name of the stream of an event that this reader handed out."""
        return self._target.stream_of(event)

    def positions(self) -> dict[str, StreamCut]:
        """Return for each stream the cut after everything that was handed out of it."""
        cuts = self._target.positions()
        if (left := self._first_left) is not None:
            name = self.stream_of(left)
            cuts[name] = _before(left, cuts[name])
        return cuts


def _before(event: Event, cut: StreamCut) -> StreamCut:
    """Return a cut that is before an event in its segment."""
    return StreamCut.of(cut.stream, {**cut.places, event.segment: (event.offset, event.index)})


class Client(Blocking[AsyncClient]):
    """A client of one server for threads. Made by `connect`; a context manager."""

    def __init__(self, loop: LoopThread, client: AsyncClient) -> None:
        super().__init__(loop, client)
        self.segments = Segments(loop, client.segments)

    def __enter__(self) -> Self:
        """Return the client, which is connected."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; what waits fails with `ClientClosedError`.

        Any thread may close, while others use the client. What they wait for, and what they ask for later, raises
        `ClientClosedError`, also in what was made by the client; appends whose acknowledgement had not come may raise
        `OutcomeUnknownError`. Closing again does nothing.
        """
        try:
            with suppress(ClientClosedError):  # closed before
                self._loop.call(self._target.close)
        finally:
            self._loop.stop()

    def statistics(self) -> ClientStatistics:
        """Return what the connections have done and what waits in them."""
        return self._target.statistics()

    def stream_head(self, name: str) -> StreamCut:
        """Return the cut before everything that is left."""
        return self._loop.call(lambda: self._target.stream_cut(name).head())

    ping = waited(AsyncClient.ping)
    create_stream = waited(AsyncClient.create_stream)
    stream_info = waited(AsyncClient.stream_info)
    list_streams = iterated(AsyncClient.list_streams)
    update_stream = waited(AsyncClient.update_stream)
    scale_stream = waited(AsyncClient.scale_stream)
    stream_history = waited(AsyncClient.stream_history)
    explain_stream = waited(AsyncClient.explain_stream)
    seal_stream = waited(AsyncClient.seal_stream)
    release_stream = waited(AsyncClient.release_stream)
    delete_stream = waited(AsyncClient.delete_stream)
    truncate_stream = waited(AsyncClient.truncate_stream)
    stream_cut = waited(AsyncClient.stream_cut)
    distance = waited(AsyncClient.distance)
    bookmarks = wrapped(AsyncClient.bookmarks, Bookmarks)
    cursors = wrapped(AsyncClient.cursors, Cursors)
    writer = opened(AsyncClient.writer, Writer)
    transaction = opened(AsyncClient.transaction, Transaction)
    begin_transaction = transaction
    transaction_outcome = waited(AsyncClient.transaction_outcome)
    commit_transaction = waited(AsyncClient.commit_transaction)
    abort_transaction = waited(AsyncClient.abort_transaction)
    list_transactions = iterated(AsyncClient.list_transactions)
    producer_info = waited(AsyncClient.producer_info)
    reset_producer = waited(AsyncClient.reset_producer)
    delete_producer = waited(AsyncClient.delete_producer)
    writer_info = waited(AsyncClient.writer_info)
    reset_sequences = waited(AsyncClient.reset_sequences)
    writer_state = waited(AsyncClient.writer_state)
    stream_cuts = waited(AsyncClient.stream_cuts)

    @overload
    def reader(self, stream: str | Slice, **arguments: Unpack[ReadOne]) -> Reader: ...
    @overload
    def reader(self, stream: StreamList, **arguments: Unpack[ReadSeveral]) -> StreamsReader: ...

    @documented(AsyncClient.reader)
    def reader(self, stream: Any, **arguments: Any) -> Any:
        """Return a reader: see `millrace.client.client.Client.reader`."""
        shell: Any = Reader if isinstance(stream, str | Slice) else StreamsReader
        return opened(AsyncClient.reader, shell)(self, stream, **arguments)

    to_polars = waited(AsyncClient.to_polars)
    to_pandas = waited(AsyncClient.to_pandas)
    plan_ranges = waited(AsyncClient.plan_ranges)
    read_range = iterated(AsyncClient.read_range)
    fetch_event = waited(AsyncClient.fetch_event)
    byte_writer = wrapped(AsyncClient.byte_writer, ByteWriter)
    byte_reader = wrapped(AsyncClient.byte_reader, ByteReader)


def connect(
    address: str | None = None,
    *,
    token: str | None = None,
    tls: bool | ssl.SSLContext | None = None,
    options: ClientOptions | None = None,
) -> Client:
    """Connect to the server at `host:port` and return a client, to be used with `with`.

    Args:
        address: without one that of the environment variable MILLRACE_ADDRESS, else 127.0.0.1:9240. Several, with
            commas between them, are dialed in turn, from the one that served last, the next one after an error or a
            second of silence: of a server and its standby.
        token, tls: instead of those in `options`. With neither token, that of the variable MILLRACE_TOKEN is sent, or
            that in the file of the variable MILLRACE_TOKEN_FILE, which is read once, here.

    Raises:
        InvalidArgumentError: the address, the token or the token file is invalid; it is a ValueError, too.
        ServerUnreachableError: nothing answers there.
        AuthenticationError: the token is refused.
    """
    loop = LoopThread()
    try:
        return Client(loop, loop.call(lambda: connect_async(address, token=token, tls=tls, options=options)))
    except BaseException:
        loop.stop()
        raise


def _copy_outcome(source: "asyncio.Future[T]", target: "concurrent.futures.Future[T]") -> None:
    if source.cancelled():
        target.cancel()
    if not target.set_running_or_notify_cancel():
        return  # cancelled, here or by the caller
    error = source.exception()
    if error is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())
