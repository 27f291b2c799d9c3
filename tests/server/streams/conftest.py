"""A container in memory: `run`, `peer`, `other` and `streams` are what most tests need."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.server.streams.containers import Streams, streams_in
from tests.support.clock import ManualClock
from tests.support.folders import tmp_path
from tests.support.scenario_fixtures import _containers_are_settled, other, peer, run, scenario
from tests.support.storage import MemoryStorage

__all__ = ["_containers_are_settled", "other", "peer", "run", "scenario", "tmp_path"]


@pytest_asyncio.fixture
async def streams(tmp_path: Path) -> AsyncIterator[Streams]:
    """A container with the stream `a/b` of one segment."""
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as opened:
        await opened.controller.create("a/b", segment_count=1, configuration="")
        yield opened
