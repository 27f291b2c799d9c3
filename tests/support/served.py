"""Fixtures of tests that talk to a server: its folder, the server, and one raw connection to it.

A test that needs another server than the small quiet one, or several connections, starts them itself.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from millrace.server.app import Server
from tests.support.folders import tmp_path
from tests.support.protocol import Peer
from tests.support.servers import server_options
from tests.support.settled_containers import _containers_are_settled

__all__ = ["_containers_are_settled", "other", "peer", "server", "tmp_path"]


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A server on a folder in memory, as `server_options` makes it."""
    async with Server(server_options(tmp_path)) as running:
        yield running


@pytest_asyncio.fixture
async def peer(server: Server) -> AsyncIterator[Peer]:
    """A connection to that server, after its handshake."""
    async with await Peer.connect(server.address) as connected:
        yield connected


@pytest_asyncio.fixture
async def other(server: Server) -> AsyncIterator[Peer]:
    """Another connection to that server."""
    async with await Peer.connect(server.address) as connected:
        yield connected
