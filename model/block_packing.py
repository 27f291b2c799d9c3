"""Packing events into blocks: values are joined in one pass, offsets are computed with numpy."""

import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .block_layout import (
    BLOCK_HEADER_SIZE_BYTES,
    BLOCK_MAGIC,
    BLOCK_VERSION,
    FLAG_COMPRESSED,
    FLAG_HEADERS,
    FLAG_KEYS,
    FLAG_MISSING_KEYS,
    FLAG_TIMESTAMPS,
)
from .block_scan import HEADER_STRUCT
from .checksum import Buffer
from .compression import Compression, compress
from .errors import EventTooLargeError, InvalidArgumentError
from .event_block import HeaderColumns, block_checksum, columns_size_of, padded
from .limits import (
    APPEND_SIZE_BYTES_MAX,
    EVENT_SIZE_BYTES_MAX,
    HEADERS_COUNT_MAX,
    HEADERS_SIZE_BYTES_MAX,
    ROUTING_KEY_SIZE_BYTES_MAX,
)

_CHECKSUM: Final = struct.Struct("<I")
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1

Keys = str | Sequence[str | None] | None
Timestamps = int | Sequence[int] | npt.NDArray[np.integer[Any]] | None
Headers = Mapping[str, bytes]
NO_HEADERS: Final[Mapping[int, Headers]] = {}


class EventColumns(NamedTuple):
    """Checked events as columns: the input of `pack_columns`.

    Attributes:
        value_offsets: one more than there are events, from 0; `key_offsets` too.
        key_offsets, key_data: None if no event has a key.
        has_key: of each event; None if all have one, or none has.
        timestamps: Unix microseconds.
        header_columns: None if no event has headers.
    """

    value_offsets: npt.NDArray[np.int32]
    value_data: Buffer
    key_offsets: npt.NDArray[np.int32] | None
    key_data: Buffer
    has_key: npt.NDArray[np.bool_] | None
    timestamps: npt.NDArray[np.int64]
    header_columns: HeaderColumns | None

    @property
    def event_count(self) -> int:
        """The number of events."""
        return len(self.timestamps)


def pack_block(
    values: Sequence[bytes],
    *,
    keys: Keys = None,
    timestamps_us: Timestamps = None,
    headers: Mapping[int, Headers] = NO_HEADERS,
    first_event_number: int = 0,
    compression: Compression = Compression.NONE,
    size_bytes_max: int = APPEND_SIZE_BYTES_MAX,
) -> bytearray:
    """Return the block of these events.

    Args:
        values: bytes, or other buffers with items of one byte.
        keys: one key for all events, or one (or None) for each.
        timestamps_us: one timestamp for all events, or one for each.
        headers: of the events that have some, by index; checked (see `checked_headers`).
        size_bytes_max: of the block, compressed.

    Raises:
        EventTooLargeError: an event above 8 MiB, a key above 64 KiB, or more than one append can hold.
        InvalidArgumentError: no events, or another number of keys or timestamps.
        TypeError: a value that is not bytes, a key that is not text.
    """
    count = len(values)
    if count == 0:
        raise InvalidArgumentError("a block must have at least one event")
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
    header_columns = _header_columns(headers, count) if headers else []
    return _assembled(
        columns,
        header_columns,
        flags=flags,
        count=count,
        value_size=value_size,
        key_size=key_size,
        timestamps_us=(timestamp_us_min, timestamp_us_max),
        first_event_number=first_event_number,
        compression=compression,
        size_bytes_max=size_bytes_max,
    )


def pack_columns(
    events: EventColumns,
    *,
    first_event_number: int = 0,
    compression: Compression = Compression.NONE,
    size_bytes_max: int = APPEND_SIZE_BYTES_MAX,
) -> bytearray:
    """Return the block of events that are columns already, without accessing one of them. See `pack_block`.

    Raises:
        EventTooLargeError: more than one append can hold.
    """
    flags = FLAG_TIMESTAMPS
    columns: list[Any] = [*_column(events.value_offsets.data), *_column(events.value_data)]
    key_size = 0
    if events.key_offsets is not None:
        flags |= FLAG_KEYS
        key_size = len(events.key_data)
        if events.has_key is not None:
            flags |= FLAG_MISSING_KEYS
            columns += _column(np.packbits(events.has_key, bitorder="little").data)
        columns += [*_column(events.key_offsets.data), *_column(events.key_data)]
    columns.append(events.timestamps.data.cast("B"))
    header_columns = [
        piece
        for column in events.header_columns or ()
        for piece in _column(column if isinstance(column, memoryview) else column.data)
    ]
    return _assembled(
        columns,
        header_columns,
        flags=flags,
        count=events.event_count,
        value_size=len(events.value_data),
        key_size=key_size,
        timestamps_us=(int(events.timestamps.min()), int(events.timestamps.max())),
        first_event_number=first_event_number,
        compression=compression,
        size_bytes_max=size_bytes_max,
    )


def _column(data: Buffer) -> tuple[memoryview, bytes]:
    """Return the bytes of a column, and its padding."""
    view = memoryview(data).cast("B")
    return view, b"\0" * (-len(view) % 8)


