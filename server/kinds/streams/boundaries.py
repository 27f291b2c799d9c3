"""Checks that a position in a segment is between two appends: a cut goes through none.

An append of events is one block (`model/block_layout.py`), and the header of a block says how long it is. So from a
known border, later ones are found by walking from header to header. The sparse index knows one at least
every 64 KiB or second, unless one append, or a run of them that the log took at once, is larger.

A stream of bytes has no blocks and so no borders: any offset in it will do. The first bytes after the known border tell
which it is.
"""

import asyncio
from typing import NamedTuple

from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES
from millrace.model.block_scan import BlockWalk
from millrace.model.errors import BlockCorruptError
from millrace.model.position import Position
from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.segment import Segment
from millrace.server.errors import CutInvalidError


class _Block(NamedTuple):
    offset: int
    size: int
    event_count: int


async def check_border(container: SegmentContainer, segment: Segment, *, offset: int, event_index: int = 0) -> Position:
    """Check that a place between the start and the end of a segment is one between two events. Cancelling is safe.

    Return it as readers name it: the place after the last event of a block is the start of the next block.

    Args:
        offset: where a block must start, or the last one end.
        event_index: of an event in that block, or the index after its last.

    Raises:
        CutInvalidError: it is inside an append; `start_offset` is the last border before it.
        SegmentError: the bytes around it were truncated, deleted or damaged meanwhile.
        StorageError: tier 2 failed.
    """
    place = Position(offset, event_index)
    if not event_index and offset in (segment.start_offset, segment.length):
        return place
    start = await _known_border(container, segment, offset)
    if not event_index and offset == start:
        return place
    segment.check_readable(offset)
    block = await _block_at(container, segment, offset, start=start)
    if block is None:
        return Position(offset, 0)  # bytes without blocks have no events to count
    if offset != block.offset:
        raise CutInvalidError(
            f"offset {offset} is inside of an append: the last border before it is {block.offset}, "
            f"the next one {block.offset + block.size}",
            subject=segment.name,
            start_offset=block.offset,
            length=segment.length,
        )
    if event_index > block.event_count:
        raise CutInvalidError(
            f"there is no event {event_index} at offset {offset}: the append there has {block.event_count}",
            subject=segment.name,
            start_offset=offset,
            length=segment.length,
        )
    return place if event_index < block.event_count else Position(block.offset + block.size, 0)


async def _known_border(container: SegmentContainer, segment: Segment, offset: int) -> int:
    """Return the last border at or before an offset that is known without reading the segment."""
    if offset < segment.flushed_offset:
        await container.reader.load_index(segment, offset, offset + 1)
    entry = segment.index.floor(offset)
    extent = segment.extent_at(offset)
    known = [segment.start_offset]
    known += (border for damage in segment.damages for border in (damage.start, damage.end) if border <= offset)
    if entry is not None:
        known.append(entry.offset)
    if extent is not None:
        known.append(extent.offset)
    return max(known)


async def _block_at(container: SegmentContainer, segment: Segment, offset: int, *, start: int) -> _Block | None:
    """Return the block that holds the byte at `offset`, found from a border on; None if there are no blocks."""
    walk = BlockWalk(start)
    while walk.offset < segment.length:
        data = await _read(container, segment, walk.offset, walk.read_size_bytes)
        await asyncio.sleep(0)  # bytes in memory come without a wait; other tasks run in between
        try:
            for header in walk.feed(data):
                if header.end > segment.length:
                    _no_block(segment, header.offset, start=start)
                    return None
                if offset < header.end:
                    return _Block(header.offset, header.fields.size, header.fields.event_count)
        except BlockCorruptError:
            data = b""
        if len(data) < BLOCK_HEADER_SIZE_BYTES:
            _no_block(segment, walk.offset, start=start)
            return None
    return _Block(walk.offset, 0, 0)


def _no_block(segment: Segment, offset: int, *, start: int) -> None:
    """Raise CutInvalidError unless the segment holds no blocks from the known border on."""
    if offset != start:
        raise CutInvalidError(
            f"no append of events starts at offset {offset}, so no border after it is known",
            subject=segment.name,
            start_offset=offset,
            length=segment.length,
        )


async def _read(container: SegmentContainer, segment: Segment, offset: int, size_max: int) -> bytes:
    """Return up to `size_max` bytes; fewer than a header only at the end of the segment."""
    data = b""
    while len(data) < BLOCK_HEADER_SIZE_BYTES and offset + len(data) < segment.length:
        data += b"".join(await container.reads.read(segment, offset + len(data), size_max))
    return data
