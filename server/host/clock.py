"""The time, handed in so that a test can move it."""

import asyncio
import sys
import time
from typing import Protocol


class Clock(Protocol):
    """The server's source of time. Readings may be taken in any thread."""

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start; never goes back. For durations and deadlines."""
        ...

    def elapsed_s(self) -> float:
        """Return the time of `monotonic_s`, where possible including the time that the machine was suspended.

        Use it to bound what other machines may have done meanwhile. It has its own start, so compare only its own
        readings.
        """
        ...

    def unix_us(self) -> int:
        """Return microseconds since 1970 in UTC; may jump either way. For stored times."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Wait that many seconds of monotonic time. Safe to cancel."""
        ...

    def timeout(self, duration_s: float) -> asyncio.Timeout:
        """Return a context manager that ends its body with TimeoutError after that many seconds of monotonic time."""
        ...

    def pause(self, duration_s: float) -> None:
        """Block the calling thread for that many seconds; never called in the event loop."""
        ...


class SystemClock:
    """The clock of the machine."""

    # The function of the machine itself: it is read several times for each batch.
    monotonic_s = staticmethod(time.monotonic)

    def elapsed_s(self) -> float:
        """Return the time since the machine was started; on other systems than Linux, `monotonic_s`."""
        if sys.platform == "linux":
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def unix_us(self) -> int:
        """Return the machine's wall time in microseconds."""
        return time.time_ns() // 1000

    async def sleep(self, duration_s: float) -> None:
        """Wait without holding the event loop."""
        await asyncio.sleep(duration_s)

    def timeout(self, duration_s: float) -> asyncio.Timeout:
        """Return a timeout of the event loop."""
        return asyncio.timeout(duration_s)

    def pause(self, duration_s: float) -> None:
        """Sleep; other threads run meanwhile."""
        time.sleep(duration_s)
