"""The server's end of a connection: requests and appends in, replies out.

`next_event` returns the client's requests, one frame at a time, or all consecutive appends to one segment at once (see
`append_scan`). The server may leave events pending while it does not read from its socket, between `pause` and
`resume`. Outcomes of appends are sent by `appends`, in the order of their request ids.

Memory. The objects of a request are many times its size if it is a list of small items. So a request that a task
carries out takes an allowance for them before it is decoded, and waits in the receive buffer if there is none.

Request ids rise: an id that is not above all before it is a violation, for two requests would share it. Frames that
refer to existing requests (CREDIT, UNSUBSCRIBE) or carry an id of another kind (PING, PONG, HELLO) are exempt.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from . import messages as m
from .append_pipeline import AppendPipeline
from .append_run import AppendRun
from .append_scan import scan_run
from .errors import FrameTooLargeError, ProtocolError
from .framing import decode, encode
from .limits import CONTROL_FRAME_SIZE_BYTES_MAX, KIB
from .receive_buffer import UNLIMITED, Allowance
from .session import CLOSED, REQUESTS, Role, Session, negotiate_version

UNNUMBERED: Final = frozenset(
    number
    for number, cls in m.MESSAGES.items()
    if issubclass(cls, m.FromBoth | m.FromClient) and (cls is m.Hello or not issubclass(cls, m.Request))
)
"""Client frames without a new request id."""


CARRIED_OUT: Final = REQUESTS - UNNUMBERED - m.APPENDS - {m.Read.type, m.Subscribe.type}
"""Client frames that a task carries out, and answers when it ends."""

REQUEST_SIZE_BYTES: Final = 4 * KIB
OBJECTS_PER_BYTE: Final = 40
"""Accounted memory of a request: a sum for its task, and this for each of its bytes. (An empty text in a list is two
bytes on the wire, and a tuple and its place in the list in memory.)"""
REQUEST_HELD_BYTES_MAX: Final = REQUEST_SIZE_BYTES + OBJECTS_PER_BYTE * CONTROL_FRAME_SIZE_BYTES_MAX


class ClientFrame(NamedTuple):
    """A frame that is not an append. The session answers PING and PONG itself, and does not return them.

    Attributes:
        held_bytes: of the allowance, for the objects of a request: release it when the request is done.
        is_answered: whether to answer the request: unless its client requests no reply.
    """

    request_id: int
    message: m.Message
    held_bytes: int = 0
    is_answered: bool = True


class ServerSession(Session):
    """One connection of a server.

    Args:
        now_s, handshake_timeout_s, keepalive_s, frame_timeout_s: see `Session`.
        allowance: of memory for received bytes, and for the objects of requests.
        run_size_bytes_max: the most bytes of several appends that are returned together, headers included.
        refusal: makes the reply for a failed append.
    """

    def __init__(
        self,
        *,
        now_s: float,
        handshake_timeout_s: float,
        keepalive_s: float,
        frame_timeout_s: float,
        run_size_bytes_max: int,
        refusal: Callable[[Exception], m.ErrorReply],
        allowance: Allowance = UNLIMITED,
    ) -> None:
        super().__init__(
            Role.SERVER,
            now_s=now_s,
            handshake_timeout_s=handshake_timeout_s,
            keepalive_s=keepalive_s,
            frame_timeout_s=frame_timeout_s,
            allowance=allowance,
        )
        self._allowance = allowance
        self.appends = AppendPipeline(refusal)
        self._last_id = 0
        self._run_size_bytes_max = run_size_bytes_max

    def next_event(self) -> AppendRun | ClientFrame | None:
        """Return the next event of the client, None if more bytes or memory are needed, or the session is closed.

        Raises:
            WireError: the client violated the protocol; no further event can be decoded.
        """
        frames = self._frames
        if frames.start == frames.end or self.state is CLOSED:
            return None
        end = frames.frame_end()
        if not end:
            self.is_short = frames.is_short
            return None
        frame_type, size = frames.data[frames.start + 8], end - frames.start
        if frame_type in m.APPENDS:
            return self._take_appends(frames.start, end)
        if size > CONTROL_FRAME_SIZE_BYTES_MAX:
            raise FrameTooLargeError(size_bytes=size, limit_bytes=CONTROL_FRAME_SIZE_BYTES_MAX)
        held_bytes = REQUEST_SIZE_BYTES + OBJECTS_PER_BYTE * size if frame_type in CARRIED_OUT else 0
        if held_bytes and not self._allowance.take(held_bytes):
            self.is_short = True
            return None
        header, message = decode(self._first_frame(end))
        if header.type not in UNNUMBERED:
            self._check_ids(header.request_id)
        self._consume(end)
        if isinstance(message, m.Ping):
            self.put(encode(m.Pong(), request_id=header.request_id))
        elif isinstance(message, m.Pong):
            self.appends.pong(header.request_id)
        elif isinstance(message, m.Hello):
            negotiate_version(version_min=message.version_min, version_max=message.version_max)
        # No frame of a client has other flags.
        return ClientFrame(header.request_id, message, held_bytes, not header.flags)

    def put_outcomes(self) -> None:
        """Send the known outcomes of appends whose turn it is."""
        frames = self.appends.take_frames()
        if frames:
            self.put(*frames)

    def _take_appends(self, start: int, end: int) -> AppendRun:
        frames = self._frames
        view = frames.view(0, frames.end)
        # A single append may exceed the limit of the log, which the container reports. A run of several never does.
        limit = min(frames.end, max(end, start + self._run_size_bytes_max))
        run = scan_run(frames.data, view, start=start, end=limit)
        assert run is not None, "a whole append is here"
        self.admit(frames.data[start + 8])
        self._check_ids(run.request_id, count=run.frame_count)
        self._consume(start + len(run.frames))
        return run

    def _check_ids(self, request_id: int, *, count: int = 1) -> None:
        """Check that the ids of `count` requests from `request_id` on are new."""
        if request_id <= self._last_id:
            raise ProtocolError(f"request id {request_id} is not above the previous one, {self._last_id}")
        self._last_id = request_id + count - 1
