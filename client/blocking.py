"""The client for threads: the same surface, without `await`.

    with millrace.blocking.connect("127.0.0.1:9240") as client:
        client.create_stream("shop/orders")
        with client.writer("shop/orders") as writer:
            writer.write(b"...", key="customer-3").result()

One event loop runs in one background thread for each client; every call hands its work to that loop and waits. What is
read crosses the threads a block at a time, not an event at a time. A client may be used by many threads; a writer
too, and each thread's events stay in the order it wrote them; a reader by one thread at a time.

Ctrl-C during a call cancels the call in the loop and raises KeyboardInterrupt, and nothing that was read is lost.
"""

import asyncio
import concurrent.futures
import io
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import uvloop

from millrace.client.admin.bookmarks import Bookmarks as AsyncBookmarks
from millrace.client.admin.bookmarks import Cursors as AsyncCursors
from millrace.client.admin.bookmarks import SavedCut
from millrace.client.admin.segments import ReadResult, SegmentInfo
from millrace.client.admin.segments import Segments as AsyncSegments
from millrace.client.admin.streams import Border, Epoch, StreamConfig, StreamInfo
from millrace.client.read.cut_resolution import Distance
from millrace.client.read.reader import Reader as AsyncReader
from millrace.client.read.reader import ReaderOptions
from millrace.client.read.splits import SegmentRange
from millrace.client.transport.fork_guard import ForkGuard
from millrace.client.write.segment_writer import Stored
from millrace.client.write.writer import Writer as AsyncWriter
from millrace.client.write.writer import WriterOptions
from millrace.client.write.writer_info import WriterInfo
from millrace.wire.checksum import Buffer
from millrace.wire.limits import MIB

from .blocks import Event, Position, Timestamps
from .byte_stream import ByteReader as AsyncByteReader
from .byte_stream import ByteWriter as AsyncByteWriter
from .client import Client as AsyncClient
from .client import ClientStatistics
from .client import connect as connect_async
from .cuts import HEAD, TAIL, Cut, StreamCut
from .errors import ClientClosedError, InvalidArgumentError
from .options import ClientOptions

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

