"""One SparkSession and one server for all tests; each test has streams and folders of its own.

A local Spark is a JVM; starting it takes seconds, and so it is started when the first test asks for it. The data source
is not registered where Spark finds it, from 4.1 on.
"""

import inspect
import itertools
import json
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import millrace
from millrace.blocking import Client
from millrace.client.testing import TestServer
from millrace.model.event import Event
from millrace.spark_source.batch import MillraceBatchReader
from millrace.spark_source.options import parse_options
from millrace.spark_source.rows import SCHEMA
from millrace.spark_source.source import MillraceDataSource
from millrace.spark_source.stream import MillraceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

PYSPARK: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
LIMITS_ARE_GIVEN: Final = PYSPARK >= (4, 2)
"""Whether Spark tells a Python source the start and the limit of a batch, and that a trigger is AvailableNow."""
needs_limits = pytest.mark.skipif(not LIMITS_ARE_GIVEN, reason="Spark gives limits to a Python source from 4.2 on")
IS_FOUND: Final = PYSPARK >= (4, 1)
"""Whether Spark finds the source by its short name."""
ARROW_IS_WRITTEN: Final = PYSPARK >= (4, 1)
"""Whether Spark hands Arrow batches to the writer of a query; else it hands rows."""


_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[TestServer]:
    with millrace.testing.server() as running:
        yield running


@pytest.fixture(scope="session")
def client(server: TestServer) -> Iterator[Client]:
    with millrace.blocking.connect(server.address) as connected:
        yield connected


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else the first python3 of the path, which has no millrace
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    folder = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own, about the versions of other packages
        session = (
            SparkSession.builder.master("local[2]")
            .appName("millrace tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.streaming.pollingDelay", "20ms")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
    if not IS_FOUND:
        session.dataSource.register(MillraceDataSource)
    yield session
    session.stop()


@pytest.fixture
def stream() -> str:
    """A name that no other test uses."""
    return f"tests/{next(_numbers)}"


Row = tuple[bytes, str | None, int | None, int, int, int]


class Shop:
    """What a test does again and again: fill a stream, read it plainly, read it through Spark."""

    def __init__(self, client: Client, server: TestServer, stream: str, folder: Path) -> None:
        self.client = client
        self.address = server.address
        self.stream = stream
        self.folder = folder
        self.written = 0

    def create(self, segments: int = 1) -> None:
        config = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(segments))
        assert self.client.create_stream(self.stream, config)

    def write(self, blocks: int, *, events: int = 10, size: int = 10, keys: int = 7) -> None:
        """Write blocks of events whose values begin with their number, each block under one of a few keys."""
        with self.client.writer(self.stream) as writer:
            for block in range(blocks):
                numbers = range(self.written, self.written + events)
                self.written += events
                key = f"key-{block % keys}" if keys else None
                writer.write_many([f"{number:09}".encode().ljust(size, b".") for number in numbers], key=key).result()

    def scale(self, *borders: float) -> None:
        """Replace all open segments by new ones with these borders between them, or by a single one."""
        sealed = [segment.segment_id for segment in self.client.stream_info(self.stream).open_segments]
        ranges = list(itertools.pairwise([0.0, *borders, 1.0]))
        self.client.scale_stream(self.stream, seal=sealed, ranges=ranges)

    def plain(self, **cuts: Any) -> list[Event]:
        """Return what the plain reader reads."""
        with self.client.reader(self.stream, **{"end": millrace.TAIL, **cuts}) as reader:
            return list(reader)

    def options(self, **options: object) -> dict[str, str]:
        stream = {} if "streamPattern" in options else {"stream": self.stream}
        given = {"address": self.address, **stream, **options}
        return {name: str(value) for name, value in given.items()}

    def batch(self, spark: SparkSession, **options: object) -> DataFrame:
        return spark.read.format("millrace").options(**self.options(**options)).load()

    def run(
        self,
        spark: SparkSession,
        sink: Callable[[DataFrame, int], None],
        *,
        checkpoint: str = "checkpoint",
        trigger: dict[str, Any] | None = None,
        **options: object,
    ) -> StreamingQuery:
        """Start a query that hands each batch to `sink`."""
        rows = spark.readStream.format("millrace").options(**self.options(**options)).load()
        return (
            rows.writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )


