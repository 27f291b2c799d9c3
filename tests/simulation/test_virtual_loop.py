"""The time of a simulation jumps, and what is frozen does nothing."""

import asyncio
from collections.abc import Iterator

import pytest

from .virtual_loop import Life, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def test_time_jumps_to_what_comes_next(loop: VirtualLoop) -> None:
    loop.run_until_complete(asyncio.sleep(10**6))

    assert loop.time() == pytest.approx(10**6)


def test_a_wait_that_cannot_end_is_told(loop: VirtualLoop) -> None:
    with pytest.raises(RuntimeError, match="nothing is left"):
        loop.run_until_complete(loop.create_future())


def test_what_is_frozen_does_nothing_until_it_is_thawed(loop: VirtualLoop) -> None:
    told: list[float] = []

    async def work() -> None:
        while True:
            await asyncio.sleep(1.0)
            told.append(loop.time())

    async def life() -> None:
        process = Life()
        working = loop.start(process, work())
        await asyncio.sleep(2.5)
        process.is_frozen = True
        await asyncio.sleep(10.0)
        loop.thaw(process, timers_first=True)
        await asyncio.sleep(2.0)
        working.cancel()

    loop.run_until_complete(life())

    assert told == pytest.approx([1.0, 2.0, 12.5, 13.5])


def test_a_timer_that_was_cancelled_while_it_was_held_back_does_not_fire(loop: VirtualLoop) -> None:
    outcomes: list[str] = []

    async def work(answer: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(1.0):
                await answer
            outcomes.append("answered")
        except TimeoutError:
            outcomes.append("not answered")

    async def life(*, timers_first: bool) -> None:
        process, answer = Life(), loop.create_future()
        working = loop.start(process, work(answer))
        await asyncio.sleep(0.5)
        process.is_frozen = True
        answer.set_result(None)
        await asyncio.sleep(1.0)
        loop.thaw(process, timers_first=timers_first)
        await working

    loop.run_until_complete(life(timers_first=False))
    loop.run_until_complete(life(timers_first=True))

    assert outcomes[0] == "answered"
    assert len(outcomes) == 2
    assert not loop.errors
