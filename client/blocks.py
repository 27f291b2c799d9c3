"""Event blocks: packed from lists and read back without touching an event.

The layout is `millrace.wire.schema.block`. Packing joins the values in one pass and computes offsets with numpy;
reading checks the header, the checksum and the offsets, and then hands out views. Whatever does not fit the format is a
`BlockCorruptError`, found before anything is allocated for it.
"""

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.model.errors import BlockCorruptError, EventTooLargeError, InvalidArgumentError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX, EVENT_SIZE_BYTES_MAX, ROUTING_KEY_SIZE_BYTES_MAX
from millrace.wire.checksum import Buffer, crc32c
from millrace.wire.codec import derive
from millrace.wire.compression import decompress
from millrace.wire.errors import CodecError
from millrace.wire.schema.block import (
    BLOCK_HEADER_SIZE_BYTES,
    BLOCK_MAGIC,
    BLOCK_VERSION,
    COMPRESSION_NONE,
    FLAG_COMPRESSED,
    FLAG_KEYS,
    FLAG_MISSING_KEYS,
    FLAG_TIMESTAMPS,
    BlockHeader,
)

from .compression import Compression, compress

if TYPE_CHECKING:
    import pyarrow as pa

# Arrow buffers and numpy views take the columns as they stand.
assert sys.byteorder == "little", "event columns are little-endian"

_header = derive(BlockHeader, name="BlockHeader").fixed
assert _header is not None
assert _header.size == BLOCK_HEADER_SIZE_BYTES
_pack_header = _header.pack_into
_unpack_header = _header.unpack_from
_CHECKSUM_OFFSET: Final = BLOCK_HEADER_SIZE_BYTES - 4
_SIZE: Final = struct.Struct("<I")
_SIZE_OFFSET: Final = 8
_FLAGS_KNOWN: Final = FLAG_COMPRESSED | FLAG_KEYS | FLAG_MISSING_KEYS | FLAG_TIMESTAMPS
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1

Keys = str | Sequence[str | None] | None
Timestamps = int | Sequence[int] | npt.NDArray[np.int64] | None


class Event(NamedTuple):
    """One event of a stream.

    Attributes:
        timestamp_us: Unix microseconds, given by the caller or the writer's clock; None if its block has none.
        offset: of its block in the segment.
        event_index: its place in the block, from 0.
    """

    value: bytes
    key: str | None
    timestamp_us: int | None
    segment_id: int
    offset: int
    event_index: int

    @property
    def position(self) -> "EventPosition":
        """Where the event is."""
        return EventPosition(self.segment_id, self.offset, self.event_index)


class EventPosition(NamedTuple):
    """Where an event is: the event of that index in the block at that offset of that segment."""

    segment_id: int
    offset: int
    event_index: int


