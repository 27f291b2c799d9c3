"""Sequences of the caller against a real server: behaviour 66."""

# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import random
from collections import Counter

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import SequencesMixedError, WriterFencedError
from millrace.client.testing import TestServer
from millrace.client.write.events import WriteResult
from millrace.client.write.options import WriterOptions
from millrace.client.write.writer_info import EventOutcome
from millrace.model.cut import TAIL
from millrace.model.errors import EventTooLargeError, InvalidArgumentError
from millrace.model.limits import EVENT_SIZE_BYTES_MAX
from millrace.model.policy import ScalingPolicy, StreamConfig
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio

BEFORE = WriteResult(0, None, 0, 0)


async def numbers_of(client: Client, stream: str) -> list[int]:
    async with client.reader(stream, end=TAIL) as reader:
        return [int(event.value) async for event in reader]


async def told(client: Client, stream: str, writer_id: str, through: int) -> None:
    """Wait until the server was told that everything through a sequence is stored."""
    while (info := await client.writer_info(stream, writer_id)) is None or info.stored_through < through:
        pass


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_writer_resumes_after_what_is_stored(client: Client, name: str, *, keyed: bool) -> None:
    """What is written again is acked as stored, and not stored again."""
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(4)))

    def key(number: int) -> str | None:
        return f"k{number % 17}" if keyed else None

    async with client.writer(name, writer_id=f"{name}:w") as writer:
        assert writer.stored_through == -1
        for number in range(100):
            writer.write(b"%d" % number, key=key(number), sequence=number)
        await writer.flush()
        assert writer.stored_through == 99
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        assert writer.stored_through == 99
        again = [writer.write(b"%d" % number, key=key(number), sequence=number) for number in range(50, 120)]
        outcomes = await asyncio.gather(*again)
        assert all((outcome == BEFORE) == (number < 100) for number, outcome in enumerate(outcomes, start=50))
    assert sorted(await numbers_of(client, name)) == list(range(120))


async def test_many_events_are_recognised_one_by_one(client: Client, name: str) -> None:
    """Of a call that is replayed only the rest is sent."""
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(3)))
    keys = [f"k{number % 5}" for number in range(3000)]
    values = [b"%d" % number for number in range(3000)]
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        await writer.write_many(values[:700], keys=keys[:700], first_sequence=0)
        await writer.write_many(values[700:1500], first_sequence=700)
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        assert writer.stored_through == 1499
        assert await writer.write_many(values[:700], keys=keys[:700], first_sequence=0) == BEFORE
        stored = await writer.write_many(values[700:], first_sequence=700)
        assert stored.segment_id > 0
    assert sorted(await numbers_of(client, name)) == list(range(3000))


async def test_a_call_of_one_key_is_one_block_after_what_is_stored(client: Client, name: str) -> None:
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(3)))
    values = [b"%d" % number for number in range(10)]
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        await writer.write_many(values[:4], key="k", first_sequence=0)
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        assert (await writer.write_many(values, key="k", first_sequence=0)).event_count == 6
    assert await numbers_of(client, name) == list(range(10))


