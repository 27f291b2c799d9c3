import asyncio

import pytest

from millrace.client.errors import RequestTimeoutError
from millrace.client.write.writer_info import fetch_writer_info
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.model_server import STREAM, WRITER_NUMBER, ModelServer, error_reply, turns

pytestmark = pytest.mark.asyncio


async def test_what_is_known_of_a_writer() -> None:
    server = ModelServer(segment_count=2)
    server.segments[2].last_number = 9
    server.epoch = 3
    channel = server.channel()
    info = await fetch_writer_info(channel, STREAM, "w")
    assert info is not None
    assert (info.number, info.epoch, info.last_event_numbers) == (WRITER_NUMBER, 3, {1: 0, 2: 9})
    await channel.close()


async def test_a_stream_that_changes_between_any_two_requests_is_a_timeout() -> None:
    server = ModelServer()
    server.answers[m.GetWriter] = error_reply(ErrorCode.SEGMENT_NOT_FOUND)
    channel = server.channel()
    asking = asyncio.create_task(fetch_writer_info(channel, STREAM, "w"))
    while not asking.done():
        await turns()
        await server.clock.advance(1.0)
    with pytest.raises(
        RequestTimeoutError, match=f"the state of writer 'w' is unknown: in each of .* {STREAM} was scaled"
    ):
        await asking
    assert sum(isinstance(request, m.GetWriter) for request in server.requests) > 10
    await channel.close()
