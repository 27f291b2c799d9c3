import math
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millrace.spark_source import OptionError, SchemaError
from millrace.spark_source.sink.columns import batches_by_stream, maker_of
from millrace.spark_source.sink.options import SinkOptions
from millrace.spark_source.values import ValueFormat
from tests.spark_source.sink.conftest import batch_of
from tests.support.tables import table

ONE = SinkOptions(address="127.0.0.1:9240", streams=("shop/a",))
TWO = SinkOptions(address="127.0.0.1:9240", streams=("shop/a", "shop/b"))


def schema(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def made(batch: pa.RecordBatch, of: StructType) -> pa.RecordBatch:
    (found,) = maker_of(of, ONE)(batch)
    assert list(found.rows) == list(range(len(batch)))
    return found.events


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_strings_are_values_in_utf_8(kind: pa.DataType) -> None:
    batch = batch_of({"key": (pa.string(), ["k", None]), "value": (kind, ["tea", "ü"])})
    events = made(batch, schema(key=StringType(), value=StringType()))

    assert events.column("value").to_pylist() == [b"tea", "ü".encode()]
    assert events.column("key").to_pylist() == ["k", None]


def test_bytes_are_handed_on_as_they_are() -> None:
    batch = batch_of({"value": (pa.binary(), [b"tea"])})

    assert made(batch, schema(value=BinaryType())) is batch


def test_all_columns_of_events_are_taken() -> None:
    maker_of(
        schema(
            value=BinaryType(),
            key=StringType(),
            timestamp=TimestampType(),
            headers=MapType(StringType(), BinaryType()),
            stream=StringType(),
        ),
        TWO,
    )


@table(
    ("kinds", "column", "reason"),
    [
        ({"value": BinaryType(), "price": LongType()}, "price", "is not a column of events, but value, key, timestamp"),
        ({"value": BinaryType(), "Key": StringType()}, "Key", 'is not a column of events, but "key" is'),
        ({"value": BinaryType(), "offset": LongType()}, "offset", "leave it out of the select"),
        ({"key": StringType()}, "value", "is missing: the event, binary or string"),
        ({"value": LongType()}, "value", r"is bigint, and must be binary or string; to_json\(struct"),
        ({"value": BinaryType(), "key": IntegerType()}, "key", "is int, and must be string"),
        ({"value": BinaryType(), "timestamp": TimestampNTZType()}, "timestamp", "has no zone: cast it to timestamp"),
        ({"value": BinaryType(), "timestamp": StringType()}, "timestamp", "is string, and must be timestamp"),
        (
            {"value": BinaryType(), "headers": MapType(StringType(), StringType())},
            "headers",
            "is map<string,string>, and must be map<string,binary>",
        ),
        ({"value": BinaryType(), "headers": ArrayType(StringType())}, "headers", "must be map<string,binary>"),
        ({"value": BinaryType(), "stream": BinaryType()}, "stream", "is binary, and must be string"),
    ],
)
def test_a_wrong_column_is_named(kinds: dict[str, DataType], column: str, reason: str) -> None:
    """Behaviour 60."""
    with pytest.raises(SchemaError, match=reason) as caught:
        maker_of(schema(**kinds), ONE)

    assert caught.value.column == column


def test_a_column_is_there_once() -> None:
    """Behaviour 60."""
    twice = StructType([StructField("value", BinaryType()), StructField("value", BinaryType())])
    with pytest.raises(SchemaError, match='column "value": is there twice'):
        maker_of(twice, ONE)


def test_several_streams_need_a_column_that_says_which() -> None:
    """Behaviour 60."""
    with pytest.raises(SchemaError, match='column "stream": is missing: the option stream names 2'):
        maker_of(schema(value=BinaryType()), TWO)


def test_columns_of_any_name_are_encoded_with_a_value_format() -> None:
    """Of rows that have no form it is said which they are."""
    of = schema(price=DoubleType(), _key=StringType(), _stream=StringType())
    batch = batch_of(
        {
            "price": (pa.float64(), [1.5, math.nan, 2.5]),
            "_key": (pa.string(), ["a", "b", None]),
            "_stream": (pa.string(), ["shop/a", "shop/a", "shop/b"]),
        }
    )
    (found,) = maker_of(of, replace(TWO, value_format=ValueFormat.JSON))(batch)

    assert found.events.to_pydict() == {
        "value": [b'{"price":1.5}', b'{"price":2.5}'],
        "key": ["a", None],
        "stream": ["shop/a", "shop/b"],
    }
    assert list(found.rows) == [0, 2]
    assert found.refused is not None
    assert [row.number for row in found.refused.reasons] == [1]


def test_an_arrow_event_is_of_its_first_row() -> None:
    of = schema(price=LongType(), name=StringType())
    batch = batch_of({"price": (pa.int64(), [1, 2, 3]), "name": (pa.string(), ["a", "b", "a"])})
    (found,) = maker_of(of, replace(ONE, value_format=ValueFormat.ARROW, key_column="name"))(batch)

    assert found.events.column("key").to_pylist() == ["a", "b"]
    assert list(found.rows) == [0, 1]
    assert found.refused is None


@table(
    ("kinds", "options", "error", "reason"),
    [
        ({"m": MapType(StringType(), LongType())}, ONE, SchemaError, 'column "m": .* no form in valueFormat "json"'),
        ({"a": LongType(), "_key": LongType()}, ONE, SchemaError, 'column "_key": is the event\'s own and string'),
        ({"a": LongType(), "_offset": LongType()}, ONE, SchemaError, 'column "_offset": says where'),
        ({"_key": StringType()}, ONE, SchemaError, "no column to encode"),
        ({"a": LongType(), "stream": StringType()}, TWO, SchemaError, 'column "_stream": is missing'),
        ({"a": LongType()}, replace(ONE, key_column="b"), OptionError, 'option "keyColumn": there is no column b'),
        ({"a": LongType()}, replace(ONE, key_column="A"), OptionError, "there is no column A, but a"),
        (
            {"a": LongType(), "_KEY": StringType()},
            ONE,
            SchemaError,
            'column "_KEY": differs from .* "_key" only in case',
        ),
        ({"a": DoubleType()}, replace(ONE, key_column="a"), OptionError, 'option "keyColumn": a is double'),
    ],
)
def test_what_cannot_be_encoded_is_named(
    kinds: dict[str, DataType], options: SinkOptions, error: type[Exception], reason: str
) -> None:
    """Behaviour 60."""
    with pytest.raises(error, match=reason):
        maker_of(schema(**kinds), replace(options, value_format=ValueFormat.JSON))


def test_events_are_parted_by_their_streams_in_their_order() -> None:
    batch = batch_of(
        {
            "value": (pa.binary(), [b"1", b"2", b"3", b"4"]),
            "stream": (pa.string(), ["shop/b", "shop/a", "shop/b", None]),
        }
    )
    parted = {name: part.to_pydict() for name, part in batches_by_stream(batch, default="shop/a")}

    assert parted == {"shop/a": {"value": [b"2", b"4"]}, "shop/b": {"value": [b"1", b"3"]}}


def test_events_of_one_stream_are_not_copied() -> None:
    batch = batch_of({"value": (pa.binary(), [b"1", b"2"]), "stream": (pa.string(), ["shop/b", "shop/b"])})
    ((name, part),) = batches_by_stream(batch, default=None)

    assert name == "shop/b"
    assert part.column("value").buffers()[2].address == batch.column("value").buffers()[2].address
    assert list(batches_by_stream(part, default="shop/c")) == [("shop/c", part)]
