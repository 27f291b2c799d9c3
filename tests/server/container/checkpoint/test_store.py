import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.recovery import state_of
from millrace.server.errors import (
    CheckpointDamagedError,
    NoSpaceError,
    ServerError,
    ShuttingDownError,
    StorageError,
)
from millrace.server.kinds.registry import KINDS
from millrace.wire import messages as m
from millrace.wire.limits import MIB
from tests.server.container.checkpoint.stores import (
    RICH,
    assert_saves_arrive,
    damage_row,
    empty_state,
    loaded,
    loaded_state,
    opened,
    restore,
    save,
    save_all,
)
from tests.server.container.histories import STEPS, History, durable_view, history
from tests.server.container.states import new_state
from tests.support.databases import FaultyDatabases
from tests.support.examples import examples
from tests.support.files import MemoryFileSystem, SteppedFileSystem


def test_without_a_file_there_is_no_checkpoint(store: CheckpointStore, path: Path) -> None:
    assert store.load() is None
    assert not path.exists()


def test_an_empty_state_is_a_checkpoint_too(store: CheckpointStore) -> None:
    assert store.load() is None
    save(store, new_state(), 0)

    checkpoint = loaded(store)

    assert not list(state_of(store, checkpoint).segments.values())
    assert (checkpoint.sequence, checkpoint.replay_from, checkpoint.container_epoch) == (0, 0, 7)


def test_a_first_checkpoint_is_two_transactions(store: CheckpointStore, path: Path) -> None:
    """One makes the tables: each transaction syncs the disk four times, and a new server waits for all of them."""
    assert store.load() is None
    save(store, new_state(), 0)

    change_counter = path.read_bytes()[24:28]  # of the header of a SQLite file: it counts transactions
    assert int.from_bytes(change_counter, "big") == 2


SAVES = st.tuples(st.sampled_from(["save", "fail", "reopen", "restart"]), st.just(0), st.just(0))


@pytest.mark.slow
@settings(max_examples=examples(30))
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
    assert all(writer.admitted == writer.durable for writer in state.writers.values())


# Damage


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


def test_somebody_who_holds_the_file_is_no_damage(
    store: CheckpointStore, files: FaultyDatabases, path: Path, rich_copy: bytes
) -> None:
    files.execute("PRAGMA busy_timeout=0")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageError, match="locked") as caught:
            save(store, History().state, 11)
    assert not isinstance(caught.value, CheckpointDamagedError)
    assert loaded(store).sequence == 10


# Crashes


@pytest.mark.slow
def test_a_kill_at_any_statement_leaves_the_old_checkpoint_or_the_new_one(
    store: CheckpointStore, files: FaultyDatabases, path: Path, tmp_path: Path, rich_copy: bytes
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

    files.execute("PRAGMA cache_size=1")
    files.execute("PRAGMA cache_spill=ON")
    files.execute("PRAGMA synchronous=OFF")  # a kill does not lose what was written
    files.trace(copy)
    save(store, past.state, 11)
    files.trace(None)
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


def test_a_failed_save_changes_nothing(
    store: CheckpointStore, files: FaultyDatabases, path: Path, rich_copy: bytes
) -> None:
    """Behaviour 44, for the checkpoint: the disk is full (here: the file may not grow)."""
    past = History(loaded_state(store))
    old = durable_view(past.state)
    files.fill()
    for number in range(500):
        past.step("create", 0, number)

    with pytest.raises(NoSpaceError):
        save(store, past.state, 11)

    files.make_room()
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


def test_an_export_takes_little_memory(tmp_path: Path) -> None:
    """Behaviour 86: a copy is one transaction of SQLite, and none of its pages wait in memory for the end."""
    path = tmp_path / "large.db"
    with opened(path) as store:
        past = history(("create", 0, 0), state=empty_state(store))
        for number in range(1024):
            past.apply(m.AttributeSet(segment_id=1, present=1, key=f"k{number}", value=bytes(64_000)))
        save(store, past.state, 10)
    program = f"""
import re
from pathlib import Path
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.kinds.registry import KINDS
from millrace.server.host.files import OsFileSystem

store = CheckpointStore(OsFileSystem(), Path({str(path)!r}), KINDS)
store.load()

def most_bytes():
    return int(re.search("VmHWM: *\\t* *([0-9]+) kB", Path("/proc/self/status").read_text())[1]) * 1024

Path("/proc/self/clear_refs").write_text("5")  # from here on; what loading took does not count
before = most_bytes()
print(store.export(), most_bytes() - before)
store.close()
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    size, more_bytes = map(int, ran.stdout.split())
    assert size > 60 * MIB
    assert more_bytes < 16 * MIB


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
        store = CheckpointStore(files, Path("/data/checkpoint.db"), KINDS)
        past = history(("create", 0, 0), ("append_as_writer", 0, 5), state=empty_state(store))
        save(store, past.state, 10)
        kept = durable_view(past.state)
        past.step("create", 1, 0)
        files.fail_syncs(1)
        with pytest.raises(ServerError):
            save(store, past.state, 11)
        files.crash(seed)

        store = CheckpointStore(files, Path("/data/checkpoint.db"), KINDS)
        checkpoint = loaded(store)
        assert checkpoint.sequence == 10
        assert durable_view(state_of(store, checkpoint)) == kept
        store.close()


def test_a_first_save_that_fails_can_be_made_again() -> None:
    """Wherever the disk fails: there was no file yet whose content would be unknown."""

    def first_save(*, failing_step: int) -> int:
        files = SteppedFileSystem()
        files.make_directories(Path("/data"))
        store = CheckpointStore(files, Path("/data/checkpoint.db"), KINDS)
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
    for failing_step in range(1, step_count + 1):
        assert first_save(failing_step=failing_step) >= failing_step


def test_a_disk_that_is_full_takes_the_checkpoint_when_there_is_room() -> None:
    """Behaviour 44."""
    files = MemoryFileSystem()
    files.make_directories(Path("/data"))
    store = CheckpointStore(files, Path("/data/checkpoint.db"), KINDS)
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
