# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import os
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import (
    BufferFullError,
    ClientClosedError,
    NotOpenError,
    SegmentSealedError,
    StreamNotFoundError,
    StreamSealedError,
    WriterFencedError,
)
from millrace.client.testing import TestServer
from millrace.client.write.events import EVENT_COST_BYTES, NOTHING_STORED, WriteResult
from millrace.client.write.options import WriterOptions
from millrace.model.cut import TAIL
from millrace.model.errors import EventTooLargeError, InvalidArgumentError, InvalidNameError
from millrace.model.limits import EVENT_SIZE_BYTES_MAX
from millrace.model.policy import ScalingPolicy, StreamConfig
from tests.client.write.writers import values_of

pytestmark = pytest.mark.asyncio


async def test_a_write_is_durable_when_its_future_is_done(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        stored = await writer.write(b"one", key="k", timestamp_us=5)
        assert (stored.offset, stored.event_number, stored.event_count) == (0, 1, 1)
        async with client.reader(name, end=millrace.TAIL) as reader:
            event = await anext(reader)
    assert (event.value, event.key, event.timestamp_us) == (b"one", "k", 5)


async def test_headers_are_read_as_they_were_written(client: Client, name: str) -> None:
    """Of single events, of many, of those with a key each; a change by the caller afterwards changes nothing."""
    await client.create_stream(name)
    mutable = {"trace": b"1"}
    async with client.writer(name) as writer:
        writer.write(b"a", key="k", headers=mutable)
        mutable["trace"] = b"2"
        writer.write(b"b", key="k")
        writer.write_many([b"c", b"d"], key="k", headers={"all": b""})
        writer.write_many([b"e", b"f"], keys=["k", "k"], headers=[None, {"one": b"\xff"}])
        with pytest.raises(EventTooLargeError, match="at most 64 headers"):
            writer.write(b"", headers={str(number): b"" for number in range(65)})
        with pytest.raises(EventTooLargeError, match="at most 65536 bytes"):
            writer.write_many([b""], headers={"large": bytes(65536)})
        with pytest.raises(InvalidArgumentError, match="1 headers for 2 events"):
            writer.write_many([b"", b""], headers=[None])
        with pytest.raises(TypeError, match="headers map text to bytes"):
            writer.write(b"", headers={"text": "text"})  # type: ignore[dict-item]  # wrong on purpose

    expected = {
        b"a": {"trace": b"1"},
        b"b": {},
        b"c": {"all": b""},
        b"d": {"all": b""},
        b"e": {},
        b"f": {"one": b"\xff"},
    }
    async with client.reader(name, end=TAIL) as reader:
        assert {event.value: event.headers async for event in reader} == expected
    async with client.reader(name, end=TAIL) as reader:
        rows = [row async for batch in reader.arrow_batches() for row in batch.to_pylist()]
    assert {row["value"]: dict(row["headers"]) for row in rows} == expected


@pytest.mark.both_loops
async def test_events_of_a_key_are_stored_in_the_order_written(client: Client, name: str) -> None:
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(4)))
    async with client.writer(name, options=WriterOptions(block_size_bytes=1024)) as writer:
        for number in range(500):
            writer.write(b"%d" % number, key=f"key-{number % 7}")
            if number % 50 == 0:
                await asyncio.sleep(0)

    seen = defaultdict(list)
    async with client.reader(name, end=millrace.TAIL) as reader:
        async for event in reader:
            seen[event.key].append(int(event.value))
    assert seen == {f"key-{key}": list(range(key, 500, 7)) for key in range(7)}


