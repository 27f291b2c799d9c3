import pytest

from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.state.segment import WriterProgress
from millrace.server.errors import (
    CheckpointDamagedError,
    StorageError,
)
from millrace.wire import messages as m
from tests.server.container.checkpoint.stores import empty_state, loaded, loaded_state, save
from tests.server.container.histories import durable_view, history
from tests.server.container.states import store as stored_state
from tests.support.databases import FaultyDatabases


def test_one_more_chunk_writes_one_row(store: CheckpointStore, files: FaultyDatabases) -> None:
    past = history(("create", 0, 0), *[("append", 0, 100), ("flush", 0, 10**9)] * 500, state=empty_state(store))
    save(store, past.state, 1)
    loaded(store)
    past.step("append", 0, 100)
    past.step("flush", 0, 10**9)
    past.step("truncate", 0, 150)
    before = files.changes_count
    save(store, past.state, 2)

    # Besides: the segment and meta, each removed and added; the triggers count for one change each.
    assert files.changes_count - before < 20
    assert durable_view(loaded_state(store)) == durable_view(past.state)


def test_a_number_that_does_not_fit_is_refused_and_nothing_is_stored(store: CheckpointStore) -> None:
    past = history(("create", 0, 0), ("open_writer", 0, 1), state=empty_state(store))
    save(store, past.state, 1)
    before = durable_view(past.state)
    segment = past.state.segments[1]
    segment.writers[2] = WriterProgress(durable=2**63)
    past.state.touch("progress", segment.segment_id, 2)
    past.state.segments.changed(segment)

    with pytest.raises(StorageError, match="progress cannot be stored"):
        save(store, past.state, 2)

    assert durable_view(loaded_state(store)) == before


def test_a_state_that_is_not_the_stored_one_plus_the_changes_is_refused(store: CheckpointStore) -> None:
    """For example because the file was set aside and only differences were saved afterwards."""
    past = history(("create", 0, 0))
    store.load()
    stored_state(past.state)
    past.step("create", 0, 0)

    with pytest.raises(CheckpointDamagedError, match="segments would have 1 rows instead of 2"):
        save(store, past.state, 1)


def test_chunks_of_a_save_of_unknown_outcome_do_not_stay_forever(store: CheckpointStore) -> None:
    """It was stored, though nobody was there any more to hear of it; then the chunk is truncated away."""
    past = history(("create", 0, 0), state=empty_state(store))
    save(store, past.state, 1)
    past.step("append", 0, 100)
    past.step("flush", 0, 10**9)
    rows = take_rows(past.state)
    store.save(rows, sequence=2, replay_from=1, container_epoch=7)
    (segment,) = past.state.segments.values()
    past.apply(m.SegmentTruncated(segment.segment_id, segment.length))
    assert not segment.chunks
    save(store, past.state, 3)

    stored = store.segments.load(segment.segment_id)
    assert stored is not None
    assert not stored.chunks
    assert durable_view(loaded_state(store)) == durable_view(past.state)
