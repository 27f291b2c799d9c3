"""Event blocks for reading: checked once, then used as views.

The layout is `millrace.model.block_layout`. Decoding checks the header, the checksum and the offsets; invalid bytes
raise `BlockCorruptError` before anything is allocated for them.
"""

import sys
from itertools import pairwise, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .block_layout import (
    BLOCK_HEADER_SIZE_BYTES,
    BLOCK_VERSION,
    FLAG_COMPRESSED,
    FLAG_HEADERS,
    FLAG_KEYS,
    FLAG_MISSING_KEYS,
    FLAG_TIMESTAMPS,
)
from .block_scan import BlockFields, fields_at
from .checksum import Buffer, crc32c
from .compression import Compression, decompress
from .errors import BlockCorruptError
from .event import Event
from .limits import APPEND_SIZE_BYTES_MAX

# Arrow buffers and numpy views use the columns directly.
assert sys.byteorder == "little", "event columns are little-endian"

_CHECKSUM_OFFSET: Final = BLOCK_HEADER_SIZE_BYTES - 4
_FLAGS_KNOWN: Final = FLAG_COMPRESSED | FLAG_KEYS | FLAG_MISSING_KEYS | FLAG_TIMESTAMPS | FLAG_HEADERS


class HeaderColumns(NamedTuple):
    """The headers of the events of a block, as an Arrow map: `offsets` delimits the entries of each event."""

    offsets: npt.NDArray[np.int32]
    name_offsets: npt.NDArray[np.int32]
    name_data: memoryview
    value_offsets: npt.NDArray[np.int32]
    value_data: memoryview


class EventBlock(NamedTuple):
    """A valid block. Its columns are views of the bytes it was decoded from, and keep them alive.

    Attributes:
        fields: of its header.
        value_offsets: int32, one more than there are events; `key_offsets` too.
        key_validity: a bit per event, or None if every event has a key.
        timestamps: int64, between those of the header; or None.
        header_columns: None if no event has headers.
    """

    fields: BlockFields
    value_offsets: npt.NDArray[np.int32]
    value_data: memoryview
    key_offsets: npt.NDArray[np.int32] | None
    key_data: memoryview | None
    key_validity: memoryview | None
    timestamps: npt.NDArray[np.int64] | None
    header_columns: HeaderColumns | None

    def values(self) -> list[bytes]:
        """Return copies of the values."""
        data = bytes(self.value_data)  # slices of bytes are twice as fast as bytes of slices
        borders = self.value_offsets.tolist()
        return [data[start:end] for start, end in pairwise(borders)]

    def keys(self) -> list[str | None]:
        """Return the key of each event, None if it has none.

        Raises:
            BlockCorruptError: a key that is not UTF-8.
        """
        if self.key_offsets is None or self.key_data is None:
            return [None] * self.fields.event_count
        borders = self.key_offsets.tolist()
        data = bytes(self.key_data)
        try:
            keys: list[str | None] = [data[start:end].decode() for start, end in pairwise(borders)]
        except UnicodeDecodeError as error:
            raise BlockCorruptError(f"a key is not UTF-8: {error}") from None
        if self.key_validity is not None:
            for index in np.flatnonzero(~_bits(self.key_validity, self.fields.event_count)).tolist():
                keys[index] = None
        return keys

    def indexes_of(self, key: str) -> list[int]:
        """Return the indexes of the events with this key."""
        if self.key_offsets is None or self.key_data is None:
            return []
        wanted = key.encode()
        found = np.diff(self.key_offsets) == len(wanted)
        if self.key_validity is not None:
            found &= _bits(self.key_validity, self.fields.event_count)
        starts = self.key_offsets[:-1]
        data = bytes(self.key_data)
        return [
            index
            for index, start in zip(np.flatnonzero(found).tolist(), starts[found].tolist(), strict=True)
            if data.startswith(wanted, start)
        ]

    def headers(self) -> list[dict[str, bytes] | None]:
        """Return the headers of each event, None if it has none.

        Raises:
            BlockCorruptError: a name that is not UTF-8.
        """
        columns = self.header_columns
        if columns is None:
            return [None] * self.fields.event_count
        names, values = bytes(columns.name_data), bytes(columns.value_data)
        try:
            entries = [
                (names[start:end].decode(), values[first:last])
                for (start, end), (first, last) in zip(
                    pairwise(columns.name_offsets.tolist()), pairwise(columns.value_offsets.tolist()), strict=True
                )
            ]
        except UnicodeDecodeError as error:
            raise BlockCorruptError(f"the name of a header is not UTF-8: {error}") from None
        return [dict(entries[start:end]) or None for start, end in pairwise(columns.offsets.tolist())]

    def events(self, *, segment_id: int, offset: int) -> list[Event]:
        """Return the events of the block, which is at `offset` of the segment.

        Raises:
            BlockCorruptError: a key, or the name of a header, that is not UTF-8.
        """
        times: Any = repeat(None) if self.timestamps is None else self.timestamps.tolist()
        headers: Any = repeat(None) if self.header_columns is None else self.headers()
        places = repeat(segment_id), repeat(offset), range(self.fields.event_count)
        fields = zip(self.values(), self.keys(), times, *places, headers, strict=False)
        # Without the frame of `Event.__new__`: half of the time of a hand-out one by one.
        return list(map(tuple.__new__, repeat(Event), fields))

    def first_at_or_after(self, timestamp_us: int, *, start: int = 0) -> int | None:
        """Return the index of the first event with that timestamp or a newer one, None if there is none.

        Args:
            start: the index to search from.
        """
        if self.timestamps is None or self.fields.timestamp_us_max < timestamp_us:
            return None
        found = np.flatnonzero(self.timestamps[start:] >= timestamp_us)
        return start + int(found[0]) if len(found) else None

    def last_before(self, timestamp_us: int) -> int | None:
        """Return the index of the last event with an older timestamp than that, None if there is none."""
        if self.timestamps is None or self.fields.timestamp_us_min >= timestamp_us:
            return None
        found = np.flatnonzero(self.timestamps < timestamp_us)
        return int(found[-1]) if len(found) else None