def pack_block(
    values: Sequence[bytes],
    *,
    keys: Keys = None,
    timestamps_us: Timestamps = None,
    first_event_number: int = 0,
    compression: Compression = Compression.NONE,
    size_bytes_max: int = APPEND_SIZE_BYTES_MAX,
) -> bytearray:
    """Return the block of these events.

    Args:
        values: bytes, or anything like bytes with items of one byte.
        keys: one key for all events, or one (or None) for each.
        timestamps_us: one timestamp for all events, or one for each.
        size_bytes_max: of the block, compressed.

    Raises:
        EventTooLargeError: an event above 8 MiB, a key above 64 KiB, or more than one append can hold.
        InvalidArgumentError: no events, or as many keys or timestamps as there are not events.
        TypeError: a value that is not bytes, a key that is not text.
    """
    count = len(values)
    if count == 0:
        raise InvalidArgumentError("a block holds at least one event")
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=count)
    value_size = int(lengths.sum())
    if value_size > APPEND_SIZE_BYTES_MAX or int(lengths.max()) > EVENT_SIZE_BYTES_MAX:
        raise EventTooLargeError(
            f"an event holds at most {EVENT_SIZE_BYTES_MAX} bytes and an append {APPEND_SIZE_BYTES_MAX}; "
            f"the largest here has {int(lengths.max())}, all together {value_size}"
        )
    flags = 0
    columns: list[Any] = [_offsets(lengths), *values, b"\0" * (-value_size % 8)]
    key_size = 0
    if keys is not None:
        key_columns, key_size, missing = _key_columns(keys, count)
        columns += key_columns
        flags |= FLAG_KEYS | (FLAG_MISSING_KEYS if missing else 0)
    timestamp_us_min = timestamp_us_max = 0
    if timestamps_us is not None:
        column, timestamp_us_min, timestamp_us_max = _timestamp_column(timestamps_us, count)
        columns.append(column)
        flags |= FLAG_TIMESTAMPS
    columns_size = _columns_size(flags, count, value_size=value_size, key_size=key_size)
    limit_bytes = size_bytes_max if compression is Compression.NONE else APPEND_SIZE_BYTES_MAX
    _check_block_size(BLOCK_HEADER_SIZE_BYTES + columns_size, count, limit_bytes=limit_bytes)
    # One join for everything: each value is copied once.
    block = bytearray().join([bytes(BLOCK_HEADER_SIZE_BYTES), *columns])
    if len(block) != BLOCK_HEADER_SIZE_BYTES + columns_size:
        raise TypeError("values must be bytes, or like bytes with items of one byte")
    if compression is not Compression.NONE:
        packed = compress(compression, memoryview(block)[BLOCK_HEADER_SIZE_BYTES:])
        if len(packed) + 7 < columns_size:  # else it is stored as it is: nothing would be gained
            flags |= FLAG_COMPRESSED
            block = bytearray().join([block[:BLOCK_HEADER_SIZE_BYTES], packed, b"\0" * (-len(packed) % 8)])
    _check_block_size(len(block), count, limit_bytes=size_bytes_max)
    _pack_header(
        block, 0, BLOCK_MAGIC, BLOCK_VERSION, flags, int(compression) if flags & FLAG_COMPRESSED else COMPRESSION_NONE,
        0, len(block), count, first_event_number, timestamp_us_min, timestamp_us_max, value_size, key_size,
        columns_size, 0,
    )  # fmt: skip
    _SIZE.pack_into(block, _CHECKSUM_OFFSET, _checksum(memoryview(block)))
    return block


def size_of_single(value_size: int, *, key_size: int | None) -> int:
    """Return the size of the block of one event with a timestamp, not compressed; `key_size` is None without a key."""
    flags = FLAG_TIMESTAMPS | (0 if key_size is None else FLAG_KEYS)
    return BLOCK_HEADER_SIZE_BYTES + _columns_size(flags, 1, value_size=value_size, key_size=key_size or 0)


