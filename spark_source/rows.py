"""The columns of a DataFrame, and event batches of the client as batches of these columns.

    value      binary
    key        string     null where an event has none
    timestamp  timestamp  null where its block has none
    stream     string
    segment    long
    offset     long       of the block in the segment
    index      int        of the event in its block
    headers    map<string,binary>   empty where an event has none; only with the option `includeHeaders`

(`segment`, `offset`, `index`) is the position of the event. Nothing is done per event: columns are handed over
unchanged, and the name of the stream, the same for all, is a slice of one array per process.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.client.read.arrow import EVENT_SCHEMA

from .errors import SchemaError
from .options import COLUMN_NAMES

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
        StructField("headers", MapType(StringType(), BinaryType()), nullable=False),
    ]
)

assert tuple(SCHEMA.names) == COLUMN_NAMES


def schema_of(columns: Sequence[str]) -> StructType:
    """Return the schema of some columns, in their order."""
    return StructType([SCHEMA[name] for name in columns])


def check_schema(schema: StructType) -> None:
    """Check a schema that the user wrote: columns of `SCHEMA` in any order, which may be said to be nullable.

    Raises:
        SchemaError: names the first column that is none, or another.
    """
    seen: set[str] = set()
    for field in schema.fields:
        if field.name not in SCHEMA.names:
            raise SchemaError(field.name, f"there is none; the columns are {', '.join(SCHEMA.names)}")
        wanted = SCHEMA[field.name]
        if field.dataType != wanted.dataType:
            raise SchemaError(field.name, f"is {wanted.dataType.simpleString()}, not {field.dataType.simpleString()}")
        if wanted.nullable and not field.nullable:
            raise SchemaError(field.name, "may be null")
        if field.name in seen:
            raise SchemaError(field.name, "named twice")
        seen.add(field.name)
    if not seen:
        raise SchemaError("value", "a schema names at least one column")


class BatchMaker:
    """Makes batches for Spark from batches of the client, for one stream and some of the columns."""

    def __init__(self, stream: str, schema: StructType) -> None:
        self._stream = stream
        self._schema = pa.schema([_ARROW_FIELDS[field.name].with_nullable(field.nullable) for field in schema.fields])

    def convert(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the events of a batch as views of what came."""
        for start in range(0, len(batch), ROWS_MAX):
            part = batch.slice(start, ROWS_MAX)
            yield pa.RecordBatch.from_arrays(
                [self._column(name, part) for name in self._schema.names], schema=self._schema
            )

    def _column(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        if name == "stream":
            return _repeated(self._stream).slice(0, len(batch))
        return batch.column(name)


_ARROW_FIELDS: Final = {field.name: field for field in (*EVENT_SCHEMA, pa.field("stream", pa.string()))}
assert set(_ARROW_FIELDS) == set(SCHEMA.names)


@lru_cache(maxsize=4)
def _repeated(text: str) -> pa.StringArray:
    """Return an array that holds a text `ROWS_MAX` times."""
    data = text.encode()
    offsets = np.arange(0, (ROWS_MAX + 1) * len(data), len(data), dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), ROWS_MAX, [None, pa.py_buffer(offsets), pa.py_buffer(data * ROWS_MAX)])
