"""Outcomes of appends leave in order, and a failed append holds up what was sent after it, through a real server."""

from pathlib import Path
from random import Random

import pytest

from millrace.server.app import Server
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem
from tests.support.pipelines import Pipeline
from tests.support.protocol import Peer, Stored, append_frame
from tests.support.servers import server_options
from tests.support.transactions import content_of, create_stream


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_pipeline_that_broke_skips_nothing(peer: Peer) -> None:
    """Behaviour 6: the typed error after all acks before it; what follows fails too; the connection lives."""
    peer.answers_pings = False
    segment_id = await peer.create_segment("raw/a")
    first = peer.next_id(5)
    frames = [
        append_frame(segment_id, b"a", request_id=first),
        append_frame(segment_id, b"b", request_id=first + 1, expected_offset=99),
        append_frame(segment_id, b"c", request_id=first + 2),
        append_frame(segment_id, b"d", request_id=first + 3),
    ]
    await peer.send(*frames)
    outcomes = await peer.settled(range(first, first + 4))
    assert outcomes == [
        Stored(0, duplicate=False),
        ErrorCode.CONDITION_FAILED,
        ErrorCode.PIPELINE_BROKEN,
        ErrorCode.PIPELINE_BROKEN,
    ]
    # Also what is sent later, as long as the PING is not answered. Another segment is not concerned.
    other_id = await peer.create_segment("raw/b")
    assert await peer.settled(await peer.append(segment_id, b"e")) == [ErrorCode.PIPELINE_BROKEN]
    await peer.store(other_id, b"x")
    (barrier,) = peer.pings
    await peer.send(encode(m.Pong(), request_id=barrier))
    await peer.store(segment_id, b"f")
    assert await peer.read_all(segment_id) == b"af"


@pytest.mark.asyncio
async def test_no_ping_goes_ahead_of_the_error_while_the_disk_stalls(tmp_path: Path) -> None:
    """Behaviour 6, with an earlier append that is not durable yet."""
    files = MemoryFileSystem()
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    options = server_options(tmp_path)
    async with Server(options, files=files) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        files.stall(folder="wal")
        first = await peer.append(segment_id, b"a")
        failed = await peer.append(segment_id, b"b", expected_offset=99)
        await peer.ask(m.GetSegment(segment_id, ""), m.SegmentInfo)
        assert peer.pings == []
        assert failed[0] not in peer.outcomes
        later = await peer.append(segment_id, b"c")
        await peer.ask(m.GetSegment(segment_id, ""), m.SegmentInfo)
        files.resume()
        assert await peer.settled([*first, *failed, *later]) == [
            Stored(0, duplicate=False),
            ErrorCode.CONDITION_FAILED,
            ErrorCode.PIPELINE_BROKEN,
        ]
        await peer.ask(m.GetSegment(segment_id, ""), m.SegmentInfo)
        await peer.store(segment_id, b"d")


@pytest.mark.asyncio
async def test_a_lost_connection_leaves_nothing(tmp_path: Path) -> None:
    """Cut at any byte of what was sent, it is open with what arrived, and can be continued."""
    async with Server(server_options(tmp_path), clock=ManualClock()) as server:
        async with await Peer.connect(server.address) as peer:
            segments = await create_stream(peer, "a/b", 2)
            pipeline = await Pipeline.open(peer, ids_count=3000)
        expected = 0
        dice = Random(7)
        for _ in range(40):
            async with await Peer.connect(server.address) as peer:
                pipeline.peer = peer
                number = pipeline.whole("a/b", segments, b"event")
                frames = pipeline.abandon()
                await peer.send(frames[: dice.randrange(len(frames))])
            async with await Peer.connect(server.address) as peer:
                again = Pipeline(peer, pipeline.writer, [number + 1, number + 2])
                again.begin("a/b", number=number)
                for part_id in again.parts(number, segments):
                    again.append(part_id, b"event")
                again.commit(number, (0, 2))
                told = await again.told()
                assert isinstance(told.replies[-1], m.TransactionReply), told.names()
                expected += len(b"event")
                assert {len(each) for each in (await content_of(peer, "a/b")).values()} == {expected}
