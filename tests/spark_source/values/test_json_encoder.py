import datetime as dt
import decimal
import json
import math

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql import types as t

from millrace.client.values.codec import MalformedError
from millrace.spark_source.values import ValueFormat
from millrace.spark_source.values.json_encoder import encode_json
from tests.spark_source.values.rows import batches
from tests.support.tables import table


def test_a_row_is_an_object_of_all_its_columns() -> None:
    """The example of the module."""
    batch = pa.RecordBatch.from_pydict(
        {
            "id": [7],
            "paid": [True],
            "price": pa.array([decimal.Decimal("12.50")], pa.decimal128(10, 2)),
            "at": pa.array([dt.datetime(2026, 1, 31, 18, 0, 0, 500_000, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
            "tags": [["a", "b"]],
            "note": pa.nulls(1, pa.string()),
        }
    )

    assert encode_json(batch).to_pylist() == [
        '{"id":7,"paid":true,"price":12.50,"at":"2026-01-31T18:00:00.500000Z","tags":["a","b"],"note":null}'
    ]


@given(batches(ValueFormat.JSON))
def test_each_value_is_json_of_the_standard_library(given_rows: tuple[t.StructType, pa.RecordBatch]) -> None:
    schema, batch = given_rows
    texts = encode_json(batch).to_pylist()

    assert len(texts) == len(batch)
    assert all(list(json.loads(text)) == schema.names for text in texts)
    for row, text in zip(batch.to_pylist(), texts, strict=True):
        found = json.loads(text, parse_float=decimal.Decimal)
        for field in schema.fields:
            if isinstance(field.dataType, t.StringType | t.BooleanType | t.LongType | t.DecimalType):
                assert found[field.name] == row[field.name]


@table(
    ("column", "array", "reason"),
    [
        ("a", pa.array([1.0, math.nan]), "not finite"),
        ("a", pa.array([None, math.inf], pa.float32()), "not finite"),
        ("a", pa.array([["x"], [b"\xff"]], pa.list_(pa.binary())).cast(pa.list_(pa.binary())), None),
        ("a", pa.array([0, 2_932_897], pa.int32()).cast(pa.date32()), "years 1 to 9999"),
        ("a", pa.array([-62_135_596_800_000_001], pa.timestamp("us")), "years 1 to 9999"),
        ("a.b", pa.array([{"b": -math.inf}]), "not finite"),
        ("a[]", pa.array([[1.0], [math.nan]]), "not finite"),
        ("a", pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers()), "not UTF-8"),
    ],
)
def test_what_json_has_no_form_for_is_named(column: str, array: pa.Array, reason: str | None) -> None:
    batch = pa.RecordBatch.from_arrays([array], ["a"])
    if reason is None:
        assert encode_json(batch).to_pylist()[1] == '{"a":["/w=="]}'
        return
    with pytest.raises(MalformedError, match=reason) as caught:
        encode_json(batch)

    assert caught.value.column == column


def test_numbers_come_back_as_the_same_numbers() -> None:
    numbers = [0.1, 1.0, -0.0, 5e-324, 1.7976931348623157e308, 1e20, 2**53 + 2.0]
    texts = encode_json(pa.RecordBatch.from_pydict({"a": numbers})).to_pylist()

    assert [math.copysign(1, float(json.loads(text)["a"])) for text in texts[:2]] == [1, 1]
    assert [float(json.loads(text, parse_int=float)["a"]) for text in texts] == numbers
