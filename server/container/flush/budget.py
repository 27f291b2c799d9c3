"""Budget of small flushes, for an object store that charges for each PUT.

A bucket that fills at a rate, and from which flushes are taken. So over any time the small flushes are at most the rate
times that time, and what the bucket holds. With more segments that trickle than the rate allows, their tails wait: each
for about the number of these segments divided by the rate.

Pure: the time comes in.
"""

from typing import Final

PAYOUT_S: Final = 0.5
"""Flushes are given out for about so long at once: each look at all the tails finds several, and they run together."""


class FlushBudget:
    """A bucket of flushes; it is full at the beginning.

    Args:
        per_s: flushes that are added a second, above 0.
        saved_s: the bucket holds those of so many seconds, and at least one.
        now_s: monotonic seconds.
    """

    def __init__(self, per_s: float, *, saved_s: float, now_s: float) -> None:
        assert per_s > 0
        self._per_s = per_s
        self._capacity = max(1.0, per_s * saved_s)
        self._held = self._capacity
        self._filled_s = now_s

    def available(self, now_s: float) -> int:
        """Return how many flushes may be begun now; 0 until it is worth a look at the tails."""
        self._held = min(self._capacity, self._held + max(0.0, now_s - self._filled_s) * self._per_s)
        self._filled_s = now_s
        return self._payable

    def spend(self, count: int) -> None:
        """Take flushes out, as many as were available.

        What memory or the log demands beyond that is not counted: it may last for long, and old tails would never be
        flushed.
        """
        self._held -= min(count, self._payable)

    @property
    def _payable(self) -> int:
        return int(self._held) if self._held >= min(self._capacity, max(1.0, self._per_s * PAYOUT_S)) else 0
