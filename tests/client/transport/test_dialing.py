"""A client with several addresses: over real sockets, and the order and the time in which it dials them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

import millrace
from millrace import blocking
from millrace.client.errors import AuthenticationError, ServerUnreachableError, ThrottledError
from millrace.client.options import ClientOptions, parse_addresses
from millrace.client.testing import SETTINGS_SMALL, server
from millrace.client.transport.connection import Connection
from millrace.client.transport.dialing import Dialer
from millrace.client.transport.silence import ATTEMPTS_INTERVAL_S, SILENCE_S
from millrace.model.address import Address
from millrace.model.errors import ErrorFacts, MillraceError
from tests.support.clock import ManualClock
from tests.support.model_server import ModelServer, turns
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

BOTH = parse_addresses("a:1,b:2")


class Hosts:
    """Hosts by name, each with the error that an attempt ends with, None for one that hangs; others serve."""

    def __init__(self, **down: MillraceError | None) -> None:
        self.down: dict[str, MillraceError | None] = dict(down)
        self.asked: list[str] = []
        self.clock = ManualClock()
        self.under_way: list[str] = []
        self.model = ModelServer()

    async def dial(self, addresses: str) -> "asyncio.Task[Connection]":
        """Begin to dial, on the clock of the hosts."""
        dialer = Dialer(self.connect, clock=self.clock)
        dialing = asyncio.create_task(dialer.dial(parse_addresses(addresses), ClientOptions(), bytes(16)))
        await turns()
        return dialing

    async def connect(self, address: Address, options: ClientOptions, session_id: bytes) -> Connection:
        """Fills the seam of `Dialer`."""
        self.asked.append(address.host)
        if error := self.down.get(address.host):
            raise error
        if address.host in self.down:
            self.under_way.append(address.host)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.under_way.remove(address.host)
        return await self.model.connect(parse_addresses(str(address)), options, session_id)


class HungServer:
    """Accepts connections as the kernel of a stopped process does, and answers nothing."""

    def __init__(self) -> None:
        self.accepted = 0
        self.closed = 0
        self.address = ""

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hold one connection until the client closes it."""
        self.accepted += 1
        with contextlib.suppress(ConnectionError):
            await reader.read()
        self.closed += 1
        writer.close()


@contextlib.asynccontextmanager
async def hung_server() -> AsyncIterator[HungServer]:
    """Yield a server that hangs; each of its connections must be closed at the end."""
    hung = HungServer()
    async with await asyncio.start_server(hung.take, "127.0.0.1", 0) as listening:
        hung.address = "127.0.0.1:{1}".format(*listening.sockets[0].getsockname())
        yield hung
        assert hung.accepted > 0
        await until(lambda: hung.closed == hung.accepted)


def away(address: str) -> ServerUnreachableError:
    return ServerUnreachableError(address, "refused")


async def test_the_address_that_served_last_is_tried_first() -> None:
    hosts = Hosts(a=away("a:1"))
    dialer = Dialer(hosts.connect)

    await dialer.dial(BOTH, ClientOptions(), bytes(16))
    assert hosts.asked == ["a", "b"]
    await dialer.dial(BOTH, ClientOptions(), bytes(16))
    assert hosts.asked == ["a", "b", "b"]

    del hosts.down["a"]
    hosts.down["b"] = away("b:2")
    await dialer.dial(BOTH, ClientOptions(), bytes(16))
    assert hosts.asked == ["a", "b", "b", "b", "a"]


async def test_each_address_is_named_with_its_reason() -> None:
    hosts = Hosts(a=away("a:1"), b=ServerUnreachableError("b:2", "no answer within 5 s"))

    with pytest.raises(ServerUnreachableError) as caught:
        await Dialer(hosts.connect).dial(BOTH, ClientOptions(), bytes(16))

    assert str(caught.value) == "no server could be reached: a:1: refused; b:2: no answer within 5 s"
    assert caught.value.address == "a:1,b:2"


async def test_one_address_fails_as_the_connection_did() -> None:
    error = away("a:1")

    with pytest.raises(ServerUnreachableError) as caught:
        await Dialer(Hosts(a=error).connect).dial(parse_addresses("a:1"), ClientOptions(), bytes(16))

    assert caught.value is error
    assert str(error) == "no server could be reached at a:1: refused"


