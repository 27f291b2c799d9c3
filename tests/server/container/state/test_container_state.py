from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.key_range import covers_once
from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.segment_tables import PROGRESS
from millrace.server.container.entity_cache import EntityCache
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.container.state.segment import DamagedRange, Segment
from millrace.server.kinds.streams import STREAMS
from millrace.server.tier2 import ChunkRecord
from millrace.wire import messages as m
from tests.server.container.extents import extent
from tests.server.container.histories import STEPS, History, apply, durable_view, history, run_of
from tests.server.container.states import FIRST_ID, new_state, store, waiting


def run(
    segment: Segment, state: ContainerState, offset: int, size: int, *, writer: int = 0, last: int = 0, wall_us: int = 0
) -> set[Segment]:
    fields = run_of(segment, offset=offset, size=size, event_count=2, writer_number=writer, last_event_number=last)
    return apply(state, fields, wall_time_us=wall_us)


def with_segment() -> tuple[ContainerState, Segment]:
    state = new_state()
    apply(state, m.SegmentCreated(state.take_id(), 17, "scope/segment"))
    return state, state.segments[FIRST_ID]


class Watcher:
    """A watcher that must not be called: the fold tells nobody."""

    def segment_changed(self) -> None:
        raise AssertionError


@given(st.lists(STEPS, max_size=60))
def test_the_invariants_hold_after_any_history(steps: list[tuple[str, int, int]]) -> None:
    past = History()
    for step in steps:
        past.step(*step)
        state = past.state
        shelves: list[EntityCache[Any]] = [state.segments, state.writers, state.streams]
        for shelf in shelves:
            items = list(shelf.values())
            assert len(shelf) == len(items)
            assert state.scalars.next_id > max([0, *map(shelf.number_of, items)])
        assert all(state.segments.find(segment.name) is segment for segment in state.segments.values())
        assert state.user_segment_count == sum(segment.name[0] != "#" for segment in state.segments.values())
        assert all(state.streams.find(stream.name) is stream for stream in state.streams.values())
        for stream in state.streams.values():
            assert covers_once(part.key_range for part in stream.open_parts)
            assert stream.epoch == stream.epochs[-1].number == len(stream.epochs) - 1
        for segment in state.segments.values():
            assert 0 <= segment.start_offset <= segment.length
            assert segment.flushed_offset <= segment.length
            assert not segment.deleted
            assert all(chunk.end_offset > segment.start_offset for chunk in segment.chunks)


NO_RECORDS = {"append", "append_as_writer", "append_sequenced", "append_to_part", "lose", "flush", "compact"}


@given(st.lists(STEPS.filter(lambda step: step[0] not in NO_RECORDS)))
def test_applying_a_record_twice_is_applying_it_once(steps: list[tuple[str, int, int]]) -> None:
    past = History()
    for step in steps:
        past.step(*step)
    again = new_state()
    for record in past.records:
        apply(again, record)
        apply(again, record)
    again.scalars.next_id = past.state.scalars.next_id  # ids that were taken and led to no record
    assert durable_view(again) == durable_view(past.state)


def test_ids_are_never_given_twice_even_after_a_delete() -> None:
    state, segment = with_segment()
    apply(state, m.SegmentDeleted(segment.segment_id))
    assert state.take_id() == segment.segment_id + 1
    apply(state, m.SegmentCreated(40, 0, "scope/other"))
    assert state.take_id() == 41


def test_runs_make_the_segment_longer_and_count_events() -> None:
    state, segment = with_segment()
    run(segment, state, 0, 10)
    run(segment, state, 10, 5)
    assert (segment.length, segment.event_count, segment.damages) == (15, 4, [])


def test_a_run_after_the_end_shows_what_damage_took() -> None:
    """Behaviour 41: the bytes between are a damaged range, everything else is served."""
    state, segment = with_segment()
    run(segment, state, 0, 10)
    run(segment, state, 30, 5)
    assert segment.length == 35
    assert segment.damages == [DamagedRange(10, 30, "the log")]


