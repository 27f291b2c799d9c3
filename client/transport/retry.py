"""Decides when to make another attempt, and when to stop.

`Backoff` of the options determines how waits grow. The `Waits` of the client record the reason.
"""

import logging
from collections.abc import Callable
from typing import Self

from millrace.client.errors import ConnectionLostError, OutcomeUnknownError, PipelineBrokenError
from millrace.client.options import Backoff
from millrace.client.waiting import Waits
from millrace.model.errors import MillraceError, RequestError

from .clock import Clock

logger = logging.getLogger(__name__)


class Retry:
    """The attempts of one operation, until a deadline.

        with channel.retry(limit_s) as retry:
            while True:
                try:
                    return await attempt()
                except MillraceError as error:
                    await retry.wait(error)

    Args:
        limit_s: how long from now on to retry; `math.inf` for no limit.
        is_transient: whether another attempt can succeed after an error.
        chance: returns a random number in [0, 1).
        waits: records the waits, until `end`.

    Attributes:
        failures: how many attempts have failed.
    """

    __slots__ = ("_backoff", "_chance", "_clock", "_deadline_s", "_is_transient", "_waits", "failures", "limit_s")

    def __init__(
        self,
        backoff: Backoff,
        *,
        limit_s: float,
        is_transient: Callable[[MillraceError], bool],
        clock: Clock,
        chance: Callable[[], float],
        waits: Waits,
    ) -> None:
        self._backoff = backoff
        self._clock = clock
        self._chance = chance
        self._is_transient = is_transient
        self._waits = waits
        self.limit_s = limit_s
        self._deadline_s = clock.monotonic_s() + limit_s
        self.failures = 0

    def __enter__(self) -> Self:
        """Return this; leaving the body is the `end`."""
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self.end()

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
        if not self._is_transient(error) or wait_s >= self.left_s:
            self.end()
            raise error
        return wait_s

    async def wait(self, error: MillraceError) -> None:
        """Count a failure and wait before the next attempt. Cancelling is safe. Raises like `next_wait_s`.

        A lost connection is reopened at once, unless an attempt has failed before.
        """
        wait_s = self.next_wait_s(error)
        if self.failures == 1 and type(error) is ConnectionLostError:
            return
        logger.debug("retry failures=%d wait_s=%.3f error=%s", self.failures, wait_s, error)
        self._waits.begin(self, error)
        await self._clock.sleep(wait_s)

    def end(self) -> None:
        """Record the end of the wait: an attempt has succeeded, or no other one is made."""
        self._waits.end(self)


def may_resend(error: MillraceError) -> bool:
    """Return whether to resend idempotent data after this error."""
    return error.retriable or isinstance(error, OutcomeUnknownError | PipelineBrokenError)
