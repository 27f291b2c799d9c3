"""The parts of a sink without Spark: a test is the executors and the driver of its queries."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import millrace
from millrace.blocking import Client
from millrace.client.testing import TestServer
from millrace.model.producer import Producer
from millrace.spark_source.link import borrowed, close_waiting_links
from millrace.spark_source.sink.columns import maker_of
from millrace.spark_source.sink.driver import abort_batch, commit_batch
from millrace.spark_source.sink.identity import BatchIdentity, identity_of_producer
from millrace.spark_source.sink.message import TaskMessage
from millrace.spark_source.sink.options import SinkOptions, parse_sink_options
from millrace.spark_source.sink.task import SinkTask

SCHEMA = StructType([StructField("value", BinaryType()), StructField("key", StringType())])


@pytest.fixture(autouse=True)
def links() -> Iterator[None]:
    """No link outlives its test: each has an event loop."""
    yield
    close_waiting_links()


class Cluster:
    """Executors and drivers of queries that write to one stream."""

    def __init__(self, client: Client, server: TestServer, stream: str) -> None:
        self.client = client
        self.address = server.address
        self.stream = stream

    def options(self, **options: object) -> SinkOptions:
        given = {"address": self.address, "stream": self.stream, **options}
        return parse_sink_options({name: str(value) for name, value in given.items()}, is_streaming=True)

    def identity(self, batch: int = 0, *, writer: str = "", holder: str = "", run: str = "run-1") -> BatchIdentity:
        """Return the identity of a batch; by default of a query that is the test's own."""
        query = holder or f"query-{self.stream}"
        return identity_of_producer(Producer(writer or query, query, run, batch))

    def run(
        self,
        identity: BatchIdentity,
        batches: Iterable[pa.RecordBatch],
        *,
        schema: StructType = SCHEMA,
        partition: int = 0,
        **options: object,
    ) -> TaskMessage:
        """Run a task that writes these batches."""
        given = self.options(**options)
        with borrowed(given) as link:
            return SinkTask(given, identity, maker_of(schema, given), link=link, partition=partition).run(batches)

    def write(self, identity: BatchIdentity, *values: bytes, key: str | None = None, **options: object) -> TaskMessage:
        """Run a task that writes these values under one key."""
        return self.run(identity, [rows(*values, key=key)], schema=SCHEMA, partition=0, **options)

    def commit(self, *messages: TaskMessage, **options: object) -> None:
        given = self.options(**options)
        with borrowed(given) as link:
            link.turn(commit_batch(link.client(), given, messages))

    def abort(self, *messages: TaskMessage, **options: object) -> None:
        given = self.options(**options)
        with borrowed(given) as link:
            link.turn(abort_batch(link.client(), given, messages))

    def stored(self, stream: str | None = None) -> list[bytes]:
        """Return the events of a stream, sorted."""
        with self.client.reader(stream or self.stream, end=millrace.TAIL) as reader:
            return sorted(event.value for event in reader)

    def open_names(self) -> list[str]:
        """Return the names of the transactions of this stream's queries that are open."""
        return [each.name for each in self.client.list_transactions() if self.stream in each.name]


@pytest.fixture
def cluster(client: Client, server: TestServer, stream: str, tmp_path: Path) -> Cluster:
    assert client.create_stream(stream, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2)))
    return Cluster(client, server, stream)


def rows(*values: bytes | None, key: str | None = None) -> pa.RecordBatch:
    """Return rows of `SCHEMA` as Spark hands them to a writer."""
    return batch_of({"value": (pa.binary(), values), "key": (pa.string(), [key] * len(values))})


def batch_of(columns: dict[str, tuple[pa.DataType, Sequence[object]]]) -> pa.RecordBatch:
    """Return a batch of some columns with their types."""
    return pa.RecordBatch.from_arrays(
        [pa.array(list(values), kind) for kind, values in columns.values()], names=list(columns)
    )
