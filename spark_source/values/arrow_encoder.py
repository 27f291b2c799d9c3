"""Rows as Arrow IPC streams, many rows each: what `arrow_decoder` reads back as the same rows.

An event is stored under one key in one stream, so all rows of a value have these in common. Each value carries its
schema, of a few hundred bytes, so that it can be read by itself: `pyarrow.ipc.open_stream(event.value)`.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.client.values.arrays import numbers

from .arrow_decoder import EVENT_ROWS_COUNT_MAX

EVENT_SIZE_BYTES: Final = 1 << 20
"""About the most of one value: far below the largest event, for rows differ."""


def encode_arrow(rows: pa.RecordBatch) -> pa.Buffer:
    """Return an Arrow IPC stream of these rows."""
    output = pa.BufferOutputStream()
    with pa.ipc.new_stream(output, rows.schema) as writer:
        writer.write_batch(rows)
    return output.getvalue()


def events_of_rows(rows: pa.RecordBatch, group_by: list[Any]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each event with the number of its first one; rows of a group keep their order.

    Args:
        group_by: columns of text, of which the rows of an event all have the same.
    """
    for group in _groups(group_by, len(rows)):
        taken = rows if len(group) == len(rows) else rows.take(numbers(pa.int64(), group))
        count = max(1, min(EVENT_ROWS_COUNT_MAX, EVENT_SIZE_BYTES * len(taken) // max(taken.nbytes, 1)))
        for start in range(0, len(taken), count):
            yield int(group[start]), taken.slice(start, count)


def _groups(group_by: list[Any], count: int) -> list[npt.NDArray[np.int64]]:
    """Return the numbers of the rows of each group, the groups in the order of their first rows."""
    codes = np.zeros(count, dtype=np.int64)
    for column in group_by:
        encoded = column.cast(pa.binary()).dictionary_encode()
        # Null is one more value.
        indices = np.asarray(encoded.indices.fill_null(len(encoded.dictionary)), dtype=np.int64)
        codes = np.unique(codes * (len(encoded.dictionary) + 1) + indices, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    borders = np.flatnonzero(np.diff(codes[order])) + 1
    return sorted(np.split(order, borders), key=lambda group: int(group[0])) if count else []
