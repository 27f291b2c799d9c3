"""The databases that tests lose and fill behave as those on a disk."""

import contextlib
from pathlib import Path

from tests.support.databases import ImageDatabase
from tests.support.files import MemoryFileSystem

FOLDER = Path("/data")


def test_a_backup_has_what_the_file_has_though_nothing_was_executed_before() -> None:
    """As of a checkpoint right after it was made: an empty copy would be refused, and made again without end."""
    files = MemoryFileSystem()
    files.make_directories(FOLDER)
    with contextlib.closing(ImageDatabase.of(files, FOLDER / "one", mode="rwc")) as database:
        database.execute("CREATE TABLE here(x)")
    with (
        contextlib.closing(ImageDatabase.of(files, FOLDER / "one", mode="rw")) as database,
        contextlib.closing(ImageDatabase.of(files, FOLDER / "copy", mode="rwc")) as copy,
    ):
        database.backup(copy)
    with contextlib.closing(ImageDatabase.of(files, FOLDER / "copy", mode="ro")) as copy:
        assert copy.execute("SELECT name FROM sqlite_master").fetchall() == [("here",)]
