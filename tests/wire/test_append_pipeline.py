"""Outcomes of appends leave in order, and a failed append holds up what was sent after it, by the PING barrier."""

import pytest

from millrace.wire import messages as m
from millrace.wire.append_pipeline import BROKEN_COUNT_MAX, ENTRIES_PER_ACK_COUNT_MAX, AppendPipeline, TakenAppends
from millrace.wire.errors import ProtocolError
from millrace.wire.framing import decode

from .loopback import refusal, taken


def refused(request_id: int, *, segment_id: int = 1, writer_number: int = 0) -> TakenAppends:
    return taken(request_id, segment_id=segment_id, writer_number=writer_number, refused=True)


def new_pipeline() -> AppendPipeline:
    return AppendPipeline(refusal)


def sent(pipeline: AppendPipeline) -> list[tuple[int, m.Message]]:
    """Return what leaves now, each with its request id."""
    return [(header.request_id, message) for header, message in map(decode, pipeline.take_frames())]


def test_acks_wait_for_their_turn_and_are_cumulative() -> None:
    """Behaviour 5: acks are cumulative and strictly increasing."""
    pipeline = new_pipeline()
    first, second, third = taken(1, count=3), taken(4), taken(5)
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
    pipeline = new_pipeline()
    appends = [taken(1 + number) for number in range(2 * ENTRIES_PER_ACK_COUNT_MAX + 1)]
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
    pipeline = new_pipeline()
    earlier = taken(1, segment_id=2)
    pipeline.add([earlier])
    pipeline.add([refused(2)])
    assert sent(pipeline) == []
    pipeline.pong(1)  # an answer to nothing
    assert pipeline.is_broken(1, 0)
    earlier.settled = True
    (_, ack), (_, error), (barrier, ping) = sent(pipeline)
    assert isinstance(ack, m.AppendAck)
    assert isinstance(error, m.ErrorReply)
    assert ping == m.Ping()
    assert pipeline.is_broken(1, 0)
    assert not pipeline.is_broken(2, 0)
    pipeline.pong(barrier)
    assert not pipeline.is_broken(1, 0)


def test_what_fails_after_a_failure_needs_no_ping_of_its_own() -> None:
    pipeline = new_pipeline()
    pipeline.add([refused(1)])
    frames = sent(pipeline)
    pipeline.add([refused(2)])
    assert [type(message) for _, message in sent(pipeline)] == [m.ErrorReply]
    pipeline.pong(frames[-1][0])
    assert not pipeline.is_broken(1, 0)


def test_an_error_told_after_its_pong_breaks_nothing_again() -> None:
    pipeline = new_pipeline()
    pipeline.add([refused(1)])
    barrier = sent(pipeline)[-1][0]
    earlier = taken(2, segment_id=2)
    pipeline.add([earlier])
    pipeline.add([refused(3)])
    pipeline.pong(barrier)
    earlier.settled = True
    assert [type(message) for _, message in sent(pipeline)] == [m.AppendAck, m.ErrorReply]
    assert not pipeline.is_broken(1, 0)


def test_an_append_that_is_admitted_as_failed_breaks_its_segment_at_once() -> None:
    pipeline = new_pipeline()
    pipeline.add([taken(1), refused(2)])
    assert pipeline.is_broken(1, 0)


def test_an_old_pong_does_not_mend_a_later_break() -> None:
    pipeline = new_pipeline()
    pipeline.add([refused(1)])
    first = sent(pipeline)[-1][0]
    pipeline.pong(first)
    pipeline.add([refused(2)])
    second = sent(pipeline)[-1][0]
    assert second > first
    pipeline.pong(first)
    assert pipeline.is_broken(1, 0)
    pipeline.pong(second)
    assert not pipeline.is_broken(1, 0)


def test_what_one_writer_was_refused_does_not_break_another() -> None:
    """Behaviour 3: a writer that sends again what it has stored hears so, whatever was refused to others on its way.

    With one pipeline for all, it heard PIPELINE_BROKEN, then SEALED for what came next, and took its stored events
    to the successors of the segment: they were there twice.
    """
    pipeline = new_pipeline()
    pipeline.add([refused(1, writer_number=7)])
    assert not pipeline.is_broken(1, 8)
    assert not pipeline.is_broken(1, 0)
    assert pipeline.is_broken(1, 7)


def test_a_client_that_ignores_its_failures_is_cut() -> None:
    """Behaviour 51: what a peer costs is bounded; each failure is remembered until its PONG."""
    pipeline = new_pipeline()
    pipeline.add([refused(1 + number, segment_id=1 + number) for number in range(BROKEN_COUNT_MAX)])
    with pytest.raises(ProtocolError, match="no PONG"):
        pipeline.add([refused(BROKEN_COUNT_MAX + 1, segment_id=BROKEN_COUNT_MAX + 1)])
