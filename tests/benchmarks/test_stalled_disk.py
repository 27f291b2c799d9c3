"""The row about a disk that stalls, for a moment."""

from pathlib import Path

import pytest

from benchmarks.session import Session
from benchmarks.stalled_disk import measure
from benchmarks.stalling_server import PERIOD_S, STALL_S, StallingFileSystem


def test_only_files_of_a_log_stall_and_not_again_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "wal"
    folder.mkdir()
    files = StallingFileSystem()
    log = files.open(folder / "wal-1.log", create=True)
    other = files.open(tmp_path / "other", create=True)
    for file in (log, other):
        file.pwritev([b"bytes"], 0)
        file.datasync()
        assert file.pread(5, 0) == b"bytes"
        file.close()
    assert STALL_S < PERIOD_S
    assert type(log) is not type(other)


@pytest.mark.slow
def test_both_kinds_of_server_are_measured(tmp_path: Path) -> None:
    rows = list(measure(Session(tmp_path, effort=0.05)))
    assert [row.figure.value > 0 for row in rows] == [True, True]
