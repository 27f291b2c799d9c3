"""Reading single entities out of the checkpoint, while it may be written.

The reader has a connection of its own: SQLite lets it read what the last transaction stored while the next one is under
way, but for the moment in which that is committed; then it waits. Every row that is read is verified against its
checksum. What the sums of all rows tell, that none is missing, is verified as a whole by `verification`.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from threading import Lock
from typing import Any, Final, Generic

from millrace.server.container.kind import Entity, Kind
from millrace.server.container.table import Key, Row, Table, checked_row
from millrace.server.errors import CheckpointDamagedError, DiskUnavailableError, NoSpaceError
from millrace.server.host.files import FileSystem

_TROUBLE_OF_OTHERS: Final = frozenset(
    {
        sqlite3.SQLITE_AUTH, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
    }
)  # fmt: skip
"""Errors that say nothing about the content of the file, or not before it can be read again."""


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into ours."""
    try:
        yield
    except UnicodeDecodeError as error:
        # Python could not even read the message, which cites a damaged schema.
        raise CheckpointDamagedError(f"the schema is damaged: {error}", subject=str(path)) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise NoSpaceError(str(error), subject=str(path)) from error
        if code in _TROUBLE_OF_OTHERS:
            raise DiskUnavailableError(str(error), subject=str(path), retry_after_ms=1000) from error
        raise CheckpointDamagedError(str(error), subject=str(path)) from error


class CheckpointReader:
    """Verified rows of the checkpoint. May be called from any thread; they take turns.

    Errors of all methods: CheckpointDamagedError when a row is not what was written, StorageError when the file cannot
    be used for another reason.
    """

    def __init__(self, files: FileSystem, path: Path) -> None:
        self.path = path
        self._files = files
        # Told, in any thread, of damage that is found while the file is in use.
        self.on_damage: Callable[[CheckpointDamagedError], object] | None = None
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._is_open = False

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn errors of SQLite into ours, and tell whom it concerns of damage."""
        try:
            with translated(self.path):
                yield
        except CheckpointDamagedError as error:
            if self.on_damage is not None:
                self.on_damage(error)
            raise

    def open(self, *, is_empty: bool = False) -> None:
        """Read from the file from now on; there are no rows if it is not there yet."""
        with self._lock, translated(self.path):
            self._close()
            if not is_empty:
                self._connection = self._files.database(self.path)
                self._connection.execute("PRAGMA query_only=ON")
            self._is_open = True

    def close(self) -> None:
        """Give the file back: what is asked for then fails. Closing twice is fine."""
        with self._lock:
            self._close()

    def rows(self, table: Table, condition: str, values: Sequence[int | str]) -> list[Row]:
        """Return the rows of a table for which a condition of SQL holds, without their checksums."""
        statement = f"SELECT {', '.join(table.columns)} FROM {table.name} WHERE {condition}"
        with self.guarded():
            return [checked_row(table, row, path=self.path) for row in self._fetch(statement, values)]

    def under(self, table: Table, key: Key) -> list[Row]:
        """Return the rows whose keys begin with `key`, in the order of their keys."""
        condition = " AND ".join(f"{column} = ?" for column in table.key[: len(key)])
        return self.rows(table, f"{condition} ORDER BY {', '.join(table.key)}", key)

    def select(self, statement: str, values: Sequence[int | str]) -> list[Row]:
        """Return what a statement selects, unverified: numbers and names to look up only."""
        with self.guarded():
            return self._fetch(statement, values)

    def column(self, statement: str, values: Sequence[int | str] = ()) -> list[Any]:
        """Return the one column that a statement selects; see `select`."""
        return [value for (value,) in self.select(statement, values)]

    def _fetch(self, statement: str, values: Sequence[int | str]) -> list[Row]:
        with self._lock:
            if not self._is_open:
                raise DiskUnavailableError("the checkpoint is closed", subject=str(self.path), retry_after_ms=1000)
            return [] if self._connection is None else self._connection.execute(statement, values).fetchall()

    def _close(self) -> None:
        self._is_open = False
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):  # nothing was written with it
                connection.close()


class KindArchive(Generic[Entity]):
    """The stored entities of one kind, by number and by name."""

    def __init__(self, reader: CheckpointReader, kind: Kind[Entity]) -> None:
        self._reader = reader
        self._kind = kind
        self._table = kind.table
        self._number = kind.table.key[0]
        self._name = kind.name_column

    def load(self, number: int) -> Entity | None:
        """Return an entity as it was stored last; its admitted view is the durable one."""
        rows = self._reader.under(self._table, (number,))
        if not rows:
            return None
        return self._kind.restore(rows[0], lambda table: self._reader.under(table, (number,)))

    def find(self, name: str) -> int:
        """Return the number of the newest thing of that name, 0 if there is none."""
        found: list[int] = self._reader.column(
            f"SELECT ifnull(max({self._number}), 0) FROM {self._table.name} WHERE {self._name} = ?",
            [name],
        )
        return found[0] if found else 0

    def numbers(self, *, after: int, count_max: int) -> list[int]:
        """Return numbers above `after`, ascending."""
        return self._reader.column(
            f"SELECT {self._number} FROM {self._table.name} WHERE {self._number} > ? "
            f"ORDER BY {self._number} LIMIT {count_max}",
            [after],
        )

    def names(self, *, prefix: str, after: str, count_max: int) -> list[tuple[str, int]]:
        """Return names with a prefix, above `after`, in the order of their UTF-8 bytes, which is that of Python.

        Each has its number beside it.
        """
        # Ranges of names, and not LIKE or substr, are looked up in the index.
        found = self._reader.select(
            f"SELECT {self._name}, {self._number} FROM {self._table.name} "
            f"WHERE {self._name} > ? AND {self._name} >= ? ORDER BY {self._name} LIMIT {count_max}",
            [after, prefix],
        )
        return [(name, number) for name, number in takewhile(lambda row: row[0].startswith(prefix), found)]
