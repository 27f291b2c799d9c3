"""Event times of bytes, from the headers of their blocks."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.block_packing import pack_block
from millrace.server.tier2 import ANY_TIMES, NO_TIMES, EventTimes, event_times

TIMES = st.integers(-(2**40), 2**40)


def block(*timestamps_us: int) -> bytes:
    return bytes(pack_block([b"v"] * len(timestamps_us), timestamps_us=list(timestamps_us)))


@given(st.lists(st.lists(TIMES, min_size=1, max_size=5), max_size=6))
def test_they_are_the_least_and_the_greatest_of_all_events(blocks: list[list[int]]) -> None:
    payload = b"".join(block(*each) for each in blocks)
    every = [each for times in blocks for each in times]
    assert event_times(payload) == (EventTimes(min(every), max(every)) if every else NO_TIMES)


def test_events_without_a_time_are_found_at_no_time() -> None:
    plain = bytes(pack_block([b"v"]))
    assert event_times(plain) == NO_TIMES
    assert event_times(plain + block(5)) == (5, 5)


@given(st.binary(min_size=1, max_size=200))
def test_bytes_that_are_no_blocks_may_hold_anything(data: bytes) -> None:
    assert event_times(data) == ANY_TIMES
    assert event_times(block(5) + data) == ANY_TIMES


@given(st.integers(1, 300))
def test_a_block_that_is_cut_off_may_hold_anything(size: int) -> None:
    data = block(*range(100))
    assert event_times(data[:size]) == ANY_TIMES


@given(st.lists(st.tuples(TIMES, TIMES), max_size=4))
def test_no_times_and_any_times_are_the_ends_of_the_union(pairs: list[tuple[int, int]]) -> None:
    for pair in pairs:
        times = EventTimes(min(pair), max(pair))
        assert times.union(NO_TIMES) == NO_TIMES.union(times) == times
        assert times.union(ANY_TIMES) == ANY_TIMES
