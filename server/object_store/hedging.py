"""When a request has taken so long that a second one is worth it: after twice what 95 of 100 take.

Object stores answer a few requests of a hundred ten times slower than the rest. A second one, on another connection,
as a rule overtakes the first. Each is paid for, so in the long run there is at most one for 20 requests, however slow
the store is.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from millrace.server.errors import StoreRefusedError, StoreUnavailableError
from millrace.server.host.clock import Clock

SAMPLES_MAX: Final = 100
SAMPLES_MIN: Final = 20
"""With fewer than these nothing is known of what is usual."""
HEDGE_S_MIN: Final = 0.02
REQUESTS_PER_HEDGE: Final = 20
HEDGES_SAVED_MAX: Final = 5
"""So many at once after a time without any."""

T = TypeVar("T")


class UsualTime:
    """How long the last requests of one kind took, and how many hedges they have earned."""

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
        """After how many seconds a request is slow; None while that is not known."""
        if len(self._seconds) < SAMPLES_MIN:
            return None
        return max(HEDGE_S_MIN, 2 * sorted(self._seconds)[len(self._seconds) * 95 // 100])

    def take_hedge(self) -> bool:
        """Return whether there may be a hedge, which counts then."""
        if self._saved_count < REQUESTS_PER_HEDGE:
            return False
        self._saved_count -= REQUESTS_PER_HEDGE
        return True


async def hedged(make: Callable[[], Awaitable[T]], *, slow_s: float, clock: Clock, may_hedge: Callable[[], bool]) -> T:
    """Return the first answer of a request and, if that is slow, of a second one like it; the other is cancelled.

    An error is an answer, unless it is StoreUnavailableError or StoreRefusedError: then the other one is waited for. If
    both fail so, an error whose outcome is open is raised before one that says that nothing was changed.

    Args:
        may_hedge: asked once the request is slow.
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
    """Return whether a request that has failed may have changed something, or may do so yet."""
    error = failed.exception()
    return isinstance(error, StoreUnavailableError) and not error.changed_nothing
