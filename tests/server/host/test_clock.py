import asyncio
import time

import pytest

from millrace.server.host.clock import Clock, SystemClock
from tests.support.clock import ManualClock


def test_the_clock_of_the_machine_tells_both_times() -> None:
    clock: Clock = SystemClock()

    before = time.monotonic()
    assert before <= clock.monotonic_s() <= time.monotonic()
    assert abs(clock.unix_us() - time.time() * 1e6) < 5e6
    assert clock.elapsed_s() <= clock.elapsed_s()


@pytest.mark.asyncio
async def test_the_clock_of_the_machine_sleeps() -> None:
    clock = SystemClock()
    before = clock.monotonic_s()

    await clock.sleep(0.002)

    assert clock.monotonic_s() - before >= 0.002


@pytest.mark.asyncio
async def test_a_manual_clock_wakes_sleepers_in_order() -> None:
    clock = ManualClock()
    woken: list[str] = []

    async def sleeper(name: str, duration_s: float) -> None:
        await clock.sleep(duration_s)
        woken.append(name)

    tasks = [
        asyncio.ensure_future(sleeper(name, duration)) for name, duration in (("b", 2.0), ("a", 1.0), ("now", 0.0))
    ]
    await clock.advance(0)
    assert (woken, clock.sleeper_count) == (["now"], 2)
    await clock.advance(1)
    assert woken == ["now", "a"]
    await clock.advance(5)
    await asyncio.gather(*tasks)

    assert woken == ["now", "a", "b"]
    assert clock.monotonic_s() == 1006.0


def test_a_manual_clock_moves_the_wall_apart() -> None:
    clock = ManualClock(unix_us=10)
    clock.move(1.5)
    clock.jump_wall(-1_000_000)

    assert clock.unix_us() == 500_010
    assert clock.monotonic_s() == 1001.5


@pytest.mark.asyncio
async def test_a_manual_clock_ends_timeouts() -> None:
    clock = ManualClock()

    async def body() -> None:
        async with clock.timeout(5.0):
            await asyncio.get_running_loop().create_future()

    running = asyncio.ensure_future(body())
    await clock.advance(0)
    await clock.advance(4.9)
    assert not running.done()
    await clock.advance(0.2)
    with pytest.raises(TimeoutError):
        await running
    assert clock.sleeper_count == 0


def test_a_pause_holds_up_the_thread() -> None:
    clock = SystemClock()
    before = clock.monotonic_s()
    clock.pause(0.002)
    assert clock.monotonic_s() - before >= 0.002
