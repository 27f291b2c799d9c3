"""The queries of the demo: PySpark in this process, its log in a file.

Both are streaming queries that take what is there and end (`availableNow`): the same lines run forever without that.
"""

import os
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.examples.running import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORD_LENGTH_MIN = 5
WORDS_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The temperatures of one sensor over 28 days."""

    start: str
    sensor: str
    low: float
    mean: float
    high: float
    count: int


def what_is_missing() -> str:
    """Return what Spark lacks here and how to get it, empty if it can run."""
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            return f"{package} is not installed: pip install 'millrace[demo]'"
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "no Java was found: install a Java 17 runtime (Debian: apt install openjdk-17-jre-headless)"
    return ""


def demo_session(folder: Path) -> AbstractContextManager["SparkSession"]:
    """Return a session of Spark to be entered, whose files are in `folder`, with its log `spark.log`."""
    settings = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    return spark_session("millrace demo", settings, log=folder / "spark.log")


def monthly_averages(spark: "SparkSession", *, address: str, stream: str, folder: Path) -> list[Window]:
    """Return the temperatures of each sensor over windows of 28 days."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    reading = F.from_json(F.col("value").cast("string"), "sensor string, temp_f double")
    temperatures = (
        spark.readStream.format("millrace")
        .option("address", address)
        .option("stream", stream)
        .option("startCut", "head")
        .option("maxBytesPerTrigger", "512k")
        .load()
        .select("timestamp", reading.alias("reading"))
        .select("timestamp", "reading.*")
    )
    windows = temperatures.groupBy(F.window("timestamp", "28 days", startTime="22 days"), "sensor").agg(
        F.min("temp_f").alias("low"),
        F.avg("temp_f").alias("mean"),
        F.max("temp_f").alias("high"),
        F.count("*").alias("readings"),
    )
    rows = _run(spark, windows, name="averages", folder=folder)
    rows.sort(key=lambda row: (row["window"]["start"], row["sensor"]))
    return [
        Window(
            start=row["window"]["start"].strftime("%d %b"),
            sensor=row["sensor"],
            low=row["low"],
            mean=row["mean"],
            high=row["high"],
            count=row["readings"],
        )
        for row in rows
    ]


def word_counts(spark: "SparkSession", *, address: str, stream: str, folder: Path) -> list[tuple[str, int]]:
    """Return the words that occur most often, with how often they do."""
    from pyspark.sql import functions as F  # noqa: N812

    words = (
        spark.readStream.format("millrace")
        .option("address", address)
        .option("stream", stream)
        .load()
        .select(F.explode(F.split(F.lower(F.col("value").cast("string")), "[^a-z]+")).alias("word"))
        .where(F.length("word") >= WORD_LENGTH_MIN)
    )
    rows = _run(spark, words.groupBy("word").count(), name="words", folder=folder)
    counted = [(row["word"], row["count"]) for row in rows]
    return sorted(counted, key=lambda row: (-row[1], row[0]))[:WORDS_SHOWN]


def _run(spark: "SparkSession", result: "DataFrame", *, name: str, folder: Path) -> list[Any]:
    """Run a streaming query over what is there, and return its result table."""
    query = (
        result.writeStream.format("memory")
        .queryName(name)
        .outputMode("complete")
        .option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table(name).collect()
