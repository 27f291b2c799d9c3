"""The client for threads: the same API, without `await`.

    with millrace.blocking.connect("127.0.0.1:9240") as client:
        client.create_stream("shop/orders")
        with client.writer("shop/orders") as writer:
            writer.write(b"...", key="customer-3").result()

Each client runs one event loop in one background thread; every call hands its work to that loop and waits. Methods are
derived from those of the async client (`millrace.client.loop_thread`); this module contains only what differs for
threads. Readers fetch from the loop a block at a time, not an event at a time. Clients and writers are thread-safe, and
the events of each thread stay in order. Threads that share a reader share its events: each event goes to one thread,
and all threads see the end. To stop a thread that waits for a reader, close the client in another thread: the call
raises `ClientClosedError`.

Ctrl-C during a call cancels the call in the loop and raises KeyboardInterrupt; no events are lost.
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
    """The segments of a server. See `millrace.client.admin.segments.Segments`."""

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
    """The bookmarks of a stream. See `millrace.client.admin.bookmarks`."""

    save = waited(AsyncBookmarks.save)
    save_many = waited(AsyncBookmarks.save_many)
    save_when = waited(AsyncBookmarks.save_when)
    list = waited(AsyncBookmarks.list)
    get = waited(AsyncBookmarks.get)
    forget = waited(AsyncBookmarks.forget)


class Cursors(Blocking[AsyncCursors]):
    """The cursors of a stream. See `millrace.client.admin.bookmarks`."""

    set = waited(AsyncCursors.set)
    set_many = waited(AsyncCursors.set_many)
    list = waited(AsyncCursors.list)
    get = waited(AsyncCursors.get)
    forget = waited(AsyncCursors.forget)


class _EventSink(Protocol):
    """A writer with backpressure."""

    async def drain(self) -> None:
        """Wait for room in the buffer."""
        ...


W = TypeVar("W", bound=_EventSink)


def _accepted(
    method: Callable[Concatenate[W, P], "asyncio.Future[T]"],
) -> "Callable[Concatenate[Blocking[W], P], concurrent.futures.Future[T]]":
    """Return a method that waits for room, then calls `method` and raises its errors, or returns its future."""

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
    """Writes events to one stream. See `millrace.client.write.writer.Writer`.

    Made and opened by `client.writer`. Leaving `with` flushes and closes it; without `with`, call `close`.

    Each `write` hands its event to another thread, which costs tens of microseconds: use `write_many` for many events.
    Both wait while the buffer of the writer is full; `write_many` raises its errors directly.
    """

    def __init__(self, loop: LoopThread, writer: AsyncWriter, manager: AbstractAsyncContextManager[Any]) -> None:
        super().__init__(loop, writer, manager)
        # Bytes that threads have handed to the loop (under the lock), and how many of them the loop has taken.
        self._lock = threading.Lock()
        self._handed_bytes = 0
        self._taken_bytes = 0

    @property
    def stream(self) -> str:
        """The name of the stream."""
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
        """Append one event; the future resolves when the event is durable. Waits only while the buffer is full.

        The events of a thread are written in the order of its calls. If an event is rejected, its future raises the
        error. `flush` and leaving the writer raise the error too, unless the program has retrieved it from the future.
        A call that waits raises the error itself. See `millrace.client.write.writer.Writer.write` for the arguments
        and errors.
        """
        # Copied: the caller may change them before the loop takes the event.
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
        """The number of the last durable event of this writer in each segment; 0 if it never wrote there."""
        return self._target.last_event_numbers

    @property
    def stored_through(self) -> int:
        """The highest sequence up to which all events are durable; -1 if none is."""
        return self._target.stored_through

    @property
    def pending_bytes(self) -> int:
        """Size of the events that are not durable yet, including the memory of their objects."""
        return self._target.pending_bytes

    @property
    def known(self) -> bool:
        """Whether the server knew the writer id, and what it had stored."""
        return self._target.known


class Branch(Blocking[AsyncBranch]):
    """A branch of a transaction, made by `transaction.branch`. See `millrace.client.transactions.branch.Branch`."""

    write = _accepted(AsyncBranch.write)
    write_many = _accepted(AsyncBranch.write_many)
    write_arrow = _accepted(AsyncBranch.write_arrow)
    flush = waited(AsyncBranch.flush)
    finish = waited(AsyncBranch.finish)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of the transaction."""
        return self._target.streams

    @property
    def append_size_max(self) -> int:
        """The largest append that the server accepts, in bytes, if known."""
        return self._target.append_size_max

    @property
    def number(self) -> int:
        """The server's number of the transaction."""
        return self._target.number

    @property
    def branch(self) -> int:
        """The number of the branch in the transaction."""
        return self._target.branch

    @property
    def token(self) -> BranchToken | None:
        """The token for the commit; None until the branch is finished."""
        return self._target.token


