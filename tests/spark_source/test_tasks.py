"""Behaviour 72: how many tasks there are, and what each reads."""

import itertools

import pytest
from pyspark.sql import SparkSession

from millrace.spark_source.positions import RangePartition, StreamOffset
from tests.spark_source.conftest import Batches, Driver, Drivers, Shop, rows_of, rows_of_events


def tasks_of(driver: Driver, start: dict[str, object], end: dict[str, object]) -> list[RangePartition]:
    partitions = driver.reader.partitions(start, end)
    assert all(isinstance(partition, RangePartition) for partition in partitions)
    return partitions  # type: ignore[return-value]


def test_a_query_has_a_task_of_each_open_segment_however_large(shop: Shop, drivers: Drivers) -> None:
    shop.create(3)
    shop.write(40, events=10, size=1000, keys=30)
    driver = drivers()
    first = driver.start()
    second = driver.end(first)
    assert [len(task.ranges) for task in tasks_of(driver, first, second)] == [1, 1, 1]

    shop.write(40, keys=30)
    shop.scale(0.2, 0.4, 0.6, 0.8)  # after a split the next batch but one has more tasks
    shop.write(40, keys=30)
    third = driver.end(second)
    fourth = driver.end(third)
    assert [len(task.ranges) for task in tasks_of(driver, second, third)] == [1, 1, 1]
    assert [len(task.ranges) for task in tasks_of(driver, third, fourth)] == [1] * 5
    assert len(driver.read(first, second) + driver.read(second, third) + driver.read(third, fourth)) == shop.written


def test_only_segments_with_something_to_read_have_tasks(shop: Shop, drivers: Drivers) -> None:
    shop.create(8)
    shop.write(3, keys=1)
    driver = drivers()
    start = driver.start()

    assert len(tasks_of(driver, start, driver.end(start))) == 1


def test_partition_bytes_divides_segments_and_puts_small_ones_together(shop: Shop, drivers: Drivers) -> None:
    shop.create(4)
    shop.write(80, events=20, size=1000, keys=40)
    driver = drivers(partitionBytes="200k")
    start = driver.start()
    end = driver.end(start)
    together = drivers(partitionBytes="64m")

    assert len(tasks_of(driver, start, end)) >= 8
    assert len(tasks_of(together, start, end)) == 1
    assert driver.read(start, end) == together.read(start, end)


def test_there_can_be_more_tasks_than_segments(shop: Shop, drivers: Drivers) -> None:
    shop.create(2)
    shop.write(80, events=20, size=1000, keys=40)
    plain = drivers()
    start = plain.start()
    end = plain.end(start)
    for count in (1, 2, 3, 8, 12):
        driver = drivers(minPartitions=count)
        tasks = tasks_of(driver, start, end)
        assert max(2, count) <= len(tasks) <= max(2, 2 * count)
        assert driver.read(start, end) == plain.read(start, end)
    assert len(tasks_of(drivers(minPartitions=12, partitionBytes="64m"), start, end)) >= 12
    # No more than there are places to divide the segments at.
    assert len(tasks_of(drivers(minPartitions=100_000), start, end)) < 100


def test_a_key_needs_no_batch_where_only_others_were_written(shop: Shop, drivers: Drivers) -> None:
    """The segments that hold none of it are passed, whatever their number of events, and cost the limits nothing."""
    shop.create(4)
    shop.write(21, keys=7)
    key = "key-3"
    (mine,) = [part for part in shop.client.stream_info(shop.stream).segments if part.holds(key)]
    driver = drivers(key=key, maxEventsPerTrigger=1000)
    start = driver.start()
    end = driver.end(start)
    assert {part.segment_id for task in tasks_of(driver, start, end) for part in task.ranges} == {mine.segment_id}
    assert [row[1] for row in driver.read(start, end)] == [key] * 30
    limited = StreamOffset.from_json(drivers(key=key, maxEventsPerTrigger=7).end(start)).marks
    assert limited == {**StreamOffset.from_json(end).marks, mine.segment_id: limited[mine.segment_id]}
    assert limited[mine.segment_id].events == 7

    others = [f"key-{number}" for number in itertools.islice(itertools.count(100), 50)]
    with shop.client.writer(shop.stream) as writer:
        for other in others:
            if not mine.holds(other):
                writer.write(b"other", key=other).result()
    assert driver.end(end) == end
    report = driver.reader.reportLatestOffset()
    assert report is not None
    assert report["lag"]["events"] == 0
    shop.scale(0.5)
    assert driver.end(end) != end  # its segment was replaced, too
    shop.write(7, keys=7)
    rows = [row for _, _, more in driver.batches(end) for row in more]
    assert [row[1] for row in rows] == [key] * 10


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_spark_runs_more_tasks_after_a_split(spark: SparkSession, shop: Shop, batches: Batches) -> None:
    shop.create(2)
    counts: list[int] = []

    def sink(frame: object, number: int) -> None:
        batches(frame, number)  # type: ignore[arg-type]
        counts.append(frame.rdd.getNumPartitions())  # type: ignore[attr-defined]

    query = shop.run(spark, sink, trigger={"processingTime": "0 seconds"})
    shop.write(30, keys=30)
    query.processAllAvailable()
    shop.scale(0.2, 0.4, 0.6, 0.8)
    shop.write(30, keys=30)
    query.processAllAvailable()
    query.stop()

    # What is written may come in more than one batch, and the last of them may concern few segments.
    assert counts[0] == 2
    assert max(counts) == 5
    assert sorted(batches.all) == sorted(rows_of_events(shop.plain()))
    frame = shop.batch(spark, minPartitions=9)
    assert frame.rdd.getNumPartitions() >= 7
    assert sorted(rows_of(frame)) == sorted(batches.all)
