"""Arrow batches as events to be written: the way back of `millrace.client.read.arrow`.

    value         binary
    key           string    optional; null where an event has none
    timestamp     timestamp with a time zone    optional; null is the clock of this machine
    headers       map<string, binary>    optional; null or empty where an event has none

The large and view types of Arrow are taken, too, and a key may be dictionary encoded. A column of type null is taken as
one of nulls. The places that a reader adds
(`segment`, `offset`, `index`, `stream`) are left out, so that a batch that was read can be written back.

All is checked here, column by column, before an event is taken. Columns are copied as columns: no event becomes an
object. Needs pyarrow, so this module is imported where batches are written.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from millrace.client.errors import ColumnInvalidError
from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES
from millrace.model.block_packing import EventColumns
from millrace.model.errors import EventTooLargeError
from millrace.model.event_block import HeaderColumns
from millrace.model.extras import needs
from millrace.model.limits import (
    EVENT_SIZE_BYTES_MAX,
    HEADERS_COUNT_MAX,
    HEADERS_SIZE_BYTES_MAX,
    ROUTING_KEY_SIZE_BYTES_MAX,
)

from .routing import Router

with needs("arrow"):
    import pyarrow as pa

TIME_TYPE: Final = pa.timestamp("us", tz="UTC")
HEADER_TYPE: Final = pa.map_(pa.string(), pa.binary())

_PLACES: Final = frozenset({"segment", "offset", "index", "stream"})
"""Columns of a reader that say where an event was, and nothing of where it goes."""
_ROW_COST_BYTES: Final = 24
"""Of an event beside its bytes: its offsets, its timestamp and a bit."""
_ENTRY_COST_BYTES: Final = 8
"""Of a header beside its bytes."""
_BLOCK_COST_BYTES: Final = BLOCK_HEADER_SIZE_BYTES + 128
"""Of a block, with what pads its columns."""


class ArrowEvents(NamedTuple):
    """Events of a batch, checked.

    Attributes:
        columns: `value`, and `key`, `timestamp` and `headers` as far as they were given; each of its one type.
        costs: the bytes of each event in a block, rounded up.
    """

    columns: pa.RecordBatch
    costs: "npt.NDArray[np.int64]"
    now_us: int

    @property
    def size_bytes(self) -> int:
        """Of all events in blocks, rounded up."""
        return int(self.costs.sum())

    def pieces(self, router: Router, *, unkeyed: int, block_size_bytes: int) -> Iterator[tuple[int, EventColumns]]:
        """Yield the events in the order of the batch, segment by segment: what is one block, with the segment's number.

        Args:
            unkeyed: number of the segment of events without a key.
        """
        numbers = self._numbers(router, unkeyed)
        found = np.unique(numbers).tolist()
        for number in found:
            columns, costs = self.columns, self.costs
            if len(found) > 1:
                rows = np.flatnonzero(numbers == number)
                columns, costs = columns.take(_int64_array(rows)), costs[rows]
            for start, end in _slices(costs, block_size_bytes):
                yield number, _event_columns(columns.slice(start, end - start), now_us=self.now_us)

    def _numbers(self, router: Router, unkeyed: int) -> "npt.NDArray[np.intp]":
        """Return the number of the segment of each event. Each key is hashed once."""
        if "key" not in self.columns.schema.names or len(router) == 1:
            return np.full(self.columns.num_rows, unkeyed, dtype=np.intp)
        keys = self.columns.column("key").dictionary_encode()
        texts = keys.dictionary.cast(pa.binary()).to_pylist()
        places = np.fromiter(map(xxh3_64_intdigest, texts), dtype=np.uint64, count=len(texts))
        # The last one is that of events without a key.
        of_text = np.append(router.numbers_at(places), unkeyed)
        return np.asarray(of_text[np.where(_is_valid(keys), _numbers_of(keys.indices, np.int32), len(texts))])


def events_of(
    data: "pa.RecordBatch | pa.Table", *, now_us: int, append_size_max: int, size_bytes_max: int
) -> ArrowEvents:
    """Return the events of a batch or a table.

    Args:
        now_us: timestamp of the events that have none.
        append_size_max: of the server.
        size_bytes_max: of all events.

    Raises:
        TypeError: neither a batch nor a table.
        ColumnInvalidError: a column is missing, unknown, given twice, of another type, or has nulls where none may be.
        EventTooLargeError: an event is above the limits, see `Writer.write`, or all are above theirs.
    """
    if not isinstance(data, pa.RecordBatch | pa.Table):
        raise TypeError(f"events are a pyarrow RecordBatch or Table, not {type(data).__name__}")
    names = data.schema.names
    for name in names:
        if name not in _TYPES and name not in _PLACES:
            known = repr(name.lower()) if name.lower() in _TYPES else ", ".join(_TYPES)
            raise ColumnInvalidError(name, f"is not a column of events, but {known}")
        if names.count(name) > 1:
            raise ColumnInvalidError(name, "is there twice")
    if "value" not in names:
        raise ColumnInvalidError("value", "is missing")
    given = [name for name in _TYPES if name in names]
    for name in given:
        kind, is_taken = _TYPES[name]
        column_type = data.schema.field(name).type
        if not (is_taken(column_type) or pa.types.is_null(column_type)):
            raise ColumnInvalidError(name, f"is {column_type}, and must be {kind}")
    if not data.num_rows:
        return ArrowEvents(pa.RecordBatch.from_arrays([], names=[]), np.zeros(0, dtype=np.int64), now_us)
    _check_total(sum(data.column(name).nbytes for name in given), size_bytes_max)  # before any of it is copied
    columns = {name: _checked(name, data.column(name)) for name in given}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    events = ArrowEvents(batch, _costs(columns, append_size_max), now_us)
    _check_total(events.size_bytes, size_bytes_max)
    return events


def _check_total(size_bytes: int, size_bytes_max: int) -> None:
    if size_bytes > size_bytes_max:
        raise EventTooLargeError(
            f"a batch of {size_bytes} bytes, and the buffer of the writer holds {size_bytes_max}: write slices of it"
        )


def _checked(name: str, column: Any) -> Any:
    """Return a column as what it is in a block; null headers as empty ones."""
    kind, _ = _TYPES[name]
    if pa.types.is_null(column.type):  # what Python objects become that are all None
        column = pa.nulls(len(column), kind)
    try:
        column.validate(full=True)
        column = column.cast(kind)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
    except pa.ArrowInvalid as error:
        raise ColumnInvalidError(name, f"is not valid as {kind}: {error}") from None
    if name == "value" and column.null_count:
        raise ColumnInvalidError(name, f"has {column.null_count} nulls: an event is bytes, which may be empty")
    return _checked_headers(column) if name == "headers" else column


def _checked_headers(column: Any) -> Any:
    offsets = _offsets_of(column, column.buffers()[1])
    first, last = offsets.item(0), offsets.item(-1)
    names, values = column.keys.slice(first, last - first), column.items.slice(first, last - first)
    counts = np.diff(offsets)
    if column.null_count:
        is_valid = _is_valid(column)
        kept = pa.py_buffer(np.packbits(np.repeat(is_valid, counts), bitorder="little"))
        mask = pa.Array.from_buffers(pa.bool_(), len(names), [None, kept])
        names, values = names.filter(mask), values.filter(mask)
        counts = np.where(is_valid, counts, 0)
    if values.null_count:
        raise ColumnInvalidError("headers", f"has {values.null_count} null values: a header is bytes")
    events = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    encoded = names.dictionary_encode()
    pairs = events * max(len(encoded.dictionary), 1) + _numbers_of(encoded.indices, np.int32)
    if len(np.unique(pairs)) < len(pairs):
        raise ColumnInvalidError("headers", "has a name twice in one event")
    new_offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=new_offsets[1:])
    entries = pa.StructArray.from_arrays([names, values], fields=[HEADER_TYPE.key_field, HEADER_TYPE.item_field])
    return pa.Array.from_buffers(HEADER_TYPE, len(counts), [None, pa.py_buffer(new_offsets)], children=[entries])


def _costs(columns: dict[str, Any], append_size_max: int) -> "npt.NDArray[np.int64]":
    """Return the bytes of each event in a block, and check that each fits."""
    lengths = _lengths(columns["value"])
    costs = lengths + _ROW_COST_BYTES
    _check_limit("an event", lengths, EVENT_SIZE_BYTES_MAX, "bytes")
    if "key" in columns:
        lengths = _lengths(columns["key"])
        _check_limit("a routing key", lengths, ROUTING_KEY_SIZE_BYTES_MAX, "bytes in UTF-8")
        costs += lengths
    if "headers" in columns:
        headers = columns["headers"]
        offsets = _offsets_of(headers, headers.buffers()[1]).astype(np.int64)
        counts = np.diff(offsets)
        _check_limit("an event", counts, HEADERS_COUNT_MAX, "headers")
        sizes = np.append(0, np.cumsum(_lengths(headers.keys) + _lengths(headers.items)))
        lengths = sizes[offsets[1:]] - sizes[offsets[:-1]]
        _check_limit("the headers of an event", lengths, HEADERS_SIZE_BYTES_MAX, "bytes")
        costs += lengths + counts * _ENTRY_COST_BYTES
    _check_limit("an append of this server", costs + _BLOCK_COST_BYTES, append_size_max, "bytes, and one event needs")
    return costs


def _check_limit(what: str, numbers: "npt.NDArray[np.int64]", limit: int, unit: str) -> None:
    largest = int(numbers.max())
    if largest > limit:
        row = int(numbers.argmax())
        raise EventTooLargeError(f"{what} holds at most {limit} {unit}, not {largest} (row {row})")


def _slices(costs: "npt.NDArray[np.int64]", size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of each block: as many as fit the size, and at least one."""
    ends = np.cumsum(costs)
    start, taken = 0, 0
    while start < len(costs):
        end = max(int(np.searchsorted(ends, taken + size_bytes, side="right")), start + 1)
        yield start, end
        start, taken = end, int(ends[end - 1])


