"""Readers as streams of Arrow, on a real server."""

import asyncio
from collections.abc import Iterator

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import millrace
from millrace import blocking
from millrace.client.client import Client
from millrace.client.read.arrow import EVENT_SCHEMA
from millrace.client.testing import TestServer
from millrace.model.errors import InvalidArgumentError

ORDER = pa.schema([("customer", pa.string()), ("amount", pa.int64())])
ORDERS = [b'{"customer": "ada", "amount": 3}', b'{"customer": "bob", "amount": 4}']


@pytest.fixture
def shop(server: TestServer) -> Iterator[blocking.Client]:
    with blocking.connect(server.address) as connected:
        yield connected


def write(client: blocking.Client, stream: str, values: list[bytes], *, key: str | None = "k") -> None:
    with client.writer(stream) as writer:
        writer.write_many(values, key=key)


def test_a_stream_without_events_has_a_schema(shop: blocking.Client, name: str) -> None:
    shop.create_stream(name)
    with shop.reader(name, end=millrace.TAIL) as reader:
        found = reader.to_arrow()
        assert found.schema == EVENT_SCHEMA
        assert found.read_all().num_rows == 0
    with shop.reader([name], end=millrace.TAIL) as several:
        assert several.to_arrow().read_all().schema == EVENT_SCHEMA.append(pa.field("stream", pa.string(), False))
    with shop.reader(name, end=millrace.TAIL) as reader:
        assert reader.to_arrow(json=ORDER).read_all().schema.names[:3] == ["customer", "amount", "_key"]
    with shop.reader(name, end=millrace.TAIL) as reader:
        assert reader.to_arrow(json=True).read_all().schema.names[0] == "_key"


def test_the_events_of_a_scaled_and_sealed_stream_with_their_headers(shop: blocking.Client, name: str) -> None:
    shop.create_stream(name, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2)))
    with shop.writer(name) as writer:
        for number in range(20):
            writer.write(b"%d" % number, key=f"k{number % 5}", headers={"n": b"%d" % number})
    low, _ = shop.stream_info(name).open_segments
    shop.scale_stream(name, seal=[low.segment_id], ranges=[(0, 0.25), (0.25, 0.5)])
    with shop.writer(name) as writer:
        for number in range(20, 40):
            writer.write(b"%d" % number, key=f"k{number % 5}")
    shop.seal_stream(name)

    with shop.reader(name) as reader:
        table = reader.to_arrow().read_all()

    assert sorted(map(int, table["value"].to_pylist())) == list(range(40))
    for key in {*table["key"].to_pylist()}:
        numbers = [int(row["value"]) for row in table.to_pylist() if row["key"] == key]
        assert numbers == sorted(numbers)
    assert len({*table["segment"].to_pylist()}) >= 3
    headers = {int(row["value"]): row["headers"] for row in table.to_pylist()}
    assert (headers[7], headers[27]) == ([("n", b"7")], [])


def test_batches_come_when_they_are_asked_for(shop: blocking.Client, name: str) -> None:
    """What is read is counted batch by batch, so a stream of any length is read in the window of its reader."""
    shop.create_stream(name)
    for number in range(8):
        write(shop, name, [b"%d" % number] * 5000)

    with shop.reader(name, end=millrace.TAIL) as reader:
        found = reader.to_arrow()
        assert reader.position() == shop.stream_head(name)
        assert found.read_next_batch().num_rows == 5000
        place = reader.position()
        assert place not in (shop.stream_head(name), shop.stream_cut(name))
    with shop.reader(name, start=place, end=millrace.TAIL) as reader:
        assert reader.to_arrow().read_all().num_rows == 35000


def test_whoever_speaks_arrow_reads_a_reader(shop: blocking.Client, name: str) -> None:
    shop.create_stream(name)
    write(shop, name, ORDERS)
    with shop.reader(name, end=millrace.TAIL) as reader:
        assert pa.RecordBatchReader.from_stream(reader).read_all().num_rows == 2
    with shop.reader(name, end=millrace.TAIL) as reader:
        assert pl.DataFrame(reader.to_arrow(json=ORDER))["amount"].to_list() == [3, 4]
    with shop.reader(name, end=millrace.TAIL) as reader:
        orders = reader.to_arrow(json=True)
        assert orders.schema.names[:2] == ["customer", "amount"]
        assert duckdb.execute("SELECT sum(amount) FROM orders WHERE customer = 'bob'").fetchall() == [(4,)]


