"""One fold: live, in recovery and for `verify`, the same log makes the same state."""

from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.memtable import Extent
from millrace.server.container.state.apply import BatchItem, apply_batch, apply_recovered, items_of
from millrace.server.container.state.clock_history import NOTHING_US
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import DamagedRange, Segment
from millrace.server.wal import Damage, RecoveredBatch
from millrace.server.wal.batch import decode_batch, decode_runs, encode_batch
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun
from millrace.wire.framing import encode
from tests.server.container.histories import STEPS, History, apply, durable_view, run_of
from tests.server.container.states import new_state
from tests.support.files import MemoryFileSystem
from tests.support.tables import table
from tests.support.wal import append_run, build_log, recover

LOGGED_STEPS = STEPS.filter(lambda step: step[0] not in {"flush", "compact"})
"""Steps of which the log knows all."""


def batches_of(past: History, cuts: set[int]) -> list[tuple[list[BatchItem], int]]:
    """Return the items of a history in batches that start at some of them, and the time of each batch."""
    numbered = enumerate(past.items)
    starts = 0

    def batch_of(each: tuple[int, Any]) -> int:
        nonlocal starts
        starts += each[0] in cuts
        return starts

    batches = [[item for _, item in group] for _, group in groupby(numbered, key=batch_of)]
    return [([item for item, _ in batch], batch[0][1]) for batch in batches]


def read_back(items: list[BatchItem], *, sequence: int, wall_time_us: int) -> RecoveredBatch:
    """Return a batch as it is read from the bytes in which the log has it."""
    runs = []
    for item in items:
        if isinstance(item, m.Message):
            frame = encode(item)
            item = AppendRun.of_record(frame)
        assert isinstance(item, AppendRun)
        runs.append(item)
    encoded = encode_batch(runs, sequence=sequence, salt=1, previous_checksum=0, wall_time_us=wall_time_us)
    data = memoryview(b"".join(encoded.pieces))
    batch = decode_batch(data, 0, 1)
    assert batch is not None
    return RecoveredBatch(sequence, wall_time_us, [run for run, _ in decode_runs(data, batch)], "log", 0, len(data))


def tails_of(state: ContainerState) -> dict[int, list[tuple[Any, ...]]]:
    return {
        number: [(extent.offset, extent.end, extent.sequence, extent.end_events) for extent in segment.tail.extents]
        for number, segment in state.unflushed.items()
    }


@given(st.lists(LOGGED_STEPS, max_size=60), st.sets(st.integers(0, 60)))
def test_a_log_read_back_makes_the_state_of_the_server_that_wrote_it(
    steps: list[tuple[str, int, int]], cuts: set[int]
) -> None:
    past = History()
    for step in steps:
        past.step(*step)
    live, recovered, verified = new_state(), new_state(), new_state()
    seen: list[tuple[int, int, int]] = []

    def take_note(segment: Segment, extent: Extent) -> None:
        seen.append((segment.segment_id, extent.offset, extent.end))

    for sequence, (items, wall_time_us) in enumerate(batches_of(past, cuts), start=1):
        batch: dict[str, Any] = {"sequence": sequence, "wall_time_us": wall_time_us}
        apply_batch(live, items, **batch, bytes_sink=live.hold)
        again = items_of(read_back(items, **batch))
        apply_batch(recovered, again, **batch, bytes_sink=recovered.hold)
        apply_batch(verified, again, **batch, bytes_sink=take_note)

    assert durable_view(recovered) == durable_view(live)
    assert tails_of(recovered) == tails_of(live)
    assert recovered.tail_bytes == live.tail_bytes
    # `verify` holds no bytes: what it truncates is not needed from the log.
    for each in (verified, live):
        for segment in each.segments.values():
            segment.flushed_offset = 0
    assert durable_view(verified) == durable_view(live)
    runs = [item for item, _ in past.items if isinstance(item, AppendRun)]
    assert seen == [(run.segment_id, run.offset, run.offset + run.payload_size) for run in runs]


@given(st.lists(LOGGED_STEPS, max_size=40))
def test_a_batch_that_the_state_contains_gives_only_its_bytes_again(steps: list[tuple[str, int, int]]) -> None:
    past = History()
    for step in steps:
        past.step(*step)
    before = durable_view(past.state)
    seen: list[int] = []
    for sequence, (item, wall_time_us) in enumerate(past.items, start=1):
        apply(
            past.state,
            item,
            sequence=sequence,
            wall_time_us=wall_time_us,
            bytes_sink=lambda segment, extent: seen.append(segment.segment_id + extent.end_events),
        )
    assert durable_view(past.state) == before
    runs = [item.segment_id for item, _ in past.items if isinstance(item, AppendRun)]
    assert seen == [number for number in runs if past.state.segments.get(number)]


