"""Databases that tests lose, flip and fill: on a real file system, and in files in memory."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millrace.server.errors import NoSpaceError
from millrace.server.host.database import DatabaseMode, connect_database
from millrace.server.host.files import FileSystem, OsFileSystem


class FaultyDatabases(OsFileSystem):
    """Fills the `FileSystem` seam. The faults concern what is opened from then on."""

    def __init__(self, *, busy_timeout_s: float = 5.0) -> None:
        self._busy_timeout_s = busy_timeout_s
        # So many pages more than it has may a database get.
        self.spare_pages_count: int | None = None
        # Called with the path before a database is opened to be read only.
        self.on_reading: Callable[[Path], None] = lambda path: None
        self._databases: list[sqlite3.Connection] = []

    def database(self, path: Path, *, mode: DatabaseMode = "rw") -> sqlite3.Connection:
        if mode == "ro":
            self.on_reading(path)
        connection = connect_database(path, mode=mode, busy_timeout_s=self._busy_timeout_s)
        if self.spare_pages_count is not None:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count={max(1, pages + self.spare_pages_count)}")
        self._databases.append(connection)
        return connection

    def make_room(self) -> None:
        """Remove the bound, also of the databases that are open."""
        self.spare_pages_count = None
        self.execute("PRAGMA max_page_count=100000")

    def fill(self) -> None:
        """Let no database that is open grow."""
        self.execute("PRAGMA max_page_count=1")

    def execute(self, statement: str) -> None:
        """Execute a statement on each database that is open."""
        for connection in self._opened():
            connection.execute(statement)

    def trace(self, note: Callable[[str], object] | None) -> None:
        """Report from now on each statement of the databases that are open."""
        for connection in self._opened():
            connection.set_trace_callback(note)

    @property
    def changes_count(self) -> int:
        """How many rows were changed in the databases that are open."""
        return sum(connection.total_changes for connection in self._opened())

    def _opened(self) -> Iterator[sqlite3.Connection]:
        for connection in self._databases:
            with contextlib.suppress(sqlite3.ProgrammingError):  # it is closed
                connection.total_changes  # noqa: B018
                yield connection


class ImageDatabase(sqlite3.Connection):
    """A database whose file is of any `FileSystem`: SQLite works on an image of it in memory.

    Each transaction begins with the content of the file, and what it changed replaces the file durably in one step.
    """

    _files: FileSystem
    _path: Path
    _image: bytes

    @classmethod
    def of(cls, files: FileSystem, path: Path, *, mode: DatabaseMode) -> "ImageDatabase":
        """Open the database in a file."""
        if not files.exists(path):
            if mode != "rwc":
                raise _failure("unable to open database file", sqlite3.SQLITE_CANTOPEN)
            try:
                files.open(path, create=True).close()
            except OSError as error:
                raise _failure(str(error), sqlite3.SQLITE_CANTOPEN) from error
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=cls)
        database._files, database._path, database._image = files, path, b""
        return database

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if not self.in_transaction:
            self._load()
        cursor = super().execute(sql, parameters)
        if not self.in_transaction and not sql.startswith(("SELECT", "PRAGMA", "ROLLBACK")):
            self._store()
        return cursor

    def backup(self, target: sqlite3.Connection, **options: Any) -> None:
        # Also of a database in which nothing was executed yet.
        if not self.in_transaction:
            self._load()
        super().backup(target, **options)

    def close(self) -> None:
        with contextlib.suppress(sqlite3.ProgrammingError):  # closed before
            self._store()
        super().close()

    def _load(self) -> None:
        try:
            with contextlib.closing(self._files.open(self._path, read_only=True)) as file:
                content = file.pread(file.size(), 0)
        except OSError as error:
            raise _failure(str(error), sqlite3.SQLITE_IOERR) from error
        if content != self._image:
            self._image = content
            self.deserialize(content)

    def _store(self) -> None:
        (pages,) = super().execute("PRAGMA page_count").fetchone()
        content = self.serialize() if pages else b""  # SQLite has no image of a database without a page
        if content == self._image:
            return
        temporary = self._path.with_name(self._path.name + "-image")
        try:
            with contextlib.closing(self._files.open(temporary, create=True)) as file:
                file.truncate(0)
                file.pwritev([content], 0)
                file.datasync()
            self._files.rename(temporary, self._path)
            self._files.sync_directory(self._path.parent)
        except (NoSpaceError, OSError) as error:
            if self._image:  # SQLite has no image of a database without a page
                self.deserialize(self._image)
            code = sqlite3.SQLITE_FULL if isinstance(error, NoSpaceError) else sqlite3.SQLITE_IOERR
            raise _failure(str(error), code) from error
        self._image = content


def _failure(text: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error