async def test_events_gather_while_a_block_is_on_its_way(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        first = writer.write(b"alone")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = [writer.write(b"together") for _ in range(50)]
        stored = await asyncio.gather(first, *others)

    assert stored[0].event_count == 1
    assert {record.event_count for record in stored[1:]} == {50}


async def test_a_new_writer_was_never_written_and_a_known_one_continues(client: Client, name: str) -> None:
    """Behaviour 1."""
    await client.create_stream(name)
    assert await client.writer_state(name, f"{name}:w") is None
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        assert not writer.known
        assert set(writer.last_event_numbers.values()) == {0}
        writer.write_many([b"a", b"b"])
        epoch = writer.epoch
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        assert writer.known
        assert writer.epoch == epoch + 1
        assert list(writer.last_event_numbers.values()) == [2]
        assert (await writer.write(b"c")).event_number == 3
    state = await client.writer_state(name, f"{name}:w")
    assert state is not None
    assert list(state.values()) == [3]
    assert await values_of(client, name) == [b"a", b"b", b"c"]


async def test_the_older_of_two_writers_is_fenced(client: Client, name: str) -> None:
    """Behaviour 4."""
    await client.create_stream(name)
    async with client.writer(name, writer_id=f"{name}:w") as older:
        await older.write(b"before")
        async with client.writer(name, writer_id=f"{name}:w") as newer:
            with pytest.raises(WriterFencedError):
                await older.write(b"fenced")
            with pytest.raises(WriterFencedError):
                older.write(b"refused at once")
            await newer.write(b"after")
        with pytest.raises(WriterFencedError):
            await older.flush()
    assert await values_of(client, name) == [b"before", b"after"]


@pytest.mark.slow
@pytest.mark.parametrize("round_number", range(3))
async def test_a_killed_server_costs_no_event_and_doubles_none(
    millrace_server: TestServer, name: str, round_number: int
) -> None:
    """Behaviours 2 and 3: what has no ack is sent again as it was packed; the server stores each number once."""
    options = WriterOptions(block_size_bytes=2048, in_flight_bytes_max=200_000)
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(2)))
        async with client.writer(name, options=options) as writer:
            futures = [writer.write(b"%d" % number, key=f"{number % 5}") for number in range(1000)]
            await futures[200 * (round_number + 1)]
            await asyncio.to_thread(millrace_server.kill)
            futures += [writer.write(b"%d" % number, key=f"{number % 5}") for number in range(1000, 2000)]
            await asyncio.to_thread(millrace_server.start)
            await writer.flush()
            assert writer.statistics().retries > 0
            assert all(future.done() and future.exception() is None for future in futures)
            assert writer.pending_bytes == 0

        seen = defaultdict(list)
        async with client.reader(name, end=millrace.TAIL) as reader:
            async for event in reader:
                seen[event.key].append(int(event.value))
        assert seen == {f"{key}": list(range(key, 2000, 5)) for key in range(5)}


@pytest.mark.slow
async def test_a_writer_continues_after_an_orderly_restart(millrace_server: TestServer, name: str) -> None:
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name)
        async with client.writer(name) as writer:
            for number in range(5):
                await writer.write(b"%d" % number)
                await asyncio.to_thread(millrace_server.restart)
        assert await values_of(client, name) == [b"0", b"1", b"2", b"3", b"4"]


async def test_many_events_are_one_contiguous_block(client: Client, name: str) -> None:
    """Behaviour 7: two writers interleave freely, each one's order kept."""
    await client.create_stream(name)
    async with client.writer(name) as first, client.writer(name) as second:
        for number in range(10):
            first.write(b"single-%d" % number)
            first.write_many([b"first-%d" % number] * 5)
            second.write_many([b"second-%d" % number] * 5)
            await asyncio.sleep(0)

    values = await values_of(client, name)
    assert [value for value in values if value.startswith(b"single")] == [b"single-%d" % number for number in range(10)]
    for mark in (b"first", b"second"):
        blocks = [b"%b-%d" % (mark, number) for number in range(10)]
        places = [values.index(value) for value in blocks]
        assert places == sorted(places)
        assert all(values[place : place + 5] == [value] * 5 for place, value in zip(places, blocks, strict=True))