def _assembled(
    columns: list[Any],
    header_columns: "Sequence[bytes | memoryview]",
    *,
    flags: int,
    count: int,
    value_size: int,
    key_size: int,
    timestamps_us: tuple[int, int],
    first_event_number: int,
    compression: Compression,
    size_bytes_max: int,
) -> bytearray:
    """Return the block of padded columns; those of headers, if any, come last."""
    columns_size = columns_size_of(flags, count, value_size=value_size, key_size=key_size)
    if header_columns:
        columns += header_columns
        columns_size += sum(map(len, header_columns))
        flags |= FLAG_HEADERS
    limit_bytes = size_bytes_max if compression is Compression.NONE else APPEND_SIZE_BYTES_MAX
    _check_block_size(BLOCK_HEADER_SIZE_BYTES + columns_size, count, limit_bytes=limit_bytes)
    # One join for everything: each value is copied once.
    block = bytearray().join([bytes(BLOCK_HEADER_SIZE_BYTES), *columns])
    if len(block) != BLOCK_HEADER_SIZE_BYTES + columns_size:
        raise TypeError("values must be bytes, or like bytes with items of one byte")
    if compression is not Compression.NONE:
        packed = compress(compression, memoryview(block)[BLOCK_HEADER_SIZE_BYTES:])
        if len(packed) + 7 < columns_size:  # otherwise store it uncompressed: compression would gain nothing
            flags |= FLAG_COMPRESSED
            block = bytearray().join([block[:BLOCK_HEADER_SIZE_BYTES], packed, b"\0" * (-len(packed) % 8)])
    _check_block_size(len(block), count, limit_bytes=size_bytes_max)
    HEADER_STRUCT.pack_into(
        block, 0, BLOCK_MAGIC, BLOCK_VERSION, flags, compression if flags & FLAG_COMPRESSED else Compression.NONE,
        0, len(block), count, first_event_number, *timestamps_us, value_size, key_size,
        columns_size, 0,
    )  # fmt: skip
    _CHECKSUM.pack_into(block, BLOCK_HEADER_SIZE_BYTES - _CHECKSUM.size, block_checksum(memoryview(block)))
    return block


def size_of_single(value_size: int, *, key_size: int | None, headers: Headers | None = None) -> int:
    """Return the uncompressed size of the block of one event with a timestamp; `key_size` is None without a key."""
    flags = FLAG_TIMESTAMPS | (0 if key_size is None else FLAG_KEYS)
    columns_size = columns_size_of(flags, 1, value_size=value_size, key_size=key_size or 0)
    return BLOCK_HEADER_SIZE_BYTES + columns_size + (sum(map(len, _header_columns({0: headers}, 1))) if headers else 0)


def checked_headers(headers: Headers) -> tuple[dict[str, bytes], int]:
    """Return a copy of the headers of one event, and the size of their names and values.

    Raises:
        EventTooLargeError: more than 64 entries, or 64 KiB of names in UTF-8 and values.
        InvalidArgumentError: a name that UTF-8 cannot encode (lone surrogates).
        TypeError: names that are not text, values that are not bytes.
    """
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are a mapping of text to bytes, not {type(headers).__name__}")
    if len(headers) > HEADERS_COUNT_MAX:
        raise EventTooLargeError(f"an event has at most {HEADERS_COUNT_MAX} headers, not {len(headers)}")
    copy: dict[str, bytes] = {}
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"headers map text to bytes, not {type(name).__name__} to {type(value).__name__}")
        copy[name] = bytes(value)
        try:
            size += len(name.encode()) + len(copy[name])
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"the name of a header must fit UTF-8: {error}") from None
    if size > HEADERS_SIZE_BYTES_MAX:
        raise EventTooLargeError(f"the headers of an event hold at most {HEADERS_SIZE_BYTES_MAX} bytes, not {size}")
    return copy, size


def _check_block_size(size: int, event_count: int, *, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise EventTooLargeError(f"{event_count} events need {size} bytes, but one append holds {limit_bytes}")


def _offsets(lengths: npt.NDArray[np.int64]) -> bytes:
    """Return the column of offsets, padded."""
    count = len(lengths)
    offsets = np.zeros(padded(4 * (count + 1)) // 4, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1 : count + 1])
    return offsets.tobytes()


def _key_columns(keys: str | Sequence[str | None], count: int) -> tuple[list[bytes], int, bool]:
    """Return the columns of the keys, their total size, and whether some are missing."""
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


def _header_columns(headers: Mapping[int, Headers], count: int) -> list[bytes]:
    """Return the padded columns of headers: the entries of each event, their names, their values."""
    counts = np.zeros(count, dtype=np.int64)
    for index, entries in headers.items():
        counts[index] = len(entries)
    ordered = [headers[index] for index in sorted(headers)]
    names = [name.encode() for name in chain.from_iterable(ordered)]
    values = list(chain.from_iterable(entries.values() for entries in ordered))
    columns = [_offsets(counts)]
    for items in (names, values):
        data = b"".join(items)
        columns += [
            _offsets(np.fromiter(map(len, items), dtype=np.int64, count=len(items))),
            data + b"\0" * (-len(data) % 8),
        ]
    return columns
