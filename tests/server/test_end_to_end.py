"""Streams that scale and forget by themselves, seen by a client of a real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import millrace
from millrace.client.client import Client
from millrace.model.errors import InvalidArgumentError
from millrace.model.policy import RetentionPolicy, ScalingPolicy, StreamConfig
from millrace.server.app import Server
from millrace.server.streams import StreamsOptions
from millrace.wire import messages as m
from tests.support.servers import server_options
from tests.support.settled_containers import _containers_are_settled
from tests.support.waiting import PATIENCE_S

__all__ = ["_containers_are_settled"]

FAST = StreamsOptions(
    tick_s=0.02,
    retention_interval_s=0.02,
    fast_window_s=0.1,
    slow_window_s=0.2,
    split_after_s=0.1,
    merge_after_s=0.2,
)


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(server_options(tmp_path, streams=FAST)) as running:
        yield running


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with millrace.connect(server.address) as connected:
        yield connected


@pytest.mark.asyncio
async def test_a_stream_follows_its_load(client: Client, server: Server) -> None:
    """Behaviours 22, 24: it splits under load and merges without, and every key is read in order."""
    await client.create_stream("a/b", StreamConfig(scaling=ScalingPolicy.by_events_per_s(500)))
    numbers = dict.fromkeys((f"key-{n}" for n in range(20)), 0)
    async with client.writer("a/b") as writer, asyncio.timeout(PATIENCE_S):
        while len((await client.stream_info("a/b")).open_segments) < 3:
            # So many at once that the rate is above the target on a busy machine, too.
            for key in numbers:
                count = numbers[key]
                numbers[key] += 50
                _ = writer.write_many([str(number).encode() for number in range(count, numbers[key])], key=key)
            await writer.flush()
    async with asyncio.timeout(PATIENCE_S):
        while len((await client.stream_info("a/b")).open_segments) > 1:
            pass  # each question is a round trip

    seen = dict.fromkeys(numbers, 0)
    async with client.reader("a/b", end=millrace.TAIL) as reader:
        async for event in reader:
            assert event.key is not None
            assert int(event.value) == seen[event.key]
            seen[event.key] += 1
    assert seen == numbers

    facts = await client.explain_stream("a/b")
    reasons = [scaling["reason"] for scaling in facts["scalings"]]
    assert reasons[0].startswith("split: ")
    assert reasons[-1].startswith("merge: ")
    statistics = server.statistics()["streams"]
    assert (statistics.splits_total, statistics.merges_total) == (
        sum(reason.startswith("split") for reason in reasons),
        sum(reason.startswith("merge") for reason in reasons),
    )
    history = await client.stream_history("a/b")
    assert [epoch.cause for epoch in history[1:]] == reasons


@pytest.mark.asyncio
async def test_a_stream_forgets_what_is_too_much(client: Client) -> None:
    """Behaviour 25: what is left starts at an event that was written, and continues to the last one."""
    await client.create_stream(
        "a/b", StreamConfig(retention=RetentionPolicy.by_size(max_bytes=20_000, min_bytes=10_000))
    )
    async with client.writer("a/b") as writer:
        for number in range(100):
            await writer.write(number.to_bytes(4, "big") + bytes(996), key="k")
    async with asyncio.timeout(PATIENCE_S):
        while (await client.stream_info("a/b")).size_bytes > 20_000:
            pass  # each question is a round trip
    assert (await client.stream_info("a/b")).size_bytes >= 10_000
    async with client.reader("a/b", end=millrace.TAIL) as reader:
        numbers = [int.from_bytes(event.value[:4], "big") async for event in reader]
    assert numbers == list(range(100 - len(numbers), 100))
    assert 8 <= len(numbers) <= 20


@pytest.mark.asyncio
async def test_streams_are_listed_by_tag_and_page_by_page(client: Client) -> None:
    for number in range(7):
        tags = ("even",) if number % 2 == 0 else ()
        await client.create_stream(f"a/{number}", StreamConfig(tags=tags))
    assert [name async for name in client.list_streams(tag="even")] == ["a/0", "a/2", "a/4", "a/6"]
    assert [name async for name in client.list_streams("a/4", tag="even")] == ["a/4"]
    assert [name async for name in client.list_streams(tag="odd")] == []
    request = m.ListStreams("a/", "a/2", 1, "even")
    page = await client._writes.request(request)
    assert ([item.name for item in page.names], page.more) == (["a/4"], 1)


@pytest.mark.asyncio
async def test_a_configuration_that_makes_no_sense_is_refused(client: Client) -> None:
    wrong = json.dumps({"scaling": {"kind": "events", "target_per_s": -5}})
    with pytest.raises(InvalidArgumentError, match=r"scaling\.target_per_s"):
        await client._writes.request(m.CreateStream("a/b", 1, wrong))
    await client.create_stream("a/b")
    with pytest.raises(InvalidArgumentError, match=r"scaling\.target_per_s"):
        await client._writes.request(m.UpdateStream("a/b", wrong))


@pytest.mark.asyncio
async def test_a_stream_gets_the_fixed_number_of_segments_that_it_is_given(client: Client) -> None:
    """Behaviours 22 and 27: at once, under load, and every key is read in order across."""
    await client.create_stream("a/b", StreamConfig(scaling=ScalingPolicy.fixed(2)))
    keys = [f"key-{n}" for n in range(30)]
    written = dict.fromkeys(keys, 0)
    ended = asyncio.Event()

    async def write() -> None:
        async with client.writer("a/b") as writer:
            while not ended.is_set():
                for key in keys:
                    _ = writer.write(str(written[key]).encode(), key=key)
                    written[key] += 1
                await writer.flush()

    writing = asyncio.create_task(write())
    try:
        async with asyncio.timeout(PATIENCE_S):
            for count in (8, 3, 1, 5):
                before = dict(written)
                info = await client.update_stream("a/b", StreamConfig(scaling=ScalingPolicy.fixed(count)))
                assert len(info.open_segments) == count
                while written == before:
                    await client.ping()
    finally:
        ended.set()
        await writing
    seen = dict.fromkeys(keys, 0)
    async with client.reader("a/b", start=millrace.HEAD, end=millrace.TAIL) as reader:
        async for event in reader:
            assert event.key is not None
            assert int(event.value) == seen[event.key]
            seen[event.key] += 1
    assert seen == written
    causes = [epoch.cause for epoch in await client.stream_history("a/b")]
    assert causes[1:] == [
        "split: the stream is to have 8 segments instead of 2",
        "merge: the stream is to have 3 segments instead of 8",
        "merge: the stream is to have 1 segments instead of 3",
        "split: the stream is to have 5 segments instead of 1",
    ]


@pytest.mark.asyncio
async def test_a_stream_that_scaled_by_itself_gets_a_fixed_number_of_segments(client: Client) -> None:
    await client.create_stream("a/b", StreamConfig(scaling=ScalingPolicy.by_events_per_s(500, min_segments=4)))

    info = await client.update_stream("a/b", StreamConfig(scaling=ScalingPolicy.fixed(2)))

    assert len(info.open_segments) == 2