def unpack_block(data: Buffer) -> EventBlock:
    """Decode a block from its first byte to its last.

    Raises:
        BlockCorruptError: it is not a valid block; says why.
    """
    view = memoryview(data)
    if len(view) < BLOCK_HEADER_SIZE_BYTES:
        raise BlockCorruptError(f"{len(view)} bytes are not a block")
    fields = fields_at(view)
    if fields.size != len(view):
        raise BlockCorruptError(f"a block of {fields.size} bytes in {len(view)}")
    flags, compression, count = fields.flags, fields.compression, fields.event_count
    if fields.version != BLOCK_VERSION:
        raise BlockCorruptError(f"block version {fields.version}; this client reads {BLOCK_VERSION}")
    actual = block_checksum(view)
    if actual != fields.checksum:
        raise BlockCorruptError(f"block checksum is {actual:#010x}, but its header says {fields.checksum:#010x}")
    if flags & ~_FLAGS_KNOWN or fields.reserved:
        raise BlockCorruptError(f"unknown flags {flags:#x} or reserved byte {fields.reserved:#x}")
    if flags & FLAG_MISSING_KEYS and not flags & FLAG_KEYS:
        raise BlockCorruptError("keys are missing in a block without keys")
    if (compression != Compression.NONE) != bool(flags & FLAG_COMPRESSED):
        raise BlockCorruptError(f"compression {compression} with flags {flags:#x}")
    columns_size = fields.columns_size
    if columns_size > APPEND_SIZE_BYTES_MAX:
        raise BlockCorruptError(f"columns of {columns_size} bytes are above {APPEND_SIZE_BYTES_MAX}")
    needed = columns_size_of(flags, count, value_size=fields.value_size, key_size=fields.key_size)
    if columns_size < needed if flags & FLAG_HEADERS else columns_size != needed:
        raise BlockCorruptError(f"columns of {columns_size} bytes do not hold {count} events")
    columns = view[BLOCK_HEADER_SIZE_BYTES:]
    if flags & FLAG_COMPRESSED:
        columns = memoryview(decompress(compression, columns, size_bytes=columns_size))
    elif len(columns) != columns_size:
        raise BlockCorruptError(f"{len(columns)} bytes of columns, but the header says {columns_size}")
    return _block(columns, fields)


