"""A query over two servers, of which one stands by: it continues when the other one is killed."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millrace
from tests.crash.patience import PATIENT
from tests.support.pairs import pair
from tests.support.s3 import MotoServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]


def test_a_query_from_stream_to_stream_continues_with_the_standby(
    spark: SparkSession, moto: MotoServer, tmp_path: Path
) -> None:
    """Behaviours 55, 67 and 94: each event is in the result once, in order, over kill -9 of the server."""
    with pair(moto, tmp_path) as (first, second):
        address = f"{first.address},{second.address}"
        with millrace.blocking.connect(address, options=PATIENT) as client:
            for stream in ("shop/raw", "shop/cooked"):
                client.create_stream(stream)
            with client.writer("shop/raw", writer_id="till") as writer:
                writer.write_many([b"%d" % number for number in range(100)], key="k").result()
                query = (
                    spark.readStream.format("millrace")
                    .options(address=address, stream="shop/raw")
                    .load()
                    .select("value", "key")
                    .writeStream.format("millrace")
                    .options(address=address, stream="shop/cooked")
                    .option("checkpointLocation", str(tmp_path / "checkpoint"))
                    .start()
                )
                query.processAllAvailable()
                first.kill()
                writer.write_many([b"%d" % number for number in range(100, 200)], key="k").result()
            query.processAllAvailable()
            query.stop()
            with client.reader("shop/cooked", end=millrace.TAIL) as reader:
                assert [int(event.value) for event in reader] == list(range(200))