async def test_many_events_with_their_own_keys_go_where_single_ones_go(client: Client, name: str) -> None:
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(3)))
    keys = [f"k{number}" for number in range(30)]
    async with client.writer(name) as writer:
        singles = [await writer.write(b"single", key=key) for key in keys]
        await writer.write_many([b"many"] * 30, keys=keys, timestamps_us=list(range(30)))

    places: dict[str | None, set[int]] = defaultdict(set)
    times = {}
    async with client.reader(name, end=millrace.TAIL) as reader:
        async for event in reader:
            places[event.key].add(event.segment)
            if event.value == b"many":
                times[event.key] = event.timestamp_us
    assert places == {key: {stored.segment_id} for key, stored in zip(keys, singles, strict=True)}
    assert times == {key: number for number, key in enumerate(keys)}


async def test_events_that_do_not_fit_are_refused_and_nothing_is_taken(client: Client, name: str) -> None:
    """Behaviour 8."""
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(2)))
    largest = bytes(EVENT_SIZE_BYTES_MAX)
    async with client.writer(name) as writer:
        with pytest.raises(EventTooLargeError):
            writer.write(largest + b"x")
        with pytest.raises(EventTooLargeError):
            writer.write_many([largest, largest], key="k")
        with pytest.raises(EventTooLargeError):
            writer.write(b"", key="k" * 65537)
        with pytest.raises(InvalidArgumentError):
            writer.write(b"", timestamp_us=2**63)
        with pytest.raises(InvalidArgumentError):
            writer.write_many([b"a"], keys=["a", "b"])
        with pytest.raises(InvalidArgumentError):
            writer.write_many([], keys=["a"])
        with pytest.raises(TypeError):
            writer.write_many([b"a"], timestamps_us=[1.5])  # type: ignore[list-item]  # wrong on purpose
        with pytest.raises(TypeError):
            writer.write("text")  # type: ignore[arg-type]  # wrong on purpose
        assert writer.pending_bytes == 0
        await writer.write(largest)
    assert [len(value) for value in await values_of(client, name)] == [len(largest)]


@pytest.mark.parametrize("is_named", [False, True])
async def test_calls_without_events_write_nothing(client: Client, name: str, *, is_named: bool) -> None:
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(2)))
    none = pa.chunked_array([], pa.binary())
    async with client.writer(name, writer_id=f"{name}:w" if is_named else None) as writer:
        for _ in range(2):
            if is_named:
                writer.write(b"x", sequence=writer._sequences.last + 1)
                await writer.write_many([], first_sequence=7)
            else:
                writer.write(b"x", key="k")
                await writer.write_arrow(pa.table({"value": none}))
            assert (
                await writer.write_many([]) == await writer.write_many([], keys=[], timestamps_us=[]) == NOTHING_STORED
            )
    async with client.transaction(name) as transaction:
        await transaction.write_many([])
        await transaction.write_arrow(pa.table({"value": none}))
    assert await values_of(client, name) == [b"x", b"x"]
    with pytest.raises(ClientClosedError):
        writer.write_many([])


async def test_integers_of_numpy_are_integers(client: Client, name: str) -> None:
    await client.create_stream(name)
    times: Any = np.array([5, 6, 7], dtype=np.uint32)
    numbers: list[Any] = [np.int64(0), np.uint8(1), np.int16(3), np.int32(8)]
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        await writer.write(b"0", sequence=numbers[0], timestamp_us=times[0])
        await writer.write_many([b"1", b"2"], first_sequence=numbers[1], timestamps_us=times[1:])
        await writer.write_many([b"3"], first_sequence=numbers[2], timestamps_us=numbers[3])
        assert writer.stored_through == 3
        wrongs: list[Any] = [np.array([1 << 63], dtype=np.uint64), [1 << 64], np.uint64(1 << 63)]
        for wrong in wrongs:
            with pytest.raises(InvalidArgumentError, match="64 bits"):
                writer.write_many([b"4"], first_sequence=4, timestamps_us=wrong)
        with pytest.raises(TypeError, match="datetime64"):
            writer.write_many([b"4"], first_sequence=4, timestamps_us=np.array([1], dtype="M8[ms]"))
        with pytest.raises(TypeError, match="float64"):
            writer.write(b"4", sequence=4, timestamp_us=np.float64(1))  # type: ignore[arg-type]  # wrong on purpose
    async with client.reader(name, end=TAIL) as reader:
        assert [(event.value, event.timestamp_us) async for event in reader] == [
            (b"0", 5), (b"1", 6), (b"2", 7), (b"3", 8)
        ]  # fmt: skip


