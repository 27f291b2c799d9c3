# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace
from millrace import blocking
from millrace.client.client import Client
from millrace.client.errors import (
    BufferFullError,
    ClientClosedError,
    ColumnInvalidError,
    NotOpenError,
    SequencesMixedError,
)
from millrace.client.testing import TestServer
from millrace.client.write.arrow import HEADER_TYPE, TIME_TYPE, events_of
from millrace.client.write.options import WriterOptions
from millrace.client.write.routing import Router, place_of
from millrace.model.block_packing import pack_block, pack_columns
from millrace.model.errors import EventTooLargeError, InvalidArgumentError
from millrace.model.event_block import unpack_block
from millrace.model.key_range import KEY_SPACE
from tests.client.scaling import scale
from tests.support.event_blocks import COMPRESSIONS, EVENTS, HEADERS
from tests.support.tables import table

SIZES = {"append_size_max": 1 << 24, "size_bytes_max": 1 << 28}
ONE, TWO = Router([5], [0]), Router([5, 6], [0, KEY_SPACE // 2])

Events = list[tuple[bytes, str | None, int]]
AnyHeaders = dict[int, dict[str, bytes]]


def batch_of(events: Events, headers: AnyHeaders) -> Any:
    values, keys, times = (list(column) for column in zip(*events, strict=True))
    maps = [list(headers[index].items()) if index in headers else None for index in range(len(values))]
    return pa.record_batch(
        {
            "value": pa.array(values, pa.binary()),
            "key": pa.array(keys, pa.string()),
            "timestamp": pa.array(times, pa.int64()).cast(TIME_TYPE),
            "headers": pa.array(maps, HEADER_TYPE),
        }
    )


def rows(count: int) -> Any:
    return pa.record_batch({"value": [b"%d" % number for number in range(count)], "key": ["k"] * count})


@given(events=EVENTS, headers=HEADERS, compression=COMPRESSIONS, start=st.integers(0, 3))
def test_columns_are_the_block_that_the_events_are(
    events: Events, headers: AnyHeaders, compression: Any, start: int
) -> None:
    """Also of a slice of a batch: byte for byte what one event after another is packed to."""
    start = min(start, len(events) - 1)
    batch = batch_of(events, headers).slice(start)
    values, keys, times = (list(column) for column in zip(*events[start:], strict=True))
    ((number, columns),) = events_of(batch, now_us=7, **SIZES).pieces(ONE, unkeyed=0, block_size_bytes=1 << 20)

    assert number == 0
    assert pack_columns(columns, first_event_number=3, compression=compression) == pack_block(
        values,
        keys=None if keys.count(None) == len(keys) else keys,
        timestamps_us=times,
        headers={index - start: each for index, each in headers.items() if start <= index < len(events)},
        first_event_number=3,
        compression=compression,
    )


@given(events=EVENTS, headers=HEADERS, size_bytes=st.integers(1, 400))
def test_events_go_where_their_keys_are_in_blocks_of_a_size(
    events: Events, headers: AnyHeaders, size_bytes: int
) -> None:
    seen: defaultdict[int, Events] = defaultdict(list)
    found = events_of(batch_of(events, headers), now_us=7, **SIZES)
    for number, columns in found.pieces(TWO, unkeyed=1, block_size_bytes=size_bytes):
        block = unpack_block(pack_columns(columns))
        assert columns.event_count == 1 or len(block.value_data) < size_bytes
        seen[number] += [
            (event.value, event.key, event.timestamp_us or 0) for event in block.events(segment_id=1, offset=0)
        ]

    def number_of(key: str | None) -> int:
        return 1 if key is None else TWO.number_at(place_of(key, sequence=0))

    assert seen == {
        number: part
        for number in (0, 1)
        if (part := [(value, key, time) for value, key, time in events if number_of(key) == number])
    }


@table(
    ("columns", "column", "reason"),
    [
        ({"key": ["k"]}, "value", "is missing"),
        ({"value": ["text"]}, "value", "is string, and must be binary"),
        ({"value": [b"x", None]}, "value", "has 1 nulls"),
        ({"value": [b"x"], "keys": ["k"]}, "keys", "is not a column of events, but value, key"),
        ({"value": [b"x"], "Key": ["k"]}, "Key", "is not a column of events, but 'key'"),
        ({"value": [b"x"], "key": [b"k"]}, "key", "is binary, and must be string"),
        ({"value": [b"x"], "key": [7]}, "key", "is int64, and must be string"),
        ({"value": [b"x"], "timestamp": [7]}, "timestamp", "is int64, and must be timestamp"),
        ({"value": [b"x"], "timestamp": pa.array([7], pa.timestamp("us"))}, "timestamp", "is timestamp"),
        (
            {"value": [b"x"], "timestamp": pa.array([7], pa.timestamp("ns", tz="UTC"))},
            "timestamp",
            "would lose data",
        ),
        ({"value": [b"x"], "headers": ["a"]}, "headers", "is string, and must be map"),
        ({"value": [b"x"], "headers": pa.array([[("a", None)]], HEADER_TYPE)}, "headers", "has 1 null values"),
        (
            {"value": [b"x", b"y"], "headers": pa.array([[("a", b"")], [("a", b""), ("a", b"")]], HEADER_TYPE)},
            "headers",
            "has a name twice",
        ),
    ],
)
def test_a_column_that_is_none_is_named(columns: dict[str, Any], column: str, reason: str) -> None:
    with pytest.raises(ColumnInvalidError, match=reason) as caught:
        events_of(pa.table(columns), now_us=0, **SIZES)
    assert caught.value.column == column
    assert repr(column) in str(caught.value)


def test_a_column_that_is_there_twice_and_text_that_is_none() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([b"x"])] * 2, names=["value", "value"])
    with pytest.raises(ColumnInvalidError, match="is there twice"):
        events_of(twice, now_us=0, **SIZES)
    bad = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(ColumnInvalidError, match="'key' is not valid as string"):
        events_of(pa.record_batch({"value": [b"x"], "key": bad}), now_us=0, **SIZES)


