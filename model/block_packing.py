"""Packing events into blocks: values are joined in one pass, offsets are computed with numpy."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .block_layout import (
    BLOCK_HEADER_SIZE_BYTES,
    BLOCK_MAGIC,
    BLOCK_VERSION,
    COMPRESSION_NONE,
    FLAG_COMPRESSED,
    FLAG_KEYS,
    FLAG_MISSING_KEYS,
    FLAG_TIMESTAMPS,
)
from .block_scan import HEADER_STRUCT
from .compression import Compression, compress
from .errors import EventTooLargeError, InvalidArgumentError
from .event_block import block_checksum, columns_size_of, padded
from .limits import APPEND_SIZE_BYTES_MAX, EVENT_SIZE_BYTES_MAX, ROUTING_KEY_SIZE_BYTES_MAX

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1

Keys = str | Sequence[str | None] | None
Timestamps = int | Sequence[int] | npt.NDArray[np.int64] | None


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
    columns_size = columns_size_of(flags, count, value_size=value_size, key_size=key_size)
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
    HEADER_STRUCT.pack_into(
        block, 0, BLOCK_MAGIC, BLOCK_VERSION, flags, int(compression) if flags & FLAG_COMPRESSED else COMPRESSION_NONE,
        0, len(block), count, first_event_number, timestamp_us_min, timestamp_us_max, value_size, key_size,
        columns_size, 0,
    )  # fmt: skip
    block[BLOCK_HEADER_SIZE_BYTES - 4 : BLOCK_HEADER_SIZE_BYTES] = block_checksum(memoryview(block)).to_bytes(
        4, "little"
    )
    return block


def size_of_single(value_size: int, *, key_size: int | None) -> int:
    """Return the size of the block of one event with a timestamp, not compressed; `key_size` is None without a key."""
    flags = FLAG_TIMESTAMPS | (0 if key_size is None else FLAG_KEYS)
    return BLOCK_HEADER_SIZE_BYTES + columns_size_of(flags, 1, value_size=value_size, key_size=key_size or 0)


def _check_block_size(size: int, event_count: int, *, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise EventTooLargeError(f"{event_count} events need {size} bytes, one append holds {limit_bytes}")


def _offsets(lengths: npt.NDArray[np.int64]) -> bytes:
    """Return the column of offsets, padded."""
    count = len(lengths)
    offsets = np.zeros(padded(4 * (count + 1)) // 4, dtype=np.int32)
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
