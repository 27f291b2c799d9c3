"""A local Spark that runs streaming queries over Millrace, and over Kafka if there is one, to the sink `noop`.

`python -m benchmarks.spark_batches JSON`, with the fields of `BatchesWork`; prints a `BatchesResult`. Whole streams are
read with AvailableNow, from a start of the query to its end. Then a query runs while another process writes one event
now and then, and while it writes many: what a micro-batch takes is what Spark says in its progress.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import millrace

from .spark_kafka import BatchesResult, BatchesWork
from .spark_reader import BLOCK_EVENTS, kafka_options, new_session, random_lines, write_stream

_WARM_ROUNDS: Final = 1
# Batches that still pay for classes and workers that are loaded once.
_WARM_BATCHES: Final = 3
_PROGRESS_COUNT: Final = 10_000


def measure(work: BatchesWork) -> BatchesResult:
    """Run everything."""
    blocks = max(1, work.event_count // BLOCK_EVENTS)
    write_stream(work.address, "bench/batches", random_lines(), blocks)
    with millrace.blocking.connect(work.address) as client:
        for load in work.feeders["millrace"]:
            client.create_stream(f"bench/{load}", millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2)))
    spark = new_session(work.folder, jars=work.jars)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(_PROGRESS_COUNT))
    sources = ["millrace", "kafka"] if work.kafka else ["millrace"]
    available_now_s: dict[str, list[float]] = {source: [] for source in sources}
    try:
        for number in range(-_WARM_ROUNDS, work.rounds):
            for source in sources:
                elapsed_s = _available_now_s(_stream(spark, work, source, "batches"), Path(work.folder), number)
                if number >= 0:
                    available_now_s[source].append(elapsed_s)
        batches = {
            source: {load: _fed(spark, work, source, load) for load in work.feeders[source]} for source in sources
        }
    finally:
        spark.stop()
    return BatchesResult(events=blocks * BLOCK_EVENTS, available_now_s=available_now_s, batches=batches)


def _stream(spark: SparkSession, work: BatchesWork, source: str, name: str) -> DataStreamWriter:
    if source == "kafka":
        topic = "bench" if name == "batches" else name
        options = kafka_options(work.kafka, topic)
    else:
        options = {"address": work.address, "stream": f"bench/{name}", "columns": "value"}
    return spark.readStream.format(source).options(**options).load().select("value").writeStream.format("noop")


def _available_now_s(stream: DataStreamWriter, folder: Path, number: int) -> float:
    checkpoint = folder / f"checkpoint-{number}-{time.monotonic_ns()}"
    begin_s = time.perf_counter()
    query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return time.perf_counter() - begin_s


def _fed(spark: SparkSession, work: BatchesWork, source: str, load: str) -> list[dict[str, int]]:
    """Run a query while a process writes, and return what its batches took, without the first."""
    checkpoint = str(Path(work.folder, f"checkpoint-{source}-{load}"))
    stream = _stream(spark, work, source, load).option("checkpointLocation", checkpoint)
    query = stream.trigger(processingTime="0 seconds").start()
    try:
        subprocess.run(work.feeders[source][load], capture_output=True, check=True)
        query.processAllAvailable()
        taken = [
            {**progress.durationMs, "events": progress.numInputRows}
            for progress in query.recentProgress
            if progress.numInputRows
        ]
    finally:
        query.stop()
    return taken[_WARM_BATCHES:]


if __name__ == "__main__":
    print(json.dumps(asdict(measure(BatchesWork(**json.loads(sys.argv[1]))))))
