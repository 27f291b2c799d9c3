import json
from itertools import pairwise

import pytest

from millrace.model.key_range import KEY_SPACE
from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.kind import Detail
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.stream import EPOCH_ROW, PART_ROW, Stream
from millrace.server.container.table import json_text, range_texts
from millrace.server.kinds.streams import STREAMS
from millrace.server.kinds.streams.tables import CUTS, StreamArchive
from millrace.wire import messages as m
from tests.server.container.checkpoint.stores import empty_state, save
from tests.server.container.histories import apply, history

STREAM_ID = 1
MIDDLE = KEY_SPACE // 2


def created(state: ContainerState) -> Stream:
    """Create a stream of one segment, with a cursor."""
    apply(
        state,
        m.StreamCreated(
            stream_id=STREAM_ID,
            created_us=5,
            name="a/b",
            configuration="{}",
            segments=[m.SegmentRangeRecord(2, 0, KEY_SPACE - 1)],
            cursors=[m.CursorName("reader")],
        ),
    )
    return state.streams[STREAM_ID]


def scale(state: ContainerState) -> None:
    """Split the stream, or merge it if it was split."""
    stream = state.streams[STREAM_ID]
    borders = [0, MIDDLE, KEY_SPACE] if len(stream.open_ids) == 1 else [0, KEY_SPACE]
    ranges = list(pairwise(borders))
    apply(
        state,
        m.StreamScaled(
            stream_id=STREAM_ID,
            epoch=stream.epoch + 1,
            scaled_us=6,
            cause="for a test",
            sealed_ids=stream.open_ids,
            created=[m.SegmentRangeRecord(state.take_id(), low, high - 1) for low, high in ranges],
        ),
    )


def same(stream: Stream | None, other: Stream) -> bool:
    """Return whether a stream was stored and read back as it is."""
    assert stream is not None
    return facts(stream) == facts(other)


def facts(stream: Stream) -> tuple[object, ...]:
    empty = [segment_id for segment_id in stream.segment_ids if stream.is_empty(segment_id)]
    return stream.parts, stream.epochs, stream.cuts, stream.epoch, empty


def test_key_ranges_keep_all_64_bits() -> None:
    past = history(("create_stream", 0, 2**16))
    rows = take_rows(past.state)
    parts = [row for row in rows.added[CUTS] if row[1] == PART_ROW]
    assert [json.loads(part[-1]) for part in parts] == [
        ["0000000000000000", "8000000000000000"],
        ["8000000000000001", "ffffffffffffffff"],
    ]


@pytest.mark.parametrize("count", [1, 200])
def test_a_checkpoint_writes_what_a_scaling_has_changed(store: CheckpointStore, count: int) -> None:
    """Behaviour 106: a late scaling costs a checkpoint as many rows and bytes as the first one."""
    state = empty_state(store)
    created(state)
    for _ in range(2 * count):
        scale(state)
    save(store, state, 1)
    scale(state)
    rows = take_rows(state)
    # The stream; the part that was replaced, its two successors, and the epoch.
    assert len(rows.added[STREAMS.table]) == 1
    assert sorted(row[1] for row in rows.added[CUTS]) == [PART_ROW] * 3 + [EPOCH_ROW]
    assert sum(len(str(row)) for row in (*rows.added[STREAMS.table], *rows.added[CUTS])) < 1000


def test_each_change_of_a_stream_is_stored(store: CheckpointStore) -> None:
    state = empty_state(store)
    created(state)
    sequence = 0

    def check() -> None:
        nonlocal sequence
        sequence += 1
        save(store, state, sequence)
        assert same(store.archive(StreamArchive).load(STREAM_ID), state.streams[STREAM_ID])

    check()
    for _ in range(3):
        scale(state)
    assert state.streams[STREAM_ID].empty_count
    check()
    opened = state.streams[STREAM_ID].open_ids
    at_tail = [m.SavedPosition(segment_id, 0, 0) for segment_id in opened]
    apply(state, m.CutsSaved(stream_id=STREAM_ID, saved_us=7, cuts=[m.NamedCut(m.CutKind.BOOKMARK, "mark", at_tail)]))
    check()
    apply(state, m.CutForgotten(STREAM_ID, m.CutKind.CURSOR, "reader"))
    check()
    every = [m.SavedPosition(segment_id, 0, 0) for segment_id in state.streams[STREAM_ID].segment_ids]
    apply(state, m.StreamStartMoved(STREAM_ID, every))
    assert state.streams[STREAM_ID].part_count == len(opened)
    check()
    apply(state, m.StreamSealed(STREAM_ID))
    apply(state, m.StreamDeleted(STREAM_ID))
    save(store, state, sequence + 1)
    assert store.archive(StreamArchive).load(STREAM_ID) is None
    assert not take_rows(state).added[CUTS]


def test_a_stream_that_an_earlier_version_has_stored_is_stored_again_row_by_row(store: CheckpointStore) -> None:
    state = empty_state(store)
    stream = created(state)
    scale(state)
    parts = [
        (part.segment_id, *range_texts(part.key_range.low, part.key_range.last), part.epoch, part.sealed_epoch)
        for part in stream.parts
    ]
    epochs = [
        (
            epoch.number, epoch.started_us, epoch.cause, list(epoch.sealed_ids),
            [(segment_id, *range_texts(low, last)) for segment_id, low, last in epoch.created],
        )
        for epoch in stream.epochs
    ]  # fmt: skip
    row = (STREAM_ID, 5, stream.epoch, 0, "a/b", "{}", json_text(parts), json_text(epochs))
    detail: Detail[Stream] = next(each for each in STREAMS.details if each.table is CUTS)
    assert detail.row is not None
    cut = (STREAM_ID, *(detail.row(stream, (m.CutKind.CURSOR, "reader")) or ()))
    old = STREAMS.restore(row, lambda table: [cut] if table is CUTS else [])
    assert facts(old)[:-1] == facts(stream)[:-1]  # which segments were empty, the row did not say

    assert detail.take_unwritten is not None
    stored = [(STREAM_ID, *(detail.row(old, key) or ())) for key in detail.take_unwritten(old)]
    again = STREAMS.restore(STREAMS.row(old), lambda table: [cut, *stored] if table is CUTS else [])
    assert same(again, old)
    assert not detail.take_unwritten(again)


def test_a_stream_of_an_earlier_version_is_stored_whole_once(store: CheckpointStore) -> None:
    """Behaviour 106: also while it stays in memory."""
    state = empty_state(store)
    stream = created(state)
    for _ in range(20):
        scale(state)
    save(store, state, 1)
    stream.has_rows = False  # as it is loaded from such a row

    scale(state)
    taken = take_rows(state)  # this one is not stored
    assert sum(row[1] == EPOCH_ROW for row in taken.added[CUTS]) == 22
    save(store, state, 2)
    assert same(store.archive(StreamArchive).load(STREAM_ID), stream)
    scale(state)
    assert sorted(row[1] for row in take_rows(state).added[CUTS]) == [PART_ROW] * 3 + [EPOCH_ROW]
