"""When a read has taken so long that asking a second time is worth it: after twice what 95 of 100 take.

Object stores answer a few requests of a hundred ten times slower than the rest. A second one, on another connection,
as a rule overtakes the first; so few are slow that it hardly adds load.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from millrace.server.errors import StoreUnavailableError
from millrace.server.host.clock import Clock

SAMPLES_MAX: Final = 100
SAMPLES_MIN: Final = 20
"""With fewer than these nothing is known of what is usual."""
HEDGE_S_MIN: Final = 0.02

T = TypeVar("T")


class UsualTime:
    """How long the last requests of one kind took."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=SAMPLES_MAX)

    def add(self, duration_s: float) -> None:
        """Note a request that was answered."""
        self._seconds.append(duration_s)

    @property
    def slow_s(self) -> float | None:
        """After how many seconds a request is slow; None while that is not known."""
        if len(self._seconds) < SAMPLES_MIN:
            return None
        return max(HEDGE_S_MIN, 2 * sorted(self._seconds)[len(self._seconds) * 95 // 100])


async def hedged(make: Callable[[], Awaitable[T]], *, slow_s: float, clock: Clock, on_hedge: Callable[[], None]) -> T:
    """Return the first answer of a request and, if that is slow, of a second one like it; the other is cancelled.

    An error is an answer, unless it is StoreUnavailableError: then the other one is waited for.
    """
    tasks = [asyncio.ensure_future(make())]
    try:
        try:
            async with clock.timeout(slow_s):
                await asyncio.wait(tasks)
        except TimeoutError:
            on_hedge()
            tasks.append(asyncio.ensure_future(make()))
        pending = set(tasks)
        while len(pending) > 1:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not isinstance(task.exception(), StoreUnavailableError):
                    return task.result()
        last = pending.pop() if pending else tasks[0]
        return await last
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
