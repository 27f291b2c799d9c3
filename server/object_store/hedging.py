"""Hedging: sends a second request when the first has taken twice the 95th percentile.

Object stores answer a few requests of a hundred ten times slower than the rest. A second request, on another
connection, usually overtakes the slow one. Each request is paid for, so in the long run there is at most one hedge for
20 requests, however slow the store is.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from millrace.server.errors import StoreRefusedError, StoreUnavailableError
from millrace.server.host.clock import Clock

SAMPLES_MAX: Final = 100
SAMPLES_MIN: Final = 20
"""With fewer samples the percentile is unknown."""
HEDGE_S_MIN: Final = 0.02
REQUESTS_PER_HEDGE: Final = 20
HEDGES_SAVED_MAX: Final = 5
"""The most hedges in a burst after a time without any."""

T = TypeVar("T")


class UsualTime:
    """Durations of the last requests of one kind, and the hedges that they have earned."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=SAMPLES_MAX)
        # Requests that no hedge was taken for.
        self._saved_count = 0

    def add(self, duration_s: float) -> None:
        """Note a request that was answered."""
        self._seconds.append(duration_s)
        self._saved_count = min(self._saved_count + 1, HEDGES_SAVED_MAX * REQUESTS_PER_HEDGE)

    @property
    def slow_s(self) -> float | None:
        """The number of seconds after which a request counts as slow; None while unknown."""
        if len(self._seconds) < SAMPLES_MIN:
            return None
        return max(HEDGE_S_MIN, 2 * sorted(self._seconds)[len(self._seconds) * 95 // 100])

    def take_hedge(self) -> bool:
        """Spend one hedge if available; return whether it was."""
        if self._saved_count < REQUESTS_PER_HEDGE:
            return False
        self._saved_count -= REQUESTS_PER_HEDGE
        return True


async def hedged(make: Callable[[], Awaitable[T]], *, slow_s: float, clock: Clock, may_hedge: Callable[[], bool]) -> T:
    """Return the first answer of a request and, if that is slow, of a second identical one; the other is cancelled.

    An error counts as an answer, except StoreUnavailableError and StoreRefusedError: then the other request is awaited.
    If both fail like this, an error with an open outcome takes precedence over one that changed nothing.

    Args:
        may_hedge: called once the request is slow.
    """
    tasks = [asyncio.ensure_future(make())]
    try:
        try:
            async with clock.timeout(slow_s):
                await asyncio.wait(tasks)
        except TimeoutError:
            if may_hedge():
                tasks.append(asyncio.ensure_future(make()))
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not isinstance(task.exception(), StoreUnavailableError | StoreRefusedError):
                    return task.result()
        return max(reversed(tasks), key=_is_open).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_open(failed: "asyncio.Future[T]") -> bool:
    """Return whether a failed request may have changed something, or may still do so."""
    error = failed.exception()
    return isinstance(error, StoreUnavailableError) and not error.changed_nothing