async def test_sequences_ascend_and_may_leave_gaps(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        writer.write(b"5", sequence=5)
        writer.write(b"9", sequence=9)
        for sequence in (9, 3, -1, 1 << 63):
            with pytest.raises(InvalidArgumentError):
                writer.write(b"x", sequence=sequence)
        with pytest.raises(InvalidArgumentError):
            writer.write_many([b"x", b"y"], first_sequence=(1 << 63) - 1)
        with pytest.raises(TypeError):
            writer.write(b"x", sequence="10")  # type: ignore[arg-type]  # wrong on purpose
        await writer.flush()
        assert writer.stored_through == 9
    assert await numbers_of(client, name) == [5, 9]


async def test_a_refused_event_takes_no_sequence(client: Client, name: str) -> None:
    """It may be written again under its sequence, and is not told as stored meanwhile."""
    await client.create_stream(name)
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        with pytest.raises(EventTooLargeError):
            writer.write(bytes(EVENT_SIZE_BYTES_MAX + 1), sequence=0)
        with pytest.raises(EventTooLargeError):
            writer.write_many([bytes(EVENT_SIZE_BYTES_MAX)] * 3, key="k", first_sequence=0)
        assert writer.stored_through == -1
        await writer.write(b"0", sequence=0)
    assert await numbers_of(client, name) == [0]


async def test_all_events_of_a_writer_have_a_sequence_or_none_has(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name, writer_id=f"{name}:a") as writer:
        writer.write(b"0", sequence=0)
        with pytest.raises(SequencesMixedError):
            writer.write(b"x")
        with pytest.raises(SequencesMixedError):
            writer.write_many([b"x"])
    async with client.writer(name, writer_id=f"{name}:a") as writer:
        with pytest.raises(SequencesMixedError):
            writer.write(b"x")
    async with client.writer(name, writer_id=f"{name}:b") as writer:
        writer.write(b"1")
        with pytest.raises(SequencesMixedError):
            writer.write(b"x", sequence=0)
    async with client.writer(name, writer_id=f"{name}:b") as writer:
        with pytest.raises(SequencesMixedError):
            writer.write(b"x", sequence=0)
    async with client.writer(name) as writer:
        with pytest.raises(InvalidArgumentError, match="writer_id"):
            writer.write(b"x", sequence=0)
    assert await numbers_of(client, name) == [0, 1]


async def test_an_idle_writer_tells_what_it_has_stored(client: Client, name: str) -> None:
    """So that one that takes over from it after a kill has nothing to write again."""
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(2)))
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        for number in range(20):
            writer.write(b"%d" % number, key=f"k{number}", sequence=number)
        await writer.flush()
        async with asyncio.timeout(PATIENCE_S):
            await told(client, name, f"{name}:w", 19)
        info = await client.writer_info(name, f"{name}:w")
        assert info is not None
        assert info.sequences.pieces() == []
        assert info.outcome_of_sequence(19, key="k19") is EventOutcome.STORED
        assert info.outcome_of_sequence(20, key="k1") is EventOutcome.NOT_STORED


async def test_a_cancelled_future_keeps_its_event_and_its_sequence(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name, writer_id=f"{name}:w") as writer:
        writer.write(b"0", sequence=0).cancel()
        await writer.flush()
        assert writer.stored_through == 0
    assert await numbers_of(client, name) == [0]


async def test_compressed_blocks_are_moved_and_recognised(client: Client, name: str) -> None:
    pytest.importorskip("zstandard")
    await client.create_stream(name)
    options = WriterOptions(compression=millrace.Compression.ZSTD, block_size_bytes=1024)
    for start in (0, 100):
        async with client.writer(name, writer_id=f"{name}:w", options=options) as writer:
            for number in range(start, 300):
                writer.write(b"%d" % number, key=f"k{number % 7}", sequence=number)
            info = await client.stream_info(name)
            half = 0.5 if start == 0 else 0.25
            await client.scale_stream(
                name, seal=[part.segment_id for part in info.open_segments], ranges=[(0, half), (half, 1)]
            )
    assert sorted(await numbers_of(client, name)) == list(range(300))


@pytest.mark.slow
async def test_an_older_writer_and_its_successor_store_each_sequence_once(client: Client, name: str) -> None:
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(4)))
    dice = random.Random(5)
    for _ in range(5):
        async with client.writer(name, writer_id=f"{name}:w") as older:
            for number in range(older.stored_through + 1, 400):
                older.write(b"%d" % number, key=f"k{number % 11}", sequence=number)
                if dice.random() < 0.02:
                    await asyncio.sleep(0)
                if dice.random() < 0.01:
                    break
            newer = client.writer(name, writer_id=f"{name}:w")
            await newer.open()
            for number in range(newer.stored_through + 1, 400):
                newer.write(b"%d" % number, key=f"k{number % 11}", sequence=number)
            await newer.close()
            older._delivery.fail(WriterFencedError("taken over"))
            with pytest.raises(WriterFencedError):
                await older.flush()
    assert Counter(await numbers_of(client, name)) == Counter(range(400))


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [False, True])
async def test_a_killed_server_costs_no_sequence_and_doubles_none(
    millrace_server: TestServer, name: str, *, keyed: bool
) -> None:
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(3)))
        async with client.writer(name, writer_id=f"{name}:w") as writer:
            for number in range(2000):
                writer.write(b"%d" % number, key=f"k{number % 17}" if keyed else None, sequence=number)
                if number % 500 == 250:
                    await asyncio.sleep(0.01)
                    await asyncio.to_thread(millrace_server.kill)
                    await asyncio.to_thread(millrace_server.start)
            await writer.flush()
            assert writer.stored_through == 1999
        assert sorted(await numbers_of(client, name)) == list(range(2000))
