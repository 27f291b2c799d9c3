"""The checkpoint of a container: what it knew as of one log sequence number, in one SQLite file.

It is a shortcut through the log, and after the log was recycled the only memory of what stood there. `save` changes
the rows of what changed, and the one row of `meta`, in one transaction; its tables and checksums are described in
`checkpoint_tables`.

Durability. The journal is SQLite's rollback journal, in mode DELETE with `synchronous=EXTRA`:

- At rest there is just the one file, so that copying, restoring and setting it aside are operations on one name.
- A write-ahead log of SQLite ends, by design, where a checksum fails: a flipped bit in it would silently bring back
  an older checkpoint, whose log is recycled already.
- With the usual `synchronous=FULL` the removal of the journal is not synced, and after a loss of power the journal may
  be there again and take back a transaction that `save` reported as stored. EXTRA syncs the folder.

The file is made under a temporary name and renamed when it holds its first checkpoint. So there is no state in between:
a file that is there and holds no checkpoint is damaged.

A crash leaves the state before or after a `save`, and maybe a journal that SQLite applies when the file is next opened.
"""

import contextlib
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from millrace.server.errors import CheckpointDamagedError, FolderVersionError, NoSpaceError, StorageError
from millrace.server.host.files import OsFileSystem

from .checkpoint_rows import ADD, CheckpointRows, chunk_differences, everything, finish, take_rows
from .checkpoint_tables import CHUNKS, FORMAT, FORMAT_VERSION, META, PRODUCT, TABLES, Key, Row, Table, schema
from .segment import ChunkRecord
from .state import ContainerState

__all__ = ["Checkpoint", "CheckpointRows", "CheckpointStore", "everything", "take_rows"]

ROWS_PER_STATEMENT: Final = 200
"""How many rows one statement writes. Between two statements the thread needs the interpreter, for which it may have
to wait some milliseconds when the event loop is busy; within one it does not."""
assert ROWS_PER_STATEMENT * max(len(table.columns) for table in TABLES) <= 32766, "SQLite's bound on parameters"

BUSY_TIMEOUT_S: Final = 5.0
"""How long to wait for somebody who looks into the file with other means."""

_ROLLBACK_JOURNAL_VERSIONS: Final = b"\x01\x01"
"""Bytes 18 and 19 of a database that is written and read by means of a rollback journal."""
_SIDE_FILES: Final = ("-journal", "-wal", "-shm")
_TROUBLE_OF_OTHERS: Final = frozenset(
    {
        sqlite3.SQLITE_AUTH, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
    }
)  # fmt: skip
"""Errors that say nothing about the content of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        state: what the container knew. Nothing in it is queued or changed; each index has the borders of the chunks.
        sequence: of the last log batch that it contains.
        replay_from: of the first log batch that holds bytes which are not in tier 2.
        container_epoch: of the container when it was saved.
    """

    state: ContainerState
    sequence: int
    replay_from: int
    container_epoch: int


