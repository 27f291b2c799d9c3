"""What lies between two cuts of a stream, segment by segment."""

from collections.abc import Iterable
from typing import NamedTuple

from millrace.client.errors import CutTruncatedError, OffsetBeyondEndError
from millrace.model.cut import HEAD, TAIL, Cut, StreamCut
from millrace.model.errors import CutInvalidError, ErrorFacts
from millrace.model.lineage import Lineage, StreamPart
from millrace.model.position import Position
from millrace.model.stream import StreamInfo


class SegmentSlice(NamedTuple):
    """The events of one segment from one position up to, not with, another."""

    segment_id: int
    start: Position
    end: Position


def resolve_cut(cut: Cut, stream: StreamInfo, *, known: Iterable[StreamPart] = ()) -> StreamCut:
    """Return the cut, checked, with the places that it has in the stream as it is now.

    Args:
        known: segments that the stream once had; its own need not be among them.

    Raises:
        CutInvalidError: it is one of another stream, or does not cover each key exactly once.
        CutTruncatedError: it lies behind the truncation; says what is lost, and where to go on.
        OffsetBeyondEndError: it lies beyond the end.
    """
    if cut is HEAD:
        return stream.head()
    if cut is TAIL:
        return stream.tail()
    assert isinstance(cut, StreamCut)
    if cut.stream != stream.name:
        raise CutInvalidError(f"a cut of {cut.stream} cannot be used for {stream.name}")
    listed = stream.lineage()
    lineage = Lineage[StreamPart]([*known, *stream.segments])  # of one in both, what is known now counts
    if not lineage.by_id.keys() >= cut.places.keys():
        raise CutInvalidError(f"the cut names segments {sorted(cut.places)}, {stream.name} has {sorted(listed.by_id)}")
    lineage.check_cut(cut.places)
    first = _first_left(cut, stream, lineage)
    if first != cut:
        raise CutTruncatedError(_loss(cut, stream, first), resume_at=first)
    for segment_id, (offset, event_index) in cut.positions:
        segment = listed.by_id[segment_id]
        if offset > segment.length or (offset == segment.length and event_index):
            raise OffsetBeyondEndError(
                ErrorFacts(
                    message=f"the cut is at {offset} in segment {segment_id}",
                    subject=stream.name,
                    start_offset=segment.start_offset,
                    length=segment.length,
                )
            )
    return cut


def slices_between(start: StreamCut, end: StreamCut, stream: StreamInfo) -> list[SegmentSlice]:
    """Return what lies between two resolved cuts, of each segment that has some of it, older segments first."""
    starts, ends = stream.progress(start), stream.progress(end)
    parts = sorted(stream.segments, key=lambda segment: (segment.epoch, segment.key_range.low))
    return [
        SegmentSlice(part.segment_id, starts[part.segment_id], ends[part.segment_id])
        for part in parts
        if starts[part.segment_id] < ends[part.segment_id]
    ]


def _first_left(cut: StreamCut, stream: StreamInfo, lineage: Lineage[StreamPart]) -> StreamCut:
    """Return the first cut that lies neither in front of a cut nor behind the truncation."""
    listed = stream.lineage()
    places: dict[int, Position] = {}
    for segment_id, place in cut.positions:
        segment = listed.by_id.get(segment_id)
        if segment is not None:
            places[segment_id] = max(place, Position(segment.start_offset, 0))
            continue
        # It was truncated away, so the head lies behind it: for its keys the head is the place. What shares keys with
        # it in the head shares none with what is left of the cut, which would then lie on both sides of the cut.
        gone = lineage.by_id[segment_id]
        places |= {each.segment_id: Position(each.start_offset, 0) for each in listed.head() if each.overlaps(gone)}
    return StreamCut.of(cut.stream, places)


def _loss(cut: StreamCut, stream: StreamInfo, first: StreamCut) -> ErrorFacts:
    """Say what was lost between a cut and the first one that is left."""
    listed = stream.lineage().by_id
    gone = [segment_id for segment_id, _ in cut.positions if segment_id not in listed]
    shortened = [
        (listed[segment_id], place.offset)
        for segment_id, place in cut.positions
        if segment_id in listed and place.offset < listed[segment_id].start_offset
    ]
    lost = [f"segments {gone} of the cut are truncated with all that they held"] if gone else []
    lost += [
        f"segment {segment.segment_id} is truncated: the cut is at {offset}, {segment.start_offset - offset} bytes are"
        " lost"
        for segment, offset in shortened
    ]
    only = shortened[0][0] if len(shortened) == 1 and not gone else None
    return ErrorFacts(
        message=f"{'; '.join(lost)}; start at HEAD, or at {first}, to go on with what is left",
        subject=stream.name,
        start_offset=None if only is None else only.start_offset,
        length=None if only is None else only.length,
    )
