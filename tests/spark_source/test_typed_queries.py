"""Typed values, read by a real local Spark."""

import itertools
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from millrace.spark_source.values import ValueEncoder, ValueFormat
from tests.spark_source.conftest import Shop
from tests.spark_source.values.rows import batches
from tests.support.examples import examples

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

VALUES = [b'{"id":1,"what":"tea"}', b'{"id":"x"}', b'{"id":2}', b"tea"]


def write(shop: Shop, *values: bytes, key: str | None = "k") -> None:
    with shop.client.writer(shop.stream) as writer:
        writer.write_many(list(values), key=key).result()


def typed(spark: SparkSession, shop: Shop, schema: str | t.StructType, **options: object) -> DataFrame:
    given = shop.options(**{"valueFormat": "json", **options})
    return spark.read.format("millrace").schema(schema).options(**given).load()


def test_json_is_read_into_the_columns_of_a_schema(spark: SparkSession, shop: Shop) -> None:
    """Behaviour 54."""
    shop.create()
    write(shop, b'{"id":1,"what":"tea","at":"2026-01-31T18:00:00Z","tags":["a"],"more":{"n":1.5}}', b'{"id":2}')
    schema = (
        "_key string, id long NOT NULL, what string, at timestamp, tags array<string>,"
        " more struct<n double>, _index int"
    )
    rows = typed(spark, shop, schema).orderBy("id").selectExpr("*", "cast(at as string) as text").collect()

    assert rows[0].asDict(recursive=True) | {"at": None} == {
        "_key": "k",
        "id": 1,
        "what": "tea",
        "at": None,
        "tags": ["a"],
        "more": {"n": 1.5},
        "_index": 0,
        "text": "2026-01-31 18:00:00",
    }
    assert rows[1].asDict() == {
        "_key": "k", "id": 2, "what": None, "at": None, "tags": None, "more": None, "_index": 1, "text": None
    }  # fmt: skip


def test_an_arrow_event_gives_many_rows(spark: SparkSession, shop: Shop) -> None:
    """Behaviour 54."""
    shop.create()
    schema = t.StructType(
        [t.StructField("id", t.LongType()), t.StructField("tags", t.MapType(t.StringType(), t.LongType()))]
    )
    batch = pa.RecordBatch.from_pydict(
        {
            "id": list(range(1000)),
            "tags": pa.array([[("n", number)] for number in range(1000)], pa.map_("string", "int64")),
        }
    )
    (encoded,) = ValueEncoder(schema, value_format=ValueFormat.ARROW).encode(batch)
    (event,) = encoded.events.to_pylist()
    write(shop, event["value"], event["value"])
    frame = typed(spark, shop, "id long, tags map<string,long>, _index int, _row int", valueFormat="arrow")

    assert frame.count() == 2000
    assert frame.where("id = _row and tags['n'] = id").groupBy("_index").count().orderBy("_index").collect() == [
        (0, 1000),
        (1, 1000),
    ]


def test_a_malformed_value_fails_the_query_by_default_and_is_named(spark: SparkSession, shop: Shop) -> None:
    shop.create()
    write(shop, *VALUES)
    (segment,) = shop.client.stream_info(shop.stream).open_segments

    with pytest.raises(PySparkException, match=rf"segment {segment.segment_id} at 0\.1 is malformed: Column\(/id\)"):
        typed(spark, shop, "id long, what string").collect()


def test_malformed_values_are_dropped_or_null_by_option(spark: SparkSession, shop: Shop) -> None:
    shop.create()
    write(shop, *VALUES)
    dropped = typed(spark, shop, "id long, what string", mode="DROPMALFORMED")
    kept = typed(spark, shop, "id long, _corrupt_record binary, _error string", mode="PERMISSIVE")

    assert sorted(dropped.collect()) == [(1, "tea"), (2, None)]
    assert [row["id"] for row in kept.collect()] == [1, None, 2, None]
    assert [bytes(row[0]) for row in kept.where("_error is not null").select("_corrupt_record").collect()] == [
        VALUES[1],
        VALUES[3],
    ]


def test_malformed_values_are_counted_in_the_progress_of_a_query(spark: SparkSession, shop: Shop) -> None:
    shop.create()
    write(shop, *VALUES)
    frame = (
        spark.readStream.format("millrace")
        .schema("id long, _error string")
        .options(**shop.options(valueFormat="json", mode="PERMISSIVE"))
        .load()
        .observe("values", f.count("_error").alias("malformed"), f.count("*").alias("all"))
        .where("_error is null")
    )
    found: list[Any] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.select("id").collect()))
        .option("checkpointLocation", str(shop.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert sorted(found) == [(1,), (2,)]
    assert query.recentProgress[0].observedMetrics["values"] == t.Row(malformed=2, all=4)


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        ("id long, _key long", {}, 'column "_key": is the event\'s own and string, not bigint'),
        ("id long, m map<string,string>", {}, 'column "m": .* no form in valueFormat "json"'),
        ("id long NOT NULL", {"mode": "PERMISSIVE"}, 'column "id": may be null'),
        ("id long", {"columns": "key"}, 'option "columns": goes without valueFormat'),
        ("id long", {"valueFormat": "avro"}, 'option "valueFormat": .* none of json, arrow'),
    ],
)
def test_what_is_wrong_is_said_before_any_task(
    spark: SparkSession, shop: Shop, schema: str, options: dict[str, str], reason: str
) -> None:
    """Behaviour 60."""
    shop.create()
    with pytest.raises(PySparkException, match=reason):
        typed(spark, shop, schema, **options).collect()


def test_a_format_without_a_schema_is_refused(spark: SparkSession, shop: Shop) -> None:
    """Behaviour 60."""
    shop.create()
    with pytest.raises(PySparkException, match=r'option "valueFormat": .*\.schema\(\.\.\.\)'):
        spark.read.format("millrace").options(**shop.options(valueFormat="json")).load()


@pytest.mark.parametrize("value_format", ValueFormat)
def test_what_is_written_is_read_back_equal(spark: SparkSession, shop: Shop, value_format: ValueFormat) -> None:
    """Behaviour 54: types, nulls and nesting of many schemas, through this source; JSON through Spark's parser, too."""

    numbers = itertools.count()

    # Without shrinking: each example is some queries of Spark.
    @settings(max_examples=examples(8), deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(batches(value_format).filter(lambda drawn: len(drawn[1]) > 0))
    def check(given_rows: tuple[t.StructType, pa.RecordBatch]) -> None:
        schema, batch = given_rows
        shop.stream = f"tests/typed-{value_format}-{next(numbers)}"
        shop.create()
        values = [
            event["value"]
            for part in ValueEncoder(schema, value_format=value_format).encode(batch)
            for event in part.events.to_pylist()
        ]
        write(shop, *values)
        # Spark takes no slices.
        whole = pa.Table.from_batches([batch.take(list(range(len(batch))))])
        wanted = as_json(spark.createDataFrame(whole, schema))
        assert as_json(typed(spark, shop, schema, valueFormat=value_format)) == wanted
        if value_format is ValueFormat.JSON:
            text = shop.batch(spark).select(f.from_json(f.col("value").cast("string"), schema).alias("row"))
            assert as_json(text.select("row.*")) == wanted

    check()


def as_json(frame: DataFrame) -> list[Any]:
    """Return rows as Spark writes them, so that no type of Python comes between."""
    whole = f.to_json(f.struct(*(f.col(f"`{name}`") for name in frame.columns)), {"ignoreNullFields": "false"})
    return [json.loads(row[0]) for row in frame.select(whole).collect()]
