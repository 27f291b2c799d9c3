"""A client's session and a server's, joined without sockets: bytes go from one to the other in pieces of any size."""

from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.wire import messages as m
from millrace.wire.append_pipeline import TakenAppends
from millrace.wire.append_run import AppendRun
from millrace.wire.client_session import ClientEvent, ClientSession
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from millrace.wire.limits import FRAME_SIZE_BYTES_MAX
from millrace.wire.receive_buffer import UNLIMITED, Allowance
from millrace.wire.server_session import ClientFrame, ServerSession
from millrace.wire.session import Session


class RefusedError(Exception):
    """What the server of a test refuses an append with."""


def taken(
    request_id: int, *, segment_id: int = 1, writer_number: int = 0, count: int = 1, refused: bool = False
) -> TakenAppends:
    """Return appends that a server has taken, or refused at once."""
    appends = TakenAppends(
        AppendRun(segment_id, 0, b"", count, 0, count, writer_number=writer_number, request_id=request_id)
    )
    if refused:
        appends.settled, appends.error = True, RefusedError()
    return appends


def refusal(error: Exception) -> m.ErrorReply:
    """Return the reply to what the server of a test refused."""
    assert isinstance(error, RefusedError)
    return m.ErrorReply(code=int(ErrorCode.SEGMENT_SEALED), message="")


def hello_reply(*, appends_in_flight_max: int = 100, version: int = 1) -> m.HelloReply:
    """Return what a server says of itself."""
    return m.HelloReply(
        version=version,
        features=0,
        frame_size_max=FRAME_SIZE_BYTES_MAX,
        append_size_max=APPEND_SIZE_BYTES_MAX,
        appends_in_flight_max=appends_in_flight_max,
        server_id=bytes(16),
        server="test",
    )


def client_session(*, in_flight_bytes_max: int = 1 << 20) -> ClientSession:
    """Return a client's end, made at 0 s."""
    return ClientSession(now_s=0.0, handshake_timeout_s=5.0, keepalive_s=30.0, in_flight_bytes_max=in_flight_bytes_max)


def server_session(*, run_size_bytes_max: int = 1 << 16, allowance: Allowance = UNLIMITED) -> ServerSession:
    """Return a server's end, made at 0 s."""
    return ServerSession(
        now_s=0.0,
        handshake_timeout_s=5.0,
        keepalive_s=30.0,
        frame_timeout_s=30.0,
        run_size_bytes_max=run_size_bytes_max,
        refusal=refusal,
        allowance=allowance,
    )


class Wire:
    """What is on its way to a session."""

    def __init__(self, target: Session) -> None:
        self.target = target
        self.pending = bytearray()

    def take(self, source: Session) -> None:
        """Take what a session sends."""
        for buffer in source.take_outbox(0.0):
            self.pending += buffer

    def deliver(self, size: int) -> bool:
        """Let at most so many bytes arrive; return whether any did."""
        room = self.target.writable()
        count = min(size, len(self.pending), len(room))
        room[:count] = self.pending[:count]
        del self.pending[:count]
        if count:
            self.target.received(count, 0.0)
        return bool(count)


class Loopback:
    """Both ends after the handshake."""

    def __init__(self, *, appends_in_flight_max: int = 100, run_size_bytes_max: int = 1 << 16) -> None:
        self.client = client_session()
        self.server = server_session(run_size_bytes_max=run_size_bytes_max)
        self.to_server = Wire(self.server)
        self.to_client = Wire(self.client)
        self.client.greet(session_id=bytes(16), client="test", token="", subject="hello")
        (hello,) = self.serve()
        assert isinstance(hello, ClientFrame)
        assert isinstance(hello.message, m.Hello)
        self.server.put(encode(hello_reply(appends_in_flight_max=appends_in_flight_max), request_id=hello.request_id))
        (greeted,) = self.listen()
        assert greeted.subject == "hello"  # type: ignore[union-attr]  # HELLO_REPLY is a ServerFrame

    def serve(self, size: int = 1 << 30) -> list[AppendRun | ClientFrame]:
        """Let bytes arrive at the server; return what the client asks for."""
        self.to_server.take(self.client)
        events = []
        while size > 0 and (count := min(size, len(self.to_server.pending))) and self.to_server.deliver(count):
            size -= count
            while (event := self.server.next_event()) is not None:
                events.append(event)
        return events

    def listen(self, size: int = 1 << 30) -> list[ClientEvent]:
        """Let bytes arrive at the client; return what the server answers."""
        self.to_client.take(self.server)
        events = []
        while size > 0 and (count := min(size, len(self.to_client.pending))) and self.to_client.deliver(count):
            size -= count
            while (event := self.client.next_event()) is not None:
                events.append(event)
        return events
