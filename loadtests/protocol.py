"""A client of one blocking socket that speaks the protocol with nothing in between.

It imports neither asyncio nor locust: under gevent's patched sockets it yields to other users of the process, in a
plain process it blocks. Load tests and benchmarks share it, so that what they measure is the server.
"""

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_bytes
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from millrace.model.checksum import Buffer
from millrace.wire import messages as m
from millrace.wire.client_session import AppendAcks, ClientEvent, ClientSession, PieceFrame, ServerFrame
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import SESSION_ID_SIZE_BYTES

_CLIENT_NAME: Final = "millrace-load"
_IN_FLIGHT_BYTES_MAX: Final = 1 << 62  # a load test bounds appends by their number

Reply = TypeVar("Reply", bound=m.Message)


class ProtocolClient:
    """One connection: a `ClientSession` with a socket. One thread or greenlet may send while another receives.

    What is sent goes with a subject, which comes back in the event that answers it.

    Args:
        address: "HOST:PORT".
        timeout_s: for each wait on the socket; None waits forever. A timeout makes each call poll first, so
            benchmarks take it away after the handshake.
    """

    def __init__(self, address: str, *, timeout_s: float | None = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._session = ClientSession(
            now_s=time.monotonic(),
            handshake_timeout_s=math.inf,
            keepalive_s=math.inf,
            in_flight_bytes_max=_IN_FLIGHT_BYTES_MAX,
        )
        # `receive` answers PINGs, while another may be in the middle of a frame.
        self._sending = threading.Lock()
        self._is_gathering = False
        try:
            self._session.greet(session_id=token_bytes(SESSION_ID_SIZE_BYTES), client=_CLIENT_NAME, token="")
            self._flush()
            self.receive()
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        """Return the connection, which is open already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the socket."""
        self.close()

    def close(self) -> None:
        """Close the socket; greenlets that wait on it fail."""
        self.socket.close()

    @property
    def in_flight_count(self) -> int:
        """Appends without an ack."""
        return len(self._session.appends)

    def send(self, message: m.Message) -> int:
        """Send a request and return its id; the reply is for `receive`."""
        request_id = self._session.request(message)
        self._flush()
        return request_id

    def send_unanswered(self, message: m.BeginTransaction) -> None:
        """Send a request that gets no reply."""
        self._session.send_unanswered(message)
        self._flush()

    def subscribe(self, message: m.Subscribe, subject: Any = None) -> int:
        """Send a SUBSCRIBE and return its id; what is pushed is for `receive`."""
        subscription = self._session.request(message, subject)
        self._flush()
        return subscription

    def grant(self, subscription: int, credit_bytes: int) -> None:
        """Let a subscription, named by its request id, push that much more."""
        self._session.grant(subscription, credit_bytes)
        self._flush()

    def send_append(
        self,
        segment_id: int,
        payload: Buffer,
        subject: Any = None,
        *,
        event_count: int = 1,
        writer_number: int = 0,
        writer_epoch: int = 0,
        event_number: int = 0,
    ) -> None:
        """Send one append; its ack is for `receive`."""
        self._session.append(
            payload,
            subject,
            segment_id=segment_id,
            event_count=event_count,
            writer_number=writer_number,
            writer_epoch=writer_epoch,
            event_number=event_number,
        )
        self._flush()

    def request(self, message: m.Request[Reply]) -> Reply:
        """Send a request and return its reply, while nothing else is under way.

        Raises:
            RefusedError: the reply is an error.
        """
        request_id = self.send(message)
        event = self.receive()
        if not isinstance(event, ServerFrame) or event.request_id != request_id:
            raise UnexpectedFrameError(f"{event} for {type(message).__name__}")
        return cast("Reply", event.message)

    def receive(self) -> ClientEvent:
        """Return the next event. PINGs are answered, THROTTLE notices are left out.

        Raises:
            RefusedError: the event is an error.
            DisconnectedError: the server closed the connection.
            TimeoutError: nothing came in time.
        """
        session = self._session
        while True:
            while (event := session.next_event()) is not None:
                if isinstance(event, ServerFrame):
                    if isinstance(event.message, m.ErrorReply):
                        raise RefusedError(event.request_id, event.message)
                    if isinstance(event.message, m.Ping):
                        self._flush()
                    if isinstance(event.message, m.Ping | m.Throttle):
                        continue
                return event
            count = self.socket.recv_into(session.writable())
            if count == 0:
                raise DisconnectedError("the server closed the connection")
            session.received(count, time.monotonic())

    def receive_acks(self) -> AppendAcks:
        """Return the next event, which is an ack. Raises like `receive`, and UnexpectedFrameError."""
        event = self.receive()
        if not isinstance(event, AppendAcks):
            raise UnexpectedFrameError(f"{type(event).__name__} for an ack")
        return event

    def receive_data(self) -> PieceFrame:
        """Return the next event, which is data. Raises like `receive`, and UnexpectedFrameError."""
        event = self.receive()
        if not isinstance(event, PieceFrame):
            raise UnexpectedFrameError(f"{type(event).__name__} for data")
        return event

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send what is sent in this block in one piece at its end; nothing is received meanwhile."""
        self._is_gathering = True
        try:
            yield
        finally:
            self._is_gathering = False
            self._flush()

    def _flush(self) -> None:
        with self._sending:
            if self._session.outbox_bytes and not self._is_gathering:
                self.socket.sendall(b"".join(self._session.take_outbox(time.monotonic())))

    def create_segment(self, name: str) -> int:
        """Return the id of a segment, made now or found."""
        try:
            return self.request(m.CreateSegment(name)).segment_id
        except RefusedError as error:
            if error.reply.code != ErrorCode.SEGMENT_EXISTS:
                raise
        return self.segment_info(name).segment_id

    def segment_info(self, name: str) -> m.SegmentInfo:
        """Return what the server says of a segment."""
        return self.request(m.GetSegment(0, name))


class LoadError(Exception):
    """What ends the work of one user.

    LoadError
     |- RefusedError          the server answered with an error
     |- UnexpectedFrameError  the server answered with something else
     |- DisconnectedError     the server closed the connection
    """


class RefusedError(LoadError):
    """The server answered with an error."""

    def __init__(self, request_id: int, reply: m.ErrorReply) -> None:
        super().__init__(request_id, reply)
        self.request_id = request_id
        self.reply = reply

    def __str__(self) -> str:
        return f"error {self.reply.code} to request {self.request_id}: {self.reply.message}"


class UnexpectedFrameError(LoadError):
    """The server answered with something else."""


class DisconnectedError(LoadError):
    """The server closed the connection."""
