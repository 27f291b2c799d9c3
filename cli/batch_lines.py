"""Record batches of events as lines of bytes, for `millrace read` and `tail`.

Arrow makes the lines, a batch at a time, without a Python object for each event. Exceptions are JSON of events with
headers, and batches in which a value is not UTF-8. Needs pyarrow, which takes a moment to load, so this module is
imported only where events are printed.
"""

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.event_json import headers_json, value_json

from .key_text import escape_keys

STREAM: Final = "stream"
"""The column that a reader of several streams adds."""


def plain_lines(batch: pa.RecordBatch, *, with_keys: bool, with_names: bool) -> memoryview | bytes:
    """Return the values, a line each; optionally preceded by the stream and the key, with tabs."""
    columns: list[Any] = []
    if with_names and STREAM in batch.schema.names:
        columns.append(batch.column(STREAM).cast(pa.binary()))
    if with_keys:
        columns.append(pc.fill_null(escape_keys(batch.column("key")), "").cast(pa.binary()))
    columns.append(batch.column("value"))
    joined = pc.binary_join_element_wise(*columns, b"\t") if len(columns) > 1 else columns[0]
    # Joined with an empty string and a line feed, each value ends with a line feed.
    return _content(pc.binary_join_element_wise(joined, b"", b"\n"))


def json_lines(batch: pa.RecordBatch) -> bytes | memoryview:
    """Return the events as JSON, an object a line, in the form of `event_json`; with the stream if known."""
    times = batch.column("timestamp").cast(pa.int64())
    pieces = ["{", _values(batch.column("value")), ',"key":', pc.fill_null(_quoted(batch.column("key")), "null")]
    pieces += [',"timestamp_us":', pc.fill_null(times.cast(pa.string()), "null")]
    for name in ("segment", "offset", "index"):
        pieces += [f',"{name}":', batch.column(name).cast(pa.string())]
    pieces += [',"headers":', _headers(batch.column("headers"))]
    if STREAM in batch.schema.names:
        pieces += [',"stream":', _quoted(batch.column(STREAM))]
    return _content(pc.binary_join_element_wise(*pieces, "}\n", ""))


def _values(values: pa.BinaryArray) -> pa.StringArray:
    """Return the object member with the value, for each event."""
    try:
        return pc.binary_join_element_wise('"value":', _quoted(values.cast(pa.string())), "")
    except pa.ArrowInvalid:  # some values are not UTF-8
        return pa.array([_dumped(value_json(value))[1:-1] for value in values.to_pylist()], pa.string())


def _headers(headers: pa.MapArray) -> "pa.StringArray | str":
    if not len(headers.items):
        return "{}"
    return pa.array([_dumped(headers_json(dict(of_event))) for of_event in headers.to_pylist()], pa.string())


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    """Return texts as JSON strings; nulls stay null."""
    data = np.frombuffer(_content(texts), np.uint8)
    for code in [ord("\\"), ord('"'), *np.unique(data[data < ord(" ")]).tolist()]:
        if (data == code).any():
            texts = pc.replace_substring(texts, chr(code), _dumped(chr(code))[1:-1])
    return pc.binary_join_element_wise('"', texts, '"', "")


def _dumped(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def _content(texts: "pa.BinaryArray | pa.StringArray") -> memoryview | bytes:
    """Return the concatenated bytes of texts."""
    _, offsets, data = texts.buffers()
    if data is None:
        return b""
    borders = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(data)[borders[0] : borders[-1]]
