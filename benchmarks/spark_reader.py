"""A local Spark that reads the same lines from several sources, one after the other, several times.

`python -m benchmarks.spark_reader JSON`, with the fields of `spark_read.SparkWork`; prints a `SparkResult`. Every row
is made and thrown away (the sink `noop`), so that no source gets by with counting lines or reading a footer. The JVM
and the Python workers are warm before the first round that counts.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

import psutil
from pyspark.sql import DataFrame, SparkSession

import millrace

from .spark_read import LINE_SIZE_BYTES, SparkResult, SparkWork

BLOCK_EVENTS: Final = 10_000
_WARM_ROUNDS: Final = 2
_COLUMNS: Final = ("value", "key", "timestamp", "stream", "segment", "offset", "index")


def measure(work: SparkWork) -> SparkResult:
    """Write the lines everywhere, then read them from everywhere."""
    lines = random_lines()
    blocks = max(1, work.event_count // BLOCK_EVENTS)
    write_stream(work.address, "bench/spark", lines, blocks)
    text, parquet = str(Path(work.folder, "lines.txt")), str(Path(work.folder, "lines.parquet"))
    write_text(Path(text), lines, blocks)
    spark = new_session(work.folder, jars=work.jars)
    try:
        spark.read.text(text).write.parquet(parquet)
        options = {"address": work.address, "stream": "bench/spark"}
        ours = spark.read.format("millrace").options(**options)
        sources: dict[str, Callable[[], DataFrame]] = {
            "text": lambda: spark.read.text(text),
            "parquet": lambda: spark.read.parquet(parquet),
            "value": lambda: ours.option("columns", "value").load(),
            "all": lambda: ours.option("columns", ",".join(_COLUMNS)).load(),
        }
        if work.kafka:
            kafka = spark.read.format("kafka").options(**kafka_options(work.kafka, "bench"))
            sources["kafka"] = lambda: kafka.load().select("value")
            sources["kafka all"] = kafka.load
        elapsed_s: dict[str, list[float]] = {name: [] for name in sources}
        cpu_s: dict[str, list[float]] = {name: [] for name in sources}
        for number in range(-_WARM_ROUNDS, work.rounds):
            for name, load in sources.items():
                begin_cpu_s, begin_s = _cpu_s(), time.perf_counter()
                load().write.format("noop").mode("overwrite").save()
                if number >= 0:
                    elapsed_s[name].append(time.perf_counter() - begin_s)
                    cpu_s[name].append(_cpu_s() - begin_cpu_s)
    finally:
        spark.stop()
    return SparkResult(events=blocks * len(lines), elapsed_s=elapsed_s, cpu_s=cpu_s)


def random_lines() -> list[bytes]:
    """Return as many lines as a block has events."""
    return [os.urandom(LINE_SIZE_BYTES // 2).hex().encode() for _ in range(BLOCK_EVENTS)]


def kafka_options(address: str, topic: str) -> dict[str, str]:
    """Return the options of Spark's source for Kafka that read a topic from its first event."""
    return {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}


def write_stream(address: str, stream: str, lines: list[bytes], blocks: int) -> None:
    """Fill a new stream of two segments."""
    with millrace.blocking.connect(address) as client:
        client.create_stream(stream, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2)))
        with client.writer(stream) as writer:
            for number in range(blocks):
                writer.write_many(lines, key=f"key-{number % 100}")
            writer.flush()


def write_text(path: Path, lines: list[bytes], blocks: int) -> None:
    """Write a file of lines."""
    piece = b"".join(line + b"\n" for line in lines)
    with path.open("wb") as file:
        for _ in range(blocks):
            file.write(piece)


def new_session(folder: str, *, jars: str = "") -> SparkSession:
    """Start Spark on two cores, with more jars (names with commas) if they are given."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own, about the versions of other packages
        session: SparkSession = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "2g")
            .config("spark.sql.warehouse.dir", str(Path(folder, "warehouse")))
            .config("spark.jars", jars)
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(millrace.spark_source.MillraceDataSource)  # 4.0 does not find it
    return session


def _cpu_s() -> float:
    """Return the processor time of all processes below this one that live."""
    total_s = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total_s += times.user + times.system
    return total_s


if __name__ == "__main__":
    print(json.dumps(asdict(measure(SparkWork(**json.loads(sys.argv[1]))))))
