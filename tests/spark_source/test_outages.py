"""Behaviour 89: a query outlives an outage longer than a request may take: one of another client has failed."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import millrace
from millrace.client.testing import TestServer
from tests.spark_source.conftest import Batches, Shop, rows_of_events

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]


@pytest.fixture
def mortal() -> Iterator[TestServer]:
    """A server that may be killed."""
    with millrace.testing.server() as running:
        yield running


@pytest.fixture
def shop(mortal: TestServer, stream: str, tmp_path: Path) -> Iterator[Shop]:
    with millrace.blocking.connect(mortal.address) as client:
        yield Shop(client, mortal, stream, tmp_path)


def outlast(shop: Shop) -> None:
    """Wait until a request with the usual time limit has failed, and then for another one."""
    for _ in range(2):
        # The limit ends a pause between two attempts, or an attempt.
        with pytest.raises((millrace.ConnectionLostError, millrace.RequestTimeoutError)):
            shop.client.stream_info(shop.stream)


def test_a_query_plans_on_when_the_server_returns(
    spark: SparkSession, shop: Shop, mortal: TestServer, batches: Batches
) -> None:
    shop.create(2)
    shop.write(5)
    query = shop.run(spark, batches, trigger={"processingTime": "0 seconds"})
    query.processAllAvailable()
    mortal.kill()
    outlast(shop)
    assert query.isActive
    mortal.start()
    shop.write(5)
    query.processAllAvailable()
    query.stop()
    assert sorted(batches.all) == sorted(rows_of_events(shop.plain()))
    assert len(batches.all) == 100


def test_a_task_reads_on_when_the_server_returns(
    spark: SparkSession, shop: Shop, mortal: TestServer, batches: Batches
) -> None:
    shop.create(2)
    shop.write(5)

    def restart() -> None:
        try:
            outlast(shop)
        finally:
            mortal.start()

    def sink(frame: DataFrame, number: int) -> None:
        mortal.kill()
        thread = threading.Thread(target=restart)
        thread.start()
        batches(frame, number)
        thread.join()

    shop.run(spark, sink).awaitTermination()
    assert sorted(batches.all) == sorted(rows_of_events(shop.plain()))
