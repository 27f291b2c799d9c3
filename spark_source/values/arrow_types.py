"""The Arrow type of each Spark type that a value can hold; all others are refused by the name of their column."""

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millrace.spark_source.errors import SchemaError

from .formats import ValueFormat

_SIMPLE: Final[dict[type[DataType], pa.DataType]] = {
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    TimestampNTZType: pa.timestamp("us"),
}


def arrow_fields(fields: list[StructField], value_format: ValueFormat) -> pa.Schema:
    """Return the Arrow schema of some columns, as Spark wants it of a source.

    Raises:
        SchemaError: a type that the format has no form for, a name that is there twice; names the column.
    """
    return pa.schema(_fields(fields, value_format, path=""))


def _fields(fields: list[StructField], value_format: ValueFormat, *, path: str) -> list[pa.Field]:
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(path + name, "named twice")
    return [
        pa.field(field.name, _type(field.dataType, value_format, path=path + field.name), nullable=field.nullable)
        for field in fields
    ]


def _type(kind: DataType, value_format: ValueFormat, *, path: str) -> pa.DataType:
    # By the exact type: a string with a collation, or a user's own type, is more than what would be kept of it.
    if type(kind) in _SIMPLE and kind == type(kind)():
        return _SIMPLE[type(kind)]
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ArrayType):
        element = _type(kind.elementType, value_format, path=f"{path}[]")
        return pa.list_(pa.field("element", element, nullable=kind.containsNull))
    if isinstance(kind, StructType):
        return pa.struct(_fields(kind.fields, value_format, path=f"{path}."))
    if value_format is ValueFormat.ARROW:
        if isinstance(kind, MapType):
            key = _type(kind.keyType, value_format, path=f"{path}.key")
            value = _type(kind.valueType, value_format, path=f"{path}.value")
            return pa.map_(key, pa.field("value", value, nullable=kind.valueContainsNull))
        if isinstance(kind, DayTimeIntervalType):
            return pa.duration("us")
    advice = '; "arrow" has one' if isinstance(kind, MapType | DayTimeIntervalType) else ""
    raise SchemaError(path, f'{kind.simpleString()} has no form in valueFormat "{value_format}"{advice}')