@pytest.fixture
def shop(client: Client, server: TestServer, stream: str, tmp_path: Path) -> Shop:
    return Shop(client, server, stream, tmp_path)


class Batches:
    """A sink that keeps the rows of each batch; a batch that comes again takes the place of the first."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Row]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.rows[number] = rows_of(frame)

    @property
    def sizes(self) -> list[int]:
        return [len(self.rows[number]) for number in sorted(self.rows)]

    @property
    def all(self) -> list[Row]:
        return [row for number in sorted(self.rows) for row in self.rows[number]]


@pytest.fixture
def batches() -> Batches:
    return Batches()


def rows_of(frame: DataFrame) -> list[Row]:
    """Return the rows in the order of their partitions, as a plain reader would give them."""
    columns = frame.selectExpr("value", "key", "unix_micros(timestamp)", "segment", "offset", "index").collect()
    return [(bytes(row[0]), *tuple(row)[1:]) for row in columns]


def rows_of_events(events: Sequence[Event]) -> list[Row]:
    return [(event.value, event.key, event.timestamp_us, event.segment, event.offset, event.index) for event in events]


def position(row: Row) -> tuple[int, int, int]:
    return row[3:]


Reader = TypeVar("Reader", MillraceBatchReader, MillraceStreamReader)


def rows_of_tasks(reader: Reader, partitions: Sequence[InputPartition]) -> list[Row]:
    """Return what tasks read, in the order of the partitions; reader and partitions cross to them pickled."""
    rows: list[Row] = []
    for partition in partitions:
        there: Reader = pickle.loads(pickle.dumps(reader))
        for batch in there.read(pickle.loads(pickle.dumps(partition))):
            assert len(set(batch.column("stream").to_pylist())) == 1
            columns = [batch.column(number) for number in (0, 1, 2, 4, 5, 6)]
            columns[2] = columns[2].cast("int64")
            rows += zip(*(column.to_pylist() for column in columns), strict=True)
    return rows


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return what Spark makes of a schema in a session of UTC; PySpark 4.0 has no other."""
    has_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if has_zone else to_arrow_schema(schema)


Offset = dict[str, Any]


class Driver:
    """Calls a stream reader as Spark does: every value crosses as JSON or pickled; no JVM is needed."""

    def __init__(self, shop: Shop, **options: object) -> None:
        self.reader = MillraceStreamReader(parse_options(shop.options(**options)), SCHEMA)

    def start(self) -> Offset:
        return self._json(self.reader.initialOffset())

    def end(self, start: Offset, limit: "ReadLimit | None" = None) -> Offset:
        if limit is None and LIMITS_ARE_GIVEN:
            limit = self.reader.getDefaultReadLimit()
        return self._json(self.reader.latestOffset(start, limit))

    def read(self, start: Offset, end: Offset) -> list[Row]:
        return rows_of_tasks(self.reader, self.reader.partitions(start, end))

    def batches(self, start: Offset | None = None) -> Iterator[tuple[Offset, Offset, list[Row]]]:
        """Yield start, end and rows of batches until nothing is left."""
        begin = self.start() if start is None else start
        while (end := self.end(begin)) != begin:
            yield begin, end, self.read(begin, end)
            begin = end

    @staticmethod
    def _json(offset: Offset) -> Offset:
        content: Offset = json.loads(json.dumps(offset))
        return content


class Drivers:
    """Makes drivers of one stream, and stops them at the end."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self.made: list[Driver] = []

    def __call__(self, **options: object) -> Driver:
        self.made.append(Driver(self._shop, **options))
        return self.made[-1]


@pytest.fixture
def drivers(shop: Shop) -> Iterator[Drivers]:
    made = Drivers(shop)
    yield made
    for driver in made.made:
        driver.reader.stop()
