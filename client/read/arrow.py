"""Event blocks as Arrow record batches.

A large block becomes a batch as it is: its columns are the buffers of the batch. Small blocks are joined, because a
batch of a few rows costs more than copying them. Needs pyarrow, of the extra `arrow`, so this module is imported only
where batches are used.

    value         binary
    key           string    null if the event has none
    timestamp     timestamp[us, UTC]    null if its block has none
    segment       int64
    offset        int64     of the block
    index         int32     of the event in its block
    headers       map<string, binary>   empty if the event has none
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.model.errors import BlockCorruptError
from millrace.model.event_block import EventBlock, HeaderColumns
from millrace.model.extras import needs

from .block_stream import PlacedBlock

with needs("arrow"):
    import pyarrow as pa
    import pyarrow.compute as pc

LARGE_BLOCK_ROWS_MIN: Final = 4096
"""A block with at least this many events becomes a batch of its own."""
BATCH_ROWS_MAX: Final = 65536
"""Small blocks are joined up to about this many events."""

TIME_TYPE: Final = pa.timestamp("us", tz="UTC")
HEADER_TYPE: Final = pa.map_(pa.string(), pa.binary())
ENTRY_TYPE: Final = pa.struct([HEADER_TYPE.key_field, HEADER_TYPE.item_field])

EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("timestamp", TIME_TYPE),
        pa.field("segment", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("headers", HEADER_TYPE, nullable=False),
    ]
)
"""Of every batch."""
STREAM_FIELD: Final = pa.field("stream", pa.string(), nullable=False)
"""The last column of batches of several streams."""


def batch_of_many(blocks: Sequence[PlacedBlock], *, key: str | None = None) -> pa.RecordBatch:
    """Return the events of several blocks as one batch: all of them, or those of one key.

    Raises:
        BlockCorruptError: a key, or the name of a header, is not UTF-8.
    """
    batches = [batch_of(placed) for placed in blocks]
    if key is not None:
        batches = [batch.filter(pc.field("key") == key) for batch in batches]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def with_stream(batch: pa.RecordBatch, stream: str) -> pa.RecordBatch:
    """Return a batch with a last column `stream`, the same for all events."""
    return batch.append_column(STREAM_FIELD, pa.repeat(stream, batch.num_rows))


def batch_of(placed: PlacedBlock) -> pa.RecordBatch:
    """Return the events of one block, without copying them. Raises like `batch_of_many`."""
    block, start, count = placed.block, placed.start, placed.end - placed.start
    try:
        of_block = _values(block), _keys(block), _timestamps(block), _headers(block)
    except BlockCorruptError as error:
        raise placed.corrupt(error) from None
    if count < block.fields.event_count:
        of_block = tuple(array.slice(start, count) for array in of_block)
    values, keys, timestamps, headers = of_block
    columns = [
        values,
        keys,
        timestamps,
        _column(pa.int64(), np.full(count, placed.segment_id, dtype=np.int64)),
        _column(pa.int64(), np.full(count, placed.offset, dtype=np.int64)),
        _column(pa.int32(), np.arange(start, placed.end, dtype=np.int32)),
        headers,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _values(block: EventBlock) -> pa.Array:
    return _variable(pa.binary(), block.value_offsets, block.value_data)


def _keys(block: EventBlock) -> pa.Array:
    if block.key_offsets is None or block.key_data is None:
        return pa.nulls(block.fields.event_count, pa.string())
    return _text(block.key_offsets, block.key_data, block.key_validity)


def _timestamps(block: EventBlock) -> pa.Array:
    if block.timestamps is None:
        return pa.nulls(block.fields.event_count, TIME_TYPE)
    return _column(TIME_TYPE, block.timestamps)


def _headers(block: EventBlock) -> pa.Array:
    if block.header_columns is None:
        # Most blocks have none: take a part of an array that is made once for many sizes.
        count = block.fields.event_count
        return _no_headers(1 << count.bit_length()).slice(0, count)
    return _maps(block.header_columns)


@cache
def _no_headers(count: int) -> pa.Array:
    none = np.zeros(count + 1, dtype=np.int32)
    return _maps(HeaderColumns(none, none[:1], memoryview(b""), none[:1], memoryview(b"")))


def _maps(columns: HeaderColumns) -> pa.Array:
    names = _text(columns.name_offsets, columns.name_data)
    values = _variable(pa.binary(), columns.value_offsets, columns.value_data)
    entries = pa.Array.from_buffers(ENTRY_TYPE, len(names), [None], children=[names, values])
    count = len(columns.offsets) - 1
    return pa.Array.from_buffers(HEADER_TYPE, count, [None, pa.py_buffer(columns.offsets)], children=[entries])


def _text(offsets: npt.NDArray[np.int32], data: memoryview, validity: memoryview | None = None) -> pa.Array:
    """Return a column of text. Arrow trusts text to be UTF-8; a stranger's block is not trusted."""
    array = _variable(pa.string(), offsets, data, validity)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BlockCorruptError(f"a text is not UTF-8: {error}") from None
    return array


def _variable(
    kind: pa.DataType, offsets: npt.NDArray[np.int32], data: memoryview, validity: memoryview | None = None
) -> pa.Array:
    valid = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, len(offsets) - 1, [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def _column(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    """Wrap numbers without a copy. `pa.array` would do too, but imports pandas first, which takes 0.3 s."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
