"""A client of one blocking socket that speaks the protocol with nothing in between.

It imports neither asyncio nor locust: under gevent's patched sockets it yields to other users of the process, in a
plain process it blocks. Load tests and benchmarks share it, so that what they measure is the server.
"""

import socket
import threading
from types import TracebackType
from typing import Final, Self, TypeVar

from millrace.model.checksum import Buffer
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import FrameHeader, decode, encode, encode_append_header
from millrace.wire.limits import FRAME_SIZE_BYTES_MAX, PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN
from millrace.wire.receive_buffer import ReceiveBuffer

_CLIENT_NAME: Final = "millrace-load"

M = TypeVar("M", bound=m.Message)


class ProtocolClient:
    """One connection, its request ids and its receive buffer. One thread or greenlet may send while another receives.

    Args:
        address: "HOST:PORT".
        timeout_s: for each wait on the socket; None waits for ever. A timeout makes each call poll first, so
            benchmarks take it away after the handshake.
    """

    def __init__(self, address: str, *, timeout_s: float | None = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX)
        self._request_id = 0
        # `receive` answers PINGs, while another may be in the middle of a frame.
        self._sending = threading.Lock()
        try:
            self.hello = self.request(
                m.Hello(
                    version_min=PROTOCOL_VERSION_MIN,
                    version_max=PROTOCOL_VERSION_MAX,
                    features=0,
                    frame_size_max=FRAME_SIZE_BYTES_MAX,
                    client=_CLIENT_NAME,
                    token="",
                ),
                m.HelloReply,
            )
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
        """Close the socket; whoever waits on it fails."""
        self.socket.close()

    @property
    def last_request_id(self) -> int:
        """The request id taken last; the next one is one above it."""
        return self._request_id

    def _next_request_id(self) -> int:
        self._request_id += 1
        return self._request_id

    def send(self, message: m.Message) -> int:
        """Send a request and return its id; the reply is for `receive`."""
        with self._sending:
            request_id = self._next_request_id()
            self.socket.sendall(encode(message, request_id=request_id))
        return request_id

    def send_credit(self, subscription: int, credit_bytes: int) -> None:
        """Let a subscription, named by its request id, push that much more."""
        with self._sending:
            self.socket.sendall(encode(m.Credit(credit_bytes), request_id=subscription))

    def request(self, message: m.Message, reply: type[M]) -> M:
        """Send a request and return its reply, while nothing else is under way.

        Raises:
            RefusedError: the reply is an error.
        """
        request_id = self.send(message)
        header, answer = self.receive()
        if not isinstance(answer, reply) or header.request_id != request_id:
            raise UnexpectedFrameError(f"{type(answer).__name__} of request {header.request_id}, not {reply.__name__}")
        return answer

    def send_append(self, segment_id: int, payload: Buffer, *, event_count: int = 1) -> int:
        """Send one append and return its request id; its ack is for `receive`."""
        with self._sending:
            request_id = self._next_request_id()
            header = encode_append_header(
                request_id=request_id, segment_id=segment_id, payload=payload, event_count=event_count
            )
            self.socket.sendall(header + payload)
        return request_id

    def receive(self) -> tuple[FrameHeader, m.Message]:
        """Return the next frame, checked by its checksum. PINGs are answered, THROTTLE notices are left out.

        A `Data` is a view of the receive buffer: it is valid until the next call.

        Raises:
            RefusedError: the frame is an error.
            DisconnectedError: the server closed the connection.
            TimeoutError: nothing came in time.
        """
        buffer = self._buffer
        while True:
            for frame in buffer.frames():
                header, message = decode(frame)
                if isinstance(message, m.Ping):
                    with self._sending:
                        self.socket.sendall(encode(m.Pong(), request_id=header.request_id))
                elif isinstance(message, m.ErrorReply):
                    raise RefusedError(header.request_id, message)
                elif not isinstance(message, m.Throttle):
                    return header, message
            count = self.socket.recv_into(buffer.writable())
            if count == 0:
                raise DisconnectedError("the server closed the connection")
            buffer.received(count)

    def create_segment(self, name: str) -> int:
        """Return the id of a segment, made now or found."""
        try:
            return self.request(m.CreateSegment(name), m.SegmentInfo).segment_id
        except RefusedError as error:
            if error.reply.code != ErrorCode.SEGMENT_EXISTS:
                raise
        return self.segment_info(name).segment_id

    def segment_info(self, name: str) -> m.SegmentInfo:
        """Return what the server says of a segment."""
        return self.request(m.GetSegment(0, name), m.SegmentInfo)


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
