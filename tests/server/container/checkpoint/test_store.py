import contextlib
import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.server.container.checkpoint.checkpoint import Checkpoint
from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.schema import FORMAT, FORMAT_VERSION, PRODUCT, TABLES, schema
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.recovery import state_of
from millrace.server.container.state.container_state import ContainerState
from millrace.server.errors import (
    CheckpointDamagedError,
    FolderVersionError,
    NoSpaceError,
    ServerError,
    ShuttingDownError,
    StorageError,
)
from millrace.server.host.files import OsFileSystem
from millrace.wire import messages as m
from tests.server.container.histories import STEPS, History, durable_view, history, run_of
from tests.server.container.states import new_state
from tests.server.container.states import store as stored_state
from tests.support.files import MemoryFileSystem, SteppedFileSystem

RICH = history(
    *[("create", 0, 1), ("open_writer", 0, 3), ("create_stream", 0, 77), ("open_writer", 1, 4)] * 3,
    *[("open_on_stream", number, number) for number in range(3)],
    *[("append_sequenced", number, 1000 + 7 * number) for number in range(5)],
    *[(kind, number, 1000 + 7 * number) for number in range(14) for kind in ("append", "append_as_writer", "flush")],
    *[(kind, number, 333) for number in range(5) for kind in ("lose", "set_attribute", "flush", "append", "flush")],
    ("truncate", 3, 5), ("seal_stream", 1, 0), ("delete", 4, 0), ("merge", 1, 2),
    *[(kind, number, 41 + number) for number in range(6) for kind in ("scale_stream", "save_cut", "update_stream")],
).state  # fmt: skip
assert all((RICH.segments, RICH.writers, RICH.streams))


