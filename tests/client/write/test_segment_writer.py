from itertools import product

import pytest

from millrace.client.errors import (
    ConnectionLostError,
    EventNumberError,
    OutcomeUnknownError,
    PipelineBrokenError,
    SegmentNotFoundError,
    SegmentSealedError,
    ThrottledError,
    WriterExpiredError,
    WriterFencedError,
)
from millrace.client.write.accumulator import Accumulator
from millrace.client.write.events import Block
from millrace.client.write.segment_writer import TRANSITIONS, SegmentWriter, SenderEvent, SenderState
from millrace.model.compression import Compression
from millrace.model.errors import ErrorFacts
from tests.support.tables import table

THROTTLED = ThrottledError(ErrorFacts(message="full", retriable=True))
LOST = ConnectionLostError("lost")
SEALED = SegmentSealedError("sealed")
GONE = SegmentNotFoundError("gone")
FENCED = WriterFencedError("fenced")
EXPIRED = WriterExpiredError("expired")
GAP = EventNumberError("gap")


def block(number: int, count: int = 1) -> Block:
    return Block(bytearray(b"x"), [], number, count, 1)


def sender(count: int = 3, *, sent: int = 3) -> tuple[SegmentWriter, list[Block]]:
    """A segment writer with blocks 1, 2, ... of which the first ones are in flight."""
    made = SegmentWriter(9, Accumulator(last_event_number=0, compression=Compression.NONE))
    blocks = [block(number) for number in range(1, count + 1)]
    for each in blocks:
        made.add(each)
    for each in blocks[:sent]:
        assert made.next_block() is each
        made.sent()
    return made, blocks


ERRORS = {SenderState.INTERRUPTED: THROTTLED, SenderState.REJECTED: SEALED, SenderState.STOPPED: FENCED}


def brought_to(state: SenderState, *, answered: bool) -> tuple[SegmentWriter, list[Block]]:
    """A segment writer in that state, and its blocks in flight: two, unless all are answered."""
    made, blocks = sender()
    first, *others = blocks
    if state is SenderState.SENDING:
        made.acked(first)
    else:
        made.failed(first, ERRORS[state])
    if answered:
        for each in others:
            if state is SenderState.SENDING:
                made.acked(each)
            else:
                made.failed(each, PipelineBrokenError("broken"))
        others = []
    assert made.state is state
    assert made.answered_state is (state if answered else None)
    return made, others


BROUGHT = list(product(SenderState, [False, True]))
# What is rejected after an interruption is an interruption, too: that event does not exist.
STEPS = [
    (state, answered, event)
    for (state, answered), event in product(BROUGHT, SenderEvent)
    if (state, event) != (SenderState.INTERRUPTED, SenderEvent.REJECT)
]


@table(("state", "answered", "event"), STEPS)
def test_every_state_takes_the_events_of_the_table_and_no_other(
    state: SenderState, event: SenderEvent, *, answered: bool
) -> None:
    made, blocks = brought_to(state, answered=answered)
    # Where nothing is in flight, no answer can come; while something is, nothing is resumed.
    is_legal = event is SenderEvent.STOP or (event is SenderEvent.RESUME) == answered
    following = TRANSITIONS[state].get(event) if is_legal else None
    if following is None:
        with pytest.raises(AssertionError):
            take(made, event, blocks)
        assert made.state is state
        return
    take(made, event, blocks)
    assert made.state is following
    assert made.answered_state is (following if answered else None)


def take(made: SegmentWriter, event: SenderEvent, blocks: list[Block]) -> None:
    if event is SenderEvent.RESUME:
        made.resume()
    elif event is SenderEvent.STOP:
        made.stop()
    else:
        error = {SenderEvent.INTERRUPT: THROTTLED, SenderEvent.REJECT: SEALED, SenderEvent.FAIL: FENCED}[event]
        made.failed(blocks[0] if blocks else block(9), error)


@table(("state", "answered"), BROUGHT)
def test_an_ack_changes_no_state(state: SenderState, *, answered: bool) -> None:
    made, blocks = brought_to(state, answered=answered)
    for each in blocks:
        assert made.answered_state is None
        made.acked(each)
    assert made.answered_state is state


def test_every_state_can_be_left_and_reached() -> None:
    reached = {following for row in TRANSITIONS.values() for following in row.values()}
    assert reached == set(TRANSITIONS) == set(SenderState)
    assert all(set(row.values()) - {state} for state, row in TRANSITIONS.items() if state is not SenderState.STOPPED)


def test_what_is_held_is_removed_only_once_all_is_answered() -> None:
    made, blocks = sender(2, sent=1)
    made.stop()
    with pytest.raises(AssertionError):
        made.remove_all()
    made.failed(blocks[0], LOST)
    assert made.remove_all() == blocks


def test_a_segment_refuses_until_it_stores_what_was_sent_after_a_rejection() -> None:
    made, blocks = sender(3, sent=3)
    made.acked(blocks[0])  # stored before it was sealed
    made.failed(blocks[1], SEALED)
    made.failed(blocks[2], SEALED)
    assert made.is_refusing
    made.resume()
    made.sent()
    assert made.is_refusing
    made.acked(blocks[1])
    assert not made.is_refusing


def test_a_rejection_says_nothing_of_a_block_before_it_whose_outcome_is_unknown() -> None:
    """That may have been stored before the segment was sealed: it is sent again, and not moved."""
    made, blocks = sender(2, sent=2)
    made.failed(blocks[0], OutcomeUnknownError("unknown"))
    made.failed(blocks[1], SEALED)
    assert (made.answered_state, made.is_drained) == (SenderState.INTERRUPTED, False)
    made.resume()
    made.sent()
    made.sent()
    made.acked(blocks[0])
    made.failed(blocks[1], SEALED)
    assert (made.answered_state, made.is_drained) == (SenderState.REJECTED, True)


