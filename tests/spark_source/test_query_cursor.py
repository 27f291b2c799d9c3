"""Behaviour 59: a query is a cursor on the server."""

import logging
from contextlib import closing

import pytest
from pyspark.sql import DataFrame, SparkSession

import millrace
from millrace.model.policy import RetentionPolicy, StreamConfig
from millrace.server.streams.options import MetricsOptions
from millrace.spark_source import cut_of
from millrace.spark_source.link import Link
from millrace.spark_source.options import parse_options
from millrace.spark_source.positions import StreamOffset
from millrace.spark_source.query_cursor import RENEWAL_S_MAX, QueryCursor
from tests.spark_source.conftest import Batches, Drivers, Shop, needs_limits
from tests.support.clock import ManualClock


def cursors_of(shop: Shop) -> dict[str, str]:
    return {saved.name: str(saved.cut) for saved in shop.client.cursors(shop.stream).list()}


def test_a_query_that_is_given_no_name_makes_one_that_rides_in_its_offsets(shop: Shop, drivers: Drivers) -> None:
    shop.create(2)
    driver = drivers()
    first = driver.start()
    name = first["cursor"]
    assert name.startswith("spark-")
    assert driver.start()["cursor"] == name
    assert driver.end(first) == first
    assert cursors_of(shop) == {name: first["cut"]}

    shop.write(5)
    second = driver.end(first)
    assert second["cursor"] == name
    assert cursors_of(shop) == {name: first["cut"]}  # what is planned is not read
    driver.reader.commit(second)
    assert cursors_of(shop) == {name: second["cut"]}
    assert drivers().start()["cursor"] != name


def test_the_last_batch_is_counted_by_the_next_question(shop: Shop, drivers: Drivers) -> None:
    """Spark commits a batch when it has planned the next one, and so never the last one of AvailableNow."""
    shop.create(2)
    shop.write(5)
    driver = drivers(cursor="billing")
    first = driver.start()
    second = driver.end(first)
    assert cursors_of(shop) == {"billing": first["cut"]}
    assert driver.end(second) == second  # nothing is left
    assert cursors_of(shop) == {"billing": second["cut"]}

    shop.write(5)
    restarted = drivers(cursor="billing")
    third = restarted.end(second)
    shop.client.cursors(shop.stream).forget("billing")
    restarted.reader.commit(second)  # it is where it was set last, and so is not set again
    assert cursors_of(shop) == {}
    assert drivers(cursor="billing").end(third) == third  # a process that was started again sets it first of all
    assert cursors_of(shop) == {"billing": third["cut"]}


def test_a_checkpoint_from_before_there_were_cursors_gets_one(shop: Shop, drivers: Drivers) -> None:
    shop.create()
    shop.write(5)
    driver = drivers()
    start = driver.start()
    del start["cursor"]
    end = driver.end(start)

    assert end["cursor"].startswith("spark-")
    driver.reader.commit(end)
    assert cursors_of(shop) == {end["cursor"]: end["cut"]}


def test_the_name_of_the_options_wins(shop: Shop, drivers: Drivers) -> None:
    shop.create()
    start = drivers().start()
    shop.write(1)
    end = drivers(cursor="billing").end(start)

    assert end["cursor"] == "billing"
    assert cursors_of(shop) == {"billing": start["cut"]}


def test_the_cursor_of_a_key_passes_the_segments_of_others(shop: Shop, drivers: Drivers) -> None:
    """Else a query of one key would hold back what it never reads."""
    shop.create(4)
    driver = drivers(key="key-1", cursor="one key")
    start = driver.start()
    (mine,) = [part for part in shop.client.stream_info(shop.stream).segments if part.holds("key-1")]
    with shop.client.writer(shop.stream) as writer:
        for number in range(40):
            if not mine.holds(f"other-{number}"):
                writer.write(b"other", key=f"other-{number}").result()
    assert driver.end(start) == start

    assert cursors_of(shop) == {"one key": str(shop.client.stream_cut(shop.stream))}


