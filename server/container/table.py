"""A table of the checkpoint: its columns, and the checksum that each of its rows carries.

SQLite finds a torn page by no checksum of its own, and a flipped bit in a value by nothing at all. So a table has
integer columns (signed, 64 bits), then text columns, then blob columns, then `checksum`: the CRC-32C, started with the
number of the table instead of 0, of:

    offset   size   field
    0        8 k    the k integers, little-endian
    8 k      4      size in bytes of the first text, little-endian
    8 k + 4  ...    the first text in UTF-8; then the other texts and the blobs in the same way

For example the row of `writers` with writer_number 7, epoch 2, opened_us 1700000000000000, active_us a minute later,
expired_us 0, seen_uptime_us 5400000000, writer_id "w1" and no nonces is read as

    0700000000000000020000000000000000401e18240a060000c7b11b240a060000000000000000000076dd410100000002000000773100000000

and its checksum is 0x13123388. Key ranges use all 64 bits, without a sign; they are kept as 16 hexadecimal digits.
"""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final

from millrace.model.checksum import crc32c
from millrace.model.key_range import KeyRange
from millrace.server.errors import CheckpointDamagedError

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))

Row = tuple[Any, ...]
"""The values of a row, without its checksum: int, str and bytes as its table declares them."""
Key = tuple[Any, ...]
"""The leading values of a row, at most its primary key."""


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

    def key_of(self, row: Row) -> Row:
        """Return the primary key of a row."""
        return tuple(row[self.columns.index(column)] for column in self.key)

    def matches(self, row: Row, checksum: object) -> bool:
        """Return whether a row, given without its checksum, is what was written, whatever its values are."""
        try:
            return self.checksum(row) == checksum
        except (struct.error, TypeError, AttributeError):
            return False

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
    if not table.matches(values, checksum):
        raise CheckpointDamagedError(
            f"a row of {table.name} does not match its checksum: {values[:2]}", subject=str(path)
        )
    return values


def range_texts(low: int, last: int) -> tuple[str, str]:
    """Return the first and the last place of a key range as they are stored."""
    return f"{low:016x}", f"{last:016x}"


def places_of_texts(low: str, last: str) -> tuple[int, int]:
    """Return the first and the last place of the key range that was stored as these texts."""
    return int(low, 16), int(last, 16)


def range_of_texts(low: str, last: str) -> KeyRange:
    """Return the key range that was stored as these texts."""
    return KeyRange.inclusive(*places_of_texts(low, last))


def json_text(value: object) -> str:
    """Return a list of lists, numbers and texts, or None, as it is stored in a text column."""
    return _ENCODER.encode(value)