async def test_the_buffer_is_bounded_and_drained(client: Client, name: str) -> None:
    await client.create_stream(name)
    options = WriterOptions(buffer_bytes_max=20_000, drain_high_bytes=10_000, drain_low_bytes=5_000)
    async with client.writer(name, options=options) as writer:
        written = 20_000 // (1000 + EVENT_COST_BYTES)
        for _ in range(written):
            writer.write(b"x" * 1000)
        with pytest.raises(BufferFullError) as caught:
            writer.write(b"x" * 1000)
        assert caught.value.retriable
        await writer.drain()
        assert writer.pending_bytes <= 5_000
        await writer.send(b"x" * 1000)
    assert len(await values_of(client, name)) == written + 1


async def test_a_cancelled_wait_loses_nothing(client: Client, name: str) -> None:
    """Behaviour 9: the outcome can be asked for by writer and event number."""
    await client.create_stream(name)
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        future = writer.write(b"x")
        future.cancel()
        await writer.flush()
        state = await client.writer_state(name, f"{name}:w")
    assert state is not None
    assert list(state.values()) == [1]
    assert await values_of(client, name) == [b"x"]


async def test_sealing_a_stream_fails_pending_writes_as_sealed(client: Client, name: str) -> None:
    """Behaviour 21."""
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write(b"stored")
        await client.seal_stream(name)
        futures = [writer.write(b"late") for _ in range(3)]
        with pytest.raises(SegmentSealedError):
            await writer.flush()
        assert all(isinstance(future.exception(), SegmentSealedError) for future in futures)
        assert writer.pending_bytes == 0
    with pytest.raises(StreamSealedError):
        async with client.writer(name):
            pass
    assert await values_of(client, name) == [b"stored"]


async def test_a_writer_that_failed_says_so_when_it_is_left(client: Client, name: str) -> None:
    await client.create_stream(name)
    writer = await client.writer(name).__aenter__()
    await client.seal_stream(name)
    writer.write(b"nobody looks at this future")
    with pytest.raises(SegmentSealedError):
        await writer.__aexit__(None, None, None)


async def test_the_error_of_the_body_is_not_hidden_by_that_of_the_writer(client: Client, name: str) -> None:
    await client.create_stream(name)

    async def body() -> None:
        async with client.writer(name) as writer:
            writer.write(b"stored all the same")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()
    assert await values_of(client, name) == [b"stored all the same"]


async def test_a_writer_that_was_not_opened_says_so(client: Client, name: str) -> None:
    """It is not closed: it works once it is opened."""
    await client.create_stream(name)
    writer = client.writer(name)
    with pytest.raises(NotOpenError, match=r"await writer\.open\(\)"):
        writer.write(b"x")
    with pytest.raises(NotOpenError):
        writer.write_many([b"x"])
    for wait in (writer.flush, writer.drain):
        with pytest.raises(NotOpenError):
            await wait()
    await writer.close()
    await writer.open()
    await writer.write(b"x")
    await writer.close()


async def test_a_closed_writer_refuses(client: Client, name: str) -> None:
    await client.create_stream(name)
    writer = client.writer(name)
    async with writer:
        await writer.write(b"x")
    depths = []
    for _ in range(3):
        with pytest.raises(ClientClosedError) as caught:
            writer.write(b"x")
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1, "an error that is raised again has the traceback of that time only"


