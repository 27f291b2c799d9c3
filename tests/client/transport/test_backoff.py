import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.transport.backoff import Backoff


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


@pytest.mark.parametrize("wrong", [{"first_s": 0}, {"first_s": 5, "limit_s": 1}, {"factor": 0.5}, {"jitter": 1.5}])
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Backoff(**wrong)
