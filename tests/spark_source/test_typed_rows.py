import logging
import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from millrace.client.read.arrow import batch_of
from millrace.client.read.block_stream import PlacedBlock
from millrace.model.block_packing import pack_block
from millrace.model.event_block import unpack_block
from millrace.spark_source.errors import MalformedValueError, SchemaError
from millrace.spark_source.rows import ROWS_MAX, SCHEMA
from millrace.spark_source.typed_rows import TypedBatchMaker, check_typed_schema
from millrace.spark_source.values import Mode, ValueFormat
from millrace.spark_source.values.arrow_encoder import encode_arrow
from tests.spark_source.conftest import arrow_schema_of
from tests.support.tables import table

A = t.StructField("a", t.LongType())
OWN = [
    t.StructField("_key", t.StringType()),
    t.StructField("_timestamp", t.TimestampType()),
    t.StructField("_stream", t.StringType()),
    t.StructField("_segment", t.LongType()),
    t.StructField("_offset", t.LongType()),
    t.StructField("_index", t.IntegerType()),
    t.StructField("_headers", t.MapType(t.StringType(), t.BinaryType())),
    t.StructField("_row", t.IntegerType()),
    t.StructField("_corrupt_record", t.BinaryType()),
    t.StructField("_error", t.StringType()),
]
JSON, ARROW = ValueFormat.JSON, ValueFormat.ARROW


def event_batch(values: Sequence[bytes]) -> pa.RecordBatch:
    keys = [f"k{number}" for number in range(len(values))]
    block = unpack_block(pack_block(values, keys=keys, timestamps_us=5, headers={0: {"h": b"v"}}))
    return batch_of(PlacedBlock(7, 64, block, 0, len(values)))


def maker(
    fields: Sequence[t.StructField], value_format: ValueFormat = JSON, mode: Mode = Mode.FAILFAST
) -> TypedBatchMaker:
    schema = t.StructType(list(fields))
    check_typed_schema(schema, value_format, mode)
    return TypedBatchMaker("shop/orders", schema, value_format=value_format, mode=mode)


