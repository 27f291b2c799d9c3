"""Waits of a client for its server: recorded in one place, logged once, and shown in the statistics.

Every wait before a retry is recorded here, and every connection that the server throttles. Each reason is logged as one
warning, and the end of the last wait as one line. `ClientOptions.on_waiting` is called at the same moments, and
`client.statistics().waiting` contains the current wait.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from millrace.model.errors import MillraceError, RequestError

from .errors import ConnectionLostError, NoSpaceError, PipelineBrokenError, ThrottledError

logger = logging.getLogger(__name__)

LOG_INTERVAL_S: Final = 10.0
"""Rate limit of the log lines of one reason."""


class WaitReason(StrEnum):
    """Why a client waits."""

    UNREACHABLE = "unreachable"
    """The client has no connection to the server."""
    NO_SPACE = "no space"
    """The disk of the server is full."""
    THROTTLED = "throttled"
    """Another resource of the server is full."""
    REFUSED = "refused for now"
    """The server asks for a retry, for instance while it shuts down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitInfo:
    """Why a client waits for its server.

    Attributes:
        since_s: when the wait began, in seconds of the monotonic clock.
        detail: the error of the last attempt, or the message of the server.
    """

    reason: WaitReason
    since_s: float
    detail: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class Waits:
    """All current waits of one client. Belongs to one event loop.

    Args:
        server: name of the server in the log.
        on_change: called with each reason that is logged, and with None when the last wait has ended. Must not raise.

    Attributes:
        current: the wait that began first, None if there is none. May be read in any thread.
    """

    def __init__(
        self,
        server: str,
        *,
        monotonic_s: Callable[[], float],
        on_change: Callable[[WaitInfo | None], None] | None = None,
    ) -> None:
        self._server = server
        self._monotonic_s = monotonic_s
        self._on_change = on_change
        self.current: WaitInfo | None = None
        # By waiting object, in the order in which the waits began.
        self._waiting: dict[object, WaitInfo] = {}
        # When the current period of waiting began, and the reasons that were logged since.
        self._begin_s = 0.0
        self._logged: set[WaitReason] = set()
        self._logged_at_s: dict[WaitReason, float] = {}

    def begin(self, subject: object, error: MillraceError) -> None:
        """Record that an attempt of `subject` has failed, and will be retried."""
        reason = reason_of(error)
        if reason is not None:
            self._note(subject, reason, str(error))

    def throttled(self, subject: object, detail: str) -> None:
        """Record that the server throttles `subject`."""
        self._note(subject, WaitReason.THROTTLED, detail)

    def end(self, subject: object) -> None:
        """Record that `subject` no longer waits; ignored if it did not."""
        if self._waiting.pop(subject, None) is None:
            return
        self.current = next(iter(self._waiting.values()), None)
        if self.current is None and self._logged:
            self._logged.clear()
            waited_s = self._monotonic_s() - self._begin_s
            logger.info("server answers again server=%s waited_s=%.1f", self._server, waited_s)
            if self._on_change is not None:
                self._on_change(None)

    def _note(self, subject: object, reason: WaitReason, detail: str) -> None:
        now_s = self._monotonic_s()
        if not self._waiting:
            self._begin_s = now_s
        before = self._waiting.get(subject)
        waiting = WaitInfo(reason=reason, since_s=now_s if before is None else before.since_s, detail=detail)
        self._waiting[subject] = waiting
        self.current = next(iter(self._waiting.values()))
        if reason in self._logged or now_s - self._logged_at_s.get(reason, -LOG_INTERVAL_S) < LOG_INTERVAL_S:
            return
        self._logged.add(reason)
        self._logged_at_s[reason] = now_s
        logger.warning("waiting for server server=%s reason=%s detail=%s", self._server, reason.value, detail)
        if self._on_change is not None:
            self._on_change(waiting)


def reason_of(error: MillraceError) -> WaitReason | None:
    """Return the reason to wait after an error; None if a wait does not help."""
    if isinstance(error, ConnectionLostError):
        return WaitReason.UNREACHABLE
    if isinstance(error, NoSpaceError):
        return WaitReason.NO_SPACE
    if isinstance(error, ThrottledError):
        return WaitReason.THROTTLED
    # A broken pipeline only follows from the failed append before it.
    if isinstance(error, RequestError) and error.code is not None and not isinstance(error, PipelineBrokenError):
        return WaitReason.REFUSED
    return None
