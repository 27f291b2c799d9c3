"""The tables of a checkpoint, with a checksum in each row.

A checkpoint is a SQLite database. SQLite finds a torn page by no checksum of its own, and a flipped bit in a value by
nothing at all, so each row carries one, and the one row of `meta` knows how many rows each table has and the sum of
their checksums. So a row that is damaged, lost, doubled, moved to another table, or of an older version of its page (a
write that the disk lost) is noticed when the checkpoint is verified.

Format, version 1. Each table has integer columns (signed, 64 bits), then text columns, then blob columns, then
`checksum`. The checksum of a row is the CRC-32C, started with the number of the table instead of 0, of:

    offset   size   field
    0        8 k    the k integers, little-endian
    8 k      4      size in bytes of the first text, little-endian
    8 k + 4  ...    the first text in UTF-8; then the other texts and the blobs in the same way

For example the row of `writers` with writer_number 7, epoch 2, opened_us 1700000000000000, active_us a minute later,
expired_us 0, seen_uptime_us 5400000000 and writer_id "w1" is read as

    0700000000000000020000000000000000401e18240a060000c7b11b240a060000000000000000000076dd4101000000020000007731

and its checksum is 0x42839873. Key ranges use all 64 bits, without a sign; they are kept as 16 hexadecimal digits.
The row of `meta` is read in the same way. Its `..._count` and `..._sum` columns are kept by triggers, so that writing
rows needs no look at the rows that they replace.

Table `format` never changes its shape: any version can tell which version wrote the file.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final

from millrace.server.errors import CheckpointDamagedError
from millrace.wire.checksum import crc32c

Row = tuple[Any, ...]
"""The values of a row, without its checksum: int, str and bytes as its table declares them."""
Key = tuple[Any, ...]
"""The leading values of a row, at most its primary key."""

FORMAT_VERSION: Final = 1
PRODUCT: Final = "millrace checkpoint"


class Table:
    """A table of the checkpoint: its columns, and the checksum of its rows."""

    __slots__ = ("_integers", "_pack", "_texts_end", "columns", "create", "indexes", "key", "name", "number")

    def __init__(
        self,
        name: str,
        *,
        number: int,
        key: Sequence[str],
        integers: Sequence[str],
        texts: Sequence[str] = (),
        blobs: Sequence[str] = (),
        indexes: Sequence[Sequence[str]] = (),
    ) -> None:
        self.name = name
        self.number = number  # never given to another table: it tells equal rows of two tables apart
        self.key = tuple(key)
        self.columns = (*integers, *texts, *blobs, "checksum")
        self._integers = len(integers)
        self._texts_end = len(integers) + len(texts)
        self._pack = Struct(f"<{len(integers)}q").pack
        types = ["INTEGER"] * len(integers) + ["TEXT"] * len(texts) + ["BLOB"] * len(blobs) + ["INTEGER"]
        columns = ", ".join(f"{column} {kind} NOT NULL" for column, kind in zip(self.columns, types, strict=True))
        self.create = f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({', '.join(key)})) WITHOUT ROWID"
        # By name, the columns that rows are also found by.
        self.indexes = {f"{name}_by_{index[0]}": tuple(index) for index in indexes}

    def checksum(self, row: Row) -> int:
        """Return the checksum of a row, given without it.

        Raises:
            struct.error, TypeError, AttributeError: a value is not of the type of its column.
        """
        data: bytes = self._pack(*row[: self._integers])
        for text in row[self._integers : self._texts_end]:
            encoded = text.encode()
            data += len(encoded).to_bytes(4, "little") + encoded
        for blob in row[self._texts_end :]:
            data += len(blob).to_bytes(4, "little") + blob
        return crc32c(data, self.number)


def checked_row(table: Table, row: Row, *, path: Path) -> Row:
    """Return a row, given with its checksum at the end, without it.

    Raises:
        CheckpointDamagedError: it is not what was written.
    """
    values, checksum = row[:-1], row[-1]
    try:
        matches = table.checksum(values) == checksum
    except (struct.error, TypeError, AttributeError):
        matches = False
    if not matches:
        raise CheckpointDamagedError(
            f"a row of {table.name} does not match its checksum: {values[:2]}", subject=str(path)
        )
    return values


FORMAT: Final = Table("format", number=1, key=["version"], integers=["version"], texts=["product"])
SEGMENTS: Final = Table(
    "segments",
    number=3,
    key=["segment_id"],
    integers=[
        "segment_id", "stream_id", "created_us", "start_offset", "length", "event_count", "flushed_offset", "sealed"
    ],
    texts=["name"],
    indexes=[["name"]],
)  # fmt: skip
CHUNKS: Final = Table(
    "chunks",
    number=4,
    key=["segment_id", "start_offset"],
    integers=["segment_id", "start_offset", "length", "size", "start_events", "end_events", "end_wall_time_us"],
    texts=["name"],
)
DAMAGES: Final = Table(
    "damages",
    number=5,
    key=["segment_id", "position"],
    integers=["segment_id", "position", "start_offset", "end_offset"],
    texts=["source"],
)
PROGRESS: Final = Table(
    "progress",
    number=6,
    key=["segment_id", "writer_number"],
    integers=["segment_id", "writer_number", "last_event_number", "last_offset"],
    indexes=[["writer_number"]],
)
ATTRIBUTES: Final = Table(
    "attributes", number=7, key=["segment_id", "name"], integers=["segment_id"], texts=["name"], blobs=["value"]
)
WRITERS: Final = Table(
    "writers",
    number=8,
    key=["writer_number"],
    integers=["writer_number", "epoch", "opened_us", "active_us", "expired_us", "seen_uptime_us"],
    texts=["writer_id"],
    indexes=[["writer_id"]],
)
STREAMS: Final = Table(
    "streams",
    number=9,
    key=["stream_id"],
    integers=["stream_id", "created_us", "epoch", "sealed"],
    texts=["name", "configuration", "parts", "epochs"],  # the lists as JSON, key ranges in hexadecimal digits
    indexes=[["name"]],
)
LABELS: Final = Table(
    "labels",
    number=10,
    key=["stream_id", "label"],
    integers=["stream_id"],
    texts=["label", "name"],
    indexes=[["label", "name"]],
)
CUTS: Final = Table(
    "cuts",
    number=13,
    key=["stream_id", "kind", "name"],
    integers=["stream_id", "kind", "saved_us"],
    texts=["name", "positions"],  # the positions as JSON
)
LINKS: Final = Table(
    "links",
    number=11,
    key=["source_id"],
    integers=[
        "source_id", "target_id", "target_offset", "size", "source_offset", "event_count", "end_events", "sequence",
        "wall_time_us"
    ],
)  # fmt: skip
TABLES: Final = (
    SEGMENTS, CHUNKS, DAMAGES, PROGRESS, ATTRIBUTES, WRITERS, STREAMS, LABELS, CUTS, LINKS
)  # fmt: skip
"""The tables of what a container knows."""

META: Final = Table(
    "meta",
    number=2,
    key=["id"],
    integers=[
        "id", "sequence", "replay_from", "container_epoch", "next_id", "uptime_us",
        *(f"{table.name}_{figure}" for table in TABLES for figure in ("count", "sum")),
    ],
)  # fmt: skip


def schema() -> Iterator[str]:
    """Yield the statements that make the tables and triggers of an empty checkpoint."""
    for table in (FORMAT, META, *TABLES):
        yield table.create
    for table in TABLES:
        for name, columns in table.indexes.items():
            yield f"CREATE INDEX {name} ON {table.name} ({', '.join(columns)})"
    for table in TABLES:
        count, total = f"{table.name}_count", f"{table.name}_sum"
        for event, sign, row in (("INSERT", "+", "NEW"), ("DELETE", "-", "OLD")):
            yield (
                f"CREATE TRIGGER {table.name}_{event.lower()} AFTER {event} ON {table.name} BEGIN UPDATE meta "  # noqa: S608  # our own names
                f"SET {count} = {count} {sign} 1, {total} = {total} {sign} {row}.checksum; END"
            )
