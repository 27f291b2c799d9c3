from pathlib import Path

import pytest

from millrace.server.wal.logfile import LogFile, log_file_name, log_file_number
from tests.support.files import MemoryFileSystem
from tests.support.tables import table


@table("number", [1, 77, 10**16 - 1])
def test_names_carry_numbers_and_sort_as_they_do(number: int) -> None:
    assert log_file_number(log_file_name(number)) == number
    assert log_file_name(1) <= log_file_name(number)


@table("name", ["wal-1.log", "wal-0000000000000001.log.preparing", "wal-0000000000000001.log.damaged", "checkpoint.db"])
def test_other_names_are_not_log_files(name: str) -> None:
    assert log_file_number(name) is None


def test_batches_follow_one_another_at_multiples_of_eight() -> None:
    files = MemoryFileSystem()
    handle = files.open(Path("/f"), create=True)
    file = LogFile(number=1, path=Path("/f"), salt=1, file=handle, size_bytes=64, end=16)

    file.append([b"abc", b"de"], size=5, sequence=7)
    file.append([b"x" * 8], size=8, sequence=8)

    assert (file.end, file.room_bytes, file.last_sequence) == (32, 32, 8)
    assert files.content(Path("/f"))[16:] == b"abcde\0\0\0" + b"x" * 8
    assert files.sync_count == 2


def test_a_write_that_fails_leaves_the_end_where_it_was() -> None:
    files = MemoryFileSystem()
    handle = files.open(Path("/f"), create=True)
    file = LogFile(number=1, path=Path("/f"), salt=1, file=handle, size_bytes=64, end=16)
    files.fail_syncs()

    with pytest.raises(OSError, match="Input/output"):
        file.append([b"abc"], size=3, sequence=7)

    assert (file.end, file.last_sequence) == (16, 0)
