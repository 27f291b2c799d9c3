"""A slow request is made a second time."""

import asyncio

import pytest

from millrace.server.errors import ObjectNotFoundError, StoreBusyError, StoreRefusedError, StoreUnavailableError
from millrace.server.object_store.hedging import (
    HEDGE_S_MIN,
    HEDGES_SAVED_MAX,
    REQUESTS_PER_HEDGE,
    SAMPLES_MIN,
    UsualTime,
    hedged,
)
from tests.support.clock import ManualClock
from tests.support.tables import table


class Requests:
    """Requests that end when the test says so."""

    def __init__(self) -> None:
        self.made: list[asyncio.Future[str]] = []
        self.hedges = 0
        self.hedges_max = 1000
        self.clock = ManualClock()

    async def make(self) -> str:
        self.made.append(asyncio.get_running_loop().create_future())
        return await self.made[-1]

    def may_hedge(self) -> bool:
        if self.hedges == self.hedges_max:
            return False
        self.hedges += 1
        return True

    async def start(self) -> "asyncio.Task[str]":
        task = asyncio.create_task(hedged(self.make, slow_s=1.0, clock=self.clock, may_hedge=self.may_hedge))
        await self.clock.advance(0.0)
        return task


def test_what_is_slow_is_known_from_what_is_usual() -> None:
    usual = UsualTime()
    for number in range(SAMPLES_MIN):
        assert usual.slow_s is None
        usual.add(0.1 if number else 3.0)
    assert usual.slow_s == 6.0  # the slowest of twenty
    for _ in range(20):
        usual.add(0.1)
    assert usual.slow_s == 0.2
    for _ in range(100):
        usual.add(0.001)
    assert usual.slow_s == HEDGE_S_MIN


@pytest.mark.asyncio
async def test_a_quick_one_is_asked_once() -> None:
    requests = Requests()
    task = await requests.start()
    requests.made[0].set_result("first")

    assert await task == "first"
    assert (len(requests.made), requests.hedges) == (1, 0)


@pytest.mark.asyncio
async def test_the_first_answer_counts_and_the_other_request_is_ended() -> None:
    requests = Requests()
    task = await requests.start()
    await requests.clock.advance(1.0)
    requests.made[1].set_result("second")

    assert await task == "second"
    assert (requests.made[0].cancelled(), requests.hedges) == (True, 1)


@pytest.mark.asyncio
async def test_a_failure_waits_for_the_other_one_but_a_refusal_is_an_answer() -> None:
    requests = Requests()
    task = await requests.start()
    await requests.clock.advance(1.0)
    requests.made[1].set_exception(StoreUnavailableError("no answer"))
    await requests.clock.advance(0.1)
    assert not task.done()
    requests.made[0].set_result("first")
    assert await task == "first"

    task = await requests.start()
    await requests.clock.advance(1.0)
    requests.made[3].set_exception(ObjectNotFoundError("gone"))
    with pytest.raises(ObjectNotFoundError):
        await task
    assert requests.made[2].cancelled()

    task = await requests.start()
    await requests.clock.advance(1.0)
    requests.made[4].set_exception(StoreRefusedError("403"))
    await requests.clock.advance(0.1)
    requests.made[5].set_result("second")
    assert await task == "second"


@pytest.mark.asyncio
async def test_one_that_may_not_be_hedged_is_waited_for() -> None:
    requests = Requests()
    requests.hedges_max = 0
    task = await requests.start()
    await requests.clock.advance(100.0)
    assert len(requests.made) == 1
    requests.made[0].set_result("first")
    assert await task == "first"


def test_of_so_many_requests_one_is_hedged() -> None:
    """Behaviour 95: what a request costs has a bound, however slow the store is."""
    usual = UsualTime()
    assert not usual.take_hedge()
    for _ in range(REQUESTS_PER_HEDGE):
        usual.add(0.1)
    assert [usual.take_hedge() for _ in range(2)] == [True, False]
    for _ in range(1000):
        usual.add(0.1)
    assert sum(usual.take_hedge() for _ in range(100)) == HEDGES_SAVED_MAX


@pytest.mark.asyncio
async def test_both_may_fail_and_a_cancelled_one_leaves_nothing() -> None:
    requests = Requests()
    task = await requests.start()
    await requests.clock.advance(1.0)
    for request in requests.made:
        request.set_exception(StoreUnavailableError("no answer"))
    with pytest.raises(StoreUnavailableError):
        await task

    task = await requests.start()
    await requests.clock.advance(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [request.cancelled() for request in requests.made] == [False, False, True, True]


@pytest.mark.asyncio
@table("open_one", [0, 1])
@table("fails_first", [0, 1, None])
@table(
    "undone",
    [
        StoreBusyError("come back later", changed_nothing=True),
        StoreUnavailableError("not now", changed_nothing=True),
        StoreRefusedError("403"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_of_two_failures_the_one_whose_outcome_is_open_is_told(
    open_one: int, fails_first: int | None, undone: StoreUnavailableError | StoreRefusedError
) -> None:
    """Behaviour 92: that nothing was changed is said only where neither may have changed something."""
    requests = Requests()
    task = await requests.start()
    await requests.clock.advance(1.0)
    failures = {open_one: StoreUnavailableError("no answer"), 1 - open_one: undone}
    for number in sorted(failures, reverse=fails_first == 1):
        requests.made[number].set_exception(failures[number])
        if fails_first is not None:
            await requests.clock.advance(0.1)

    with pytest.raises(StoreUnavailableError, match="no answer") as caught:
        await task
    assert not caught.value.changed_nothing
