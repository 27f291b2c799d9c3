"""Tracks when an event last arrived, and the longest silence."""

import asyncio
import time
from collections.abc import Callable


class Pulse:
    """Counts what comes, and measures the longest silence. Belongs to one event loop.

    Args:
        monotonic_s: the clock.

    Attributes:
        count: what has come by now.
        silence_s: the longest time in which nothing came, since the last `listen`.
    """

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self.silence_s = 0.0
        self._monotonic_s = monotonic_s
        self._last_s = monotonic_s()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def beat(self, count: int = 1) -> None:
        """Note that so many came."""
        now_s = self._monotonic_s()
        self.silence_s = max(self.silence_s, now_s - self._last_s)
        self._last_s = now_s
        self.count += count
        for wanted, future in self._waiting:
            if wanted <= self.count and not future.done():
                future.set_result(None)
        self._waiting = [(wanted, future) for wanted, future in self._waiting if not future.done()]

    def listen(self) -> None:
        """Measure the longest silence from now on."""
        self.silence_s = 0.0
        self._last_s = self._monotonic_s()

    async def reach(self, count: int) -> None:
        """Wait until so many have come. Cancelling is safe."""
        if self.count < count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((count, future))
            await future
