"""Reading single things out of the checkpoint, while it may be written: segments, streams, writers, transactions.

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

from millrace.model.event_times import EventTimeBounds
from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.model.names import AFTER_INTERNAL
from millrace.server.container.memtable import LinkedExtent
from millrace.server.container.state.labels import LABEL_TIMES, config_of
from millrace.server.container.state.producer import KnownProducer
from millrace.server.container.state.segment import ATTRIBUTE_OVERHEAD_BYTES, Segment
from millrace.server.container.state.stream import Stream
from millrace.server.container.state.transaction import Transaction
from millrace.server.container.state.writer import Writer
from millrace.server.errors import CheckpointDamagedError, DiskUnavailableError, NoSpaceError
from millrace.server.host.files import FileSystem
from millrace.wire import messages as m

from .exclusive_table import EXCLUSIVE_WRITERS, exclusive_writer_of_row
from .kind import Entity, Kind
from .segment_tables import CHUNKS, LINKS, link_of_row
from .stream_tables import LABELS, STREAMS
from .table import Key, Row, Table, checked_row

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
        self._name = kind.name

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


class SegmentArchive(KindArchive[Segment]):
    """The segments of a checkpoint."""

    def unflushed(self) -> list[int]:
        """Return the numbers of the segments that had bytes which were not in tier 2."""
        return self._reader.column("SELECT segment_id FROM segments WHERE flushed_offset < length ORDER BY segment_id")

    def damaged(self) -> list[int]:
        """Return the numbers of the segments of which bytes were lost to damage."""
        return self._reader.column("SELECT DISTINCT segment_id FROM damages ORDER BY segment_id")

    def internal_count(self) -> int:
        """Return how many segments are internal; takes time for these only."""
        return sum(self._reader.column("SELECT count(*) FROM segments WHERE name < ?", [AFTER_INTERNAL]))

    def attribute_bytes(self) -> int:
        """Return what the attributes of all segments count against their limit; reads their sizes only."""
        sizes = "count(*), total(length(CAST(name AS BLOB))), total(length(value))"
        rows = self._reader.select(f"SELECT {sizes} FROM attributes WHERE substr(name, 1, 1) <> '#'", [])
        return sum(ATTRIBUTE_OVERHEAD_BYTES * count + int(keys) + int(values) for count, keys, values in rows)

    def links(self) -> list[LinkedExtent]:
        """Return where the bytes of merged segments are."""
        return [link_of_row(row) for row in self._reader.rows(LINKS, "TRUE ORDER BY target_id, offset", [])]

    def has_chunk(self, *, segment_id: int, start_offset: int, name: str) -> bool:
        """Return whether a segment refers to a chunk."""
        rows = self._reader.under(CHUNKS, (segment_id, start_offset))
        return any(row[-1] == name for row in rows)


class StreamArchive(KindArchive[Stream]):
    """The streams of a checkpoint."""

    def labelled(self, label: str, *, prefix: str = "", after: str, count_max: int) -> list[tuple[str, int]]:
        """Return names and numbers of the streams with a label, by name, above `after`."""
        found = self._reader.rows(
            LABELS, f"label = ? AND name > ? AND name >= ? ORDER BY name LIMIT {count_max}", [label, after, prefix]
        )
        return [(name, stream_id) for stream_id, _, name in takewhile(lambda row: row[2].startswith(prefix), found)]

    def with_cursors(self) -> list[int]:
        """Return the numbers of the streams that have cursors."""
        return self._reader.column("SELECT DISTINCT stream_id FROM cuts WHERE kind = ?", [m.CutKind.CURSOR])

    def event_times(self) -> dict[int, EventTimeBounds]:
        """Return the bounds of event times of the streams that have some, by stream id."""
        table = STREAMS.table
        rows = self._reader.rows(table, "stream_id IN (SELECT stream_id FROM labels WHERE label = ?)", [LABEL_TIMES])
        number, configuration = table.columns.index("stream_id"), table.columns.index("configuration")
        found = ((row[number], config_of(row[configuration]).event_times) for row in rows)
        return {stream_id: bounds for stream_id, bounds in found if bounds is not None}

    def exclusive_writers(self) -> dict[int, ExclusiveWriter]:
        """Return the exclusive writers of streams, by stream id."""
        return dict(map(exclusive_writer_of_row, self._reader.rows(EXCLUSIVE_WRITERS, "TRUE ORDER BY stream_id", [])))


class WriterArchive(KindArchive[Writer]):
    """The writers of a checkpoint."""

    def idle(self, *, before_uptime_us: int, marks_before_uptime_us: int, after: int, count_max: int) -> list[int]:
        """Return the numbers above `after` of writers, and of marks, that were seen last before these uptimes."""
        return self._reader.column(
            "SELECT writer_number FROM writers WHERE writer_number > ? AND seen_uptime_us < iif(expired_us, ?, ?) "
            f"ORDER BY writer_number LIMIT {count_max}",
            [after, marks_before_uptime_us, before_uptime_us],
        )

    def marks_seen_from(self, *, newest_count: int) -> int:
        """Return the uptime when the oldest of so many marks was made, the newest ones; 0 if there are fewer."""
        found = self._reader.column(
            "SELECT seen_uptime_us FROM writers WHERE expired_us > 0 "
            f"ORDER BY seen_uptime_us DESC LIMIT 1 OFFSET {newest_count - 1}"
        )
        return found[0] if found else 0


class ProducerArchive(KindArchive[KnownProducer]):
    """The producers of a checkpoint."""

    def unused(self) -> list[str]:
        """Return the writer ids of those that have committed nothing, and whose runs were not replaced."""
        rows = self._reader.select("SELECT writer_id FROM producers WHERE last_sequence < 0 AND fenced = '[]'", [])
        return [writer_id for (writer_id,) in rows]


class TransactionArchive(KindArchive[Transaction]):
    """The transactions of a checkpoint, open ones and outcomes."""

    def open(self) -> list[int]:
        """Return the numbers of those that are not over."""
        return self._reader.column("SELECT number FROM transactions WHERE decided_uptime_us < 0 ORDER BY number")

    def outcomes(
        self, *, is_named: bool, before_uptime_us: int, after: tuple[int, int], count_max: int
    ) -> list[tuple[int, int]]:
        """Return the oldest that are over, each as the uptime when it ended and its number, ascending.

        Args:
            is_named: those with a name, or those without one.
            before_uptime_us: that ended before this uptime.
            after: above this pair.
        """
        return self._reader.select(
            "SELECT decided_uptime_us, number FROM transactions WHERE decided_uptime_us >= 0 "
            f"AND decided_uptime_us < ? AND (decided_uptime_us, number) > (?, ?) "
            f"AND name {'<>' if is_named else '='} '' "
            f"ORDER BY decided_uptime_us, number LIMIT {count_max}",
            [before_uptime_us, *after],
        )
