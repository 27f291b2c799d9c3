import contextlib
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.schema import FORMAT, FORMAT_VERSION, PRODUCT, Schema
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.checkpoint.verification import verify_rows
from millrace.server.container.recovery import state_of
from millrace.server.errors import (
    CheckpointDamagedError,
    FolderVersionError,
)
from millrace.server.host.files import OsFileSystem
from millrace.server.kinds.registry import KINDS
from millrace.wire import messages as m
from tests.server.container.checkpoint.stores import (
    RICH,
    assert_saves_arrive,
    damage_row,
    exported,
    loaded,
    loaded_state,
    save,
)
from tests.server.container.histories import History, apply, durable_view, run_of
from tests.support.examples import examples

SCHEMA = Schema(KINDS)
PAGE_ROWS_COUNT = 10


def stored(path: Path, *, writer_count: int) -> Path:
    """Store a segment that so many writers have written to."""
    store = CheckpointStore(OsFileSystem(), path, KINDS)
    store.load()
    state = state_of(store, None)
    state.scalars.next_id = writer_count + 2
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
        verify_rows(connection, SCHEMA, path, page_rows_count=PAGE_ROWS_COUNT)
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
        verify_rows(connection, SCHEMA, path, page_rows_count=PAGE_ROWS_COUNT)
        # As if the index had not heard of a change of this row.
        (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'progress_by_writer_number'").fetchone()
        connection.execute("DROP INDEX progress_by_writer_number")
        connection.execute(f"{sql} WHERE writer_number <> {writer_number}")
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'progress_by_writer_number'", [sql])
    with contextlib.closing(OsFileSystem().database(path)) as connection:
        with pytest.raises(CheckpointDamagedError, match="does not lead to 1 rows of progress"):
            verify_rows(connection, SCHEMA, path, page_rows_count=PAGE_ROWS_COUNT)


# --- what a store tells of it ---


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 8192, b"SQLite format 3\0", b"not a database, but a letter to a friend " * 200],
    ids=["empty", "zeros", "magic only", "text"],
)
def test_a_foreign_file_is_damage(store: CheckpointStore, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CheckpointDamagedError) as caught:
        store.load()
    assert str(path) in str(caught.value)


def test_a_database_of_others_is_damage(store: CheckpointStore, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE cakes (name TEXT)")
    with pytest.raises(CheckpointDamagedError):
        store.load()


def change_format(path: Path, *row: Any) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE format SET version = ?, product = ?, checksum = ?", (*row, FORMAT.checksum(row)))


@pytest.mark.parametrize(("change", "age"), [(-1, "older"), (41, "newer")])
def test_another_version_is_refused_and_both_are_named(
    store: CheckpointStore, path: Path, rich_copy: bytes, change: int, age: str
) -> None:
    """Behaviour 47: a folder of a newer version is refused, both named; one of an older is not migrated either."""
    change_format(path, FORMAT_VERSION + change, PRODUCT)
    with pytest.raises(
        FolderVersionError, match=rf"format {FORMAT_VERSION + change} by an? {age} .* {FORMAT_VERSION} only"
    ):
        store.load()


def test_another_product_is_damage(store: CheckpointStore, path: Path, rich_copy: bytes) -> None:
    change_format(path, FORMAT_VERSION, "watermill checkpoint")
    with pytest.raises(CheckpointDamagedError, match="watermill"):
        store.load()


@pytest.mark.slow
def test_a_flipped_bit_is_detected_or_harmless(store: CheckpointStore, path: Path, rich_copy: bytes) -> None:
    """Behaviour 41: a flipped bit in the checkpoint is detected. Where it is not, the bit means nothing."""
    expected = durable_view(RICH)
    used = [position for position, byte in enumerate(rich_copy) if byte]

    @settings(max_examples=examples(150))
    @given(st.one_of(st.sampled_from(used), st.integers(0, 99), st.integers(0, len(rich_copy) - 1)), st.integers(0, 7))
    def flip(position: int, bit: int) -> None:
        store.close()
        damaged = bytearray(rich_copy)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            checkpoint = loaded(store)
        except CheckpointDamagedError:
            return
        state = state_of(store, checkpoint)
        assert durable_view(state) == expected
        # The next checkpoints find their place, too.
        assert_saves_arrive(store, state)

    flip()


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_damage(store: CheckpointStore, path: Path, rich_copy: bytes, part: float) -> None:
    store.close()
    path.write_bytes(rich_copy[: int(part * len(rich_copy))])
    with pytest.raises(CheckpointDamagedError):
        store.load()


@pytest.mark.parametrize("table", SCHEMA.tables, ids=lambda table: str(table.name))
def test_a_lost_row_is_damage(store: CheckpointStore, path: Path, rich_copy: bytes, table: Any) -> None:
    def rows() -> int:
        (count,) = connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()
        return int(count)

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        before = rows()
        connection.execute(f"DROP TRIGGER {table.name}_delete")
        connection.execute(
            f"DELETE FROM {table.name} WHERE {table.key[0]} = (SELECT max({table.key[0]}) FROM {table.name})"
        )
        assert rows() < before
        trigger = f"CREATE TRIGGER {table.name}_delete "
        connection.execute(next(text for text in SCHEMA.statements() if text.startswith(trigger)))
    with pytest.raises(CheckpointDamagedError):
        store.load()


@pytest.mark.slow
def test_a_lost_write_is_damage(store: CheckpointStore, path: Path, rich_copy: bytes) -> None:
    """Behaviour 42: an older version of a page, whole in itself, is not taken for the present one."""
    past = History(loaded_state(store))
    for number in range(9):
        past.step("append_as_writer", number, 40)
        past.step("set_attribute", number, 9)
        past.step("flush", number, 10**6)
    save(store, past.state, 11)
    newer = exported(store)
    page_size = struct.unpack_from(">H", newer, 16)[0]
    pages = range(0, min(len(newer), len(rich_copy)), page_size)
    changed = [page for page in pages if newer[page : page + page_size] != rich_copy[page : page + page_size]]
    assert len(changed) > 5
    harmless = 0
    for page in changed:
        store.close()
        mixture = bytearray(newer)
        mixture[page : page + page_size] = rich_copy[page : page + page_size]
        path.write_bytes(mixture)
        try:
            checkpoint = loaded(store)
        except CheckpointDamagedError:
            continue
        # Pages may differ in nothing but where the same rows lie.
        state = state_of(store, checkpoint)
        assert durable_view(state) == durable_view(past.state)
        assert_saves_arrive(store, state)
        harmless += 1
    assert harmless < len(changed) / 2


def test_damage_is_found_while_exporting(store: CheckpointStore, path: Path, rich_copy: bytes) -> None:
    damage_row(path)
    with pytest.raises(CheckpointDamagedError, match="segments does not match its checksum"):
        exported(store)
