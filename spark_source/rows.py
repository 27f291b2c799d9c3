"""The columns of a DataFrame, and event batches of the client as batches of these columns.

    value      binary
    key        string     null where an event has none
    timestamp  timestamp  null where its block has none
    stream     string
    segment    long
    offset     long       of the block in the segment
    index      int        of the event in its block

(`segment`, `offset`, `index`) is the position of the event. Nothing is done per event: columns are handed over as they
stand, and the name of the stream, the same for all, is a slice of one array per process.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import SchemaError

ROWS_MAX: Final = 65536
"""A batch of more rows is handed over in parts: Spark holds one at a time, and a column of Arrow ends at 2 GiB."""

SCHEMA: Final = StructType(
    [
        StructField("value", BinaryType(), nullable=False),
        StructField("key", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("stream", StringType(), nullable=False),
        StructField("segment", LongType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("index", IntegerType(), nullable=False),
    ]
)


def check_schema(schema: StructType) -> None:
    """Check a schema that the user wrote; its columns may be nullable, and nothing else may differ.

    Raises:
        SchemaError: names the first column that is not as in `SCHEMA`.
    """
    for field, wanted in zip(schema.fields, SCHEMA.fields, strict=False):
        if field.name != wanted.name:
            raise SchemaError(
                field.name, f'the column in this place is "{wanted.name}" {wanted.dataType.simpleString()}'
            )
        if field.dataType != wanted.dataType:
            raise SchemaError(field.name, f"is {wanted.dataType.simpleString()}, not {field.dataType.simpleString()}")
        if not field.nullable and wanted.nullable:
            raise SchemaError(field.name, "may be null")
    for extra in schema.fields[len(SCHEMA.fields) :]:
        raise SchemaError(extra.name, f"there is none; the columns are {', '.join(SCHEMA.names)}")
    for lacking in SCHEMA.fields[len(schema.fields) :]:
        raise SchemaError(lacking.name, "missing; choose columns with select")


class BatchMaker:
    """Makes batches for Spark from batches of the client, for one stream."""

    def __init__(self, stream: str, schema: StructType) -> None:
        self._stream = stream
        self._schema = _arrow_schema(tuple(field.nullable for field in schema.fields))

    def convert(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the events of a batch with the columns of `SCHEMA`, as views of what came."""
        for start in range(0, len(batch), ROWS_MAX):
            part = batch.slice(start, ROWS_MAX)
            value, key, timestamp_us, segment, offset, index = part.columns
            stream = _repeated(self._stream).slice(0, len(part))
            columns = [value, key, timestamp_us.view(self._schema.field(2).type), stream, segment, offset, index]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


@lru_cache(maxsize=8)
def _arrow_schema(nullable: tuple[bool, ...]) -> pa.Schema:
    types = [pa.binary(), pa.string(), pa.timestamp("us", tz="UTC"), pa.string(), pa.int64(), pa.int64(), pa.int32()]
    return pa.schema(
        [pa.field(name, kind, null) for name, kind, null in zip(SCHEMA.names, types, nullable, strict=True)]
    )


@lru_cache(maxsize=4)
def _repeated(text: str) -> pa.StringArray:
    """Return an array that holds a text `ROWS_MAX` times."""
    data = text.encode()
    offsets = np.arange(0, (ROWS_MAX + 1) * len(data), len(data), dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), ROWS_MAX, [None, pa.py_buffer(offsets), pa.py_buffer(data * ROWS_MAX)])