def test_a_cursor_that_a_truncation_has_passed_is_set_to_what_is_left(shop: Shop, drivers: Drivers) -> None:
    shop.create()
    shop.write(10)
    driver = drivers(cursor="billing", failOnDataLoss="false", maxEventsPerTrigger=5)
    end = driver.end(driver.start())
    head = shop.client.stream_cut(shop.stream, after_events=50)
    shop.client.truncate_stream(shop.stream, head)
    driver.reader.commit(end)

    assert cursors_of(shop) == {"billing": str(head)}


def test_a_query_goes_on_without_a_cursor_where_the_server_takes_none(
    shop: Shop, drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    shop.create()
    shop.client.bookmarks(shop.stream).save_many({f"mark-{number}": millrace.HEAD for number in range(1000)})
    shop.write(3)
    driver = drivers(maxEventsPerTrigger=10)
    with caplog.at_level(logging.WARNING):
        for _, end, _ in driver.batches():
            driver.reader.commit(end)

    assert StreamOffset.from_json(end).cuts == {shop.stream: shop.client.stream_cut(shop.stream)}
    assert sum("cursor not set" in record.message for record in caplog.records) == 1


def test_an_idle_query_renews_its_cursor(shop: Shop) -> None:
    """So that the server does not take it for dead."""
    shop.create()
    clock = ManualClock()
    cursor = QueryCursor(hold_s=100, clock=clock)
    cuts = {shop.stream: shop.client.stream_cut(shop.stream)}
    with closing(Link(parse_options(shop.options()))) as link:

        def saved_us() -> int:
            link.turn(cursor.move(link.client(), "billing", cuts))
            (saved,) = shop.client.cursors(shop.stream).list()
            assert saved.hold_s == 100
            return saved.saved_us

        first_us = saved_us()
        clock.move(24.9)
        assert saved_us() == first_us
        clock.move(0.1)
        second_us = saved_us()
        assert second_us > first_us
        assert saved_us() == second_us


def test_an_idle_query_that_holds_for_long_stays_in_the_metrics(shop: Shop) -> None:
    """It sets its cursor again long before it counts as silent there."""
    shop.create()
    clock = ManualClock()
    cursor = QueryCursor(hold_s=7 * 86_400, clock=clock)
    cuts = {shop.stream: shop.client.stream_cut(shop.stream)}
    with closing(Link(parse_options(shop.options()))) as link:
        saved: set[int] = set()
        for _ in range(3):
            link.turn(cursor.move(link.client(), "billing", cuts))
            saved |= {each.saved_us for each in shop.client.cursors(shop.stream).list()}
            clock.move(RENEWAL_S_MAX)
        assert len(saved) == 3
    assert MetricsOptions().cursor_silence_s > 2 * RENEWAL_S_MAX


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@needs_limits
def test_lag_and_retention_know_a_query_in_spark(spark: SparkSession, shop: Shop, batches: Batches) -> None:
    """Retention by consumption keeps what the query has not read, and drops what it has."""
    config = StreamConfig(retention=RetentionPolicy.by_consumption())
    assert shop.client.create_stream(shop.stream, config)
    shop.write(20)
    seen: list[int] = []

    def sink(frame: DataFrame, number: int) -> None:
        batches(frame, number)
        (cursor,) = shop.client.cursors(shop.stream).list()
        seen.append(shop.client.distance(cursor.cut, millrace.TAIL).events)

    query = shop.run(spark, sink, maxEventsPerTrigger=50)
    query.awaitTermination()
    ((name, cut),) = cursors_of(shop).items()
    assert name.startswith("spark-")
    assert cut == str(shop.client.stream_cut(shop.stream)) == str(cut_of(query))
    assert seen == [200, 150, 100, 50]  # as of the batch before
    (facts,) = shop.client.explain_stream(shop.stream)["cursors"]
    assert (facts["unread_bytes"], facts["hold_s"]) == (0, 7 * 86_400)
    shop.write(10)
    shop.run(spark, batches, maxEventsPerTrigger=50).awaitTermination()
    assert list(cursors_of(shop)) == [name]
    assert len(batches.all) == 300