def test_a_run_moves_its_writer_forward_only() -> None:
    state, segment = with_segment()
    run(segment, state, 0, 10, writer=7, last=5)
    run(segment, state, 10, 10, writer=7, last=3)
    progress = segment.writers[7]
    assert (progress.durable, progress.last_offset) == (5, 10)
    assert list(state.touched["progress"]) == [(segment.segment_id, 7)]


def test_truncation_releases_all_that_is_before() -> None:
    state, segment = with_segment()
    run(segment, state, 0, 10)
    run(segment, state, 12, 30)
    segment.chunks = [ChunkRecord(0, 6, "first", 9, 0, 1, 0), ChunkRecord(6, 4, "second", 9, 1, 2, 0)]
    segment.flushed_offset = 10
    state.hold(segment, extent(12, b"x" * 10))
    rest = extent(22, b"x" * 20)
    state.hold(segment, rest)
    segment.watchers.add(Watcher())

    woken = apply(state, m.SegmentTruncated(segment.segment_id, 25))

    assert segment.start_offset == 25
    assert segment.chunks == []
    assert list(state.touched["chunks"]) == [(segment.segment_id, 0), (segment.segment_id, 6)]
    assert waiting(state.garbage, DeleteAfter.CHECKPOINT) == ["first", "second"]
    assert segment.damages == []
    assert (segment.flushed_offset, segment.tail.first.offset, state.tail_bytes) == (22, 22, rest.held_bytes)
    assert woken == {segment}

    assert not apply(state, m.SegmentTruncated(segment.segment_id, 20))
    assert segment.start_offset == 25


def test_truncation_never_passes_the_end() -> None:
    state, segment = with_segment()
    run(segment, state, 0, 10)
    state.hold(segment, extent(0, b"x" * 10))
    apply(state, m.SegmentTruncated(segment.segment_id, 99))
    assert (segment.start_offset, segment.flushed_offset, segment.length) == (10, 10, 10)
    assert state.unflushed == {}


def test_a_deleted_segment_leaves_its_chunks_as_garbage_and_its_name_free() -> None:
    state, segment = with_segment()
    run(segment, state, 0, 10)
    segment.chunks = [ChunkRecord(0, 6, "first", 9, 0, 1, 0)]
    state.hold(segment, extent(6, b"x" * 4))
    segment.watchers.add(Watcher())

    woken = apply(state, m.SegmentDeleted(segment.segment_id))

    assert segment.deleted
    assert (list(state.segments.values()), state.segments.find(segment.name)) == ([], None)
    assert (state.unflushed, state.tail_bytes) == ({}, 0)
    assert waiting(state.garbage, DeleteAfter.CHECKPOINT) == ["first"]
    assert woken == {segment}
    assert (list(state.segments.unstored), state.segments.take()) == ([], [segment.segment_id])
    apply(state, m.SegmentCreated(state.take_id(), 18, "scope/segment"))
    assert state.segments.find("scope/segment") not in (segment, None)


def test_records_about_what_damage_made_unknown_are_left_aside() -> None:
    state = new_state()
    for record in (
        m.SegmentSealed(9),
        m.SegmentTruncated(9, 5),
        m.SegmentDeleted(9),
        m.AttributeSet(segment_id=9, present=1, key="k", value=b"v"),
        m.StreamSealed(9),
        m.StreamTruncated(9, [m.CutPosition(8, 5)]),
        m.StreamScaled(stream_id=9, epoch=1, scaled_us=0, cause="", sealed_ids=[8], created=[]),
        m.StreamUpdated(9, "{}"),
        m.CutsSaved(stream_id=9, saved_us=0, cuts=[m.NamedCut(1, "a", [])]),
        m.CutForgotten(9, 1, "a"),
        m.StreamDeleted(9),
    ):
        apply(state, record)
    assert durable_view(state) == durable_view(new_state())
    assert not state.changed_count


def test_a_segment_whose_creation_was_lost_says_so_and_is_stored() -> None:
    state = new_state()
    segment = state.add_lost_segment(12)
    assert segment.name == "lost/segment-12"
    assert list(state.segments.unstored) == [segment]
    assert state.take_id() == 13


