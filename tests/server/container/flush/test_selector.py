"""What is due: each rule by itself, and what holds in every situation."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.flush.selector import (
    CHECKPOINT_INTERVAL_S_MIN,
    Situation,
    are_many,
    is_checkpoint_due,
    is_copy_due,
    is_log_filling,
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
QUIET = Situation(
    log_reclaimable_bytes=0,
    log_capacity_bytes=100 * MIB,
    has_changes=False,
    changes_are_many=False,
    checkpoint_age_s=3600.0,
    copy_age_s=3600.0,
    is_copying=False,
    copy_size_bytes=MIB,
    copy_needs_less_log=False,
    garbage_waits_for_checkpoint=False,
    garbage_waits_for_copy=False,
)
SITUATIONS = st.builds(
    Situation,
    log_reclaimable_bytes=st.integers(0, 200 * MIB),
    log_capacity_bytes=st.integers(1, 200 * MIB),
    has_changes=st.booleans(),
    changes_are_many=st.booleans(),
    checkpoint_age_s=st.floats(0, 100),
    copy_age_s=st.floats(0, 100),
    is_copying=st.booleans(),
    copy_size_bytes=st.integers(0, 100 * MIB),
    copy_needs_less_log=st.booleans(),
    garbage_waits_for_checkpoint=st.booleans(),
    garbage_waits_for_copy=st.booleans(),
)


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


def test_nothing_is_due_when_nothing_changed() -> None:
    assert not is_checkpoint_due(QUIET, OPTIONS)
    assert not is_copy_due(QUIET, OPTIONS)


@pytest.mark.parametrize("reason", ["has_changes", "garbage_waits_for_checkpoint"])
def test_a_checkpoint_is_due_when_there_is_something_to_store_and_the_last_one_is_old(reason: str) -> None:
    young = replace(QUIET, **{reason: True, "checkpoint_age_s": 9.9})  # type: ignore[arg-type]  # a field by name
    assert not is_checkpoint_due(young, OPTIONS)
    assert is_checkpoint_due(replace(young, checkpoint_age_s=10.0), OPTIONS)


@pytest.mark.parametrize("pressing", [{"changes_are_many": True}, {"log_reclaimable_bytes": 2 * MIB}])
def test_a_checkpoint_that_presses_is_due_almost_at_once(pressing: dict[str, Any]) -> None:
    pressed = replace(QUIET, has_changes=True, checkpoint_age_s=CHECKPOINT_INTERVAL_S_MIN, **pressing)
    assert is_checkpoint_due(pressed, OPTIONS)
    assert not is_checkpoint_due(replace(pressed, checkpoint_age_s=0.09), OPTIONS)
    if "log_reclaimable_bytes" in pressing:
        # The copy that is being made is of the checkpoint before; a newer one would not recycle the log sooner.
        assert not is_checkpoint_due(replace(pressed, is_copying=True), OPTIONS)


def test_a_copy_is_due_when_recycling_pays() -> None:
    paying = replace(QUIET, copy_needs_less_log=True, log_reclaimable_bytes=2 * MIB)
    assert is_copy_due(paying, OPTIONS)
    assert not is_copy_due(replace(paying, copy_needs_less_log=False), OPTIONS)
    assert not is_copy_due(replace(paying, is_copying=True), OPTIONS)
    large = replace(paying, copy_size_bytes=40 * MIB)
    assert not is_copy_due(large, OPTIONS)
    assert is_copy_due(replace(large, log_reclaimable_bytes=51 * MIB), OPTIONS), "it has to, the log is half full"


def test_a_copy_is_due_when_garbage_has_waited_for_it() -> None:
    waiting = replace(QUIET, garbage_waits_for_copy=True, copy_age_s=60.0)
    assert is_copy_due(waiting, OPTIONS)
    assert not is_copy_due(replace(waiting, copy_age_s=59.9), OPTIONS)


@given(SITUATIONS)
def test_what_is_due_changes_something_and_is_not_under_way(situation: Situation) -> None:
    if is_copy_due(situation, OPTIONS):
        assert not situation.is_copying
        assert situation.copy_needs_less_log or situation.garbage_waits_for_copy
    if is_checkpoint_due(situation, OPTIONS):
        assert situation.has_changes or situation.garbage_waits_for_checkpoint
        assert situation.checkpoint_age_s >= CHECKPOINT_INTERVAL_S_MIN
