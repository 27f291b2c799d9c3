"""Two queries, one after the other: `python -m applications.in_step.queries ADDRESS FOLDER`.

    cook    takes each raw event, and writes it to the cooked stream, with the place where it was
    count   takes the cooked events, and writes how many of each key there are by now

What each batch took is a line in `batches.jsonl` of the folder. There are the checkpoints, too.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from millrace.examples.running import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RAW: Final = "in-step/raw"
COOKED: Final = "in-step/cooked"
TOTALS: Final = "in-step/totals"
BATCHES: Final = "batches.jsonl"


class Batches(StreamingQueryListener):
    """Notes what each batch took: its query, when it was done, its events, and how many tasks had some."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing was taken yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Add a line."""
        progress = event.progress
        if progress.numInputRows:
            read = progress.observedMetrics["read"].asDict()
            line = {"query": progress.name, "began": progress.timestamp, "took_ms": progress.batchDuration, **read}
            with self._path.open("a") as file:
                print(json.dumps(line), file=file)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing was there to take."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The program ends with its queries."""


def observed(rows: "DataFrame") -> "DataFrame":
    """Let Spark count what comes, and the tasks that it comes from."""
    return rows.observe("read", F.count("*").alias("events"), F.max(F.spark_partition_id() + 1).alias("tasks"))


def cook(spark: "SparkSession", address: str, folder: Path) -> None:
    """Start the first query."""
    rows = spark.readStream.format("millrace").options(address=address, stream=RAW, startCut="head").load()
    cooked = observed(rows).selectExpr("key", "cast(cast(value as string) as long) as number", "segment")
    writing = cooked.writeStream.queryName("cook").format("millrace")
    writing = writing.options(address=address, stream=COOKED, valueFormat="json", keyColumn="key")
    writing.option("checkpointLocation", str(folder / "cook")).start()


def count(spark: "SparkSession", address: str, folder: Path) -> None:
    """Start the second query. The counts are in Spark's checkpoint; each batch tells those that it changed."""
    reader = spark.readStream.format("millrace").options(address=address, stream=COOKED, startCut="head")
    rows = reader.schema("_key string, number long").options(valueFormat="json").load()
    counts = observed(rows).groupBy("_key").agg(F.count("*").alias("count"), F.max("number").alias("last"))

    def tell(changed: "DataFrame", batch_id: int) -> None:
        told = {"address": address, "stream": TOTALS, "writerId": "in-step/count", "batchId": str(batch_id)}
        writing = changed.withColumnRenamed("_key", "key").write.format("millrace").options(**told)
        writing.options(valueFormat="json", keyColumn="key").mode("append").save()

    writing: Any = counts.writeStream.queryName("count").outputMode("update").foreachBatch(tell)
    writing.option("checkpointLocation", str(folder / "count")).start()


def run(address: str, folder: Path) -> None:
    """Run both queries for as long as this process lives."""
    # Both share two cores; without this one of them waits until all tasks of the other are done.
    with spark_session("in step", {"spark.scheduler.mode": "FAIR"}) as spark:
        spark.streams.addListener(Batches(folder / BATCHES))
        cook(spark, address, folder)
        count(spark, address, folder)
        spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
