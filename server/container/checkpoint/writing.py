"""Writing a checkpoint into its tables, in one transaction."""

import contextlib
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from millrace.server.container.table import Key, Row, Table
from millrace.server.errors import CheckpointDamagedError, StorageError

from .checkpoint import CheckpointVersion
from .rows import CheckpointRows
from .schema import FORMAT, FORMAT_VERSION, PRODUCT, Schema

Item = TypeVar("Item")

ROWS_PER_STATEMENT: Final = 200
"""How many rows one statement writes. Between two statements the thread needs the interpreter, for which it may have
to wait some milliseconds when the event loop is busy; within one it does not."""
PARAMETERS_COUNT_MAX: Final = 32_766
"""SQLite's bound on the values of a statement."""


def create_tables(connection: sqlite3.Connection, schema: Schema, *, server_id: str) -> None:
    """Make the tables of a checkpoint of nothing, in an empty database; `server_id` says whose it is, for good.

    Raises:
        sqlite3.Error: nothing was made; unless the outcome is unknown, what was begun is taken back when the connection
            is closed.
    """
    # One transaction for all: with one for each, a new server would wait for 60 times as many syncs of the disk.
    connection.execute("BEGIN IMMEDIATE")
    for statement in schema.statements():
        connection.execute(statement)
    _insert(connection, FORMAT, [(FORMAT_VERSION, PRODUCT)])
    _insert(connection, schema.meta, [(0,) * (len(schema.meta.columns) - 3) + (server_id, "")])
    connection.execute("COMMIT")


def write_rows(
    connection: sqlite3.Connection, schema: Schema, rows: CheckpointRows, version: CheckpointVersion, *, path: Path
) -> None:
    """Change the rows, and the one of `meta` to this version, in one transaction.

    Raises:
        CheckpointDamagedError: `path` holds something else than what was saved before.
        StorageError: a number does not fit into 64 bits with a sign.
        sqlite3.Error: the transaction failed; unless its outcome is unknown, it is rolled back.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        for table, keys in rows.removed.items():
            _delete(connection, table, keys)
        for (table, column), numbers in rows.forgotten.items():
            _delete_by(connection, table, column, numbers)
        for table, new in rows.added.items():
            _insert(connection, table, new)
        _update_meta(connection, schema.meta, rows, version, path=path)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            # SQLite has rolled back on its own after most errors. If this fails too, the journal stays and is applied
            # when the file is opened next.
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def _update_meta(
    connection: sqlite3.Connection, table: Table, rows: CheckpointRows, version: CheckpointVersion, *, path: Path
) -> None:
    """End the transaction by the new row of `meta`, whose sums the triggers have updated."""
    columns = table.columns[:-1]
    row = connection.execute(f"SELECT {', '.join(columns)} FROM {table.name}").fetchone()
    if row is None:
        raise CheckpointDamagedError("the row of meta is missing", subject=str(path))
    meta = dict(zip(columns, row, strict=True))
    for counted, expected in rows.counts.items():
        stored = meta[f"{counted.name}_count"]
        if stored != expected:
            raise CheckpointDamagedError(
                f"{counted.name} would have {stored} rows instead of {expected}", subject=str(path)
            )
    meta |= version._asdict()
    meta |= rows.scalars
    _delete(connection, table, [(meta["id"],)])
    _insert(connection, table, [tuple(meta[column] for column in columns)])


def _insert(connection: sqlite3.Connection, table: Table, rows: Sequence[Row]) -> None:
    """Add rows, given without checksum.

    Raises:
        StorageError: a number does not fit into 64 bits with a sign.
    """
    assert ROWS_PER_STATEMENT * len(table.columns) <= PARAMETERS_COUNT_MAX
    one = f"({', '.join('?' * len(table.columns))})"
    for part in _parts(rows):
        try:
            values = [value for row in part for value in (*row, table.checksum(row))]
        except struct.error as error:
            raise StorageError(f"a row of {table.name} cannot be stored: {error}") from error
        connection.execute(f"INSERT INTO {table.name} VALUES {', '.join([one] * len(part))}", values)


def _delete(connection: sqlite3.Connection, table: Table, keys: Sequence[Key]) -> None:
    """Remove the rows whose keys begin with one of `keys`; those that are not there are fine."""
    for length in range(1, len(table.key) + 1):
        # Alternatives are each looked up by the primary key; a list of row values would be compared with every row.
        one = "(" + " AND ".join(f"{column} = ?" for column in table.key[:length]) + ")"
        for part in _parts([key for key in keys if len(key) == length]):
            connection.execute(
                f"DELETE FROM {table.name} WHERE {' OR '.join([one] * len(part))}",
                [value for key in part for value in key],
            )


def _delete_by(connection: sqlite3.Connection, table: Table, column: str, values: Sequence[int]) -> None:
    """Remove the rows with one of these values in a column that has an index."""
    for part in _parts(values):
        marks = ", ".join("?" * len(part))
        connection.execute(f"DELETE FROM {table.name} WHERE {column} IN ({marks})", part)


def _parts(rows: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        yield rows[start : start + ROWS_PER_STATEMENT]
