import contextlib
from pathlib import Path

import pytest

from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.checkpoint.verification import verify_rows
from millrace.server.container.recovery import state_of
from millrace.server.errors import CheckpointDamagedError
from millrace.server.host.files import OsFileSystem
from millrace.wire import messages as m
from tests.server.container.histories import apply, run_of

PAGE_ROWS_COUNT = 10


def stored(path: Path, *, writer_count: int) -> Path:
    """Store a segment that so many writers have written to."""
    store = CheckpointStore(OsFileSystem(), path)
    store.load()
    state = state_of(store, None)
    state.next_id = writer_count + 2
    apply(state, m.SegmentCreated(1, 0, "raw/a"))
    segment = state.segments[1]
    for number in range(2, writer_count + 2):
        run = run_of(segment, offset=segment.length, size=1, event_count=1, writer_number=number, last_event_number=1)
        apply(state, run)
    store.save(take_rows(state), sequence=1, replay_from=1, container_epoch=1)
    store.close()
    return path


def steps_of_verification(path: Path) -> int:
    """Return how many steps of its machine SQLite takes, about."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    with contextlib.closing(OsFileSystem().database(path)) as connection:
        connection.set_progress_handler(count, 10)
        verify_rows(connection, path, page_rows_count=PAGE_ROWS_COUNT)
    return steps


def test_rows_of_one_segment_are_verified_in_linear_time(tmp_path: Path) -> None:
    """However many writers write to it: a page of rows is compared with its part of an index, and with no more."""
    few = steps_of_verification(stored(tmp_path / "few.db", writer_count=200))
    many = steps_of_verification(stored(tmp_path / "many.db", writer_count=1600))
    assert 100 < few < many < 10 * few


@pytest.mark.parametrize("writer_number", [2, 11, 12, 26])
def test_a_row_that_its_index_does_not_lead_to_is_damage(tmp_path: Path, writer_number: int) -> None:
    """Behaviour 41: also on the border of a page of rows that begin with the same key."""
    path = stored(tmp_path / "checkpoint.db", writer_count=25)
    with contextlib.closing(OsFileSystem().database(path)) as connection:
        verify_rows(connection, path, page_rows_count=PAGE_ROWS_COUNT)
        # As if the index had not heard of a change of this row.
        (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'progress_by_writer_number'").fetchone()
        connection.execute("DROP INDEX progress_by_writer_number")
        connection.execute(f"{sql} WHERE writer_number <> {writer_number}")
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'progress_by_writer_number'", [sql])
    with contextlib.closing(OsFileSystem().database(path)) as connection:
        with pytest.raises(CheckpointDamagedError, match="does not lead to 1 rows of progress"):
            verify_rows(connection, path, page_rows_count=PAGE_ROWS_COUNT)