def save(store: CheckpointStore, state: ContainerState, sequence: int) -> None:
    rows = take_rows(state)
    store.save(rows, sequence=sequence, replay_from=sequence // 2, container_epoch=7)
    state.stored(stored_below=rows.next_id)


def save_all(store: CheckpointStore, state: ContainerState, sequence: int) -> None:
    """Save a state that was never saved, and leave it so, for the next test."""
    rows = take_rows(state)
    store.save(rows, sequence=sequence, replay_from=sequence // 2, container_epoch=7)


def loaded(store: CheckpointStore) -> Checkpoint:
    checkpoint = store.load()
    assert checkpoint is not None
    return checkpoint


def loaded_state(store: CheckpointStore, *, idle_bytes_max: int = 10_000) -> ContainerState:
    return state_of(store, loaded(store), idle_bytes_max=idle_bytes_max)


def empty_state(store: CheckpointStore) -> ContainerState:
    assert store.load() is None
    return state_of(store, None, idle_bytes_max=10_000)


def exported(store: CheckpointStore) -> bytes:
    assert store.export() == store.copy_path.stat().st_size
    store.verify_copy()
    data = store.copy_path.read_bytes()
    store.remove_copy()
    return data


def restore(store: CheckpointStore, data: bytes) -> None:
    store.begin_restore()
    for offset in range(0, len(data), 5000):
        store.restore_part(data[offset : offset + 5000], offset=offset)
    store.finish_restore()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[CheckpointStore]:
    store = CheckpointStore(OsFileSystem(), path, progress_steps_count=100)
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.db"


@pytest.fixture
def store(path: Path) -> Iterator[CheckpointStore]:
    with opened(path) as store:
        yield store


@pytest.fixture
def rich_copy(store: CheckpointStore) -> bytes:
    """An export of a rich state as of sequence 10; the store is left with it."""
    assert store.load() is None
    save_all(store, RICH, 10)
    return exported(store)


def test_without_a_file_there_is_no_checkpoint(store: CheckpointStore, path: Path) -> None:
    assert store.load() is None
    assert not path.exists()


def test_an_empty_state_is_a_checkpoint_too(store: CheckpointStore) -> None:
    assert store.load() is None
    save(store, new_state(), 0)

    checkpoint = loaded(store)

    assert not list(state_of(store, checkpoint).segments.values())
    assert (checkpoint.sequence, checkpoint.replay_from, checkpoint.container_epoch) == (0, 0, 7)


SAVES = st.tuples(st.sampled_from(["save", "fail", "reopen", "restart"]), st.just(0), st.just(0))


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.one_of(STEPS, STEPS, STEPS, SAVES), max_size=80))
def test_what_is_loaded_is_what_was_saved_bit_by_bit(steps: list[tuple[str, int, int]]) -> None:
    """Each checkpoint stores differences only, also after one failed, and also on top of a loaded state."""
    sequence = 0
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder, "checkpoint.db")) as store:
        past = History(empty_state(store))
        for kind, choice, amount in [("create", 0, 0), *steps, ("reopen", 0, 0)]:
            sequence += 1
            if kind == "save":
                save(store, past.state, sequence)
            elif kind == "fail":
                take_rows(past.state)
                past.step("append", 5, 5)
            elif kind in {"reopen", "restart"}:
                save(store, past.state, sequence)
                checkpoint = loaded(store)
                state = state_of(store, checkpoint, idle_bytes_max=sequence % 4 * 3000)
                assert durable_view(state) == durable_view(past.state)
                assert state.user_segment_count == past.state.user_segment_count
                assert (checkpoint.sequence, checkpoint.replay_from) == (sequence, sequence // 2)
                assert not state.changed_count
                if kind == "restart":
                    past.state = state
            else:
                past.step(kind, choice, amount)


def test_the_admitted_view_of_a_loaded_state_is_the_durable_one(store: CheckpointStore, rich_copy: bytes) -> None:
    state = loaded_state(store)

    assert all(segment.next_offset == segment.length for segment in state.segments.values())
    assert all(
        progress.admitted == progress.durable
        for segment in state.segments.values()
        for progress in segment.writers.values()
    )
    assert all(writer.admitted_epoch == writer.epoch for writer in state.writers.values())


def test_the_index_of_a_loaded_segment_has_the_borders_of_its_chunks(store: CheckpointStore, rich_copy: bytes) -> None:
    segments = [segment for segment in loaded_state(store).segments.values() if segment.chunks]

    assert any(len(segment.chunks) > 1 for segment in segments)
    for segment in segments:
        segment.index.check()
        borders = segment.index.entries(0, 2**63)
        assert [entry.offset for entry in borders[:-1]] == [chunk.start_offset for chunk in segment.chunks]
        assert [entry.events for entry in borders[:-1]] == [chunk.start_events for chunk in segment.chunks]
        assert borders[-1].offset == segment.chunks[-1].end_offset
        assert borders[-1].wall_time_us == max(chunk.end_wall_time_us for chunk in segment.chunks)


def test_one_more_chunk_writes_one_row(store: CheckpointStore) -> None:
    past = history(("create", 0, 0), *[("append", 0, 100), ("flush", 0, 10**9)] * 500, state=empty_state(store))
    save(store, past.state, 1)
    loaded(store)
    past.step("append", 0, 100)
    past.step("flush", 0, 10**9)
    past.step("truncate", 0, 150)
    assert store._connection is not None
    before = store._connection.total_changes
    save(store, past.state, 2)

    # Besides: the segment and meta, each removed and added; the triggers count for one change each.
    assert store._connection.total_changes - before < 20
    assert durable_view(loaded_state(store)) == durable_view(past.state)


def test_a_number_that_does_not_fit_is_refused_and_nothing_is_stored(store: CheckpointStore) -> None:
    past = history(("create", 0, 0), ("open_writer", 0, 1), state=empty_state(store))
    save(store, past.state, 1)
    before = durable_view(past.state)
    segment = past.state.segments[1]
    past.apply(run_of(segment, offset=0, size=1, event_count=1, writer_number=2, last_event_number=2**63))

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


# Damage


def damage_row(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE segments SET length = length + 1 WHERE segment_id = 1")


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.segments.load(1),
        lambda store: store.verify(),
        lambda store: save(store, history(("create", 0, 0)).state, 11),  # not the stored state and what changed since
    ],
    ids=["reading", "verifying", "saving"],
)
def test_damage_is_reported_by_any_method_that_finds_it(
    store: CheckpointStore, path: Path, rich_copy: bytes, act: Callable[[CheckpointStore], object]
) -> None:
    """Behaviour 41: a background task that meets it need not know what is to be done."""
    loaded(store)
    told: list[CheckpointDamagedError] = []
    store.when_damaged(told.append)
    damage_row(path)

    with pytest.raises(CheckpointDamagedError) as caught:
        act(store)

    assert told == [caught.value]
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.segments.load(1)
    assert len(told) == 1


