"""Verifying a checkpoint: its format, its structure, every row, and that no row is missing or came twice.

The row of `meta` says how many rows each table has and what the sum of their checksums is. Adding up the checksums is
quick and finds rows that are lost, doubled, or of an older version of their page. Comparing each row with its checksum
finds what was flipped inside of it, and takes much longer.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from millrace.server.container.ids import container_of
from millrace.server.container.table import Row, Table, checked_row
from millrace.server.errors import CheckpointDamagedError, FolderVersionError
from millrace.server.wal import LogOwner

from .schema import FORMAT, FORMAT_VERSION, PRODUCT, Schema

VERIFIED_PAGE_ROWS_COUNT: Final = 500


def verified_meta(connection: sqlite3.Connection, schema: Schema, path: Path) -> dict[str, Any]:
    """Verify format and schema, and return the columns of `meta`.

    Raises:
        CheckpointDamagedError: any of this is not as it was written.
        FolderVersionError: another version wrote it, older or newer.
    """
    version, product = _only_row(connection, FORMAT, path=path)
    if product != PRODUCT:
        raise CheckpointDamagedError(f"is not a checkpoint but a {product!r}", subject=str(path))
    if version != FORMAT_VERSION:
        age = "an older" if version < FORMAT_VERSION else "a newer"
        raise FolderVersionError(
            f"was written in format {version} by {age} version; this version knows format {FORMAT_VERSION} only",
            subject=str(path),
        )
    # A damaged schema could attach a trigger to another table, or make a table sort its keys in another way.
    with contextlib.closing(sqlite3.connect(":memory:")) as empty:
        for statement in schema.statements():
            empty.execute(statement)
        if _schema_of(connection) != _schema_of(empty):
            raise CheckpointDamagedError("the schema is not the one of this format", subject=str(path))
    return dict(zip(schema.meta.columns, _only_row(connection, schema.meta, path=path), strict=False))


def check_owner(meta: Mapping[str, Any], owner: LogOwner, *, path: Path) -> None:
    """Raise FolderVersionError, which names both, if a checkpoint is that of another server or container."""
    container, server_id = container_of(meta["next_id"]), str(meta["server_id"])
    if (container, server_id) != (owner.container_id, str(owner.server_id)):
        raise FolderVersionError(
            f"belongs to container {container} of server {server_id or 'unknown'}, not to {owner}", subject=str(path)
        )


def row_count(schema: Schema, meta: Mapping[str, Any]) -> int:
    """Return how many rows all tables have together."""
    return sum(meta[f"{table.name}_count"] for table in schema.tables)


def verify_sums(connection: sqlite3.Connection, schema: Schema, meta: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointDamagedError if a row is lost, doubled, or older than `meta`. Reads all of the file, quickly."""
    for table in schema.tables:
        expected = meta[f"{table.name}_count"], meta[f"{table.name}_sum"]
        # Each table has a primary key, and no index of it has the checksum: so this goes through the rows themselves.
        found = connection.execute(f"SELECT count(*), ifnull(sum(checksum), 0) FROM {table.name}").fetchone()
        if found != expected:
            raise CheckpointDamagedError(
                f"{table.name} has {found[0]} rows (sum {found[1]}) instead of {expected[0]} (sum {expected[1]})",
                subject=str(path),
            )
        for index in table.indexes:
            (count,) = connection.execute(f"SELECT count(*) FROM {table.name} INDEXED BY {index}").fetchone()
            if count != expected[0]:
                raise CheckpointDamagedError(f"{index} has {count} rows instead of {expected[0]}", subject=str(path))


def verify_structure(connection: sqlite3.Connection, path: Path) -> None:
    """Raise CheckpointDamagedError if pages are linked wrongly, or an index differs from its table.

    The rows may be complete then, but the next save would not find them.
    """
    trouble: str
    (trouble,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if trouble != "ok":
        raise CheckpointDamagedError(trouble.replace("\n", " "), subject=str(path))


def verify_rows(
    connection: sqlite3.Connection,
    schema: Schema,
    path: Path,
    *,
    page_rows_count: int = VERIFIED_PAGE_ROWS_COUNT,
    pause: Callable[[], None] = lambda: None,
) -> None:
    """Raise CheckpointDamagedError if a row does not match its checksum, or is not found by its index.

    Args:
        page_rows_count: how many rows are read at once.
        pause: called between two pages of rows. Others may write between them: each row is as some save left it.
    """
    for table in schema.tables:
        key = ", ".join(table.key)
        last: Row = ()
        while True:
            after = f"WHERE ({key}) > ({', '.join('?' * len(table.key))})" if last else ""
            rows = connection.execute(
                f"SELECT {', '.join(table.columns)} FROM {table.name} {after} ORDER BY {key} LIMIT {page_rows_count}",
                last,
            ).fetchall()
            for row in rows:
                checked_row(table, row, path=path)
            for index in table.indexes if rows else ():
                _verify_index(
                    connection, table, index, first=table.key_of(rows[0]), last=table.key_of(rows[-1]), path=path
                )
            if len(rows) < page_rows_count:
                break
            last = table.key_of(rows[-1])
            pause()


def _verify_index(
    connection: sqlite3.Connection, table: Table, index: str, *, first: Row, last: Row, path: Path
) -> None:
    """Raise CheckpointDamagedError if an index does not lead to the rows with keys from `first` to `last`."""
    key, marks = ", ".join(f"a.{column}" for column in table.key), ", ".join("?" * len(table.key))
    same = " AND ".join(f"b.{column} = a.{column}" for column in (*table.indexes[index], *table.key))
    (missing,) = connection.execute(
        f"SELECT count(*) FROM {table.name} AS a WHERE ({key}) >= ({marks}) AND ({key}) <= ({marks}) AND NOT EXISTS "
        f"(SELECT 1 FROM {table.name} AS b INDEXED BY {index} WHERE {same})",
        [*first, *last],
    ).fetchone()
    if missing:
        raise CheckpointDamagedError(f"{index} does not lead to {missing} rows of {table.name}", subject=str(path))


def _schema_of(connection: sqlite3.Connection) -> list[tuple[str, str, str, str]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY rowid").fetchall()


def _only_row(connection: sqlite3.Connection, table: Table, *, path: Path) -> Row:
    rows: Iterator[Row] = connection.execute(f"SELECT {', '.join(table.columns)} FROM {table.name} LIMIT 2")
    found = list(rows)
    if len(found) != 1:
        raise CheckpointDamagedError(f"{table.name} has {len(found)} rows instead of 1", subject=str(path))
    return checked_row(table, found[0], path=path)
