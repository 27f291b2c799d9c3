import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from millrace.client.read.arrow import batch_of
from millrace.client.read.block_stream import PlacedBlock
from millrace.model.block_packing import pack_block
from millrace.model.event_block import unpack_block
from millrace.spark_source.errors import SchemaError
from millrace.spark_source.rows import ROWS_MAX, SCHEMA, BatchMaker, check_schema, schema_of
from tests.spark_source.conftest import arrow_schema_of
from tests.support.tables import table


def event_batch(count: int) -> pa.RecordBatch:
    keys = [None if number % 3 == 0 else f"k{number % 3}" for number in range(count)]
    block = unpack_block(pack_block([b"%d" % number for number in range(count)], keys=keys, timestamps_us=5))
    return batch_of(PlacedBlock(7, 64, block, 0, count))


def test_batches_are_what_spark_demands() -> None:
    """Behaviour 54: columns as documented."""
    (batch,) = BatchMaker("shop/orders", SCHEMA).convert(event_batch(4))
    batch.validate(full=True)

    assert batch.schema.equals(arrow_schema_of(SCHEMA))
    assert batch.to_pydict() == {
        "value": [b"0", b"1", b"2", b"3"],
        "key": [None, "k1", "k2", None],
        "timestamp": [pa.scalar(5, pa.timestamp("us", tz="UTC")).as_py()] * 4,
        "stream": ["shop/orders"] * 4,
        "segment": [7] * 4,
        "offset": [64] * 4,
        "index": [0, 1, 2, 3],
        "headers": [[]] * 4,
    }


def test_a_very_long_batch_is_handed_over_in_parts() -> None:
    parts = list(BatchMaker("shop/orders", SCHEMA).convert(event_batch(ROWS_MAX + 1)))

    assert [len(part) for part in parts] == [ROWS_MAX, 1]
    assert parts[1].to_pylist()[0]["index"] == ROWS_MAX


def test_a_schema_may_say_that_a_column_is_null_at_times() -> None:
    nullable = StructType([StructField(field.name, field.dataType) for field in SCHEMA.fields])
    check_schema(nullable)
    (batch,) = BatchMaker("shop/orders", nullable).convert(event_batch(2))

    assert batch.schema.equals(arrow_schema_of(nullable))


def test_columns_can_be_left_out() -> None:
    schema = schema_of(["index", "stream", "value"])
    check_schema(schema)
    (batch,) = BatchMaker("shop/orders", schema).convert(event_batch(1))

    assert batch.to_pylist() == [{"index": 0, "stream": "shop/orders", "value": b"0"}]


@table(
    ("column", "schema"),
    [
        ("values", StructType([StructField("values", SCHEMA["value"].dataType)])),
        ("value", StructType([StructField("value", StringType())])),
        ("key", StructType([SCHEMA["value"], StructField("key", StringType(), nullable=False)])),
        ("index", StructType([*SCHEMA.fields, SCHEMA["index"]])),
        ("value", StructType([])),
        ("colour", StructType([*SCHEMA.fields, StructField("colour", LongType())])),
    ],
)
def test_a_schema_that_is_another_is_refused_by_column(column: str, schema: StructType) -> None:
    """Behaviour 60."""
    with pytest.raises(SchemaError, match=f'column "{column}"'):
        check_schema(schema)