async def test_a_refusal_for_good_is_an_answer_and_one_for_now_is_not() -> None:
    hosts = Hosts(a=AuthenticationError("the token is wrong"))
    with pytest.raises(AuthenticationError):
        await Dialer(hosts.connect).dial(BOTH, ClientOptions(), bytes(16))
    assert hosts.asked == ["a"]

    hosts = Hosts(a=ThrottledError("too many connections"))
    dialer = Dialer(hosts.connect)
    await dialer.dial(BOTH, ClientOptions(), bytes(16))
    hosts.down["b"] = away("b:2")
    with pytest.raises(ThrottledError):
        await dialer.dial(BOTH, ClientOptions(), bytes(16))


async def test_the_next_address_is_dialed_after_a_second_of_silence() -> None:
    hosts = Hosts(a=None)
    dialing = await hosts.dial("a:1,b:2")
    await hosts.clock.advance(SILENCE_S - 0.01)
    assert hosts.asked == ["a"]
    await hosts.clock.advance(0.01)
    assert (await dialing).address.host == "b"
    await turns()
    assert hosts.under_way == []


async def test_an_error_starts_the_next_address_at_once() -> None:
    hosts = Hosts(a=away("a:1"), b=None)
    dialing = await hosts.dial("a:1,b:2,c:3")
    assert hosts.asked == ["a", "b"]
    await hosts.clock.advance(SILENCE_S)
    assert (await dialing).address.host == "c"


async def test_a_slow_first_address_wins_over_a_standby_that_refuses() -> None:
    """As a busy server, whose standby accepts no connections."""
    hosts = Hosts(a=None, b=away("b:2"))
    model_connect = hosts.model.connect
    answered = asyncio.Event()

    async def connect(address: Address, options: ClientOptions, session_id: bytes) -> Connection:
        if address.host == "a":
            await answered.wait()
            return await model_connect(parse_addresses(str(address)), options, session_id)
        return await hosts.connect(address, options, session_id)

    dialer = Dialer(connect, clock=hosts.clock)
    dialing = asyncio.create_task(dialer.dial(BOTH, ClientOptions(), bytes(16)))
    await turns()
    for _ in range(12):
        await hosts.clock.advance(ATTEMPTS_INTERVAL_S)
    assert not dialing.done()
    assert hosts.asked == ["b"] * 9
    answered.set()
    assert (await dialing).address.host == "a"


async def test_a_standby_that_takes_over_is_found_while_the_first_address_hangs() -> None:
    """It refuses at first, and is asked again: not only once the attempt at the first address has timed out."""
    hosts = Hosts(a=None, b=away("b:2"))
    dialing = await hosts.dial("a:1,b:2")
    await hosts.clock.advance(SILENCE_S)
    await hosts.clock.advance(ATTEMPTS_INTERVAL_S)
    assert hosts.asked == ["a", "b", "b"]
    del hosts.down["b"]
    await hosts.clock.advance(ATTEMPTS_INTERVAL_S)
    assert (await dialing).address.host == "b"
    assert hosts.asked.count("a") == 1


async def test_a_server_that_refuses_for_now_is_not_dialed_before_the_time_it_asks_for() -> None:
    refused = ThrottledError(ErrorFacts(message="too many connections", retry_after_s=1.0))
    hosts = Hosts(a=None, b=refused)
    dialing = await hosts.dial("a:1,b:2")
    await hosts.clock.advance(SILENCE_S)
    for _ in range(3):
        await hosts.clock.advance(ATTEMPTS_INTERVAL_S)
    assert hosts.asked == ["a", "b"]
    del hosts.down["b"]
    await hosts.clock.advance(ATTEMPTS_INTERVAL_S)
    assert (await dialing).address.host == "b"


async def test_a_refusal_for_good_ends_the_attempts_at_other_addresses() -> None:
    hosts = Hosts(a=None, b=AuthenticationError("the token is wrong"))
    dialing = await hosts.dial("a:1,b:2")
    await hosts.clock.advance(SILENCE_S)
    with pytest.raises(AuthenticationError):
        await dialing
    await turns()
    assert hosts.under_way == []


async def test_cancelling_ends_all_attempts() -> None:
    hosts = Hosts(a=None, b=None)
    dialing = await hosts.dial("a:1,b:2")
    await hosts.clock.advance(SILENCE_S)
    assert hosts.under_way == ["a", "b"]
    dialing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dialing
    await turns()
    assert hosts.under_way == []