def _check_block_size(size: int, event_count: int, *, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise EventTooLargeError(f"{event_count} events need {size} bytes, one append holds {limit_bytes}")


def block_size(data: Buffer, start: int = 0) -> int:
    """Return the size of the block at `start`, or 0 if too few bytes are there to say.

    Raises:
        BlockCorruptError: no block starts there.
    """
    if len(data) - start < _SIZE_OFFSET + _SIZE.size:
        return 0
    if bytes(data[start : start + 4]) != BLOCK_MAGIC:
        raise BlockCorruptError(f"no event block starts with {bytes(data[start : start + 4])!r}")
    (size,) = _SIZE.unpack_from(data, start + _SIZE_OFFSET)
    if not BLOCK_HEADER_SIZE_BYTES < size <= APPEND_SIZE_BYTES_MAX or size % 8:
        raise BlockCorruptError(f"{size} bytes is not the size of an event block")
    return int(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBlock:
    """A valid block. Its columns are views of the bytes it was decoded from, and keep them alive.

    Attributes:
        size: bytes of the block in the segment.
        timestamp_us_min, timestamp_us_max: 0 without timestamps.
        value_offsets: int32, one more than there are events; `key_offsets` too.
        key_validity: a bit per event, or None where every event has a key.
        timestamps: int64, or None.
    """

    size: int
    event_count: int
    first_event_number: int
    timestamp_us_min: int
    timestamp_us_max: int
    value_offsets: npt.NDArray[np.int32]
    value_data: memoryview
    key_offsets: npt.NDArray[np.int32] | None
    key_data: memoryview | None
    key_validity: memoryview | None
    timestamps: npt.NDArray[np.int64] | None

    def values(self) -> list[bytes]:
        """Return the values as bytes of their own."""
        data = bytes(self.value_data)  # slices of bytes are twice as fast as bytes of slices
        borders = self.value_offsets.tolist()
        return [data[start:end] for start, end in pairwise(borders)]

    def keys(self) -> list[str | None]:
        """Return the key of each event, None where it has none.

        Raises:
            BlockCorruptError: a key that is not UTF-8.
        """
        if self.key_offsets is None or self.key_data is None:
            return [None] * self.event_count
        borders = self.key_offsets.tolist()
        data = bytes(self.key_data)
        try:
            keys: list[str | None] = [data[start:end].decode() for start, end in pairwise(borders)]
        except UnicodeDecodeError as error:
            raise BlockCorruptError(f"a key is not UTF-8: {error}") from None
        if self.key_validity is not None:
            for index in np.flatnonzero(~_bits(self.key_validity, self.event_count)).tolist():
                keys[index] = None
        return keys

    def events(self, *, segment_id: int, offset: int) -> list[Event]:
        """Return the events of the block, which stands at `offset` of the segment."""
        times: Any = repeat(None) if self.timestamps is None else self.timestamps.tolist()
        fields = zip(
            self.values(), self.keys(), times, repeat(segment_id), repeat(offset), range(self.event_count), strict=False
        )
        # As `Event._make` for each, without its frame: half of the time of a hand-out one by one.
        return list(map(tuple.__new__, repeat(Event), fields))

    def first_at_or_after(self, timestamp_us: int) -> int | None:
        """Return the index of the first event with that timestamp or a later one, None if there is none."""
        if self.timestamps is None or self.timestamp_us_max < timestamp_us:
            return None
        found = np.flatnonzero(self.timestamps >= timestamp_us)
        return int(found[0]) if len(found) else None

    def to_arrow(self, *, start: int = 0, end: int | None = None) -> "list[pa.Array]":
        """Return value (binary), key (string) and timestamp_us (int64) of the events [start, end) as Arrow arrays.

        Nothing is copied: the arrays are views of the block.

        Raises:
            BlockCorruptError: a key that is not UTF-8.
        """
        import pyarrow as pa

        count = self.event_count
        values = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(self.value_offsets), pa.py_buffer(self.value_data)]
        )
        if self.key_offsets is None or self.key_data is None:
            keys = pa.nulls(count, pa.string())
        else:
            validity = None if self.key_validity is None else pa.py_buffer(self.key_validity)
            keys = pa.Array.from_buffers(
                pa.string(), count, [validity, pa.py_buffer(self.key_offsets), pa.py_buffer(self.key_data)]
            )
            try:
                keys.validate(full=True)  # Arrow trusts text to be UTF-8; a stranger's block is not trusted
            except pa.ArrowInvalid as error:
                raise BlockCorruptError(f"a key is not UTF-8: {error}") from None
        if self.timestamps is None:
            times = pa.nulls(count, pa.int64())
        else:
            times = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(self.timestamps)])
        arrays = [values, keys, times]
        if start or (end is not None and end < count):
            stop = count if end is None else min(end, count)
            arrays = [array.slice(start, max(0, stop - start)) for array in arrays]
        return arrays