def test_verifying_a_copy_ends_when_it_is_asked_to(store: CheckpointStore, rich_copy: bytes) -> None:
    """Behaviour 48: within a statement, too, of which a large copy has some that take long."""
    store.copy_path.write_bytes(rich_copy)

    def pause() -> None:
        raise ShuttingDownError("the end is near")

    with pytest.raises(ServerError) as caught:
        store.verify_copy(pause)
    assert not isinstance(caught.value, CheckpointDamagedError)
    store.verify_copy()


def test_what_is_discarded_is_deleted_with_its_journals(store: CheckpointStore, path: Path, rich_copy: bytes) -> None:
    path.with_name("checkpoint.db-journal").write_bytes(b"of a copy that was no better")
    store.discard()
    assert not os.listdir(path.parent)
    assert store.load() is None
    store.discard()


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

    @settings(max_examples=150)
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


def assert_saves_arrive(store: CheckpointStore, state: ContainerState) -> None:
    past = History(state)
    for kind in ("create", "append", "flush", "set_attribute", "open_writer", "append_as_writer", "delete_stream"):
        past.step(kind, 3, 100)
    save(store, past.state, 12)
    assert durable_view(loaded_state(store)) == durable_view(past.state)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_damage(store: CheckpointStore, path: Path, rich_copy: bytes, part: float) -> None:
    store.close()
    path.write_bytes(rich_copy[: int(part * len(rich_copy))])
    with pytest.raises(CheckpointDamagedError):
        store.load()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.name))
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
        connection.execute(next(text for text in schema() if text.startswith(f"CREATE TRIGGER {table.name}_delete ")))
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
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE segments SET length = length + 1 WHERE segment_id = 1")
    with pytest.raises(CheckpointDamagedError, match="segments does not match its checksum"):
        exported(store)


def test_somebody_who_holds_the_file_is_no_damage(store: CheckpointStore, path: Path, rich_copy: bytes) -> None:
    assert store._connection is not None
    store._connection.execute("PRAGMA busy_timeout=0")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageError, match="locked") as caught:
            save(store, History().state, 11)
    assert not isinstance(caught.value, CheckpointDamagedError)
    assert loaded(store).sequence == 10


# Crashes


