import asyncio

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import ServerFailedError
from millrace.client.options import ClientOptions
from millrace.client.read.subscription import SegmentPushes
from millrace.client.testing import TestServer

pytestmark = pytest.mark.asyncio


async def test_a_push_that_is_lost_in_the_turn_it_began_begins_again(client: Client, name: str) -> None:
    """The connection dies when the task that subscribed has ended and nobody was told yet."""
    info = await client.segments.create(name)
    pushes = SegmentPushes(client._reads, info.segment_id, offset=0, window_bytes=65536)
    pushes.start()
    while pushes._connection is None:  # noqa: ASYNC110  # the very turn of the loop is what matters here
        await asyncio.sleep(0)
    assert pushes._task is not None
    assert pushes._task.done()
    pushes._connection.abort("lost")
    await client.segments.append(name, b"x")
    async with asyncio.timeout(5):
        chunk = await pushes.next()
    assert chunk is not None
    assert bytes(chunk.data) == b"x"
    pushes.close()


@pytest.mark.slow
async def test_a_push_goes_on_when_the_server_is_stopped_and_started_again(
    millrace_server: TestServer, name: str
) -> None:
    """Behaviour 48: a server that stops in order refuses for now, and whoever waits at the tail waits on."""
    async with millrace.connect(millrace_server.address) as client:
        await client.segments.create(name)
        await client.create_stream(name)
        tail = client.segments.tail(name, 0)
        async with client.reader(name) as reader:
            chunk = asyncio.ensure_future(anext(tail))
            event = asyncio.ensure_future(anext(reader))
            for _ in range(2):
                await client.ping()
                await asyncio.to_thread(millrace_server.restart)
            await client.segments.append(name, b"x")
            async with client.writer(name) as writer:
                await writer.write(b"y")
            async with asyncio.timeout(20):
                assert (await chunk).data == b"x"
                assert (await event).value == b"y"
        await tail.aclose()


@pytest.mark.slow
async def test_a_push_is_given_up_where_the_server_stays_away(millrace_server: TestServer, name: str) -> None:
    options = ClientOptions(request_timeout_s=1.5)
    async with millrace.connect(millrace_server.address, options=options) as client:
        info = await client.segments.create(name)
        pushes = SegmentPushes(client._reads, info.segment_id, offset=0, window_bytes=65536)
        waiting = asyncio.ensure_future(pushes.next())
        await client.ping()
        await asyncio.to_thread(millrace_server.stop)
        async with asyncio.timeout(20):
            with pytest.raises((ServerFailedError, millrace.ServerUnreachableError)):
                await waiting
        pushes.close()
