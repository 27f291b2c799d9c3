"""Schemas and rows of them, for properties of the formats."""

import datetime as dt
import decimal
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import types as t

from millrace.spark_source.values import ValueFormat, arrow_fields

NAMES = ("a", "b", 'say "hi"', "back\\slash", "über", "with space", "c")
UTC_MIN, UTC_MAX = dt.datetime.fromisoformat("0001-01-02"), dt.datetime.fromisoformat("9999-12-30")


def values_of(kind: t.DataType) -> st.SearchStrategy[Any]:
    """Values of a type as Arrow takes them; without null."""
    if isinstance(kind, t.DecimalType):
        digits = kind.precision
        context = decimal.Context(prec=digits)
        return st.integers(-(10**digits) + 1, 10**digits - 1).map(
            lambda number: decimal.Decimal(number).scaleb(-kind.scale, context)
        )
    if isinstance(kind, t.ArrayType):
        return st.lists(maybe(kind.elementType, nullable=kind.containsNull), max_size=3)
    if isinstance(kind, t.StructType):
        return st.fixed_dictionaries({field.name: maybe(field.dataType, nullable=field.nullable) for field in kind})
    if isinstance(kind, t.MapType):
        items = maybe(kind.valueType, nullable=kind.valueContainsNull)
        return st.dictionaries(st.text(max_size=3), items, max_size=3).map(lambda entries: list(entries.items()))
    return _SIMPLE[type(kind)]


def maybe(kind: t.DataType, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    return st.none() | values_of(kind) if nullable else values_of(kind)


_SIMPLE: Mapping[type[t.DataType], st.SearchStrategy[Any]] = {
    t.BooleanType: st.booleans(),
    t.ByteType: st.integers(-(1 << 7), (1 << 7) - 1),
    t.ShortType: st.integers(-(1 << 15), (1 << 15) - 1),
    t.IntegerType: st.integers(-(1 << 31), (1 << 31) - 1),
    t.LongType: st.integers(-(1 << 63), (1 << 63) - 1),
    t.FloatType: st.floats(width=32, allow_nan=False, allow_infinity=False),
    t.DoubleType: st.floats(allow_nan=False, allow_infinity=False),
    t.StringType: st.text(max_size=8) | st.text('\0\x1f"\\\n\r\t\x7f/{},', max_size=8),
    t.BinaryType: st.binary(max_size=9),
    t.DateType: st.dates(),
    t.TimestampType: st.datetimes(UTC_MIN, UTC_MAX, timezones=st.just(dt.UTC)),
    t.TimestampNTZType: st.datetimes(),
    t.DayTimeIntervalType: st.timedeltas(dt.timedelta(-9999), dt.timedelta(9999)),
}

SIMPLE_TYPES = tuple(kind() for kind in _SIMPLE if kind is not t.DayTimeIntervalType)


def types(value_format: ValueFormat) -> st.SearchStrategy[t.DataType]:
    decimals = st.integers(1, 38).flatmap(
        lambda precision: st.builds(t.DecimalType, st.just(precision), st.integers(0, precision))
    )
    simple = st.sampled_from(SIMPLE_TYPES) | decimals

    def nested(inner: st.SearchStrategy[t.DataType]) -> st.SearchStrategy[t.DataType]:
        lists = st.builds(t.ArrayType, inner, st.booleans())
        if value_format is ValueFormat.JSON:
            return lists | structs(inner)
        return lists | structs(inner) | st.builds(t.MapType, st.just(t.StringType()), inner, st.booleans())

    if value_format is ValueFormat.ARROW:
        simple |= st.just(t.DayTimeIntervalType())
    return st.recursive(simple, nested, max_leaves=4)


def structs(inner: st.SearchStrategy[t.DataType]) -> st.SearchStrategy[t.StructType]:
    names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
    return names.flatmap(
        lambda chosen: st.tuples(*(st.builds(t.StructField, st.just(name), inner, st.booleans()) for name in chosen))
    ).map(lambda fields: t.StructType(list(fields)))


def batches(value_format: ValueFormat) -> st.SearchStrategy[tuple[t.StructType, pa.RecordBatch]]:
    """Schemas with a few rows of them, the rows a slice of more: as arrays with an offset are."""

    def rows(schema: t.StructType) -> st.SearchStrategy[tuple[t.StructType, pa.RecordBatch]]:
        given = st.lists(values_of(schema), max_size=6)
        return st.tuples(given, st.integers(0, 2)).map(
            lambda drawn: (schema, batch_of(schema, drawn[0], value_format).slice(drawn[1]))
        )

    return structs(types(value_format)).flatmap(rows)


def batch_of(
    schema: t.StructType, rows: Sequence[Mapping[str, Any]], value_format: ValueFormat = ValueFormat.ARROW
) -> pa.RecordBatch:
    fields = arrow_fields(schema.fields, value_format)
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)
