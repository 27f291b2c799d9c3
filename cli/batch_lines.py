"""Record batches of events as lines of bytes, for `millrace read` and `tail`.

Plain lines are made by Arrow, a batch at a time: no event becomes an object of Python. Needs pyarrow, which takes a
moment to load, so this module is imported where events are printed.
"""

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.event import Event
from millrace.model.event_json import event_json

from .key_text import escape_keys

STREAM: Final = "stream"
"""The column that a reader of several streams adds."""


def plain_lines(batch: pa.RecordBatch, *, with_keys: bool, with_names: bool) -> memoryview | bytes:
    """Return the values, a line each; before a value, where they are asked for, its stream and its key, and tabs."""
    columns: list[Any] = []
    if with_names and STREAM in batch.schema.names:
        columns.append(batch.column(STREAM).cast(pa.binary()))
    if with_keys:
        columns.append(pc.fill_null(escape_keys(batch.column("key")), "").cast(pa.binary()))
    columns.append(batch.column("value"))
    joined = pc.binary_join_element_wise(*columns, b"\t") if len(columns) > 1 else columns[0]
    # Joined with nothing by the end of a line, each value ends with one.
    lines = pc.binary_join_element_wise(joined, b"", b"\n")
    _, offsets, data = lines.buffers()
    if data is None:
        return b""
    borders = np.frombuffer(offsets, dtype=np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(data)[borders[0] : borders[-1]]


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Return the events as JSON, an object a line; with the stream, where the batch names it."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    names = columns.pop(STREAM).to_pylist() if STREAM in columns else None
    lines: list[str] = []
    for number, fields in enumerate(zip(*(column.to_pylist() for column in columns.values()), strict=True)):
        value, key, timestamp_us, segment, offset, index, headers = fields
        content = event_json(Event(value, key, timestamp_us, segment, offset, index, dict(headers)))
        if names is not None:
            content[STREAM] = names[number]
        lines.append(json.dumps(content, separators=(",", ":"), ensure_ascii=False) + "\n")
    return "".join(lines).encode()
