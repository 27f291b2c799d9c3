"""Pacing of the puts of a log in an object store.

Theory. A put takes a round trip, and up to `WINDOW_COUNT` puts are in flight at once. If each began as soon as one of
these places is free, a burst of small appends would take all places with one append each, and later appends would wait
for a whole round trip. So puts are spread over the round trip: while any is in flight, the next begins no sooner than
an eighth of the round trip after the last one. Runs that arrive meanwhile form one batch. That gives fewer puts, a
lower median latency and more bytes a second at the same time (docs/decisions/0061).

The round trip is the shortest of the last ones: an average would include the stalls of a store, and double them.

Stores charge for each put. A token bucket limits the rate in the long run: each put takes a token, and `puts_per_s_max`
are added a second, up to one second's worth. So single appends wait only for their round trip, and a busy log puts
larger batches. A full batch is never delayed: it could not grow.
"""

from collections import deque
from typing import Final

WINDOW_COUNT: Final = 8
"""Puts in flight at once."""
SAMPLES_COUNT: Final = 32
"""The number of last puts whose shortest duration is the round trip."""
BURST_S: Final = 1.0
"""Capacity of the token bucket, in seconds of its rate."""


class Pacing:
    """Spacing of puts. Pure: the caller passes the time, in seconds of a monotonic clock.

    Args:
        puts_per_s_max: in the long run; 0 for no bound.
        now_s: the time.
    """

    def __init__(self, *, puts_per_s_max: float, now_s: float) -> None:
        self._rate = puts_per_s_max
        self._tokens_max = max(1.0, puts_per_s_max * BURST_S)
        self._tokens = self._tokens_max
        self._refilled_s = now_s
        self._begun_s = float("-inf")
        self._durations_s: deque[float] = deque(maxlen=SAMPLES_COUNT)

    @property
    def round_trip_s(self) -> float:
        """The shortest duration of the last puts; 0 before the first."""
        return min(self._durations_s, default=0.0)

    def wait_s(self, now_s: float, *, in_flight: int) -> float:
        """Return how long the next put has to wait, if its batch is not full; 0 if it may begin."""
        wait_s = 0.0
        if in_flight:
            wait_s = self._begun_s + self.round_trip_s / WINDOW_COUNT - now_s
        if self._rate:
            self._refill(now_s)
            wait_s = max(wait_s, (1.0 - self._tokens) / self._rate)
        return max(0.0, wait_s)

    def began(self, now_s: float) -> None:
        """Count a put."""
        self._begun_s = now_s
        if self._rate:
            self._refill(now_s)
            # Full batches do not wait: later batches pay for the tokens that they overdraw.
            self._tokens = max(-self._tokens_max, self._tokens - 1.0)

    def ended(self, duration_s: float) -> None:
        """Record the duration of a successful put."""
        self._durations_s.append(duration_s)

    def _refill(self, now_s: float) -> None:
        self._tokens = min(self._tokens_max, self._tokens + (now_s - self._refilled_s) * self._rate)
        self._refilled_s = now_s
