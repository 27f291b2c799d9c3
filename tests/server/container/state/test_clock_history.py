from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.state.clock_history import (
    ANCHORS_COUNT_MAX,
    NOTHING_US,
    ClockHistory,
    ClockReading,
)
from tests.support.tables import table

S = 1_000_000
START_US = 1_700_000_000 * S


def reading(uptime_us: int, unix_us: int, *, monotonic_us: int = 0, boot: str = "") -> ClockReading:
    return ClockReading(uptime_us, unix_us, monotonic_us, boot)


def test_without_jumps_age_is_the_difference_of_stamps() -> None:
    history = ClockHistory(anchors=[(100 * S, START_US)])
    for second in range(500):
        history.observe(reading((100 + second) * S, START_US + second * S))
    assert history.old_before_us(60 * S, uptime_us=600 * S) == START_US + 440 * S
    assert history.anchors == [(100 * S, START_US)]


def test_a_forward_jump_makes_nothing_older() -> None:
    """Behaviour 25: a forward jump of the wall clock deletes nothing."""
    history = ClockHistory(anchors=[(0, START_US)])
    history.observe(reading(10 * S, START_US + 10 * S))
    history.observe(reading(12 * S, START_US + 10**9 * S))
    history.observe(reading(40 * S, START_US + 10**9 * S + 28 * S))

    assert history.old_before_us(30 * S, uptime_us=40 * S) == START_US + 10 * S
    # What was written after the jump has its age, too.
    assert history.old_before_us(28 * S, uptime_us=50 * S) == START_US + 10**9 * S + 10 * S


def test_a_backward_jump_keeps_what_got_the_same_stamps_twice() -> None:
    history = ClockHistory(anchors=[(0, START_US)])
    history.observe(reading(100 * S, START_US + 40 * S))  # 60 s back
    # Stamps of 40 to 100 s were given twice; until the second ones are old, the first ones count as young.
    assert history.old_before_us(50 * S, uptime_us=130 * S) == START_US + 40 * S
    assert history.old_before_us(50 * S, uptime_us=170 * S) == START_US + 60 * S


def test_the_time_before_the_first_reading_is_not_counted() -> None:
    """Behaviour 25: a clock that jumped while the server was down deletes nothing."""
    history = ClockHistory()
    assert history.old_before_us(60 * S, uptime_us=1000 * S) == NOTHING_US
    assert history.has_jumped(reading(0, 0))
    history.observe(reading(0, START_US + 10**9 * S))
    assert history.old_before_us(60 * S, uptime_us=10 * S) == NOTHING_US
    assert history.old_before_us(60 * S, uptime_us=60 * S - 1) == NOTHING_US
    assert history.old_before_us(60 * S, uptime_us=60 * S + S // 2) == START_US + 10**9 * S + S // 2


def test_the_time_in_which_no_server_ran_counts_as_long_as_the_machine_did() -> None:
    history = ClockHistory()
    history.observe(reading(100 * S, START_US, monotonic_us=1000 * S, boot="b"))
    # 10 s of uptime were counted since, of 500 s.
    later = reading(110 * S, START_US + 500 * S, monotonic_us=1500 * S, boot="b")
    assert not history.has_jumped(later)
    history.observe(later)
    assert len(history.anchors) == 1
    assert history.old_before_us(500 * S, uptime_us=110 * S) == START_US
    assert history.old_before_us(501 * S, uptime_us=110 * S) == NOTHING_US

    jumped = reading(111 * S, START_US + 10**9 * S, monotonic_us=1600 * S, boot="b")
    assert history.has_jumped(jumped)
    history.observe(jumped)
    assert history.old_before_us(600 * S, uptime_us=111 * S) == START_US
    assert history.old_before_us(1 * S, uptime_us=112 * S) == START_US + 10**9 * S


@table(("before", "now", "monotonic_s"), [("b", "other", 2000), ("", "", 2000), ("b", "b", 5)])
def test_a_restart_of_the_machine_loses_the_time_in_which_it_was_off(before: str, now: str, monotonic_s: int) -> None:
    """Behaviour 25: that time only the wall clock knows, and it may have jumped."""
    history = ClockHistory()
    history.observe(reading(0, START_US, monotonic_us=1000 * S, boot=before))
    history.observe(reading(0, START_US + 10**9 * S, monotonic_us=monotonic_s * S, boot=now))
    assert history.old_before_us(60 * S, uptime_us=59 * S) == NOTHING_US
    assert history.old_before_us(60 * S, uptime_us=60 * S) == START_US + 10**9 * S


def test_there_is_a_bound_and_beyond_it_things_are_younger() -> None:
    history = ClockHistory()
    for count in range(ANCHORS_COUNT_MAX + 10):
        history.observe(reading(count * S, START_US + count * 100 * S))
    assert len(history.anchors) == ANCHORS_COUNT_MAX
    assert history.old_before_us(0, uptime_us=9 * S) == NOTHING_US
    assert history.old_before_us(0, uptime_us=10 * S) == START_US + 1000 * S


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(-200, 200)), max_size=30), st.integers(0, 400))
def test_nothing_younger_is_ever_called_old(steps: list[tuple[int, int]], age_s: int) -> None:
    """Whatever the wall clock does between looks, every stamp below the answer is old enough."""
    now_s, wall_s = 0, 1000
    history = ClockHistory(anchors=[(0, wall_s * S)])
    stamps = [(0, wall_s)]
    for duration_s, jump_s in steps:
        wall_s += jump_s if abs(jump_s) > 100 else 0
        history.observe(reading(now_s * S, wall_s * S))
        for _ in range(duration_s):
            now_s, wall_s = now_s + 1, wall_s + 1
            stamps.append((now_s, wall_s))
    old_before_us = history.old_before_us(age_s * S, uptime_us=now_s * S)
    assert all(now_s - when_s >= age_s for when_s, stamp_s in stamps if stamp_s * S < old_before_us)
