"""The state machine without a server; and what only a real one can show."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

import millrace
from millrace.client.errors import (
    ConnectionLostError,
    OutageTimeoutError,
    SegmentNotFoundError,
    ServerUnreachableError,
    ThrottledError,
)
from millrace.client.options import ClientOptions
from millrace.client.read.subscription import (
    TRANSITIONS,
    ByteSubscription,
    SubscriptionEvent,
    SubscriptionState,
)
from millrace.client.testing import TestServer
from millrace.model.errors import ErrorFacts, MillraceError
from tests.support.fake_connection import FakeServer, SubscribeCall
from tests.support.tables import table
from tests.support.waiting import PATIENCE_S, at_once

pytestmark = pytest.mark.asyncio

WINDOW_BYTES = 1024
BUSY = ThrottledError(ErrorFacts(message="busy", retriable=True))


class Case:
    """A subscription of a server without sockets."""

    def __init__(self, *, offset: int = 0, options: ClientOptions | None = None) -> None:
        self.server = FakeServer(options)
        self.changes = 0
        self.subscription = ByteSubscription(
            self.server.channel, 7, offset=offset, window_bytes=WINDOW_BYTES, on_change=self._changed
        )

    def _changed(self, subscription: ByteSubscription) -> None:
        assert subscription is self.subscription
        self.changes += 1

    @property
    def state(self) -> SubscriptionState:
        return self.subscription.state

    def is_in(self, state: SubscriptionState) -> bool:
        """Return whether it is in a state; a type checker takes it for unchanged after `state is`."""
        return self.state is state

    @staticmethod
    async def settle() -> None:
        """Let tasks run until they wait."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def stream(self) -> None:
        self.subscription.start()
        await self.settle()
        assert self.state is SubscriptionState.STREAMING


# --- every state with every event ---


async def start(case: Case) -> None:
    case.subscription.start()


async def subscribed(case: Case) -> None:
    await case.settle()


async def interrupted(case: Case) -> None:
    case.server.down = ServerUnreachableError("fake", "down")
    case.server.connection.lose(ConnectionLostError("cut"))


async def end(case: Case) -> None:
    if case.state is SubscriptionState.IDLE:
        case.subscription._change(SubscriptionEvent.END)  # as a block stream does that is to read nothing
    else:
        case.server.connection.push(0, b"", end=True)


async def fail(case: Case) -> None:
    if case.state is SubscriptionState.STREAMING:
        case.server.connection.refuse(SegmentNotFoundError("gone"))
    else:
        case.server.down = SegmentNotFoundError("not here")
        await case.settle()


async def close(case: Case) -> None:
    case.subscription.close()


CAUSES: dict[SubscriptionEvent, Callable[[Case], Awaitable[None]]] = {
    SubscriptionEvent.START: start,
    SubscriptionEvent.SUBSCRIBED: subscribed,
    SubscriptionEvent.INTERRUPTED: interrupted,
    SubscriptionEvent.END: end,
    SubscriptionEvent.FAIL: fail,
    SubscriptionEvent.CLOSE: close,
}
WAYS: dict[SubscriptionState, list[SubscriptionEvent]] = {
    SubscriptionState.IDLE: [],
    SubscriptionState.CONNECTING: [SubscriptionEvent.START],
    SubscriptionState.STREAMING: [SubscriptionEvent.START, SubscriptionEvent.SUBSCRIBED],
    SubscriptionState.ENDED: [
        SubscriptionEvent.START,
        SubscriptionEvent.SUBSCRIBED,
        SubscriptionEvent.END,
    ],
    SubscriptionState.FAILED: [SubscriptionEvent.START, SubscriptionEvent.FAIL],
    SubscriptionState.CLOSED: [SubscriptionEvent.CLOSE],
}


@table(("state", "event"), list(itertools.product(SubscriptionState, SubscriptionEvent)), ids=lambda each: each.name)
async def test_every_event_in_every_state(state: SubscriptionState, event: SubscriptionEvent) -> None:
    case = Case()
    for step in WAYS[state]:
        await CAUSES[step](case)
    assert case.state is state
    following = TRANSITIONS[state].get(event)
    if following is None:
        with pytest.raises(AssertionError):
            case.subscription._change(event)
    else:
        await CAUSES[event](case)
        assert case.state is following
    assert (case.subscription.failure is not None) == (case.state is SubscriptionState.FAILED)
    if case.state is not SubscriptionState.CLOSED:
        case.subscription.close()
    await case.settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- bytes and credit ---


