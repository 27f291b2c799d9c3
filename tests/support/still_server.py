"""A server on a disk in memory, under a clock that stands still: its log has what a test asks for, and nothing else."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from millrace.server.app import Server
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem
from tests.support.servers import server_options


@pytest.fixture
def files(tmp_path: Path) -> MemoryFileSystem:
    """A disk on which servers can be started at `tmp_path`; their checkpoints are on the real one."""
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    return MemoryFileSystem()


@pytest_asyncio.fixture
async def server(tmp_path: Path, files: MemoryFileSystem) -> AsyncIterator[Server]:
    """The server on that disk."""
    async with Server(server_options(tmp_path), clock=ManualClock(), files=files) as running:
        yield running


def sequence_of(server: Server) -> int:
    """Return the number of the last batch of its log."""
    return server.opened.container.state.sequence
