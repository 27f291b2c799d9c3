"""The state of one connection, the same for client and server.

A session says what may arrive next, when the peer has to be asked whether it lives, and when to give up. It knows no
socket and no clock: the shell around it reports what happened at `now_s` (seconds of a monotonic clock), and arms one
timer for `next_deadline_s()`.

    CONNECTED   nothing but the first frame of the peer may arrive: HELLO at the server, HELLO_REPLY or ERROR at the
                client. It has to be there within the handshake timeout, however busily its bytes trickle in.
    ACTIVE      requests arrive at the server, replies and notices at the client.
    DRAINING    this side starts nothing new and finishes what is in flight. Frames arrive as before: a server
                answers new requests with SHUTTING_DOWN, it does not call them violations.
    CLOSED      nothing may arrive. Only a new connection leads on.

Keepalive. Once ACTIVE, a PING is due when either direction was quiet for `keepalive_s`, so that each side hears from
the other without relying on its settings. If nothing at all arrives for as long again after that PING, the peer is
gone.
"""

import math
from enum import Enum, auto
from typing import Final

from . import messages as m
from .errors import ProtocolError, UnsupportedVersionError
from .limits import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN


class Role(Enum):
    """Which side of the connection this is."""

    CLIENT = auto()
    SERVER = auto()


class SessionState(Enum):
    """Where a connection stands; see the module docstring."""

    CONNECTED = auto()
    ACTIVE = auto()
    DRAINING = auto()
    CLOSED = auto()


class SessionAction(Enum):
    """What the shell has to do after a deadline."""

    NOTHING = auto()  # arm the timer again
    SEND_PING = auto()  # and arm the timer again
    CLOSE = auto()  # the session is CLOSED already; drop the transport


class LocalEvent(Enum):
    """What this side decides; all other events are frames that arrived."""

    DRAIN = auto()
    CLOSE = auto()


def _types(sender: type[m.Message]) -> frozenset[int]:
    return frozenset(number for number, cls in m.MESSAGES.items() if issubclass(cls, sender))


HANDSHAKE: Final = frozenset({m.Hello.type, m.HelloReply.type})
BOTH_WAYS: Final = _types(m.FromBoth)
REPLIES: Final = _types(m.FromServer) - HANDSHAKE
"""What only a server sends, after the handshake."""
REQUESTS: Final = _types(m.FromClient) - HANDSHAKE
"""What only a client sends, after the handshake."""
UNNUMBERED: Final = BOTH_WAYS | {m.Hello.type} | (_types(m.FromClient) - _types(m.Request))
"""Frames of a client whose request id is not a new one: CREDIT and UNSUBSCRIBE name a subscription that exists."""

Event = int | LocalEvent
Transitions = dict[SessionState, dict[Event, SessionState]]


CONNECTED, ACTIVE, DRAINING, CLOSED = SessionState
DRAIN, CLOSE = LocalEvent


def _transitions(first: dict[Event, SessionState], later: frozenset[int]) -> Transitions:
    frames = later | BOTH_WAYS
    return {
        CONNECTED: {**first, DRAIN: CLOSED, CLOSE: CLOSED},  # nothing is in flight that could be finished
        ACTIVE: {**dict.fromkeys(frames, ACTIVE), DRAIN: DRAINING, CLOSE: CLOSED},
        DRAINING: {**dict.fromkeys(frames, DRAINING), DRAIN: DRAINING, CLOSE: CLOSED},
        CLOSED: {DRAIN: CLOSED, CLOSE: CLOSED},
    }


TRANSITIONS: Final[dict[Role, Transitions]] = {
    Role.SERVER: _transitions({m.Hello.type: ACTIVE}, REQUESTS),
    Role.CLIENT: _transitions({m.HelloReply.type: ACTIVE, m.ErrorReply.type: CLOSED}, REPLIES),
}
"""Every legal event of every state, and the state that follows. What is not here raises."""


