"""The client's source of time, passed in so that a test can control it."""

import asyncio
import math
import time
from typing import Final, Protocol


class Clock(Protocol):
    """The source of durations, deadlines and timestamps."""

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start; never goes back. For durations and deadlines."""
        ...

    def time_ns(self) -> int:
        """Return nanoseconds since 1970 in UTC; may jump either way. For timestamps of events."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Wait that many seconds of monotonic time. Cancelling is safe."""
        ...

    def timeout(self, duration_s: float) -> asyncio.Timeout:
        """Return a context manager that ends its body with TimeoutError after that many seconds of monotonic time.

        `math.inf` is never.
        """
        ...


class SystemClock:
    """The clock of the machine."""

    monotonic_s = staticmethod(time.monotonic)
    # No function around it: it is called for each event.
    time_ns = staticmethod(time.time_ns)

    async def sleep(self, duration_s: float) -> None:
        """Wait that many seconds. Cancelling is safe."""
        await asyncio.sleep(duration_s)

    def timeout(self, duration_s: float) -> asyncio.Timeout:
        """Return a context manager that ends its body with TimeoutError after that many seconds, `math.inf` never."""
        return asyncio.timeout(None if duration_s == math.inf else duration_s)


SYSTEM_CLOCK: Final[Clock] = SystemClock()
