"""When the puts of a log in an object store may begin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.wal.pacing import WINDOW_COUNT, Pacing


def test_the_first_put_waits_for_nothing() -> None:
    pacing = Pacing(puts_per_s_max=20.0, now_s=100.0)
    assert pacing.wait_s(100.0, in_flight=0) == 0.0


def test_puts_are_spread_over_the_shortest_round_trip() -> None:
    pacing = Pacing(puts_per_s_max=0.0, now_s=0.0)
    for duration_s in (0.080, 5.0, 0.090):
        pacing.ended(duration_s)
    pacing.began(1.0)
    assert pacing.round_trip_s == 0.080
    assert pacing.wait_s(1.004, in_flight=1) == pytest.approx(0.080 / WINDOW_COUNT - 0.004)
    assert pacing.wait_s(1.011, in_flight=7) == 0.0
    # With nothing under way there is nobody to wait for.
    assert pacing.wait_s(1.001, in_flight=0) == 0.0


def test_a_log_that_was_idle_may_put_a_second_s_worth_at_once() -> None:
    pacing = Pacing(puts_per_s_max=20.0, now_s=0.0)
    for _ in range(20):
        assert pacing.wait_s(0.0, in_flight=0) == 0.0
        pacing.began(0.0)
    assert pacing.wait_s(0.0, in_flight=0) == pytest.approx(0.05)
    assert pacing.wait_s(0.06, in_flight=0) == 0.0


@given(
    rate=st.floats(0.5, 100.0),
    pauses=st.lists(st.floats(0.0, 2.0), max_size=200),
    trip_s=st.floats(0.001, 2.0),
)
def test_there_are_never_more_puts_than_the_bound_allows(rate: float, pauses: list[float], trip_s: float) -> None:
    pacing = Pacing(puts_per_s_max=rate, now_s=0.0)
    pacing.ended(trip_s)
    now_s = 0.0
    for count, pause_s in enumerate(pauses, start=1):
        now_s += pause_s
        wait_s = pacing.wait_s(now_s, in_flight=count % WINDOW_COUNT)
        assert 0.0 <= wait_s <= max(trip_s / WINDOW_COUNT, 1.0 / rate) + 1e-6
        now_s += wait_s
        pacing.began(now_s)
        assert count <= max(1.0, rate) + rate * now_s + 1e-6


def test_full_batches_are_taken_from_what_comes_later() -> None:
    pacing = Pacing(puts_per_s_max=10.0, now_s=0.0)
    for _ in range(1000):
        pacing.began(0.0)
    # Not more than a burst is owed: a log that was busy is not held up for long.
    assert pacing.wait_s(0.0, in_flight=0) == pytest.approx(1.1)
