"""Queries and batches over several streams, by name and by pattern. Behaviour 62: at one consistent cut."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from pyspark.sql import SparkSession

import millrace
from millrace.client.errors import StreamNotFoundError
from millrace.spark_source.errors import CheckpointError, DataLossError, OptionError
from millrace.spark_source.link import Link
from millrace.spark_source.options import parse_options
from millrace.spark_source.planning import Planner, run_plan
from millrace.spark_source.positions import StreamOffset
from millrace.spark_source.rows import SCHEMA
from millrace.spark_source.snapshot import cut_of
from millrace.spark_source.source import MillraceDataSource
from tests.spark_source.conftest import (
    LIMITS_ARE_GIVEN,
    Batches,
    Driver,
    Drivers,
    Offset,
    Row,
    Shop,
    rows_of,
    rows_of_tasks,
)


class Shops:
    """Streams under one scope; each row is known by its value, which begins with the name of its stream."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.client = shop.client
        self.scope = shop.stream.replace("/", "-")
        self.written: list[bytes] = []

    def name(self, last: str) -> str:
        return f"{self.scope}/{last}"

    def names(self, *last: str) -> str:
        return ", ".join(map(self.name, last))

    def create(self, *last: str, segments: int = 2) -> None:
        config = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(segments))
        for each in last:
            self.client.create_stream(self.name(each), config)

    def write(self, last: str, count: int = 10) -> None:
        with self.client.writer(self.name(last)) as writer:
            for _ in range(count):
                number = len(self.written)
                self.written.append(b"%s %06d" % (self.name(last).encode(), number))
                writer.write(self.written[-1], key=f"key-{number % 7}").result()

    def options(self, **options: object) -> dict[str, str]:
        return {"address": self.shop.address, **{name: str(value) for name, value in options.items()}}


@pytest.fixture
def shops(shop: Shop) -> Shops:
    return Shops(shop)


def values(rows: list[Row]) -> list[bytes]:
    return sorted(row[0] for row in rows)


def read_all(driver: Driver, start: Offset | None = None) -> tuple[list[Row], Offset]:
    """Return all rows of a query, from where it starts or from an offset, and where it is then."""
    rows: list[Row] = []
    reached = driver.start() if start is None else start
    for _, end, more in driver.batches(reached):
        rows += more
        reached = end
    return rows, reached


def batch_rows(shops: Shops, **options: object) -> list[Row]:
    source = MillraceDataSource(shops.options(**options))
    source.schema()
    reader = source.reader(SCHEMA)
    return rows_of_tasks(reader, reader.partitions())


def test_a_batch_reads_all_of_them_with_the_cuts_of_each(shops: Shops) -> None:
    shops.create("a", "b", "c")
    for last in ("a", "b", "c"):
        shops.write(last)
    middle = shops.client.stream_cut(shops.name("b"), after_events=4)
    end = shops.client.stream_cuts([shops.name("*")])
    shops.write("a")

    assert values(batch_rows(shops, stream=shops.names("a", "b", "c"))) == sorted(shops.written)
    assert values(batch_rows(shops, streamPattern=shops.name("*"))) == sorted(shops.written)
    assert values(batch_rows(shops, stream=shops.name("c"), streamPattern=shops.name("a*"))) == sorted(
        value for value in shops.written if b"/b " not in value
    )
    ends = ";".join(map(str, end.values()))
    assert len(batch_rows(shops, stream=shops.names("a", "b", "c"), startCut=middle, endCut=ends)) == 26
    assert len(batch_rows(shops, stream=shops.names("a", "b"), startCut="15m ago", endCut="tail")) == 30
    assert batch_rows(shops, stream=shops.names("a", "b"), startCut="tail") == []


def test_the_column_stream_tells_which(shops: Shops) -> None:
    shops.create("a", "b")
    shops.write("a")
    shops.write("b", 5)
    source = MillraceDataSource(shops.options(stream=shops.names("a", "b"), partitionBytes="64m"))
    source.schema()
    reader = source.reader(SCHEMA)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    found = [
        (name.encode(), value.split()[0])
        for batch in batches
        for name, value in zip(batch.column("stream").to_pylist(), batch.column("value").to_pylist(), strict=True)
    ]

    assert len(found) == 15
    assert all(name == value for name, value in found)


