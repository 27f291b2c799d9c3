"""Streaming queries, in a real local Spark."""

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import millrace
from tests.spark_source.conftest import LIMITS_ARE_GIVEN, Batches, Row, Shop, needs_limits, rows_of_events

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]


@needs_limits
def test_a_restart_leaves_no_gap_and_repeats_nothing(spark: SparkSession, shop: Shop, batches: Batches) -> None:
    """Behaviours 55 and 56: limits hold, and AvailableNow ends at the tail taken at its start."""
    shop.create(2)
    shop.write(10)

    def sink(frame: DataFrame, number: int) -> None:
        batches(frame, number)
        if number == 0:
            shop.write(10)  # after the tail that was taken

    shop.run(spark, sink, maxEventsPerTrigger=40).awaitTermination()
    assert batches.sizes == [40, 40, 20]

    shop.run(spark, batches, maxEventsPerTrigger=70).awaitTermination()
    assert batches.sizes == [40, 40, 20, 70, 30]
    assert sorted(batches.all) == sorted(rows_of_events(shop.plain()))


@pytest.mark.skipif(LIMITS_ARE_GIVEN, reason="Spark gives limits to a Python source from 4.2 on")
def test_without_limits_a_run_is_one_batch_up_to_the_tail(spark: SparkSession, shop: Shop, batches: Batches) -> None:
    """Behaviour 55, where Spark tells a source neither a start nor a limit; over splits, a failure and a restart."""
    shop.create(2)
    shop.write(10)
    failed: list[Row] = []

    def sink(frame: DataFrame, number: int) -> None:
        batches(frame, number)
        if number == 1 and not failed:
            failed.extend(batches.rows[1])
            raise RuntimeError("the sink is out of order")

    shop.run(spark, sink, maxEventsPerTrigger=40).awaitTermination()
    shop.write(5)
    shop.scale(0.2, 0.6)
    shop.write(10)
    with pytest.raises(StreamingQueryException, match="out of order"):
        shop.run(spark, sink, maxEventsPerTrigger=40).awaitTermination()
    shop.write(5)
    shop.run(spark, sink, maxEventsPerTrigger=40).awaitTermination()
    assert batches.sizes == [100, 150]  # AvailableNow is one batch: the one that has failed
    shop.run(spark, sink, maxEventsPerTrigger=40).awaitTermination()

    assert batches.rows[1] == failed
    assert batches.sizes == [100, 150, 50]
    assert sorted(batches.all) == sorted(rows_of_events(shop.plain()))


@needs_limits
def test_bytes_of_a_trigger_are_limited(spark: SparkSession, shop: Shop, batches: Batches) -> None:
    """Behaviour 56."""
    shop.create()
    shop.write(20, events=10, size=1000)
    query = shop.run(spark, batches, maxBytesPerTrigger="64k")
    query.awaitTermination()

    # Six blocks of 10 KB and their columns fit 64 KiB.
    assert batches.sizes == [60, 60, 60, 20]
    assert batches.all == rows_of_events(shop.plain())


@needs_limits
def test_lag_is_in_the_progress_of_the_query(spark: SparkSession, shop: Shop, batches: Batches) -> None:
    """Behaviour 59."""
    shop.create(2)
    shop.write(10)
    query = shop.run(spark, batches, maxEventsPerTrigger=60)
    query.awaitTermination()
    reports = [json.loads(progress.sources[0].latestOffset) for progress in query.recentProgress]

    assert [report["lag"]["events"] for report in reports[:2]] == [40, 0]
    assert reports[0]["lag"]["bytes"] > 0
    assert reports[0]["lag"]["seconds"] > 0
    assert reports[0]["cut"] == str(shop.client.stream_cut(shop.stream))


def test_a_query_that_runs_on_reads_what_comes_and_stops_at_its_end_cut(
    spark: SparkSession, shop: Shop, batches: Batches
) -> None:
    """Behaviour 56: after an end cut nothing is read, and with AvailableNow the query ends there."""
    shop.create(2)
    shop.write(5)
    query = shop.run(spark, batches, trigger={"processingTime": "0 seconds"})
    query.processAllAvailable()
    assert len(batches.all) == 50
    shop.write(5)
    end = shop.client.stream_cut(shop.stream)
    query.processAllAvailable()
    assert len(batches.all) == 100
    query.stop()
    shop.write(5)

    bounded = Batches()
    query = shop.run(spark, bounded, checkpoint="bounded", trigger={"processingTime": "0 seconds"}, endCut=end)
    query.processAllAvailable()
    query.stop()
    assert sorted(bounded.all) == sorted(rows_of_events(shop.plain(end=end)))
    query = shop.run(spark, bounded, checkpoint="bounded", endCut=end)
    query.awaitTermination()
    assert len(bounded.all) == 100


