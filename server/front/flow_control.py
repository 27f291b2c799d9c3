"""Why a connection is not read.

Pressure has one answer: the socket is left unread, and the peer's own sending stops. Each limit of a connection is a
*reason*; the connection is read while there is none. Whatever limit changes says so with `set`, at the moment it
changes, and nothing else: the owner is called when the first reason appears and when the last one goes.
"""

from collections.abc import Callable
from enum import Enum, auto


class Reason(Enum):
    """Why a connection is not read."""

    REPLIES_UNSENT = auto()  # the peer does not take what was sent to it
    APPENDS_IN_FLIGHT = auto()  # too many of its appends await their outcome
    TASKS = auto()  # too many of its requests are carried out
    REPLIES = auto()  # too many of its requests are decided, and that is not durable
    FETCHING = auto()  # its cold reads would fetch too many bytes at once
    REQUEST_MEMORY = auto()  # the requests of all connections together hold too much: the next one waits for room
    READER_MEMORY = auto()  # all readers together hold too much: a read of it waits for room
    LOADING = auto()  # its last frame waits for what it is about; later frames may not overtake it
    TOKEN_REFUSED = auto()  # its token was wrong; the refusal is sent after a delay
    CONTAINER_FULL = auto()  # log or memory are full; the peer was told by a THROTTLE


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
        """Whether a reason holds, and no other one."""
        return self._reasons == {reason}

    def set(self, reason: Reason, holds: bool) -> None:
        """Say whether a reason holds from now on."""
        if holds:
            self._reasons.add(reason)
        elif self._reasons:
            self._reasons.discard(reason)
        if self.is_blocked != bool(self._reasons):
            self.is_blocked = not self.is_blocked
            self._changed()
