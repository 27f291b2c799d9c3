"""The sink in a real local Spark."""

import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import millrace
from millrace.spark_source import committed
from tests.spark_source.conftest import LIMITS_ARE_GIVEN, Shop

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

Change = Callable[[DataFrame], DataFrame]


class Cooking:
    """Queries from the raw stream of a shop to a cooked one."""

    def __init__(self, spark: SparkSession, shop: Shop) -> None:
        self.spark = spark
        self.shop = shop
        self.cooked = f"{shop.stream}-cooked"
        # Of other tests on this server, whose leases run.
        self._open_before = {listed.number for listed in shop.client.list_transactions()}
        shop.create(2)
        assert shop.client.create_stream(self.cooked, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(3)))

    def raw(self, **options: object) -> DataFrame:
        return self.spark.readStream.format("millrace").options(**self.shop.options(**options)).load()

    def start(
        self,
        change: Change = lambda raw: raw.select("value", "key"),
        *,
        checkpoint: str = "checkpoint",
        mode: str = "append",
        batch: int = 100,
        **options: object,
    ) -> StreamingQuery:
        return (
            change(self.raw(maxEventsPerTrigger=batch))
            .writeStream.format("millrace")
            .outputMode(mode)
            .options(**self.options(**options))
            .option("checkpointLocation", str(self.shop.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, *arguments: Any, **options: Any) -> StreamingQuery:
        query = self.start(*arguments, **options)
        query.awaitTermination()
        return query

    def options(self, **options: object) -> dict[str, str]:
        return self.shop.options(**{"stream": self.cooked, **options})

    def left_open(self) -> list[millrace.ListedTransaction]:
        """Return the transactions that were begun since and are open."""
        return [each for each in self.shop.client.list_transactions() if each.number not in self._open_before]

    def stored(self) -> list[tuple[str | None, bytes]]:
        """Return the events of the cooked stream, those of each key in the order in which they are read."""
        with self.shop.client.reader(self.cooked, end=millrace.TAIL) as reader:
            return [(event.key, event.value) for event in reader]

    def expected(self) -> list[tuple[str | None, bytes]]:
        return [(event.key, event.value) for event in self.shop.plain()]


@pytest.fixture
def cooking(spark: SparkSession, shop: Shop) -> Cooking:
    return Cooking(spark, shop)


def test_each_batch_is_in_the_stream_once_and_a_restart_continues(cooking: Cooking) -> None:
    """Behaviours 55 and 67; Spark tells its tasks the query, its run and the batch under the names that we know."""
    shop = cooking.shop
    shop.write(25)
    query = cooking.run()
    last = 2 if LIMITS_ARE_GIVEN else 0  # without limits a run is one batch
    known = shop.client.producer_info(str(query.id))
    assert (known.holder, known.run, known.last_sequence) == (str(query.id), str(query.runId), last)
    shop.write(10)
    again = cooking.run()

    assert Counter(cooking.stored()) == Counter(cooking.expected())
    assert len(cooking.stored()) == 350
    by_key: dict[str | None, list[bytes]] = {}
    for key, value in cooking.stored():
        by_key.setdefault(key, []).append(value)
    assert all(values == sorted(values) for values in by_key.values())
    known = shop.client.producer_info(str(query.id))
    assert (known.run, known.last_sequence) == (str(again.runId), last + 1)
    assert known.fenced_runs == (str(query.runId),)
    assert committed(shop.address, str(query.id), last + 1) == shop.client.stream_cut(cooking.cooked)
    assert committed(shop.address, str(query.id), last + 2) is None
    assert cooking.left_open() == []


@pytest.mark.smoke
def test_a_query_follows_the_query_that_feeds_it(cooking: Cooking) -> None:
    """Behaviour 71, of two queries and without a kill."""
    shop = cooking.shop
    served = f"{shop.stream}-served"
    assert shop.client.create_stream(served)
    shop.write(25)
    cooking.run()
    query = (
        cooking.raw(stream=cooking.cooked)
        .select("value", "key")
        .writeStream.format("millrace")
        .options(**shop.options(stream=served))
        .option("checkpointLocation", str(shop.folder / "served"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    with shop.client.reader(served, end=millrace.TAIL) as reader:
        assert Counter((event.key, event.value) for event in reader) == Counter(cooking.expected())


def test_batches_without_rows_are_committed(cooking: Cooking) -> None:
    """Behaviour 70."""
    cooking.shop.write(5)
    query = cooking.run(lambda raw: raw.select("value", "key").where("key = 'none'"))

    assert cooking.stored() == []
    assert cooking.shop.client.producer_info(str(query.id)).last_sequence == 0


def test_a_new_checkpoint_under_a_writer_id_is_another_holder(cooking: Cooking) -> None:
    """Behaviour 69: refused, whatever its batches are, until a reset; the error names both and the command."""
    shop = cooking.shop
    shop.write(5)
    first = cooking.run(writerId=f"cook-{shop.stream}")
    assert len(cooking.stored()) == 50
    second = cooking.start(checkpoint="second", writerId=f"cook-{shop.stream}")
    with pytest.raises(StreamingQueryException) as caught:
        second.awaitTermination()
    assert f"is held by {first.id}, not by {second.id}" in str(caught.value)
    assert f"millrace txn reset cook-{shop.stream}" in str(caught.value)
    assert len(cooking.stored()) == 50

    shop.client.reset_producer(f"cook-{shop.stream}")
    cooking.run(checkpoint="second", writerId=f"cook-{shop.stream}")

    assert len(cooking.stored()) == 100


def test_without_a_writer_id_a_new_checkpoint_is_a_new_identity(cooking: Cooking) -> None:
    """So what is read again is written again."""
    cooking.shop.write(5)
    cooking.run()
    cooking.run(checkpoint="second")

    assert len(cooking.stored()) == 100


def test_a_checkpoint_that_was_copied_or_restored_loses_no_row_silently(cooking: Cooking) -> None:
    """Behaviour 99: a copy that writes elsewhere, and a backup that meets newer input."""
    shop = cooking.shop
    fork = f"{cooking.cooked}-fork"
    shop.write(2)
    cooking.run()
    for copy in ("fork", "backup"):
        shutil.copytree(shop.folder / "checkpoint", shop.folder / copy)
    shop.write(3)
    cooking.run()

    with pytest.raises(StreamingQueryException, match=rf"BatchMismatchError.* and now writes to {fork}"):
        cooking.run(checkpoint="fork", stream=fork, createSegments=1)
    shop.write(4)
    with pytest.raises(StreamingQueryException, match=r"BatchMismatchError.* with other input"):
        cooking.run(checkpoint="backup")
    cooking.run(checkpoint="fork", stream=fork, createSegments=1, writerId=fork)
    cooking.run()

    assert len(cooking.stored()) == 90
    with shop.client.reader(fork, end=millrace.TAIL) as reader:
        assert len(list(reader)) == 70  # what was written after the copy was made


def test_output_modes_that_replace_are_refused(cooking: Cooking) -> None:
    """Behaviour 60: complete by the sink, with a reason, and update by Spark."""
    cooking.shop.write(5)

    def counted(raw: DataFrame) -> DataFrame:
        return raw.groupBy("key").count().selectExpr("key", "cast(count as string) as value")

    with pytest.raises(StreamingQueryException, match="complete: each batch would replace the one before"):
        cooking.run(counted, mode="complete")
    with pytest.raises(StreamingQueryException, match="millrace does not support Update mode"):
        cooking.run(counted, mode="update", checkpoint="second")
    assert cooking.stored() == []


def test_what_changes_is_written_by_foreach_batch_once(cooking: Cooking) -> None:
    """Behaviour 67 for output mode update: the batch write has the number of the batch, and the query is the holder."""
    shop = cooking.shop
    shop.write(5)
    failed: list[int] = []

    def write(changed: DataFrame, batch: int) -> None:
        events = changed.selectExpr("key", "cast(count as string) as value")
        options = cooking.options(writerId=f"counts-{shop.stream}", batchId=batch)
        events.write.format("millrace").options(**options).mode("append").save()
        if not failed:
            failed.append(batch)
            raise RuntimeError("after the commit")

    def run() -> StreamingQuery:
        counts = cooking.raw().groupBy("key").count()
        query = counts.writeStream.outputMode("update").foreachBatch(write)
        query = query.option("checkpointLocation", str(shop.folder / "counts"))
        started = query.trigger(availableNow=True).start()
        started.awaitTermination()
        return started

    with pytest.raises(StreamingQueryException, match="after the commit"):
        run()
    query = run()

    counts = Counter(key for key, _ in cooking.expected())
    assert Counter(cooking.stored()) == Counter((key, str(count).encode()) for key, count in counts.items())
    known = shop.client.producer_info(f"counts-{shop.stream}")
    assert (known.holder, known.run) == (str(query.id), str(query.runId))


def test_a_wrong_column_ends_a_query_before_any_task(cooking: Cooking) -> None:
    """Behaviour 60."""
    cooking.shop.write(5)
    with pytest.raises(StreamingQueryException, match='column "segment": says where an event was read'):
        cooking.run(lambda raw: raw)
    with pytest.raises(StreamingQueryException, match='option "stream": there is no stream tests/none'):
        cooking.run(stream="tests/none", checkpoint="second")
    assert cooking.left_open() == []


def test_a_row_that_can_be_no_event_ends_a_query_and_is_named(cooking: Cooking) -> None:
    """Behaviour 60."""
    cooking.shop.write(5)
    with pytest.raises(StreamingQueryException, match=r'column "value", row 0 of partition [01]: has .* nulls'):
        cooking.run(lambda raw: raw.selectExpr("cast(null as binary) as value"))
    assert cooking.stored() == []


def test_a_batch_is_written_whole(cooking: Cooking, spark: SparkSession) -> None:
    shop = cooking.shop
    shop.write(20)
    events = shop.batch(spark).select("value", "key", "timestamp")
    writing = events.repartition(4, "key").write.format("millrace").options(**cooking.options())
    writing.mode("append").save()
    assert Counter(cooking.stored()) == Counter(cooking.expected())

    with pytest.raises(PySparkException, match="overwrite: what is in a stream stays"):
        events.write.format("millrace").options(**cooking.options()).mode("overwrite").save()
    with pytest.raises(PySparkException, match="ErrorIfExists"):
        events.write.format("millrace").options(**cooking.options()).save()
    assert len(cooking.stored()) == 200


def test_a_batch_that_fails_leaves_nothing(cooking: Cooking, spark: SparkSession) -> None:
    """Behaviour 68: one task of four fails, and the transaction is aborted at once."""
    shop = cooking.shop
    shop.write(20)
    failing = shop.batch(spark).repartition(4, "key").selectExpr("key", "if(key = 'key-3', null, value) as value")
    with pytest.raises(PySparkException, match='column "value", row'):
        failing.write.format("millrace").options(**cooking.options()).mode("append").save()
    assert cooking.stored() == []
