"""Event times of bytes, from the headers of their blocks."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.block_packing import pack_block
from millrace.server.tier2 import ANY_TIMES, NO_TIMES, EventTimes, IndexEntry, event_times, times_of

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
def test_an_entry_and_an_index_have_the_times_of_all_that_they_cover(pairs: list[tuple[int, int]]) -> None:
    every = [EventTimes(min(pair), max(pair)) for pair in pairs]
    least = min((times.min_us for times in every), default=NO_TIMES.min_us)
    greatest = max((times.max_us for times in every), default=NO_TIMES.max_us)
    entry = IndexEntry(7, 3, 5)
    assert entry.event_times() == NO_TIMES
    for times in every:
        entry = entry.widened(times)
    assert entry == (7, 3, 5, least, greatest)
    assert times_of([IndexEntry(number, number, 5).widened(times) for number, times in enumerate(every)]) == (
        least,
        greatest,
    )


@given(TIMES, TIMES)
def test_no_times_add_nothing_and_any_times_are_all(one: int, other: int) -> None:
    entry = IndexEntry(7, 3, 5).widened(EventTimes(min(one, other), max(one, other)))
    assert entry.widened(NO_TIMES) == entry
    assert entry.widened(ANY_TIMES).event_times() == ANY_TIMES
