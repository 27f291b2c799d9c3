"""Several tasks or threads on one reader. Behaviour 100: each event goes to one of them, all see the end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pyarrow as pa
import pytest

import millrace
from millrace import blocking
from millrace.client.client import Client
from millrace.client.read.event_reader import EventReader
from millrace.client.testing import TestServer
from millrace.model.cut import TAIL
from tests.support.waiting import PATIENCE_S

TASKS = 3


async def by_event(reader: EventReader) -> list[bytes]:
    return [event.value async for event in reader]


async def by_block(reader: EventReader) -> list[bytes]:
    values: list[bytes] = []
    while events := await reader.next_events():
        values += [event.value for event in events]
    return values


async def by_batch(reader: EventReader) -> list[bytes]:
    batches: AsyncIterator[pa.RecordBatch] = reader.arrow_batches()
    return [value async for batch in batches for value in batch.column("value").to_pylist()]


WAYS = [[by_event] * TASKS, [by_block] * TASKS, [by_batch] * TASKS, [by_event, by_block, by_batch]]


async def shared(reader: EventReader, ways: list[Callable[[EventReader], Awaitable[list[bytes]]]]) -> list[bytes]:
    """Return what tasks got together, each in its way, once all of them have ended."""
    async with asyncio.timeout(PATIENCE_S):
        parts = await asyncio.gather(*(way(reader) for way in ways))
    return sorted(value for part in parts for value in part)


async def write(client: Client, name: str, first: int, last: int) -> list[bytes]:
    values = [b"%04d" % number for number in range(first, last)]
    async with client.writer(name) as writer:
        for value in values:
            await writer.write(value)  # a block for each
    return values


@pytest.mark.asyncio
@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("is_several", [False, True])
async def test_tasks_that_share_a_reader_are_all_served(
    client: Client, name: str, ways: list[Callable[[EventReader], Awaitable[list[bytes]]]], *, is_several: bool
) -> None:
    """With events there, while all of them wait for more, and at the end of a stream that is sealed."""
    await client.create_stream(name)
    values = await write(client, name, 0, 10)
    names = [name, f"{name}-other"] if is_several else [name]
    for other in names[1:]:
        await client.create_stream(other)
        values += await write(client, other, 100, 110)
    source = names if is_several else name
    async with client.reader(source, end=TAIL) as reader:
        assert await shared(reader, ways) == values
    async with client.reader(source) as reader:
        reading = asyncio.create_task(shared(reader, ways))
        values += await write(client, name, 200, 210)
        for each in names:
            await client.seal_stream(each)
        assert await reading == sorted(values)


@pytest.mark.asyncio
async def test_a_closed_reader_ends_all_tasks(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.reader(name) as reader:
        waiting = [asyncio.create_task(anext(reader)) for _ in range(TASKS)]
        waiting[0].cancel()
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [asyncio.CancelledError, *[millrace.ClientClosedError] * (TASKS - 1)]


@pytest.mark.asyncio
async def test_tasks_share_a_reader_of_bytes(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.byte_writer(name) as writer:
        await writer.write(bytes(range(100)))
    async with client.byte_reader(name) as reader, asyncio.timeout(PATIENCE_S):
        exact = await asyncio.gather(*(reader.readexactly(25) for _ in range(4)))
        assert b"".join(exact) == bytes(range(100))
    async with client.byte_reader(name, follow=True) as reader, asyncio.timeout(PATIENCE_S):
        reading = [asyncio.create_task(reader.read()) for _ in range(TASKS)]
        await client.seal_stream(name)
        assert sorted(await asyncio.gather(*reading)) == [b"", b"", bytes(range(100))]


@pytest.mark.asyncio
async def test_an_asynchronous_generator_refuses_a_second_task(client: Client, name: str) -> None:
    """At once, in the words of Python: a generator has one frame. Each task can make one of its own."""
    await client.segments.create(name)
    async with aclosing(client.segments.tail(name)) as tail:
        first = asyncio.create_task(anext(tail))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already running"):
            await anext(tail)
        first.cancel()
        await asyncio.wait([first])


def test_threads_that_share_a_reader_are_all_served(server: TestServer, name: str) -> None:
    def drain(items: blocking.Reader) -> list[bytes]:
        return [event.value for event in items]

    with millrace.blocking.connect(server.address) as client, ThreadPoolExecutor(TASKS) as pool:
        client.create_stream(name)
        values = [b"%05d" % number for number in range(5_000)]
        with client.writer(name) as writer:
            futures = [writer.write(value, key="k") for value in values]
        assert all(future.done() for future in futures)
        with client.reader(name, end=TAIL) as reader:
            parts = [each.result(PATIENCE_S) for each in [pool.submit(drain, reader) for _ in range(TASKS)]]
        assert sorted(value for part in parts for value in part) == values
        assert all(part == sorted(part) for part in parts)
        with client.reader(name) as reader:  # at its end, and while it is sealed
            draining = [pool.submit(drain, reader) for _ in range(TASKS)]
            client.seal_stream(name)
            assert sum(len(each.result(PATIENCE_S)) for each in draining) == len(values)
        with client.reader(name) as reader:
            assert (first := next(reader)).value == values[0]
            assert reader.position(before=first) == client.stream_head(name)
            assert [event.value for event in reader.next_events()][:1] == values[1:2]


def test_threads_share_an_iterator_and_a_stream_of_batches(server: TestServer, name: str) -> None:
    with millrace.blocking.connect(server.address) as client, ThreadPoolExecutor(TASKS) as pool:
        for number in range(20):
            client.create_stream(f"{name}-{number}")
        streams = client.list_streams(prefix=f"{name}-")
        listed = [pool.submit(list, streams) for _ in range(TASKS)]
        assert sum(len(each.result(PATIENCE_S)) for each in listed) == 20
        client.create_stream(name)
        with client.writer(name) as writer:
            for number in range(100):
                writer.write(b'{"a": %d}' % number).result(PATIENCE_S)
        for json in (False, True):
            with client.reader(name, end=TAIL) as reader:
                table = reader.to_arrow(json=json)
                read = [pool.submit(list, table) for _ in range(TASKS)]
                assert sum(batch.num_rows for each in read for batch in each.result(PATIENCE_S)) == 100
