import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.streams.clock_history import NOTHING_US, ClockHistory, clock_history_of_text

S = 1_000_000
START_US = 1_700_000_000 * S


def test_without_jumps_age_is_the_difference_of_stamps() -> None:
    line = ClockHistory([(100.0, START_US)])
    for second in range(500):
        line.observe(monotonic_s=100.0 + second, unix_us=START_US + second * S)
    assert line.old_before_us(60.0, monotonic_s=600.0) == START_US + 440 * S


def test_a_forward_jump_makes_nothing_older() -> None:
    """Behaviour 25: a forward jump of the wall clock deletes nothing."""
    line = ClockHistory([(0.0, START_US)])
    line.observe(monotonic_s=10.0, unix_us=START_US + 10 * S)
    line.observe(monotonic_s=12.0, unix_us=START_US + 10**9 * S)
    line.observe(monotonic_s=40.0, unix_us=START_US + 10**9 * S + 28 * S)

    assert line.old_before_us(30.0, monotonic_s=40.0) == START_US + 10 * S
    # What was written after the jump has its age, too.
    assert line.old_before_us(28.0, monotonic_s=50.0) == START_US + 10**9 * S + 10 * S


def test_a_backward_jump_keeps_what_got_the_same_stamps_twice() -> None:
    line = ClockHistory([(0.0, START_US)])
    line.observe(monotonic_s=100.0, unix_us=START_US + 40 * S)  # 60 s back
    # Stamps of 40 to 100 s were given twice; until the second ones are old, the first ones count as young.
    assert line.old_before_us(50.0, monotonic_s=130.0) == START_US + 40 * S
    assert line.old_before_us(50.0, monotonic_s=170.0) == START_US + 60 * S


def test_the_time_before_the_first_reading_is_not_counted() -> None:
    """Behaviour 25: a clock that jumped while the server was down deletes nothing."""
    line = ClockHistory([(0.0, START_US + 10**9 * S)])
    assert line.old_before_us(60.0, monotonic_s=10.0) == NOTHING_US
    assert line.old_before_us(60.0, monotonic_s=59.9) == NOTHING_US
    assert line.old_before_us(60.0, monotonic_s=60.5) == START_US + 10**9 * S + S // 2


def kept(line: ClockHistory, *, boot: str = "b", at_s: float) -> str:
    return line.to_text(boot=boot, monotonic_s=at_s)


def test_a_restart_of_the_server_loses_no_time() -> None:
    """Of what was idle for days before the restart too, and of the time in which no server ran."""
    text = kept(ClockHistory([(0.0, START_US)]), at_s=600.0)
    line = clock_history_of_text(text, boot="b", monotonic_s=5000.0, unix_us=START_US + 5000 * S)
    assert line.old_before_us(4900.0, monotonic_s=5000.0) == START_US + 100 * S


def test_a_restart_of_the_machine_loses_the_time_in_which_it_was_off() -> None:
    """Behaviour 25: that time only the wall clock knows, and it may have jumped."""
    text = kept(ClockHistory([(100.0, START_US)]), at_s=700.0)
    for boot, ours in (("b", "other"), ("", ""), ("b", "")):
        line = clock_history_of_text(
            kept(ClockHistory([(100.0, START_US)]), boot=boot, at_s=700.0),
            boot=ours,
            monotonic_s=5.0,
            unix_us=START_US + 10**9 * S,
        )
        assert line.old_before_us(600.0, monotonic_s=5.0) == START_US
        assert line.old_before_us(650.0, monotonic_s=60.0) == START_US + 5 * S
    # Seconds that went back are those of another start, whatever it is called.
    line = clock_history_of_text(text, boot="b", monotonic_s=5.0, unix_us=START_US + 10**9 * S)
    assert line.old_before_us(600.0, monotonic_s=5.0) == START_US


def test_jumps_are_kept_too() -> None:
    line = ClockHistory([(0.0, START_US)])
    assert not line.observe(monotonic_s=10.0, unix_us=START_US + 10 * S)
    assert line.observe(monotonic_s=12.0, unix_us=START_US + 10**9 * S)
    again = clock_history_of_text(
        kept(line, at_s=13.0), boot="b", monotonic_s=40.0, unix_us=START_US + (10**9 + 28) * S
    )
    for age_s in (5.0, 28.0, 30.0):
        assert again.old_before_us(age_s, monotonic_s=40.0) == line.old_before_us(age_s, monotonic_s=40.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        "null",
        '{"boot": "b", "kept_s": 1, "readings": []}',
        '{"boot": "b", "kept_s": 1, "readings": [[2.0, 5]]}',
        '{"boot": "b", "kept_s": 9, "readings": [[2.0, 5], [1.0, 6]]}',
        '{"boot": "b", "kept_s": "x", "readings": [[1.0, 5]]}',
        '{"boot": "b", "kept_s": 1, "readings": [[1.0]]}',
        '{"boot": "b", "kept_s": NaN, "readings": [[1.0, 5]]}',
        '{"boot": "b", "kept_s": 1e999, "readings": [[1.0, 1e999]]}',
    ],
)
def test_what_cannot_be_read_is_begun_again(text: str) -> None:
    line = clock_history_of_text(text, boot="b", monotonic_s=50.0, unix_us=START_US)
    assert line.old_before_us(10.0, monotonic_s=70.0) == START_US + 10 * S
    assert line.old_before_us(60.0, monotonic_s=70.0) == NOTHING_US


@given(st.data())
def test_a_flipped_bit_is_no_reading(data: st.DataObject) -> None:
    """Behaviour 41: a damaged file is like none, which makes everything young."""
    text = kept(ClockHistory([(0.0, START_US), (500.0, START_US + 700 * S)]), at_s=600.0).encode()
    place = data.draw(st.integers(0, len(text) - 1))
    damaged = bytearray(text)
    damaged[place] ^= 1 << data.draw(st.integers(0, 6))
    line = clock_history_of_text(
        damaged.decode(errors="replace"), boot="b", monotonic_s=650.0, unix_us=START_US + 850 * S
    )
    for age_s in (10.0, 100.0, 500.0):
        assert line.old_before_us(age_s, monotonic_s=650.0) in (
            NOTHING_US,
            clock_history_of_text(text.decode(), boot="b", monotonic_s=650.0, unix_us=START_US + 850 * S).old_before_us(
                age_s, monotonic_s=650.0
            ),
        )


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(-200, 200)), max_size=30), st.integers(0, 400))
def test_nothing_younger_is_ever_called_old(steps: list[tuple[int, int]], age_s: int) -> None:
    """Whatever the wall clock does between looks, every stamp below the answer is old enough."""
    now_s, wall_s = 0, 1000
    line = ClockHistory([(0.0, wall_s * S)])
    stamps = [(0, wall_s)]
    for duration_s, jump_s in steps:
        wall_s += jump_s if abs(jump_s) > 100 else 0
        line.observe(monotonic_s=float(now_s), unix_us=wall_s * S)
        for _ in range(duration_s):
            now_s, wall_s = now_s + 1, wall_s + 1
            stamps.append((now_s, wall_s))
    old_before_us = line.old_before_us(float(age_s), monotonic_s=float(now_s))
    assert all(now_s - when_s >= age_s for when_s, stamp_s in stamps if stamp_s * S < old_before_us)
