"""Event blocks as Arrow record batches.

A large block becomes a batch as it is: its columns are the buffers of the batch. Small ones are put together, for
a batch of a few rows costs more than copying them. Needs pyarrow (`pip install millrace[arrow]`).

    value         binary
    key           string    null where an event has none
    timestamp     timestamp[us, UTC]    null where its block has none
    segment       int64
    offset        int64     of the block
    index         int32     of the event in its block
    headers       map<string, binary>   empty where an event has none
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from millrace.model.event_block import header_type

from .block_stream import PlacedBlock

if TYPE_CHECKING:
    import pyarrow as pa

LARGE_BLOCK_ROWS_MIN: Final = 4096
"""A block from this many events on becomes a batch by itself."""
BATCH_ROWS_MAX: Final = 65536
"""Small blocks are put together up to about this many events."""


@cache
def event_schema() -> "pa.Schema":
    """Return the schema of every batch."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("key", pa.string()),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
            pa.field("segment", pa.int64(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("index", pa.int32(), nullable=False),
            pa.field("headers", header_type(), nullable=False),
        ]
    )


def batch_of(placed: PlacedBlock) -> "pa.RecordBatch":
    """Return the events of one block, without copying them.

    Raises:
        BlockCorruptError: a key that is not UTF-8.
    """
    import pyarrow as pa

    count = placed.end - placed.start
    *columns, headers = placed.block.to_arrow(start=placed.start, end=placed.end)
    columns += [
        _column(pa.int64(), np.full(count, placed.segment_id, dtype=np.int64)),
        _column(pa.int64(), np.full(count, placed.offset, dtype=np.int64)),
        _column(pa.int32(), np.arange(placed.start, placed.end, dtype=np.int32)),
        headers,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=event_schema())


def batch_of_many(blocks: Sequence[PlacedBlock]) -> "pa.RecordBatch":
    """Return the events of several blocks as one batch.

    Raises:
        BlockCorruptError: a key that is not UTF-8.
    """
    import pyarrow as pa

    if len(blocks) == 1:
        return batch_of(blocks[0])
    return pa.concat_batches([batch_of(placed) for placed in blocks])


def _column(kind: "pa.DataType", values: "np.ndarray[Any, Any]") -> "pa.Array":
    """Wrap numbers without a copy. `pa.array` would do too, but imports pandas first, which takes 0.3 s."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
