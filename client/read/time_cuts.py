"""Finds cuts of a stream by event time.

Event times need not ascend, within a segment or from a segment to its successors. So a time is a different cut as a
start than as an end:

    start    the furthest cut before which no event is of that time or newer; searched from the head on
    end      the nearest cut after which no event is older; searched from the tail back

Each is exact in every segment, as the stream was when it was described.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from millrace.client.transport.channel import Channel
from millrace.model.cut import StreamCut
from millrace.model.lineage import Lineage
from millrace.model.position import START, Position
from millrace.model.stream import StreamInfo, StreamSegment
from millrace.wire import messages as m
from millrace.wire.limits import MIB

from .block_stream import BlockStream

SEEK_WINDOW_BYTES: Final = 1 * MIB

_Places = dict[int, Position]


async def start_at_time(channel: Channel, stream: StreamInfo, timestamp_us: int) -> StreamCut:
    """Return the furthest cut before which no event has this timestamp or a newer one. Cancelling is safe."""
    lineage = stream.lineage()

    def move(places: _Places) -> None:
        lineage.advance(places, lambda each: places[each].offset == lineage.by_id[each].length, start=START)

    places = await _search(
        lineage.head(), lineage, lambda segment: _first_from(channel, segment, timestamp_us), move=move
    )
    return StreamCut.of(stream.name, places)


async def end_at_time(channel: Channel, stream: StreamInfo, timestamp_us: int) -> StreamCut:
    """Return the nearest cut after which no event has an older timestamp. Cancelling is safe."""
    lineage = stream.lineage()

    def move(places: _Places) -> None:
        lineage.retreat(
            places,
            lambda each: places[each] == lineage.by_id[each].start,
            end_of=lambda segment: segment.end.position,
        )

    places = await _search(
        lineage.tail(), lineage, lambda segment: _after_last_before(channel, segment, timestamp_us), move=move
    )
    # The ends of replaced segments are the starts of their successors: use the names of `start_at_time`.
    lineage.advance(places, lambda each: places[each].offset == lineage.by_id[each].length, start=START)
    return StreamCut.of(stream.name, places)


async def _search(
    segments: list[StreamSegment],
    lineage: Lineage[StreamSegment],
    find: Callable[[StreamSegment], Awaitable[Position]],
    *,
    move: Callable[[_Places], None],
) -> _Places:
    """Return the place found in each segment, from some segments on; `move` adds the segments to search next."""
    places: _Places = {}
    wanted = segments
    while wanted:
        found = await asyncio.gather(*map(find, wanted))
        places.update(zip((segment.segment_id for segment in wanted), found, strict=True))
        searched = set(places)
        move(places)
        wanted = [lineage.by_id[segment_id] for segment_id in places if segment_id not in searched]
    return places


async def _first_from(channel: Channel, segment: StreamSegment, timestamp_us: int) -> Position:
    """Return the place of the first event of a time or newer, or the end; searched from an indexed border."""
    end = segment.end.position
    reply = await channel.request(m.Seek(segment.segment_id, timestamp_us))
    if not reply.entries or reply.entries[0].offset >= end.offset:
        return end
    blocks = _blocks(channel, segment, reply.entries[0].offset, end.offset)
    try:
        while (placed := await blocks.next()) is not None:
            event_index = placed.block.first_at_or_after(timestamp_us, start=placed.start)
            if event_index is not None:
                return Position(placed.offset, event_index)
        return end
    finally:
        blocks.close()


async def _after_last_before(channel: Channel, segment: StreamSegment, timestamp_us: int) -> Position:
    """Return the place after the last event that is older than a time, or the start.

    The server names an interval that may contain it. If it does not, the previous one is requested.
    """
    end = segment.length
    while True:
        interval = await channel.request(
            m.SeekBefore(segment_id=segment.segment_id, timestamp_us=timestamp_us, end=end)
        )
        if interval.start >= interval.end:
            return segment.start
        place = None
        blocks = _blocks(channel, segment, interval.start, min(interval.end, end))
        try:
            while (placed := await blocks.next()) is not None:
                event_index = placed.block.last_before(timestamp_us)
                if event_index is not None and event_index >= placed.start:
                    place = placed._replace(end=event_index + 1).next_place
        finally:
            blocks.close()
        if place is not None:
            return place
        end = interval.start


def _blocks(channel: Channel, segment: StreamSegment, start: int, end: int) -> BlockStream:
    first = max(Position(start, 0), segment.start)  # a block may be truncated in part
    return BlockStream(channel, segment.segment_id, start=first, end=(end, 0), window_bytes=SEEK_WINDOW_BYTES)
