"""What is due: each rule by itself."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.flush.selector import (
    CHECKPOINT_INTERVAL_S_MIN,
    are_many,
    flush_wait_s,
    is_checkpoint_due,
    is_copy_due,
    is_log_filling,
    recycling_pays,
    segments_to_flush,
)
from millrace.server.container.memtable import LinkedExtent
from millrace.server.container.options import ContainerOptions
from millrace.server.container.state.segment import Segment
from millrace.wire.limits import KIB, MIB
from tests.server.container.extents import extent

OPTIONS = ContainerOptions(
    flush_size_bytes=8 * KIB, flush_age_s=5.0, checkpoint_interval_s=10.0, garbage_interval_s=60.0
)
NOW_US = 1_000_000_000


def segment_with(*sizes: int, wall_time_us: int = NOW_US, segment_id: int = 1) -> Segment:
    segment = Segment(segment_id=segment_id, name="raw/a", created_us=0)
    for size in sizes:
        segment.tail.add(extent(segment.length, bytes(size), wall_time_us=wall_time_us))
        segment.length += size
    return segment


def chosen(*segments: Segment, tail_bytes: int = 0, is_filling: bool = False) -> list[Segment]:
    return segments_to_flush(segments, tail_bytes=tail_bytes, is_log_filling=is_filling, now_us=NOW_US, options=OPTIONS)


def test_a_tail_is_flushed_when_it_is_large_or_old() -> None:
    large, old = segment_with(4 * KIB, 4 * KIB), segment_with(1, wall_time_us=NOW_US - 5_000_000)
    young = segment_with(8 * KIB - 1, wall_time_us=NOW_US - 4_999_999)
    assert chosen(young, old, large) == [large, old]


@pytest.mark.parametrize(
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
        nothing = {"frees_log": False, "frees_garbage": False, "has_news": False}
        return is_copy_due(**nothing | frees, age_s=age_s, options=OPTIONS)

    assert is_due(0.0, frees_log=True)
    assert is_due(60.0, frees_garbage=True)
    assert not is_due(59.9, frees_garbage=True)
    assert not is_due(3600.0)
    assert not is_due(3600.0, has_news=True)


@pytest.mark.parametrize(
    ("age_s", "has_news", "due"), [(60.0, True, True), (59.9, True, False), (3600.0, False, False)]
)
def test_a_checkpoint_that_has_changed_is_copied_as_often_as_is_said(age_s: float, has_news: bool, due: bool) -> None:
    options = replace(OPTIONS, copy_interval_s=60.0)

    assert is_copy_due(frees_log=False, frees_garbage=False, has_news=has_news, age_s=age_s, options=options) == due


@pytest.mark.parametrize(
    ("reclaimable_bytes", "copy_size_bytes", "pays"),
    [(0, 0, False), (1, 0, True), (2 * MIB, MIB, True), (2 * MIB - 1, MIB, False), (51 * MIB, 40 * MIB, True)],
    ids=["nothing", "no copy yet", "twice the copy", "less", "it has to, the log is half full"],
)
def test_recycling_pays_when_it_frees_more_than_a_copy_costs(
    reclaimable_bytes: int, copy_size_bytes: int, pays: bool
) -> None:
    found = recycling_pays(
        reclaimable_bytes=reclaimable_bytes, capacity_bytes=100 * MIB, copy_size_bytes=copy_size_bytes
    )
    assert found == pays
