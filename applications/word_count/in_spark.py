"""Count words with Spark: `python -m applications.word_count.in_spark QUERY [ADDRESS [CHECKPOINT]]`.

    words       stateless: each word is an event of a stream of its own
    counts      Spark keeps the counts; each batch writes those that it changed
    continued   as `counts`, but begins with what a batch job has counted in a slice of history

Each writes a batch with one transaction that has the number of the batch: kill a program at any moment, start it again
with the same checkpoint, and each line is counted once. Without a checkpoint it is for one run on a new server: another
checkpoint is another query, which would count all lines once more (`counts` is refused then, as its writer id is held).
"""

import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import Row

from millrace import blocking
from millrace.examples.running import STATE_IN_ROCKSDB, spark_session

from .text import LINES, create

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WORDS = "words/each"
COUNTS = "words/counts"
CONTINUED = "words/counts-continued"
HISTORY = "history"
"""The bookmark at which the batch job ends and the query begins."""


def words(lines: "DataFrame") -> "DataFrame":
    """Return the words of lines, a row each."""
    each = F.explode(F.split(F.lower(F.col("value").cast("string")), "[^a-z]+"))
    return lines.select(each.alias("word")).where("word != ''")


def stateless(spark: "SparkSession", options: dict[str, str]) -> "DataStreamWriter":
    """Write each word as an event; Spark keeps nothing from batch to batch."""
    lines = spark.readStream.format("millrace").options(**options, startCut="head").load()
    events = words(lines).selectExpr("word as key", "cast(word as binary) as value")
    return events.writeStream.format("millrace").options(address=options["address"], stream=WORDS)


def stateful(spark: "SparkSession", options: dict[str, str]) -> "DataStreamWriter":
    """Let Spark keep the counts, and write those that a batch has changed."""
    lines = spark.readStream.format("millrace").options(**options, startCut="head").load()

    def write(changed: "DataFrame", batch_id: int) -> None:
        told = {"address": options["address"], "stream": COUNTS, "writerId": "word-count", "batchId": str(batch_id)}
        writing = changed.select("word", "count").write.format("millrace").options(**told)
        writing.options(valueFormat="json", keyColumn="word").mode("append").save()

    return words(lines).groupBy("word").count().writeStream.outputMode("update").foreachBatch(write)


def continued(spark: "SparkSession", options: dict[str, str]) -> "DataStreamWriter":
    """Begin with the counts of a slice: all up to a bookmark, counted by a batch job."""
    history = spark.read.format("millrace").options(**options, endCut=f"bookmark:{HISTORY}").load()
    lines = spark.readStream.format("millrace").options(**options, startCut=f"bookmark:{HISTORY}").load()
    counted = words(history).groupBy("word").count()
    counts = (
        words(lines)
        .groupBy("word")
        .transformWithState(
            statefulProcessor=Counting(),
            outputStructType="word string, count long",
            outputMode="append",
            timeMode="none",
            initialState=counted.groupBy("word"),
        )
    )
    told = {"address": options["address"], "stream": CONTINUED, "valueFormat": "json", "keyColumn": "word"}
    return counts.writeStream.format("millrace").options(**told)


class Counting(StatefulProcessor):
    """Counts the rows of each word, from where its initial state left off."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self._count = handle.getValueState("count", "count long")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:  # noqa: N802, N803
        """Take what was counted before this query."""
        self._count.update((initialState["count"],))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Count what a batch has of one word."""
        before = self._count.get()
        count = (before[0] if before else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(word=key[0], count=count)

    def close(self) -> None:
        """Nothing is open."""


QUERIES = {"words": (stateless, WORDS), "counts": (stateful, COUNTS), "continued": (continued, CONTINUED)}


def run(query: str, address: str, checkpoint: str, *, ends: bool = False) -> None:
    """Run one of the queries: for as long as this process lives, or up to what there is now."""
    build, stream = QUERIES[query]
    with blocking.connect(address) as client:
        create(client, LINES, stream)
        if query == "continued" and HISTORY not in {saved.name for saved in client.bookmarks(LINES).list()}:
            client.bookmarks(LINES).save(HISTORY)
    with spark_session(f"words: {query}", STATE_IN_ROCKSDB) as spark:
        writing = build(spark, {"address": address, "stream": LINES})
        trigger: dict[str, Any] = {"availableNow": True} if ends else {"processingTime": "0 seconds"}
        writing.option("checkpointLocation", checkpoint).trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        _, name, *rest = sys.argv
        run(name, *rest, *("127.0.0.1:9240", folder)[len(rest) :])
