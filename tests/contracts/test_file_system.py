"""The contract of the `FileSystem` seam, run against the real disk and the one in memory."""

from pathlib import Path

import pytest

from millrace.server.errors import FolderLockedError
from millrace.server.host.files import IOV_COUNT_MAX, FileSystem, OsFileSystem
from tests.support.files import MemoryFileSystem


@pytest.fixture(params=["disk", "memory"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    return OsFileSystem() if request.param == "disk" else MemoryFileSystem()


@pytest.fixture
def folder(files: FileSystem, tmp_path: Path) -> Path:
    path = tmp_path / "a" / "b"
    files.make_directories(path)
    return path


def test_what_was_written_is_read(files: FileSystem, folder: Path) -> None:
    file = files.open(folder / "f", create=True)

    file.pwritev([b"abc", bytearray(b"de"), memoryview(b"fgh")], 2)
    file.datasync()

    assert file.size() == 10
    assert file.pread(100, 0) == b"\0\0abcdefgh"
    assert file.pread(3, 3) == b"bcd"
    assert file.pread(4, 10) == b""
    file.close()
    file.close()


def test_more_buffers_than_one_call_takes_are_written_whole(files: FileSystem, folder: Path) -> None:
    file = files.open(folder / "f", create=True)
    pieces = [bytes([index % 251]) * (index % 3) for index in range(2 * IOV_COUNT_MAX + 7)]

    file.pwritev(pieces, 0)

    assert file.pread(10_000, 0) == b"".join(pieces)
    file.close()


def test_truncate_cuts_and_grows_with_zeros(files: FileSystem, folder: Path) -> None:
    file = files.open(folder / "f", create=True)
    file.pwritev([b"hello"], 0)

    file.truncate(2)
    file.truncate(4)

    assert file.pread(10, 0) == b"he\0\0"
    file.close()


def test_open_says_what_is_missing_and_what_exists(files: FileSystem, folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open(folder / "f")
    files.open(folder / "f", create=True).close()
    files.open(folder / "f", create=True).close()
    with pytest.raises(FileExistsError):
        files.open(folder / "f", create=True, exclusive=True)


def test_a_file_opened_for_reading_refuses_writes(files: FileSystem, folder: Path) -> None:
    files.open(folder / "f", create=True).close()
    file = files.open(folder / "f", read_only=True)

    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwritev([b"x"], 0)
    file.close()


def test_names_are_listed_sorted_and_follow_renames_and_removals(files: FileSystem, folder: Path) -> None:
    for name in ("c", "a", "b"):
        file = files.open(folder / name, create=True)
        file.pwritev([name.encode()], 0)
        file.close()

    files.rename(folder / "c", folder / "a")
    files.remove(folder / "b")
    files.sync_directory(folder)

    assert files.list_directory(folder) == ["a"]
    assert files.list_directory(folder.parent) == ["b"]
    assert files.exists(folder / "a")
    assert not files.exists(folder / "b")
    assert files.size(folder / "a") == 1
    with pytest.raises(FileNotFoundError):
        files.remove(folder / "b")
    with pytest.raises(FileNotFoundError):
        files.size(folder / "b")


def test_an_open_file_keeps_its_content_when_renamed(files: FileSystem, folder: Path) -> None:
    file = files.open(folder / "f", create=True)
    files.rename(folder / "f", folder / "g")

    file.pwritev([b"x"], 0)

    assert files.size(folder / "g") == 1
    file.close()


def test_folders_that_exist_are_fine(files: FileSystem, folder: Path) -> None:
    files.make_directories(folder)

    assert files.exists(folder)
    assert files.list_directory(folder) == []
    with pytest.raises(FileNotFoundError):
        files.list_directory(folder / "missing")


def test_free_space_is_known(files: FileSystem, folder: Path) -> None:
    assert files.free_bytes(folder) > 0


def test_a_lock_has_one_owner_until_it_is_closed(files: FileSystem, folder: Path) -> None:
    """Behaviour 47: two servers on one data folder."""
    lock = files.lock(folder / "lock")

    with pytest.raises(FolderLockedError, match="owns this folder"):
        files.lock(folder / "lock")
    lock.close()
    files.lock(folder / "lock").close()
