"""What is due: each rule by itself."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.flush.budget import FlushBudget
from millrace.server.container.flush.selector import (
    CHECKPOINT_INTERVAL_S_MIN,
    PASS_INTERVAL_S_MIN,
    PRESSED_COUNT_MAX,
    are_many,
    flush_wait_s,
    is_checkpoint_due,
    is_copy_due,
    is_log_filling,
    is_log_held,
    pass_interval_s,
    recycling_pays,
    segments_to_flush,
    segments_to_flush_sparingly,
)
from millrace.server.container.memtable import LinkedExtent
from millrace.server.container.options import ContainerOptions
from millrace.server.container.state.segment import Segment
from millrace.wire.limits import KIB, MIB
from tests.server.container.extents import extent
from tests.support.clock import ManualClock
from tests.support.tables import table

OPTIONS = ContainerOptions(
    flush_size_bytes=8 * KIB, flush_age_s=5.0, checkpoint_interval_s=10.0, garbage_interval_s=60.0
)
NOW_US = 1_000_000_000


def segment_with(*sizes: int, wall_time_us: int = NOW_US, segment_id: int = 1, sequence: int = 9) -> Segment:
    segment = Segment(segment_id=segment_id, name="raw/a", created_us=0)
    for size in sizes:
        segment.tail.add(extent(segment.length, bytes(size), wall_time_us=wall_time_us, sequence=sequence))
        segment.length += size
    return segment


def chosen(*segments: Segment, tail_bytes: int = 0, is_filling: bool = False) -> list[Segment]:
    return segments_to_flush(segments, tail_bytes=tail_bytes, is_log_filling=is_filling, now_us=NOW_US, options=OPTIONS)


def test_a_tail_is_flushed_when_it_is_large_or_old() -> None:
    large, old = segment_with(4 * KIB, 4 * KIB), segment_with(1, wall_time_us=NOW_US - 5_000_000)
    young = segment_with(8 * KIB - 1, wall_time_us=NOW_US - 4_999_999)
    assert chosen(young, old, large) == [large, old]


@table(
    ("ages_us", "wait_s"),
    [((), 5.0), ((0, 4_000_000, 1_000_000), 1.0), ((4_900_000,), 0.5), ((6_000_000,), 0.5), ((-9_000_000,), 5.0)],
)
def test_the_wait_ends_soon_after_the_oldest_bytes_are_old_enough(ages_us: tuple[int, ...], wait_s: float) -> None:
    segments = [segment_with(1, wall_time_us=NOW_US - age_us) for age_us in ages_us]
    assert flush_wait_s(segments, now_us=NOW_US, options=OPTIONS) == wait_s


def test_a_merged_segment_holds_no_memory_and_is_flushed_by_age() -> None:
    segment = Segment(segment_id=1, name="raw/a", created_us=0)
    segment.tail.add(
        LinkedExtent(
            target_id=1, offset=0, size=9 * MIB, source_id=2, source_offset=0, event_count=1, sequence=1, end_events=1,
            wall_time_us=NOW_US - 1,
        )
    )  # fmt: skip
    assert chosen(segment) == []
    segment.tail.first.wall_time_us -= 5_000_000
    assert chosen(segment) == [segment]


@pytest.mark.parametrize(
    ("tail_bytes", "is_filling"), [(OPTIONS.tail_size_bytes_low // 2 + 1, False), (0, True)], ids=["memory", "log"]
)
def test_everything_is_flushed_when_memory_or_the_log_runs_full(tail_bytes: int, is_filling: bool) -> None:
    segments = [segment_with(1), segment_with(3), segment_with(2)]
    assert chosen(*segments, tail_bytes=tail_bytes, is_filling=is_filling) == [segments[1], segments[2], segments[0]]


@given(st.lists(st.tuples(st.integers(1, 10 * KIB), st.integers(0, 10_000_000)), max_size=10), st.booleans())
def test_what_is_left_is_young_and_small_and_the_largest_come_first(
    tails: list[tuple[int, int]], is_filling: bool
) -> None:
    segments = [segment_with(size, wall_time_us=NOW_US - age_us) for size, age_us in tails]
    due = chosen(*segments, is_filling=is_filling)
    sizes = [segment.tail.size for segment in due]
    assert sizes == sorted(sizes, reverse=True)
    for segment in segments:
        is_young = segment.tail.first.wall_time_us > NOW_US - 5_000_000
        assert (segment in due) == (is_filling or not (is_young and segment.tail.size < 8 * KIB))


def test_the_log_is_filling_from_a_quarter_on() -> None:
    assert [is_log_filling(fullness) for fullness in (0.0, 0.25, 0.26)] == [False, False, True]


def test_many_new_or_changed_entities_are_stored_before_their_time() -> None:
    assert not are_many(added_count=3999, changed_count=49_999)
    assert are_many(added_count=4000, changed_count=4000)
    assert are_many(added_count=0, changed_count=50_000)


@pytest.mark.parametrize(("is_pressing", "interval_s"), [(False, 10.0), (True, CHECKPOINT_INTERVAL_S_MIN)])
def test_a_checkpoint_is_due_when_there_is_something_to_store_and_the_last_one_is_old(
    is_pressing: bool, interval_s: float
) -> None:
    """Almost at once if it presses, but never the next one right after the last."""

    def is_due(age_s: float, *, has_changes: bool) -> bool:
        return is_checkpoint_due(has_changes=has_changes, is_pressing=is_pressing, age_s=age_s, options=OPTIONS)

    assert is_due(interval_s, has_changes=True)
    assert not is_due(interval_s - 0.01, has_changes=True)
    assert not is_due(3600.0, has_changes=False)


def test_a_copy_is_due_when_recycling_pays_or_when_garbage_has_waited_for_it() -> None:
    def is_due(age_s: float, **frees: bool) -> bool:
        nothing = {"frees_log": False, "frees_garbage": False, "has_news": False, "is_short_of_room": False}
        return is_copy_due(**nothing | frees, age_s=age_s, options=OPTIONS)

    assert is_due(0.0, frees_log=True)
    assert is_due(60.0, frees_garbage=True)
    assert not is_due(59.9, frees_garbage=True)
    assert is_due(0.0, frees_garbage=True, is_short_of_room=True)
    assert not is_due(3600.0, is_short_of_room=True)
    assert not is_due(3600.0)
    assert not is_due(3600.0, has_news=True)


@table(("age_s", "has_news", "due"), [(60.0, True, True), (59.9, True, False), (3600.0, False, False)])
def test_a_checkpoint_that_has_changed_is_copied_as_often_as_is_said(age_s: float, has_news: bool, due: bool) -> None:
    options = replace(OPTIONS, copy_interval_s=60.0)

    is_due = is_copy_due(
        frees_log=False,
        frees_garbage=False,
        is_short_of_room=False,
        has_news=has_news,
        age_s=age_s,
        options=options,
    )
    assert is_due == due


@table(
    ("reclaimable_bytes", "copy_size_bytes", "pays"),
    [(0, 0, False), (1, 0, True), (2 * MIB, MIB, True), (2 * MIB - 1, MIB, False), (51 * MIB, 40 * MIB, True)],
    ids=["nothing", "no copy yet", "twice the copy", "less", "it has to, the log is half full"],
)
def test_recycling_pays_when_it_frees_more_than_a_copy_costs(
    reclaimable_bytes: int, copy_size_bytes: int, pays: bool
) -> None:
    found = recycling_pays(
        reclaimable_bytes=reclaimable_bytes,
        capacity_bytes=100 * MIB,
        copy_size_bytes=copy_size_bytes,
        is_full=False,
    )
    assert found == pays


@pytest.mark.parametrize(("reclaimable_bytes", "pays"), [(0, False), (1, True)])
def test_a_full_log_is_recycled_whatever_a_copy_costs(reclaimable_bytes: int, pays: bool) -> None:
    found = recycling_pays(
        reclaimable_bytes=reclaimable_bytes, capacity_bytes=100 * MIB, copy_size_bytes=40 * MIB, is_full=True
    )
    assert found == pays


# --- where flushes are paid for ---


def sparingly(
    *segments: Segment,
    count_max: int = 0,
    tail_bytes: int = 0,
    is_held: bool = False,
    now_us: int = NOW_US,
    options: ContainerOptions = OPTIONS,
) -> list[Segment]:
    return segments_to_flush_sparingly(
        segments, tail_bytes=tail_bytes, small_count_max=count_max, is_log_held=is_held, now_us=now_us, options=options
    )


def test_of_many_small_tails_the_oldest_are_flushed_as_far_as_the_budget_goes() -> None:
    """Large ones are flushed whatever it says."""
    old = [segment_with(1 + age, wall_time_us=NOW_US - (5 + age) * 1_000_000) for age in range(10)]
    young, large = segment_with(100, wall_time_us=NOW_US - 4_999_999), segment_with(8 * KIB)
    assert sparingly(*old, young, large, count_max=3) == [large, old[9], old[8], old[7]]
    assert sparingly(*old, young, large) == [large]
    assert len(sparingly(*old, young, large, count_max=100)) == 11


def test_when_memory_runs_full_the_fewest_tails_are_flushed_that_make_room() -> None:
    segments = [segment_with(size * 100) for size in range(1, 9)]
    held_bytes = sum(segment.tail.held_bytes for segment in segments)
    options = ContainerOptions(tail_size_bytes_low=held_bytes - segments[-1].tail.held_bytes - 1)
    assert sparingly(*segments, tail_bytes=held_bytes, options=options) == [segments[7], segments[6]]
    assert sparingly(*segments, tail_bytes=options.tail_size_bytes_low, options=options) == []


def test_when_tails_hold_on_to_the_log_those_with_the_oldest_bytes_are_flushed_some_at_a_time() -> None:
    """Not the largest: they may be the youngest, and only the oldest bytes keep the log from being recycled."""
    segments = [segment_with(1 + number, sequence=1000 - number) for number in range(2 * PRESSED_COUNT_MAX)]
    due = sparingly(*segments, is_held=True)
    assert due == segments[: -PRESSED_COUNT_MAX - 1 : -1]


@given(
    st.lists(st.tuples(st.integers(1, 10 * KIB), st.integers(0, 10_000_000), st.integers(1, 1000)), max_size=100),
    st.booleans(),
    st.integers(0, 10),
    st.integers(1, 100 * KIB),
)
def test_the_oldest_are_flushed_beside_the_largest_that_make_room(
    tails: list[tuple[int, int, int]], is_held: bool, count_max: int, low_bytes: int
) -> None:
    segments = [segment_with(size, wall_time_us=NOW_US - age_us, sequence=sequence) for size, age_us, sequence in tails]
    held_bytes = sum(segment.tail.held_bytes for segment in segments)
    options = replace(OPTIONS, tail_size_bytes_low=low_bytes)
    due = sparingly(*segments, count_max=count_max, tail_bytes=held_bytes, is_held=is_held, options=options)
    assert len({id(segment) for segment in due}) == len(due)
    assert held_bytes - sum(segment.tail.held_bytes for segment in due) <= low_bytes
    left = [segment for segment in segments if all(segment is not each for each in due)]
    oldest = min((segment.tail.first for segment in segments), key=lambda first: first.sequence, default=None)
    if is_held and oldest is not None:
        assert all(segment.tail.first.sequence >= oldest.sequence for segment in left)
        assert len(left) <= max(0, len(segments) - PRESSED_COUNT_MAX)
    old = sum(segment.tail.first.wall_time_us <= NOW_US - 5_000_000 for segment in segments)
    old_left = sum(segment.tail.first.wall_time_us <= NOW_US - 5_000_000 for segment in left)
    if not is_held:
        assert old_left <= max(0, old - count_max)


def test_tails_hold_on_to_too_much_of_the_log_from_a_half_on() -> None:
    """What only waits for a copy of the checkpoint does not count: flushing would not free it."""
    assert not is_log_held(used_bytes=50, reclaimable_bytes=0, capacity_bytes=100)
    assert is_log_held(used_bytes=51, reclaimable_bytes=0, capacity_bytes=100)
    assert not is_log_held(used_bytes=90, reclaimable_bytes=40, capacity_bytes=100)


def test_looks_at_many_tails_are_rarer() -> None:
    assert pass_interval_s(0) == pass_interval_s(10_000) == PASS_INTERVAL_S_MIN
    assert pass_interval_s(100_000) == 10 * PASS_INTERVAL_S_MIN


class Trickles:
    """Segments that are appended to every `append_s`, and what flushing them would have published.

    Their tails are one extent that grows: how many extents there are matters to the memory they hold alone. The first
    `silent_count` are never appended to again.
    """

    def __init__(
        self, count: int, *, bytes_per_s: int, append_s: float, options: ContainerOptions, silent_count: int = 0
    ) -> None:
        self.clock = ManualClock()
        self.segments = [segment_with(1, wall_time_us=self.clock.unix_us(), segment_id=each) for each in range(count)]
        self.publish_count = 0
        self.oldest_s = 0.0
        self._silent = {id(segment) for segment in self.segments[:silent_count]}
        self._tail_bytes = sum(segment.tail.held_bytes for segment in self.segments)
        self._append_s = append_s
        self._append_bytes = round(bytes_per_s * append_s)
        self._options = options
        self._budget = FlushBudget(
            options.small_flushes_per_s_max, saved_s=options.flush_age_s, now_s=self.clock.monotonic_s()
        )

    def run(self, duration_s: float, *, step_s: float) -> None:
        """Look at the tails after each step; `append_s` is a multiple of it."""
        more = self._append_bytes
        for step in range(round(duration_s / step_s)):
            self.clock.move(step_s)
            if step * step_s % self._append_s == 0:
                for segment in self.segments:
                    if id(segment) not in self._silent:
                        segment.tail.size += more
                        segment.tail.held_bytes += more
                        self._tail_bytes += more
            self._flush()

    def _flush(self) -> None:
        now_us = self.clock.unix_us()
        unflushed = [segment for segment in self.segments if segment.tail.size or id(segment) not in self._silent]
        self.oldest_s = max(self.oldest_s, *((now_us - segment.tail.first.wall_time_us) / 1e6 for segment in unflushed))
        due = sparingly(
            *unflushed,
            count_max=self._budget.available(self.clock.monotonic_s()),
            tail_bytes=self._tail_bytes,
            now_us=now_us,
            options=self._options,
        )
        self._budget.spend(len(due))
        self.publish_count += len(due)
        for segment in due:
            segment.tail.first.wall_time_us = now_us
            self._tail_bytes -= segment.tail.size
            segment.tail.held_bytes -= segment.tail.size
            segment.tail.size = 0


PAID = ContainerOptions(small_flushes_per_s_max=20.0)


@pytest.mark.slow
def test_ten_thousand_trickling_segments_cost_twenty_puts_a_second() -> None:
    """Behaviour 95: at 10 bytes a second each, for an hour; without a budget they cost 2,000.

    Each segment waits for 10,000 / 20 = 500 s, and none waits much longer than others.
    """
    trickles = Trickles(10_000, bytes_per_s=10, append_s=50.0, options=PAID)
    trickles.run(3600.0, step_s=5.0)
    assert 19 * 3600 < trickles.publish_count <= 20 * 3600 + 100
    now_us = trickles.clock.unix_us()
    ages_s = [(now_us - segment.tail.first.wall_time_us) / 1e6 for segment in trickles.segments]
    assert max(ages_s) <= 10_000 / 20 + 5


def test_a_hundred_trickling_segments_wait_no_longer_than_without_a_budget() -> None:
    trickles = Trickles(100, bytes_per_s=10, append_s=1.0, options=PAID)
    trickles.run(100.0, step_s=0.5)
    assert trickles.publish_count == 100 * 100 / 5.0


def test_memory_bounds_how_long_tails_wait() -> None:
    """At 1 MB a second in all, 40 MB are full in 40 s: the rate is what that takes, and memory stays bounded."""
    options = ContainerOptions(small_flushes_per_s_max=2.0, tail_size_bytes_low=40_000_000)
    trickles = Trickles(1000, bytes_per_s=1000, append_s=1.0, options=options)
    trickles.run(600.0, step_s=1.0)
    assert sum(segment.tail.held_bytes for segment in trickles.segments) <= 41_000_000
    # The largest go first, so a tail is about twice the mean when it goes: 1,000 tails in 80 s.
    assert 600 * 10 < trickles.publish_count < 600 * 16


def test_memory_at_its_bound_lets_no_byte_wait_without_end() -> None:
    """Those that are silent are never among the largest: each gets its turn by its age, or it would hold the log."""
    options = ContainerOptions(small_flushes_per_s_max=2.0, tail_size_bytes_low=40_000_000)
    trickles = Trickles(1000, bytes_per_s=1000, append_s=1.0, options=options, silent_count=10)
    trickles.run(600.0, step_s=1.0)
    assert sum(segment.tail.held_bytes for segment in trickles.segments) <= 41_000_000
    assert not any(segment.tail.size for segment in trickles.segments[:10])
    assert trickles.oldest_s <= 120.0
