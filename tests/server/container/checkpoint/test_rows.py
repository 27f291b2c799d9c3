import json
from pathlib import Path

from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.segment_tables import ATTRIBUTES, CHUNKS, PROGRESS, SEGMENTS
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.checkpoint.stream_tables import STREAMS
from millrace.server.container.checkpoint.writer_tables import WRITERS
from millrace.server.container.recovery import state_of
from millrace.server.host.files import OsFileSystem
from tests.server.container.histories import history


def test_only_what_changed_is_taken(tmp_path: Path) -> None:
    store = CheckpointStore(OsFileSystem(), tmp_path / "checkpoint.db")
    store.load()
    past = history(
        *[("create", 0, 0)] * 5, *[("open_writer", number, 1) for number in range(3)], state=state_of(store, None)
    )
    for number in range(15):
        past.step("append_as_writer", number % 5, number)
        past.step("set_attribute", number % 5, number)
    rows = take_rows(past.state)
    store.save(rows, sequence=1, replay_from=1, container_epoch=1)
    past.state.stored(stored_below=rows.next_id)
    past.step("append_as_writer", 2, 1)
    past.step("set_attribute", 3, 1)

    rows = take_rows(past.state)

    assert [row[0] for row in rows.added[SEGMENTS.table]] == [3, 4]
    assert [row[0] for row in rows.added[PROGRESS]] == [3]
    assert [row[:2] for row in rows.added[ATTRIBUTES]] == [(4, "schlüssel-1")]
    assert rows.added[WRITERS.table] == []
    assert rows.added[CHUNKS] == []
    assert rows.counts[SEGMENTS.table] == 5
    store.close()


def test_what_was_deleted_meanwhile_is_not_taken() -> None:
    """Changes that a save which failed had taken may be of what is gone by now."""
    past = history(("create", 0, 0), ("open_writer", 0, 1), ("append_as_writer", 0, 5), ("set_attribute", 0, 5))
    take_rows(past.state)
    past.step("delete", 0, 0)

    rows = take_rows(past.state)

    assert not any((rows.added[SEGMENTS.table], rows.added[PROGRESS], rows.added[ATTRIBUTES], rows.added[CHUNKS]))
    assert all((1,) in rows.removed[table] for table in (SEGMENTS.table, PROGRESS, ATTRIBUTES, CHUNKS))


def test_key_ranges_keep_all_64_bits() -> None:
    past = history(("create_stream", 0, 2**16))
    rows = take_rows(past.state)
    ((*_, parts, _epochs),) = rows.added[STREAMS.table]
    assert [part[1:3] for part in json.loads(parts)] == [
        ["0000000000000000", "8000000000000000"],
        ["8000000000000001", "ffffffffffffffff"],
    ]