def with_segment() -> tuple[ContainerState, Segment]:
    state = new_state()
    apply(state, m.SegmentCreated(1, 0, "raw/a"))
    return state, state.segments[1]


def test_damage_in_the_log_is_a_range_that_is_refused_and_the_segment_keeps_its_length() -> None:
    """Behaviour 41: what is known to be lost is refused, also where no checkpoint knew of it."""
    state, segment = with_segment()
    apply(state, run_of(segment, offset=0, size=10, event_count=1))
    segment.flushed_offset = 10
    damage = Damage(
        place="wal-7", offset=4096, size=99, first_sequence=3, last_sequence=3,
        runs=((1, 0, 10), (1, 10, 20), (1, 30, 0), (5, 0, 4)), is_complete=True,
    )  # fmt: skip
    sequence = state.sequence

    apply(state, damage, sequence=sequence)

    assert (segment.length, segment.damages) == (30, [DamagedRange(10, 30, "wal-7 at 4096")])
    assert state.sequence == sequence
    apply(state, damage, sequence=sequence)
    assert segment.damages == [DamagedRange(10, 30, "wal-7 at 4096")]


def test_what_was_stamped_before_a_damage_is_young_again() -> None:
    """Behaviour 25: a jump of the wall clock may be among what is lost."""
    state = new_state()
    apply(state, m.UptimeCounted(0, 1_700_000_000_000_000, 0, ""))
    assert state.scalars.clock_history.old_before_us(5, uptime_us=9) == 1_700_000_000_000_004
    damage = Damage(place="wal-7", offset=4096, size=99, first_sequence=3, last_sequence=3, runs=(), is_complete=True)
    apply(state, damage, sequence=state.sequence)
    assert state.scalars.clock_history.old_before_us(5, uptime_us=9) == NOTHING_US


@table(("source_start", "held"), [(0, 10), (4, 6), (10, 0), (12, 0)])
def test_a_merge_of_what_has_lost_its_end_is_refused_from_there_on(source_start: int, held: int) -> None:
    """Behaviour 41: the record of the merge is there, and what was appended last before it is not."""
    state, target = with_segment()
    apply(state, m.SegmentCreated(2, 0, "raw/b"))
    apply(state, run_of(state.segments[2], offset=0, size=10, event_count=1))

    apply(
        state,
        m.SegmentMerged(
            target_id=1, source_id=2, target_offset=0, source_start=source_start, size=20 - source_start, event_count=2
        ),
    )

    assert [(extent.offset, extent.end) for extent in target.tail.extents] == [(0, held)] * bool(held)
    assert target.damages == [DamagedRange(held, 20 - source_start, "the log")]
    assert target.length == 20 - source_start
    assert (2 in state.segments) == bool(held)


def test_a_run_of_a_segment_whose_creation_was_lost_brings_it_back_under_another_name() -> None:
    state = new_state()
    lost = Segment(segment_id=12, name="raw/gone", created_us=0)

    apply(state, run_of(lost, offset=0, size=5, event_count=1))

    assert (state.segments[12].name, state.segments[12].length, state.take_id()) == ("lost/segment-12", 5, 13)


def test_only_what_is_watched_is_woken() -> None:
    class Watcher:
        def segment_changed(self) -> None:
            raise AssertionError

    state, segment = with_segment()
    assert not apply(state, run_of(segment, offset=0, size=5, event_count=1))
    segment.watchers.add(Watcher())
    assert apply(state, run_of(segment, offset=5, size=5, event_count=1)) == {segment}


@table("lost", [0, 1, 2])
@table("is_new", [False, True])
def test_a_damaged_append_takes_no_other_of_its_batch_along(lost: int, is_new: bool) -> None:
    """Behaviour 96: a flipped bit costs the append that it is in, also where its segment was created with it."""
    files = MemoryFileSystem()
    created, later = (AppendRun.of_record(encode(m.SegmentCreated(each, 1, f"raw/{each}"))) for each in (1, 2))
    appends = [append_run(1, 10 * number, bytes([number]) * 10) for number in range(3)]
    *_, placed, _ = build_log(files, [*([[created, *appends]] if is_new else [[created], appends]), [later]])
    end = placed.offset + placed.size - sum(len(run.frames) for run in appends[lost + 1 :])
    files.flip_bit(placed.path, 8 * (end - 1))

    state = new_state()
    for item in recover(files)[0]:
        apply_recovered(state, item, before_hold=lambda extent: None)

    segment = state.segments[1]
    assert not state.quarantine
    assert segment.length == 30
    assert [(each.start, each.end) for each in segment.damages] == [(10 * lost, 10 * lost + 10)]
    assert [extent.offset for extent in segment.tail.extents] == [10 * each for each in range(3) if each != lost]