async def test_bytes_come_in_order_and_are_granted_again_as_they_are_taken() -> None:
    case = Case(offset=100)
    await case.stream()
    connection = case.server.connection
    assert connection.asked == [SubscribeCall(7, 100, WINDOW_BYTES)]
    connection.push(100, b"a" * 600)
    connection.push(700, b"b" * 50)
    connection.push(750, b"c" * 374)
    assert case.changes == 3
    assert connection.grants == []
    # Less than a quarter of the window is not worth a frame.
    for start, grants in ((b"a", [600]), (b"b", [600]), (b"c", [600, 424])):
        piece = case.subscription.take()
        assert piece is not None
        assert bytes(piece.data)[:1] == start
        assert connection.grants == grants
    assert case.subscription.take() is None
    case.subscription.close()


async def test_next_waits_and_consumes() -> None:
    case = Case()
    waiting = asyncio.create_task(case.subscription.next())
    await case.settle()
    case.server.connection.push(0, b"x" * 512)
    piece = await waiting
    assert piece is not None
    assert case.server.connection.grants == [512]
    case.server.connection.push(512, b"y", end=True)
    assert await case.subscription.next() is not None
    assert await case.subscription.next() is None
    assert case.state is SubscriptionState.ENDED
    case.subscription.close()


async def test_a_lost_connection_is_resumed_after_the_last_byte_with_the_credit_that_is_left() -> None:
    case = Case()
    await case.stream()
    case.server.connection.push(0, b"x" * 10)
    case.server.connection.push(10, b"x" * 990)
    case.server.connection.lose(ConnectionLostError("cut"))
    case.subscription.take()  # without a connection: part of the next subscription
    await case.settle()
    assert case.server.connection.asked == [SubscribeCall(7, 1000, 34)]
    assert case.server.connection.credit_bytes == 34
    case.subscription.close()


async def test_a_connection_that_is_lost_in_the_turn_it_was_subscribed_is_made_again() -> None:
    """The task that subscribed has ended, and the loop was not told yet."""
    case = Case()
    case.subscription.start()
    await at_once(lambda: case.is_in(SubscriptionState.STREAMING))
    case.server.connection.lose(ConnectionLostError("cut"))
    assert case.is_in(SubscriptionState.CONNECTING)
    await case.settle()
    assert case.is_in(SubscriptionState.STREAMING)
    assert len(case.server.connections) == 2
    case.subscription.close()


async def test_a_push_from_another_offset_is_a_broken_protocol() -> None:
    case = Case()
    await case.stream()
    case.server.connection.push(5, b"x")
    assert not case.server.connection.is_open
    assert case.subscription.take() is None
    await case.settle()
    assert case.server.connection.asked == [SubscribeCall(7, 0, WINDOW_BYTES)]
    case.subscription.close()


async def test_a_refusal_for_now_is_waited_out_and_counted_until_bytes_come() -> None:
    case = Case()
    await case.stream()
    options = case.server.channel.options
    for failures in range(1, 4):
        case.server.connection.refuse(BUSY)
        await case.settle()
        assert case.is_in(SubscriptionState.CONNECTING)
        await case.server.clock.advance(options.backoff.wait_s(failures, chance=0.0) * 0.9)
        await case.settle()
        assert case.is_in(SubscriptionState.CONNECTING)
        await case.server.clock.advance(options.backoff.wait_s(failures, chance=0.0) * 0.2)
        await case.settle()
        assert case.is_in(SubscriptionState.STREAMING)
    case.server.connection.push(0, b"x")
    case.server.connection.refuse(BUSY)
    await case.settle()
    await case.server.clock.advance(options.backoff.wait_s(1, chance=0.0) * 1.1)
    await case.settle()
    assert case.is_in(SubscriptionState.STREAMING)
    case.subscription.close()


