"""Which streams scale, forget or have a tag, found while checkpoints are stored."""

import asyncio
from pathlib import Path

import pytest

from millrace.server.container.checkpoint.reader import CheckpointReader
from millrace.server.container.flush.flusher import Flusher
from millrace.server.kinds.streams import STREAMS
from millrace.server.kinds.streams.catalog import Catalog
from millrace.server.kinds.streams.tables import StreamArchive
from tests.server.streams.containers import streams_in
from tests.support.clock import ManualClock
from tests.support.storage import MemoryStorage

TAGGED = '{"tags": ["x"]}'
NAMES = [f"a/{letter}" for letter in "abcdefgh"]


class CheckpointBetween(StreamArchive):
    """Streams of a checkpoint; another one is stored just before somebody looks for the n-th time."""

    def __init__(self, reader: CheckpointReader, flusher: Flusher, *, look: int) -> None:
        super().__init__(reader, STREAMS)
        self._loop = asyncio.get_running_loop()
        self._flusher = flusher
        self._looks_left = look

    def labelled(self, label: str, *, prefix: str = "", after: str, count_max: int) -> list[tuple[str, int]]:
        self._looks_left -= 1
        if not self._looks_left:
            asyncio.run_coroutine_threadsafe(self._flusher.checkpoint(), self._loop).result(10)
        return super().labelled(label, prefix=prefix, after=after, count_max=count_max)


@pytest.mark.asyncio
@pytest.mark.parametrize("look", [1, 2, 3])
@pytest.mark.parametrize("changed", ["a/b", "a/d", "a/h"])
async def test_a_page_of_a_tag_misses_nothing_that_is_stored_between_two_looks(
    tmp_path: Path, look: int, changed: str
) -> None:
    """A stream that had the tag all the time is on the page, though it changed in another way."""
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        for name in NAMES:
            await streams.controller.create(name, segment_count=1, configuration=TAGGED)
        await streams.opened.flusher.checkpoint()
        await streams.controller.update(changed, configuration='{"tags": ["x", "y"]}')
        archive = CheckpointBetween(streams.opened.checkpoints._reader, streams.opened.flusher, look=look)
        catalog = Catalog(streams.opened.container.state, archive)

        names: list[str] = []
        more = True
        while more:
            page, more = await catalog.names_with_tag("x", prefix="", after=names[-1] if names else "", count_max=3)
            assert len(page) <= 3
            names += page
        assert names == NAMES
