"""The queries of the demo: PySpark in this process, its log in a file.

Both are streaming queries that take what is there and end (`availableNow`): the same lines run forever without that.
"""

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


@contextmanager
def spark_session(folder: Path) -> Iterator["SparkSession"]:
    """Start Spark on two cores of this machine; what it logs goes to `spark.log` in `folder`.

    Raises:
        Exception: whatever Spark raises when it cannot start.
    """
    # Nothing of pandas is used here, and the warning would be in the middle of the show.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)

    from pyspark.sql import SparkSession

    from millrace.spark_source import MillraceDataSource

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder: Any = SparkSession.builder
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    builder = builder.master("local[2]").appName("millrace demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _standard_error_in(folder / "spark.log"):
        session: SparkSession = builder.getOrCreate()
    try:
        session.sparkContext.setLogLevel("ERROR")
        session.dataSource.register(MillraceDataSource)
        yield session
    finally:
        session.stop()


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


@contextmanager
def _standard_error_in(path: Path) -> Iterator[None]:
    """Let child processes that are started inside inherit a file as their standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)
