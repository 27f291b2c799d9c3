import datetime as dt
import math
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql import types as t

from millrace.spark_source.errors import OptionError, SchemaError
from millrace.spark_source.values import ArrowDecoder, Decoder, JsonDecoder, ValueEncoder, ValueFormat, arrow_fields
from millrace.spark_source.values import encoder as encoder_module
from millrace.spark_source.values.arrow_encoder import EVENT_SIZE_BYTES
from tests.spark_source.values.rows import batch_of, batches
from tests.support.tables import table

HEADERS = t.MapType(t.StringType(), t.BinaryType())


def schema_of(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


def events_of(encoder: ValueEncoder, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return all events, of which none is refused."""
    events: list[dict[str, Any]] = []
    for encoded in encoder.encode(batch):
        assert encoded.reasons == ()
        assert not len(encoded.refused)
        events += encoded.events.to_pylist()
    return events


def rows_of(schema: t.StructType, value_format: ValueFormat, values: Sequence[bytes]) -> list[dict[str, Any]]:
    fields = arrow_fields(schema.fields, value_format)
    decoder: Decoder = JsonDecoder(fields) if value_format is ValueFormat.JSON else ArrowDecoder(fields)
    rows: list[dict[str, Any]] = []
    for part in decoder.decode(pa.array(values, pa.binary())):
        assert part.malformed == ()
        rows += part.columns.to_pylist()
    return rows


@given(batches(ValueFormat.JSON))
def test_rows_that_were_encoded_are_decoded_as_json(given_rows: tuple[t.StructType, pa.RecordBatch]) -> None:
    schema, batch = given_rows
    events = events_of(ValueEncoder(schema, value_format=ValueFormat.JSON), batch)

    assert len(events) == len(batch)
    assert rows_of(schema, ValueFormat.JSON, [event["value"] for event in events]) == batch.to_pylist()


@given(batches(ValueFormat.ARROW))
def test_rows_that_were_encoded_are_decoded_as_arrow(given_rows: tuple[t.StructType, pa.RecordBatch]) -> None:
    schema, batch = given_rows
    events = events_of(ValueEncoder(schema, value_format=ValueFormat.ARROW), batch)

    assert len(events) == min(len(batch), 1)
    assert rows_of(schema, ValueFormat.ARROW, [event["value"] for event in events]) == batch.to_pylist()


def test_own_columns_are_those_of_the_event() -> None:
    moment = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
    schema = schema_of(id=t.LongType(), _key=t.StringType(), _timestamp=t.TimestampType(), _headers=HEADERS)
    rows: list[dict[str, Any]] = [
        {"id": 1, "_key": "k", "_timestamp": moment, "_headers": [("h", b"v")]},
        {"id": 2, "_key": None, "_timestamp": None, "_headers": None},
    ]
    batch = batch_of(schema, rows)
    # As Spark hands it over: with the time zone of the session.
    column = batch.column("_timestamp").cast(pa.timestamp("us", tz="Europe/Berlin"))
    batch = batch.set_column(2, "_timestamp", column)

    assert events_of(ValueEncoder(schema, value_format=ValueFormat.JSON), batch) == [
        {"value": b'{"id":1}', "key": "k", "timestamp": moment, "headers": [("h", b"v")]},
        {"value": b'{"id":2}', "key": None, "timestamp": None, "headers": None},
    ]


@table("kind", [t.StringType(), t.IntegerType(), t.LongType()])
def test_a_column_can_be_the_key_and_is_encoded_too(kind: t.DataType) -> None:
    schema = schema_of(id=kind)
    batch = batch_of(schema, [{"id": "7" if isinstance(kind, t.StringType) else 7}, {"id": None}])
    first, second = events_of(ValueEncoder(schema, value_format=ValueFormat.JSON, key_column="id"), batch)

    assert (first["key"], second["key"]) == ("7", None)
    assert second["value"] == b'{"id":null}'


def test_an_arrow_event_has_the_rows_of_one_key_and_stream_in_their_order() -> None:
    schema = schema_of(n=t.LongType(), k=t.StringType(), _stream=t.StringType())
    rows = [{"n": n, "k": ("x", "y", None)[n % 3], "_stream": ("s", "t")[n % 2]} for n in range(12)]
    encoder = ValueEncoder(schema, value_format=ValueFormat.ARROW, key_column="k")
    events = events_of(encoder, batch_of(schema, rows))
    value_schema = schema_of(n=t.LongType(), k=t.StringType())
    found = [
        (
            event["key"],
            event["stream"],
            [row["n"] for row in rows_of(value_schema, ValueFormat.ARROW, [event["value"]])],
        )
        for event in events
    ]

    assert found == [
        ("x", "s", [0, 6]),
        ("y", "t", [1, 7]),
        (None, "s", [2, 8]),
        ("x", "t", [3, 9]),
        ("y", "s", [4, 10]),
        (None, "t", [5, 11]),
    ]


def test_an_arrow_event_is_of_bounded_size() -> None:
    schema = schema_of(a=t.BinaryType())
    rows = [{"a": bytes(100_000)} for _ in range(50)]
    events = events_of(ValueEncoder(schema, value_format=ValueFormat.ARROW), batch_of(schema, rows))

    assert len(events) == 5
    assert all(len(event["value"]) < EVENT_SIZE_BYTES * 1.1 for event in events)
    assert rows_of(schema, ValueFormat.ARROW, [event["value"] for event in events]) == rows


@pytest.mark.parametrize("value_format", ValueFormat)
def test_a_large_batch_is_encoded_in_parts(value_format: ValueFormat) -> None:
    schema = schema_of(a=t.DoubleType(), s=t.StringType())
    size = encoder_module.ENCODED_SIZE_BYTES_MAX // 4
    rows = [{"a": float(number), "s": "x" * size} for number in range(6)]
    parts = list(ValueEncoder(schema, value_format=value_format).encode(batch_of(schema, rows)))

    assert len(parts) == 2
    values = [event["value"] for part in parts for event in part.events.to_pylist()]
    assert rows_of(schema, value_format, values) == rows


def test_a_refused_row_is_counted_from_the_start_of_its_batch() -> None:
    schema = schema_of(a=t.DoubleType(), s=t.StringType())
    size = encoder_module.ENCODED_SIZE_BYTES_MAX // 3
    rows = [{"a": math.nan if number == 3 else 0.0, "s": "x" * size} for number in range(4)]
    parts = list(ValueEncoder(schema, value_format=ValueFormat.JSON).encode(batch_of(schema, rows)))

    assert [[row.number for row in part.reasons] for part in parts] == [[], [3]]


def test_rows_without_a_form_are_refused_with_their_place_and_reason() -> None:
    schema = schema_of(a=t.DoubleType(), _key=t.StringType())
    rows: list[dict[str, Any]] = [
        {"a": 1.0, "_key": "x"},
        {"a": math.nan, "_key": "y"},
        {"a": 2.0, "_key": "z"},
        {"a": math.inf, "_key": None},
    ]
    (encoded,) = ValueEncoder(schema, value_format=ValueFormat.JSON).encode(batch_of(schema, rows))

    assert encoded.events.to_pylist() == [{"value": b'{"a":1}', "key": "x"}, {"value": b'{"a":2}', "key": "z"}]
    assert [(row.number, row.column) for row in encoded.reasons] == [(1, "a"), (3, "a")]
    assert "not finite" in str(encoded.reasons[0])
    assert encoded.refused.column("key").to_pylist() == ["y", None]
    kept = rows_of(schema_of(a=t.DoubleType()), ValueFormat.ARROW, encoded.refused.column("value").to_pylist())
    assert math.isnan(kept[0]["a"])
    assert kept[1] == {"a": math.inf}


@pytest.mark.parametrize("value_format", ValueFormat)
def test_text_that_is_not_utf_8_is_refused(value_format: ValueFormat) -> None:
    """Spark lets a column of text hold any bytes."""
    schema = schema_of(s=t.StringType())
    text = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"b"]).buffers())
    (encoded,) = ValueEncoder(schema, value_format=value_format).encode(pa.RecordBatch.from_arrays([text], ["s"]))
    values = encoded.events.column("value").to_pylist()

    assert [row["s"] for row in rows_of(schema, value_format, values)] == ["a", "b"]
    assert [(row.number, str(row)) for row in encoded.reasons] == [(1, 'column "s" is not UTF-8')]


@pytest.mark.parametrize("value_format", ValueFormat)
def test_a_batch_without_rows_is_no_event(value_format: ValueFormat) -> None:
    schema = schema_of(a=t.LongType(), _key=t.StringType())

    assert events_of(ValueEncoder(schema, value_format=value_format), batch_of(schema, [])) == []


@table(
    ("column", "schema", "value_format"),
    [
        ("m", schema_of(m=t.MapType(t.StringType(), t.LongType())), ValueFormat.JSON),
        ("v", schema_of(v=t.VariantType()), ValueFormat.ARROW),
        ("_offset", schema_of(a=t.LongType(), _offset=t.LongType()), ValueFormat.JSON),
        ("_error", schema_of(a=t.LongType(), _error=t.StringType()), ValueFormat.ARROW),
        ("_key", schema_of(a=t.LongType(), _key=t.LongType()), ValueFormat.JSON),
        ("_headers", schema_of(a=t.LongType(), _headers=t.MapType(t.StringType(), t.StringType())), ValueFormat.JSON),
        ("_timestamp", schema_of(a=t.LongType(), _timestamp=t.TimestampType()), ValueFormat.ARROW),
        ("_headers", schema_of(a=t.LongType(), _headers=HEADERS), ValueFormat.ARROW),
        ("_key", schema_of(_key=t.StringType()), ValueFormat.JSON),
    ],
)
def test_a_column_that_cannot_be_written_is_refused_by_name(
    column: str, schema: t.StructType, value_format: ValueFormat
) -> None:
    """Behaviour 60: a wrong sink schema is an error before any work."""
    with pytest.raises(SchemaError) as caught:
        ValueEncoder(schema, value_format=value_format)

    assert caught.value.column == column


@table(
    ("key_column", "schema"),
    [
        ("b", schema_of(a=t.LongType())),
        ("a", schema_of(a=t.DoubleType())),
        ("_stream", schema_of(a=t.LongType(), _stream=t.StringType())),
    ],
)
def test_a_key_column_that_is_none_is_refused(key_column: str, schema: t.StructType) -> None:
    """Behaviour 60."""
    with pytest.raises(OptionError, match='option "keyColumn"'):
        ValueEncoder(schema, value_format=ValueFormat.JSON, key_column=key_column)


def test_two_keys_are_refused() -> None:
    """Behaviour 60."""
    with pytest.raises(SchemaError, match='column "_key"'):
        ValueEncoder(schema_of(a=t.LongType(), _key=t.StringType()), value_format=ValueFormat.JSON, key_column="a")


def test_an_encoder_can_be_sent_to_a_task() -> None:
    schema = schema_of(a=t.LongType())
    there: ValueEncoder = pickle.loads(pickle.dumps(ValueEncoder(schema, value_format=ValueFormat.JSON)))

    assert events_of(there, batch_of(schema, [{"a": 1}])) == [{"value": b'{"a":1}'}]
