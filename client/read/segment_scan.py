"""Finds positions in a segment of event blocks by counting events, or bytes to the next block border.

The server's sparse index names a border nearby; from there the headers of blocks are walked. No event is fetched. Only
durable bytes are read, so repeated searches for a position never differ.
"""

from bisect import bisect_right
from collections.abc import AsyncIterator
from typing import Final

from millrace.client.errors import OffsetBeyondEndError
from millrace.client.transport.channel import Channel
from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES
from millrace.model.block_scan import BlockWalk, PlacedHeader
from millrace.model.errors import BlockCorruptError, CutInvalidError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.model.position import EVENT_INDEX_MAX, START, START_MARK, Mark, Position
from millrace.wire import messages as m
from millrace.wire.limits import KIB, MIB

INDEX_SPACING_BYTES: Final = 64 * KIB
"""The server notes a border at least so often, unless one block is larger."""
INDEX_GAP_BYTES_MAX: Final = INDEX_SPACING_BYTES + APPEND_SIZE_BYTES_MAX
INDEX_COUNT_MAX: Final = 1000


class SegmentScan:
    """Finds positions in one segment. Made by `client.segment_scan`."""

    def __init__(self, channel: Channel, segment_id: int) -> None:
        self._channel = channel
        self.segment_id = segment_id

    async def mark(self, *, position: Position, tail: Mark) -> Mark:
        """Return the mark of a position between the start and the tail of a segment. Cancelling is safe.

        Raises:
            CutInvalidError: its block has fewer events.
            SegmentTruncatedError: it was truncated away.
        """
        offset, event_index = position
        if position == START:
            return START_MARK
        known = await self._first_border_after(offset=offset, tail=tail)
        counted = 0
        first_count = 0
        async for header in self._headers(start=offset, end=known.offset):
            first_count = first_count or header.fields.event_count
            counted += header.fields.event_count
        if event_index > first_count:
            raise CutInvalidError(f"segment {self.segment_id}: the block at {offset} has {first_count} events")
        return Mark(offset, event_index, known.events - counted + event_index)

    async def after_events(self, *, start: Mark, end: Mark, count: int) -> Mark:
        """Return the mark `count` events after `start`, or `end` if that comes first. Cancelling is safe."""
        target = start.events + count
        if target >= end.events:
            return end
        low = m.IndexEntry(start.offset, start.events - start.event_index, 0)
        low = await self._border_before_event(low=low, target=target, end=end)
        events = low.events
        async for header in self._headers(start=low.offset, end=end.offset + 1):
            if events == target:
                return Mark(header.offset, 0, target)
            if events + header.fields.event_count > target:
                return Mark(header.offset, target - events, target)
            events += header.fields.event_count
        assert events == target, f"segment {self.segment_id}: {events} events counted in place of {target}"
        return Mark(end.offset, 0, target)

    async def after_bytes(self, *, start: Mark, end: Mark, size_bytes: int) -> Mark:
        """Return the last border at most `size_bytes` after `start`, or `end` if that comes first.

        It is `start` itself if the next block does not fit. Cancelling is safe.
        """
        limit = start.offset + size_bytes
        if limit >= end.offset:
            return end
        low = m.IndexEntry(start.offset, start.events - start.event_index, 0)
        low = await self._last_border(above=start.offset, up_to=limit) or low
        found = Mark(low.offset, 0, low.events) if low.offset > start.offset else start
        events = low.events
        async for header in self._headers(start=low.offset, end=end.offset):
            events += header.fields.event_count
            if header.end > limit:
                break
            found = Mark(header.end, 0, events)
        return found

    async def after_block(self, *, start: Mark, end: Mark) -> Mark:
        """Return the border after the block at `start`, or `end` if that comes first. Cancelling is safe."""
        if start.offset >= end.offset:
            return end
        async for header in self._headers(start=start.offset, end=end.offset):
            return Mark(header.end, 0, start.events - start.event_index + header.fields.event_count)
        return end

    async def written_before(self, *, offset: int) -> int:
        """Return the wall time (Unix microseconds) of the last indexed append at or before an offset, 0 without one.

        The append at the offset itself followed within a second while the segment was being written. Cancelling is
        safe.
        """
        if border := await self._last_border(above=0, up_to=offset):
            return border.wall_time_us
        first = (await self._channel.request(m.Seek(self.segment_id, -(1 << 63)))).entries
        return first[0].wall_time_us if first and first[0].offset <= offset else 0

    async def _border_before_event(self, *, low: m.IndexEntry, target: int, end: Mark) -> m.IndexEntry:
        """Return an indexed border with at most `target` events before it, near the last such one, from `low` on.

        It requests borders as far ahead as events of the mean size would reach, so that only the near part of a long
        history is read, and then more and more finely between two borders.
        """
        ahead_bytes = max(1 * MIB, 2 * (target - low.events) * (end.offset - low.offset) // (end.events - low.events))
        high_offset = low.offset
        while high_offset < end.offset:
            high_offset = min(end.offset, low.offset + ahead_bytes)
            low, high = await self._closer(low=low, high_offset=high_offset, target=target)
            if high is not None:
                high_offset = high.offset
                break
            ahead_bytes *= 2
        while high_offset - low.offset > 2 * INDEX_SPACING_BYTES:
            closer, high = await self._closer(low=low, high_offset=high_offset, target=target)
            if high is None and closer == low:
                break
            low = closer
            high_offset = high.offset if high is not None else high_offset
        return low

    async def _closer(
        self, *, low: m.IndexEntry, high_offset: int, target: int
    ) -> tuple[m.IndexEntry, m.IndexEntry | None]:
        """Return two borders around an event, closer than `low` and `high_offset`; None if no upper one is closer."""
        spacing_bytes = max(1, (high_offset - low.offset) // INDEX_COUNT_MAX)
        borders = await self._borders(start=low.offset, end=high_offset, spacing_bytes=spacing_bytes)
        place = bisect_right(borders, target, key=lambda border: border.events)
        return borders[place - 1] if place else low, borders[place] if place < len(borders) else None

    async def _first_border_after(self, *, offset: int, tail: Mark) -> m.IndexEntry:
        """Return the first indexed border after an offset; the tail is one."""
        window_end = offset
        while window_end < tail.offset:
            window_end = min(tail.offset, window_end + INDEX_GAP_BYTES_MAX)
            request = m.GetIndex(segment_id=self.segment_id, start=offset, end=window_end, spacing_bytes=1, count_max=1)
            reply = await self._channel.request(request)
            if reply.entries and reply.entries[0].offset > offset:
                return reply.entries[0]
        return m.IndexEntry(tail.offset, tail.events, 0)

    async def _last_border(self, *, above: int, up_to: int) -> m.IndexEntry | None:
        """Return the last indexed border above one offset and not above another, None if there is none."""
        start = max(above, up_to - INDEX_GAP_BYTES_MAX)
        borders = await self._borders(start=start, end=up_to + 1, spacing_bytes=INDEX_SPACING_BYTES)
        return borders[-1] if borders else None

    async def _borders(self, *, start: int, end: int, spacing_bytes: int) -> list[m.IndexEntry]:
        """Return the indexed borders inside (start, end), with this spacing."""
        if end - start < 1:
            return []
        request = m.GetIndex(
            segment_id=self.segment_id, start=start, end=end, spacing_bytes=spacing_bytes, count_max=INDEX_COUNT_MAX
        )
        reply = await self._channel.request(request)
        return [entry for entry in reply.entries if start < entry.offset < end]

    async def _headers(self, *, start: int, end: int) -> AsyncIterator[PlacedHeader]:
        """Yield the headers of the blocks that start in [start, end), in order."""
        walk = BlockWalk(start)
        while walk.offset < end:
            offset = walk.offset
            piece = await self._channel.read(
                m.Read(
                    segment_id=self.segment_id,
                    offset=offset,
                    size_max=walk.read_size_bytes,
                    wait_ms=0,
                    # Only headers are used: the events of a block may be truncated in part.
                    event_index=EVENT_INDEX_MAX,
                )
            )
            if piece.offset != offset or len(piece.data) < BLOCK_HEADER_SIZE_BYTES:
                raise OffsetBeyondEndError(f"segment {self.segment_id} has no block at {offset}")
            try:
                for header in walk.feed(piece.data):
                    if header.offset >= end:
                        return
                    yield header
            except BlockCorruptError as error:
                raise BlockCorruptError(f"segment {self.segment_id} at offset {walk.offset}: {error}") from None
