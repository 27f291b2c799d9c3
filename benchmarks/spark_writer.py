"""A local Spark that writes the same lines into Millrace, and into Kafka if there is one, several times.

`python -m benchmarks.spark_writer JSON`, with the fields of `SparkWork`; prints a `WriterResult`. The rows come from
Parquet, which Spark reads faster than either takes them.
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import millrace

from .spark_read import SparkWork
from .spark_reader import BLOCK_EVENTS, new_session, random_lines, write_text
from .spark_sink import WriterResult

_WARM_ROUNDS: Final = 1
_STREAM: Final = "bench/sink"


def measure(work: SparkWork) -> WriterResult:
    """Write everything."""
    blocks = max(1, work.event_count // BLOCK_EVENTS)
    text, parquet = Path(work.folder, "lines.txt"), str(Path(work.folder, "lines.parquet"))
    write_text(text, random_lines(), blocks)
    with millrace.blocking.connect(work.address) as client:
        client.create_stream(_STREAM, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2)))
    spark = new_session(work.folder, jars=work.jars)
    sinks = {"millrace": {"address": work.address, "stream": _STREAM}}
    if work.kafka:
        sinks["kafka"] = {"kafka.bootstrap.servers": work.kafka, "topic": "sink"}
    elapsed_s: dict[str, list[float]] = {}
    millrace_s = 0.0
    try:
        spark.read.text(str(text)).selectExpr("cast(value as binary) as value").write.parquet(parquet)
        for number in range(-_WARM_ROUNDS, work.rounds):
            for sink, options in sinks.items():
                checkpoint = str(Path(work.folder, f"checkpoint-{sink}-{number}"))
                for way, write in (("batch", _write), ("stream", _run)):
                    begin_s = time.perf_counter()
                    write(spark, parquet, sink, {**options, "checkpointLocation": checkpoint})
                    taken_s = time.perf_counter() - begin_s
                    if sink == "millrace":
                        millrace_s += taken_s
                    if number >= 0:
                        elapsed_s.setdefault(f"{sink} {way}", []).append(taken_s)
        version = spark.version
    finally:
        spark.stop()
    return WriterResult(events=blocks * BLOCK_EVENTS, version=version, elapsed_s=elapsed_s, millrace_s=millrace_s)


def _write(spark: SparkSession, parquet: str, sink: str, options: dict[str, str]) -> None:
    spark.read.parquet(parquet).write.format(sink).options(**options).mode("append").save()


def _run(spark: SparkSession, parquet: str, sink: str, options: dict[str, str]) -> None:
    rows = spark.readStream.schema("value binary").parquet(parquet)
    rows.writeStream.format(sink).options(**options).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    print(json.dumps(asdict(measure(SparkWork(**json.loads(sys.argv[1]))))))
