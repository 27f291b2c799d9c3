"""Logs of a few batches, laid down file by file, to be damaged and read back."""

from pathlib import Path

from millrace.server.wal import NEWEST_NAME, Damage, RecoveredBatch, RecoveryReport
from millrace.wire.append_run import AppendRun
from tests.support.files import MemoryFileSystem
from tests.support.wal import FOLDER, append_run, recover

PATH_OF_NAME = FOLDER / NEWEST_NAME
FIRST, SECOND, THIRD = (FOLDER / f"wal-{number:016d}.log" for number in (1, 2, 3))


def batches(count: int, *, start: int = 0) -> list[list[AppendRun]]:
    """Return batches of two runs, of segments 7 and 8."""
    return [
        [append_run(7, 10 * index, b"seven-%04d" % index), append_run(8, 10 * index, b"eight-%04d" % index)]
        for index in range(start, start + count)
    ]


def read(files: MemoryFileSystem, from_sequence: int = 0) -> tuple[list[RecoveredBatch], list[Damage], RecoveryReport]:
    items, recovery = recover(files, from_sequence)
    return (
        [item for item in items if isinstance(item, RecoveredBatch)],
        [item for item in items if isinstance(item, Damage)],
        recovery.report,
    )


def sequences(found: list[RecoveredBatch]) -> list[int]:
    return [batch.sequence for batch in found]


def overwrite(files: MemoryFileSystem, path: Path, offset: int, data: bytes) -> None:
    content = bytearray(files.content(path))
    content[offset : offset + len(data)] = data
    files.replace_content(path, bytes(content))