def test_a_stream_is_sealed_and_deleted_with_its_segments() -> None:
    past = history(("create_stream", 0, 5))
    state = past.state
    segments = list(state.segments.values())
    (stream,) = state.streams.values()
    assert [segment.name for segment in segments] == [f"{stream.name}#0.0", f"{stream.name}#0.1"]
    assert all(segment.stream_id == stream.stream_id for segment in segments)

    past.step("seal_stream", 0, 0)
    assert stream.sealed
    assert all(segment.sealed for segment in segments)

    past.step("delete_stream", 0, 0)
    assert (len(state.segments), len(state.streams), state.streams.find(stream.name)) == (0, 0, None)
    assert (list(state.streams.unstored), state.streams.take()) == ([], [stream.stream_id])
    assert (list(state.segments.unstored), state.segments.take()) == ([], [segment.segment_id for segment in segments])


def test_a_writer_keeps_its_highest_epoch() -> None:
    state = new_state()
    for epoch in (3, 2):
        apply(state, m.WriterRecorded(writer_number=5, writer_epoch=epoch, opened_us=epoch, writer_id="w"))
    assert state.writers.find("w") is state.writers[5]
    assert state.writers[5].row.epoch == 3


def test_a_writer_that_expires_leaves_a_mark_only_under_its_name() -> None:
    state, segment = with_segment()
    for number, name in ((5, "w"), (6, "")):
        apply(state, m.WriterRecorded(writer_number=number, writer_epoch=3, opened_us=1, writer_id=name))
        run(segment, state, segment.length, 10, writer=number, last=4)
    store(state)

    apply(state, m.WritersExpired(expired_us=9, marked=[5, 77], forgotten=[6, 78]))

    assert (state.writers.find("w"), state.writers.get(6), segment.writers) == (state.writers[5], None, {})
    assert (state.writers[5].row.expired_us, state.writers[5].row.epoch) == (9, 3)
    assert (list(state.writers.unstored), sorted(state.writers.take())) == ([state.writers[5]], [5, 6])
    assert {5, 6} <= set(store(state).forgotten[PROGRESS, "writer_number"])
    apply(state, m.WriterRecorded(writer_number=8, writer_epoch=4, opened_us=10, writer_id="w"))
    assert (state.writers.find("w"), state.writers.get(5)) == (state.writers[8], None)
    assert (list(state.writers.unstored), sorted(state.writers.take())) == ([state.writers[8]], [5, 8])


def test_a_name_that_continues_under_another_number_leaves_no_row() -> None:
    """Also where damage has taken the record that the writer before it expired."""
    state, segment = with_segment()
    apply(state, m.WriterRecorded(writer_number=5, writer_epoch=3, opened_us=1, writer_id="w"))
    run(segment, state, 0, 10, writer=5, last=4)
    apply(state, m.WriterRecorded(writer_number=8, writer_epoch=4, opened_us=10, writer_id="w"))
    assert ([writer.writer_number for writer in state.writers.values()], segment.writers) == ([8], {})


def test_a_busy_writer_is_stored_again_once_a_minute() -> None:
    state, segment = with_segment()
    apply(state, m.WriterRecorded(writer_number=5, writer_epoch=1, opened_us=0, writer_id="w"))
    moved = []
    for second in range(200):
        store(state)
        run(segment, state, segment.length, 1, writer=5, last=second, wall_us=second * 1_000_000)
        if state.writers.changed_count:
            moved.append(second)
    assert moved == [60, 120, 180]
    # The clock was wrong, and is right now.
    run(segment, state, segment.length, 1, writer=5, last=200, wall_us=100_000_000)
    assert state.writers[5].active_us == 100_000_000


def test_a_writer_is_stamped_with_the_uptime_at_which_it_was_seen() -> None:
    state, segment = with_segment()
    apply(state, m.WriterRecorded(writer_number=5, writer_epoch=1, opened_us=7, writer_id="w"))
    seen = [state.writers[5].seen_uptime_us]
    for uptime_us in (10, 30, 20):  # it never goes back
        apply(state, m.UptimeCounted(uptime_us, 0, 0, ""))
        store(state)
        for _ in range(2):
            run(segment, state, segment.length, 1, writer=5, last=segment.length)
        seen.append(state.writers[5].seen_uptime_us)
        assert list(state.writers.unstored) == ([state.writers[5]] if uptime_us != 20 else [])
    apply(state, m.UptimeCounted(40, 0, 0, ""))
    apply(state, m.WritersExpired(expired_us=9, marked=[5], forgotten=[]))
    assert [*seen, state.writers[5].seen_uptime_us] == [0, 10, 30, 30, 40]


