"""One server per module; tests use names of their own in it. A test that kills its server takes `millrace_server`."""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

import millrace
from millrace.client.client import Client
from millrace.client.testing import TestServer

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with millrace.testing.server() as running:
        yield running


@pytest_asyncio.fixture
async def client(server: TestServer) -> AsyncIterator[Client]:
    async with millrace.connect(server.address) as connected:
        yield connected


@pytest.fixture
def name() -> str:
    """A name that no other test uses, for a segment or a stream."""
    return f"tests/{next(_numbers)}"
