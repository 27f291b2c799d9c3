"""What a client waits for, and since when: noted in one place, logged once, and shown to those who ask.

Every wait before another attempt is noted here, and every connection that the server throttles. While anything waits,
each reason is logged as one warning; when nothing waits any more, that is logged, too. `ClientOptions.on_waiting` is
told the same at the same moments, and `client.statistics().waiting` holds what waits now.
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
"""A reason that comes and goes is logged no more often than this."""


class WaitReason(StrEnum):
    """Why a client waits."""

    UNREACHABLE = "unreachable"
    """There is no connection to the server."""
    NO_SPACE = "no space"
    """The disk of the server is full."""
    THROTTLED = "throttled"
    """Something else of the server is full."""
    REFUSED = "refused for now"
    """The server asks to be asked again, as it does while it shuts down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitInfo:
    """Why a client waits for its server.

    Attributes:
        since_s: when it began, in seconds of the monotonic clock.
        detail: what the last attempt, or the server, said.
    """

    reason: WaitReason
    since_s: float
    detail: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class Waits:
    """All that waits in one client. Belongs to one event loop.

    Args:
        server: what is waited for, as the log is to name it.
        on_change: called with each reason that is logged, and with None when nothing waits any more. Must not raise.

    Attributes:
        current: the wait that began first, None while nothing waits. May be read in any thread.
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
        # By who waits, the one that began first before the others.
        self._waiting: dict[object, WaitInfo] = {}
        # Since when something has waited without a break, and the reasons that were logged since.
        self._begin_s = 0.0
        self._logged: set[WaitReason] = set()
        self._logged_at_s: dict[WaitReason, float] = {}

    def begin(self, subject: object, error: MillraceError) -> None:
        """Note that an attempt of `subject` has failed, and that another one will be made."""
        reason = reason_of(error)
        if reason is not None:
            self._note(subject, reason, str(error))

    def throttled(self, subject: object, detail: str) -> None:
        """Note that the server has told `subject` to slow down."""
        self._note(subject, WaitReason.THROTTLED, detail)

    def end(self, subject: object) -> None:
        """Note that `subject` waits no more; nothing happens if it did not."""
        if self._waiting.pop(subject, None) is None:
            return
        self.current = next(iter(self._waiting.values()), None)
        if self.current is None and self._logged:
            self._logged.clear()
            waited_s = self._monotonic_s() - self._begin_s
            logger.info("waiting for server is over server=%s waited_s=%.1f", self._server, waited_s)
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
    """Return why the client waits after an error; None where it is not for the server to recover."""
    if isinstance(error, ConnectionLostError):
        return WaitReason.UNREACHABLE
    if isinstance(error, NoSpaceError):
        return WaitReason.NO_SPACE
    if isinstance(error, ThrottledError):
        return WaitReason.THROTTLED
    # What failed with the append before it only follows from that one.
    if isinstance(error, RequestError) and error.code is not None and not isinstance(error, PipelineBrokenError):
        return WaitReason.REFUSED
    return None
