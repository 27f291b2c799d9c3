import asyncio

import pytest

from millrace.client.client import Client
from millrace.client.pushes import SegmentPushes

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
