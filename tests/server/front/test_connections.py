"""Unauthenticated connections and clients have bounds of their own, which addresses share."""

import asyncio
import socket
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.front.connections import Connections
from millrace.server.front.counters import FrontCounters
from millrace.server.front.options import FrontOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.protocol import Peer, hello
from tests.support.servers import server_options
from tests.support.waiting import until

SMALL = FrontOptions(
    connections_count_max=4,
    unauthenticated_connections_count_max=6,
    unauthenticated_connections_per_address_count_max=3,
)


class Someone:
    """A connection that only knows whether it was shed."""

    def __init__(self) -> None:
        self.is_shed = False

    def shed(self) -> None:
        self.is_shed = True


def arrived(connections: Connections, address: str) -> Someone:
    someone = Someone()
    connections.expect(someone)
    assert connections.arrived(someone, address)
    return someone


@pytest.fixture
def connections() -> Connections:
    return Connections(SMALL, counters=FrontCounters())


def test_unauthenticated_connections_of_one_address_do_not_take_the_places_of_another(connections: Connections) -> None:
    """Behaviours 87, 104: the address with the most on probation makes room."""
    first = [arrived(connections, "10.0.0.1") for _ in range(50)]
    other = [arrived(connections, "10.0.0.2") for _ in range(3)]
    # Three that have places, and the last two on probation; the third of the other address is on probation, too.
    assert [someone.is_shed for someone in first] == [False] * 3 + [True] * 45 + [False] * 2
    assert not any(someone.is_shed for someone in other)


def test_unauthenticated_connections_of_many_addresses_are_bounded_in_all(connections: Connections) -> None:
    """Behaviour 87."""
    everybody = [arrived(connections, f"10.0.0.{number}") for number in range(100)]
    assert connections.unauthenticated_count == 6 + 3
    assert [index for index, someone in enumerate(everybody) if not someone.is_shed] == [0, 1, 2, 3, 4, 5, 97, 98, 99]


def test_clients_have_places_that_no_unauthenticated_connection_takes(connections: Connections) -> None:
    """Behaviour 87."""
    for _ in range(30):
        arrived(connections, "10.0.0.1")
    clients = [arrived(connections, "10.0.0.1") for _ in range(2)]
    assert all(connections.greeted(client, "10.0.0.1") for client in clients)
    for _ in range(30):
        arrived(connections, "10.0.0.2")
    assert not any(client.is_shed for client in clients)


def test_one_address_cannot_take_the_places_of_all_clients(connections: Connections) -> None:
    """Behaviour 104."""
    greedy = [arrived(connections, "10.0.0.1") for _ in range(3)]
    assert [connections.greeted(client, "10.0.0.1") for client in greedy] == [True, True, False]
    late = Someone()
    connections.expect(late)
    assert not connections.arrived(late, "10.0.0.1")
    assert connections.greeted(arrived(connections, "10.0.0.2"), "10.0.0.2")
    assert connections.greeted(arrived(connections, "10.0.0.3"), "10.0.0.3")


def test_a_client_that_was_overtaken_is_refused(connections: Connections) -> None:
    six = [arrived(connections, f"10.0.0.{number}") for number in range(6)]
    assert [connections.greeted(someone, f"10.0.0.{number}") for number, someone in enumerate(six)] == (
        [True] * 4 + [False] * 2
    )
    connections.left(six[0])
    assert connections.greeted(six[5], "10.0.0.5")


def test_connections_with_wrong_tokens_are_shed_first(connections: Connections) -> None:
    """Behaviour 104: an address that guesses leaves room for the right token of the same address."""
    guessing = [arrived(connections, "10.0.0.1") for _ in range(3)]
    for someone in guessing:
        connections.refused(someone)
    silent = [arrived(connections, "10.0.0.1") for _ in range(3)]
    client = arrived(connections, "10.0.0.1")
    assert [someone.is_shed for someone in guessing] == [True, False, False]
    assert not any(someone.is_shed for someone in silent)
    assert connections.greeted(client, "10.0.0.1")


def test_all_places_are_given_back(connections: Connections) -> None:
    for _ in range(3):
        everybody = [arrived(connections, f"10.0.0.{number % 2}") for number in range(20)]
        for number, someone in enumerate(everybody[:3]):
            assert connections.greeted(someone, f"10.0.0.{number % 2}")
        connections.refused(everybody[3])
        assert len(connections) == len(list(connections)) == 3 + connections.unauthenticated_count
        for someone in everybody:
            connections.left(someone)
        assert (len(connections), connections.unauthenticated_count) == (0, 0)


