"""Checks that a cut fits a stream, and that a stream may save it under a name."""

from collections.abc import Sequence
from typing import Final

from millrace.model.errors import CutInvalidError as NoCutError
from millrace.model.lineage import Lineage
from millrace.model.position import Position
from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.stream import Stream
from millrace.server.errors import (
    CutInvalidError,
    CutTruncatedError,
    InvalidArgumentError,
    OffsetBeyondEndError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from millrace.wire import messages as m
from millrace.wire.limits import KIB

from .boundaries import check_border

CUT_NAME_SIZE_BYTES_MAX: Final = 255
CUTS_PER_STREAM_COUNT_MAX: Final = 1000
POSITIONS_PER_STREAM_COUNT_MAX: Final = 32 * KIB
"""Positions of all saved cuts of a stream: a list of the cuts must fit one frame."""


def check_cut(container: SegmentContainer, stream: Stream, positions: Sequence[m.SavedPosition]) -> None:
    """Check that a cut fits a stream.

    Raises:
        CutInvalidError: it does not cover the key space exactly once.
        CutTruncatedError: it names a segment that was truncated away.
        OffsetBeyondEndError: a position is beyond the end of its segment.
    """
    for segment_id, offset, _ in positions:
        if stream.part(segment_id) is None:
            if any(segment_id == each for epoch in stream.epochs for each, _, _ in epoch.created):
                raise CutTruncatedError(f"segment {segment_id} of the cut was truncated", subject=stream.name)
            raise CutInvalidError(f"segment {segment_id} does not belong to the stream", subject=stream.name)
        segment = container.segment(segment_id)
        if offset > segment.length:
            raise OffsetBeyondEndError(
                f"the cut is at {offset} in segment {segment_id}, which ends at {segment.length}",
                subject=stream.name,
                start_offset=segment.start_offset,
                length=segment.length,
            )
    segment_ids = [position.segment_id for position in positions]
    try:
        Lineage(stream.parts_around(segment_ids)).check_cut(segment_ids)
    except NoCutError as error:
        raise CutInvalidError(str(error), subject=stream.name) from None


def check_retained(container: SegmentContainer, stream: Stream, positions: Sequence[m.SavedPosition]) -> None:
    """Raise like `check_cut`, and CutTruncatedError if some events after the cut were truncated."""
    check_cut(container, stream, positions)
    for segment_id, offset, event_index in positions:
        segment = container.segment(segment_id)
        if (offset, event_index) < (segment.start_offset, segment.start_index):
            lost_bytes = segment.start_offset - offset
            lost = f"{lost_bytes} bytes" if lost_bytes else f"{segment.start_index - event_index} events"
            raise CutTruncatedError(
                f"segment {segment_id} is truncated: the cut is at {offset}.{event_index}, {lost} are lost",
                subject=stream.name,
                start_offset=segment.start_offset,
                start_index=segment.start_index,
                length=segment.length,
            )


def check_room_beside(container: SegmentContainer, stream: Stream, cuts: Sequence[m.NamedCut]) -> None:
    """Raise InvalidArgumentError if a stream has no room for these cuts beside its others, those on their way included.

    Cuts that they replace are not counted.
    """
    new = {(cut.kind, cut.name) for cut in cuts}
    counts = [len(cut.positions) for cut in cuts]
    counts += [len(cut.positions) for key, cut in stream.cuts.items() if key not in new]
    counts += [
        len(cut.positions)
        for record in container.in_flight.records()
        if isinstance(record, m.CutsSaved) and record.stream_id == stream.stream_id
        for cut in record.cuts
    ]
    counts += [
        len(cursor.positions)
        for record in container.in_flight.records()
        if isinstance(record, m.TransactionCommitted)
        for cursor in record.cursors
        if cursor.stream_id == stream.stream_id
    ]
    check_room_for_cuts(counts, stream.name)


async def check_borders(container: SegmentContainer, positions: Sequence[m.SavedPosition]) -> list[m.SavedPosition]:
    """Return positions as readers name them, see `check_border`; unchanged where they are deleted before it is known.

    Safe to cancel.

    Raises:
        CutInvalidError: a position is not between two events.
        StorageError: tier 2 failed.
    """
    found = []
    for segment_id, offset, event_index in positions:
        place = Position(offset, event_index)
        try:
            segment = container.segment(segment_id)
            if offset >= segment.start_offset:
                place = await check_border(container, segment, offset=offset, event_index=event_index)
        except (SegmentNotFoundError, SegmentTruncatedError):
            pass
        found.append(m.SavedPosition(segment_id, *place))
    return found


def check_cut_keys(keys: Sequence[tuple[int, str]], stream_name: str) -> None:
    """Raise InvalidArgumentError if a kind or a name of a cut is none, or if two are the same."""
    for kind, name in keys:
        if not name.isprintable() or not 1 <= len(name.encode()) <= CUT_NAME_SIZE_BYTES_MAX:
            raise InvalidArgumentError(
                f"the name of a cut is 1 to {CUT_NAME_SIZE_BYTES_MAX} bytes of printable text, not {name[:80]!r}",
                subject=stream_name,
            )
        if kind not in (m.CutKind.BOOKMARK, m.CutKind.CURSOR):
            raise InvalidArgumentError(f"{kind} is not a kind of cut", subject=stream_name)
    if len(set(keys)) < len(keys):
        raise InvalidArgumentError("a cut is given twice under one name", subject=stream_name)


def check_room_for_cuts(position_counts: Sequence[int], stream_name: str) -> None:
    """Raise InvalidArgumentError if cuts with so many positions each are more than a list of them can hold."""
    if len(position_counts) > CUTS_PER_STREAM_COUNT_MAX:
        raise InvalidArgumentError(f"a stream has at most {CUTS_PER_STREAM_COUNT_MAX} saved cuts", subject=stream_name)
    if sum(position_counts) > POSITIONS_PER_STREAM_COUNT_MAX:
        raise InvalidArgumentError(
            f"the saved cuts of a stream name at most {POSITIONS_PER_STREAM_COUNT_MAX} segments, all together",
            subject=stream_name,
        )
