"""The reasons why a connection is not read.

Backpressure has one form: the socket is left unread, and the peer's own sending stops. Each limit of a connection is a
*reason*; the connection is read while there is none. Each limit calls `set` at the moment it changes, and nothing else:
the owner is called when the first reason appears and when the last one disappears.
"""

from collections.abc import Callable
from enum import Enum, auto


class Reason(Enum):
    """Why a connection is not read."""

    REPLIES_UNSENT = auto()  # the peer does not receive what was sent to it
    APPENDS_IN_FLIGHT = auto()  # too many of its appends await their outcome
    TASKS = auto()  # too many of its requests are in progress
    REPLIES = auto()  # too many of its requests are decided but not durable
    FETCHING = auto()  # its cold reads would fetch too many bytes at once
    REQUEST_MEMORY = auto()  # the requests of all connections use too much memory: the next one waits
    READER_MEMORY = auto()  # all readers use too much memory: a read of this connection waits
    LOADING = auto()  # its last frame waits for its entities; later frames may not overtake it
    TOKEN_REFUSED = auto()  # its token was wrong; the refusal is sent after a delay
    CONTAINER_FULL = auto()  # log or memory are full; the peer was throttled


class FlowControl:
    """The reasons why one connection is not read now.

    Args:
        changed: called when `is_blocked` changes; may be called from within a call of the owner to any part.

    Attributes:
        is_blocked: whether the connection must not be read.
    """

    __slots__ = ("_changed", "_reasons", "is_blocked")

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._reasons: set[Reason] = set()
        self.is_blocked = False

    def is_only(self, reason: Reason) -> bool:
        """Whether this is the only reason."""
        return self._reasons == {reason}

    def set(self, reason: Reason, holds: bool) -> None:
        """Set or clear a reason."""
        if holds:
            self._reasons.add(reason)
        elif self._reasons:
            self._reasons.discard(reason)
        if self.is_blocked != bool(self._reasons):
            # Before the call, which may set or clear reasons again.
            self.is_blocked = not self.is_blocked
            self._changed()