def unpack_block(data: Buffer) -> EventBlock:
    """Return the block that `data` is, from its first byte to its last.

    Raises:
        BlockCorruptError: it is none; says what does not fit.
    """
    view = memoryview(data)
    size = block_size(view)
    if size == 0 or size != len(view):
        raise BlockCorruptError(f"a block of {size} bytes in {len(view)}")
    (
        _, version, flags, compression, reserved, _, count, first_event_number, timestamp_us_min, timestamp_us_max,
        value_size, key_size, columns_size, checksum,
    ) = _unpack_header(view, 0)  # fmt: skip
    if version != BLOCK_VERSION:
        raise BlockCorruptError(f"block version {version}; this client reads {BLOCK_VERSION}")
    actual = _checksum(view)
    if actual != checksum:
        raise BlockCorruptError(f"block checksum is {actual:#010x}, its header says {checksum:#010x}")
    if flags & ~_FLAGS_KNOWN or reserved:
        raise BlockCorruptError(f"unknown flags {flags:#x} or reserved byte {reserved:#x}")
    if flags & FLAG_MISSING_KEYS and not flags & FLAG_KEYS:
        raise BlockCorruptError("keys are missing in a block without keys")
    if (compression != COMPRESSION_NONE) != bool(flags & FLAG_COMPRESSED):
        raise BlockCorruptError(f"compression {compression} with flags {flags:#x}")
    if count == 0:
        raise BlockCorruptError("a block without events")
    if columns_size > APPEND_SIZE_BYTES_MAX:
        raise BlockCorruptError(f"columns of {columns_size} bytes are above {APPEND_SIZE_BYTES_MAX}")
    if columns_size != _columns_size(flags, count, value_size=value_size, key_size=key_size):
        raise BlockCorruptError(f"columns of {columns_size} bytes do not hold {count} events")
    columns = view[BLOCK_HEADER_SIZE_BYTES:]
    if flags & FLAG_COMPRESSED:
        columns = _decompressed(compression, columns, columns_size)
    elif len(columns) != columns_size:
        raise BlockCorruptError(f"{len(columns)} bytes of columns, the header says {columns_size}")
    return _block(
        columns,
        flags=flags,
        size=size,
        event_count=count,
        first_event_number=first_event_number,
        timestamp_us_min=timestamp_us_min,
        timestamp_us_max=timestamp_us_max,
        value_size=value_size,
        key_size=key_size,
    )