def test_descriptors_bound_all_of_them() -> None:
    """Behaviour 50: descriptors used up."""
    connections = Connections(FrontOptions(), counters=FrontCounters())
    for count_max in (100, 1000, 768, 5, 1 << 30):
        connections.bound(count_max)
        assert connections.count_max <= count_max
    assert connections.count_max == 10_000 + 1_000 + 250


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_peers_that_never_finish_hello_keep_nobody_out(tmp_path: Path) -> None:
    """Behaviour 87: not even clients of their own address, and however they come back."""
    front = FrontOptions(
        unauthenticated_connections_count_max=20,
        unauthenticated_connections_per_address_count_max=10,
        handshake_timeout_s=30.0,
    )
    async with Server(server_options(tmp_path, front=front)) as server, AsyncExitStack() as stack:
        for _ in range(100):
            stranger = await stack.enter_async_context(await Peer.connect(server.address, greet=False))
            await stranger.send(hello()[:20])
        clients = [await stack.enter_async_context(await Peer.connect(server.address)) for _ in range(30)]
        for _ in range(100):
            await stack.enter_async_context(await Peer.connect(server.address, greet=False))
        for client in clients:
            await client.ask(m.ListStreams("", "", 1), m.StreamList)
        statistics = server.statistics()
        assert statistics["server"].unauthenticated_connections <= 20 + 10
        assert statistics["front"].unauthenticated_connections_shed_total >= 200 - 20


@pytest.mark.slow
@pytest.mark.asyncio
async def test_an_unauthenticated_connection_that_is_shed_is_told(tmp_path: Path) -> None:
    front = FrontOptions(unauthenticated_connections_count_max=1, unauthenticated_connections_per_address_count_max=1)
    async with Server(server_options(tmp_path, front=front)) as server, AsyncExitStack() as stack:
        strangers = [await stack.enter_async_context(await Peer.connect(server.address, greet=False)) for _ in range(3)]
        (reply,) = await strangers[1].ended()
        assert isinstance(reply, m.ErrorReply)
        assert reply.code == ErrorCode.THROTTLED


@pytest.mark.slow
@pytest.mark.asyncio
async def test_unauthenticated_connections_of_another_address_leave_the_places_of_mine(tmp_path: Path) -> None:
    """Behaviour 87: real addresses."""
    front = FrontOptions(
        unauthenticated_connections_count_max=100,
        unauthenticated_connections_per_address_count_max=5,
        handshake_timeout_s=30.0,
    )
    async with Server(server_options(tmp_path, front=front)) as server:
        host, _, port = server.address.rpartition(":")
        with ExitStack() as sockets:

            def flood() -> None:
                for _ in range(50):
                    sockets.enter_context(
                        socket.create_connection((host, int(port)), timeout=30, source_address=("127.0.0.2", 0))
                    )

            await asyncio.to_thread(flood)
            await until(lambda: server.statistics()["server"].unauthenticated_connections == 10)
            # Slow, and in its own share: it is not hurried.
            async with await Peer.connect(server.address, greet=False) as slow:
                for byte in hello():
                    await slow.send(bytes([byte]))
                assert isinstance((await slow.receive())[1], m.HelloReply)


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_of_a_flood_of_connections_the_newest_are_shed(tmp_path: Path) -> None:
    """Behaviour 50: there is a cap; connections that are there stay served."""
    options = server_options(tmp_path, front=FrontOptions(connections_count_max=16))
    async with Server(options) as server:
        peers = [await Peer.connect(server.address) for _ in range(8)]
        for _ in range(20):
            async with await Peer.connect(server.address, greet=False) as shed:
                (message,) = await shed.ended()
                assert isinstance(message, m.ErrorReply)
                assert message.code == ErrorCode.THROTTLED
                assert message.retry_after_ms > 0
        for peer in peers:
            await peer.ask(m.ListStreams("", "", 10), m.StreamList)
        await peers.pop().close()
        await until(lambda: server.statistics()["server"].connections == 7)
        peers.append(await Peer.connect(server.address))
        for peer in peers:
            await peer.close()