STOP_TIMEOUT_S: Final = 10.0


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._guard = ForkGuard()
        self._loop = uvloop.new_event_loop()
        # A daemon: a program that forgets to close its client still ends.
        self._thread = threading.Thread(target=self._run, name="millrace", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result; an interrupt of the wait cancels it."""
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start a coroutine in the loop."""
        try:
            self._guard.check()
            if not self._thread.is_alive():
                raise ClientClosedError("the client was closed")
            if threading.current_thread() is self._thread:
                raise RuntimeError("a blocking client cannot be used inside its own event loop")
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def post(self, function: Callable[[], object]) -> None:
        """Run a function in the loop, soon."""
        self._guard.check()
        if not self._thread.is_alive():
            raise ClientClosedError("the client was closed")
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """End the loop and its thread; in a forked child there is no such thread."""
        if self._guard.forked or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


def _iterate(loop: _LoopThread, iterator: AsyncIterator[T]) -> Iterator[T]:
    """Yield what an asynchronous iterator yields; leaving early ends it."""

    async def step() -> T:
        return await anext(iterator)

    async def close() -> None:
        if hasattr(iterator, "aclose"):
            await iterator.aclose()

    try:
        while True:
            try:
                item = loop.call(step())
            except StopAsyncIteration:
                return
            yield item
    finally:
        loop.call(close())


class Segments:
    """The segments of a server: see `millrace.client.admin.segments.Segments`."""

    def __init__(self, loop: _LoopThread, segments: AsyncSegments) -> None:
        self._loop = loop
        self._segments = segments

    def create(self, name: str) -> SegmentInfo:
        """Create a segment."""
        return self._loop.call(self._segments.create(name))

    def append(self, name: str, data: Buffer, *, expected_offset: int | None = None) -> int:
        """Append bytes and return the offset of the first; they are durable on return."""
        return self._loop.call(self._segments.append(name, data, expected_offset=expected_offset))

    def append_nowait(self, name: str, data: Buffer) -> "concurrent.futures.Future[int]":
        """Append bytes; the future holds their offset. Appends of one thread are sent in the order of the calls."""
        return self._loop.start(self._segments.append(name, data))

    def read(self, name: str, offset: int, *, max_bytes: int = 65536, wait_s: float = 0.0) -> ReadResult:
        """Read up to `max_bytes` from `offset`; fewer may come."""
        return self._loop.call(self._segments.read(name, offset, max_bytes=max_bytes, wait_s=wait_s))

    def tail(self, name: str, offset: int | None = None) -> Iterator[ReadResult]:
        """Yield bytes from `offset` on (None: the tail) as they become durable."""
        return _iterate(self._loop, self._segments.tail(name, offset))

    def info(self, name: str) -> SegmentInfo:
        """Return what a segment is now."""
        return self._loop.call(self._segments.info(name))

    def seal(self, name: str) -> SegmentInfo:
        """Let a segment take no more appends, for ever."""
        return self._loop.call(self._segments.seal(name))

    def truncate(self, name: str, offset: int) -> SegmentInfo:
        """Drop everything before `offset`."""
        return self._loop.call(self._segments.truncate(name, offset))

    def delete(self, name: str) -> bool:
        """Delete a segment; False if there was none."""
        return self._loop.call(self._segments.delete(name))

    def merge(self, target: str, *, source: str) -> SegmentInfo:
        """Move all bytes of the sealed segment `source` to the end of `target`; return the target."""
        return self._loop.call(self._segments.merge(target, source=source))

    def list(self, prefix: str = "") -> Iterator[SegmentInfo]:
        """Yield the segments whose names start with `prefix`."""
        return _iterate(self._loop, self._segments.list(prefix))

    def get_attribute(self, name: str, key: str) -> bytes | None:
        """Return the value of an attribute, None if it is absent."""
        return self._loop.call(self._segments.get_attribute(name, key))

    def set_attribute(self, name: str, key: str, *, expected: bytes | None, value: bytes | None) -> None:
        """Set an attribute if it has the expected value; None is absent."""
        self._loop.call(self._segments.set_attribute(name, key, expected=expected, value=value))


class Writer:
    """Writes events to one stream: see `millrace.client.write.writer.Writer`. Enter it with `with`."""

    def __init__(self, loop: _LoopThread, make: Callable[[], AsyncWriter]) -> None:
        self._loop = loop
        self._make = make
        self._writer: AsyncWriter | None = None

    def __enter__(self) -> Self:
        """Open the writer."""

        async def enter() -> AsyncWriter:
            return await self._make().__aenter__()

        self._writer = self._loop.call(enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close."""
        self._loop.call(self._open.__aexit__(kind, error, trace))

    def write(
        self, value: bytes, *, key: str | None = None, timestamp_us: int | None = None
    ) -> "concurrent.futures.Future[Stored]":
        """Take one event; the future is done when it is durable. Waits only while the writer's buffer is full.

        Each call crosses the threads, which costs tens of microseconds: `write_many` is for many events.
        """

        async def write() -> Stored:
            return await (await self._open.send(value, key=key, timestamp_us=timestamp_us))

        return self._loop.start(write())

    def write_many(
        self,
        values: Sequence[bytes],
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        timestamps_us: Timestamps = None,
    ) -> "concurrent.futures.Future[Stored]":
        """Take many events as one atomic block (one per segment with `keys`); waits while the buffer is full.

        Raises like `millrace.client.write.writer.Writer.write_many`, here and now.
        """
        result: concurrent.futures.Future[Stored] = concurrent.futures.Future()

        async def write() -> None:
            await self._open.drain()
            stored = self._open.write_many(values, key=key, keys=keys, timestamps_us=timestamps_us)
            stored.add_done_callback(lambda done: _copy_outcome(done, result))

        self._loop.call(write())
        return result

    def flush(self) -> None:
        """Wait until everything written is durable; raise why events were lost."""
        self._loop.call(self._open.flush())

    def close(self) -> None:
        """Flush and close."""
        self._loop.call(self._open.close())

    @property
    def last_event_numbers(self) -> dict[int, int]:
        """The number of the last durable event of this writer in each segment."""
        return self._open.last_event_numbers

    @property
    def pending_bytes(self) -> int:
        """What was written and is not yet durable, with what its objects cost."""
        return self._open.pending_bytes

    @property
    def known(self) -> bool:
        """Whether the server had seen the writer id before, and knows what it stored."""
        return self._open.known

    @property
    def _open(self) -> AsyncWriter:
        if self._writer is None:
            raise ClientClosedError("the writer is not open; use `with`")
        return self._writer


class Reader:
    """Reads one stream: see `millrace.client.read.reader.Reader`. An iterator of events."""

    def __init__(self, loop: _LoopThread, reader: AsyncReader) -> None:
        self._loop = loop
        self._reader = reader
        # The block in hand, and how much of it was given away.
        self._events: list[Event] = []
        self._given = 0

    def __iter__(self) -> Self:
        """Iterate over the events."""
        return self

    def __next__(self) -> Event:
        """Return the next event, waiting for it."""
        if self._given == len(self._events):
            self._events = self._loop.call(self._reader.next_events())
            self._given = 0
            if not self._events:
                raise StopIteration
        event = self._events[self._given]
        self._given += 1
        return event

    def arrow_batches(self) -> "Iterator[pa.RecordBatch]":
        """Yield the events as record batches; not after events were taken one by one from a block that has more."""
        if self._given < len(self._events):
            raise RuntimeError("events of the block in hand are left: take them first")
        return _iterate(self._loop, self._reader.arrow_batches())

    def position(self) -> StreamCut:
        """Return the cut behind everything that was handed out."""
        cut = self._reader.position()
        if self._given == len(self._events):
            return cut
        left = self._events[self._given]
        return StreamCut.of(cut.stream, {**cut.places, left.segment_id: (left.offset, left.event_index)})


class Bookmarks:
    """The bookmarks of a stream: see `millrace.client.admin.bookmarks`."""

    def __init__(self, loop: _LoopThread, bookmarks: AsyncBookmarks) -> None:
        self._loop = loop
        self._bookmarks = bookmarks

    def save(self, name: str, cut: Cut = TAIL) -> StreamCut:
        """Keep a cut under a name; return it, resolved."""
        return self._loop.call(self._bookmarks.save(name, cut))

    def list(self) -> "list[SavedCut]":
        """Return all of them."""
        return self._loop.call(self._bookmarks.list())

    def get(self, name: str) -> StreamCut | None:
        """Return the cut of that name, None if there is none."""
        return self._loop.call(self._bookmarks.get(name))

    def forget(self, name: str) -> bool:
        """Forget the one of that name; False if there is none."""
        return self._loop.call(self._bookmarks.forget(name))


class Cursors:
    """The cursors of a stream: see `millrace.client.admin.bookmarks`."""

    def __init__(self, loop: _LoopThread, cursors: AsyncCursors) -> None:
        self._loop = loop
        self._cursors = cursors

    def set(self, name: str, cut: Cut = HEAD) -> StreamCut:
        """Say how far a consumer has come; return the cut, resolved."""
        return self._loop.call(self._cursors.set(name, cut))

    def list(self) -> "list[SavedCut]":
        """Return all of them."""
        return self._loop.call(self._cursors.list())

    def get(self, name: str) -> StreamCut | None:
        """Return the cut of that name, None if there is none."""
        return self._loop.call(self._cursors.get(name))

    def forget(self, name: str) -> bool:
        """Forget the one of that name; False if there is none."""
        return self._loop.call(self._cursors.forget(name))


class ByteWriter(io.RawIOBase):
    """A file that grows at its end, for ever and durably: see `millrace.client.byte_stream`."""

    def __init__(self, loop: _LoopThread, writer: AsyncByteWriter) -> None:
        self._loop = loop
        self._writer = writer
        # Closing a file of `io` flushes it once more.
        self._ended = False
        loop.call(writer.__aenter__())

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any, /) -> int:
        """Take all bytes; waits only while much is on its way."""
        return self._loop.call(self._writer.write(bytes(data)))

    def flush(self) -> None:
        """Wait until everything that was written is durable."""
        if not self._ended:
            self._loop.call(self._writer.flush())

    def tell(self) -> int:
        """Return the offset of the next byte to be written."""
        return self._writer.tell()

    def drop_before(self, offset: int) -> None:
        """Drop all bytes below an offset; `truncate` of a file would cut the other end."""
        self._loop.call(self._writer.truncate(offset))

    def seal(self) -> None:
        """Flush, let the stream take no more bytes, for ever, and close."""
        self._loop.call(self._writer.seal())
        self._ended = True
        super().close()

    def close(self) -> None:
        """Flush and close."""
        if not self._ended:
            self._ended = True
            try:
                self._loop.call(self._writer.close())
            finally:
                super().close()


class ByteReader(io.RawIOBase):
    """A file to read a byte stream: see `millrace.client.byte_stream`. `io.BufferedReader` takes it, too."""

    def __init__(self, loop: _LoopThread, reader: AsyncByteReader) -> None:
        self._loop = loop
        self._reader = reader
        loop.call(reader.__aenter__())

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes, at most `size`; None or below 0: all up to the tail, with `follow` up to the end."""
        return self._loop.call(self._reader.read(-1 if size is None else size))

    def readall(self) -> bytes:
        """Return all up to the tail, with `follow` up to the end."""
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, as far as one read goes; 0 at the tail, with `follow` at the end."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to an offset; see `io.IOBase.seek`."""
        return self._loop.call(self._reader.seek(offset, whence))

    def tell(self) -> int:
        """Return the offset of the next byte to be read."""
        return self._reader.tell()


class Client:
    """A client of one server for threads. Made by `connect`; a context manager."""

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        self._loop = _LoopThread()

        async def open_client() -> AsyncClient:
            return await make()

        try:
            self._client = self._loop.call(open_client())
        except BaseException:
            self._loop.stop()
            raise
        self.segments = Segments(self._loop, self._client.segments)

    def __enter__(self) -> Self:
        """Return the client, which is connected."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; what waits fails with `ClientClosedError`."""
        try:
            self._loop.call(self._client.close())
        except ClientClosedError:
            return  # closed before
        self._loop.stop()

    def ping(self) -> float:
        """Return the seconds of a round trip to the server."""
        return self._loop.call(self._client.ping())

    def statistics(self) -> ClientStatistics:
        """Return what the connections have done and what waits in them."""
        return self._client.statistics()

    def create_stream(self, name: str, configuration: StreamConfig | None = None) -> bool:
        """Create a stream; False if there was one of that name."""
        return self._loop.call(self._client.create_stream(name, configuration))

    def stream_info(self, name: str) -> StreamInfo:
        """Return what a stream is now."""
        return self._loop.call(self._client.stream_info(name))

    def list_streams(self, prefix: str = "", *, tag: str = "") -> Iterator[str]:
        """Yield the names of the streams that start with `prefix` and have the tag, if one is given."""
        return _iterate(self._loop, self._client.list_streams(prefix, tag=tag))

    def update_stream(self, name: str, configuration: StreamConfig) -> StreamInfo:
        """Give a stream another configuration."""
        return self._loop.call(self._client.update_stream(name, configuration))

    def scale_stream(self, name: str, *, seal: Iterable[int], ranges: Iterable[tuple[Border, Border]]) -> StreamInfo:
        """Replace segments of a stream by new ones that cover the same keys, in one step."""
        return self._loop.call(self._client.scale_stream(name, seal=seal, ranges=ranges))

    def stream_history(self, name: str) -> list[Epoch]:
        """Return the epochs of a stream, the first one first."""
        return self._loop.call(self._client.stream_history(name))

    def explain_stream(self, name: str) -> dict[str, Any]:
        """Return what the policies of a stream see, decided last and wait for."""
        return self._loop.call(self._client.explain_stream(name))

    def bookmarks(self, stream: str) -> "Bookmarks":
        """Return the bookmarks of a stream."""
        return Bookmarks(self._loop, self._client.bookmarks(stream))

    def cursors(self, stream: str) -> "Cursors":
        """Return the cursors of a stream."""
        return Cursors(self._loop, self._client.cursors(stream))

    def seal_stream(self, name: str) -> StreamInfo:
        """Let a stream take no more events, for ever."""
        return self._loop.call(self._client.seal_stream(name))

    def delete_stream(self, name: str) -> bool:
        """Delete a sealed stream; False if there is none."""
        return self._loop.call(self._client.delete_stream(name))

    def truncate_stream(self, name: str, cut: Cut) -> StreamInfo:
        """Drop the events in front of a cut."""
        return self._loop.call(self._client.truncate_stream(name, cut))

    def stream_cut(
        self,
        name: str,
        *,
        at_time: int | datetime | None = None,
        after_events: int | None = None,
        after_bytes: int | None = None,
        start: Cut = HEAD,
    ) -> StreamCut:
        """Return the tail as it is now, the cut at a time, or one so many events, or bytes or fewer, behind `start`."""
        if sum(each is not None for each in (at_time, after_events, after_bytes)) > 1:
            raise InvalidArgumentError("a cut is at a time, or behind so many events, or behind so many bytes")

        async def ask() -> StreamCut:
            request = self._client.stream_cut(name, at_time=at_time)
            if after_events is not None:
                return await request.after_events(after_events, start=start)
            if after_bytes is not None:
                return await request.after_bytes(after_bytes, start=start)
            return await request

        return self._loop.call(ask())

    def stream_head(self, name: str) -> StreamCut:
        """Return the cut in front of everything that is left."""
        return self._loop.call(self._client.stream_cut(name).head())

    def distance(self, start: Cut, end: Cut, *, stream: str | None = None) -> Distance:
        """Return the bytes and events between two cuts of one stream."""
        return self._loop.call(self._client.distance(start, end, stream=stream))

    def fetch_event(self, position: Position) -> Event:
        """Return the event at a position."""
        return self._loop.call(self._client.fetch_event(position))

    def byte_writer(
        self, stream: str, *, writer_id: str | None = None, start_over_if_expired: bool = False
    ) -> "ByteWriter":
        """Return a file to write bytes at the end of a stream of one segment."""
        writer = self._client.byte_writer(stream, writer_id=writer_id, start_over_if_expired=start_over_if_expired)
        return ByteWriter(self._loop, writer)

    def byte_reader(self, stream: str, *, offset: int = 0, follow: bool = False) -> "ByteReader":
        """Return a file to read the bytes of a stream of one segment."""
        return ByteReader(self._loop, self._client.byte_reader(stream, offset=offset, follow=follow))

    def writer(
        self,
        stream: str,
        *,
        writer_id: str | None = None,
        start_over_if_expired: bool = False,
        options: WriterOptions | None = None,
    ) -> Writer:
        """Return a writer of a stream, to be entered with `with`."""
        return Writer(
            self._loop,
            lambda: self._client.writer(
                stream, writer_id=writer_id, start_over_if_expired=start_over_if_expired, options=options
            ),
        )

    def writer_info(self, stream: str, writer_id: str) -> WriterInfo | None:
        """Return what the server knows of a writer and of its events in a stream, None if it was never opened."""
        return self._loop.call(self._client.writer_info(stream, writer_id))

    def writer_state(self, stream: str, writer_id: str) -> dict[int, int] | None:
        """Return the last event number that a writer stored in each segment, None if it was never opened."""
        return self._loop.call(self._client.writer_state(stream, writer_id))

    @contextmanager
    def reader(
        self, stream: str, *, start: Cut = HEAD, end: Cut | None = None, options: ReaderOptions | None = None
    ) -> Iterator[Reader]:
        """Return a reader of the events from `start` to `end`, to be entered with `with`."""
        opening = self._client.reader(stream, start=start, end=end, options=options)
        reader = self._loop.call(opening.__aenter__())
        try:
            yield Reader(self._loop, reader)
        finally:
            self._loop.call(opening.__aexit__(None, None, None))

    def plan_ranges(
        self, stream: str, *, start: Cut = HEAD, end: Cut = TAIL, max_bytes: int = 64 * MIB
    ) -> list[SegmentRange]:
        """Return ranges that hold exactly the events between two cuts, to be read in parallel."""
        return self._loop.call(self._client.plan_ranges(stream, start=start, end=end, max_bytes=max_bytes))

    def read_range(self, part: SegmentRange) -> "Iterator[pa.RecordBatch]":
        """Yield the events of a range as record batches."""
        return _iterate(self._loop, self._client.read_range(part))


def connect(
    address: str,
    *,
    token: str | None = None,
    tls: bool | ssl.SSLContext | None = None,
    options: ClientOptions | None = None,
) -> Client:
    """Connect to the server at `host:port` and return a client, to be used with `with`.

    Raises:
        ServerUnreachableError: nothing answers there.
        AuthenticationError: the token is refused.
    """
    return Client(lambda: connect_async(address, token=token, tls=tls, options=options))


def _copy_outcome(source: "asyncio.Future[Stored]", target: "concurrent.futures.Future[Stored]") -> None:
    if source.cancelled():
        target.cancel()
    elif (error := source.exception()) is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())
