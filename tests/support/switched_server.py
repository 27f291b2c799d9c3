"""A real server in a process of its own, whose disk is read-only while there is a file DATA_FOLDER.read-only.

    python -m tests.support.switched_server DATA_FOLDER [further arguments of millrace.server]

A file system that was remounted read-only answers in the same way: what is open can be read, every change is refused.
"""

import errno
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from millrace.server import __main__ as program
from millrace.server.app import Server
from millrace.server.host.database import DatabaseMode
from millrace.server.host.files import Buffer, OsFile, OsFileSystem


def switch_of(folder: Path) -> Path:
    """Return the file that makes the disk of a server read-only."""
    return folder.with_name(folder.name + ".read-only")


class SwitchedFile(OsFile):
    """A file that takes nothing while the switch is there."""

    check: Callable[[], None]

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.check()
        super().pwritev(buffers, offset)

    def datasync(self) -> None:
        self.check()
        super().datasync()

    def truncate(self, size: int) -> None:
        self.check()
        super().truncate(size)


class SwitchedFileSystem(OsFileSystem):
    """The file system of the machine, read-only while the switch is there."""

    def __init__(self, switch: Path) -> None:
        self._switch = switch

    def open(
        self, path: Path, *, create: bool = False, exclusive: bool = False, read_only: bool = False
    ) -> SwitchedFile:
        if not read_only:
            self._check(path)
        opened = super().open(path, create=create, exclusive=exclusive, read_only=read_only)
        file = SwitchedFile(opened._descriptor, path)
        file.check = partial(self._check, path)
        return file

    def rename(self, source: Path, target: Path) -> None:
        self._check(source)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._check(path)
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self._check(path)
        super().sync_directory(path)

    def database(self, path: Path, *, mode: DatabaseMode = "rw") -> sqlite3.Connection:
        if self._switch.exists() and mode != "ro":
            error = sqlite3.OperationalError("attempt to write a readonly database")
            error.sqlite_errorcode = sqlite3.SQLITE_READONLY
            raise error
        return super().database(path, mode=mode)

    def _check(self, path: Path) -> None:
        if self._switch.exists():
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


if __name__ == "__main__":
    files = SwitchedFileSystem(switch_of(Path(sys.argv[1])))
    # The program has no option for it.
    vars(program)["Server"] = partial(Server, files=files)
    sys.exit(program.main())
