"""When to make another attempt, and when to give up.

Waits grow by a factor up to a limit (exponential back-off), and each is shortened by a random part (jitter): clients
that lost the same server do not come back in the same instant.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from random import random

from millrace.model.errors import MillraceError, RequestError

from .clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How waits grow.

    Attributes:
        jitter: the part of each wait that is left to chance, 0 to 1.
    """

    first_s: float = 0.02
    factor: float = 2.0
    limit_s: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.limit_s:
            raise ValueError(f"first_s={self.first_s} must be above 0 and not above limit_s={self.limit_s}")
        if self.factor < 1:
            raise ValueError(f"factor={self.factor} must be at least 1")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter} must be between 0 and 1")

    def wait_s(self, attempt: int, *, chance: float, retry_after_s: float = 0.0) -> float:
        """Return how long to wait after `attempt` failures in a row (from 1).

        Args:
            chance: a random number in [0, 1).
            retry_after_s: what the server asked for; never waited less.
        """
        # Beyond 64 doublings every wait is at its limit; a power that large would overflow a float some day.
        wait_s = min(self.limit_s, self.first_s * self.factor ** min(attempt - 1, 64))
        return max(retry_after_s, wait_s * (1 - self.jitter * chance))


class Retry:
    """The attempts at one thing, until a deadline.

        retry = channel.retry(limit_s)
        while True:
            try:
                return await attempt()
            except MillraceError as error:
                await retry.wait(error)

    Args:
        limit_s: how long from now on there may be another attempt.
        passes: whether another attempt can succeed after an error.
        chance: returns a random number in [0, 1).

    Attributes:
        failures: how many attempts have failed.
    """

    __slots__ = ("_backoff", "_chance", "_clock", "_deadline_s", "_passes", "failures", "limit_s")

    def __init__(
        self,
        backoff: Backoff,
        *,
        limit_s: float,
        passes: Callable[[MillraceError], bool] = attrgetter("retriable"),
        clock: Clock = SYSTEM_CLOCK,
        chance: Callable[[], float] = random,
    ) -> None:
        self._backoff = backoff
        self._clock = clock
        self._chance = chance
        self._passes = passes
        self.limit_s = limit_s
        self._deadline_s = clock.monotonic_s() + limit_s
        self.failures = 0

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self._deadline_s - self._clock.monotonic_s()

    def next_wait_s(self, error: MillraceError) -> float:
        """Count a failure and return how long to wait before the next attempt.

        Raises:
            MillraceError: `error` itself, if no attempt can succeed after it or the deadline comes first.
        """
        self.failures += 1
        wait_s = self._backoff.wait_s(
            self.failures,
            chance=self._chance(),
            retry_after_s=error.retry_after_s if isinstance(error, RequestError) else 0.0,
        )
        if not self._passes(error) or wait_s >= self.left_s:
            raise error
        return wait_s

    async def wait(self, error: MillraceError) -> None:
        """Count a failure and wait before the next attempt. Cancelling is safe. Raises like `next_wait_s`."""
        wait_s = self.next_wait_s(error)
        logger.debug("retry failures=%d wait_s=%.3f error=%s", self.failures, wait_s, error)
        await self._clock.sleep(wait_s)
