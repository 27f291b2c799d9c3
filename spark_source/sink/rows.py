"""Rows of Spark as Arrow batches: for PySpark 4.0, whose streaming sinks get rows."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, TimestampType

from millrace.spark_source.values import ValueFormat, arrow_fields

ROWS_COUNT: Final = 10_000
"""Of a batch, as in the Arrow batches of Spark."""


def batches_of_rows(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield batches of the rows, in their order."""
    left = iter(rows)
    kinds = [_arrow_type(field) for field in schema]
    while taken := list(islice(left, ROWS_COUNT)):
        columns = zip(*taken, strict=True)
        arrays = [
            pa.array(_plain(field.dataType, column), kind)
            for field, kind, column in zip(schema, kinds, columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=schema.names)


def _arrow_type(field: StructField) -> pa.DataType:
    # Whatever its collation, which a value would not keep: it may be that of a key.
    return pa.string() if isinstance(field.dataType, StringType) else arrow_fields([field], ValueFormat.ARROW)[0].type


def _plain(kind: DataType, column: Sequence[Any]) -> Sequence[Any]:
    """Return values as Arrow takes them."""
    match kind:
        case TimestampType() | MapType() | StructType() | ArrayType():
            return [None if value is None else _plain_value(kind, value) for value in column]
        case _:
            return column


def _plain_value(kind: DataType, value: Any) -> Any:
    match kind:
        case TimestampType():
            # In rows they have no zone, and mean that of the process.
            return value.astimezone(UTC)
        case MapType():
            return list(zip(_plain(kind.keyType, [*value]), _plain(kind.valueType, [*value.values()]), strict=True))
        case StructType():
            return {
                field.name: _plain(field.dataType, [inner])[0] for field, inner in zip(kind.fields, value, strict=True)
            }
        case ArrayType():
            return list(_plain(kind.elementType, value))
        case _:
            return value
