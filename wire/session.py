"""One end of a connection, without socket and clock: the common part of client and server.

`ClientSession` and `ServerSession` are the two ends. Each is driven by a *shell*, which owns a socket and a clock:

    bytes in      `writable` lends memory, `received` records how much of it was filled and when; then `next_event`
                  until it returns None
    bytes out     every call puts the bytes to send into the outbox, in order; `take_outbox` empties it. A shell
                  does so after each call, or gathers for a while
    time          `next_deadline_s` is when to call `on_deadline`. Time is only passed in as an argument

States. The table does not know which end it is part of: both ends follow the same rules, and differ in which frames
count as GREETING, REFUSAL and TRAFFIC of the *peer*.

    CONNECTED   only the greeting of the peer may arrive: HELLO of a client, HELLO_REPLY of a server, which may
                reject by an ERROR_REPLY. It must arrive within the handshake timeout, however its bytes trickle in.
    ACTIVE      requests arrive at the server, replies and notices at the client, PING and PONG at both.
    DRAINING    this end starts nothing new and finishes requests in flight. Frames arrive as before: a server answers
                new requests with SHUTTING_DOWN instead of treating them as violations.
    CLOSED      nothing may arrive. There is no way out.

A PING is answered here, in order with the other frames of this end: from that place a server learns what the client had
sent before it saw an error (see `append_pipeline`).

Silence. A PING is due when either direction was quiet for `keepalive_s`: so each side hears from the other
independently of the other's settings. If nothing arrives for as long again after that PING, the peer is lost. Any byte
proves life. A frame that has begun to arrive has its own deadline, counted from its first byte.

An end that does not read cannot answer a PING, so it sends one itself every `UNREAD_PING_S`: it is busy, not dead.

(The division into a core that waits for nothing and thin shells is that of h11 and websockets.)
"""

import math
from enum import Enum, auto
from typing import Final

from millrace.model.checksum import Buffer

from . import messages as m
from .errors import ProtocolError, UnsupportedVersionError
from .framing import encode, verify
from .limits import FRAME_SIZE_BYTES_MAX, PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, UNREAD_PING_S
from .receive_buffer import UNLIMITED, Allowance, ReceiveBuffer


class Role(Enum):
    """Which side of the connection this is."""

    CLIENT = auto()
    SERVER = auto()


class SessionState(Enum):
    """The state of one end; see the module docstring."""

    CONNECTED = auto()
    ACTIVE = auto()
    DRAINING = auto()
    CLOSED = auto()


class SessionEvent(Enum):
    """The events that change the state."""

    GREETING = auto()  # the first frame of the peer
    REFUSAL = auto()  # an error in its place
    TRAFFIC = auto()  # any frame that the peer sends after the handshake
    DRAIN = auto()  # this end starts nothing new from here on
    CLOSE = auto()  # this end ends the connection, or has lost it


CONNECTED, ACTIVE, DRAINING, CLOSED = SessionState
GREETING, REFUSAL, TRAFFIC, DRAIN, CLOSE = SessionEvent

TRANSITIONS: Final[dict[SessionState, dict[SessionEvent, SessionState]]] = {
    CONNECTED: {
        GREETING: ACTIVE,
        REFUSAL: CLOSED,
        DRAIN: CLOSED,  # nothing is in flight that could be finished
        CLOSE: CLOSED,
    },
    ACTIVE: {
        TRAFFIC: ACTIVE,
        DRAIN: DRAINING,
        CLOSE: CLOSED,
    },
    DRAINING: {
        TRAFFIC: DRAINING,
        DRAIN: DRAINING,
        CLOSE: CLOSED,
    },
    CLOSED: {
        DRAIN: CLOSED,
        CLOSE: CLOSED,
    },
}
"""Every legal event of every state, and the next state. All others raise."""


def _types(sender: type[m.Message]) -> frozenset[int]:
    return frozenset(number for number, cls in m.MESSAGES.items() if issubclass(cls, sender))


HANDSHAKE: Final = frozenset({m.Hello.type, m.HelloReply.type})
BOTH_WAYS: Final = _types(m.FromBoth)
REPLIES: Final = _types(m.FromServer) - HANDSHAKE
"""Frames that only a server sends, after the handshake."""
REQUESTS: Final = _types(m.FromClient) - HANDSHAKE
"""Frames that only a client sends, after the handshake."""