class Session:
    """The state of one connection.

    Args:
        role: which side this is.
        now_s: when the connection was made.
        handshake_timeout_s: how long the first frame of the peer may take.
        keepalive_s: quiet time before a PING, and from a PING to giving up; `math.inf` switches keepalive off.
    """

    __slots__ = (
        "_handshake_deadline_s", "_keepalive_s", "_pinged_s", "_received_s", "_request_id", "_sent_s", "_table",
        "state",
    )  # fmt: skip

    def __init__(self, role: Role, *, now_s: float, handshake_timeout_s: float, keepalive_s: float) -> None:
        if not (handshake_timeout_s > 0 and keepalive_s > 0):
            raise ValueError("handshake_timeout_s and keepalive_s must be above 0")
        self.state = CONNECTED
        self._table = TRANSITIONS[role]
        self._handshake_deadline_s = now_s + handshake_timeout_s
        self._keepalive_s = keepalive_s
        self._received_s = now_s
        self._sent_s = now_s
        # When the PING went out that nothing has arrived after; infinite while there is none.
        self._pinged_s = math.inf
        self._request_id = 0

    @property
    def is_draining(self) -> bool:
        """Whether this side starts nothing new."""
        return self.state is DRAINING

    def received(self, now_s: float) -> None:
        """Say that bytes arrived, whatever they are."""
        self._received_s = now_s
        self._pinged_s = math.inf

    def sent(self, now_s: float) -> None:
        """Say that bytes were handed to the transport."""
        self._sent_s = now_s

    def on_frame(self, frame_type: int) -> None:
        """Say that a frame arrived, before its body is looked at.

        One call stands for any number of appends behind one another: the state that admits one admits all.

        Raises:
            ProtocolError: a frame that may not arrive now, or never; the state stays as it is.
        """
        following = self._table[self.state].get(frame_type)
        if following is None:
            raise ProtocolError(self._refusal(frame_type))
        self.state = following

    def check_request_id(self, frame_type: int, request_id: int, *, count: int = 1) -> None:
        """Check, at the server, that the ids of `count` requests from `request_id` on are new.

        Raises:
            ProtocolError: the id is not above all before it. Frames in `UNNUMBERED` are exempt.
        """
        if frame_type in UNNUMBERED:
            return
        if request_id <= self._request_id:
            raise ProtocolError(f"request id {request_id} is not above the one before, {self._request_id}")
        self._request_id = request_id + count - 1

    def drain(self) -> None:
        """Start nothing new from here on; a session whose handshake is not done is closed. May be repeated."""
        self._decide(DRAIN)

    def close(self) -> None:
        """End the session. May be repeated."""
        self._decide(CLOSE)

    def next_deadline_s(self) -> float:
        """Return when `on_deadline` wants to be called: infinite if never.

        It moves on with everything that is sent and received; the shell need not follow. A timer that fires early
        costs one call, so arming it anew only when it has fired is right, and cheapest.
        """
        if self.state is CLOSED:
            return math.inf
        if self.state is CONNECTED:
            return self._handshake_deadline_s
        if self._pinged_s != math.inf:
            return self._pinged_s + self._keepalive_s
        return min(self._received_s, self._sent_s) + self._keepalive_s

    def on_deadline(self, now_s: float) -> SessionAction:
        """Return what has to be done at `now_s`; nothing if the deadline moved on meanwhile."""
        if now_s < self.next_deadline_s():
            return SessionAction.NOTHING
        if self.state is CONNECTED or self._pinged_s != math.inf:
            self._decide(CLOSE)
            return SessionAction.CLOSE
        self._pinged_s = self._sent_s = now_s
        return SessionAction.SEND_PING

    def _decide(self, event: LocalEvent) -> None:
        self.state = self._table[self.state][event]

    def _refusal(self, frame_type: int) -> str:
        cls = m.MESSAGES.get(frame_type)
        if cls is None:
            return f"{frame_type} is not a known type of frame"
        name = cls.type.name
        if issubclass(cls, m.Record):
            return f"{name} is a record of the log, not a frame of the protocol"
        if self.state is CONNECTED:
            return f"{name} before the handshake"
        return f"{name} may not arrive here while the session is {self.state.name}"


def negotiate_version(
    *,
    version_min: int,
    version_max: int,
    our_min: int = PROTOCOL_VERSION_MIN,
    our_max: int = PROTOCOL_VERSION_MAX,
) -> int:
    """Return the highest version that both sides speak.

    A client checks the version that the server chose by giving it as both ends of the range.

    Raises:
        UnsupportedVersionError: there is none; it names both ranges.
    """
    version = min(version_max, our_max)
    if version < max(version_min, our_min):
        raise UnsupportedVersionError(
            version_min=version_min, version_max=version_max, our_min=our_min, our_max=our_max
        )
    return version
