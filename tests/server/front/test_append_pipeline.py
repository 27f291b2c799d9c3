"""Outcomes of appends leave in order, and a failed append holds up what was sent behind it, by the PING barrier."""

from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.container.admission import PendingAppend
from millrace.server.errors import PipelineBrokenError, SegmentSealedError
from millrace.server.front.append_pipeline import ENTRIES_PER_ACK_COUNT_MAX, AppendPipeline
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import decode, encode
from tests.support.files import MemoryFileSystem
from tests.support.protocol import Peer, Stored, append_frame
from tests.support.servers import server_options


class NoOwner:
    def settle(self) -> None: ...


def pending(request_id: int, *, segment_id: int = 1, count: int = 1) -> PendingAppend:
    return PendingAppend(NoOwner(), None, segment_id=segment_id, request_id=request_id, count=count)


def sent(pipeline: AppendPipeline) -> list[tuple[int, m.Message]]:
    """Return what leaves now, each with its request id."""
    return [(header.request_id, message) for header, message in map(decode, pipeline.settle())]


def test_acks_wait_for_their_turn_and_are_cumulative() -> None:
    """Behaviour 5: acks are cumulative and strictly increasing."""
    pipeline = AppendPipeline()
    first, second, third = pending(1, count=3), pending(4), pending(5)
    pipeline.add([first, second, third])
    assert pipeline.count == 5
    second.settled = third.settled = True
    assert sent(pipeline) == []
    first.settled = True
    ((request_id, ack),) = sent(pipeline)
    assert isinstance(ack, m.AppendAck)
    assert request_id == 5
    assert [(entry.request_id, entry.count) for entry in ack.entries] == [(1, 3), (4, 1), (5, 1)]
    assert pipeline.count == 0


def test_an_ack_never_outgrows_a_control_frame() -> None:
    pipeline = AppendPipeline()
    appends = [pending(1 + number) for number in range(2 * ENTRIES_PER_ACK_COUNT_MAX + 1)]
    pipeline.add(appends)
    for append in appends:
        append.settled = True
    frames = sent(pipeline)
    assert [request_id for request_id, _ in frames] == [
        ENTRIES_PER_ACK_COUNT_MAX,
        2 * ENTRIES_PER_ACK_COUNT_MAX,
        2 * ENTRIES_PER_ACK_COUNT_MAX + 1,
    ]


def test_the_ping_waits_with_its_error_for_earlier_appends() -> None:
    """Behaviour 6: a PING ahead would be answered before the client knew, and a later append taken."""
    pipeline = AppendPipeline()
    earlier = pending(1, segment_id=2)
    pipeline.add([earlier])
    pipeline.refuse(pending(2), SegmentSealedError("sealed"))
    assert sent(pipeline) == []
    pipeline.pong(1)  # an answer to nothing
    with pytest.raises(PipelineBrokenError):
        pipeline.check(1)
    earlier.settled = True
    (_, ack), (_, error), (barrier, ping) = sent(pipeline)
    assert isinstance(ack, m.AppendAck)
    assert isinstance(error, m.ErrorReply)
    assert ping == m.Ping()
    with pytest.raises(PipelineBrokenError):
        pipeline.check(1)
    pipeline.check(2)
    pipeline.pong(barrier)
    pipeline.check(1)


def test_what_fails_behind_a_failure_needs_no_ping_of_its_own() -> None:
    pipeline = AppendPipeline()
    pipeline.refuse(pending(1), SegmentSealedError("sealed"))
    frames = sent(pipeline)
    pipeline.refuse(pending(2), PipelineBrokenError("broken"))
    assert [type(message) for _, message in sent(pipeline)] == [m.ErrorReply]
    pipeline.pong(frames[-1][0])
    pipeline.check(1)


def test_an_error_told_after_its_pong_breaks_nothing_again() -> None:
    pipeline = AppendPipeline()
    pipeline.refuse(pending(1), SegmentSealedError("sealed"))
    barrier = sent(pipeline)[-1][0]
    earlier = pending(2, segment_id=2)
    pipeline.add([earlier])
    pipeline.refuse(pending(3), PipelineBrokenError("broken"))
    pipeline.pong(barrier)
    earlier.settled = True
    assert [type(message) for _, message in sent(pipeline)] == [m.AppendAck, m.ErrorReply]
    pipeline.check(1)


def test_an_append_that_is_admitted_as_failed_breaks_its_segment_at_once() -> None:
    pipeline = AppendPipeline()
    refused = pending(2)
    refused.fail(SegmentSealedError("sealed"))
    pipeline.add([pending(1), refused])
    with pytest.raises(PipelineBrokenError):
        pipeline.check(1)


def test_an_old_pong_does_not_mend_a_later_break() -> None:
    pipeline = AppendPipeline()
    pipeline.refuse(pending(1), SegmentSealedError("sealed"))
    first = sent(pipeline)[-1][0]
    pipeline.pong(first)
    pipeline.refuse(pending(2), SegmentSealedError("sealed"))
    second = sent(pipeline)[-1][0]
    assert second > first
    pipeline.pong(first)
    with pytest.raises(PipelineBrokenError):
        pipeline.check(1)
    pipeline.pong(second)
    pipeline.check(1)


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_pipeline_that_broke_skips_nothing(tmp_path: Path) -> None:
    """Behaviour 6: the typed error after all acks before it; what follows fails too; the connection lives."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
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
        files.stall()
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


def test_what_one_writer_was_refused_does_not_break_another() -> None:
    """Behaviour 3: a writer that sends again what it has stored hears so, whatever was refused to others on its road.

    With one pipeline for all, it heard PIPELINE_BROKEN, then SEALED for what came next, and took its stored events
    to the successors of the segment: they were there twice.
    """
    pipeline = AppendPipeline()
    refused = pending(1)
    refused.writer_number = 7
    pipeline.refuse(refused, SegmentSealedError("sealed"))
    pipeline.check(1, 8)
    pipeline.check(1)
    with pytest.raises(PipelineBrokenError):
        pipeline.check(1, 7)
