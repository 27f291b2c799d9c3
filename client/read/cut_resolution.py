"""Finds cuts of a stream by counting events or bytes, and measures the distance of two cuts.

A search starts at a cut and advances in every segment to its place there or to the end. When all segments that were
replaced together are at their ends, it continues in their successors. So the result is a cut.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Final

from millrace.client.errors import CutTruncatedError, OffsetBeyondEndError
from millrace.client.transport.channel import Channel
from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES
from millrace.model.block_scan import fields_at
from millrace.model.cut import CHOICE_FORMS, HEAD, TAIL, Cut, StreamCut
from millrace.model.errors import CutInvalidError, ErrorFacts, InvalidArgumentError
from millrace.model.event import Event, EventPosition
from millrace.model.event_block import unpack_block
from millrace.model.lineage import Lineage, StreamPart
from millrace.model.position import EVENT_INDEX_MAX, START_MARK, Mark, Position
from millrace.model.shares import shares_of
from millrace.model.shown import short
from millrace.model.stream import StreamInfo, StreamSegment
from millrace.wire import messages as m
from millrace.wire.limits import KIB

from .segment_scan import SegmentScan

FETCH_SIZE_BYTES: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of two cuts; negative if the second is before the first.

    Attributes:
        size_bytes: of whole blocks: a block that a cut goes through counts as if the cut were before it.
    """

    size_bytes: int
    events: int


def resolve_cut(cut: Cut, stream: StreamInfo, *, known: Iterable[StreamPart] = (), key: str | None = None) -> StreamCut:
    """Check a cut, and return its places in the current stream.

    Args:
        known: segments that the stream once had; the current ones need not be included.
        key: the key to read: in segments without it, a cut before the truncation is moved to the start.

    Raises:
        CutInvalidError: it belongs to another stream, or does not cover each key exactly once.
        CutTruncatedError: it is before the truncation; names the loss, and where to resume.
        OffsetBeyondEndError: it is beyond the end.
    """
    if cut is HEAD:
        return stream.head()
    if cut is TAIL:
        return stream.tail()
    if not isinstance(cut, StreamCut):
        raise CutInvalidError(f"{short(cut)} is not a place in a stream: write {CHOICE_FORMS}")
    if cut.stream != stream.name:
        raise CutInvalidError(f"a cut of {cut.stream} cannot be used for {stream.name}")
    listed = stream.lineage()
    lineage = Lineage[StreamPart]([*known, *stream.segments])  # for a segment in both, the current state counts
    if not lineage.by_id.keys() >= cut.places.keys():
        raise CutInvalidError(
            f"the cut names segments {sorted(cut.places)}, but {stream.name} has {sorted(listed.by_id)}"
        )
    lineage.check_cut(cut.places)
    first = _earliest_readable(cut, stream, lineage)
    if _place_for(key, first, lineage) != _place_for(key, cut, lineage):
        raise CutTruncatedError(_loss(cut, stream, first), resume_at=first)
    for segment_id, (offset, event_index) in first.positions:
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
    return first


async def cut_after_events(channel: Channel, stream: StreamInfo, *, start: StreamCut, count: int) -> StreamCut:
    """Return the cut `count` events after another, or the tail if that comes first. Cancelling is safe."""
    count = index(count)
    if count < 0:
        raise InvalidArgumentError(f"{count} events cannot be counted")

    async def advance(segment_id: int, mark: Mark, end: Mark, share: int) -> Mark:
        return await SegmentScan(channel, segment_id).after_events(start=mark, end=end, count=share)

    return await _cut_after(
        channel, stream, start=start, amount=count, between=lambda a, b: b.events - a.events, advance=advance
    )


async def cut_after_bytes(channel: Channel, stream: StreamInfo, *, start: StreamCut, size_bytes: int) -> StreamCut:
    """Return a cut at most so many bytes after another, at borders of blocks. Cancelling is safe."""
    size_bytes = index(size_bytes)
    if size_bytes < 0:
        raise InvalidArgumentError(f"{size_bytes} bytes cannot be counted")

    async def advance(segment_id: int, mark: Mark, end: Mark, share: int) -> Mark:
        return await SegmentScan(channel, segment_id).after_bytes(start=mark, end=end, size_bytes=share)

    return await _cut_after(
        channel, stream, start=start, amount=size_bytes, between=lambda a, b: b.offset - a.offset, advance=advance
    )


async def distance(channel: Channel, stream: StreamInfo, *, start: StreamCut, end: StreamCut) -> Distance:
    """Return the distance of two resolved cuts. Cancelling is safe."""
    lineage = stream.lineage()
    starts, ends = stream.progress(start), stream.progress(end)
    differing = [segment_id for segment_id in starts if starts[segment_id] != ends[segment_id]]
    marks = await asyncio.gather(
        *(
            SegmentScan(channel, segment_id).mark(position=places[segment_id], tail=lineage.by_id[segment_id].end)
            for segment_id in differing
            for places in (starts, ends)
        )
    )
    pairs = list(zip(marks[::2], marks[1::2], strict=True))
    return Distance(
        size_bytes=sum(after.offset - before.offset for before, after in pairs),
        events=sum(after.events - before.events for before, after in pairs),
    )


