from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.segment_tables import ATTRIBUTES, CHUNKS, PROGRESS, SEGMENTS
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.kinds.writers import WRITERS
from tests.server.container.checkpoint.stores import empty_state, save
from tests.server.container.histories import history


def test_only_what_changed_is_taken(store: CheckpointStore) -> None:
    past = history(
        *[("create", 0, 0)] * 5, *[("open_writer", number, 1) for number in range(3)], state=empty_state(store)
    )
    for number in range(15):
        past.step("append_as_writer", number % 5, number)
        past.step("set_attribute", number % 5, number)
    save(store, past.state, 1)
    past.step("append_as_writer", 2, 1)
    past.step("set_attribute", 3, 1)

    rows = take_rows(past.state)

    assert [row[0] for row in rows.added[SEGMENTS.table]] == [3, 4]
    assert [row[0] for row in rows.added[PROGRESS]] == [3]
    assert [row[:2] for row in rows.added[ATTRIBUTES]] == [(4, "schlüssel-1")]
    assert rows.added[WRITERS.table] == []
    assert rows.added[CHUNKS] == []
    assert rows.counts[SEGMENTS.table] == 5


def test_what_was_deleted_meanwhile_is_not_taken() -> None:
    """Changes that a save which failed had taken may be of what is gone by now."""
    past = history(("create", 0, 0), ("open_writer", 0, 1), ("append_as_writer", 0, 5), ("set_attribute", 0, 5))
    take_rows(past.state)
    past.step("delete", 0, 0)

    rows = take_rows(past.state)

    assert not any((rows.added[SEGMENTS.table], rows.added[PROGRESS], rows.added[ATTRIBUTES], rows.added[CHUNKS]))
    assert all((1,) in rows.removed[table] for table in (SEGMENTS.table, PROGRESS, ATTRIBUTES, CHUNKS))