def test_what_was_sent_after_a_rejected_block_is_not_stored_though_its_answer_is_lost() -> None:
    made, blocks = sender(2, sent=2)
    made.failed(blocks[0], SEALED)
    made.failed(blocks[1], LOST)
    assert made.answered_state is SenderState.REJECTED
    assert made.is_drained


def test_a_block_before_one_that_is_stored_is_stored() -> None:
    """Behaviour 88: its outcome was said to be unknown, and it resolves before those that were sent after it."""
    made, blocks = sender(4, sent=4)
    made.failed(blocks[0], OutcomeUnknownError("unknown"))
    made.failed(blocks[1], OutcomeUnknownError("unknown"))
    assert made.acked(blocks[2]) == blocks[:3]
    made.failed(blocks[3], LOST)
    assert made.answered_state is SenderState.INTERRUPTED
    made.resume()
    assert made.next_block() is blocks[3]


def test_the_lowest_sequence_is_found_wherever_it_is() -> None:
    """Behaviour 66: gathered, queued, in flight, answered with an error, recalled."""
    made, _ = sender(0, sent=0)
    assert made.first_sequence is None
    made.accumulator.sequences.append(50)
    assert made.first_sequence == 50
    blocks = [Block(bytearray(b"x"), [], number, 1, 1, sequences=[10 * number]) for number in (1, 2, 3, 4)]
    for each in blocks:
        made.add(each)
    assert made.first_sequence == 10
    for _ in range(3):
        made.sent()
    made.acked(blocks[0])
    assert made.first_sequence == 20
    made.failed(blocks[1], THROTTLED)
    assert made.first_sequence == 20
    made.failed(blocks[2], THROTTLED)
    assert made.first_sequence == 20, "it is back in the queue"


def test_what_was_recalled_is_sent_again_in_order_before_what_was_queued() -> None:
    made, blocks = sender(4, sent=3)
    made.acked(blocks[0])
    made.failed(blocks[2], LOST)
    assert made.next_block() is None
    made.failed(blocks[1], LOST)
    assert made.answered_state is SenderState.INTERRUPTED
    assert made.next_block() is None
    made.resume()
    again = []
    while (each := made.next_block()) is not None:
        again.append(each)
        made.sent()
    assert again == blocks[1:]
    assert made.last_acked_number == 1


def test_the_first_error_says_why_blocks_are_recalled() -> None:
    """Those that follow from it would not pass by themselves."""
    made, blocks = sender()
    for each, error in zip(blocks, [THROTTLED, GAP, GAP], strict=True):
        made.failed(each, error)
    assert (made.answered_state, made.interruption) == (SenderState.INTERRUPTED, THROTTLED)


def test_a_gap_that_follows_from_nothing_ends_the_writer() -> None:
    made, blocks = sender(1, sent=1)
    made.failed(blocks[0], GAP)
    assert made.answered_state is SenderState.STOPPED
    assert blocks[0].error is GAP


def test_a_sealed_segment_leaves_no_doubt() -> None:
    made, blocks = sender()
    for each in blocks:
        made.failed(each, LOST)
    assert made.has_unknown
    assert not made.is_drained
    made.resume()
    for _ in blocks:
        made.sent()
    made.acked(blocks[0])
    assert made.has_unknown
    for each in blocks[1:]:
        made.failed(each, SEALED)
    assert made.answered_state is SenderState.REJECTED
    assert made.is_drained
    assert not made.has_unknown
    made.stop()
    assert made.remove_all() == blocks[1:]
    assert made.is_idle


@pytest.mark.parametrize("lost_before", [False, True])
def test_a_deleted_segment_is_replaced_unless_something_may_have_been_stored(*, lost_before: bool) -> None:
    made, blocks = sender(1, sent=1)
    if lost_before:
        made.failed(blocks[0], LOST)
        made.resume()
        made.sent()
    made.failed(blocks[0], GONE)
    if lost_before:
        assert made.answered_state is SenderState.STOPPED
        assert isinstance(blocks[0].error, OutcomeUnknownError)
    else:
        assert made.answered_state is SenderState.REJECTED


def test_only_what_was_sent_before_is_unknown_when_the_writer_expired() -> None:
    made, blocks = sender(2, sent=1)
    made.failed(blocks[0], LOST)
    made.resume()
    made.sent()
    made.failed(blocks[0], EXPIRED)
    assert made.remove_all() == blocks
    assert isinstance(made.reason(blocks[0], EXPIRED), OutcomeUnknownError)
    assert made.reason(blocks[1], EXPIRED) is EXPIRED


def test_what_is_in_flight_when_the_writer_stops_ends_with_its_own_answer() -> None:
    made, blocks = sender(4, sent=2)
    made.stop()
    made.acked(blocks[0])
    made.failed(blocks[1], LOST)
    assert made.answered_state is SenderState.STOPPED
    assert made.remove_all() == blocks[1:]


def test_an_idle_segment_writer_is_drained_whatever_its_segment_says() -> None:
    made, _ = sender(0, sent=0)
    assert made.is_idle
    assert made.is_drained


def test_an_event_is_held_until_its_block_is_stored_or_removed() -> None:
    made, blocks = sender(3, sent=2)
    assert made.holds(1)
    made.acked(blocks[0])
    assert not made.holds(1)
    assert made.holds(2)
    made.failed(blocks[1], THROTTLED)
    assert made.holds(2)
    assert made.holds(3)
    made.stop()
    assert made.remove_all() == blocks[1:]
    assert not made.holds(3)