def test_attributes_are_set_and_unset() -> None:
    state, segment = with_segment()
    for present, key, value in ((1, "a", b"1"), (1, "b", b""), (1, "a", b"2"), (0, "b", b"")):
        apply(state, m.AttributeSet(segment_id=segment.segment_id, present=present, key=key, value=value))
    assert segment.attributes == {"a": b"2"}
    assert list(state.touched["attributes"]) == [(segment.segment_id, "a"), (segment.segment_id, "b")]


def test_changes_come_again_if_their_checkpoint_fails() -> None:
    past = history(("create", 0, 0), ("open_writer", 0, 0), ("append_as_writer", 0, 0), ("set_attribute", 0, 0))
    first = take_rows(past.state)
    past.step("create_stream", 0, 0)

    again = store(past.state)

    for table, rows in first.added.items():
        assert [row for row in again.added[table] if row in rows] == rows, table
    assert len(again.added[STREAMS.table]) == 1
    assert not past.state.changed_count
    assert not any(take_rows(past.state).added.values())


def test_after_recovery_nothing_is_queued() -> None:
    past = history(("create", 0, 0), ("open_writer", 0, 4), ("append_as_writer", 0, 9))
    past.state.admit_as_durable()
    (segment,) = past.state.segments.values()
    (progress,) = segment.writers.values()
    assert segment.next_offset == segment.length == 10
    assert progress.admitted == progress.durable


def test_chunks_of_merged_segments_wait_for_a_copy_however_deep_they_are() -> None:
    """Behaviour 20: nothing in the log says that their bytes were copied; an older copy still leads to them."""
    state = new_state()
    first, second, third = (m.SegmentCreated(state.take_id(), 0, f"scope/{number}").segment_id for number in range(3))
    for number in (first, second, third):
        apply(state, m.SegmentCreated(number, 0, f"scope/{number}"))
        run(state.segments[number], state, 0, 10)
        state.segments[number].chunks = [ChunkRecord(0, 10, f"chunk-{number}", 99, 0, 2, 0)]
        state.segments[number].flushed_offset = 10
    for target, source in ((second, first), (third, second)):
        merged = state.segments[source]
        apply(state, m.SegmentSealed(source))
        apply(state,
            m.SegmentMerged(
                target_id=target, source_id=source, target_offset=state.segments[target].length, source_start=0,
                size=merged.length, event_count=merged.event_count,
            )
        )  # fmt: skip
    segment = state.segments[third]

    state.release(segment, segment.length, delete_after=DeleteAfter.COPY)

    assert waiting(state.garbage, DeleteAfter.CHECKPOINT) == []
    assert sorted(waiting(state.garbage, DeleteAfter.COPY)) == [f"chunk-{first}", f"chunk-{second}"]


def test_chunks_are_replaced_in_their_places() -> None:
    state, segment = with_segment()
    run(segment, state, 0, 15)
    first, second, third = (ChunkRecord(start, 5, f"chunk-{start}", 9, 0, 1, 0) for start in (0, 5, 10))
    joined = ChunkRecord(0, 10, "joined", 9, 0, 1, 0)
    for old, new, chunks in (
        ((), [first, second], [first, second]),
        ((), [third], [first, second, third]),
        ([first, second], [joined], [joined, third]),
        ([joined], (), [third]),
    ):
        store(state)
        state.replace_chunks(segment, old, new)
        assert segment.chunks == chunks
        assert [segment.chunk_from(start) for start in (0, 5, 10, 15)] == [
            next((chunk for chunk in chunks if chunk.start_offset == start), None) for start in (0, 5, 10, 15)
        ]
    assert list(state.touched["chunks"]) == [(segment.segment_id, 0)]