async def test_of_two_handshakes_in_one_turn_the_second_is_closed() -> None:
    hosts = Hosts()
    connections: list[Connection] = []
    answered = asyncio.Event()

    async def connect(address: Address, options: ClientOptions, session_id: bytes) -> Connection:
        connection = await hosts.connect(address, options, session_id)
        connections.append(connection)
        await answered.wait()
        return connection

    dialer = Dialer(connect, clock=hosts.clock)
    dialing = asyncio.create_task(dialer.dial(BOTH, ClientOptions(), bytes(16)))
    await turns()
    await hosts.clock.advance(SILENCE_S)
    await until(lambda: len(connections) == 2)
    answered.set()
    winner = await dialing
    await turns()
    assert [each.is_open for each in connections] == [each is winner for each in connections]


async def test_another_server_is_found_beside_an_address_that_hangs() -> None:
    hosts = Hosts(a=None, b=None)
    dialer = Dialer(hosts.connect, clock=hosts.clock)
    addresses = parse_addresses("a:1,b:2,c:3")
    finding = asyncio.create_task(dialer.find_other(addresses, ClientOptions(), bytes(16), silent=addresses.members[0]))
    await turns()
    await hosts.clock.advance(SILENCE_S)
    assert await finding is None
    assert hosts.asked == ["b", "c"]


@pytest.mark.both_loops
async def test_a_stopped_first_server_costs_a_second_and_leaves_no_socket() -> None:
    with server(settings=SETTINGS_SMALL) as up:
        async with hung_server() as hung:
            clock = ManualClock()
            dialer = Dialer(clock=clock)
            addresses = parse_addresses(f"{hung.address},{up.address}")
            dialing = asyncio.create_task(dialer.dial(addresses, ClientOptions(), bytes(16)))
            await until(lambda: hung.accepted)
            await clock.advance(SILENCE_S)
            connection = await dialing
            assert str(connection.address) == up.address
            await until(lambda: hung.closed)
            await connection.close()


@pytest.mark.both_loops
async def test_cancelling_leaves_no_socket_at_a_server_that_hangs() -> None:
    async with hung_server() as hung:
        dialing = asyncio.create_task(
            Dialer().dial(parse_addresses(f"{hung.address},127.0.0.1:1"), ClientOptions(), bytes(16))
        )
        await until(lambda: hung.accepted)
        dialing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialing


async def test_both_clients_pass_by_a_server_that_hangs_in_the_handshake() -> None:
    with server(settings=SETTINGS_SMALL) as up:
        async with hung_server() as hung:
            addresses = f"{hung.address},{up.address}"
            async with millrace.connect(addresses) as client:
                await client.create_stream("shop/orders")

            def write() -> None:
                with blocking.connect(addresses) as client, client.writer("shop/orders") as writer:
                    writer.write(b"one").result()

            await asyncio.to_thread(write)


async def test_a_machine_that_drops_connections_costs_a_second() -> None:
    """A full backlog drops the first packet of each connection, as a firewall or a lost machine does."""
    with server(settings=SETTINGS_SMALL) as up, socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        async with millrace.connect(f"127.0.0.1:{address[1]},{up.address}") as client:
            assert await client.ping() > 0
            assert client.statistics().writes.connects == 1


async def test_both_connections_of_a_client_find_the_server_that_is_up() -> None:
    with server(settings=SETTINGS_SMALL) as up:
        async with millrace.connect(f"127.0.0.1:1,{up.address}") as client:
            await client.create_stream("shop/orders")
            async with client.writer("shop/orders") as writer:
                await writer.write(b"one")
            async with client.reader("shop/orders", end=millrace.TAIL) as reader:
                assert [event.value async for event in reader] == [b"one"]


@pytest.mark.slow
async def test_a_writer_continues_at_the_second_server_when_the_first_dies() -> None:
    with server(settings=SETTINGS_SMALL) as first, server(settings=SETTINGS_SMALL) as second:
        async with millrace.connect(second.address) as client:
            await client.create_stream("shop/orders")
        async with millrace.connect(f"{first.address},{second.address}") as client:
            await client.create_stream("shop/orders")
            first.kill()
            async with client.writer("shop/orders", writer_id="till") as writer:
                await writer.write(b"two")
            async with client.reader("shop/orders", end=millrace.TAIL) as reader:
                assert [event.value async for event in reader] == [b"two"]
            first.start()
            assert await client.ping() > 0
            assert client.statistics().writes.connects == 2, "it stays with the one that serves"


async def test_nothing_serves_at_any_address() -> None:
    with pytest.raises(ServerUnreachableError, match=r"reached: 127\.0\.0\.1:1: .*; 127\.0\.0\.1:2: "):
        async with millrace.connect("127.0.0.1:1,127.0.0.1:2"):
            pass
