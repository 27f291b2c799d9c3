"""Keep the index and the matches up to date with Spark: `python -m applications.search.queries ADDRESS FOLDER`.

Two queries read the documents:

    index   puts each batch into the index, which recognises what it has; only one process can write it, so this is
            `foreachBatch`, in the driver
    match   tells which saved queries each document meets; a task for each segment does so by itself, and what a batch
            has told is one transaction

The folder has the index and the checkpoints. Kill this program at any moment, start it again with the same folder, and
each document is in the index once, and each match is told once.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace import EventPosition, blocking
from millrace.examples.running import spark_session

from .documents import DOCUMENTS, MATCHES, Version
from .index import Index
from .saved import matches, saved

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

INDEX: Final = "index"
"""The folder of the index within the folder."""
BATCH_EVENTS_MAX: Final = 300
MATCH: Final = "query string, document string, segment long, offset long, `index` int"


def versions(spark: "SparkSession", address: str) -> "DataFrame":
    """Read the documents as they are written."""
    options = {"address": address, "stream": DOCUMENTS, "startCut": "head"}
    options["maxEventsPerTrigger"] = str(BATCH_EVENTS_MAX)  # what an index in memory, or a commit, has to hold
    text = "cast(value as string) as text"
    events = spark.readStream.format("millrace").options(**options).load()
    return events.selectExpr("key", text, "unix_micros(timestamp) as written_us", "segment", "offset", "index")


def index_documents(spark: "SparkSession", address: str, folder: Path) -> None:
    """Start the query that keeps the index."""
    writer = Index(folder / INDEX).writer()

    def take(batch: "DataFrame", _batch_id: int) -> None:
        # Without a shuffle, so that the rows of a segment are in their order.
        writer.apply(Version(key, text, us, EventPosition(*place)) for key, text, us, *place in batch.collect())

    writing = versions(spark, address).writeStream.queryName("index").foreachBatch(take)
    writing.option("checkpointLocation", str(folder / "indexing")).start()


def match_documents(spark: "SparkSession", address: str, folder: Path) -> None:
    """Start the query that tells the matches."""

    def match(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        came = [
            Version(key, text, us, EventPosition(*place))
            for batch in batches
            for key, text, us, *place in (row.values() for row in batch.to_pylist())
        ]
        if not came:
            return
        # Read after the documents, so all are here that were saved before one of these was written.
        with blocking.connect(address) as client:
            queries = saved(client)
        rows = [(each.query, each.document, *each.position) for each in matches(came, queries)]
        if rows:
            names = ("query", "document", "segment", "offset", "index")
            types = (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.int32())
            columns = [pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), types, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    told = versions(spark, address).mapInArrow(match, MATCH)
    writing = told.writeStream.queryName("match").format("millrace")
    writing = writing.options(address=address, stream=MATCHES, writerId=MATCHES, valueFormat="json", keyColumn="query")
    writing.option("checkpointLocation", str(folder / "matching")).start()


def run(address: str, folder: Path) -> None:
    """Run both queries for as long as this process lives."""
    # Both share two cores; without this one of them waits until all tasks of the other are done.
    with spark_session("search", {"spark.scheduler.mode": "FAIR"}) as spark:
        index_documents(spark, address, folder)
        match_documents(spark, address, folder)
        spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