def _event_columns(columns: pa.RecordBatch, *, now_us: int) -> EventColumns:
    value_offsets, value_data = _variable(columns.column("value"))
    key_offsets, key_data, has_key = None, memoryview(b""), None
    header_columns = None
    timestamps: npt.NDArray[np.int64] = np.full(columns.num_rows, now_us, dtype=np.int64)
    names = columns.schema.names
    if "key" in names and (keys := columns.column("key")).null_count < len(keys):
        if keys.null_count:
            has_key = _is_valid(keys)
            keys = keys.fill_null("")
        key_offsets, key_data = _variable(keys)
    if "timestamp" in names:
        times = columns.column("timestamp")
        given = _numbers_of(times, np.int64)
        timestamps = np.where(_is_valid(times), given, timestamps) if times.null_count else given
    if "headers" in names:
        header_columns = _header_columns(columns.column("headers"))
    return EventColumns(value_offsets, value_data, key_offsets, key_data, has_key, timestamps, header_columns)


def _header_columns(headers: Any) -> HeaderColumns | None:
    offsets = _offsets_of(headers, headers.buffers()[1])
    first, last = offsets.item(0), offsets.item(-1)
    if first == last:
        return None
    names = _variable(headers.keys.slice(first, last - first))
    values = _variable(headers.items.slice(first, last - first))
    return HeaderColumns(offsets - offsets[0], *names, *values)