class Transaction(OpenProxy[AsyncTransaction]):
    """A transaction. See `millrace.client.transactions.transaction.Transaction`.

    Made and begun by `client.transaction`. Each `write` waits for the event loop: use `write_many` for many events.
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
        """Return a new branch."""

        async def make() -> AsyncBranch:
            return self._target.branch()

        return Branch(self._loop, self._loop.call(make))

    @documented(AsyncTransaction.release)
    def release(self) -> None:
        """Stop writing and renewing the lease."""

        async def release() -> None:
            self._target.release()

        self._loop.call(release)

    @documented(AsyncTransaction.abandon)
    def abandon(self) -> None:
        """Abort without waiting for the reply."""

        async def abandon() -> None:
            self._target.abandon()

        self._loop.call(abandon)

    @documented(AsyncTransaction.advance)
    def advance(self, stream: str, cursor: str, cut: Place, *, expected: Place | None) -> None:
        """Move a cursor with the commit."""

        async def advance() -> None:
            self._target.advance(stream, cursor, cut, expected=expected)

        self._loop.call(advance)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of the transaction."""
        return self._target.streams

    @property
    def name(self) -> str | None:
        """The name of the transaction; None if it has none."""
        return self._target.name

    @property
    def append_size_max(self) -> int:
        """The largest append that the server accepts, in bytes, if known."""
        return self._target.append_size_max

    @property
    def number(self) -> int:
        """The server's number of the transaction."""
        return self._target.number

    @property
    def joined(self) -> bool:
        """Whether another process, or an earlier run of this one, had begun the transaction before."""
        return self._target.joined

    @property
    def state(self) -> TransactionState:
        """The state that this object last saw."""
        return self._target.state


class _EventSource(Protocol):
    """A reader in the event loop."""

    async def next_events(self) -> list[Event]:
        """Return the events of one block; empty at the end."""
        ...

    def arrow_batches(self) -> "AsyncIterator[pa.RecordBatch]":
        """Iterate over the events as record batches."""
        ...

    has_stream: ClassVar[bool]


S_co = TypeVar("S_co", bound=_EventSource, covariant=True)


def _arrow_batches_of(source: _EventSource) -> "AsyncIterator[pa.RecordBatch]":
    return source.arrow_batches()


class _EventReader(OpenProxy[S_co]):
    """An iterator of events, fetched from the event loop a block at a time."""

    def __init__(self, loop: LoopThread, reader: S_co, manager: AbstractAsyncContextManager[Any]) -> None:
        super().__init__(loop, reader, manager)
        # The current block, and the iterator of its remaining events: stepping a list iterator is atomic.
        self._block: list[Event] = []
        self._events: Iterator[Event] = iter(())
        # Held by the thread that fetches the next block.
        self._turn = threading.Lock()

    def __iter__(self) -> Self:
        """Iterate over the events."""
        return self

    def __next__(self) -> Event:
        """Wait for the next event and return it. Several threads may share the iterator; see `EventReader`."""
        while (event := next(self._events, None)) is None:
            self._loop.check()  # in a forked child no thread would release the lock
            with self._turn:
                if not length_hint(self._events):
                    self._take(self._loop.call(self._target.next_events))
                    if not self._block:
                        raise StopIteration
        return event

    @documented(AsyncReader.next_events)
    def next_events(self) -> list[Event]:
        """Return the remaining events of the current block, or wait for the next block; empty at the end.

        A block holds the events that arrived together. Use this to process and commit available events in batches.
        """
        self._loop.check()
        with self._turn:
            left = list(self._events)
            return left or self._loop.call(self._target.next_events)

    def _take(self, events: list[Event]) -> None:
        self._block, self._events = events, iter(events)

    _arrow_batches = iterated(_arrow_batches_of)

    def arrow_batches(self) -> "Iterator[pa.RecordBatch]":
        """Yield the events as record batches. The current block must have no remaining events.

        Raises:
            InvalidArgumentError: the current block has remaining events; consume them first.
        """
        self._check_none_left()
        return self._arrow_batches()

    def to_arrow(self, *, json: "bool | pa.Schema" = False, infer_count: int = INFER_COUNT) -> "pa.RecordBatchReader":
        """Return the events as a stream of Arrow batches. See `millrace.client.read.event_reader.EventReader.to_arrow`.

        Any thread may read it; several threads share its batches.

        Raises:
            InvalidArgumentError: the current block has remaining events; consume them first.
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
        """Return the stream of `to_arrow` as a capsule, so that Arrow libraries can consume a reader directly."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _check_none_left(self) -> None:
        if self._first_left is not None:
            raise InvalidArgumentError("the current block has remaining events: consume them first")

    @property
    def _first_left(self) -> Event | None:
        """The next event, if it is in the current block."""
        left = length_hint(self._events)
        return self._block[-left] if left else None


