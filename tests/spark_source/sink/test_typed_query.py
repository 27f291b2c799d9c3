"""Typed rows through the sink in a real local Spark."""

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import millrace
from tests.spark_source.conftest import Shop

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

SCHEMA = (
    "_key string, id long, name string, half double, on date, at timestamp, price decimal(10,2), tags array<string>,"
    " more struct<n:int,b:binary>"
)


def typed(raw: DataFrame) -> DataFrame:
    """Return rows of many types, of which that with the id 7 has no form in JSON."""
    read = raw.selectExpr("key as _key", "timestamp as _timestamp", "cast(cast(value as string) as long) as id")
    return read.selectExpr(
        "*",
        "concat('öre \"', id, '\"') as name",
        "if(id = 7, double('NaN'), id / 3) as half",
        "date_add(date'2026-01-31', cast(id as int)) as on",
        "if(id % 2 = 0, timestamp'2026-01-31 18:00:00.123456' + make_interval(0, 0, 0, cast(id as int)), null) as at",
        "cast(id * 1.25 as decimal(10,2)) as price",
        "array('a', null, cast(id as string)) as tags",
        "named_struct('n', cast(id as int), 'b', cast(cast(id as string) as binary)) as more",
    )


def run(shop: Shop, frame: DataFrame, **options: object) -> None:
    given = shop.options(**{"stream": f"{shop.stream}-cooked", "createSegments": 2, **options})
    query = (
        frame.writeStream.format("millrace")
        .options(**given)
        .option("checkpointLocation", str(shop.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def raw(spark: SparkSession, shop: Shop) -> DataFrame:
    shop.create(2)
    shop.write(4, size=9)
    return spark.readStream.format("millrace").options(**shop.options()).load()


@pytest.mark.parametrize("value_format", ["json", "arrow"])
def test_typed_rows_are_read_back_equal_and_dead_letters_are_there_once(
    spark: SparkSession, shop: Shop, value_format: str
) -> None:
    """Behaviours 54, 55 and 60: types, nulls and nesting; a row without a form is in the other stream."""
    dead = f"{shop.stream}-dead"
    # An event of Arrow has many rows, so it takes no timestamps.
    left_out = ["_timestamp"] if value_format == "arrow" else []
    run(shop, typed(raw(spark, shop)).drop(*left_out), valueFormat=value_format, deadLetterStream=dead)

    wanted = rows_of(typed(shop.batch(spark)).drop("_timestamp"))
    frame = spark.read.format("millrace").schema(SCHEMA)
    found = rows_of(frame.options(**shop.options(stream=f"{shop.stream}-cooked", valueFormat=value_format)).load())
    with shop.client.reader(dead, end=millrace.TAIL) as reader:
        letters = list(reader)
    assert len(wanted) == 40
    if value_format == "arrow":
        assert (found, letters) == (wanted, [])
        return
    assert found == [row for row in wanted if row["id"] != 7]
    (letter,) = letters
    assert letter.key == "key-0"
    assert letter.headers["dead-letter-error"] == b'column "half" is not finite, which JSON has no form for'


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Return rows by their ids; NaN as text, which is equal to itself."""
    rows = frame.selectExpr("*", "cast(half as string) as half_text").drop("half").orderBy("id").collect()
    return [dict(sorted(row.asDict(recursive=True).items())) for row in rows]


def test_what_has_no_form_ends_a_query_before_any_task(spark: SparkSession, shop: Shop) -> None:
    """Behaviour 60."""
    frame = raw(spark, shop).selectExpr("map(key, 1) as counts")
    with pytest.raises(StreamingQueryException, match=r'column "counts": .* no form in valueFormat "json"'):
        run(shop, frame, valueFormat="json")
