"""Fixtures of tests about one container: where it runs, the container, and two who send requests."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.protocol import Peer
from tests.support.scenario import Run, Scenario
from tests.support.settled_containers import _containers_are_settled

__all__ = ["_containers_are_settled", "other", "peer", "run", "scenario"]


@pytest.fixture
def scenario() -> Scenario:
    """A disk, a log and a store in memory, under a clock that stands still."""
    return Scenario()


@pytest_asyncio.fixture
async def run(scenario: Scenario) -> AsyncIterator[Run]:
    """The container, of which nothing is done in the background."""
    async with scenario.running() as running:
        yield running


@pytest_asyncio.fixture
async def peer(run: Run) -> AsyncIterator[Peer]:
    """One who sends requests to it."""
    async with run.peer() as connected:
        yield connected


@pytest_asyncio.fixture
async def other(run: Run) -> AsyncIterator[Peer]:
    """Another one."""
    async with run.peer() as connected:
        yield connected
