"""Counts requests to the object store for Prometheus, and derives the health of the store."""

import logging
from typing import Final, Literal

from millrace.server.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreBusyError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)
from millrace.server.host.clock import Clock
from millrace.server.host.metrics import Metrics

logger = logging.getLogger(__name__)

Kind = Literal["create", "replace", "get", "read", "size", "list", "delete"]

_CHANGES: Final[tuple[Kind, ...]] = ("create", "replace", "delete")
SILENT_S: Final = 10.0
"""A store must fail for this long before its health is bad: single failures are normal."""
FORGOTTEN_S: Final = 120.0
"""A failure that nobody has retried for this long no longer counts."""
FULL_S: Final = 10.0
"""A store counts as full for this long after a put found no space. Whoever needs space retries more often."""
BUSY_S: Final = 10.0
"""A store counts as busy for this long after it has rate-limited a request."""

_OUTCOMES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (StoreBusyError, "busy"),
    (StoreFullError, "full"),
    (StoreUnavailableError, "unavailable"),
    (StoreRefusedError, "refused"),
    (ObjectExistsError, "exists"),
    (ObjectChangedError, "changed"),
    (ObjectNotFoundError, "missing"),
)
_FAILURES: Final = (StoreUnavailableError, StoreRefusedError)


class StoreMonitor:
    """Counts requests and reports health. Belongs to one event loop; `health` may be called in any thread."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        # Separately for changes and for reads, because a bucket that is full or read-only still answers reads: of the
        # failures since the last answer, the times of the first and the last, and the text of the last.
        self._failing: dict[bool, tuple[float, float, str]] = {}
        self._busy_until_s = float("-inf")
        # Not among the failures: small objects may find room, and a lease is replaced by as many bytes.
        self._full_until_s = float("-inf")
        self._full_reason = ""

    def ended(self, kind: Kind, duration_s: float, error: BaseException | None) -> None:
        """Count a request: its kind, its duration, and its error."""
        outcome = "ok" if error is None else next((name for cls, name in _OUTCOMES if isinstance(error, cls)), "failed")
        self._metrics.store_requests_total.increase(outcome)
        self._metrics.store_request_seconds.series(kind).observe(duration_s)
        now_s = self._clock.monotonic_s()
        if isinstance(error, StoreBusyError):
            self._busy_until_s = now_s + BUSY_S
        if isinstance(error, StoreFullError):
            self._full_until_s, self._full_reason = now_s + FULL_S, error.message
            return
        is_change = kind in _CHANGES
        failing = self._failing.get(is_change)
        if isinstance(error, _FAILURES):
            if failing is None:
                logger.warning("object store requests fail kind=%s error=%s", kind, error)
            self._failing[is_change] = (failing[0] if failing else now_s, now_s, str(error))
        elif failing is not None:
            logger.info("object store recovered kind=%s after_s=%.1f", kind, now_s - failing[0])
            del self._failing[is_change]

    def repeated(self) -> None:
        """Count a request that is made again."""
        self._metrics.store_retries_total.increase()

    def hedged(self, kind: Kind) -> None:
        """Count a request that is made a second time beside the first."""
        self._metrics.store_hedges_total.increase(kind)

    @property
    def is_busy(self) -> bool:
        """Whether the store has rate-limited a request a moment ago."""
        return self._clock.monotonic_s() < self._busy_until_s

    def health(self) -> str:
        """Return what is wrong with the store, empty if it answers or was not used lately.

        Health requires answers to changes and to reads; if both fail, the text is about the changes.
        """
        if self._clock.monotonic_s() < self._full_until_s:
            return f"the object store is full: {self._full_reason}"
        for is_change in (True, False):
            first_s, last_s, reason = self._failing.get(is_change) or (0.0, 0.0, "")
            if last_s - first_s >= SILENT_S and self._clock.monotonic_s() - last_s < FORGOTTEN_S:
                return f"the object store has failed for {last_s - first_s:.0f} s: {reason}"
        return ""