@pytest.mark.slow
def test_a_query_reads_them_within_limits_that_they_share(shops: Shops, drivers: Drivers) -> None:
    """Behaviours 55 and 56."""
    shops.create("a", "b", "c")
    for name in ("a", "b", "c", "b"):
        shops.write(name)
    driver = drivers(**shops.options(stream=shops.names("a", "b", "c"), maxEventsPerTrigger=7))
    sizes = [len(rows) for _, _, rows in driver.batches()]
    rows, last = read_all(drivers(**shops.options(stream=shops.names("a", "b", "c"), maxEventsPerTrigger=9)))

    assert sizes == [7] * 5 + [5]
    assert values(rows) == sorted(shops.written)
    assert {*StreamOffset.from_json(last).cuts.values()} == {*shops.client.stream_cuts([shops.name("*")]).values()}
    # What an offset says may be given as a start.
    shops.write("c")
    again = drivers(**shops.options(stream=shops.names("a", "b", "c"), startCut=last["cut"]))
    assert values(read_all(again)[0]) == sorted(shops.written[-10:])


def test_streams_that_come_to_match_join_from_their_heads(shops: Shops, drivers: Drivers) -> None:
    shops.create("a")
    shops.write("a")
    driver = drivers(**shops.options(streamPattern=shops.name("*"), startCut="tail"))
    rows, last = read_all(driver)
    assert rows == []
    shops.create("b", "other")
    shops.write("b")
    shops.write("other")
    shops.write("a", 3)
    rows, last = read_all(driver, last)
    assert values(rows) == sorted(shops.written[10:])

    # The same offsets are the same events, in a process that was started again.
    shops.create("late")
    shops.write("late")
    middle = driver.end(last)
    assert driver.read(last, middle) == []
    end = driver.end(middle)
    assert values(drivers(**shops.options(streamPattern=shops.name("*"))).read(middle, end)) == sorted(
        shops.written[-10:]
    )


def test_spark_before_4_2_reads_what_joined_before_a_restart(shops: Shops, drivers: Drivers) -> None:
    """Behaviour 55: it asks for the end of the first batch without its start, and that is beyond the new head."""
    shops.create("a")
    shops.write("a")
    first = drivers(**shops.options(streamPattern=shops.name("*"))).reader.latestOffset()
    shops.create("b")
    shops.write("b")
    driver = drivers(**shops.options(streamPattern=shops.name("*")))
    second = driver.reader.latestOffset()

    assert values(driver.read(first, second)) == sorted(shops.written[10:])
    assert driver.reader.latestOffset() == second


def test_available_now_reads_what_joined_since_and_ends(shops: Shops, drivers: Drivers) -> None:
    """Behaviour 56."""
    shops.create("a")
    shops.write("a")
    rows, last = read_all(drivers(**shops.options(streamPattern=shops.name("*"))))
    shops.create("b")
    shops.write("b")
    driver = drivers(**shops.options(streamPattern=shops.name("*")))
    driver.reader.prepareForTriggerAvailableNow()
    shops.create("c")
    shops.write("c")
    shops.write("b")

    more, last = read_all(driver, last)
    assert values(rows + more) == sorted(shops.written[:20])
    assert [*StreamOffset.from_json(last).cuts] == [shops.name("a"), shops.name("b")]


def test_a_stream_that_matched_may_be_deleted_and_one_that_was_named_not(shops: Shops, drivers: Drivers) -> None:
    shops.create("a", "b")
    shops.write("a")
    shops.write("b")
    found = drivers(**shops.options(streamPattern=shops.name("*")))
    named = drivers(**shops.options(stream=shops.names("a", "b")))
    middle, last = found.start(), named.start()
    end = found.end(middle)
    shops.client.seal_stream(shops.name("b"))
    shops.client.delete_stream(shops.name("b"))

    assert values(found.read(middle, end)) == sorted(shops.written[:10])
    assert [*StreamOffset.from_json(found.end(end)).cuts] == [shops.name("a")]
    with pytest.raises(StreamNotFoundError, match=shops.name("b")):
        named.end(last)
    with pytest.raises(OptionError, match=rf'"stream": there is no stream {shops.name("b")}'):
        drivers(**shops.options(stream=shops.names("a", "b"))).start()
    with pytest.raises(OptionError, match='"streamPattern": there is no stream that matches'):
        MillraceDataSource(shops.options(streamPattern=shops.name("x*"))).schema()


