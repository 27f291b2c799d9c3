import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import product

import pytest

from millrace.client.client import Client
from millrace.client.errors import (
    AnswerLostError,
    AnswerTimeoutError,
    ClientClosedError,
    ConnectionLostError,
    OutcomeUnknownError,
    RequestTimeoutError,
    ServerUnreachableError,
)
from millrace.client.options import ClientOptions
from millrace.client.transport.channel import TRANSITIONS, Channel, ChannelEvent, ChannelState
from millrace.client.waiting import WaitReason
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from tests.support.model_server import STREAM, ModelServer, error_reply, turns
from tests.support.tables import table
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


async def connecting(server: ModelServer, channel: Channel) -> None:
    del server
    task = asyncio.create_task(channel.connection())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.sleep(0)


async def ready(server: ModelServer, channel: Channel) -> None:
    del server
    await channel.connection()


async def lost(server: ModelServer, channel: Channel) -> None:
    await channel.connection()
    server.lose()


async def closed(server: ModelServer, channel: Channel) -> None:
    del server
    await channel.close()


async def untouched(server: ModelServer, channel: Channel) -> None:
    del server, channel


WAYS: dict[ChannelState, list[Callable[[ModelServer, Channel], Awaitable[None]]]] = {
    ChannelState.IDLE: [untouched, lost],
    ChannelState.CONNECTING: [connecting],
    ChannelState.READY: [ready],
    ChannelState.CLOSED: [closed],
}


@table(("state", "event"), list(product(ChannelState, ChannelEvent)))
async def test_every_state_takes_the_events_of_the_table_and_no_other(state: ChannelState, event: ChannelEvent) -> None:
    for way in WAYS[state]:
        server = ModelServer()
        channel = server.channel()
        await way(server, channel)
        assert channel.state is state
        following = TRANSITIONS[state].get(event)
        if following is None:
            with pytest.raises(AssertionError):
                channel._change(event)
            assert channel.state is state
        else:
            channel._change(event)
            assert channel.state is following
        channel.state = state
        await turns()
        await channel.close()


async def test_all_who_need_a_connection_share_the_attempt() -> None:
    server = ModelServer()
    channel = server.channel()
    first, *others = await asyncio.gather(*(channel.connection() for _ in range(5)))
    assert all(other is first for other in others)
    assert channel.statistics().connects == server.connects == 1
    assert channel.live is first
    await channel.close()