FRAMES: Final[dict[Role, dict[SessionEvent, frozenset[int]]]] = {
    Role.SERVER: {GREETING: frozenset({m.Hello.type}), TRAFFIC: REQUESTS | BOTH_WAYS},
    Role.CLIENT: {
        GREETING: frozenset({m.HelloReply.type}),
        REFUSAL: frozenset({m.ErrorReply.type}),
        TRAFFIC: REPLIES | BOTH_WAYS,
    },
}
"""The event for each frame of the peer, at each end."""

_ARRIVALS: Final = {
    (role, state): {
        frame_type: after for event, after in TRANSITIONS[state].items() for frame_type in frames.get(event, ())
    }
    for role, frames in FRAMES.items()
    for state in SessionState
}
"""The same for one frame that arrives, so that it costs one access: the state after each that may arrive."""


class Session:
    """The common part of both ends: state, receive buffer, outbox, deadlines. Times are those of a monotonic clock.

    Args:
        role: which end this is.
        now_s: when the connection was made.
        handshake_timeout_s: how long the first frame of the peer may take.
        keepalive_s: quiet time before a PING, and from a PING to the loss of the peer; `math.inf` switches it off.
        frame_timeout_s: how long a frame that has begun may take to arrive.
        allowance: of memory for received bytes.

    Attributes:
        is_short: whether memory for the next event is missing. Then `next_event` has returned None, nothing may be
            received, and the shell calls `next_event` again when memory may be available.
    """

    def __init__(
        self,
        role: Role,
        *,
        now_s: float,
        handshake_timeout_s: float,
        keepalive_s: float,
        frame_timeout_s: float = math.inf,
        allowance: Allowance = UNLIMITED,
    ) -> None:
        if not (handshake_timeout_s > 0 and keepalive_s > 0 and frame_timeout_s > 0):
            raise ValueError("handshake_timeout_s, keepalive_s and frame_timeout_s must be above 0")
        self._role = role
        self._enter(CONNECTED)
        self._handshake_deadline_s = now_s + handshake_timeout_s
        self._keepalive_s = keepalive_s
        self._received_s = now_s
        self._sent_s = now_s
        # When the PING was sent that has no answer yet; infinite if there is none.
        self._pinged_s = math.inf
        self._frame_timeout_s = frame_timeout_s
        # When the first byte of the pending frame arrived, as far as that is known.
        self._frame_began_s = math.inf
        self._is_paused = False
        # Whether the deadline of a pending frame also runs while this end does not read.
        self._is_frame_timed = True
        self._frames = ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX, allowance=allowance)
        self.is_short = False
        self._outbox: list[Buffer] = []
        self.outbox_bytes = 0

    @property
    def is_draining(self) -> bool:
        """Whether this end starts nothing new."""
        return self.state is DRAINING

    @property
    def is_closed(self) -> bool:
        """Whether nothing may arrive any more."""
        return self.state is CLOSED

    # --- bytes ---

    def writable(self) -> memoryview:
        """Return memory for what arrives, never empty; valid until the next call of any method."""
        return self._frames.writable()

    def received(self, count: int, now_s: float) -> None:
        """Record that `count` bytes were written at the start of the result of `writable`."""
        self._received_s = now_s
        self._pinged_s = math.inf
        frames = self._frames
        if frames.start == frames.end:
            self._frame_began_s = now_s
        frames.received(count)

    def give_back(self) -> bool:
        """Release unused memory for other connections; return whether there was any."""
        return self._frames.give_back()

    def put(self, *buffers: Buffer) -> None:
        """Send buffers, which the session owns from here on."""
        self._outbox += buffers
        for buffer in buffers:
            self.outbox_bytes += len(buffer)

    def take_outbox(self, now_s: float) -> list[Buffer]:
        """Return the bytes to send, in order; the caller passes them to the transport now."""
        outbox, self._outbox, self.outbox_bytes = self._outbox, [], 0
        self._sent_s = now_s
        return outbox

    # --- state ---

    def drain(self) -> None:
        """Start nothing new from here on; a session without a finished handshake is closed. Idempotent."""
        self._change(DRAIN)

    def close(self) -> None:
        """Close the session. Idempotent."""
        self._change(CLOSE)

    def lost(self) -> None:
        """Close a session whose connection is lost, and drop all received bytes."""
        self.close()
        self._frames.drop()

    def admit(self, frame_type: int) -> None:
        """Record that a frame arrived, before its body is decoded.

        One call admits any number of consecutive appends: the state that admits one admits all.

        Raises:
            ProtocolError: a frame that may not arrive now, or never; the state stays as it is.
        """
        after = self._arrivals.get(frame_type)
        if after is None:
            raise ProtocolError(self._objection(frame_type))
        if after is not self.state:
            self._enter(after)

    def _change(self, event: SessionEvent) -> None:
        self._enter(TRANSITIONS[self.state][event])

    def _enter(self, state: SessionState) -> None:
        self.state = state
        self._arrivals = _ARRIVALS[self._role, state]

    def _objection(self, frame_type: int) -> str:
        cls = m.MESSAGES.get(frame_type)
        if cls is None:
            return f"{frame_type} is not a known type of frame"
        name = cls.type.name
        if issubclass(cls, m.Record):
            return f"{name} is a record of the log, not a frame of the protocol"
        if self.state is CONNECTED:
            return f"{name} before the handshake"
        return f"{name} may not arrive here while the session is {self.state.name}"

    # --- time ---

    def pause(self, *, for_peer: bool = False) -> None:
        """Record that this end reads nothing from now on.

        Args:
            for_peer: because the peer does not receive what is sent to it. Otherwise the deadline of a pending frame
                stops.
        """
        self._is_paused, self._is_frame_timed = True, for_peer

    def resume(self, now_s: float) -> None:
        """Record that this end reads again."""
        self.excuse(now_s)
        self._is_paused, self._is_frame_timed = False, True

    def excuse(self, now_s: float) -> None:
        """Record that this end read nothing until now: the silence so far is not the peer's."""
        self._received_s = now_s
        self._pinged_s = math.inf
        if not self._is_frame_timed:
            self._frame_began_s = now_s

    def next_deadline_s(self) -> float:
        """Return when `on_deadline` wants to be called: infinite if never.

        It moves with everything that is sent and received; the shell need not follow. A timer that fires early costs
        one call, so arming it again only when it has fired is right, and cheapest.
        """
        if self.state is CLOSED:
            return math.inf
        if self.state is CONNECTED:
            return self._handshake_deadline_s
        deadline_s = min(self._silence_deadline_s, self._frame_deadline_s)
        return min(deadline_s, self._sent_s + UNREAD_PING_S) if self._is_paused else deadline_s

    def on_deadline(self, now_s: float) -> None:
        """Do what is due at `now_s`: nothing if the deadline has moved, else send a PING, or close."""
        if now_s < self.next_deadline_s():
            return
        is_silent = now_s >= self._silence_deadline_s
        if self.state is CONNECTED or (is_silent and self._pinged_s != math.inf) or now_s >= self._frame_deadline_s:
            self._change(CLOSE)
            return
        if is_silent:
            self._pinged_s = now_s
        self._sent_s = now_s
        self.put(encode(m.Ping()))

    @property
    def _silence_deadline_s(self) -> float:
        quiet_since_s = min(self._received_s, self._sent_s) if self._pinged_s == math.inf else self._pinged_s
        return quiet_since_s + self._keepalive_s

    @property
    def _frame_deadline_s(self) -> float:
        if not self._is_frame_timed or not self._frames.pending:
            return math.inf
        return self._frame_began_s + self._frame_timeout_s

    # --- frames, for the two ends ---

    def _first_frame(self, end: int) -> memoryview:
        """Return the first pending frame, which ends at `end`, verified and admitted. `_consume` is next."""
        frame = self._frames.view(self._frames.start, end)
        verify(frame)
        self.admit(frame[8])
        return frame

    def _consume(self, end: int) -> None:
        """Release everything before `end`; the remaining bytes arrived last."""
        self._frames.consume(end)
        self._frame_began_s = self._received_s


def negotiate_version(*, version_min: int, version_max: int) -> int:
    """Return the highest version that both sides speak.

    A client checks the server's choice by passing it as both ends of the range.

    Raises:
        UnsupportedVersionError: there is no common version; the error names both ranges.
    """
    version = min(version_max, PROTOCOL_VERSION_MAX)
    if version < max(version_min, PROTOCOL_VERSION_MIN):
        raise UnsupportedVersionError(version_min=version_min, version_max=version_max)
    return version
