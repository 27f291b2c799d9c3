"""What peers do wrong fills no log."""

import asyncio
import logging
import re
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.front.options import FrontOptions
from millrace.server.front.peer_log import PEERS_COUNT_MAX, PeerLog
from tests.support.protocol import Peer, hello
from tests.support.servers import server_options
from tests.support.waiting import until


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("millrace.server.front")]


@pytest.mark.asyncio
async def test_the_same_of_one_peer_is_counted_and_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 87: log lines per peer and kind are limited."""
    peer_log = PeerLog(window_s=0.01)
    for number in range(1000):
        peer_log.log("protocol error", peer=f"10.0.0.1:{number}", address="10.0.0.1", detail=f"number {number}")
    peer_log.log("protocol error", peer="10.0.0.2:1", address="10.0.0.2")
    peer_log.log("authentication failed", peer="10.0.0.1:9", address="10.0.0.1")
    await until(lambda: not peer_log._suppressed)
    assert lines(caplog) == [
        "protocol error peer=10.0.0.1:0 detail=number 0",
        "protocol error peer=10.0.0.2:1",
        "authentication failed peer=10.0.0.1:9",
        "protocol error peer=10.0.0.1 suppressed=999",
    ]
    peer_log.log("protocol error", peer="10.0.0.1:5", address="10.0.0.1")
    assert lines(caplog)[4:] == ["protocol error peer=10.0.0.1:5"]
    await until(lambda: not peer_log._suppressed)
    assert len(lines(caplog)) == 5


@pytest.mark.asyncio
async def test_however_many_peers_there_are(caplog: pytest.LogCaptureFixture) -> None:
    peer_log = PeerLog(window_s=0.01)
    for number in range(5 * PEERS_COUNT_MAX):
        peer_log.log("protocol error", peer=f"{number}:1", address=str(number))
    assert len(lines(caplog)) == PEERS_COUNT_MAX + 1
    await until(lambda: not peer_log._suppressed)
    assert lines(caplog)[-1] == f"protocol error peer=others suppressed={4 * PEERS_COUNT_MAX - 1}"


async def misbehave(address: str, sent: bytes) -> None:
    async with await Peer.connect(address, greet=False) as peer:
        await peer.send(sent)
        await peer.ended()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_flood_of_garbage_makes_a_line_of_each_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 87: garbage, wrong tokens, protocol errors."""
    caplog.set_level(logging.INFO)
    async with Server(server_options(tmp_path, front=FrontOptions(token="sesame"))) as server:
        garbled = hello(token="sesame") + bytes(40)
        for sent in (bytes(40), hello(token="wrong"), garbled, b"GET / HTTP/1.1\r\n\r\n"):
            await asyncio.gather(*(misbehave(server.address, sent) for _ in range(20)))
        assert server.statistics()["front"].protocol_errors_total == 60
        kinds = [line.partition(" peer=")[0] for line in lines(caplog)]
        assert kinds == [
            "garbage before the handshake",
            "authentication failed",
            "protocol error",
            "HTTP spoken to the data port",
        ]
        assert all(re.search(r"peer=\('127.0.0.1', \d+\)", line) for line in lines(caplog))