async def test_who_is_cancelled_leaves_the_attempt_to_the_others() -> None:
    server = ModelServer()
    channel = server.channel()
    waiting = [asyncio.create_task(channel.connection()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert (await waiting[1]).is_open
    await channel.close()


@pytest.mark.parametrize("turn_count", [1, 2, 3])
async def test_who_waits_for_a_connection_when_the_channel_is_closed_is_told_so(turn_count: int) -> None:
    """After one turn the attempt has not taken its first step, and never will."""
    server = ModelServer()
    channel = server.channel()
    waiting = asyncio.create_task(channel.connection())
    await turns(turn_count)
    assert channel.state is ChannelState.CONNECTING
    await channel.close()
    with pytest.raises(ClientClosedError):
        await waiting
    with pytest.raises(ClientClosedError):
        await channel.connection()
    await channel.close()


async def test_a_connection_that_was_lost_before_its_first_use_is_none() -> None:
    server = ModelServer()
    channel = server.channel()
    waiting = asyncio.create_task(channel.connection())
    for _ in range(20):
        await asyncio.sleep(0)
        if server.requests:
            break
    await asyncio.sleep(0)  # the handshake is answered, and nobody has seen it
    server.lose()
    with pytest.raises(ConnectionLostError):
        await waiting
    assert channel.state is ChannelState.IDLE
    assert (await channel.connection()).is_open
    await channel.close()


async def test_a_request_is_sent_again_until_its_time_limit() -> None:
    server = ModelServer()
    channel = server.channel()
    server.down = True
    asking = asyncio.create_task(channel.request(m.GetStream(STREAM)))
    await server.clock.advance(0)
    await server.clock.advance(10)
    server.down = False
    await server.clock.advance(10)
    assert (await asking).stream_id == server.stream_id
    assert channel.statistics().retries >= 2
    server.down = True
    server.lose()
    asking = asyncio.create_task(channel.request(m.GetStream(STREAM)))
    for _ in range(40):
        await server.clock.advance(1)
    with pytest.raises(ServerUnreachableError):
        await asking
    await channel.close()


async def test_a_client_that_tries_again_leaves_the_random_numbers_of_its_program_alone() -> None:
    before = random.getstate()
    client = Client("127.0.0.1:1", ClientOptions())  # nobody listens there
    asking = asyncio.create_task(client.transaction_outcome("app/deploy"))
    await until(lambda: asking.done() or client.statistics().writes.retries)
    await client.close()
    with pytest.raises(ClientClosedError):
        await asking
    assert client.statistics().writes.retries
    assert random.getstate() == before


async def test_a_request_without_an_answer_ends_at_its_time_limit() -> None:
    server = ModelServer()
    channel = server.channel()
    asking = asyncio.create_task(channel.request(m.SealStream(STREAM), timeout_s=5))
    await turns()
    await server.clock.advance(4.9)
    assert not asking.done()
    await server.clock.advance(0.2)
    with pytest.raises(RequestTimeoutError, match="within 5 s"):
        await asking
    await channel.close()


async def test_what_may_not_be_repeated_and_has_no_answer_in_time_may_have_been_done() -> None:
    server = ModelServer()
    channel = server.channel()
    asking = asyncio.create_task(channel.request(m.SealStream(STREAM), repeatable=False, timeout_s=5))
    await turns()
    await server.clock.advance(5.1)
    with pytest.raises(AnswerTimeoutError, match="within 5 s; the request may have been carried out") as caught:
        await asking
    assert not caught.value.retriable
    await channel.close()


@pytest.mark.parametrize("repeatable", [True, False])
async def test_what_may_not_be_repeated_has_an_unknown_outcome_once_it_was_sent(*, repeatable: bool) -> None:
    server = ModelServer()
    channel = server.channel()
    asking = asyncio.create_task(channel.request(m.SealStream(STREAM), repeatable=repeatable, timeout_s=5))
    await turns()
    server.lose()
    await turns()
    await server.clock.advance(1)
    if repeatable:
        await server.clock.advance(5)
    with pytest.raises(RequestTimeoutError if repeatable else AnswerLostError):
        await asking
    assert sum(isinstance(request, m.SealStream) for request in server.requests) == 1 + repeatable
    await channel.close()


@pytest.mark.parametrize("repeatable", [True, False])
async def test_what_may_be_repeated_is_sent_again_if_the_server_does_not_know_its_outcome(*, repeatable: bool) -> None:
    server = ModelServer()
    channel = server.channel()
    server.answers[m.GetStream] = error_reply(ErrorCode.OUTCOME_UNKNOWN)
    asking = asyncio.create_task(channel.request(m.GetStream(STREAM), repeatable=repeatable))
    await turns()
    del server.answers[m.GetStream]
    await server.clock.advance(1)
    if repeatable:
        assert (await asking).stream_id == server.stream_id
    else:
        with pytest.raises(OutcomeUnknownError):
            await asking
    assert channel.statistics().retries == repeatable
    await channel.close()


async def test_an_append_under_a_condition_is_sent_again_until_its_time_limit() -> None:
    server = ModelServer()
    channel = server.channel()
    appending = asyncio.create_task(channel.append(b"x", segment_id=1, expected_offset=0))
    sent_count = 0
    while not appending.done():
        await turns()
        sent_count += len(server.arrived)
        server.lose()
        await turns()
        await server.clock.advance(2)
    with pytest.raises(OutcomeUnknownError):
        await appending
    assert 2 < sent_count == 1 + channel.statistics().retries
    await channel.close()


async def test_an_append_without_a_condition_is_sent_once() -> None:
    server = ModelServer()
    channel = server.channel()
    appending = asyncio.create_task(channel.append(b"x", segment_id=1))
    await turns()
    assert len(server.arrived) == 1
    server.lose()
    with pytest.raises(OutcomeUnknownError):
        await appending
    assert channel.statistics().retries == 0
    await channel.close()


async def test_an_answer_that_is_final_is_not_asked_for_again() -> None:
    server = ModelServer()
    server.answers[m.GetStream] = error_reply(ErrorCode.STREAM_NOT_FOUND)
    channel = server.channel()
    with pytest.raises(Exception, match="STREAM_NOT_FOUND"):
        await channel.request(m.GetStream(STREAM))
    assert len(server.requests) == 2
    await channel.close()


async def test_throttling_is_noted_until_the_server_reads_again() -> None:
    """Behaviour 89: it answers a PING once it does. The end of the connection is an end of it, too."""
    server = ModelServer()
    channel = server.channel()
    await channel.connection()
    throttle = encode(m.Throttle(100, "memory is full"))
    for _ in range(3):
        server.send(throttle)
    waiting = channel.waits.current
    assert waiting is not None
    assert (waiting.reason, waiting.detail) == (WaitReason.THROTTLED, "memory is full")
    await turns()
    assert sum(isinstance(request, m.Ping) for request in server.requests) == 1
    assert channel.waits.current is None
    server.send(throttle)
    assert channel.waits.current is not None
    server.lose()
    await turns()
    assert channel.waits.current is None
    await channel.close()
