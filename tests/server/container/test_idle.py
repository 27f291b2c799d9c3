"""Requests about what is not in memory: idle segments, streams and writers lie in the checkpoint."""

import asyncio
import gc
import threading
from dataclasses import replace

import pytest

from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.server.container.options import ContainerOptions
from millrace.server.errors import ConfigurationError
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.protocol import Stored, code_of
from tests.support.scenario import Run, Scenario
from tests.support.servers import QUIET

IDLE = replace(QUIET, idle_bytes_max=0)
COUNT = 12


async def all_idle(run: Run) -> None:
    """Flush everything and save a checkpoint, so that nothing has to be in memory."""
    await run.opened.flusher.flush()
    await run.opened.flusher.checkpoint()


def reads_of(scenario: Scenario, *, in_loop: bool = False) -> list[str]:
    """Return a list that grows with each statement that the checkpoint is asked, or is asked in this thread."""
    statements: list[str] = []
    here = threading.get_ident()

    def note(statement: str) -> None:
        if not in_loop or threading.get_ident() == here:
            statements.append(statement)

    scenario.files.trace(note)
    return statements


@pytest.mark.asyncio
async def test_what_does_not_exist_is_not_found_however_often_one_asks(scenario: Scenario) -> None:
    async with scenario.running(container=IDLE) as run, run.peer() as peer:
        gone = await peer.create_segment("raw/gone")
        await peer.create_segment("raw/kept")
        await peer.ask(m.DeleteSegment(gone), m.Done)
        await all_idle(run)
        for _ in range(2):
            for segment_id in (gone, 99_999):
                assert (
                    await code_of(peer.ask(m.GetSegment(segment_id, ""), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
                )
            assert await code_of(peer.ask(m.GetSegment(0, "raw/gone"), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
            assert await code_of(peer.ask(m.GetStream("raw/gone"), m.StreamInfo)) is ErrorCode.STREAM_NOT_FOUND
        again = await peer.create_segment("raw/gone")
        assert again > gone


@pytest.mark.asyncio
async def test_pages_of_names_hold_what_is_stored_and_what_is_not(scenario: Scenario) -> None:
    """Behaviour 19: listing is paged, by prefix; also while checkpoints are stored."""
    async with scenario.running(container=IDLE) as run, run.peer() as peer:
        ids = {}
        for number in range(30):
            ids[number] = await peer.create_segment(f"raw/{number:02d}")
            if number == 14:
                await all_idle(run)
        for number in (3, 20):
            await peer.ask(m.DeleteSegment(ids[number]), m.Done)
        expected = [f"raw/{number:02d}" for number in range(30) if number not in (3, 20)]
        for count_max in (1, 4, 100):
            names: list[str] = []
            more = 1
            while more:
                page = await peer.ask(m.ListSegments("raw/", names[-1] if names else "", count_max), m.SegmentList)
                names += [segment.name for segment in page.segments]
                more = page.more
            assert names == expected


@pytest.mark.asyncio
async def test_a_page_of_nothing_but_merged_segments_is_passed_over(scenario: Scenario) -> None:
    """Behaviour 19: a page is empty only when nothing follows."""
    async with scenario.running(container=IDLE) as run, run.peer() as peer:
        target = await peer.create_segment("raw/z")
        for number in range(4):
            source = await peer.create_segment(f"raw/a{number}")
            await peer.store(source, b"x")
            await peer.ask(m.SealSegment(source), m.SegmentInfo)
            await peer.ask(m.MergeSegment(target_id=target, source_id=source), m.SegmentInfo)

        for count_max in (1, 3, 100):
            page = await peer.ask(m.ListSegments("raw/", "", count_max), m.SegmentList)
            assert ([segment.name for segment in page.segments], page.more) == (["raw/z"], 0)


@pytest.mark.asyncio
async def test_nothing_is_read_for_a_segment_that_none_can_be(scenario: Scenario) -> None:
    """No client makes the server read its disk for nothing, again and again."""
    async with scenario.running(container=IDLE) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.create_segment("raw/last")  # the log holds its last batch
        await all_idle(run)
        reads = reads_of(scenario)
        for none in (0, 10**9):
            assert await code_of(peer.ask(m.SealSegment(none), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
            assert await peer.settled(await peer.append(none, b"x")) == [ErrorCode.SEGMENT_NOT_FOUND]
        assert reads == []
        await peer.info(segment_id)
        assert reads


@pytest.mark.asyncio
async def test_of_a_request_that_names_too_many_segments_none_is_read(scenario: Scenario) -> None:
    async with scenario.running(container=IDLE) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        # As if so many writers had been opened: numbers are given to all kinds of things in turn.
        run.state.scalars.next_id += SEGMENTS_PER_STREAM_MAX + 1
        await peer.create_segment("raw/b")
        await all_idle(run)
        reads = reads_of(scenario)

        named = list(range(segment_id + 1, segment_id + SEGMENTS_PER_STREAM_MAX + 2))
        assert await code_of(peer.ask(m.GetWriter("w", named), m.WriterOpened)) is ErrorCode.INVALID_ARGUMENT
        assert not [statement for statement in reads if "FROM segments" in statement]


@pytest.mark.asyncio
async def test_what_an_append_is_about_stays_in_memory_until_it_is_applied(scenario: Scenario) -> None:
    """Neither admitting it nor applying it reads a disk: the latter has nobody whom it could tell of a failure."""
    async with scenario.running(container=IDLE) as run:
        async with run.peer() as peer:
            segments = [await peer.create_segment(f"raw/{number}") for number in range(COUNT)]
            writers = [await peer.open_writer(f"w{number}", segments[number]) for number in range(COUNT)]
        await all_idle(run)
        await asyncio.sleep(0)  # idle entities leave memory after the step in which they fell idle
        gc.collect()
        # The log still holds its last batch, and what that was about.
        assert len(run.state.segments.present()) <= 1
        reads = reads_of(scenario, in_loop=True)
        async with run.peer() as peer:
            scenario.log.is_stalled = True
            sent: list[int] = []
            for segment_id, writer in zip(segments, writers, strict=True):
                sent += await peer.append(
                    segment_id,
                    b"x",
                    event_number=1,
                    writer_number=writer.writer_number,
                    writer_epoch=writer.writer_epoch,
                )
            # It is answered when everything before it was admitted.
            await peer.info(segments[0])
            gc.collect()
            scenario.log.resume()
            assert await peer.settled(sent) == [Stored(0, duplicate=False)] * COUNT
        assert reads == []


def test_bounds_of_residency_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="idle_bytes_max"):
        ContainerOptions(idle_bytes_max=-1)