@table(
    ("columns", "reason"),
    [
        ({"value": [b"x", bytes((8 << 20) + 1)]}, r"an event holds at most 8388608 bytes.*\(row 1\)"),
        ({"value": [b"x"], "key": ["k" * 65537]}, "a routing key holds at most 65536"),
        (
            {"value": [b"x"], "headers": pa.array([[(str(number), b"") for number in range(65)]], HEADER_TYPE)},
            "at most 64 headers",
        ),
        ({"value": [b"x"], "headers": pa.array([[("a", bytes(65536))]], HEADER_TYPE)}, "at most 65536 bytes"),
    ],
)
def test_an_event_above_the_limits_is_refused(columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(EventTooLargeError, match=reason):
        events_of(pa.table(columns), now_us=0, **SIZES)


def test_sizes_of_a_server_and_of_a_buffer_are_kept() -> None:
    batch = pa.record_batch({"value": [bytes(3000)] * 2})
    with pytest.raises(EventTooLargeError, match="an append of this server holds at most 3000"):
        events_of(batch, now_us=0, append_size_max=3000, size_bytes_max=1 << 20)
    with pytest.raises(EventTooLargeError, match="the buffer of the writer holds 5000"):
        events_of(batch, now_us=0, append_size_max=1 << 20, size_bytes_max=5000)
    # Encoded they are small; not so in a block.
    keys = pa.array(["k" * 1000] * 50).dictionary_encode()
    with pytest.raises(EventTooLargeError, match="the buffer of the writer holds 5000"):
        events_of(pa.table({"value": [b""] * 50, "key": keys}), now_us=0, append_size_max=1 << 20, size_bytes_max=5000)


@table("kind", [pa.large_binary(), pa.binary_view(), pa.binary(1)])
def test_other_types_of_bytes_and_text_are_taken(kind: Any) -> None:
    keys = pa.array(["a", None, "a"])
    table = pa.table({"value": pa.array([b"1", b"2", b"3"], kind), "key": keys.dictionary_encode()})
    ((_, columns),) = events_of(table, now_us=7, **SIZES).pieces(ONE, unkeyed=0, block_size_bytes=100)
    block = unpack_block(pack_columns(columns))
    assert (block.values(), block.keys()) == ([b"1", b"2", b"3"], ["a", None, "a"])
    assert block.timestamps is not None
    assert block.timestamps.tolist() == [7, 7, 7]


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(TypeError, match="RecordBatch or Table, not dict"):
        events_of({"value": [b"x"]}, now_us=0, **SIZES)
    with pytest.raises(ColumnInvalidError, match="string"):
        events_of(pa.table({"value": pa.array([], pa.string())}), now_us=0, **SIZES)


@table(
    "values",
    [pa.array([], pa.binary()), pa.chunked_array([], pa.binary()), pa.nulls(0), pa.chunked_array([], pa.null())],
)
def test_a_table_without_rows_has_no_events(values: Any) -> None:
    events = events_of(pa.table({"value": values, "key": values.cast(pa.string())}), now_us=0, **SIZES)
    assert list(events.pieces(ONE, unkeyed=0, block_size_bytes=100)) == []


def test_a_column_of_type_null_is_one_of_nulls() -> None:
    """As pyarrow infers it of objects that are all None."""
    table = pa.table({"value": [b"1", b"2"], "key": [None] * 2, "timestamp": [None] * 2, "headers": [None] * 2})
    ((_, columns),) = events_of(table, now_us=7, **SIZES).pieces(ONE, unkeyed=0, block_size_bytes=100)
    block = unpack_block(pack_columns(columns))
    assert (block.values(), block.keys(), block.headers()) == ([b"1", b"2"], [None, None], [None, None])
    assert block.timestamps is not None
    assert block.timestamps.tolist() == [7, 7]
    with pytest.raises(ColumnInvalidError, match="2 nulls"):
        events_of(pa.table({"value": pa.nulls(2)}), now_us=0, **SIZES)


# --- against a server ---


@pytest.mark.asyncio
async def test_what_was_read_is_written_as_it_is(client: Client, name: str) -> None:
    """Events with and without keys and headers, over several segments and blocks; also as a table."""
    copy, again = f"{name}-copy", f"{name}-again"
    for stream in (name, copy, again):
        config = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(3))
        await client.create_stream(stream, config)
    async with client.writer(name) as writer:
        for number in range(300):
            headers = {"n": b"%d" % number} if number % 3 == 0 else None
            writer.write(b"%d" % number, key=f"k{number % 7}" if number % 5 else None, headers=headers)
    options = WriterOptions(block_size_bytes=1024)
    async with client.reader(name, end=millrace.TAIL) as reader, client.writer(copy, options=options) as writer:
        futures = [writer.write_arrow(batch) async for batch in reader.arrow_batches()]
        assert all(stored.event_count for stored in await asyncio.gather(*futures))
        assert writer.pending_bytes == 0
    async with client.reader(copy, end=millrace.TAIL) as reader, client.transaction(again) as transaction:
        transaction.write_arrow(pa.Table.from_batches([batch async for batch in reader.arrow_batches()]))

    async def seen(stream: str) -> dict[str | None, list[Any]]:
        events = defaultdict(list)
        async with client.reader(stream, end=millrace.TAIL) as reader:
            async for event in reader:
                events[event.key].append((event.value, event.timestamp_us, event.headers or None))
        events[None].sort()
        return events

    first = await seen(name)
    assert sum(map(len, first.values())) == 300
    assert await seen(copy) == await seen(again) == first


