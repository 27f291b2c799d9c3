"""What only the real file system has; what both have is in `tests/contracts/test_file_system.py`."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.server.errors import NoSpaceError
from millrace.server.host.files import OsFileSystem, _after, _translation
from tests.support.tables import table


def test_a_full_disk_and_a_full_quota_are_no_space_and_the_rest_stays_itself() -> None:
    path = Path("/data/f")

    assert isinstance(_translation(OSError(errno.ENOSPC, "full"), path), NoSpaceError)
    assert isinstance(_translation(OSError(errno.EDQUOT, "quota"), path), NoSpaceError)
    other = _translation(OSError(errno.EIO, "broken"), path)
    assert isinstance(other, OSError)
    assert (other.errno, other.filename) == (errno.EIO, "/data/f")


def test_a_file_that_cannot_grow_raises_the_error_of_the_system(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    file = OsFileSystem().open(tmp_path / "f", create=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        # The first call is cut short at the limit, the one for the rest fails.
        with pytest.raises(OSError, match="File too large"):
            file.pwritev([bytes(3000), bytes(3000)], 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
        file.close()
    assert (tmp_path / "f").stat().st_size == 4096


@table(
    ("count", "expected"),
    [(0, [b"ab", b"cde"]), (1, [b"b", b"cde"]), (2, [b"cde"]), (4, [b"e"]), (5, [])],
)
def test_the_rest_after_a_short_write(count: int, expected: list[bytes]) -> None:
    assert [bytes(buffer) for buffer in _after([b"ab", b"", b"cde"], count)] == expected


def test_a_lock_ends_with_the_process_that_held_it(tmp_path: Path) -> None:
    program = (
        "import sys, os; from pathlib import Path; from millrace.server.host.files import OsFileSystem;"
        "lock = OsFileSystem().lock(Path(sys.argv[1])); os._exit(9)"
    )
    finished = subprocess.run([sys.executable, "-c", program, str(tmp_path / "lock")], check=False)
    assert finished.returncode == 9

    OsFileSystem().lock(tmp_path / "lock").close()


def test_a_folder_that_is_missing_cannot_be_synced(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OsFileSystem().sync_directory(tmp_path / "missing")


def test_descriptors_are_not_inherited(tmp_path: Path) -> None:
    file = OsFileSystem().open(tmp_path / "f", create=True)
    try:
        assert not os.get_inheritable(file._descriptor)
    finally:
        file.close()
