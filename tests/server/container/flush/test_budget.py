"""What may be flushed when flushes are paid for: never more than the rate and what the bucket holds."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.flush.budget import PAYOUT_S, FlushBudget
from tests.support.tables import table


def test_it_is_full_at_first_and_fills_at_its_rate() -> None:
    budget = FlushBudget(20.0, saved_s=5.0, now_s=7.0)
    assert budget.available(7.0) == 100
    budget.spend(100)
    assert budget.available(8.0) == 20
    budget.spend(15)
    assert budget.available(1000.0) == 100


def test_it_gives_out_several_at_once() -> None:
    """So that a look at ten thousand tails is not made for one of them."""
    budget = FlushBudget(20.0, saved_s=5.0, now_s=0.0)
    budget.spend(100)
    assert budget.available(PAYOUT_S - 0.01) == 0
    assert budget.available(PAYOUT_S) == 10


@table("per_s", [0.01, 0.5, 1.0])
def test_a_low_rate_gives_out_one_at_a_time(per_s: float) -> None:
    budget = FlushBudget(per_s, saved_s=1.0, now_s=0.0)
    assert budget.available(0.0) == 1
    budget.spend(1)
    assert budget.available(0.9 / per_s) == 0
    assert budget.available(1.1 / per_s) == 1


def test_what_memory_or_the_log_demanded_is_forgiven() -> None:
    budget = FlushBudget(20.0, saved_s=5.0, now_s=0.0)
    budget.spend(100_000)
    assert budget.available(1.0) == 20


def test_what_memory_demands_all_the_time_leaves_flushes_for_those_that_are_old() -> None:
    budget = FlushBudget(20.0, saved_s=5.0, now_s=0.0)
    given_out = 0
    for step in range(100):
        given_out += budget.available(step * 0.1)
        budget.spend(1_000)
    assert 20 * 9 <= given_out <= 20 * 10 + 100


@given(st.floats(0.01, 1000.0), st.floats(0.0, 60.0), st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 1.0))))
def test_over_any_time_it_gives_out_no_more_than_its_rate(
    per_s: float, saved_s: float, steps: list[tuple[float, float]]
) -> None:
    budget = FlushBudget(per_s, saved_s=saved_s, now_s=0.0)
    now_s, given_out = 0.0, 0
    for pause_s, share in steps:
        now_s += pause_s
        count = int(budget.available(now_s) * share)
        budget.spend(count)
        given_out += count
        assert given_out <= per_s * now_s + max(1.0, per_s * saved_s) + 1e-6 * now_s * per_s