class CheckpointStore:
    """The file with the checkpoint of one container.

    All methods block, and may be called from any thread; a lock makes them take turns, also with a call whose caller
    was cancelled. `load` comes first.

    Errors of all methods: NoSpaceError when the disk is full, CheckpointDamagedError when the file is not what was
    written, StorageError when it cannot be used for another reason, OSError when a file cannot be renamed or synced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = OsFileSystem()
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        # The chunks of each segment as stored, so that only differences are written.
        self._chunks: dict[int, Sequence[ChunkRecord]] = {}

    def load(self) -> Checkpoint | None:
        """Read and verify the whole checkpoint; return None if there is no file.

        Raises:
            CheckpointDamagedError: any part is not as it was written.
            FolderVersionError: a newer version wrote it.
        """
        with self._lock, self._translated():
            self._close()
            if not self._files.exists(self.path):
                return None
            self._check_header()
            connection = _connect(self.path)
            try:
                checkpoint = _read(connection, self.path)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._chunks = {
                segment.segment_id: tuple(segment.chunks)
                for segment in checkpoint.state.segments.values()
                if segment.chunks
            }
            return checkpoint

    def save(self, rows: CheckpointRows, *, sequence: int, replay_from: int, container_epoch: int) -> None:
        """Store the changes and these numbers durably, together or not at all.

        When there is no file yet, or no more, the rows must be those of `everything`, or of a state that was never
        saved. After CheckpointDamagedError the file cannot be saved to any more: set it aside and save everything.
        """
        numbers = (sequence, replay_from, container_epoch, rows.next_id, rows.uptime_us)
        with self._lock, self._translated():
            if self._connection is not None:
                self._write(self._connection, rows, numbers)
            else:
                assert not self._files.exists(self.path), "load comes first"
                self._create(rows, numbers)
            for segment_id, chunks in rows.chunks.items():
                if chunks:
                    self._chunks[segment_id] = chunks
                else:
                    self._chunks.pop(segment_id, None)

    def export(self) -> bytes:
        """Return a copy of the file as of the last `save`, after verifying every row of it.

        So a damaged checkpoint never replaces a good copy elsewhere.
        """
        with self._lock, self._translated():
            assert self._connection is not None, "nothing was saved"
            data = self._connection.serialize()
            with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
                copy.deserialize(data)
                _verify(copy, self.path)
            return data

    def restore(self, data: bytes) -> None:
        """Put an exported copy in the place of the file, durably; after a crash it is the one or the other.

        What was there is gone. `load` is to be called next.
        """
        with self._lock:
            self._close()
            temporary = self._unused_temporary()
            file = self._files.open(temporary, create=True)
            try:
                file.pwritev([data], 0)
                file.datasync()
            finally:
                file.close()
            # A journal of the old file would be applied to the new one.
            self._move_side_files(self._damaged_path())
            self._files.rename(temporary, self.path)
            self._files.sync_directory(self.path.parent)

    def set_aside(self) -> Path:
        """Rename the file and its journals, so that `load` finds none, and return its new name; nothing is lost."""
        with self._lock:
            self._close()
            target = self._damaged_path()
            # The file comes last: without it nobody would look for the others after a crash.
            self._move_side_files(target)
            if self._files.exists(self.path):
                self._files.rename(self.path, target)
            self._files.sync_directory(self.path.parent)
            return target

    def close(self) -> None:
        """Give the file back; closing twice is fine."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        self._chunks = {}
        if connection is not None:
            connection.close()

    def _check_header(self) -> None:
        """Raise if the file says that it is to be written in another way than ours.

        SQLite would then make a write-ahead log, or read the file and take it for one that must not be written.
        """
        file = self._files.open(self.path, read_only=True)
        try:
            versions = file.pread(2, 18)
        finally:
            file.close()
        if versions != _ROLLBACK_JOURNAL_VERSIONS:
            raise CheckpointDamagedError("the header is not that of a checkpoint", subject=str(self.path))

    def _create(self, rows: CheckpointRows, numbers: tuple[int, ...]) -> None:
        """Make the file, with its first checkpoint in it."""
        temporary = self._unused_temporary()
        with contextlib.closing(_connect(temporary, create=True)) as connection:
            for statement in schema():
                connection.execute(statement)
            _insert(connection, FORMAT, [(FORMAT_VERSION, PRODUCT)])
            _insert(connection, META, [(0,) * (len(META.columns) - 1)])
            self._write(connection, rows, numbers)
        self._files.rename(temporary, self.path)
        self._files.sync_directory(self.path.parent)
        self._connection = _connect(self.path)

    def _write(self, connection: sqlite3.Connection, rows: CheckpointRows, numbers: tuple[int, ...]) -> None:
        """Change the rows in one transaction."""
        removed_chunks: list[Key] = []
        added_chunks: list[Row] = []
        for segment_id, wanted in rows.chunks.items():
            stored = self._chunks.get(segment_id, ())
            removed, added = chunk_differences(segment_id, stored=stored, wanted=wanted)
            removed_chunks += removed
            added_chunks += added
        connection.execute("BEGIN IMMEDIATE")
        try:
            for table, keys in (*rows.removed.items(), (CHUNKS, removed_chunks)):
                _delete(connection, table, keys)
            for table, new in (*rows.added.items(), (CHUNKS, added_chunks)):
                _insert(connection, table, new)
            self._update_meta(connection, rows, numbers)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                # SQLite has rolled back on its own after most errors. If this fails too, the journal stays and is
                # applied when the file is opened next.
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise

    def _update_meta(self, connection: sqlite3.Connection, rows: CheckpointRows, numbers: tuple[int, ...]) -> None:
        """Seal the transaction by the new row of `meta`, whose sums were brought up to date by the triggers."""
        row = connection.execute(_select(META)).fetchone()
        if row is None:
            raise CheckpointDamagedError("the row of meta is gone", subject=str(self.path))
        row = (row[0], *numbers, *row[1 + len(numbers) : -1])
        figures = dict(zip(META.columns, row, strict=False))
        for table, count in rows.counts.items():
            stored = figures[f"{table.name}_count"]
            if stored != count:
                raise CheckpointDamagedError(
                    f"{table.name} would have {stored} rows instead of {count}", subject=str(self.path)
                )
        _delete(connection, META, [(row[0],)])
        _insert(connection, META, [row])

    def _unused_temporary(self) -> Path:
        """Return the name for a file in the making, after removing what an interrupted attempt left there."""
        temporary = self.path.with_name(self.path.name + ".new")
        for suffix in ("", *_SIDE_FILES):
            left_over = temporary.with_name(temporary.name + suffix)
            if self._files.exists(left_over):
                self._files.remove(left_over)
        return temporary

    def _damaged_path(self) -> Path:
        """Return the first free name for a damaged file."""
        names = set(self._files.list_directory(self.path.parent))
        number = 1
        while any(f"{self.path.name}.damaged-{number}{suffix}" in names for suffix in ("", *_SIDE_FILES)):
            number += 1
        return self.path.with_name(f"{self.path.name}.damaged-{number}")

    def _move_side_files(self, target: Path) -> None:
        """Rename what SQLite keeps beside the file, so that it goes with `target`."""
        for suffix in _SIDE_FILES:
            side_file = self.path.with_name(self.path.name + suffix)
            if self._files.exists(side_file):
                self._files.rename(side_file, target.with_name(target.name + suffix))
                self._files.sync_directory(self.path.parent)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of SQLite into ours."""
        try:
            yield
        except UnicodeDecodeError as error:
            # Python could not even read the message, which cites a damaged schema.
            raise CheckpointDamagedError(f"the schema is damaged: {error}", subject=str(self.path)) from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise NoSpaceError(str(error), subject=str(self.path)) from error
            if code in _TROUBLE_OF_OTHERS:
                raise StorageError(str(error), subject=str(self.path)) from error
            # Failed reads, writes and syncs are among these: what the file holds is then not known.
            raise CheckpointDamagedError(str(error), subject=str(self.path)) from error


def _connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Open the database; transactions are begun and ended by hand."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute("PRAGMA fullfsync=ON")  # macOS: sync the cache of the drive too
        connection.execute("PRAGMA cell_size_check=ON")
        connection.execute("PRAGMA trusted_schema=OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def _select(table: Table) -> str:
    return f"SELECT {', '.join(table.columns)} FROM {table.name}"  # noqa: S608  # names from our own declarations


def _insert(connection: sqlite3.Connection, table: Table, rows: Sequence[Row]) -> None:
    """Add rows, given without checksum.

    Raises:
        StorageError: a number does not fit into 64 bits with a sign.
    """
    one = f"({', '.join('?' * len(table.columns))})"
    for part in _parts(rows):
        try:
            values = [value for row in part for value in (*row, table.checksum(row))]
        except struct.error as error:
            raise StorageError(f"a row of {table.name} cannot be stored: {error}") from error
        connection.execute(f"INSERT INTO {table.name} VALUES {', '.join([one] * len(part))}", values)  # noqa: S608


def _delete(connection: sqlite3.Connection, table: Table, keys: Sequence[Key]) -> None:
    """Remove the rows whose keys begin with one of `keys`; those that are not there are fine."""
    for length in range(1, len(table.key) + 1):
        # Alternatives are each looked up by the primary key; a list of row values would be compared with every row.
        one = "(" + " AND ".join(f"{column} = ?" for column in table.key[:length]) + ")"
        for part in _parts([key for key in keys if len(key) == length]):
            connection.execute(
                f"DELETE FROM {table.name} WHERE {' OR '.join([one] * len(part))}",  # noqa: S608
                [value for key in part for value in key],
            )


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        yield rows[start : start + ROWS_PER_STATEMENT]


def _read(connection: sqlite3.Connection, path: Path) -> Checkpoint:
    """Return the verified content as a state."""
    state = ContainerState()
    meta = _verified_meta(connection, path)
    for table in TABLES:
        add = ADD[table]
        for row in _verified_rows(connection, table, meta=meta, path=path):
            add(state, row)
    finish(state, next_id=meta["next_id"], uptime_us=meta["uptime_us"])
    return Checkpoint(
        state=state,
        sequence=meta["sequence"],
        replay_from=meta["replay_from"],
        container_epoch=meta["container_epoch"],
    )


def _verify(connection: sqlite3.Connection, path: Path) -> None:
    """Raise if not all is as it was written."""
    meta = _verified_meta(connection, path)
    for table in TABLES:
        for _ in _verified_rows(connection, table, meta=meta, path=path):
            pass


def _verified_meta(connection: sqlite3.Connection, path: Path) -> dict[str, int]:
    """Verify format, schema and structure, and return the columns of `meta`."""
    version, product = _only_row(connection, FORMAT, path=path)
    if product != PRODUCT:
        raise CheckpointDamagedError(f"is not a checkpoint but a {product!r}", subject=str(path))
    if version > FORMAT_VERSION:
        raise FolderVersionError(
            f"was written in format {version} by a newer version; this one knows formats up to {FORMAT_VERSION}",
            subject=str(path),
        )
    # A damaged schema could attach a trigger to another table, or make a table sort its keys in another way.
    with contextlib.closing(sqlite3.connect(":memory:")) as empty:
        for statement in schema():
            empty.execute(statement)
        if _schema_of(connection) != _schema_of(empty):
            raise CheckpointDamagedError("the schema is not the one of this format", subject=str(path))
    # Finds pages that are linked wrongly: the rows may be complete, but the next save would not find them.
    trouble: str
    (trouble,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if trouble != "ok":
        raise CheckpointDamagedError(trouble.replace("\n", " "), subject=str(path))
    return dict(zip(META.columns, _only_row(connection, META, path=path), strict=False))


def _schema_of(connection: sqlite3.Connection) -> list[tuple[str, str, str, str]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY rowid").fetchall()


def _only_row(connection: sqlite3.Connection, table: Table, *, path: Path) -> Row:
    rows = connection.execute(f"{_select(table)} LIMIT 2").fetchall()
    if len(rows) != 1:
        raise CheckpointDamagedError(f"{table.name} has {len(rows)} rows instead of 1", subject=str(path))
    *row, checksum = rows[0]
    _check_row(table, tuple(row), checksum, path=path)
    return tuple(row)


def _verified_rows(connection: sqlite3.Connection, table: Table, *, meta: dict[str, int], path: Path) -> Iterator[Row]:
    """Yield the rows of a table without their checksums; only at the end it is known whether all are there."""
    count = total = 0
    for *values, checksum in connection.execute(_select(table)):
        row = tuple(values)
        _check_row(table, row, checksum, path=path)
        count += 1
        total += checksum
        yield row
    expected = meta[f"{table.name}_count"], meta[f"{table.name}_sum"]
    if (count, total) != expected:
        raise CheckpointDamagedError(
            f"{table.name} has {count} rows (sum {total}) instead of {expected[0]} (sum {expected[1]})",
            subject=str(path),
        )


def _check_row(table: Table, row: Row, checksum: object, *, path: Path) -> None:
    try:
        matches = table.checksum(row) == checksum
    except (struct.error, TypeError, AttributeError):
        matches = False
    if not matches:
        raise CheckpointDamagedError(f"a row of {table.name} does not match its checksum: {row[:2]}", subject=str(path))
