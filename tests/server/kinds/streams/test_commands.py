"""Streams: created, described, sealed, truncated and deleted, over real sockets and restarts."""

import asyncio
from pathlib import Path

import pytest

from millrace.model.key_range import KEY_SPACE
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.server.errors import DecisionLostError, LogFailedError
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.server.streams.containers import streams_in
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem
from tests.support.protocol import Peer, code_of
from tests.support.scenario import Scenario
from tests.support.storage import MemoryStorage

CONFIGURATION = '{"tags": ["test"]}'


@pytest.mark.asyncio
async def test_a_stream_partitions_the_key_space(peer: Peer) -> None:
    for count in (1, 3, 7, 64):
        stream = await peer.ask(m.CreateStream(f"shop/s{count}", count, CONFIGURATION), m.StreamInfo)
        assert (stream.created, stream.configuration, len(stream.segments)) == (1, CONFIGURATION, count)
        ends = [0]
        for segment in stream.segments:
            assert segment.low == ends[-1]
            ends.append(segment.last + 1)
        assert ends[-1] == KEY_SPACE


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_creating_a_stream_twice_says_that_it_was_there(scenario: Scenario) -> None:
    """Behaviour 19: create twice: a stream is False; for those who ask at once, too."""
    async with scenario.running() as run:
        peers = [run.peer() for _ in range(6)]
        request = m.CreateStream("shop/orders", 4, "")
        streams = await asyncio.gather(*(peer.ask(request, m.StreamInfo) for peer in peers))
        assert sum(stream.created for stream in streams) == 1
        assert len({stream.stream_id for stream in streams}) == 1
        for peer in peers:
            await peer.close()


@pytest.mark.asyncio
async def test_streams_out_of_bounds_are_refused(peer: Peer) -> None:
    for count, configuration in ((0, ""), (SEGMENTS_PER_STREAM_MAX + 1, ""), (1, "\u00e9" * 9000)):
        request = m.CreateStream("shop/orders", count, configuration)
        assert await code_of(peer.ask(request, m.StreamInfo)) is ErrorCode.INVALID_ARGUMENT
    assert (await peer.ask(m.ListStreams("", "", 10), m.StreamList)).names == []


@pytest.mark.asyncio
async def test_a_sealed_stream_takes_nothing_and_only_it_can_be_deleted(peer: Peer) -> None:
    """Behaviour 21: deleting an unsealed stream is refused; a missing one is False; pending writes fail as sealed."""
    stream = await peer.ask(m.CreateStream("shop/orders", 2, ""), m.StreamInfo)
    ids = [segment.segment_id for segment in stream.segments]
    for segment_id in ids:
        await peer.store(segment_id, b"x")
    assert await code_of(peer.ask(m.DeleteStream("shop/orders"), m.Done)) is ErrorCode.STREAM_NOT_SEALED
    assert (await peer.ask(m.DeleteStream("shop/nothing"), m.Done)).changed == 0
    for _ in range(2):
        sealed = await peer.ask(m.SealStream("shop/orders"), m.StreamInfo)
        assert sealed.sealed
        assert all(segment.sealed for segment in sealed.segments)
    assert await peer.settled(await peer.append(ids[0], b"y")) == [ErrorCode.SEGMENT_SEALED]
    assert (await peer.ask(m.DeleteStream("shop/orders"), m.Done)).changed == 1
    assert await code_of(peer.info(ids[0])) is ErrorCode.SEGMENT_NOT_FOUND
    assert await code_of(peer.ask(m.GetStream("shop/orders"), m.StreamInfo)) is ErrorCode.STREAM_NOT_FOUND
    again = await peer.ask(m.CreateStream("shop/orders", 1, ""), m.StreamInfo)
    assert again.created
    assert again.segments[0].length == 0


@pytest.mark.asyncio
async def test_segments_of_a_stream_are_the_streams_business(peer: Peer) -> None:
    stream = await peer.ask(m.CreateStream("shop/orders", 1, ""), m.StreamInfo)
    segment_id = stream.segments[0].segment_id
    for request in (m.SealSegment(segment_id), m.TruncateSegment(segment_id, 0), m.DeleteSegment(segment_id)):
        assert await code_of(peer.ask(request, m.SegmentInfo)) is ErrorCode.INVALID_ARGUMENT


@pytest.mark.asyncio
async def test_a_stream_is_truncated_at_a_whole_cut_only(peer: Peer) -> None:
    stream = await peer.ask(m.CreateStream("shop/orders", 2, ""), m.StreamInfo)
    a, b = (segment.segment_id for segment in stream.segments)
    await peer.store(a, b"12345")
    await peer.store(b, b"67")
    for positions, code in (
        ([(a, 1)], ErrorCode.CUT_INVALID),
        ([(a, 1), (a, 1)], ErrorCode.CUT_INVALID),
        ([(a, 1), (b, 1), (99, 0)], ErrorCode.CUT_INVALID),
        ([(a, 6), (b, 1)], ErrorCode.OFFSET_BEYOND_END),
    ):
        request = m.TruncateStream("shop/orders", [m.SavedPosition(*position) for position in positions])
        assert await code_of(peer.ask(request, m.StreamInfo)) is code
    request = m.TruncateStream("shop/orders", [m.SavedPosition(a, 3), m.SavedPosition(b, 0)])
    for _ in range(2):
        truncated = await peer.ask(request, m.StreamInfo)
        assert [segment.start_offset for segment in truncated.segments] == [3, 0]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_streams_survive_a_restart(scenario: Scenario) -> None:
    running = scenario.running
    async with running() as run, run.peer() as peer:
        stream = await peer.ask(m.CreateStream("shop/orders", 3, CONFIGURATION), m.StreamInfo)
        await peer.store(stream.segments[1].segment_id, b"abc")
        await peer.ask(m.CreateStream("shop/old", 1, ""), m.StreamInfo)
        await peer.ask(m.SealStream("shop/old"), m.StreamInfo)
        before = [await peer.ask(m.GetStream(name), m.StreamInfo) for name in ("shop/orders", "shop/old")]
    async with running() as run, run.peer() as peer:
        after = [await peer.ask(m.GetStream(name), m.StreamInfo) for name in ("shop/orders", "shop/old")]
        assert after == before
        assert [name.name for name in (await peer.ask(m.ListStreams("shop/", "", 10), m.StreamList)).names] == [
            "shop/old",
            "shop/orders",
        ]