async def test_a_cancelled_body_waits_for_nothing_and_settles_every_future(
    millrace_server: TestServer, name: str
) -> None:
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name)
        futures: list[asyncio.Future[WriteResult]] = []
        written = asyncio.Event()

        async def body() -> None:
            async with client.writer(name) as writer:
                await writer.write(b"stored")
                await asyncio.to_thread(millrace_server.kill)
                futures.extend(writer.write(b"%d" % number) for number in range(5))
                written.set()
                await writer.flush()

        task = asyncio.create_task(body())
        await written.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(result, ClientClosedError) for result in results)


async def test_a_cancelled_close_counts_what_it_abandons(
    millrace_server: TestServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour 98."""
    async with millrace.connect(millrace_server.address) as client:
        for stream in (name, f"{name}-bytes"):
            await client.create_stream(stream)
        steps = asyncio.Barrier(3)

        async def write_events() -> None:
            async with client.writer(name) as writer:
                await steps.wait()
                await steps.wait()
                writer.write_many([b"x"] * 5)

        async def write_bytes() -> None:
            async with client.byte_writer(f"{name}-bytes") as writer:
                await steps.wait()
                await steps.wait()
                await writer.write(b"123")

        tasks = [asyncio.create_task(write_events()), asyncio.create_task(write_bytes())]
        await steps.wait()
        await asyncio.to_thread(millrace_server.kill)
        await steps.wait()
        for task in tasks:
            await asyncio.sleep(0)  # until it closes
            task.cancel()
        await asyncio.wait(tasks)
    found = [message for message in caplog.messages if "abandoned" in message]
    assert sorted(found) == [
        f"writer abandoned stream={name} unacknowledged_events=5 unacknowledged_bytes=0 cause=CancelledError",
        f"writer abandoned stream={name}-bytes unacknowledged_events=0 unacknowledged_bytes=3 cause=CancelledError",
    ]


async def test_wrong_streams_and_ids_are_refused(client: Client, name: str) -> None:
    with pytest.raises(StreamNotFoundError):
        async with client.writer(name):
            pass
    with pytest.raises(InvalidNameError):
        client.writer("no-scope")
    with pytest.raises(InvalidNameError):
        client.writer(name, writer_id="")
    with pytest.raises(InvalidNameError):
        client.writer(name, writer_id="tab\t")


@pytest.mark.parametrize("compression", millrace.Compression)
async def test_compressed_blocks_are_read_like_others(
    client: Client, name: str, compression: millrace.Compression
) -> None:
    await client.create_stream(name)
    values = [b"abc" * 100, b"", os.urandom(100)]
    async with client.writer(name, options=WriterOptions(compression=compression)) as writer:
        await writer.write_many(values, key="k")
    assert await values_of(client, name) == values


async def test_a_forked_child_cannot_write(client: Client, name: str) -> None:
    """Behaviour 10."""
    await client.create_stream(name)
    async with client.writer(name) as writer:
        child = os.fork()
        if child == 0:  # nothing of pytest may run here
            try:
                writer.write(b"from the child")
                os._exit(1)
            except millrace.ForkedClientError:
                os._exit(0)
            finally:
                os._exit(2)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await writer.write(b"from the parent")
    assert await values_of(client, name) == [b"from the parent"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_size_bytes": 1},
        {"drain_low_bytes": 2, "drain_high_bytes": 1},
        {"in_flight_bytes_max": 0},
    ],
)
async def test_options_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WriterOptions(**wrong)  # type: ignore[arg-type]  # only numbers here


async def test_a_writer_is_opened_once(client: Client, name: str) -> None:
    """Opened again it would take events that nothing sends."""
    await client.create_stream(name)
    async with client.writer(name, writer_id="w") as writer:
        with pytest.raises(InvalidArgumentError, match="open already"):
            await writer.open()
        await writer.write(b"1")
    with pytest.raises(ClientClosedError):
        await writer.open()

    await client.create_stream(f"{name}-bytes")
    async with client.byte_writer(f"{name}-bytes") as file:
        with pytest.raises(InvalidArgumentError, match="open already"):
            await file.__aenter__()
    with pytest.raises(ClientClosedError):
        await file.__aenter__()