@pytest.mark.slow
def test_a_kill_at_any_statement_leaves_the_old_checkpoint_or_the_new_one(
    store: CheckpointStore, path: Path, tmp_path: Path, rich_copy: bytes
) -> None:
    """Behaviour 46: the folder, copied at every step of a save whose pages reach the file early."""
    past = History(loaded_state(store))
    old = durable_view(past.state)
    for number in range(400):
        past.step("create", 0, number)
        past.step("append", number, number)
        past.step("flush", number, 10**6)
    new = durable_view(past.state)
    copies: list[Path] = []

    statements = count()

    def copy(statement: str) -> None:
        # The triggers are told too: of these statements one in a hundred.
        if next(statements) % 100 and statement != "COMMIT":
            return
        folder = tmp_path / f"copy-{len(copies)}"
        folder.mkdir()
        for name in ("checkpoint.db", "checkpoint.db-journal"):
            if (tmp_path / name).exists():
                shutil.copyfile(tmp_path / name, folder / name)
        copies.append(folder)

    assert store._connection is not None
    store._connection.execute("PRAGMA cache_size=1")
    store._connection.execute("PRAGMA cache_spill=ON")
    store._connection.execute("PRAGMA synchronous=OFF")  # a kill does not lose what was written
    store._connection.set_trace_callback(copy)
    save(store, past.state, 11)
    store._connection.set_trace_callback(None)
    copy("COMMIT")

    torn = 0
    outcomes = []
    for folder in copies:
        torn += (folder / "checkpoint.db").read_bytes() != rich_copy and (folder / "checkpoint.db-journal").exists()
        with opened(folder / "checkpoint.db") as survivor:
            checkpoint = loaded(survivor)
            assert durable_view(state_of(survivor, checkpoint)) == (old if checkpoint.sequence == 10 else new)
            outcomes.append(checkpoint.sequence)
    assert torn > 2
    assert outcomes == [10] * (len(copies) - 1) + [11]


def test_a_crash_while_the_file_is_made_leaves_no_checkpoint(store: CheckpointStore, path: Path) -> None:
    path.with_name("checkpoint.db.new").write_bytes(b"half of a database")
    path.with_name("checkpoint.db.new-journal").write_bytes(b"and of its journal")
    assert store.load() is None

    save(store, new_state(), 3)

    assert loaded(store).sequence == 3
    assert os.listdir(path.parent) == ["checkpoint.db"]


def test_a_failed_save_changes_nothing(store: CheckpointStore, path: Path, rich_copy: bytes) -> None:
    """Behaviour 44, for the checkpoint: the disk is full (here: the file may not grow)."""
    past = History(loaded_state(store))
    old = durable_view(past.state)
    assert store._connection is not None
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count={pages}")
    for number in range(500):
        past.step("create", 0, number)

    with pytest.raises(NoSpaceError):
        save(store, past.state, 11)

    store._connection.execute(f"PRAGMA max_page_count={pages * 100}")
    with opened(path) as other:
        assert durable_view(loaded_state(other)) == old
    save(store, past.state, 12)
    assert durable_view(loaded_state(store)) == durable_view(past.state)


# Copies


def test_an_export_restores_what_was_saved_last(tmp_path: Path, rich_copy: bytes) -> None:
    with opened(tmp_path / "other.db") as other:
        restore(other, rich_copy)
        checkpoint = loaded(other)
        state = state_of(other, checkpoint)
        assert durable_view(state) == durable_view(RICH)
        assert (checkpoint.sequence, checkpoint.replay_from, checkpoint.container_epoch) == (10, 5, 7)
        assert_saves_arrive(other, state)


def test_a_journal_of_the_old_file_is_not_applied_to_a_restored_one(
    store: CheckpointStore, path: Path, rich_copy: bytes
) -> None:
    store.close()
    journal = path.with_name("checkpoint.db-journal")
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"x" * 5000)

    restore(store, rich_copy)

    assert durable_view(loaded_state(store)) == durable_view(RICH)
    assert not journal.exists()
    assert path.with_name("checkpoint.db.older-1-journal").read_bytes().endswith(b"xxx")


def test_a_damaged_file_is_set_aside_and_kept(store: CheckpointStore, path: Path, rich_copy: bytes) -> None:
    """Behaviour 41: nothing is deleted; what can be derived is built again."""
    for number in (1, 2):
        store.close()
        path.write_bytes(b"damage %d" % number)
        with pytest.raises(CheckpointDamagedError):
            store.load()
        aside = store.set_aside()
        assert aside.name == f"checkpoint.db.damaged-{number}"
        assert aside.read_bytes() == b"damage %d" % number
        assert store.load() is None

    save_all(store, RICH, 20)
    assert durable_view(loaded_state(store)) == durable_view(RICH)