FIXED = '{"scaling": {"kind": "fixed", "segment_count": %d}, "tags": %s}'


async def open_count(peer: Peer, name: str) -> int:
    stream = await peer.ask(m.GetStream(name), m.StreamInfo)
    return sum(not segment.sealed_epoch for segment in stream.segments)


async def updated(peer: Peer, name: str, count: int, tags: str = "[]") -> int:
    """Update a stream and return how many open segments it has then."""
    stream = await peer.ask(m.UpdateStream(name, FIXED % (count, tags)), m.StreamInfo)
    return sum(not segment.sealed_epoch for segment in stream.segments)


@pytest.mark.asyncio
async def test_a_fixed_number_that_is_new_is_what_the_stream_has_then(peer: Peer) -> None:
    await peer.ask(m.CreateStream("shop/orders", 1, FIXED % (1, "[]")), m.StreamInfo)

    assert [await updated(peer, "shop/orders", count) for count in (3, 8, 8, 2, 1)] == [3, 8, 8, 2, 1]
    history = await peer.ask(m.GetStreamHistory("shop/orders"), m.StreamHistory)
    assert [epoch.number for epoch in history.epochs] == [0, 1, 2, 3, 4]


@pytest.mark.asyncio
async def test_a_stream_scaled_by_hand_stays_so_unless_the_number_alone_is_asked_for(peer: Peer) -> None:
    stream = await peer.ask(m.CreateStream("shop/orders", 1, FIXED % (1, "[]")), m.StreamInfo)
    halves = [m.KeyRangeRecord(0, 9), m.KeyRangeRecord(10, KEY_SPACE - 1)]
    await peer.ask(m.ScaleStream("shop/orders", [stream.segments[0].segment_id], halves), m.StreamInfo)

    assert await updated(peer, "shop/orders", 1, '["new"]') == 2
    assert await updated(peer, "shop/orders", 1, '["new"]') == 1


@pytest.mark.asyncio
async def test_a_sealed_stream_is_reconfigured_and_not_scaled(peer: Peer) -> None:
    await peer.ask(m.CreateStream("shop/orders", 2, FIXED % (2, "[]")), m.StreamInfo)
    await peer.ask(m.SealStream("shop/orders"), m.StreamInfo)

    assert await updated(peer, "shop/orders", 5) == 2


@pytest.mark.asyncio
async def test_scaling_and_configuration_are_durable_when_the_update_is_answered(scenario: Scenario) -> None:
    """Killed at any instant before, it is repeated: nothing then but what is missing is done."""
    async with scenario.running() as run, run.peer() as peer:
        await peer.ask(m.CreateStream("shop/orders", 1, ""), m.StreamInfo)
        await updated(peer, "shop/orders", 4)
        after = scenario.copy()
    after.files.crash(seed=1)
    async with after.running() as run, run.peer() as peer:
        stream = await peer.ask(m.GetStream("shop/orders"), m.StreamInfo)
        assert (await open_count(peer, "shop/orders"), stream.configuration) == (4, FIXED % (4, "[]"))
        assert await updated(peer, "shop/orders", 4) == 4
        assert len((await peer.ask(m.GetStreamHistory("shop/orders"), m.StreamHistory)).epochs) == 2


@pytest.mark.asyncio
async def test_what_failed_with_the_log_is_not_said_to_be_missing() -> None:
    """Behaviour 84: the stream is found when the log is read back."""
    folder, files, clock = Path("/data/containers/0000"), MemoryFileSystem(), ManualClock()
    storage = MemoryStorage()
    async with streams_in(folder, storage=storage, clock=clock, files=files) as streams:
        controller = streams.controller
        stream, _ = await controller.create("shop/there", segment_count=1, configuration="")
        assert not await controller.delete("shop/new")
        assert not await controller.forget_cut("shop/there", "cut", kind=m.CutKind.BOOKMARK)
        cut = m.NamedCut(m.CutKind.BOOKMARK, "cut", [m.SavedPosition(stream.segment_ids[0], 0, 0)])
        files.fail_syncs(10)  # more than the log needs: the thread that prepares its files may take some
        outcomes = await asyncio.gather(
            controller.create("shop/new", segment_count=1, configuration=""),
            controller.save_cuts("shop/there", [cut]),
            return_exceptions=True,
        )
        files.fail_syncs(0)
        assert [type(outcome) for outcome in outcomes] == [LogFailedError, LogFailedError]
        with pytest.raises(DecisionLostError):
            await controller.delete("shop/new")
        with pytest.raises(DecisionLostError):
            await controller.forget_cut("shop/there", "cut", kind=m.CutKind.BOOKMARK)
    async with streams_in(folder, storage=storage, clock=clock, files=files) as streams:
        assert len(streams.controller.find("shop/new").segment_ids) == 1