def rows_of(made: TypedBatchMaker, values: Sequence[bytes]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for batch in made.convert(event_batch(values)):
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


def rows(*numbers: int) -> bytes:
    return bytes(encode_arrow(pa.RecordBatch.from_pydict({"a": list(numbers)})))


def test_decoded_columns_are_beside_those_of_the_event() -> None:
    """Behaviour 54: columns as documented."""
    fields = [OWN[1], A, *OWN[2:], OWN[0]]
    (batch,) = maker(fields).convert(event_batch([b'{"a":1}', b'{"a":2}']))
    batch.validate(full=True)

    assert batch.schema.equals(arrow_schema_of(t.StructType(fields)))
    assert batch.to_pydict() == {
        "_timestamp": [pa.scalar(5, pa.timestamp("us", tz="UTC")).as_py()] * 2,
        "a": [1, 2],
        "_stream": ["shop/orders"] * 2,
        "_segment": [7, 7],
        "_offset": [64, 64],
        "_index": [0, 1],
        "_headers": [[("h", b"v")], []],
        "_row": [0, 0],
        "_corrupt_record": [None, None],
        "_error": [None, None],
        "_key": ["k0", "k1"],
    }


def test_the_rows_of_an_event_have_its_columns_and_a_number() -> None:
    found = rows_of(maker([A, OWN[0], OWN[5], OWN[7]], ARROW), [rows(1, 2), rows(), rows(3)])

    assert found == [
        {"a": 1, "_key": "k0", "_index": 0, "_row": 0},
        {"a": 2, "_key": "k0", "_index": 0, "_row": 1},
        {"a": 3, "_key": "k2", "_index": 2, "_row": 0},
    ]


def test_an_event_of_very_many_rows_is_handed_over_in_parts() -> None:
    batches = list(maker([A], ARROW).convert(event_batch([rows(*range(ROWS_MAX + 1))])))

    assert [len(batch) for batch in batches] == [ROWS_MAX, 1]


MIXED = {JSON: [b'{"a":1}', b"{", b"[]", b'{"a":2}'], ARROW: [rows(1), b"{", b"[]", rows(2)]}


@pytest.mark.parametrize("value_format", ValueFormat)
def test_a_malformed_value_fails_by_default_and_is_named(value_format: ValueFormat) -> None:
    with pytest.raises(MalformedValueError, match=r"shop/orders: .* segment 7 at 64\.1 is malformed: is no") as caught:
        rows_of(maker([A], value_format), MIXED[value_format])

    there = pickle.loads(pickle.dumps(caught.value))
    assert (there.segment, there.offset, there.index, str(there)) == (7, 64, 1, str(caught.value))


@pytest.mark.parametrize("value_format", ValueFormat)
def test_malformed_values_can_be_dropped_and_are_counted_in_the_log(
    value_format: ValueFormat, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = rows_of(maker([A, OWN[5]], value_format, Mode.DROPMALFORMED), MIXED[value_format])

    assert found == [{"a": 1, "_index": 0}, {"a": 2, "_index": 3}]
    assert "values malformed stream=shop/orders count=2 first=shop/orders: the value" in caplog.text


@pytest.mark.parametrize("value_format", ValueFormat)
def test_malformed_values_can_be_null_and_are_kept(value_format: ValueFormat) -> None:
    fields = [A, OWN[0], OWN[5], OWN[7], OWN[8], OWN[9]]
    found = rows_of(maker(fields, value_format, Mode.PERMISSIVE), MIXED[value_format])

    assert [row["a"] for row in found] == [1, None, None, 2]
    assert [row["_key"] for row in found] == ["k0", "k1", "k2", "k3"]
    assert [row["_index"] for row in found] == [0, 1, 2, 3]
    assert [row["_row"] for row in found] == [0, 0, 0, 0]
    assert [row["_corrupt_record"] for row in found] == [None, b"{", b"[]", None]
    assert [str(row["_error"])[:5] for row in found] == ["None", "is no", "is no", "None"]


def test_events_that_are_all_malformed_are_rows_too() -> None:
    made = maker([A, OWN[8]], JSON, Mode.PERMISSIVE)

    assert rows_of(made, [b"x", b"y"]) == [{"a": None, "_corrupt_record": b"x"}, {"a": None, "_corrupt_record": b"y"}]
    assert rows_of(maker([A], JSON, Mode.DROPMALFORMED), [b"x", b"y"]) == []


@table(
    ("column", "fields", "value_format", "mode"),
    [
        ("_key", [A, t.StructField("_key", t.LongType())], JSON, Mode.FAILFAST),
        ("_key", [A, t.StructField("_key", t.StringType(), nullable=False)], JSON, Mode.FAILFAST),
        ("_corrupt_record", [A, t.StructField("_corrupt_record", t.StringType())], JSON, Mode.PERMISSIVE),
        ("_index", [A, OWN[5], OWN[5]], JSON, Mode.FAILFAST),
        ("a", [A, A], JSON, Mode.FAILFAST),
        ("m", [t.StructField("m", SCHEMA["headers"].dataType)], JSON, Mode.FAILFAST),
        ("a", [t.StructField("a", t.LongType(), nullable=False)], ARROW, Mode.PERMISSIVE),
        ("value", [OWN[0]], JSON, Mode.FAILFAST),
        ("value", [], JSON, Mode.FAILFAST),
    ],
)
def test_a_schema_that_cannot_be_is_refused_by_column(
    column: str, fields: list[t.StructField], value_format: ValueFormat, mode: Mode
) -> None:
    """Behaviour 60."""
    with pytest.raises(SchemaError) as caught:
        check_typed_schema(t.StructType(fields), value_format, mode)

    assert caught.value.column == column


def test_columns_of_the_event_may_be_declared_never_null() -> None:
    fields = [A, *(t.StructField(field.name, field.dataType, nullable=False) for field in OWN[2:8])]
    (batch,) = maker(fields).convert(event_batch([b'{"a":1}']))

    assert batch.schema.equals(arrow_schema_of(t.StructType(fields)))