def test_journals_are_set_aside_with_their_file(store: CheckpointStore, path: Path, rich_copy: bytes) -> None:
    store.close()
    for suffix in ("-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).write_bytes(suffix.encode())

    aside = store.set_aside()

    assert sorted(os.listdir(path.parent)) == [aside.name + suffix for suffix in ("", "-journal", "-shm", "-wal")]


def test_closing_twice_is_fine(store: CheckpointStore, rich_copy: bytes) -> None:
    store.close()
    store.close()
    assert loaded(store).sequence == 10


def test_a_restored_copy_is_known_as_one_until_something_is_saved_to_it(tmp_path: Path, rich_copy: bytes) -> None:
    """Behaviour 43: also after a crash in between. Whether the log still has what it needs is to be found out first."""
    with opened(tmp_path / "other.db") as other:
        restore(other, rich_copy)
    for _ in range(2):
        with opened(tmp_path / "other.db") as other:
            checkpoint = loaded(other)
            assert checkpoint.is_restored
            state = state_of(other, checkpoint)
    with opened(tmp_path / "other.db") as other:
        state = state_of(other, loaded(other))
        save(other, state, 11)
        assert not loaded(other).is_restored


def test_a_checkpoint_of_our_own_is_no_restored_copy(store: CheckpointStore, rich_copy: bytes) -> None:
    assert not loaded(store).is_restored


# On a disk that fails


def test_a_power_loss_leaves_the_checkpoint_before_or_after_a_save() -> None:
    """Behaviour 43: whatever the disk had in its cache; what `save` reported as stored is there."""
    for seed in range(20):
        files = MemoryFileSystem()
        files.make_directories(Path("/data"))
        files.sync_directory(Path("/data"))
        store = CheckpointStore(files, Path("/data/checkpoint.db"))
        past = history(("create", 0, 0), ("append_as_writer", 0, 5), state=empty_state(store))
        save(store, past.state, 10)
        kept = durable_view(past.state)
        past.step("create", 1, 0)
        files.fail_syncs(1)
        with pytest.raises(ServerError):
            save(store, past.state, 11)
        files.crash(seed)

        store = CheckpointStore(files, Path("/data/checkpoint.db"))
        checkpoint = loaded(store)
        assert checkpoint.sequence == 10
        assert durable_view(state_of(store, checkpoint)) == kept
        store.close()


def test_a_first_save_that_fails_can_be_made_again() -> None:
    """Wherever the disk fails: there was no file yet whose content would be unknown."""

    def first_save(*, failing_step: int) -> int:
        files = SteppedFileSystem()
        files.make_directories(Path("/data"))
        store = CheckpointStore(files, Path("/data/checkpoint.db"))
        past = history(("create", 0, 0), state=empty_state(store))
        before = files.step_count
        files.refuses = lambda step, path, is_change: step == before + failing_step
        with pytest.raises((ServerError, OSError)) if failing_step else contextlib.nullcontext():
            save(store, past.state, 10)
        step_count = files.step_count - before
        if failing_step:
            save(store, past.state, 10)
        assert loaded(store).sequence == 10
        store.close()
        return step_count

    step_count = first_save(failing_step=0)
    # Before these steps the tables are made; the last of them are those of the transaction, and the renaming.
    for failing_step in range(step_count - 12, step_count + 1):
        assert first_save(failing_step=failing_step) == failing_step


def test_a_disk_that_is_full_takes_the_checkpoint_when_there_is_room() -> None:
    """Behaviour 44."""
    files = MemoryFileSystem()
    files.make_directories(Path("/data"))
    store = CheckpointStore(files, Path("/data/checkpoint.db"))
    past = history(("create", 0, 0), state=empty_state(store))
    save(store, past.state, 10)
    past.step("create", 1, 0)
    capacity_bytes = files.capacity_bytes
    files.capacity_bytes -= files.free_bytes(Path("/data"))
    with pytest.raises(NoSpaceError):
        save(store, past.state, 11)
    files.capacity_bytes = capacity_bytes
    save(store, past.state, 11)
    assert loaded(store).sequence == 11
    store.close()
