"""Behaviour 104: each host that uses a trusted proxy has its own share."""

import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.errors import ConfigurationError
from millrace.server.front.options import FrontOptions
from millrace.wire import messages as m
from tests.support.protocol import Peer, hello
from tests.support.servers import server_options
from tests.support.waiting import until

HEADER = b"PROXY TCP4 192.0.2.%d 198.51.100.1 50312 9240\r\n"


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_hosts_that_use_one_proxy_do_not_share_an_address(tmp_path: Path) -> None:
    front = FrontOptions(
        unauthenticated_connections_count_max=20,
        unauthenticated_connections_per_address_count_max=3,
        trusted_proxies="127.0.0.0/8",
    )
    async with Server(server_options(tmp_path, front=front)) as server, AsyncExitStack() as stack:
        for _ in range(20):
            stranger = await stack.enter_async_context(await Peer.connect(server.address, greet=False))
            await stranger.send(HEADER % 1)
        await until(lambda: server.statistics()["front"].unauthenticated_connections_shed_total == 20 - 2 * 3)
        async with await Peer.connect(server.address, greet=False) as slow:
            for byte in HEADER % 2 + hello():
                await slow.send(bytes([byte]))
            assert isinstance((await slow.receive())[1], m.HelloReply)
            assert isinstance(await slow.ask(m.ListStreams("", "", 1), m.StreamList), m.StreamList)


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_what_follows_the_header_in_one_piece_is_received(tmp_path: Path) -> None:
    front = FrontOptions(trusted_proxies="127.0.0.1")
    async with Server(server_options(tmp_path, front=front)) as server:
        for header in (HEADER % 1, b"PROXY UNKNOWN\r\n", b""):  # the last one is a client on the machine of the proxy
            async with await Peer.connect(server.address, greet=False) as peer:
                await peer.send(header + hello())
                assert isinstance((await peer.receive())[1], m.HelloReply)
        async with await Peer.connect(server.address, greet=False) as peer:
            await peer.send(HEADER[:9])


@pytest.mark.asyncio
async def test_an_invalid_header_and_one_of_another_host_end_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(server_options(tmp_path, front=FrontOptions(trusted_proxies="127.0.0.1"))) as server:
        async with await Peer.connect(server.address, greet=False) as peer:
            await peer.send(b"PROXY TCP4 x y 1 2\r\n")
            assert await peer.ended() == []
        assert server.statistics()["front"].protocol_errors_total == 1
    assert re.search(r"invalid PROXY header peer=.* detail=.*TCP4 x y 1 2", caplog.text)
    async with Server(server_options(tmp_path)) as server:
        async with await Peer.connect(server.address, greet=False) as peer:
            await peer.send(HEADER % 1 + hello())
            assert not any(isinstance(reply, m.HelloReply) for reply in await peer.ended())


def test_proxies_are_given_as_addresses() -> None:
    with pytest.raises(ConfigurationError, match=r"trusted_proxies.*IP addresses or networks, such as 10\.0\.0\.5"):
        FrontOptions(trusted_proxies="10.0.0.5, proxy.example")
