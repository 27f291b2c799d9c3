"""The states of one container in a server, from its claim to its end.

    CLAIMING     the container is being claimed
    STANDBY      another server has the container; the claim waits for the end of that server
    OPENING      claimed; checkpoint and log are being recovered
    SERVING      requests are answered
    RECOVERING   the log has failed, or the checkpoint is damaged: the container is closed and opened again, until that
                 succeeds; meanwhile the one in memory answers reads
    FENCED       another server has taken over; the server is to end
    CLOSING      the server stops: what was admitted becomes durable, and nothing is opened again
    CLOSED       the container has ended

A container that is opened again takes the steps of a start (claim, open, serve), and stays RECOVERING until the
connections to its predecessor have ended. FENCED and CLOSING do not interrupt a step that is under way, as threads may
be writing to the folder: the state only keeps the next step from being taken. The wait of a standby ends by itself.
"""

from enum import Enum, auto
from typing import Final


class LifeState(Enum):
    """Where a container is in its life; see the module docstring."""

    CLAIMING = auto()
    STANDBY = auto()
    OPENING = auto()
    SERVING = auto()
    RECOVERING = auto()
    FENCED = auto()
    CLOSING = auto()
    CLOSED = auto()


class LifeEvent(Enum):
    """What changes the state of a container."""

    CLAIM = auto()
    """An attempt to claim and open the container begins."""
    WAIT = auto()
    """Another server has the container, and this one is a standby."""
    CLAIMED = auto()
    OPENED = auto()
    """A container is in memory, and its background tasks run."""
    FAIL = auto()
    """The log failed, or the checkpoint is damaged."""
    RECOVERED = auto()
    """The container was opened again, and the connections to its predecessor have ended."""
    FENCE = auto()
    """Another server has taken over."""
    STOP = auto()
    CLOSE = auto()


CLAIMING, STANDBY, OPENING, SERVING, RECOVERING, FENCED, CLOSING, CLOSED = LifeState
CLAIM, WAIT, CLAIMED, OPENED, FAIL, RECOVERED, FENCE, STOP, CLOSE = LifeEvent

TRANSITIONS: Final[dict[LifeState, dict[LifeEvent, LifeState]]] = {
    CLAIMING: {CLAIM: CLAIMING, WAIT: STANDBY, CLAIMED: OPENING, FENCE: FENCED, STOP: CLOSING},
    STANDBY: {CLAIM: CLAIMING, WAIT: STANDBY, CLAIMED: OPENING, FENCE: FENCED, STOP: CLOSING},
    # A start that finds the object store full begins again with its claim.
    OPENING: {CLAIM: CLAIMING, OPENED: SERVING, FENCE: FENCED, STOP: CLOSING},
    SERVING: {FAIL: RECOVERING, FENCE: FENCED, STOP: CLOSING},
    # The log that was opened again may fail before the connections to its predecessor have ended.
    RECOVERING: {
        CLAIM: RECOVERING, CLAIMED: RECOVERING, OPENED: RECOVERING, FAIL: RECOVERING,
        RECOVERED: SERVING, FENCE: FENCED, STOP: CLOSING,
    },
    # The step that was under way ends.
    FENCED: {
        CLAIM: FENCED, WAIT: FENCED, CLAIMED: FENCED, OPENED: FENCED, FAIL: FENCED, FENCE: FENCED, STOP: CLOSING,
    },
    CLOSING: {
        CLAIM: CLOSING, WAIT: CLOSING, CLAIMED: CLOSING, OPENED: CLOSING, FAIL: CLOSING, FENCE: CLOSING,
        STOP: CLOSING, CLOSE: CLOSED,
    },
    # A log whose disk did not answer may fail later, and the release of the claim may find another owner.
    CLOSED: {FAIL: CLOSED, FENCE: CLOSED, STOP: CLOSED},
}  # fmt: skip
"""Every legal event of every state, and the state after it."""


class Life:
    """The state of one container.

    Attributes:
        state: changed by `change` only; may be read from any thread.
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = CLAIMING

    def change(self, event: LifeEvent) -> LifeState:
        """Go to the state that follows an event, and return it."""
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, f"{event} in {self.state}"
        self.state = following
        return following
