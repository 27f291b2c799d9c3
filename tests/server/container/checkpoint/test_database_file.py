from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.server.container.checkpoint.database_file import (
    check_header,
    free_path,
    move_database,
    remove_database,
    remove_journals,
)
from millrace.server.errors import CheckpointDamagedError
from tests.support.files import MemoryFileSystem, SteppedFileSystem
from tests.support.tables import table

FOLDER = Path("/data")
FILE, TARGET = FOLDER / "checkpoint.db", FOLDER / "checkpoint.db.damaged-1"
JOURNALS = ["checkpoint.db-journal", "checkpoint.db-shm", "checkpoint.db-wal"]


def disk(*names: str, files: MemoryFileSystem | None = None) -> MemoryFileSystem:
    """A folder with empty files of these names."""
    files = files or MemoryFileSystem()
    files.make_directories(FOLDER)
    for name in names:
        files.open(FOLDER / name, create=True).close()
    return files


def at_step(number: int) -> Callable[[int, Path, bool], bool]:
    return lambda step, path, is_change: step == number


def names(files: MemoryFileSystem) -> list[str]:
    return sorted(files.list_directory(FOLDER))


def test_a_file_is_removed_with_its_journals_and_nothing_else() -> None:
    files = disk(FILE.name, *JOURNALS, "checkpoint.db.copy")
    remove_journals(files, FILE)
    assert names(files) == ["checkpoint.db", "checkpoint.db.copy"]
    for _ in range(2):
        remove_database(files, FILE)
        assert names(files) == ["checkpoint.db.copy"]


def test_a_file_is_moved_with_its_journals() -> None:
    files = disk(FILE.name, *JOURNALS)
    move_database(files, FILE, TARGET)
    assert names(files) == [TARGET.name, *(name.replace(FILE.name, TARGET.name) for name in JOURNALS)]


def test_wherever_a_move_ends_no_journal_is_left_without_its_file() -> None:
    """It would be applied to the next file of that name."""
    whole = SteppedFileSystem()
    disk(FILE.name, *JOURNALS, files=whole)
    before = whole.step_count
    move_database(whole, FILE, TARGET)
    for failing_step in range(1, whole.step_count - before + 1):
        files = SteppedFileSystem()
        disk(FILE.name, *JOURNALS, files=files)
        files.refuses = at_step(files.step_count + failing_step)
        with pytest.raises(OSError, match="Input/output"):
            move_database(files, FILE, TARGET)
        assert FILE.name in files.list_directory(FOLDER)
        move_database(files, FILE, TARGET)
        assert len(names(files)) == 1 + len(JOURNALS)


def test_a_name_is_free_if_no_journal_has_it_either() -> None:
    files = disk(FILE.name, TARGET.name, "checkpoint.db.damaged-2-journal")
    assert free_path(files, FILE, "damaged").name == "checkpoint.db.damaged-3"
    assert free_path(files, FILE, "older").name == "checkpoint.db.older-1"


@table("versions", [b"\x02\x02", b"\x01\x02", b"", b"\x01"])
def test_a_file_that_is_to_be_written_in_another_way_is_damage(versions: bytes) -> None:
    """SQLite would make a write-ahead log, or take the file for one that must not be written."""
    files = disk(FILE.name)
    files.replace_content(FILE, b"SQLite format 3\0\x10\x00" + versions)
    with pytest.raises(CheckpointDamagedError, match="header"):
        check_header(files, FILE)
    files.replace_content(FILE, b"SQLite format 3\0\x10\x00\x01\x01")
    check_header(files, FILE)
