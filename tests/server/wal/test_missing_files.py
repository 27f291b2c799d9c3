from pathlib import Path

import pytest

from millrace.server.wal import Ending
from millrace.server.wal.log_head import FileUse, open_log_head
from tests.server.wal.laid_logs import FIRST, PATH_OF_NAME, SECOND, THIRD, batches, overwrite, read, sequences
from tests.support.files import MemoryFileSystem
from tests.support.wal import FOLDER, build_log, recover


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


def test_a_log_without_its_newest_file_is_not_a_shorter_log(files: MemoryFileSystem) -> None:
    """Behaviour 82: what the file held is not known, so any segment may have lost something."""
    build_log(files, batches(2), batches(3, start=2), [])
    files.remove(SECOND)

    found, damages, report = read(files)

    assert sequences(found) == [1, 2]
    assert report.ending is Ending.CORRUPT
    assert [str(damage) for damage in damages] == [
        f"{SECOND.name} offset=0 size=0 sequences=3-3 runs=0+unknown: this file is missing, the newest of the log"
    ]


@pytest.mark.parametrize("content", [b"", bytes(4096), bytes(16384), b"x" * 16384])
@pytest.mark.parametrize("path", [FIRST, SECOND])
def test_a_file_that_was_emptied_has_lost_its_batches(files: MemoryFileSystem, path: Path, content: bytes) -> None:
    """Behaviour 82, for the newest file; one before it leaves a gap in the sequences, too."""
    build_log(files, batches(2), batches(3, start=2))
    files.replace_content(path, content)

    _, damages, report = read(files)

    assert report.ending is Ending.CORRUPT
    reasons = {damage.reason for damage in damages if not damage.is_complete}
    gap, end = "valid batches follow unreadable bytes", "the batches of this file are missing"
    assert reasons == {gap if path == FIRST else end}


def test_files_before_the_newest_were_all_written(files: MemoryFileSystem) -> None:
    """Behaviour 82: a crash left the newest file empty, and the batches before it are gone, but not their header."""
    build_log(files, batches(2), batches(3, start=2), batches(1, start=5))
    overwrite(files, SECOND, 4096, bytes(12288))
    overwrite(files, THIRD, 4096, bytes(12288))

    found, damages, _ = read(files)

    assert sequences(found) == [1, 2]
    assert [(damage.place, damage.reason) for damage in damages] == [
        (SECOND.name, "the batches of this file are missing")
    ]


def test_another_use_of_the_newest_file_is_not_taken_for_it(files: MemoryFileSystem) -> None:
    """Behaviours 42 and 82: an older image of the file, whole in itself."""
    build_log(files, batches(2), batches(3, start=2))
    files.remove(PATH_OF_NAME)
    open_log_head(files, FOLDER, FileUse(2, 0x77)).close()

    found, damages, report = read(files)

    assert sequences(found) == [1, 2, 3, 4, 5]
    assert report.ending is Ending.CORRUPT
    assert [(damage.place, damage.first_sequence, damage.is_complete) for damage in damages] == [
        (SECOND.name, 6, False)
    ]
    assert "another use of this file" in damages[0].reason


@pytest.mark.parametrize("damage", ["missing", "empty", "noise", "older"])
def test_damage_to_the_name_of_the_newest_file_costs_nothing(files: MemoryFileSystem, damage: str) -> None:
    build_log(files, batches(2), batches(3, start=2))
    if damage == "missing":
        files.remove(PATH_OF_NAME)
    elif damage == "older":
        files.remove(PATH_OF_NAME)
        open_log_head(files, FOLDER, FileUse(1, 0x1001)).close()
    else:
        files.replace_content(PATH_OF_NAME, b"" if damage == "empty" else b"x" * 8192)

    found, damages, report = read(files)

    assert sequences(found) == [1, 2, 3, 4, 5]
    assert report.ending is Ending.CORRUPT
    assert [(damage.place, damage.is_complete) for damage in damages] == [(PATH_OF_NAME.name, True)]
    assert damages[0].first_sequence > damages[0].last_sequence


def test_a_log_that_is_new_need_not_have_named_its_file_yet(files: MemoryFileSystem) -> None:
    build_log(files, [], [])
    files.remove(PATH_OF_NAME)

    assert read(files)[1] == []


def test_a_newest_file_without_batches_is_what_a_crash_leaves(files: MemoryFileSystem) -> None:
    build_log(files, batches(2), [], [])
    open_log_head(files, FOLDER, FileUse(2, 0x1002)).close()

    found, damages, report = read(files)

    assert (sequences(found), damages, report.ending) == ([1, 2], [], Ending.ZEROED)


@pytest.mark.parametrize(("content", "place"), [(None, FIRST.name), (b"", "newest"), (b"x" * 8192, "newest")])
def test_a_folder_without_log_files_is_empty_only_if_there_never_was_one(
    files: MemoryFileSystem, content: bytes | None, place: str
) -> None:
    build_log(files, batches(2))
    files.remove(FIRST)
    if content is not None:
        files.replace_content(PATH_OF_NAME, content)

    found, damages, report = read(files)

    assert found == []
    assert [(damage.place, damage.is_complete) for damage in damages] == [(place, False)]
    assert (report.ending, report.end_offset) == (Ending.CORRUPT, 0)


def test_the_number_of_a_lost_file_is_not_given_again(files: MemoryFileSystem) -> None:
    build_log(files, batches(2), batches(3, start=2))
    files.remove(SECOND)

    _, recovery = recover(files)

    assert (recovery.named_number, recovery.next_number) == (2, 3)
