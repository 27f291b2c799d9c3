"""One connection: a `wire.client_session.ClientSession` with a socket, a clock, and futures for requests.

There is no task per request. A request is a future, an append and a subscription are objects with callbacks: each is
passed to the session with its frame, and returned with the answer.
"""

import asyncio
import logging
import math
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from millrace.client.errors import (
    ClientClosedError,
    ConnectionLostError,
    ServerUnreachableError,
    error_of_reply,
)
from millrace.client.options import ClientOptions
from millrace.client.waiting import Waits
from millrace.model.address import Address
from millrace.model.checksum import Buffer
from millrace.model.errors import EventTooLargeError, InvalidArgumentError, MillraceError, RequestError
from millrace.wire import messages as m
from millrace.wire.append_run import Sequences
from millrace.wire.client_session import AppendAcks, ClientEvent, ClientSession, Piece, PieceFrame
from millrace.wire.errors import CodecError, ForeignProtocolError, WireError

from .answers import FutureAppend, FutureReply, SentAppend, Subscriber
from .turn_writer import TurnWriter

logger = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=m.Message)

_HINT: Final = "is this the data port of a Millrace server, and is `tls` as it expects it?"
"""Hint for a connection that was accepted by something other than a compatible server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatistics:
    """Statistics of a connection."""

    sent_bytes: int
    received_bytes: int
    appends_in_flight: int
    in_flight_bytes: int
    requests_waiting: int
    subscriptions: int
    throttles: int
    throttle_reason: str


class Connection(asyncio.BufferedProtocol):
    """One open connection. Made by `open_connection`; belongs to one event loop."""

    def __init__(self, options: ClientOptions, address: Address, session_id: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._options = options
        self.address = address
        self._session_id = session_id
        self._session = ClientSession(
            now_s=self._loop.time(),
            handshake_timeout_s=options.connect_timeout_s,
            keepalive_s=options.keepalive_s,
            in_flight_bytes_max=options.in_flight_bytes_max,
        )
        self._transport: asyncio.Transport | None = None
        self._lost: MillraceError | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._writer = TurnWriter(self._session)
        self._timer: asyncio.TimerHandle | None = None
        self._received_bytes = 0
        self._throttles = 0
        self._throttle_reason = ""
        # The answer to a PING that was sent when the server throttled, which it reads when it has space again.
        self._room_told: asyncio.Future[Any] | None = None
        self.on_lost: Callable[[MillraceError], None] | None = None
        # Records throttling; set once the connection is in use.
        self.waits: Waits | None = None

    # --- life ---

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._lost is None and self._transport is not None

    @property
    def received_bytes(self) -> int:
        """Bytes received so far."""
        return self._received_bytes

    @property
    def awaits_answer(self) -> bool:
        """True while an acknowledgement, a reply, or the data of a subscription is outstanding."""
        session = self._session
        return bool(len(session.appends) or session.requests.count or session.requests.lasting_count)

    def ping(self) -> None:
        """Send a PING; nothing waits for its answer."""
        if self.is_open:
            self.send_request(m.Ping()).add_done_callback(_retrieve)

    def statistics(self) -> ConnectionStatistics:
        """Return the statistics of the connection."""
        session = self._session
        return ConnectionStatistics(
            sent_bytes=self._writer.sent_bytes,
            received_bytes=self._received_bytes,
            appends_in_flight=len(session.appends),
            in_flight_bytes=session.appends.size_bytes,
            requests_waiting=session.requests.count,
            subscriptions=session.requests.lasting_count,
            throttles=self._throttles,
            throttle_reason=self._throttle_reason,
        )

    async def handshake(self) -> None:
        """Negotiate version and limits; called once, before anything else."""
        reply = FutureReply(self._loop.create_future())
        options = self._options
        self._session.greet(session_id=self._session_id, client=options.client_name, token=options.token, subject=reply)
        self._writer.send()
        await reply.future
        self._arm_timer()

    async def close(self) -> None:
        """Close the connection; pending calls fail with `ClientClosedError`. Cancelling loses nothing."""
        self._end(ClientClosedError("the client was closed"), abort=False)
        await asyncio.shield(self._closed)

    def abort(self, reason: str) -> None:
        """Drop the connection at once; pending calls fail with `ConnectionLostError`."""
        self._end(ConnectionLostError(reason), abort=True)

    # --- requests ---

    def send_request(self, message: m.Message) -> "asyncio.Future[Any]":
        """Send a request now; the future holds its reply. Cancelling the future only forgets the reply.

        Raises:
            InvalidArgumentError: a value cannot be sent; nothing was sent.
            MillraceError: the connection is not open.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self._send(message, FutureReply(future))
        return future

    def send_unanswered(self, message: m.BeginTransaction | m.AddParts) -> None:
        """Send a request that gets no reply, at the end of this turn of the loop. Raises like `send_request`."""
        if self._lost is not None:
            raise self._lost.with_traceback(None)  # or each raise would add to it
        try:
            self._session.send_unanswered(message)
        except CodecError as error:
            raise InvalidArgumentError(f"{error.field or error.structure}: {error.reason}") from None
        self._writer.send_with_next()

    async def request(self, message: m.Request[Reply]) -> Reply:
        """Send a request and return its reply. Cancelling forgets the reply."""
        return cast("Reply", await self._answer(message, message.reply))

    async def read(self, message: m.Read) -> Piece:
        """Read; see `Read`. Cancelling forgets the reply."""
        return cast("Piece", await self._answer(message, Piece))

    def _send(self, message: m.Message, subject: FutureReply | Subscriber) -> int:
        """Send a message whose answer goes to `subject`; return its request id. Raises like `send_request`."""
        if self._lost is not None:
            raise self._lost.with_traceback(None)  # or each raise would add to it
        try:
            request_id = self._session.request(message, subject)
        except CodecError as error:
            # The caller's own mistake, in the client's words.
            raise InvalidArgumentError(f"{error.field or error.structure}: {error.reason}") from None
        self._writer.send()
        return request_id

    async def _answer(self, message: m.Message, kind: type) -> object:
        """Send a request and return its reply, which must be of that kind."""
        answer: object = await self.send_request(message)
        if not isinstance(answer, kind):
            reason = f"{type(message).__name__} was answered by {type(answer).__name__}"
            self.abort(reason)
            raise ConnectionLostError(reason)
        return answer

    # --- appends ---

    def has_room(self, size: int) -> bool:
        """Whether an append of `size` bytes may be sent now. One larger than the whole limit is sent alone."""
        return not self._room_waiters and self._session.appends.has_room(size)

    @property
    def append_size_max(self) -> int:
        """The largest payload of one append that the server accepts."""
        return self._session.appends.payload_size_max

    def room_waiter(self) -> "asyncio.Future[None]":
        """Return a future that is done when there may be space; waiters are served in order."""
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
        append: SentAppend,
        payload: Buffer,
        *,
        segment_id: int,
        event_count: int = 1,
        writer_number: int = 0,
        writer_epoch: int = 0,
        event_number: int = 0,
        expected_offset: int = -1,
        sequences: Sequences | None = None,
    ) -> None:
        """Send one append now. The caller has checked `has_room`.

        Args:
            append: called with the outcome.
            payload: a buffer of single bytes; not copied, so it must not change any more.

        Raises:
            EventTooLargeError: above the limit of the server; nothing was sent.
            MillraceError: the connection is not open; nothing was sent.
        """
        if self._lost is not None:
            raise self._lost.with_traceback(None)  # or each raise would add to it
        size_max = self._session.appends.payload_size_max
        if not 0 < len(payload) <= size_max:
            raise EventTooLargeError(f"an append holds 1 to {size_max} bytes, not {len(payload)}")
        self._session.append(
            payload,
            append,
            segment_id=segment_id,
            event_count=event_count,
            writer_number=writer_number,
            writer_epoch=writer_epoch,
            event_number=event_number,
            expected_offset=expected_offset,
            sequences=sequences,
        )
        self._writer.send()

    def append(self, payload: Buffer, *, segment_id: int, expected_offset: int = -1) -> "asyncio.Future[int]":
        """Send one append without a writer now; the future holds its offset.

        Cancelling the future only forgets the outcome. If the connection is lost first, the future fails with
        `OutcomeUnknownError`.
        """
        future: asyncio.Future[int] = self._loop.create_future()
        self.send_append(FutureAppend(future), payload, segment_id=segment_id, expected_offset=expected_offset)
        return future

    # --- subscriptions ---

    def subscribe(
        self, subscriber: Subscriber, *, segment_id: int, offset: int, credit_bytes: int, event_index: int = 0
    ) -> int:
        """Subscribe `subscriber` to pushed data; return the id of the subscription.

        Args:
            event_index: of the first requested event, in the block at `offset`.

        Raises:
            InvalidArgumentError: the offset is invalid.
            MillraceError: the connection is not open.
        """
        return self._send(m.Subscribe(segment_id, offset, credit_bytes, event_index), subscriber)

    def grant(self, subscription: int, credit_bytes: int) -> None:
        """Grant the server credit to push more bytes; does nothing if the subscription has ended."""
        self._session.grant(subscription, credit_bytes)
        self._writer.send()

    def unsubscribe(self, subscription: int) -> None:
        """End a subscription; its subscriber is not called any more."""
        self._session.unsubscribe(subscription)
        self._writer.send()

    def end_subscription(self, subscription: int) -> None:
        """Forget a subscription that the server has ended, at the end of its segment."""
        self._session.requests.end(subscription)

    # --- receiving ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; called by the event loop."""
        self._transport = self._writer.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Lend memory to the socket; called by the event loop."""
        return self._session.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes; called by the event loop."""
        self._received_bytes += nbytes
        session = self._session
        session.received(nbytes, self._loop.time())
        try:
            while self._lost is None and (event := session.next_event()) is not None:
                self._handle(event)
        except WireError as error:
            logger.warning("protocol broken by server address=%s error=%s", self.address, error)
            self.abort(_broken_text(error))
        if session.outbox_bytes:
            self._writer.send()

    def _handle(self, event: ClientEvent) -> None:
        if isinstance(event, AppendAcks):
            for append, offset in event.appends:
                append.acked(offset)
            self._wake_waiters()
        elif isinstance(event, PieceFrame):
            if event.subject is not None:
                event.subject.received(event.piece)
        elif isinstance(event.message, m.ErrorReply):
            self._refused(event.request_id, event.subject, event.message)
        elif isinstance(event.message, m.Throttle):
            self._throttled(event.message)
        elif event.subject is not None:
            event.subject.received(event.message)

    def _throttled(self, message: m.Throttle) -> None:
        """Record that the server does not read until it has space again."""
        self._throttles += 1
        self._throttle_reason = message.reason
        if self.waits is not None:
            self.waits.throttled(self, message.reason)
            if self._room_told is None:
                self._room_told = self.send_request(m.Ping())
                self._room_told.add_done_callback(self._room_found)

    def _room_found(self, told: "asyncio.Future[Any]") -> None:
        self._room_told = None
        if not told.cancelled():
            told.exception()  # retrieved: the loss of the connection was reported to all others
        if self.waits is not None:
            self.waits.end(self)

    def _refused(
        self, request_id: int, subject: SentAppend | Subscriber | FutureReply | None, reply: m.ErrorReply
    ) -> None:
        error = error_of_reply(reply)
        if subject is not None:
            subject.failed(error)
            self._wake_waiters()
        elif request_id == 0:
            logger.warning("connection refused by server address=%s error=%s", self.address, error)
            lost = ConnectionLostError(f"the server ended the connection: {error}")
            lost.__cause__ = error
            self._end(lost, abort=True)
        # Other subjects were cancelled or unsubscribed while the answer was in flight.

    def _wake_waiters(self) -> None:
        waiters = self._room_waiters
        if not waiters:
            return
        # Woken waiters check again, one after another, and queue again if there still is no space.
        self._room_waiters = deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- time and ends ---

    def _arm_timer(self) -> None:
        delay_s = self._session.next_deadline_s() - self._loop.time()
        if self._lost is None and delay_s != math.inf:
            self._timer = self._loop.call_later(max(0.0, delay_s), self._deadline)

    def _deadline(self) -> None:
        """Send a PING after a silence; close the connection after a second one."""
        self._session.on_deadline(self._loop.time())
        if self._session.is_closed:
            self.abort(f"{self.address} was silent for {2 * self._options.keepalive_s:g} s")
            return
        self._writer.send()
        self._arm_timer()

    def eof_received(self) -> bool:
        """Close when the server does; called by the event loop."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all that waits; called by the event loop."""
        reason = f"the connection to {self.address} was lost"
        self._end(ConnectionLostError(f"{reason}: {exc}" if exc else reason), abort=True)
        if not self._closed.done():
            self._closed.set_result(None)

    def _end(self, error: MillraceError, *, abort: bool) -> None:
        """Fail all pending calls and close the transport, once."""
        if self._lost is not None:
            return
        self._writer.close()
        self._lost = error
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is None:
            self._closed.set_result(None)
        elif abort:
            self._transport.abort()
        else:
            self._transport.close()
        # Before all others, so that none of them uses this connection as the open one.
        if self.on_lost is not None:
            self.on_lost(error)
        for subject in self._session.abandon():
            subject.failed(error)
        self._wake_waiters()


