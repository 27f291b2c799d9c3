"""Outcomes of appends leave in order, and a failed append holds up what was sent after it, through a real server."""

from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from tests.support.files import MemoryFileSystem
from tests.support.protocol import Peer, Stored, append_frame
from tests.support.servers import server_options


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
