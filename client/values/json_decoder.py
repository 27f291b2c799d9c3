"""Values that are JSON, one object each, as rows of a schema.

Arrow reads lines of JSON, many at a time. So the values are joined by newlines, each an object by its first and last
byte, and it is checked that there are as many rows as values. This is enough for row n to be of value n: a newline
within a string is refused by the reader, and no `{` may follow a `}` within an object; so each value begins a row.

    boolean, numbers    true, 12, -1.5e3; a decimal may be a string, too
    string              "text"
    binary              "base64"
    date                "2026-01-31"
    timestamp           "2026-01-31T18:00:00.5Z", or with another offset; without one it is UTC (see `json_times`)
    timestamp_ntz       "2026-01-31T18:00:00.5"
    array, struct       [1, 2], {"name": 1}

Names are compared with regard to case. What the schema does not name is left out; what an object does not have is null.
Nothing is converted: a number is no string, and 1.0 no integer.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from .arrays import check_required, data_of, empty_batch, lengths_of, offsets_of, relaxed, restored
from .base64_columns import decode_base64
from .codec import DecodedRows, MalformedError, groups, sift
from .json_times import read_times

JOINED_SIZE_BYTES: Final = 16 << 20
"""About the most that is read at once."""

_ROW: Final = re.compile(r"^JSON parse error: |[.]? in row \d+$")
"""What the reader says of rows, which are not those of a segment."""


class JsonDecoder:
    """Makes rows of JSON objects.

    Args:
        ends_at_first: end with the first value that is malformed: what follows it is not looked at.
    """

    def __init__(self, schema: pa.Schema, *, ends_at_first: bool = False) -> None:
        self._ends_at_first = ends_at_first
        self._schema = schema
        self._parse_options = json.ParseOptions(
            explicit_schema=relaxed_schema(schema), newlines_in_values=False, unexpected_field_behavior="ignore"
        )

    def decode(self, values: pa.BinaryArray) -> Iterator[DecodedRows]:
        """Yield the rows of all values; see `Decoder`."""
        for start, end in groups(lengths_of(values), size_bytes=JOINED_SIZE_BYTES):
            pieces, malformed = sift(
                start,
                end,
                lambda first, last: self._read(values.slice(first, last - first)),
                ends_at_first=self._ends_at_first,
            )
            columns = [piece for _, piece in pieces]
            numbers = [np.arange(first, first + len(piece), dtype=np.int64) for first, piece in pieces]
            yield DecodedRows(
                columns=_joined(columns, self._schema),
                events=np.concatenate([np.empty(0, dtype=np.int64), *numbers]),
                rows=np.zeros(sum(map(len, columns)), dtype=np.int32),
                malformed=tuple(malformed),
            )
            if malformed and self._ends_at_first:
                return

    def _read(self, values: pa.BinaryArray) -> pa.RecordBatch:
        """Return the rows of values, all of which are as they must be.

        Raises:
            MalformedError: one is not.
        """
        table = read_objects(values, self._parse_options)
        try:
            columns = [restored(_one(table.column(field.name)), field.type, _restore) for field in self._schema]
            for column, field in zip(columns, self._schema, strict=True):
                column.validate(full=True)
                check_required(column, field)
        except pa.ArrowInvalid as error:
            raise MalformedError(_ROW.sub("", str(error))) from None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def relaxed_schema(schema: pa.Schema) -> pa.Schema:
    """Return what the reader of JSON shall make of the columns of a schema."""
    return pa.schema([pa.field(field.name, relaxed(field.type, _read_type)) for field in schema])


def read_objects(values: pa.BinaryArray, options: json.ParseOptions) -> pa.Table:
    """Return a row for each value, with the columns that the options ask for; there is at least one value.

    Args:
        options: with `newlines_in_values=False`.

    Raises:
        MalformedError: a value is no JSON object, or does not fit.
    """
    lines = pc.call_function("binary_join_element_wise", [_objects(values), pa.scalar(""), pa.scalar("\n")])
    joined = data_of(lines)
    # The reader takes a zero for the end of what it reads.
    if not joined.all():
        raise MalformedError("has a zero byte")
    read_options = json.ReadOptions(use_threads=False, block_size=len(joined))
    try:
        table = json.read_json(pa.py_buffer(joined), read_options=read_options, parse_options=options)
    except pa.ArrowInvalid as error:
        raise MalformedError(_ROW.sub("", str(error))) from None
    if table.num_rows != len(values):
        raise MalformedError("is more than one JSON object")
    return table


def _objects(values: pa.BinaryArray) -> Any:
    """Return values as texts that each begin with `{` and end with `}`.

    Raises:
        MalformedError: one is no UTF-8, or no object.
    """
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        raise MalformedError("is not UTF-8") from None
    if not _are_braced(texts):
        texts = pc.call_function("ascii_trim_whitespace", [texts])
        if not _are_braced(texts):
            raise MalformedError("is no JSON object")
    return texts


def _are_braced(texts: Any) -> bool:
    offsets, data = offsets_of(texts), data_of(texts)
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    return bool((ends > starts).all() and (data[starts] == ord("{")).all() and (data[ends - 1] == ord("}")).all())


def _read_type(kind: pa.DataType) -> pa.DataType:
    """Return what the reader makes of a type: it takes dates for numbers, bytes for text, and few forms of times."""
    types = pa.types
    return pa.string() if types.is_date32(kind) or types.is_timestamp(kind) or types.is_binary(kind) else kind


def _restore(array: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return read_times(array, kind)
    return array.cast(kind) if pa.types.is_date32(kind) else decode_base64(array)


def _one(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches) if batches else empty_batch(schema)
