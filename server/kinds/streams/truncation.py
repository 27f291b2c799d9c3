"""Truncation of a stream at a cut that was checked, in as few records as can name all its segments."""

from collections.abc import Mapping, Sequence
from typing import Final

from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.model.lineage import Lineage
from millrace.model.position import START, Position
from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.stream import Stream
from millrace.wire import messages as m

POSITIONS_PER_RECORD_COUNT_MAX: Final = 64 * SEGMENTS_PER_STREAM_MAX
"""Segments that one record of a truncation names."""


async def truncate_at(container: SegmentContainer, stream: Stream, positions: Sequence[m.SavedPosition]) -> None:
    """Move the start of a stream to a cut, unless it is there already, or later."""
    lineage = Lineage(stream.parts)

    def end_of(segment_id: int) -> Position:
        return Position(container.segment(segment_id).length, 0)

    cut = {segment_id: Position(offset, event_index) for segment_id, offset, event_index in positions}
    members = lineage.earliest(cut, start=START, end_of=end_of)
    before = {segment_id: end_of(segment_id) for segment_id in sorted(lineage.before(members))}
    everything = members | before
    if any(place > container.segment(segment_id).start for segment_id, place in everything.items()):
        await _truncate_oldest(container, stream, before, count_max=POSITIONS_PER_RECORD_COUNT_MAX - len(members))
        left = {each: place for each, place in everything.items() if stream.part(each) is not None}
        await _move_start(container, stream, left)


async def _truncate_oldest(
    container: SegmentContainer, stream: Stream, before: Mapping[int, Position], *, count_max: int
) -> None:
    """Truncate segments that are wholly before a cut, the oldest first, until only so many are left.

    Each record moves the start to a cut, too: a crash leaves an earlier truncation.
    """
    while True:
        oldest = [part for part in stream.replaced_parts(0) if part.segment_id in before]
        if len(oldest) <= count_max:
            return
        # Half of a record is left to the segments that replaced them.
        last = oldest[count_max // 2].sealed_epoch - 1
        if last < oldest[0].sealed_epoch:
            last = oldest[0].sealed_epoch
        ends = {part.segment_id: before[part.segment_id] for part in oldest if part.sealed_epoch <= last}
        # With what replaced them, all of them are deleted, and every key is still covered.
        later = (*stream.replaced_parts(last + 1), *stream.open_parts)
        starts = {part.segment_id: START for part in later if 0 < part.epoch <= last}
        await _move_start(container, stream, ends | starts)
        if any(stream.part(segment_id) is not None for segment_id in ends):
            return  # nothing known replaced them


async def _move_start(container: SegmentContainer, stream: Stream, places: Mapping[int, Position]) -> None:
    positions = [m.SavedPosition(segment_id, *place) for segment_id, place in places.items()]
    await container.decide(m.StreamStartMoved(stream.stream_id, positions), stream.name)