@pytest.mark.asyncio
async def test_a_stream_that_is_scaled_meanwhile(client: Client, name: str) -> None:
    """Behaviour 22: batches of many blocks between single events; each key in order, everything once."""
    await client.create_stream(name)
    options = WriterOptions(block_size_bytes=1024, in_flight_bytes_max=20_000)
    futures = []
    async with client.writer(name, writer_id=f"{name}:w", options=options) as writer:
        for start in range(0, 4000, 400):
            numbers = range(start, start + 400)
            table = {"value": [b"%d" % number for number in numbers], "key": [f"k{number % 7}" for number in numbers]}
            futures += [writer.write_arrow(pa.table(table)), writer.write(b"-1", key="single")]
            await asyncio.sleep(0)
            await scale(client, name)
        await writer.flush()
        assert writer.statistics().reroutes > 0
        assert all(stored.event_count for stored in await asyncio.gather(*futures))
    seen = defaultdict(list)
    async with client.reader(name, end=millrace.TAIL) as reader:
        async for event in reader:
            seen[event.key].append(int(event.value))
    assert seen == {f"k{key}": list(range(key, 4000, 7)) for key in range(7)} | {"single": [-1] * 10}


@pytest.mark.asyncio
async def test_a_refused_batch_leaves_the_writer_as_it_was(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        with pytest.raises(ColumnInvalidError):
            writer.write_arrow(pa.table({"value": [b"x", None]}))
        assert (await writer.write_arrow(rows(2))).event_number == 1
        await writer.write_arrow(rows(0).cast(pa.schema({"value": pa.binary(), "key": pa.string()})))
    with pytest.raises(ClientClosedError):
        writer.write_arrow(rows(1))
    async with client.writer(name, writer_id=f"{name}:numbered") as writer:
        await writer.write(b"x", sequence=1)
        with pytest.raises(SequencesMixedError):
            writer.write_arrow(rows(1))
    options = WriterOptions(buffer_bytes_max=2000, drain_high_bytes=2000, drain_low_bytes=1)
    async with client.writer(name, options=options) as writer:
        futures = [writer.write_arrow(rows(60)) for _ in range(2)]
        with pytest.raises(BufferFullError):
            writer.write_arrow(rows(1))
        await asyncio.gather(*futures)
        await writer.write_arrow(rows(1))


@pytest.mark.asyncio
async def test_batches_of_a_transaction(client: Client, name: str) -> None:
    """They are for one of its streams, and nobody reads them before the commit."""
    one, two = f"{name}-1", f"{name}-2"
    for stream in (one, two):
        await client.create_stream(stream)
    transaction = client.transaction([one, two])
    with pytest.raises(NotOpenError):
        transaction.write_arrow(rows(1), stream=one)
    async with transaction:
        with pytest.raises(InvalidArgumentError, match="name the stream"):
            transaction.write_arrow(rows(1))
        stored = await transaction.write_arrow(rows(5), stream=two)
        assert stored.event_count == 5
        async with client.reader(two, end=millrace.TAIL) as reader:
            assert [event async for event in reader] == []
    async with client.reader(two, end=millrace.TAIL) as reader:
        assert [event.value async for event in reader] == [b"%d" % number for number in range(5)]


def test_for_threads(server: TestServer, name: str) -> None:
    with blocking.connect(server.address) as client:
        client.create_stream(name)
        with client.writer(name) as writer:
            assert writer.write_arrow(rows(3)).result(60).event_count == 3
            with pytest.raises(ColumnInvalidError):
                writer.write_arrow(pa.table({"value": [None]}))
        with client.transaction(name) as transaction:
            transaction.write_arrow(rows(2))
        with client.reader(name, end=millrace.TAIL) as reader:
            assert sum(batch.num_rows for batch in reader.arrow_batches()) == 5