async def fetch_event(channel: Channel, position: EventPosition) -> Event:
    """Return the event at a position. Cancelling is safe.

    Raises:
        SegmentNotFoundError, SegmentTruncatedError: it was truncated.
        OffsetBeyondEndError: the position is beyond the end.
        BlockCorruptError: no block starts there.
        CutInvalidError: its block has fewer events.
        InvalidArgumentError: it is not a position.
    """
    if not isinstance(position, tuple) or len(position) != 3 or not all(isinstance(each, int) for each in position):
        raise InvalidArgumentError(f"the place of an event is an EventPosition, not {position!r:.120}")
    segment_id, offset, event_index = position
    data = bytearray()
    wanted = BLOCK_HEADER_SIZE_BYTES
    while len(data) < wanted:
        size_max = max(FETCH_SIZE_BYTES, wanted - len(data))
        piece = await channel.read(
            m.Read(
                segment_id=segment_id,
                offset=offset + len(data),
                size_max=size_max,
                wait_ms=0,
                event_index=0 if data else min(max(event_index, 0), EVENT_INDEX_MAX),
            )
        )
        if not len(piece.data):
            raise OffsetBeyondEndError(f"segment {segment_id} has no block at {offset}")
        data += piece.data
        if len(data) >= BLOCK_HEADER_SIZE_BYTES:
            wanted = fields_at(data).size
    block = unpack_block(memoryview(data)[:wanted])
    count = block.fields.event_count
    if not 0 <= event_index < count:
        raise CutInvalidError(f"segment {segment_id}: the block at offset {offset} has {count} events")
    return block.events(segment_id=segment_id, offset=offset)[event_index]


async def _cut_after(
    channel: Channel,
    stream: StreamInfo,
    *,
    start: StreamCut,
    amount: int,
    between: Callable[[Mark, Mark], int],
    advance: Callable[[int, Mark, Mark, int], Awaitable[Mark]],
) -> StreamCut:
    """Return the cut an amount after another.

    Segments that are replaced together are counted whole, wave by wave; in the last wave, the rest of the amount is
    divided in proportion to the content of each segment.
    """
    lineage = stream.lineage()
    ids = [segment_id for segment_id, _ in start.positions]
    found = await asyncio.gather(
        *(
            SegmentScan(channel, segment_id).mark(position=position, tail=lineage.by_id[segment_id].end)
            for segment_id, position in start.positions
        )
    )
    marks = dict(zip(ids, found, strict=True))
    wanted = ids
    while wanted and amount:
        amounts = {segment_id: between(marks[segment_id], lineage.by_id[segment_id].end) for segment_id in wanted}
        total = sum(amounts.values())
        if total > amount:
            shares = shares_of(amount, amounts)
            reached = await asyncio.gather(
                *(
                    advance(segment_id, marks[segment_id], lineage.by_id[segment_id].end, share)
                    for segment_id, share in shares.items()
                )
            )
            marks.update(zip(shares, reached, strict=True))
            break
        amount -= total
        marks.update((segment_id, lineage.by_id[segment_id].end) for segment_id in wanted)
        counted = set(marks)
        lineage.advance(
            marks, lambda segment_id: marks[segment_id].offset == lineage.by_id[segment_id].length, start=START_MARK
        )
        wanted = [segment_id for segment_id in marks if segment_id not in counted]
    return StreamCut.of(stream.name, {segment_id: mark.position for segment_id, mark in marks.items()})


def _place_for(key: str | None, cut: StreamCut, lineage: Lineage[StreamPart]) -> Sequence[tuple[int, Position]]:
    """Return the positions of a cut in the segments that may contain events of a key, or of any."""
    return [each for each in cut.positions if lineage.by_id[each[0]].holds(key)]


def _earliest_readable(cut: StreamCut, stream: StreamInfo, lineage: Lineage[StreamPart]) -> StreamCut:
    """Return the earliest readable cut at or after `cut`."""
    listed = stream.lineage()
    places: dict[int, Position] = {}
    for segment_id, place in cut.positions:
        segment = listed.by_id.get(segment_id)
        if segment is not None:
            places[segment_id] = max(place, segment.start)
            continue
        # It was truncated, so the head is after it: for its keys the head is the place. Segments of the head that share
        # keys with it share none with the rest of the cut, or they would be on both sides of the cut.
        truncated = lineage.by_id[segment_id]
        places |= {each.segment_id: each.start for each in listed.head() if each.overlaps(truncated)}
    return StreamCut.of(cut.stream, places)


def _loss(cut: StreamCut, stream: StreamInfo, first: StreamCut) -> ErrorFacts:
    """Describe the loss between a cut and the first remaining one."""
    listed = stream.lineage().by_id
    truncated = [segment_id for segment_id, _ in cut.positions if segment_id not in listed]
    shortened = [
        (listed[segment_id], place)
        for segment_id, place in cut.positions
        if segment_id in listed and place < listed[segment_id].start
    ]
    lost = [f"segments {truncated} of the cut are truncated with all that they held"] if truncated else []
    lost += [_shortened(segment, place) for segment, place in shortened]
    only = shortened[0][0] if len(shortened) == 1 and not truncated else None
    return ErrorFacts(
        message=f"{'; '.join(lost)}; start at HEAD, or at {first}, to continue with the remaining events",
        subject=stream.name,
        start_offset=None if only is None else only.start_offset,
        start_index=0 if only is None else only.start_index,
        length=None if only is None else only.length,
    )


def _shortened(segment: StreamSegment, place: Position) -> str:
    """Describe what a segment has lost after a place."""
    lost_bytes = segment.start_offset - place.offset
    lost = f"{lost_bytes} bytes" if lost_bytes else f"{segment.start_index - place.event_index} events"
    at = f"{place.offset}.{place.event_index}" if place.event_index or not lost_bytes else f"{place.offset}"
    return f"segment {segment.segment_id} is truncated: the cut is at {at}, {lost} are lost"
