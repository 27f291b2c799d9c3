import pytest

from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.sequence_row import SequenceRow
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.sequences import (
    PIECES_COUNT_MAX,
    SequenceRefusal,
    SequenceView,
    StreamProgress,
    check_piece_count,
    check_plain,
    check_sequenced,
    check_told,
    refusal_of,
)
from millrace.server.errors import (
    InvalidArgumentError,
    SequencesMixedError,
    SequencesRefusedError,
    ThrottledError,
)
from millrace.wire.append_run import Sequences
from tests.support.tables import table

HALF = KEY_SPACE // 2
LEFT = Segment(segment_id=7, name="shop/orders/0", created_us=0, stream_id=3, keys=KeyRange(0, HALF))
WHOLE = Segment(segment_id=9, name="shop/orders/1", created_us=0, stream_id=3, keys=KeyRange(0, KEY_SPACE))
RAW = Segment(segment_id=5, name="raw/a", created_us=0)


def progress_of(row: SequenceRow) -> StreamProgress:
    return StreamProgress(3, SequenceView(row))


def test_what_is_admitted_is_not_durable() -> None:
    progress = progress_of(SequenceRow())

    progress.admit(LEFT, Sequences(4, 5, 2))

    assert progress.admitted.row == SequenceRow(1, [(0, 5), (HALF, -1)])
    assert progress.durable.row == SequenceRow()
    progress.admit_as_durable()
    assert progress.admitted.row == SequenceRow()


@table(("first", "is_refused"), [(4, True), (5, True), (6, False), (7, False)])
def test_a_block_begins_above_the_lowest_that_is_stored_in_its_range(first: int, is_refused: bool) -> None:
    """A merged segment has some places that are further than others: those were sent before, and are left out."""
    progress = progress_of(SequenceRow(2, [(0, 5), (HALF, 9)]))

    refusal = refusal_of(progress, WHOLE, Sequences(first, 20, 3))

    assert refusal == (SequenceRefusal(9, first, 5) if is_refused else None)


def test_a_refusal_lasts_until_a_reset() -> None:
    progress = progress_of(SequenceRow(2, [(0, 5), (HALF, 9)]))
    progress.admitted.refusal = SequenceRefusal(9, 4, 5)

    with pytest.raises(SequencesRefusedError, match="sequence 4 was sent to segment 9, where everything up to 5"):
        check_sequenced(progress, LEFT, subject="w")
    with pytest.raises(SequencesRefusedError):
        check_told(progress, 6, subject="w")
    progress.admitted.reset(8)

    assert check_sequenced(progress, LEFT, subject="w") is progress
    assert progress.admitted.row == SequenceRow(8)


def test_a_row_that_is_too_large_takes_only_what_lets_it_shrink() -> None:
    pieces = [(place * 1000, 10 + place % 2) for place in range(PIECES_COUNT_MAX + 1)]
    progress = progress_of(SequenceRow(5, pieces))

    with pytest.raises(ThrottledError, match=f"in {len(pieces)} pieces") as caught:
        check_piece_count(progress, Sequences(12, 12, 6), subject="w")
    assert caught.value.retriable
    check_piece_count(progress, Sequences(12, 12, 12), subject="w")
    progress.admit(WHOLE, Sequences(12, 12, 12))
    check_piece_count(progress, Sequences(14, 14, 13), subject="w")
    assert progress.admitted.row.piece_count == 1


def test_a_row_is_as_large_as_it_is_when_it_is_joined() -> None:
    """Marks that what is stored has reached are not dropped with each block, and throttle nobody."""
    pieces = [(place * 1000, 10 + place % 2) for place in range(PIECES_COUNT_MAX + 1)]
    progress = progress_of(SequenceRow(5, pieces))
    assert progress.admitted.row.raise_through(12)

    check_piece_count(progress, Sequences(14, 14, 12), subject="w")

    assert progress.admitted.row.piece_count == 1


def test_sequences_are_for_writers_that_were_opened_for_the_stream() -> None:
    with pytest.raises(SequencesMixedError, match="named writer"):
        check_sequenced(None, LEFT, subject="w")
    with pytest.raises(SequencesMixedError, match="named writer"):
        check_sequenced(progress_of(SequenceRow()), RAW, subject="w")
    with pytest.raises(SequencesMixedError, match="not opened for the stream"):
        check_told(None, 0, subject="w")


def test_events_with_and_without_sequences_are_not_mixed() -> None:
    progress = progress_of(SequenceRow())
    check_plain(progress, subject="w")
    progress.admit(LEFT, None)
    check_plain(progress, subject="w")
    with pytest.raises(SequencesMixedError, match="have no sequences"):
        check_sequenced(progress, LEFT, subject="w")

    progress = progress_of(SequenceRow(3))
    with pytest.raises(SequencesMixedError, match="have sequences"):
        check_plain(progress, subject="w")


@table("stored_below", [-1, 11, 1 << 62])
def test_no_more_is_stored_than_was_sent(stored_below: int) -> None:
    progress = progress_of(SequenceRow(2, [(0, 5), (HALF, 9)]))

    with pytest.raises(InvalidArgumentError, match="the highest that is stored is 9"):
        check_told(progress, stored_below, subject="w")
    assert check_told(progress, 10, subject="w") is progress.admitted


def test_a_block_of_a_segment_that_damage_has_made_unknown_raises_nothing() -> None:
    view = SequenceView(SequenceRow(2))

    view.store(RAW, Sequences(4, 5, 4))

    assert view.row == SequenceRow(2)
