import asyncio
import math
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.errors import ClientClosedError, ConnectionLostError, ServerUnreachableError, ThrottledError
from millrace.client.options import Backoff
from millrace.client.transport.retry import Retry
from millrace.client.waiting import Waits
from millrace.model.errors import ErrorFacts, MillraceError
from tests.support.clock import ManualClock
from tests.support.tables import table


@given(attempt=st.integers(1, 10**6), chance=st.floats(0, 1, exclude_max=True), jitter=st.floats(0, 1))
def test_a_wait_is_never_above_the_limit_and_never_below_its_unjittered_part(
    attempt: int, chance: float, jitter: float
) -> None:
    rule = Backoff(first_s=0.1, factor=2, limit_s=3, jitter=jitter)

    wait_s = rule.wait_s(attempt, chance=chance)

    full_s = min(3.0, 0.1 * 2.0 ** min(attempt - 1, 100))
    assert full_s * (1 - jitter) <= wait_s <= full_s


def test_waits_grow_by_the_factor() -> None:
    rule = Backoff(first_s=1, factor=3, limit_s=20, jitter=0.5)

    assert [rule.wait_s(attempt, chance=0) for attempt in range(1, 6)] == [1, 3, 9, 20, 20]


def test_the_server_is_never_asked_again_before_it_said() -> None:
    assert Backoff(first_s=0.1).wait_s(1, chance=0.9, retry_after_s=7) == 7


@table("wrong", [{"first_s": 0}, {"first_s": 5, "limit_s": 1}, {"factor": 0.5}, {"jitter": 1.5}])
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Backoff(**wrong)


LOST = ConnectionLostError("lost")
UNREACHABLE = ServerUnreachableError("model:1", "down")


def retry_of(clock: ManualClock, **options: object) -> Retry:
    rule = Backoff(first_s=1, factor=2, limit_s=4, jitter=0.5)
    waits = Waits("model:1", monotonic_s=clock.monotonic_s)
    given: dict[str, object] = {"limit_s": 10.0, "is_transient": attrgetter("retriable"), "waits": waits, **options}
    return Retry(rule, clock=clock, chance=lambda: 0.0, **given)  # type: ignore[arg-type]  # as given


def test_attempts_are_made_until_the_deadline() -> None:
    clock = ManualClock()
    retry = retry_of(clock)
    for wait_s in (1, 2, 4):
        assert retry.next_wait_s(LOST) == wait_s
        clock.move(wait_s)
    with pytest.raises(ConnectionLostError):
        retry.next_wait_s(LOST)
    assert retry.left_s == 3
    assert retry.failures == 4


def test_what_no_attempt_can_change_is_raised_at_once() -> None:
    with pytest.raises(ClientClosedError):
        retry_of(ManualClock()).next_wait_s(ClientClosedError("closed"))


def test_the_caller_says_what_passes() -> None:
    def passes(error: MillraceError) -> bool:
        return isinstance(error, ClientClosedError)

    retry = retry_of(ManualClock(), is_transient=passes)
    assert retry.next_wait_s(ClientClosedError("closed")) == 1
    with pytest.raises(ConnectionLostError):
        retry.next_wait_s(LOST)


def test_the_wait_that_the_server_asks_for_counts_against_the_deadline() -> None:
    retry = retry_of(ManualClock())
    assert retry.next_wait_s(ThrottledError(ErrorFacts(message="full", retriable=True, retry_after_s=9))) == 9
    with pytest.raises(ThrottledError):
        retry.next_wait_s(ThrottledError(ErrorFacts(message="full", retriable=True, retry_after_s=10)))


def test_without_a_limit_there_is_always_another_attempt() -> None:
    """Behaviour 89."""
    clock = ManualClock()
    retry = retry_of(clock, limit_s=math.inf)
    for _ in range(1000):
        clock.move(3600 + retry.next_wait_s(LOST))
    assert retry.left_s == math.inf


@pytest.mark.asyncio
async def test_a_wait_is_one_on_the_clock() -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(retry_of(clock).wait(UNREACHABLE))
    await clock.advance(0)  # until it sleeps
    await clock.advance(0.9)
    assert not waiting.done()
    await clock.advance(0.2)
    assert waiting.done()


@pytest.mark.asyncio
async def test_a_lost_connection_is_made_again_at_once_and_the_next_one_is_waited_for() -> None:
    clock = ManualClock()
    retry = retry_of(clock)
    await retry.wait(LOST)
    waiting = asyncio.create_task(retry.wait(LOST))
    await clock.advance(0)  # until it sleeps
    await clock.advance(1.9)
    assert not waiting.done()
    await clock.advance(0.2)
    await waiting


@pytest.mark.asyncio
async def test_what_is_waited_for_is_noted_until_the_end() -> None:
    clock = ManualClock()
    waits = Waits("model:1", monotonic_s=clock.monotonic_s)
    with retry_of(clock, waits=waits) as retry:
        assert waits.current is None
        waiting = asyncio.create_task(retry.wait(UNREACHABLE))
        await clock.advance(0)
        assert waits.current is not None
        await clock.advance(1)
        await waiting
        assert waits.current is not None
    assert waits.current is None
    waiting = asyncio.create_task(retry.wait(UNREACHABLE))
    await clock.advance(0)
    await clock.advance(20)
    await waiting
    with pytest.raises(ServerUnreachableError):
        await retry.wait(UNREACHABLE)
    assert waits.current is None