async def open_connection(address: Address, options: ClientOptions, session_id: bytes) -> Connection:
    """Connect and shake hands, within `connect_timeout_s`. Cancelling closes the connection.

    Args:
        session_id: 16 random bytes, the same on all connections of a client.

    Raises:
        ServerUnreachableError: no server listens at the address, or it does not answer.
        RequestError: the server rejected the handshake.
    """
    loop = asyncio.get_running_loop()
    tls = options.tls_context()
    connection: Connection | None = None
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(options, address, session_id),
                host=address.host,
                port=address.port,
                ssl=tls,
                server_hostname=address.host if tls else None,
            )
            try:
                await connection.handshake()
            except BaseException:
                # Also if the reply has arrived, and this task was cancelled before its turn.
                connection.abort("the handshake failed")
                raise
    except ConnectionLostError as error:
        raise ServerUnreachableError(str(address), f"{error}; {_HINT}") from error
    except RequestError:  # an answer of the server, which may be a `TimeoutError`
        raise
    except TimeoutError:
        hint = "" if connection is None else f"; {_HINT}"
        raise ServerUnreachableError(str(address), f"no answer within {options.connect_timeout_s:g} s{hint}") from None
    except ssl.SSLCertVerificationError as error:
        raise ServerUnreachableError(str(address), f"its certificate is not trusted: {error.verify_message}") from error
    except OSError as error:
        # A peer that hangs up within the handshake of TLS leaves an error without a text.
        reason = str(error) or "the connection was closed"
        is_tls = isinstance(error, ssl.SSLError) or (tls is not None and not str(error))
        raise ServerUnreachableError(str(address), f"{reason}; does it speak TLS?" if is_tls else reason) from error
    assert connection is not None, "a timeout swallows nothing"
    return connection


def _retrieve(answer: "asyncio.Future[Any]") -> None:
    if not answer.cancelled():
        answer.exception()  # that the connection was lost is reported to all others


def _broken_text(error: WireError) -> str:
    """Describe a protocol violation of the server."""
    if isinstance(error, ForeignProtocolError):
        return f"it speaks {error.protocol}, not Millrace's protocol"
    return f"the server broke the protocol: {error}"
