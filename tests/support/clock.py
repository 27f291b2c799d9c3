"""A clock that moves when the test says so."""

import asyncio
import heapq
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress


class ManualClock:
    """Fills the `Clock` seams of server and client.

    Reading it is safe in any thread; moving and sleeping belong to one event loop.
    """

    def __init__(self, *, monotonic_s: float = 1000.0, unix_us: int = 1_700_000_000_000_000) -> None:
        self._lock = threading.Lock()
        self._monotonic_s = monotonic_s
        self._suspended_s = 0.0
        self._unix_us = unix_us
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._timeouts: list[tuple[float, int, asyncio.Timeout]] = []
        self._count = 0
        # Called in the thread that pauses, instead of a wait.
        self.on_pause: Callable[[float], None] = lambda duration_s: None

    def monotonic_s(self) -> float:
        with self._lock:
            return self._monotonic_s

    def elapsed_s(self) -> float:
        with self._lock:
            return self._monotonic_s + self._suspended_s

    def unix_us(self) -> int:
        with self._lock:
            return self._unix_us

    def time_ns(self) -> int:
        return self.unix_us() * 1000

    def timeout(self, duration_s: float) -> asyncio.Timeout:
        timeout = asyncio.timeout(None if duration_s > 0 else 0)
        self._count += 1
        heapq.heappush(self._timeouts, (self.monotonic_s() + duration_s, self._count, timeout))
        return timeout

    async def sleep(self, duration_s: float) -> None:
        if duration_s <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self.monotonic_s() + duration_s, self._count, future))
        await future

    def pause(self, duration_s: float) -> None:
        self.on_pause(duration_s)

    @property
    def sleeper_count(self) -> int:
        """How many sleep now."""
        return sum(not future.done() for _, _, future in self._sleepers)

    def jump_wall(self, duration_us: int) -> None:
        """Move the wall clock alone, either way."""
        with self._lock:
            self._unix_us += duration_us

    def suspend(self, duration_s: float) -> None:
        """Let the machine sleep: its monotonic clock stands still, and nobody wakes."""
        with self._lock:
            self._suspended_s += duration_s
            self._unix_us += round(duration_s * 1e6)

    def move(self, duration_s: float) -> None:
        """Move both clocks on and wake those that have slept enough, in order; call it in the loop of the sleepers."""
        with self._lock:
            self._monotonic_s += duration_s
            self._unix_us += round(duration_s * 1e6)
            now_s = self._monotonic_s
        while self._sleepers and self._sleepers[0][0] <= now_s:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)
        while self._timeouts and self._timeouts[0][0] <= now_s:
            with suppress(RuntimeError):  # its body has ended
                heapq.heappop(self._timeouts)[2].reschedule(0)

    async def advance(self, duration_s: float) -> None:
        """Move the clock and let those who woke run until they wait again."""
        self.move(duration_s)
        for _ in range(10):
            await asyncio.sleep(0)


class HastyClock(ManualClock):
    """A clock on which every wait is over at once: its time has passed."""

    def timeout(self, duration_s: float) -> asyncio.Timeout:
        self.move(max(0.0, duration_s))
        return asyncio.timeout(0)

    async def sleep(self, duration_s: float) -> None:
        self.move(max(0.0, duration_s))
        await asyncio.sleep(0)


@asynccontextmanager
async def passing_time(clock: ManualClock, step_s: float = 0.01) -> AsyncIterator[None]:
    """Move a clock in each turn of the event loop, so that what runs by itself goes on."""

    async def move() -> None:
        while True:
            clock.move(step_s)
            await asyncio.sleep(0)

    moving = asyncio.create_task(move())
    try:
        yield
    finally:
        moving.cancel()
        await asyncio.wait([moving])