def test_columns_are_inferred_from_so_many_events_and_fixed_after_them(shop: blocking.Client, name: str) -> None:
    shop.create_stream(name)
    write(shop, name, [b'{"a": 1, "b": null}'])
    write(shop, name, [b'{"a": 2, "at": "2026-01-31T18:00:00+01:00"}'])
    with shop.reader(name, end=millrace.TAIL) as reader:
        assert reader.to_arrow(json=True, infer_count=1).read_all().schema.names[:2] == ["a", "_key"]
    with shop.reader(name, end=millrace.TAIL) as reader:
        table = reader.to_arrow(json=True).read_all()
        assert table.select(["a", "at"]).schema == pa.schema([("a", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
        assert table["at"][1].as_py().hour == 17
    with shop.reader(name, end=millrace.TAIL) as reader, pytest.raises(InvalidArgumentError, match="infer_count=0"):
        reader.to_arrow(json=True, infer_count=0)


@pytest.mark.parametrize("bad", [b"no json", b"[1]", b'{"amount": "three"}', b'{"amount": 1} {"amount": 2}'])
def test_a_value_that_does_not_parse_is_named_by_its_place(shop: blocking.Client, name: str, bad: bytes) -> None:
    shop.create_stream(name)
    write(shop, name, ORDERS)
    write(shop, name, [*ORDERS, bad, *ORDERS])

    with shop.reader(name, end=millrace.TAIL) as reader:
        found = reader.to_arrow(json=ORDER)
        batches = []
        with pytest.raises(millrace.ValueMalformedError) as caught:
            batches.extend(found)

    assert sum(batch.num_rows for batch in batches) == 4
    assert shop.fetch_event(caught.value.position).value == bad
    assert f"index {caught.value.position.event_index}" in str(caught.value)


def test_values_from_which_no_schema_can_be_inferred(shop: blocking.Client, name: str) -> None:
    shop.create_stream(name)
    write(shop, name, [b'{"a": 1}', b'{"a": "x"}'])
    with shop.reader(name, end=millrace.TAIL) as reader, pytest.raises(InvalidArgumentError, match="no schema fits"):
        reader.to_arrow(json=True)
    write(shop, name, [b"x"])
    with shop.reader(name, end=millrace.TAIL) as reader, pytest.raises(millrace.ValueMalformedError) as caught:
        reader.to_arrow(json=True)
    assert shop.fetch_event(caught.value.position).value == b"x"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("_key", pa.string())]), "'_key' is duplicate"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "'a' is duplicate"),
        (pa.schema([("a", pa.large_list(pa.int64()))]), "'a' is large_list"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_at_once(
    shop: blocking.Client, name: str, schema: pa.Schema, message: str
) -> None:
    shop.create_stream(name)
    with shop.reader(name) as reader, pytest.raises(InvalidArgumentError, match=message):
        reader.to_arrow(json=schema)


def test_what_json_is_must_be_said_rightly(shop: blocking.Client, name: str) -> None:
    shop.create_stream(name)
    with shop.reader(name) as reader, pytest.raises(TypeError, match="not dict"):
        reader.to_arrow(json={"a": "int"})


def test_events_in_hand_come_first(shop: blocking.Client, name: str) -> None:
    shop.create_stream(name)
    write(shop, name, ORDERS)
    with shop.reader(name, end=millrace.TAIL) as reader:
        next(reader)
        with pytest.raises(InvalidArgumentError, match="consume them first"):
            reader.to_arrow()


def test_a_client_that_was_closed_ends_it(server: TestServer, shop: blocking.Client, name: str) -> None:
    shop.create_stream(name)
    with blocking.connect(server.address) as other:
        found = other.reader(name).to_arrow()
    with pytest.raises(millrace.ClientClosedError):
        found.read_next_batch()


def test_an_event_loop_that_has_ended_ends_it(server: TestServer, shop: blocking.Client, name: str) -> None:
    shop.create_stream(name)

    async def opened() -> pa.RecordBatchReader:
        async with millrace.connect(server.address) as client, client.reader(name) as reader:
            return await reader.to_arrow()

    found = asyncio.run(opened())
    with pytest.raises(millrace.ClientClosedError, match="event loop"):
        found.read_next_batch()


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_another_thread_reads_what_the_loop_fetches(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write_many(ORDERS)
    async with client.reader(name, end=millrace.TAIL) as reader:
        found = await reader.to_arrow(json=ORDER)
        with pytest.raises(RuntimeError, match="to_thread"):
            found.read_next_batch()
    async with client.reader(name, end=millrace.TAIL) as reader:
        found = await reader.to_arrow(json=ORDER)
        table = await asyncio.to_thread(found.read_all)
        assert table["amount"].to_pylist() == [3, 4]
