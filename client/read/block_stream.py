"""The event blocks of one segment between two positions, fetched ahead within a window of memory.

A subscription delivers bytes, cut at arbitrary places; this module joins them into whole blocks between `start` and
`end`. A block counts as consumed when it is taken. A block that is larger than the window is fetched as a whole.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millrace.client.transport.channel import Channel
from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES
from millrace.model.block_scan import fields_at
from millrace.model.errors import BlockCorruptError, CutInvalidError, ErrorFacts, EventTooLargeError
from millrace.model.event_block import EventBlock, unpack_block
from millrace.model.position import Position
from millrace.wire import messages as m
from millrace.wire.client_session import Piece

from .subscription import END, Subscription


class PlacedBlock(NamedTuple):
    """A part of a block: its events [start, end), and its position."""

    segment_id: int
    offset: int
    block: EventBlock
    start: int
    end: int

    def indexes(self, key: str | None) -> Sequence[int]:
        """Return the indexes of the events of the part: all, or those of one key."""
        if key is None:
            return range(self.start, self.end)
        return [index for index in self.block.indexes_of(key) if self.start <= index < self.end]

    def corrupt(self, error: BlockCorruptError) -> BlockCorruptError:
        """Return an error of the block that names its position."""
        return _corrupt_at(self.segment_id, self.offset, error)

    @property
    def next_place(self) -> Position:
        """The place after the part."""
        if self.end < self.block.fields.event_count:
            return Position(self.offset, self.end)
        return Position(self.offset + self.block.fields.size, 0)


class BlockStream(Subscription[PlacedBlock]):
    """Blocks of one segment in order, each cut to the range between start and end.

    `take` raises, besides the errors of the server,

        BlockCorruptError   the bytes are not a block
        CutInvalidError     a position is after the last event of its block, or inside a block
        EventTooLargeError  the block is too large to be fetched

    Args:
        start: (offset, index) to start at.
        end: (offset, index) to stop before, None for no end.
        block_bytes_max: a block above this and above the window is not fetched, None for no limit.
    """

    def __init__(
        self,
        channel: Channel,
        segment_id: int,
        *,
        start: tuple[int, int],
        end: tuple[int, int] | None,
        window_bytes: int,
        block_bytes_max: int | None = None,
        on_change: "Callable[[BlockStream], None]" = lambda _: None,
    ) -> None:
        super().__init__(
            channel,
            segment_id,
            offset=start[0],
            event_index=start[1],
            window_bytes=window_bytes,
            on_change=on_change,
        )
        self._start = start
        self._end = end
        self._block_bytes_max = math.inf if block_bytes_max is None else max(block_bytes_max, window_bytes)
        # The offset of the next block, after those in the queue, which have their offsets.
        self._block_offset = start[0]
        # The received bytes of that block, and its size: at first that of the header, which contains the size.
        self._pieces: list[memoryview] = []
        self._partial_bytes = 0
        self._wanted_bytes = BLOCK_HEADER_SIZE_BYTES
        self._has_all = end is not None and start >= end
        if self._has_all:
            self._change(END)

    def close(self) -> None:
        """End the subscription; queued blocks are dropped, and partial ones. Closing again does nothing."""
        super().close()
        self._pieces = []

    def _take(self) -> PlacedBlock:
        offset, data = self._queue[0]
        try:
            block = unpack_block(data)
        except BlockCorruptError as error:
            raise _corrupt_at(self.segment_id, offset, error) from None
        start = self._start[1] if offset == self._start[0] else 0
        end = count = block.fields.event_count
        if self._end is not None and offset == self._end[0]:
            end = self._end[1]
        if max(start, end) > count:
            raise CutInvalidError(f"segment {self.segment_id}: the block at offset {offset} has {count} events")
        self._queue.popleft()
        self._consumed(offset + len(data))
        return PlacedBlock(self.segment_id, offset, block, start, max(start, end))

    def _add(self, data: Piece) -> bool:
        """Split received bytes into blocks; return whether the last requested one is among them."""
        try:
            self._cut(data.data)
        except BlockCorruptError as error:
            raise _corrupt_at(self.segment_id, self._block_offset, error) from None
        if data.flags & m.DataFlag.END_OF_SEGMENT and self._partial_bytes:
            raise BlockCorruptError(f"segment {self.segment_id} ends inside the block at {self._block_offset}")
        return self._has_all

    def _cut(self, data: memoryview) -> None:
        """Split the next received bytes into blocks, up to the end position."""
        place = 0
        while place < len(data) and not self._has_all:
            if not self._pieces:
                self._expect(data, place)
            used = min(self._wanted_bytes - self._partial_bytes, len(data) - place)
            piece = data[place : place + used]
            place += used
            self._partial_bytes += used
            if self._partial_bytes < self._wanted_bytes:
                self._check_size()
                self._pieces.append(piece)
                self._require(self._block_offset + self._wanted_bytes)
                continue
            whole = memoryview(b"".join([*self._pieces, piece])) if self._pieces else piece
            if self._wanted_bytes > BLOCK_HEADER_SIZE_BYTES:
                self._accept(whole)
            else:
                self._pieces = [whole]
                self._expect(whole, 0)

    def _expect(self, data: memoryview, place: int) -> None:
        """Determine how many bytes to wait for: the block at `place`, or its header if that is incomplete.

        Raises:
            CutInvalidError: the end is inside of it.
        """
        is_named = len(data) - place >= BLOCK_HEADER_SIZE_BYTES
        self._wanted_bytes = fields_at(data, place).size if is_named else BLOCK_HEADER_SIZE_BYTES
        if self._end is not None and self._block_offset < self._end[0] < self._block_offset + self._wanted_bytes:
            raise CutInvalidError(
                f"segment {self.segment_id}: the end {self._end[0]} is not a block border after {self._block_offset}"
            )

    def _check_size(self) -> None:
        """Check that the awaited block may be fetched.

        Raises:
            EventTooLargeError: it is too large.
        """
        if self._wanted_bytes > self._block_bytes_max:
            raise EventTooLargeError(
                ErrorFacts(
                    message=f"the block at {self._block_offset} of this segment has {self._wanted_bytes}"
                    f" bytes, but at most {self._block_bytes_max} are fetched",
                    subject=str(self.segment_id),
                    length=self._wanted_bytes,
                )
            )

    def _accept(self, data: memoryview) -> None:
        """Queue a whole block until it is taken; check whether it is the last requested one."""
        self._queue.append((self._block_offset, data))
        self._block_offset += len(data)
        self._pieces, self._partial_bytes = [], 0
        self._has_all = self._end is not None and (self._block_offset, 0) >= self._end


def _corrupt_at(segment_id: int, offset: int, error: BlockCorruptError) -> BlockCorruptError:
    return BlockCorruptError(f"segment {segment_id} at offset {offset}: {error}")
