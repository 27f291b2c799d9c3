"""When to ask a quiet peer for a sign of life, and when to give it up.

A PING is due when either direction was quiet for `quiet_s`: so each side hears from the other without relying on the
other's settings. If nothing at all arrives for as long again after that PING, the peer is lost. Any byte proves life.
"""

import math
from enum import Enum, auto


class Due(Enum):
    """What is due at a moment."""

    NOTHING = auto()
    PING = auto()
    GIVE_UP = auto()


class KeepAlive:
    """The silence of one connection, in seconds of a monotonic clock.

    Args:
        now_s: when the connection was made.
        quiet_s: quiet time before a PING, and from a PING to the loss of the peer; `math.inf` switches it off.

    Attributes:
        received_s: when bytes arrived last.
    """

    __slots__ = ("_pinged_s", "_quiet_s", "_sent_s", "received_s")

    def __init__(self, *, now_s: float, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self.received_s = now_s
        self._sent_s = now_s
        # When the PING went out that nothing has arrived after; infinite while there is none.
        self._pinged_s = math.inf

    def received(self, now_s: float) -> None:
        """Say that bytes arrived, whatever they are."""
        self.received_s = now_s
        self._pinged_s = math.inf

    def sent(self, now_s: float) -> None:
        """Say that bytes were handed to the transport."""
        self._sent_s = now_s

    def next_deadline_s(self) -> float:
        """Return when something is due next, if nothing is sent or received until then."""
        if self._pinged_s != math.inf:
            return self._pinged_s + self._quiet_s
        return min(self.received_s, self._sent_s) + self._quiet_s

    def due(self, now_s: float) -> Due:
        """Return what is due now; a PING counts as sent from here on."""
        if now_s < self.next_deadline_s():
            return Due.NOTHING
        if self._pinged_s != math.inf:
            return Due.GIVE_UP
        self._pinged_s = self._sent_s = now_s
        return Due.PING