def _block(
    columns: memoryview,
    *,
    flags: int,
    size: int,
    event_count: int,
    first_event_number: int,
    timestamp_us_min: int,
    timestamp_us_max: int,
    value_size: int,
    key_size: int,
) -> EventBlock:
    """Cut the columns apart; their sizes were checked against the counts."""
    offsets_size = 4 * (event_count + 1)
    value_offsets = _checked_offsets(columns[:offsets_size], value_size)
    place = _padded(offsets_size)
    value_data = columns[place : place + value_size]
    place += _padded(value_size)
    key_validity = key_offsets = key_data = None
    if flags & FLAG_KEYS:
        if flags & FLAG_MISSING_KEYS:
            key_validity = columns[place : place + (event_count + 7) // 8]
            place += _padded(len(key_validity))
        key_offsets = _checked_offsets(columns[place : place + offsets_size], key_size)
        place += _padded(offsets_size)
        key_data = columns[place : place + key_size]
        place += _padded(key_size)
    timestamps = None
    if flags & FLAG_TIMESTAMPS:
        timestamps = np.frombuffer(columns[place : place + 8 * event_count], dtype=np.int64)
        place += 8 * event_count
    assert place == len(columns)
    return EventBlock(
        size=size,
        event_count=event_count,
        first_event_number=first_event_number,
        timestamp_us_min=timestamp_us_min,
        timestamp_us_max=timestamp_us_max,
        value_offsets=value_offsets,
        value_data=value_data,
        key_offsets=key_offsets,
        key_data=key_data,
        key_validity=key_validity,
        timestamps=timestamps,
    )


def _checksum(block: memoryview) -> int:
    return crc32c(block[BLOCK_HEADER_SIZE_BYTES:], crc32c(block[:_CHECKSUM_OFFSET]))


def _padded(size: int) -> int:
    return (size + 7) & ~7


def _columns_size(flags: int, count: int, *, value_size: int, key_size: int) -> int:
    """Return the bytes of all columns, padding included, as the counts demand."""
    offsets_size = _padded(4 * (count + 1))
    size = offsets_size + _padded(value_size)
    if flags & FLAG_KEYS:
        size += offsets_size + _padded(key_size)
    if flags & FLAG_MISSING_KEYS:
        size += _padded((count + 7) // 8)
    if flags & FLAG_TIMESTAMPS:
        size += 8 * count
    return size


def _offsets(lengths: npt.NDArray[np.int64]) -> bytes:
    """Return the column of offsets, padded."""
    count = len(lengths)
    offsets = np.zeros(_padded(4 * (count + 1)) // 4, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1 : count + 1])
    return offsets.tobytes()


def _key_columns(keys: str | Sequence[str | None], count: int) -> tuple[list[bytes], int, bool]:
    """Return the columns of the keys, the bytes of all keys, and whether some are missing."""
    if isinstance(keys, str):
        encoded = keys.encode()
        lengths = np.full(count, len(encoded), dtype=np.int64)
        data, missing = encoded * count, b""
    else:
        if len(keys) != count:
            raise InvalidArgumentError(f"{len(keys)} keys for {count} events")
        pieces = [b"" if key is None else key.encode() for key in keys]
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=count)
        data, missing = b"".join(pieces), b""
        if None in keys:
            present = np.fromiter((key is not None for key in keys), dtype=np.bool_, count=count)
            missing = np.packbits(present, bitorder="little").tobytes()
    if int(lengths.max()) > ROUTING_KEY_SIZE_BYTES_MAX:
        raise EventTooLargeError(f"a routing key holds at most {ROUTING_KEY_SIZE_BYTES_MAX} bytes in UTF-8")
    columns = [missing, b"\0" * (-len(missing) % 8)] if missing else []
    return [*columns, _offsets(lengths), data, b"\0" * (-len(data) % 8)], len(data), bool(missing)


def _timestamp_column(timestamps_us: int | Any, count: int) -> tuple[bytes, int, int]:
    if isinstance(timestamps_us, int):
        if not _INT64_MIN <= timestamps_us <= _INT64_MAX:
            raise InvalidArgumentError(f"timestamp_us={timestamps_us} does not fit 64 bits")
        return timestamps_us.to_bytes(8, "little", signed=True) * count, timestamps_us, timestamps_us
    if len(timestamps_us) != count:
        raise InvalidArgumentError(f"{len(timestamps_us)} timestamps for {count} events")
    try:
        column = np.asarray(timestamps_us, dtype=np.int64)
    except OverflowError:
        raise InvalidArgumentError("a timestamp does not fit 64 bits") from None
    return column.tobytes(), int(column.min()), int(column.max())


def _checked_offsets(column: memoryview, size: int) -> npt.NDArray[np.int32]:
    offsets = np.frombuffer(column, dtype=np.int32)
    if offsets[0] != 0 or offsets[-1] != size or bool((offsets[1:] < offsets[:-1]).any()):
        raise BlockCorruptError(f"offsets do not rise from 0 to {size}")
    return offsets


def _bits(validity: memoryview, count: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(validity, dtype=np.uint8), count=count, bitorder="little")
    return bits.astype(np.bool_)


def _decompressed(compression: int, columns: memoryview, size: int) -> memoryview:
    try:
        return memoryview(decompress(compression, columns, size_bytes=size))
    except CodecError as error:
        raise BlockCorruptError(f"{error.field}: {error.reason}") from None
