"""Parallel reading: a stream between two cuts as ranges that can be read anywhere, each by its own client.

A range starts and ends on event borders, is picklable, and knows its size. Ranges of one segment follow one another,
those of replaced segments come before those of their successors; together the ranges of a plan are exactly the events
between the cuts. They may be read in any order, by any process.
"""

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from millrace.client.errors import OffsetBeyondEndError, SegmentNotFoundError, SegmentTruncatedError
from millrace.client.transport.channel import Channel
from millrace.model.cut import StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.event_block import EventBlock
from millrace.model.position import Position
from millrace.model.stream import StreamInfo
from millrace.wire import messages as m
from millrace.wire.limits import MIB

from .block_stream import BlockStream, PlacedBlock

if TYPE_CHECKING:
    import pyarrow as pa

RANGE_WINDOW_BYTES: Final = 16 * MIB
INDEX_PAGE_COUNT: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRange:
    """Events of one segment: from (start_offset, start_index) up to, not including, (end_offset, end_index).

    Attributes:
        key: only events with this key; None for all.
    """

    segment_id: int
    start_offset: int
    start_index: int
    end_offset: int
    end_index: int
    key: str | None = None

    @classmethod
    def between(cls, segment_id: int, start: Position, end: Position, *, key: str | None = None) -> Self:
        """Return the range of a segment between two positions."""
        return cls(
            segment_id=segment_id,
            start_offset=start.offset,
            start_index=start.event_index,
            end_offset=end.offset,
            end_index=end.event_index,
            key=key,
        )

    @property
    def start(self) -> Position:
        """The position at which it starts."""
        return Position(self.start_offset, self.start_index)

    @property
    def end(self) -> Position:
        """The position before which it ends."""
        return Position(self.end_offset, self.end_index)

    @property
    def size_bytes(self) -> int:
        """Bytes of the blocks that are wholly in the range; a block that is cut at its end is not counted."""
        return self.end_offset - self.start_offset


def ranges_between(
    start: StreamCut, end: StreamCut, stream: StreamInfo, *, key: str | None = None
) -> list[SegmentRange]:
    """Return the part between two resolved cuts of each segment that has one, older segments first.

    Args:
        key: the key to read: segments without it are left out.

    Raises:
        CutOrderError: the start is after the end.
    """
    stream.check_order(start, end, key=key)
    starts, ends = stream.progress(start), stream.progress(end)
    parts = sorted(stream.segments, key=lambda segment: (segment.epoch, segment.key_range.low))
    return [
        SegmentRange.between(part.segment_id, starts[part.segment_id], ends[part.segment_id], key=key)
        for part in parts
        if starts[part.segment_id] < ends[part.segment_id] and part.holds(key)
    ]


async def split_range(channel: Channel, part: SegmentRange, *, max_bytes: int) -> list[SegmentRange]:
    """Return the ranges, each of about `max_bytes`, that together are a range. Cancelling is safe."""
    if max_bytes < 1:
        raise InvalidArgumentError(f"max_bytes={max_bytes} must be above 0")
    places, end = [part.start], part.end
    while places[-1].offset + max_bytes < end.offset:
        request = m.GetIndex(
            segment_id=part.segment_id,
            start=places[-1].offset,
            end=end.offset,
            spacing_bytes=max_bytes,
            count_max=INDEX_PAGE_COUNT,
        )
        reply = await channel.request(request)
        borders = [Position(entry.offset, 0) for entry in reply.entries if places[-1] < (entry.offset, 0) < end]
        if not borders:
            break
        places += borders
    places.append(end)
    return [SegmentRange.between(part.segment_id, a, b, key=part.key) for a, b in itertools.pairwise(places) if a < b]


class KeptBlocks:
    """Cache of blocks in which ranges ended: a range that starts there need not fetch and decode them again.

    Each is returned once. Belongs to one client.

    Args:
        size_bytes_max: limit of their stored sizes; the oldest are dropped.
    """

    def __init__(self, *, size_bytes_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self._size_bytes = 0
        self._blocks: dict[tuple[int, int], EventBlock] = {}

    def take(self, part: SegmentRange) -> PlacedBlock | None:
        """Return the part of a block with which a range begins, None if the block is not cached."""
        block = self._blocks.pop((part.segment_id, part.start_offset), None)
        if block is None:
            return None
        self._size_bytes -= block.fields.size
        end = part.end_index if part.end_offset == part.start_offset else block.fields.event_count
        if max(part.start_index, end) > block.fields.event_count:
            return None  # its error is raised when it is fetched
        return PlacedBlock(part.segment_id, part.start_offset, block, part.start_index, max(part.start_index, end))

    def keep(self, placed: PlacedBlock) -> None:
        """Cache a block."""
        place = placed.segment_id, placed.offset
        if place in self._blocks:
            return
        self._blocks[place] = placed.block
        self._size_bytes += placed.block.fields.size
        while self._size_bytes > self._size_bytes_max:
            self._size_bytes -= self._blocks.pop(next(iter(self._blocks))).fields.size

    def clear(self) -> None:
        """Drop all blocks."""
        self._blocks.clear()
        self._size_bytes = 0


async def read_range(
    channel: Channel, part: SegmentRange, *, kept: KeptBlocks | None = None
) -> "AsyncIterator[pa.RecordBatch]":
    """Yield the events of a range as record batches, in order; none is empty. Needs pyarrow.

    Closing the iterator ends the fetching.

    Args:
        kept: cache for the block in which the range begins, and the block in which it ends.

    Raises:
        OffsetBeyondEndError: the segment is sealed and ends before the range does.
        SegmentTruncatedError: the next events were truncated; without a `start_offset` if the whole segment was.
        SegmentDamagedError, BlockCorruptError: the next events are damaged.
    """
    from .arrow import BATCH_ROWS_MAX, LARGE_BLOCK_ROWS_MIN, batch_of_many

    place, end = part.start, part.end
    first = kept.take(part) if kept is not None else None
    start = place if first is None else first.next_place
    blocks = BlockStream(channel, part.segment_id, start=start, end=end, window_bytes=RANGE_WINDOW_BYTES)
    try:
        gathered: list[PlacedBlock] = []
        rows = 0
        while True:
            try:
                placed = await blocks.next() if first is None else first
                first = None
            except (SegmentTruncatedError, SegmentNotFoundError) as error:
                if gathered:  # events before the truncation are not lost
                    yield batch_of_many(gathered, key=part.key)
                if isinstance(error, SegmentTruncatedError):
                    raise
                raise SegmentTruncatedError(
                    f"segment {part.segment_id} has no range from {place.offset} to {end.offset} any more: "
                    "it was truncated, or its stream was deleted"
                ) from error
            if placed is None:
                break
            place = placed.next_place
            if kept is not None and place == end and end.event_index:
                kept.keep(placed)
            if placed.indexes(part.key):
                gathered.append(placed)
                rows += placed.end - placed.start
            # A large block ends the batch: it need not be copied if it is the only one in it, as in most batches.
            if rows >= BATCH_ROWS_MAX or (rows and placed.end - placed.start >= LARGE_BLOCK_ROWS_MIN):
                yield batch_of_many(gathered, key=part.key)
                gathered, rows = [], 0
        if gathered:
            yield batch_of_many(gathered, key=part.key)
        if place < end:
            raise OffsetBeyondEndError(f"segment {part.segment_id} ends at {place.offset}, the range at {end.offset}")
    finally:
        blocks.close()
