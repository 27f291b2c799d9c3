"""The end of a connection that a server has: requests and appends in, replies out.

`next_event` returns what the client asks for, one frame at a time, or all consecutive appends to one segment at once
(see `append_scan`). The server may leave events untaken for as long as it reads nothing more from its socket, which
`pause` and `resume` tell. Outcomes of appends leave by `appends`, in the order of their request ids.

Memory. The objects of a request are many times its size if it is a list of small things. So a request that is carried
out by a task takes an allowance for them before it is decoded, and waits in the receive buffer where there is none.

Request ids rise: an id that is not above all before it is a violation, for two requests would share it. Frames that
name what exists (CREDIT, UNSUBSCRIBE) or carry an id of another kind (PING, PONG, HELLO) are exempt.
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
"""Frames of a client whose request id is not a new one."""


CARRIED_OUT: Final = REQUESTS - UNNUMBERED - m.APPENDS - {m.Read.type, m.Subscribe.type}
"""Frames of a client that are carried out by a task, and answered when it ends."""

REQUEST_SIZE_BYTES: Final = 4 * KIB
OBJECTS_PER_BYTE: Final = 40
"""What a request counts as: so much for its task, and for each of its bytes. (An empty text in a list is two bytes, and
a tuple and its place in the list in memory.)"""
REQUEST_HELD_BYTES_MAX: Final = REQUEST_SIZE_BYTES + OBJECTS_PER_BYTE * CONTROL_FRAME_SIZE_BYTES_MAX


class ClientFrame(NamedTuple):
    """A frame that is not an append. The session answers PING and PONG itself, and does not return them.

    Attributes:
        held_bytes: of the allowance, for the objects of a request: to be given back when it has been carried out.
        is_answered: whether a request is to be answered; it is, unless its client asks for no reply.
    """

    request_id: int
    message: m.Message
    held_bytes: int = 0
    is_answered: bool = True


class ServerSession(Session):
    """One connection of a server.

    Args:
        now_s, handshake_timeout_s, keepalive_s, frame_timeout_s: see `Session`.
        allowance: of memory for what is received, and for the objects of requests.
        run_size_bytes_max: the most bytes of several appends that are returned together, headers included.
        refusal: makes the reply of what an append failed with.
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
        """Return the next thing that the client asks for, None if more bytes or memory are needed, or none may come.

        Raises:
            WireError: the client broke the protocol; nothing more can be understood.
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
        """Send the outcomes of appends that are known and whose turn it is."""
        frames = self.appends.take_frames()
        if frames:
            self.put(*frames)

    def _take_appends(self, start: int, end: int) -> AppendRun:
        frames = self._frames
        view = frames.view(0, frames.end)
        # A single append may be larger than the log takes; the container says so. A run of several never is.
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
            raise ProtocolError(f"request id {request_id} is not above the one before, {self._last_id}")
        self._last_id = request_id + count - 1