class Reader(_EventReader[AsyncReader]):
    """Reads one stream: an iterator of events. See `millrace.client.read.reader.Reader`.

    Made and opened by `client.reader`. Leaving `with` closes it; without `with`, call `close`.
    """

    @documented(AsyncReader.position)
    def position(self, *, before: Event | None = None) -> StreamCut:
        """Return the cut after all events returned so far, or before an event."""
        cut, left = self._target.position(before=before), self._first_left
        return cut if left is None or before is not None else _before(left, cut)


class StreamsReader(_EventReader[AsyncStreamsReader]):
    """Reads several streams: an iterator of events. See `millrace.client.read.streams_reader`.

    Made, opened and closed like a `Reader`.
    """

    def stream_of(self, event: Event) -> str:
        """Return the name of the stream of an event that this reader returned."""
        return self._target.stream_of(event)

    def positions(self) -> dict[str, StreamCut]:
        """Return the cut after all events returned so far, for each stream."""
        cuts = self._target.positions()
        if (left := self._first_left) is not None:
            name = self.stream_of(left)
            cuts[name] = _before(left, cuts[name])
        return cuts


def _before(event: Event, cut: StreamCut) -> StreamCut:
    """Return a cut, moved before an event in the segment of that event."""
    return StreamCut.of(cut.stream, {**cut.places, event.segment: (event.offset, event.index)})


class Client(Blocking[AsyncClient]):
    """A client of one server for threads. Made by `connect`; a context manager."""

    def __init__(self, loop: LoopThread, client: AsyncClient) -> None:
        super().__init__(loop, client)
        self.segments = Segments(loop, client.segments)

    def __enter__(self) -> Self:
        """Return the connected client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; pending calls raise `ClientClosedError`.

        Thread-safe. Pending and later calls of other threads raise `ClientClosedError`, also calls of objects made by
        the client; appends without an acknowledgement may raise `OutcomeUnknownError`. Closing again does nothing.
        """
        try:
            with suppress(ClientClosedError):  # closed before
                self._loop.call(self._target.close)
        finally:
            self._loop.stop()

    def statistics(self) -> ClientStatistics:
        """Return the statistics of the connections, and the current wait for the server."""
        return self._target.statistics()

    def stream_head(self, name: str) -> StreamCut:
        """Return the cut before the first remaining event."""
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
        """Return a reader. See `millrace.client.client.Client.reader`."""
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
        address: defaults to the environment variable MILLRACE_ADDRESS, then to 127.0.0.1:9240. Several addresses,
            separated by commas (a server and its standby), are tried in turn, beginning with the one used last. The
            client goes on to the next address after an error, or after a second without a reply.
        token, tls: override those in `options`. Without a token, the client sends the value of MILLRACE_TOKEN, or the
            content of the file MILLRACE_TOKEN_FILE, which is read once, here.

    Raises:
        InvalidArgumentError: the address, the token or the token file is invalid; also a ValueError.
        ServerUnreachableError: no server answers at the address.
        AuthenticationError: the server rejected the token.
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
