"""A silent server beside another address, on virtual time, without sockets. Behaviour 102."""

import asyncio
import logging

import pytest

from millrace.client.errors import AnswerLostError
from millrace.client.options import ClientOptions, parse_addresses
from millrace.client.transport.channel import Channel
from millrace.client.transport.client_guard import ClientGuard
from millrace.client.transport.connection import Connection
from millrace.client.transport.dialing import Dialer
from millrace.client.transport.silence import ATTEMPTS_INTERVAL_S, SILENCE_S
from millrace.model.address import Address, Addresses
from millrace.model.errors import ErrorFacts, RequestError
from millrace.wire import messages as m
from tests.support.clock import ManualClock
from tests.support.model_server import ModelServer, turns

pytestmark = pytest.mark.asyncio


class Pair:
    """An owner `a` and its standby `b`, and a channel that is connected to the owner."""

    def __init__(self, addresses: str = "a:1,b:2") -> None:
        self.clock = ManualClock()
        self.a, self.b = ModelServer(), ModelServer()
        self.b.down = True
        # What the standby refuses a handshake with, and how often it was asked.
        self.refusal: RequestError | None = None
        self.asked_count = 0
        dialer = Dialer(self._connect)
        self.channel = Channel(
            parse_addresses(addresses),
            ClientOptions(),
            ClientGuard(),
            clock=self.clock,
            connect=dialer.dial,
            find_other=dialer.find_other,
        )

    async def _connect(self, address: Address, options: ClientOptions, session_id: bytes) -> Connection:
        server = self.a if address.host == "a" else self.b
        if server is self.b:
            self.asked_count += 1
            if self.refusal is not None:
                raise self.refusal
        return await server.connect(Addresses((address,)), options, session_id)

    async def pass_s(self, duration_s: float) -> None:
        for _ in range(int(duration_s / ATTEMPTS_INTERVAL_S)):
            await self.clock.advance(ATTEMPTS_INTERVAL_S)
            await turns()

    async def append(self) -> "asyncio.Future[int]":
        """Send an append that the owner does not answer by itself."""
        return (await self.channel.connection()).append(b"x", segment_id=1)

    def hang(self) -> None:
        """Let the owner answer no PING."""
        self.a.answers[m.Ping] = None  # type: ignore[assignment]  # no answer

    @property
    def host(self) -> str | None:
        return None if self.channel.live is None else self.channel.live.address.host

    async def close(self) -> None:
        await self.channel.close()


async def test_a_hung_owner_is_left_once_its_standby_serves() -> None:
    pair = Pair()
    append = await pair.append()
    pair.hang()
    await pair.pass_s(10)
    assert pair.host == "a"  # as long as nobody else serves
    pair.b.down = False
    await pair.pass_s(ATTEMPTS_INTERVAL_S)
    assert pair.host is None
    with pytest.raises(AnswerLostError, match="another address serves"):
        await append
    assert (await pair.channel.connection()).address.host == "b"
    await pair.close()


async def test_a_standby_that_serves_already_is_found_after_two_seconds() -> None:
    pair = Pair()
    append = await pair.append()
    pair.hang()
    pair.b.down = False
    await pair.pass_s(2 * SILENCE_S - ATTEMPTS_INTERVAL_S)
    assert pair.host == "a"
    await pair.pass_s(ATTEMPTS_INTERVAL_S)
    assert pair.host is None
    assert append.exception() is not None
    await pair.close()


async def test_a_server_that_stalls_and_answers_pings_keeps_its_connection() -> None:
    """As one whose disk takes seconds for a sync."""
    pair = Pair()
    append = await pair.append()
    pair.b.down = False
    await pair.pass_s(30)
    assert (pair.host, pair.a.connects, pair.b.connects) == ("a", 1, 0)
    assert m.Ping() in pair.a.requests
    assert not append.done()
    await pair.close()


async def test_a_server_that_refuses_for_now_is_asked_when_it_wants_to_be(caplog: pytest.LogCaptureFixture) -> None:
    """It is not asked four times a second, and what it says is logged once."""
    caplog.set_level(logging.DEBUG, logger="millrace.client")
    pair = Pair()
    append = await pair.append()
    pair.hang()
    await pair.pass_s(10)
    pair.refusal = RequestError(ErrorFacts(message="no place is free", retriable=True, retry_after_s=5.0))
    pair.b.down = False
    pair.asked_count = 0
    await pair.pass_s(30)
    assert pair.asked_count in (6, 7)
    lines = [record.getMessage() for record in caplog.records if "answers silent=" in record.getMessage()]
    assert len(lines) == 2, lines
    assert "no place is free" in lines[1]
    pair.refusal = None
    await pair.pass_s(5)
    assert pair.host is None
    assert append.exception() is not None
    await pair.close()


async def test_a_byte_of_the_silent_server_ends_the_search() -> None:
    pair = Pair()
    append = await pair.append()
    pair.hang()
    await pair.pass_s(5)
    del pair.a.answers[m.Ping]
    assert pair.channel.live is not None
    pair.channel.live.ping()
    pair.b.down = False
    await pair.pass_s(5)
    assert (pair.host, pair.b.connects, append.done()) == ("a", 0, False)
    await pair.close()


@pytest.mark.parametrize(("addresses", "has_append"), [("a:1", True), ("a:1,b:2", False)])
async def test_one_address_and_an_idle_client_are_left_alone(addresses: str, *, has_append: bool) -> None:
    pair = Pair(addresses)
    pair.b.down = False
    await pair.channel.connection()
    appends = [await pair.append() for _ in range(has_append)]
    pair.hang()
    await pair.pass_s(30)
    assert (pair.host, pair.b.connects) == ("a", 0)
    assert pair.a.requests.count(m.Ping()) == 0
    assert not any(append.done() for append in appends)
    await pair.close()
