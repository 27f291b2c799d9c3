"""What lies between two cuts of a stream, segment by segment."""

from collections.abc import Collection
from typing import NamedTuple

from .cuts import HEAD, TAIL, Cut, CutPlace, StreamCut
from .epochs import StreamSegment
from .errors import CutInvalidError, CutTruncatedError, ErrorFacts, OffsetBeyondEndError
from .streams import StreamInfo


class SegmentSlice(NamedTuple):
    """The events of one segment from one place up to, not with, another."""

    segment_id: int
    start: tuple[int, int]
    end: tuple[int, int]


def resolve_cut(cut: Cut, stream: StreamInfo, *, known_ids: Collection[int] = ()) -> StreamCut:
    """Return the cut, checked, with the places that it has in the stream as it is now.

    Args:
        known_ids: the segments that the stream ever had.

    Raises:
        CutInvalidError: it is one of another stream, or does not cover each key exactly once.
        CutTruncatedError: it lies behind the truncation; says what is lost.
        OffsetBeyondEndError: it lies beyond the end.
    """
    if cut is HEAD:
        return stream.head()
    if cut is TAIL:
        return stream.tail()
    assert isinstance(cut, StreamCut)
    if cut.stream != stream.name:
        raise CutInvalidError(f"a cut of {cut.stream} cannot be used for {stream.name}")
    lineage = stream.lineage()
    strangers = [segment_id for segment_id, _ in cut.positions if segment_id not in lineage.by_id]
    if strangers:
        if all(segment_id in known_ids for segment_id in strangers):
            raise CutTruncatedError(
                ErrorFacts(
                    message=f"segments {strangers} of the cut are truncated: what lay between it and the head, "
                    f"{stream.head()}, is lost",
                    subject=stream.name,
                )
            )
        raise CutInvalidError(f"the cut names segments {sorted(cut.places)}, {stream.name} has {sorted(lineage.by_id)}")
    lineage.check_cut(cut.places)
    for segment_id, place in cut.positions:
        _check_place(lineage.by_id[segment_id], place, stream)
    return cut


def slices_between(start: StreamCut, end: StreamCut, stream: StreamInfo) -> list[SegmentSlice]:
    """Return what lies between two resolved cuts, of each segment that has some of it, older segments first."""
    lineage = stream.lineage()
    starts, ends = lineage.progress(start.places), lineage.progress(end.places)
    parts = sorted(stream.segments, key=lambda segment: (segment.epoch, segment.key_range.low))
    return [
        SegmentSlice(part.segment_id, starts[part.segment_id], ends[part.segment_id])
        for part in parts
        if starts[part.segment_id] < ends[part.segment_id]
    ]


def _check_place(segment: StreamSegment, place: CutPlace, stream: StreamInfo) -> None:
    offset, event_index = place
    if offset < segment.start_offset:
        raise CutTruncatedError(
            ErrorFacts(
                message=f"segment {segment.segment_id} is truncated: the cut is at {offset}, "
                f"{segment.start_offset - offset} bytes are lost",
                subject=stream.name,
                start_offset=segment.start_offset,
                length=segment.length,
            )
        )
    if offset > segment.length or (offset == segment.length and event_index):
        raise OffsetBeyondEndError(
            ErrorFacts(
                message=f"the cut is at {offset} in segment {segment.segment_id}",
                subject=stream.name,
                start_offset=segment.start_offset,
                length=segment.length,
            )
        )