def _block(columns: memoryview, fields: BlockFields) -> EventBlock:
    """Split the columns; their sizes were checked against the counts."""
    flags, event_count, value_size, key_size = fields.flags, fields.event_count, fields.value_size, fields.key_size
    offsets_size = 4 * (event_count + 1)
    value_offsets = _checked_offsets(columns[:offsets_size], value_size)
    place = padded(offsets_size)
    value_data = columns[place : place + value_size]
    place += padded(value_size)
    key_validity = key_offsets = key_data = None
    if flags & FLAG_KEYS:
        if flags & FLAG_MISSING_KEYS:
            key_validity = columns[place : place + (event_count + 7) // 8]
            place += padded(len(key_validity))
        key_offsets = _checked_offsets(columns[place : place + offsets_size], key_size)
        place += padded(offsets_size)
        key_data = columns[place : place + key_size]
        place += padded(key_size)
    timestamps = None
    if flags & FLAG_TIMESTAMPS:
        timestamps = _between_bounds(np.frombuffer(columns[place : place + 8 * event_count], dtype=np.int64), fields)
        place += 8 * event_count
    header_columns = _header_columns(columns[place:], event_count) if flags & FLAG_HEADERS else None
    return EventBlock(
        fields=fields,
        value_offsets=value_offsets,
        value_data=value_data,
        key_offsets=key_offsets,
        key_data=key_data,
        key_validity=key_validity,
        timestamps=timestamps,
        header_columns=header_columns,
    )


def _between_bounds(timestamps: npt.NDArray[np.int64], fields: BlockFields) -> npt.NDArray[np.int64]:
    """Clamp timestamps to those of the header, which the server compared with the bounds of the stream.

    Only a faulty or malicious client writes others. Clamping avoids an error, which would stop every reader of the
    stream at this block.
    """
    low, high = fields.timestamp_us_min, fields.timestamp_us_max
    # `reduce`, as `min` and `max` cost twice as much in a small block.
    if np.minimum.reduce(timestamps, initial=high) < low or np.maximum.reduce(timestamps, initial=low) > high:
        return np.clip(timestamps, low, high)
    return timestamps


def _header_columns(columns: memoryview, event_count: int) -> HeaderColumns:
    """Split the last columns. Their sizes are in their offsets, so each is checked before it is read."""
    place = 0

    def taken(size: int) -> memoryview:
        nonlocal place
        if place + padded(size) > len(columns):
            raise BlockCorruptError(f"{len(columns)} bytes of columns do not hold the headers of {event_count} events")
        start, place = place, place + padded(size)
        return columns[start : start + size]

    offsets = _checked_offsets(taken(4 * (event_count + 1)))
    entry_count = int(offsets[-1])
    name_offsets = _checked_offsets(taken(4 * (entry_count + 1)))
    name_data = taken(int(name_offsets[-1]))
    value_offsets = _checked_offsets(taken(4 * (entry_count + 1)))
    value_data = taken(int(value_offsets[-1]))
    if place != len(columns):
        raise BlockCorruptError(f"{len(columns)} bytes of headers, but {place} are used")
    return HeaderColumns(offsets, name_offsets, name_data, value_offsets, value_data)


def block_checksum(block: memoryview) -> int:
    """Return the CRC-32C of a block: of all its bytes but the checksum itself."""
    return crc32c(block[BLOCK_HEADER_SIZE_BYTES:], crc32c(block[:_CHECKSUM_OFFSET]))


def padded(size: int) -> int:
    """Return a size rounded up to a multiple of 8."""
    return (size + 7) & ~7


def columns_size_of(flags: int, count: int, *, value_size: int, key_size: int) -> int:
    """Return the size of all columns but the headers, padding included, according to the counts."""
    offsets_size = padded(4 * (count + 1))
    size = offsets_size + padded(value_size)
    if flags & FLAG_KEYS:
        size += offsets_size + padded(key_size)
    if flags & FLAG_MISSING_KEYS:
        size += padded((count + 7) // 8)
    if flags & FLAG_TIMESTAMPS:
        size += 8 * count
    return size


def _checked_offsets(column: memoryview, size: int | None = None) -> npt.NDArray[np.int32]:
    """Return offsets that rise from 0, to `size` if that is known."""
    offsets = np.frombuffer(column, dtype=np.int32)
    # `item` and `count_nonzero`, as numbers and methods of numpy are most of the work in a small block.
    if (
        offsets.item(0)
        or (size is not None and offsets.item(-1) != size)
        or np.count_nonzero(offsets[1:] < offsets[:-1])
    ):
        raise BlockCorruptError(f"offsets do not rise from 0 to {'their end' if size is None else size}")
    return offsets


def _bits(validity: memoryview, count: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(validity, dtype=np.uint8), count=count, bitorder="little")
    return bits.astype(np.bool_)
