"""A SQLite file together with what SQLite keeps beside it: a journal that is left alone is applied to the next file."""

import contextlib
from itertools import count
from pathlib import Path
from typing import Final

from millrace.server.errors import CheckpointDamagedError
from millrace.server.host.files import FileSystem

_ROLLBACK_JOURNAL_VERSIONS: Final = b"\x01\x01"
"""Bytes 18 and 19 of a database that is written and read by means of a rollback journal."""


def check_header(files: FileSystem, path: Path) -> None:
    """Raise CheckpointDamagedError if a file says that it is to be written in another way than ours.

    SQLite would then make a write-ahead log, or read the file and take it for one that must not be written.
    """
    with contextlib.closing(files.open(path, read_only=True)) as file:
        versions = file.pread(2, 18)
    if versions != _ROLLBACK_JOURNAL_VERSIONS:
        raise CheckpointDamagedError("the header is not that of a checkpoint", subject=str(path))


def remove_database(files: FileSystem, path: Path) -> None:
    """Remove a file; nothing there is fine."""
    for each in (path, *_side_files(path)):
        if files.exists(each):
            files.remove(each)


def remove_journals(files: FileSystem, path: Path) -> None:
    """Remove what is beside a file, whose place another is to take."""
    for each in _side_files(path):
        if files.exists(each):
            files.remove(each)


def move_database(files: FileSystem, source: Path, target: Path) -> None:
    """Rename a file, if there is one. Its folder is not synced at last."""
    # The file comes last: without it, a start after a crash would not move the others.
    for side_file, moved in zip(_side_files(source), _side_files(target), strict=True):
        if files.exists(side_file):
            files.rename(side_file, moved)
            files.sync_directory(source.parent)
    if files.exists(source):
        files.rename(source, target)


def free_path(files: FileSystem, path: Path, why: str) -> Path:
    """Return the first free name for a file that is set aside, made of its own name and the reason."""
    names = (path.with_name(f"{path.name}.{why}-{number}") for number in count(1))
    return next(name for name in names if not any(map(files.exists, (name, *_side_files(name)))))


def _side_files(path: Path) -> list[Path]:
    """Return the names of what SQLite may keep beside a file."""
    return [path.with_name(path.name + suffix) for suffix in ("-journal", "-wal", "-shm")]