@pytest.mark.parametrize("error", [BUSY, ServerUnreachableError("fake", "down")], ids=["refused", "unreachable"])
async def test_an_outage_of_any_length_is_waited_out(error: MillraceError) -> None:
    """Behaviour 89: a day later the subscription resumes after the last byte that came."""
    case = Case()
    await case.stream()
    case.server.connection.push(0, b"x" * 10)
    if error is BUSY:
        case.server.connection.refuse(BUSY)
    else:
        case.server.down = error
        case.server.connection.lose(ConnectionLostError("cut"))
    for _ in range(24):
        await case.settle()
        await case.server.clock.advance(3600)
        if error is BUSY:
            await case.settle()
            case.server.connection.refuse(BUSY)
    assert case.is_in(SubscriptionState.CONNECTING)
    waiting = case.server.channel.waits.current
    assert waiting is not None
    assert case.server.clock.monotonic_s() - waiting.since_s >= 24 * 3600
    case.server.down = None
    await case.settle()
    await case.server.clock.advance(3)
    await case.settle()
    assert case.is_in(SubscriptionState.STREAMING)
    assert case.server.connection.asked[-1].offset == 10
    case.subscription.close()


async def test_an_outage_is_over_when_a_ping_after_the_subscription_is_answered() -> None:
    """A tail without events gets no bytes. Then an outage long after it is another one, with a limit of its own."""
    case = Case(options=ClientOptions(outage_timeout_s=30))
    await case.stream()
    for _ in range(5):
        case.server.connection.refuse(BUSY)
        await case.settle()
        await case.server.clock.advance(3)
        await case.settle()
        assert case.is_in(SubscriptionState.STREAMING)
        assert case.server.channel.waits.current is not None
        case.server.connection.answer_ping()
        await case.settle()
        assert case.server.channel.waits.current is None
        await case.server.clock.advance(20)
    case.subscription.close()


async def test_a_server_that_takes_connections_and_drops_them_is_not_asked_without_a_pause() -> None:
    case = Case()
    await case.stream()
    for _ in range(100):
        if case.is_in(SubscriptionState.STREAMING):
            case.server.connection.lose(ConnectionLostError("cut"))
        await case.settle()
    assert len(case.server.connections) == 2
    case.subscription.close()


async def test_an_outage_longer_than_its_limit_fails_the_subscription() -> None:
    case = Case(options=ClientOptions(outage_timeout_s=30))
    await case.stream()
    begin_s = case.server.clock.monotonic_s()
    while case.state is not SubscriptionState.FAILED:
        case.server.connection.refuse(BUSY)
        while case.state is SubscriptionState.CONNECTING:
            await case.settle()
            await case.server.clock.advance(1.0)
    assert case.server.clock.monotonic_s() < begin_s + 31
    with pytest.raises(OutageTimeoutError, match="after 30 s, segment 7 was read up to offset 0: busy") as caught:
        await case.subscription.next()
    assert isinstance(caught.value.__cause__, ThrottledError)
    assert case.server.channel.waits.current is None


async def test_a_server_that_stays_away_fails_the_subscription_at_the_limit() -> None:
    case = Case(options=ClientOptions(outage_timeout_s=30))
    case.server.down = ServerUnreachableError("fake", "down")
    waiting = asyncio.create_task(case.subscription.next())
    while not waiting.done():
        await case.settle()
        await case.server.clock.advance(1.0)
    with pytest.raises(OutageTimeoutError):
        await waiting


@pytest.mark.slow
async def test_a_subscription_resumes_when_the_server_is_stopped_and_started_again(
    millrace_server: TestServer, name: str
) -> None:
    """Behaviour 48: a server that stops in order refuses for now, and readers at the tail wait on."""
    async with millrace.connect(millrace_server.address) as client:
        await client.segments.create(name)
        await client.create_stream(name)
        tail = client.segments.tail(name, 0)
        async with client.reader(name) as reader:
            piece = asyncio.ensure_future(anext(tail))
            event = asyncio.ensure_future(anext(reader))
            for _ in range(2):
                await client.ping()
                await asyncio.to_thread(millrace_server.restart)
            await client.segments.append(name, b"x")
            async with client.writer(name) as writer:
                await writer.write(b"y")
            async with asyncio.timeout(PATIENCE_S):
                assert (await piece).data == b"x"
                assert (await event).value == b"y"
        await tail.aclose()
