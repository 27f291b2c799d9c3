"""One connection: requests and their answers, appends and their acks, subscriptions and their data.

There is no task per request. A request is a future under its request id, an append an object that is told its fate,
a subscription an object that is given data; `buffer_updated` looks each up and goes on.

What is sent in one turn of the loop leaves in two system calls at most: the first frame at once, so that a lonely
request does not wait, and the others together at the start of the next turn. Large payloads are never joined.

A DATA frame that is larger than the buffer is received straight into the array that its reader will hold. The array
is allocated once the frame's header has arrived; its size is bounded by the frame size that was agreed.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from millrace.client.errors import (
    ClientClosedError,
    ConnectionLostError,
    OutcomeUnknownError,
    ServerUnreachableError,
    error_of_reply,
)
from millrace.client.options import Address, ClientOptions
from millrace.model.errors import ErrorFacts, EventTooLargeError, InvalidArgumentError, MillraceError, RequestError
from millrace.wire import messages as m
from millrace.wire.checksum import Buffer, crc32c
from millrace.wire.errors import ChecksumError, CodecError, ProtocolError, WireError
from millrace.wire.framing import decode, encode, encode_append_header, verify
from millrace.wire.limits import (
    APPEND_HEADER_SIZE_BYTES,
    FRAME_HEADER_SIZE_BYTES,
    FRAME_SIZE_BYTES_MAX,
    KIB,
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
)
from millrace.wire.receive_buffer import ReceiveBuffer

logger = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=m.Message)

GATHER_SIZE_BYTES_MAX: Final = 256 * KIB
"""Frames gathered in one turn of the loop are sent at once when they reach this size."""
JOIN_SIZE_BYTES_MAX: Final = 32 * KIB
"""Pieces up to this size are joined before they are sent; a copy is cheaper than a system call."""
DIRECT_SIZE_BYTES_MIN: Final = 32 * KIB
"""DATA frames from this size on are received straight into their own array."""

_DATA_PREFIX: Final = struct.Struct("<QQQ")
_DATA_START: Final = FRAME_HEADER_SIZE_BYTES + _DATA_PREFIX.size
_ACK_ENTRY: Final = struct.Struct("<QqII")
assert _ACK_ENTRY.size == m.layout_of(m.AppendAckEntry).sizeof()
_DATA: Final = int(m.Data.type)
_APPEND_ACK: Final = int(m.AppendAck.type)
_ERROR: Final = int(m.ErrorReply.type)
_PING: Final = int(m.Ping.type)
_THROTTLE: Final = int(m.Throttle.type)


class PendingAppend(Protocol):
    """An append on its way. Told its fate exactly once, inside the event loop; neither method may raise."""

    @property
    def size(self) -> int:
        """Bytes of the payload."""

    def acked(self, offset: int | None, *, duplicate: bool) -> None:
        """The append is durable; its first byte is at `offset`, None if it was stored before and its place not kept."""

    def failed(self, error: MillraceError) -> None:
        """The append was refused, or its connection lost."""


class Subscriber(Protocol):
    """Takes the data of a subscription. Called inside the event loop; neither method may raise."""

    def received(self, data: "Chunk") -> None:
        """Bytes of the segment, in order and without a gap."""

    def failed(self, error: MillraceError) -> None:
        """Nothing more comes: the server ended the subscription or the connection was lost."""


class Chunk(NamedTuple):
    """Bytes of a segment as they came.

    Attributes:
        data: read-only where it is large; owned by the receiver.
        length: durable length of the segment when the bytes were sent.
        flags: bits of `DataFlag`.
    """

    offset: int
    data: memoryview
    length: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatistics:
    """What a connection has done and what waits in it."""

    sent_bytes: int
    received_bytes: int
    appends_in_flight: int
    in_flight_bytes: int
    requests_waiting: int
    subscriptions: int
    throttles: int
    throttle_reason: str


class _FutureAppend:
    """A raw append: its fate is the result of a future."""

    __slots__ = ("future", "size")

    def __init__(self, future: "asyncio.Future[int]", size: int) -> None:
        self.future = future
        self.size = size

    def acked(self, offset: int | None, *, duplicate: bool) -> None:
        del duplicate  # appends without a writer are never deduplicated
        if not self.future.done():
            assert offset is not None
            self.future.set_result(offset)

    def failed(self, error: MillraceError) -> None:
        if not self.future.done():
            if not isinstance(error, RequestError):  # lost or closed, rather than answered
                facts = ErrorFacts(message="the connection was lost before the append was acknowledged")
                unknown = OutcomeUnknownError(facts)
                unknown.__cause__ = error
                error = unknown
            self.future.set_exception(error)


class Connection(asyncio.BufferedProtocol):
    """One open connection. Made by `open_connection`; belongs to one event loop."""

    def __init__(self, options: ClientOptions, address: Address) -> None:
        self._loop = asyncio.get_running_loop()
        self._options = options
        self.address = address
        self._transport: asyncio.Transport | None = None
        self._lost: MillraceError | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._request_id = 0
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._appends: dict[int, PendingAppend] = {}
        self._subscribers: dict[int, Subscriber] = {}
        # The bytes of every append in `_appends`, headers included.
        self._in_flight_bytes = 0
        self._appends_in_flight_max = 1
        self._append_size_max = 0
        # Whether the handshake is over.
        self.shaken = False
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        # Buffers of this turn of the loop, behind the first; sent by `_end_turn`.
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        self._gathering = False
        self._frames = ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX)
        # The DATA frame that is being received into its own array: header, array, bytes still missing.
        self._direct_header: bytes = b""
        self._direct: memoryview | None = None
        self._direct_missing = 0
        self._sent_bytes = 0
        self._received_bytes = 0
        self._received_bytes_at_tick = 0
        self._pinged = False
        self._keepalive: asyncio.TimerHandle | None = None
        self._throttles = 0
        self._throttle_reason = ""
        self.on_lost: Callable[[MillraceError], None] | None = None

    # --- life ---

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._lost is None and self._transport is not None

    def statistics(self) -> ConnectionStatistics:
        """Return what the connection has done and what waits in it."""
        return ConnectionStatistics(
            sent_bytes=self._sent_bytes,
            received_bytes=self._received_bytes,
            appends_in_flight=len(self._appends),
            in_flight_bytes=self._in_flight_bytes,
            requests_waiting=len(self._replies),
            subscriptions=len(self._subscribers),
            throttles=self._throttles,
            throttle_reason=self._throttle_reason,
        )

    async def handshake(self) -> m.HelloReply:
        """Agree on version and limits; called once, before anything else."""
        hello = m.Hello(
            version_min=PROTOCOL_VERSION_MIN,
            version_max=PROTOCOL_VERSION_MAX,
            features=0,
            frame_size_max=FRAME_SIZE_BYTES_MAX,
            client=self._options.client_name,
            token=self._options.token,
        )
        reply = await self.request(hello)
        self._appends_in_flight_max = max(1, reply.appends_in_flight_max)
        self._append_size_max = reply.append_size_max
        self.shaken = True
        self._keepalive = self._loop.call_later(self._options.keepalive_s, self._tick)
        return reply

    async def close(self) -> None:
        """Close the connection; what waits fails with `ClientClosedError`. Cancelling loses nothing."""
        self._end(ClientClosedError("the client was closed"), abort=False)
        await asyncio.shield(self._closed)

    def abort(self, reason: str) -> None:
        """Drop the connection at once; what waits fails with `ConnectionLostError`."""
        self._end(ConnectionLostError(reason), abort=True)

    # --- requests ---

    def send_request(self, message: m.Message) -> "asyncio.Future[Any]":
        """Send a request now; the future holds its reply. Cancelling the future only forgets the reply.

        Raises:
            InvalidArgumentError: a value in it is none that can be sent; nothing was.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._lost is not None:
            future.set_exception(self._lost)
            return future
        request_id = self._next_request_id()
        frame = _frame(message, request_id)
        self._replies[request_id] = future
        self._send(frame)
        return future

    async def request(self, message: m.Request[Reply]) -> Reply:
        """Send a request and return its reply. Cancelling forgets the reply."""
        answer = await self.send_request(message)
        if not isinstance(answer, message.reply):
            self.abort(f"{type(message).__name__} was answered by {type(answer).__name__}")
            raise ConnectionLostError(f"{type(message).__name__} was answered by {type(answer).__name__}")
        return cast("Reply", answer)

    async def read(self, message: m.Read) -> Chunk:
        """Read; see `Read`. Cancelling forgets the reply."""
        return cast("Chunk", await self.send_request(message))

    # --- appends ---

    def has_room(self, size: int) -> bool:
        """Whether an append of `size` bytes may be sent now. One larger than the whole bound goes alone."""
        return (
            len(self._appends) < self._appends_in_flight_max
            and (self._in_flight_bytes + size <= self._options.in_flight_bytes_max or not self._appends)
            and not self._room_waiters
        )

    @property
    def append_size_max(self) -> int:
        """The largest payload of one append that the server takes."""
        return self._append_size_max

    def room_waiter(self) -> "asyncio.Future[None]":
        """Return a future that is done when there may be room; waiters are served in the order they came."""
        waiter = self._loop.create_future()
        if self._lost is not None:
            waiter.set_result(None)
        else:
            self._room_waiters.append(waiter)
        return waiter

    async def wait_for_room(self, size: int) -> None:
        """Wait until an append of `size` bytes may be sent. Cancelling is safe."""
        while self._lost is None and not self.has_room(size):
            await self.room_waiter()

    def send_append(
        self,
        append: PendingAppend,
        payload: Buffer,
        *,
        segment_id: int,
        event_count: int = 1,
        writer_number: int = 0,
        writer_epoch: int = 0,
        event_number: int = 0,
        expected_offset: int = -1,
    ) -> None:
        """Send one append now. The caller has asked `has_room`.

        Raises:
            EventTooLargeError: above the limit of the server; nothing was sent.
            MillraceError: the connection is not open; nothing was sent.
        """
        if self._lost is not None:
            raise self._lost
        size = len(payload)
        if not 0 < size <= self._append_size_max:
            raise EventTooLargeError(f"an append holds 1 to {self._append_size_max} bytes, not {size}")
        request_id = self._next_request_id()
        header = encode_append_header(
            request_id=request_id,
            segment_id=segment_id,
            payload=payload,
            event_count=event_count,
            writer_number=writer_number,
            writer_epoch=writer_epoch,
            event_number=event_number,
            expected_offset=expected_offset,
        )
        self._appends[request_id] = append
        self._in_flight_bytes += size + APPEND_HEADER_SIZE_BYTES
        self._send(header, payload)

    def append(self, payload: Buffer, *, segment_id: int, expected_offset: int = -1) -> "asyncio.Future[int]":
        """Send one append without a writer now; the future holds its offset.

        Cancelling the future only forgets the outcome. If the connection is lost first, the future fails with
        `OutcomeUnknownError`.
        """
        future: asyncio.Future[int] = self._loop.create_future()
        append = _FutureAppend(future, len(payload))
        self.send_append(append, payload, segment_id=segment_id, expected_offset=expected_offset)
        return future

    # --- subscriptions ---

    def subscribe(self, subscriber: Subscriber, *, segment_id: int, offset: int, credit_bytes: int) -> int:
        """Ask for data to be pushed to `subscriber`; return the id of the subscription.

        Raises:
            InvalidArgumentError: the offset is none.
            MillraceError: the connection is not open.
        """
        if self._lost is not None:
            raise self._lost
        request_id = self._next_request_id()
        frame = _frame(m.Subscribe(segment_id, offset, credit_bytes), request_id)
        self._subscribers[request_id] = subscriber
        self._send(frame)
        return request_id

    def grant(self, subscription: int, credit_bytes: int) -> None:
        """Let the server push so many bytes more; nothing happens if the subscription has ended."""
        if self._lost is None and subscription in self._subscribers:
            self._send(encode(m.Credit(credit_bytes), request_id=subscription))

    def unsubscribe(self, subscription: int) -> None:
        """End a subscription; its subscriber hears nothing more."""
        if self._subscribers.pop(subscription, None) is not None and self._lost is None:
            self._send(encode(m.Unsubscribe(), request_id=subscription))

    def end_subscription(self, subscription: int) -> None:
        """Forget a subscription which the server has ended, at the end of its segment."""
        self._subscribers.pop(subscription, None)

    # --- sending ---

    def _next_request_id(self) -> int:
        self._request_id += 1
        return self._request_id

    def _send(self, *buffers: Buffer) -> None:
        assert self._transport is not None
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._end_turn)
            self._write(buffers)
            return
        self._gathered += buffers
        self._gathered_bytes += sum(map(len, buffers))
        if self._gathered_bytes >= GATHER_SIZE_BYTES_MAX:
            self._flush()

    def _end_turn(self) -> None:
        self._gathering = False
        self._flush()

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
            if self._lost is None:
                self._write(gathered)

    def _write(self, buffers: "list[Buffer] | tuple[Buffer, ...]") -> None:
        transport = self._transport
        assert transport is not None
        small: list[Buffer] = []
        for buffer in buffers:
            self._sent_bytes += len(buffer)
            if len(buffer) <= JOIN_SIZE_BYTES_MAX:
                small.append(buffer)
                continue
            if small:
                transport.write(b"".join(small))
                small = []
            transport.write(buffer)
        if small:
            transport.write(b"".join(small))

    # --- receiving ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Lend memory to the socket; called by the event loop."""
        del sizehint
        if self._direct is not None:
            return self._direct[len(self._direct) - self._direct_missing :]
        return self._frames.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received; called by the event loop."""
        self._received_bytes += nbytes
        try:
            if self._direct is not None:
                self._direct_missing -= nbytes
                if self._direct_missing == 0:
                    self._end_direct()
                return
            frames = self._frames
            frames.received(nbytes)
            while end := frames.frame_end():
                frame = frames.view(frames.start, end)
                verify(frame)
                self._dispatch(frame)
                if self._lost is not None:
                    return
                frames.consume(end)
            if frames.pending >= _DATA_START:
                self._begin_direct()
        except WireError as error:
            logger.warning("protocol broken by server address=%s error=%s", self.address, error)
            self.abort(f"the server broke the protocol: {error}")

    def _begin_direct(self) -> None:
        """Receive the rest of the first frame into its own array, if it is a large DATA frame."""
        frames = self._frames
        start, end = frames.start, frames.end
        header = bytes(frames.view(start, start + _DATA_START))
        length = int.from_bytes(header[:4], "little")
        if header[8] != _DATA or length < DIRECT_SIZE_BYTES_MIN:
            return
        # Not a bytearray: that would be filled with zeros first, at the price of a second pass over the memory.
        array = np.empty(length - _DATA_START, dtype=np.uint8).data
        arrived = end - start - _DATA_START
        array[:arrived] = frames.view(start + _DATA_START, end)
        frames.consume(end)
        self._direct_header, self._direct, self._direct_missing = header, array, len(array) - arrived

    def _end_direct(self) -> None:
        header, array = self._direct_header, self._direct
        assert array is not None
        self._direct, self._direct_header = None, b""
        expected = int.from_bytes(header[4:8], "little")
        actual = crc32c(array, crc32c(header[8:], int.from_bytes(header[:4], "little")))
        if actual != expected:
            raise ChecksumError(expected=expected, actual=actual)
        self._data(header, array.toreadonly())

    def _dispatch(self, frame: memoryview) -> None:
        kind = frame[8]
        if kind == _APPEND_ACK:
            self._append_ack(frame)
        elif kind == _DATA:
            if len(frame) < _DATA_START:
                raise ProtocolError(f"DATA of {len(frame)} bytes")
            # The buffer is used again: what the reader holds is copied out of it, once.
            self._data(bytes(frame[:_DATA_START]), memoryview(bytes(frame[_DATA_START:])))
        else:
            header, message = decode(frame)
            if kind == _ERROR:
                self._error(header.request_id, cast("m.ErrorReply", message))
            elif kind == _PING:
                # The server learns from the answer's place among our frames what we had sent before we saw an error.
                self._send(encode(m.Pong(), request_id=header.request_id))
            elif kind == _THROTTLE:
                notice = cast("m.Throttle", message)
                self._throttles += 1
                self._throttle_reason = notice.reason
                logger.warning(
                    "throttled by server address=%s reason=%s retry_after_ms=%d",
                    self.address, notice.reason, notice.retry_after_ms,
                )  # fmt: skip
            else:
                future = self._replies.pop(header.request_id, None)
                if future is None:
                    raise ProtocolError(f"{type(message).__name__} answers no request: id {header.request_id}")
                if not future.done():
                    future.set_result(message)

    def _append_ack(self, frame: memoryview) -> None:
        body = frame[FRAME_HEADER_SIZE_BYTES + 4 :]
        count = int.from_bytes(frame[FRAME_HEADER_SIZE_BYTES : FRAME_HEADER_SIZE_BYTES + 4], "little")
        if len(body) != count * _ACK_ENTRY.size:
            raise ProtocolError(f"APPEND_ACK of {count} entries has {len(body)} bytes")
        appends = self._appends
        for first, offset, run, duplicate in _ACK_ENTRY.iter_unpack(body):
            place: int | None = offset if offset >= 0 else None
            for request_id in range(first, first + run):
                append = appends.pop(request_id, None)
                if append is None:
                    raise ProtocolError(f"ack of an append that does not wait: id {request_id}")
                size = append.size
                self._in_flight_bytes -= size + APPEND_HEADER_SIZE_BYTES
                append.acked(place, duplicate=bool(duplicate))
                if place is not None:
                    place += size
        self._wake_waiters()

    def _error(self, request_id: int, reply: m.ErrorReply) -> None:
        error = error_of_reply(reply)
        append = self._appends.pop(request_id, None)
        if append is not None:
            self._in_flight_bytes -= append.size + APPEND_HEADER_SIZE_BYTES
            append.failed(error)
            self._wake_waiters()
        elif (future := self._replies.pop(request_id, None)) is not None:
            if not future.done():
                future.set_exception(error)
        elif (subscriber := self._subscribers.pop(request_id, None)) is not None:
            subscriber.failed(error)
        elif request_id == 0:
            logger.warning("connection refused by server address=%s error=%s", self.address, error)
            self._end(_lost_by(error), abort=True)
        # What else may be named was cancelled or unsubscribed while the answer was on its way.

    def _data(self, header: bytes, payload: memoryview) -> None:
        request_id = int.from_bytes(header[16:24], "little")
        _, offset, length = _DATA_PREFIX.unpack_from(header, FRAME_HEADER_SIZE_BYTES)
        chunk = Chunk(offset, payload, length, header[9])
        subscriber = self._subscribers.get(request_id)
        if subscriber is not None:
            subscriber.received(chunk)
            return
        future = self._replies.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(chunk)

    def _wake_waiters(self) -> None:
        waiters = self._room_waiters
        if not waiters:
            return
        # Woken ones look again, behind one another, and queue again if there still is no room.
        self._room_waiters = deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- ends ---

    def eof_received(self) -> bool:
        """Close when the server does; called by the event loop."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all that waits; called by the event loop."""
        reason = f"the connection to {self.address} was lost"
        self._end(ConnectionLostError(f"{reason}: {error}" if error else reason), abort=True)
        if not self._closed.done():
            self._closed.set_result(None)

    def _end(self, error: MillraceError, *, abort: bool) -> None:
        """Fail all that waits and close the transport, once."""
        if self._lost is not None:
            return
        self._flush()
        self._lost = error
        if self._keepalive is not None:
            self._keepalive.cancel()
        if self._transport is None:
            self._closed.set_result(None)
        elif abort:
            self._transport.abort()
        else:
            self._transport.close()
        # Before all others are told, so that none of them takes this connection for the one that is open.
        if self.on_lost is not None:
            self.on_lost(error)
        appends, self._appends = self._appends, {}
        replies, self._replies = self._replies, {}
        subscribers, self._subscribers = self._subscribers, {}
        self._in_flight_bytes = 0
        for future in replies.values():
            if not future.done():
                future.set_exception(error)
        for append in appends.values():
            append.failed(error)
        for subscriber in subscribers.values():
            subscriber.failed(error)
        self._wake_waiters()

    def _tick(self) -> None:
        """Ask for a sign of life after a silence; give up after a second one."""
        if self._received_bytes != self._received_bytes_at_tick:
            self._pinged = False
        elif self._pinged:
            self.abort(f"{self.address} was silent for {2 * self._options.keepalive_s:g} s")
            return
        else:
            self._pinged = True
            self.send_request(m.Ping()).add_done_callback(_forget)
        self._received_bytes_at_tick = self._received_bytes
        self._keepalive = self._loop.call_later(self._options.keepalive_s, self._tick)


