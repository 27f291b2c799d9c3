"""Behaviour 81: files of tier 2 that are sound, and not the ones that belong where they are."""

from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from millrace.server.container.container import SegmentContainer
from millrace.server.errors import ChunkIdentityError
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.server.tier2.chunks import forged
from tests.support.protocol import Peer, RefusedError, code_of
from tests.support.scenario import Run, Scenario
from tests.support.servers import QUIET

SMALL = replace(QUIET, chunk_size_bytes_max=4 * KIB, flush_size_bytes=4 * KIB, chunk_size_bytes_small=2 * KIB)
"""The last chunk of a segment is written again if it is below 2 KiB."""


class Scene:
    """A container over storage that can be tampered with, and a client of it."""

    run: Run
    peer: Peer

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.storage = scenario.storage
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "Scene":
        self.run = await self._open.enter_async_context(self._scenario.running(container=SMALL))
        self.peer = await self._open.enter_async_context(self.run.peer())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def restart(self) -> None:
        await self.run.opened.flusher.checkpoint()
        await self.__aexit__()
        await self.__aenter__()

    @property
    def container(self) -> SegmentContainer:
        return self.run.container

    async def flush(self) -> None:
        await self.run.opened.flusher.flush()

    async def two_segments(self, *sizes: int) -> tuple[int, int]:
        """Make two segments with chunks of these sizes, all of different bytes."""
        peer = self.peer
        one, other = await peer.create_segment("raw/one"), await peer.create_segment("raw/other")
        for number, size in enumerate(sizes):
            await peer.store(one, bytes([1 + number]) * size)
            await peer.store(other, bytes([101 + number]) * size)
            await self.flush()
        return one, other

    def swap(self, one: str, other: str) -> None:
        """Let two files change places."""
        first, second = self.storage.content(one), self.storage.content(other)
        assert first != second
        self.storage.replace(one, second)
        self.storage.replace(other, first)


async def refusal(peer: Peer, segment_id: int, offset: int) -> str:
    """Return how a read is refused."""
    with pytest.raises(RefusedError) as caught:
        await peer.read(segment_id, offset)
    assert caught.value.code is ErrorCode.SEGMENT_DAMAGED
    return str(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("is_read_before", [False, True], ids=["unread", "read"])
async def test_chunks_that_changed_places_are_refused_and_both_named(
    scenario: Scenario, is_restarted: bool, is_read_before: bool
) -> None:
    """Behaviour 81: of equal size, so that nothing but the identity tells; the rest of both segments is served."""
    async with Scene(scenario) as scene:
        one, other = await scene.two_segments(4 * KIB, 4 * KIB)
        if is_read_before:
            for chunk in scene.container.segment(one).chunks:
                await scene.container.reader.footer(chunk)
        names = scene.storage.names()
        scene.swap(names[0], names[2])
        if is_restarted:
            await scene.restart()
        peer = scene.peer

        text = await refusal(peer, one, 0)
        assert f"[0, 4096) of segment {one} " in text
        assert f"[0, 4096) of segment {other} " in text
        assert names[0].removeprefix("c0000/") in text
        assert await code_of(peer.read(other, 100)) is ErrorCode.SEGMENT_DAMAGED
        assert await peer.read_all(one, start=4096) == bytes([2]) * 4096
        assert await peer.read_all(other, start=4096) == bytes([102]) * 4096
        assert await peer.store(one, b"more") == [8192]
        scene.swap(names[0], names[2])
        assert await peer.read_all(other) == bytes([101]) * 4096 + bytes([102]) * 4096


@pytest.mark.asyncio
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("wrong", ["another segment", "another place", "an older epoch", "a forged index"])
async def test_a_flush_does_not_copy_a_chunk_that_is_not_the_one_it_should_be(
    scenario: Scenario, is_restarted: bool, wrong: str
) -> None:
    """Behaviour 81: a small last chunk is written again with what follows, and would get good checksums by that."""
    async with Scene(scenario) as scene:
        one, _ = await scene.two_segments(4 * KIB, KIB)
        _, small, _, of_other = scene.storage.names()
        data = scene.storage.content(small)
        scene.storage.replace(
            small,
            {
                "another segment": scene.storage.content(of_other),
                "another place": forged(data, start_offset=0),
                "an older epoch": forged(data, container_epoch=7),
                "a forged index": forged(data, bytes(40)),
            }[wrong],
        )
        if is_restarted:
            await scene.restart()
        peer = scene.peer

        await peer.store(one, b"what follows")
        await scene.flush()

        if wrong == "a forged index":
            assert await peer.read_all(one, start=4096) == bytes([2]) * 1024 + b"what follows"
        else:
            assert [chunk.start_offset for chunk in scene.container.segment(one).chunks] == [0, 4096, 5120]
            assert "the file holds" in await refusal(peer, one, 4096)
            assert await peer.read_all(one, start=5120) == b"what follows"
        assert bytes((await peer.read(one, 0, size_max=4096)).payload) == bytes([1]) * 4096
        assert not scene.container.refusal


@pytest.mark.asyncio
async def test_a_merge_does_not_copy_a_chunk_that_is_not_the_one_it_should_be(scenario: Scenario) -> None:
    """Behaviour 81: the merged segment is left where it is, and its range is refused."""
    async with Scene(scenario) as scene:
        peer = scene.peer
        one, other = await scene.two_segments(4 * KIB)
        scene.swap(*scene.storage.names())
        await peer.ask(m.SealSegment(other), m.SegmentInfo)
        await peer.ask(m.MergeSegment(target_id=one, source_id=other), m.SegmentInfo)

        await scene.flush()

        assert f"of segment {other} " in await refusal(peer, one, 4096)
        assert not scene.container.refusal


@pytest.mark.asyncio
async def test_a_search_by_event_time_does_not_use_the_index_of_another_chunk(scenario: Scenario) -> None:
    """Behaviour 81: and the sparse index of a segment never takes its entries over."""
    async with Scene(scenario) as scene:
        peer, container = scene.peer, scene.container
        one, _ = await scene.two_segments(4 * KIB, 4 * KIB)
        scene.swap(*scene.storage.names()[:2])
        with pytest.raises(ChunkIdentityError):
            await container.reader.footer(container.segment(one).chunks[0])

        await peer.ask(m.GetIndex(segment_id=one, start=0, end=8192, spacing_bytes=1, count_max=10), m.Index)
        found = await peer.ask(m.Seek(one, 0), m.Index)
        assert [entry.offset for entry in found.entries] == [0]
        container.segment(one).index.check()
        assert {*container.segment(one).index.columns()[0]} <= {0, 4096}
