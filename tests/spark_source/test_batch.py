"""Batch DataFrames, in a real local Spark."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import millrace
from millrace.spark_source.options import DEFAULT_COLUMNS
from millrace.spark_source.rows import SCHEMA, schema_of
from tests.spark_source.conftest import Shop, rows_of, rows_of_events

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]


@pytest.mark.smoke
def test_a_batch_is_what_the_plain_reader_reads(spark: SparkSession, shop: Shop) -> None:
    """Behaviour 54."""
    shop.create(3)
    shop.write(30, events=20)
    shop.write(1, keys=0)
    frame = shop.batch(spark)

    assert frame.schema == schema_of(DEFAULT_COLUMNS)
    assert sorted(rows_of(frame)) == sorted(rows_of_events(shop.plain()))
    assert {row[0] for row in frame.select("stream").distinct().collect()} == {shop.stream}


def test_slices_by_cuts_and_by_time_are_those_of_the_plain_reader(spark: SparkSession, shop: Shop) -> None:
    """Behaviour 54."""
    shop.create(2)
    shop.write(10)
    first = shop.client.stream_cut(shop.stream)
    moment = max(event.timestamp_us or 0 for event in shop.plain()) + 1
    shop.write(10)
    second = shop.client.stream_cut(shop.stream)
    shop.write(10)

    between = rows_of(shop.batch(spark, startCut=first, endCut=second))
    assert sorted(between) == sorted(rows_of_events(shop.plain(start=first, end=second)))
    assert len(between) == 100
    assert sorted(rows_of(shop.batch(spark, startCut=moment, endCut=second))) == sorted(between)
    assert shop.batch(spark, startCut="tail").count() == 0


def test_one_large_segment_is_read_by_many_tasks_in_order(spark: SparkSession, shop: Shop) -> None:
    """Behaviour 54."""
    shop.create()
    shop.write(60, events=10, size=1000)
    frame = shop.batch(spark, partitionBytes="200k")

    assert frame.selectExpr("spark_partition_id()").distinct().count() >= 3
    assert rows_of(frame) == rows_of_events(shop.plain())


def test_a_batch_spans_all_epochs_of_a_stream(spark: SparkSession, shop: Shop) -> None:
    """Behaviour 54: a stream that was split and merged, as a whole and between two cuts of different epochs."""
    shop.create(2)
    for borders in ((0.2, 0.4, 0.6), (), (0.5,)):
        shop.write(10)
        shop.scale(*borders)
    shop.write(10)
    start, end = (shop.client.stream_cut(shop.stream, after_events=count) for count in (150, 350))

    assert shop.batch(spark, partitionBytes="1k").count() == 400
    assert sorted(rows_of(shop.batch(spark))) == sorted(rows_of_events(shop.plain()))
    assert sorted(rows_of(shop.batch(spark, startCut=start, endCut=end))) == sorted(
        rows_of_events(shop.plain(start=start, end=end))
    )


def test_a_data_frame_is_what_was_there_when_it_was_loaded(spark: SparkSession, shop: Shop) -> None:
    """However often it is used, and twice in one query too."""
    shop.create()
    shop.write(3)
    frame = shop.batch(spark)
    shop.write(3)

    assert frame.count() == 30
    assert frame.join(frame.select("segment", "offset", "index"), ["segment", "offset", "index"]).count() == 30
    assert shop.batch(spark).count() == 60


def test_columns_can_be_chosen_and_rows_filtered(spark: SparkSession, shop: Shop) -> None:
    shop.create()
    shop.write(10, keys=2)
    frame = shop.batch(spark).where("key = 'key-1' and index < 3").select("key", "index")

    assert frame.count() == 15
    assert shop.batch(spark, columns="index,value").columns == ["index", "value"]
    assert shop.batch(spark, columns="index,value").where("index = 3").count() == 10
    assert spark.read.format("millrace").schema(SCHEMA).options(**shop.options()).load().count() == 100


def test_headers_are_a_column_where_they_are_asked_for(spark: SparkSession, shop: Shop) -> None:
    shop.create()
    with shop.client.writer(shop.stream) as writer:
        writer.write(b"with", headers={"trace": b"\xff1", "of": b""})
        writer.write(b"without")

    assert "headers" not in shop.batch(spark).columns
    rows = shop.batch(spark, includeHeaders="true").select("value", "headers").collect()
    headers = {bytes(row["value"]): {name: bytes(value) for name, value in row["headers"].items()} for row in rows}
    assert headers == {b"with": {"trace": b"\xff1", "of": b""}, b"without": {}}


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("stream", "shop/none", "there is no stream"),
        ("stream", "no name", "stream"),
        ("address", "127.0.0.1:1", "no server could be reached"),
        ("startCut", "whenever", "is not a place in a stream"),
        ("maxBytesPerTriger", "1m", "did you mean maxBytesPerTrigger"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_wrong_is_said_at_load(
    spark: SparkSession, shop: Shop, option: str, value: str, reason: str, *, streaming: bool
) -> None:
    """Behaviour 60."""
    shop.create()
    reader = spark.readStream if streaming else spark.read

    with pytest.raises(PySparkException, match=rf'(?i)option "{option}": .*{reason}'):
        reader.format("millrace").options(**shop.options(**{option: value})).load()


def test_a_schema_that_is_another_is_refused_by_column(spark: SparkSession, shop: Shop) -> None:
    """Behaviour 60."""
    shop.create()
    reader = spark.read.format("millrace").schema("value string").options(**shop.options())

    with pytest.raises(PySparkException, match='column "value": is binary, not string'):
        reader.load().collect()


def test_a_truncated_start_is_named(spark: SparkSession, shop: Shop) -> None:
    """Behaviour 58."""
    shop.create()
    shop.write(5)
    head = shop.client.stream_cut(shop.stream)
    (segment,) = head.places
    start = millrace.StreamCut.of(shop.stream, {segment: (0, 3)})
    shop.client.truncate_stream(shop.stream, head)
    shop.write(5)

    with pytest.raises(PySparkException, match=rf"truncated before it was read: segment {segment} from 0\.3 to"):
        shop.batch(spark, startCut=start).collect()
    assert shop.batch(spark, startCut=start, failOnDataLoss="false").count() == 50