def test_a_checkpoint_of_other_streams_is_refused(shops: Shops, drivers: Drivers) -> None:
    shops.create("a", "b", "c")
    offset = drivers(**shops.options(stream=shops.names("a", "b"))).start()

    with pytest.raises(CheckpointError, match=f"it is one of {shops.name('a')}, .*what is read is {shops.name('c')}"):
        drivers(**shops.options(stream=shops.name("c"))).end(offset)
    # Some may be left out, and others taken in.
    shops.write("a")
    shops.write("c")
    rows, last = read_all(drivers(**shops.options(stream=shops.names("b", "c"))), offset)
    assert values(rows) == sorted(shops.written[10:])
    assert [*StreamOffset.from_json(last).cuts] == [shops.name("b"), shops.name("c")]


def test_what_was_truncated_is_named_with_its_stream(shops: Shops, drivers: Drivers) -> None:
    """Behaviour 58."""
    shops.create("a", "b", segments=1)
    shops.write("a")
    driver = drivers(**shops.options(stream=shops.names("a", "b")))
    start = driver.start()
    shops.client.truncate_stream(shops.name("a"), shops.client.stream_cut(shops.name("a"), after_events=4))

    with pytest.raises(DataLossError, match=rf"{shops.name('a')}: truncated before it was read.*\(4 events\)"):
        driver.end(start)
    lenient = drivers(**shops.options(stream=shops.names("a", "b"), failOnDataLoss="false"))
    rows, last = read_all(lenient, start)
    assert (len(rows), last["lost"]) == (6, 4)


def test_several_streams_end_where_they_did_at_one_moment(shops: Shops) -> None:
    """Behaviour 62: also what is committed between the questions of a plan is left for the next batch, as a whole."""
    shops.create("a", "b")
    names = [shops.name("a"), shops.name("b")]
    shops.write("a")
    shops.write("b")

    async def plan(planner: Planner) -> None:
        tails = await planner.client.stream_cuts(names)
        async with planner.client.transaction(names) as transaction:
            for name in names:
                await transaction.write(b"x", stream=name, key="key-1")
        for name in names:
            snapshot = await planner.of(name).fetch(tail=tails[name].places)
            assert cut_of(name, snapshot.tail) == tails[name]
            assert sum(mark.events for mark in snapshot.tail.values()) == 10
            assert snapshot.stream.tail() != tails[name]

    options = parse_options(shops.options(stream=shops.names("a", "b")))
    with closing(Link(options)) as link:
        run_plan(plan, link=link, options=options)


def test_a_batch_sees_all_of_a_transaction_or_nothing(shops: Shops, drivers: Drivers) -> None:
    """Behaviour 62: while transactions over two streams are committed."""
    shops.create("a", "b")
    names = [shops.name("a"), shops.name("b")]
    driver = drivers(**shops.options(stream=shops.names("a", "b")))
    stopping = threading.Event()

    def commit() -> None:
        while not stopping.is_set():
            with shops.client.transaction(names) as transaction:
                for name in names:
                    transaction.write(b"x", stream=name, key="key-1")

    with ThreadPoolExecutor() as pool:
        committing = pool.submit(commit)
        try:
            ends = [driver.start()]
            while len(ends) < 20:
                ends.append(driver.end(ends[-1]))
        finally:
            stopping.set()
        committing.result()
    for end in ends:
        first, second = (
            sum(mark.events for mark in StreamOffset.from_json(end).places[name].values()) for name in names
        )
        assert first == second


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_spark_reads_several_streams(spark: SparkSession, shops: Shops, batches: Batches) -> None:
    shops.create("a", "b")
    shops.write("a")
    shops.write("b")
    frame = spark.read.format("millrace").options(**shops.options(stream=shops.names("a", "b"))).load()
    assert {(row["stream"], row["count"]) for row in frame.groupBy("stream").count().collect()} == {
        (shops.name("a"), 10),
        (shops.name("b"), 10),
    }

    def run() -> None:
        options = shops.options(streamPattern=shops.name("*"), maxEventsPerTrigger=8)
        rows = spark.readStream.format("millrace").options(**options).load()
        query = rows.writeStream.foreachBatch(batches).option("checkpointLocation", str(shops.shop.folder / "several"))
        query.trigger(availableNow=True).start().awaitTermination()

    run()
    assert batches.sizes == ([8, 8, 4] if LIMITS_ARE_GIVEN else [20])
    shops.create("c")
    shops.write("c")
    shops.write("a")
    run()
    assert values(batches.all) == sorted(shops.written)
    assert rows_of(frame)