def _forget(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()  # retrieved, so that asyncio does not report it: all others were told


def _lost_by(error: RequestError) -> MillraceError:
    lost = ConnectionLostError(f"the server ended the connection: {error}")
    lost.__cause__ = error
    return lost


def _frame(message: m.Message, request_id: int) -> bytes:
    """Return the frame of a request; what does not fit is the caller's mistake, and said in the client's own words."""
    try:
        return encode(message, request_id=request_id)
    except CodecError as error:
        raise InvalidArgumentError(f"{error.field or error.structure}: {error.reason}") from None


async def open_connection(address: Address, options: ClientOptions) -> Connection:
    """Connect and shake hands, within `connect_timeout_s`. Cancelling closes what was opened.

    Raises:
        ServerUnreachableError: nothing listens there, or it does not answer.
        RequestError: the server refused the handshake.
    """
    loop = asyncio.get_running_loop()
    tls = options.tls_context()
    connection: Connection | None = None
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(options, address),
                host=address.host,
                port=address.port,
                ssl=tls,
                server_hostname=address.host if tls else None,
            )
            await connection.handshake()
    except TimeoutError:
        raise ServerUnreachableError(str(address), f"no answer within {options.connect_timeout_s:g} s") from None
    except (OSError, ConnectionLostError) as error:
        # A peer that hangs up within the handshake of TLS leaves an error without a text.
        reason = str(error) or ("the connection was closed; does it speak TLS?" if tls else type(error).__name__)
        raise ServerUnreachableError(str(address), reason) from error
    finally:
        if connection is not None and not (connection.is_open and connection.shaken):
            connection.abort("the handshake failed")
    return connection