def _variable(array: Any) -> "tuple[npt.NDArray[np.int32], memoryview]":
    """Return the offsets, from 0, and the bytes of an array of text or bytes without nulls."""
    _, buffer, data = array.buffers()
    offsets = _offsets_of(array, buffer)
    first, last = offsets.item(0), offsets.item(-1)
    return offsets - offsets[0], memoryview(b"" if data is None else data)[first:last]


def _lengths(array: Any) -> "npt.NDArray[np.int64]":
    """Return the bytes of each text; 0 for null."""
    lengths = np.diff(_offsets_of(array, array.buffers()[1])).astype(np.int64)
    return np.where(_is_valid(array), lengths, 0) if array.null_count else lengths


def _offsets_of(array: Any, buffer: Any) -> "npt.NDArray[np.int32]":
    return np.frombuffer(buffer, dtype=np.int32, count=len(array) + 1, offset=4 * array.offset)


def _numbers_of(array: Any, kind: Any) -> "npt.NDArray[Any]":
    """Return the numbers of an array; anything where it is null."""
    size = np.dtype(kind).itemsize
    return np.frombuffer(array.buffers()[1], dtype=kind, count=len(array), offset=size * array.offset)


def _is_valid(array: Any) -> "npt.NDArray[np.bool_]":
    bits = array.is_valid().cast(pa.int8())
    return np.asarray(_numbers_of(bits, np.int8), dtype=np.bool_)


def _int64_array(numbers: "npt.NDArray[np.int64]") -> Any:
    """Wrap numbers without a copy. `pa.array` would do too, but imports pandas first, which takes 0.3 s."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_headers(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) and _is_text(kind.key_type) and _is_binary(kind.item_type))


_TYPES: Final = {
    "value": (pa.binary(), _is_binary),
    "key": (pa.string(), _is_text),
    "timestamp": (TIME_TYPE, _is_time),
    "headers": (HEADER_TYPE, _is_headers),
}
"""What each column becomes, and whether a type can become that."""
