"""Rows of Spark as Arrow batches: for PySpark 4.0, whose streaming sinks get rows."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, MapType, StructType, TimestampType

ROWS_COUNT: Final = 10_000
"""Of a batch, as in the Arrow batches of Spark."""
_ARROW_TIME: Final = pa.timestamp("us", "UTC")


def batches_of_rows(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield batches of the rows, in their order."""
    left = iter(rows)
    kinds = [_ARROW_TIME if _is_time(field.dataType) else to_arrow_type(field.dataType) for field in schema]
    while taken := list(islice(left, ROWS_COUNT)):
        columns = zip(*taken, strict=True)
        arrays = [
            pa.array(_plain(field.dataType, column), kind)
            for field, kind, column in zip(schema, kinds, columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=schema.names)


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, TimestampType)


def _plain(kind: DataType, column: Sequence[Any]) -> Sequence[Any]:
    """Return values as Arrow takes them."""
    if _is_time(kind):
        # In rows they have no zone, and mean that of the process.
        return [None if moment is None else moment.astimezone(UTC) for moment in column]
    if isinstance(kind, MapType):
        return [None if entries is None else list(entries.items()) for entries in column]
    return column
