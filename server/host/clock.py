"""The time, handed in so that a test can move it."""

import asyncio
import sys
import time
from typing import Protocol


class Clock(Protocol):
    """Where the server takes the time from. The readings may be taken in any thread."""

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start; never goes back. For durations and deadlines."""
        ...

    def elapsed_s(self) -> float:
        """Return what `monotonic_s` does, where possible with the time that the machine was suspended.

        For what others may have done meanwhile. Its start is another one: compare it with itself only.
        """
        ...

    def unix_us(self) -> int:
        """Return microseconds since 1970 in UTC; may jump either way. For what is stored."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Wait that many seconds of monotonic time. Safe to cancel."""
        ...

    def timeout(self, duration_s: float) -> asyncio.Timeout:
        """Return a context manager that ends its body with TimeoutError after that many seconds of monotonic time."""
        ...

    def pause(self, duration_s: float) -> None:
        """Hold up the calling thread for that many seconds; never called in the event loop."""
        ...


class SystemClock:
    """The clock of the machine."""

    # The function of the machine itself: it is read several times for each batch.
    monotonic_s = staticmethod(time.monotonic)

    def elapsed_s(self) -> float:
        """Return the time since the machine was started; elsewhere than on Linux, `monotonic_s`."""
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
        """Let other threads run meanwhile."""
        time.sleep(duration_s)