def test_a_truncation_under_a_query_ends_it_unless_it_may_lose_events(
    spark: SparkSession, shop: Shop, batches: Batches
) -> None:
    """Behaviour 58."""
    shop.create()
    shop.write(5)
    shop.run(spark, batches).awaitTermination()
    shop.write(5)
    cut = shop.client.stream_cut(shop.stream)
    shop.write(5)
    shop.client.truncate_stream(shop.stream, cut)
    (segment,) = cut.places

    with pytest.raises(StreamingQueryException, match=rf"segment {segment} from \d+\.0 to \d+ \(50 events\)"):
        shop.run(spark, batches).awaitTermination()

    query = shop.run(spark, batches, failOnDataLoss="false")
    query.awaitTermination()
    assert batches.sizes == [50, 50]
    assert sorted(batches.rows[1]) == sorted(rows_of_events(shop.plain()))
    progress = query.lastProgress
    assert progress is not None
    if LIMITS_ARE_GIVEN:  # else Spark has the offset before the source knows where the batch starts
        assert json.loads(progress.sources[0].endOffset)["lost"] == 50


@needs_limits
def test_a_failed_task_is_run_again_over_the_same_events(
    spark: SparkSession, shop: Shop, batches: Batches, tmp_path: Path
) -> None:
    """Behaviour 55, as far as a source reaches: after a failed batch the same events come under the same number."""
    shop.create(2)
    shop.write(10)
    failed: list[Row] = []

    def sink(frame: DataFrame, number: int) -> None:
        if number == 1 and not failed:
            batches(frame, number)
            failed.extend(batches.rows[1])
            raise RuntimeError("the sink is out of order")
        batches(frame, number)

    with pytest.raises(StreamingQueryException, match="out of order"):
        shop.run(spark, sink, maxEventsPerTrigger=30).awaitTermination()
    shop.write(10)
    shop.run(spark, sink, maxEventsPerTrigger=50).awaitTermination()

    assert batches.rows[1] == failed
    assert sorted(batches.all) == sorted(rows_of_events(shop.plain()))


@needs_limits
def test_a_query_follows_splits_and_merges_across_a_failure_and_a_restart(
    spark: SparkSession, shop: Shop, batches: Batches
) -> None:
    """Behaviours 55 and 57: each event is in the sink once, and no batch has a key in two segments."""
    shop.create(2)
    shop.write(10)
    failed: dict[int, list[Row]] = {}

    def sink(frame: DataFrame, number: int) -> None:
        batches(frame, number)
        if shop.written == 400 and not failed:
            failed[number] = batches.rows[number]
            raise RuntimeError("the sink is out of order")

    query = shop.run(spark, sink, trigger={"processingTime": "0 seconds"}, maxEventsPerTrigger=60)
    query.processAllAvailable()
    shop.scale(0.2, 0.4, 0.6)  # while the query runs
    shop.write(10)
    query.processAllAvailable()
    shop.scale()
    shop.write(10)
    query.processAllAvailable()
    assert sorted(batches.all) == sorted(rows_of_events(shop.plain()))
    shop.scale(0.5)
    shop.write(10)
    with pytest.raises(StreamingQueryException, match="out of order"):
        query.processAllAvailable()
    shop.scale(0.3)  # while it does not
    shop.write(10)
    shop.run(spark, sink, maxEventsPerTrigger=60).awaitTermination()

    ((number, rows),) = failed.items()
    assert batches.rows[number] == rows
    assert all(len(rows) <= 60 for rows in batches.rows.values())
    assert sorted(batches.all) == sorted(rows_of_events(shop.plain()))
    assert shop.written == len(batches.all) == 500
    by_key: dict[str | None, list[bytes]] = {}
    for row in batches.all:
        by_key.setdefault(row[1], []).append(row[0])
    assert all(values == sorted(values) for values in by_key.values())
    for rows in batches.rows.values():
        assert len({row[1] for row in rows}) == len({(row[1], row[3]) for row in rows})


DRIVER = """
import pickle, sys, threading
from pathlib import Path
from pyspark.sql import SparkSession
from millrace.spark_source import MillraceDataSource
from tests.spark_source.conftest import rows_of

folder = Path(sys.argv[1])
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
)
spark.dataSource.register(MillraceDataSource)

def sink(frame, number):
    (folder / f"batch-{number}").write_bytes(pickle.dumps(rows_of(frame)))
    if number == 2:
        print("written", flush=True)
        threading.Event().wait()  # the sink has the batch, Spark does not know it yet

options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
rows = spark.readStream.format("millrace").options(**options).load()
query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
query.trigger(availableNow=True).start().awaitTermination()
"""


@needs_limits
def test_a_killed_driver_runs_its_last_batch_again_as_it_was(spark: SparkSession, shop: Shop, batches: Batches) -> None:
    """Behaviour 55: killed between the commit of the sink and Spark's own, the batch comes again, the very same."""
    shop.create(2)
    shop.write(20)
    options = shop.options(maxEventsPerTrigger=45)
    arguments = [sys.executable, "-c", DRIVER, str(shop.folder), *(text for pair in options.items() for text in pair)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
        env=environment,
    ) as driver:
        assert driver.stdout is not None
        said = driver.stdout.readline()
        os.killpg(driver.pid, signal.SIGKILL)  # Python and its JVM
    assert said == "written\n"
    before: dict[int, Any] = {
        number: pickle.loads((shop.folder / f"batch-{number}").read_bytes()) for number in range(3)
    }
    shop.write(5)

    shop.run(spark, batches, maxEventsPerTrigger=100).awaitTermination()

    assert min(batches.rows) == 2
    assert batches.rows[2] == before[2]
    everything = [*before[0], *before[1], *batches.all]
    assert sorted(everything) == sorted(rows_of_events(shop.plain(end=millrace.TAIL)))
