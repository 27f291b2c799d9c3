"""The event blocks of one segment between two places, fetched ahead within a window of memory.

The server pushes bytes, cut where it likes; here they become whole blocks again. The bytes of a block that is not yet
whole do not count against the window, or a block larger than the window would never come; there is at most one.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from millrace.client.blocks import EventBlock, block_size, unpack_block
from millrace.client.transport.channel import Channel
from millrace.model.errors import BlockCorruptError, CutInvalidError, MillraceError

from .subscription import SegmentPushes

# The header tells the size of its block; nothing is known of one of which less has come.
_SIZE_KNOWN_BYTES: Final = 16


class PlacedBlock(NamedTuple):
    """A part of a block: its events [start, end), and where it stands."""

    segment_id: int
    offset: int
    block: EventBlock
    start: int
    end: int

    @property
    def next_place(self) -> tuple[int, int]:
        """The place behind the part: (offset, index)."""
        if self.end < self.block.event_count:
            return self.offset, self.end
        return self.offset + self.block.size, 0


class SegmentFeed:
    """Blocks of one segment in order. Belongs to one reader.

    Args:
        start: (offset, index) to start at.
        end: (offset, index) to stop in front of, None for no end.
        on_change: called in the event loop when a block came, the segment ended or failed.
    """

    def __init__(
        self,
        channel: Channel,
        segment_id: int,
        *,
        start: tuple[int, int],
        end: tuple[int, int] | None,
        window_bytes: int,
        on_change: "Callable[[SegmentFeed], None]",
    ) -> None:
        self.segment_id = segment_id
        self._start = start
        self._end = end
        self._on_change = on_change
        # Offset of the next byte to be looked at, behind all whole blocks.
        self._offset = start[0]
        self._blocks: deque[tuple[int, memoryview]] = deque()
        self._partial: list[memoryview] = []
        self._partial_bytes = 0
        # Bytes of the block that is coming, 0 while too little of it has come to know.
        self._wanted_bytes = 0
        self._failure: MillraceError | None = None
        self._finished = end is not None and start >= end
        self._pushes = SegmentPushes(
            channel, segment_id, offset=start[0], window_bytes=window_bytes, on_change=self._pushed
        )

    def start(self) -> None:
        """Begin to fetch."""
        if not self._finished:
            self._pushes.start()

    @property
    def ready(self) -> bool:
        """Whether `take` would return a block or raise."""
        return bool(self._blocks) or self.failure is not None

    @property
    def finished(self) -> bool:
        """Whether all of it was taken: the end place, or the end of a sealed segment, is reached."""
        return not self._blocks and (self._finished or (self._pushes.ended and self.failure is None))

    @property
    def failure(self) -> MillraceError | None:
        """Why nothing more comes, if it is an error."""
        if self._finished:
            return None
        if self._failure is None and self._pushes.ended and self._partial_bytes:
            self._failure = BlockCorruptError(
                f"segment {self.segment_id} ends inside the block at offset {self._offset}"
            )
        return self._failure or self._pushes.failure

    def take(self) -> PlacedBlock | None:
        """Return the next block, cut to what lies between start and end, and let more be fetched; None if none is here.

        Raises:
            BlockCorruptError: the bytes are no block.
            CutInvalidError: a place lies behind the last event of its block.
            MillraceError: the server cannot be reached, or refuses.
        """
        if not self._blocks:
            if self.failure is not None:
                raise self.failure
            return None
        offset, data = self._blocks[0]
        try:
            block = unpack_block(data)
        except BlockCorruptError as error:
            raise BlockCorruptError(f"segment {self.segment_id} at offset {offset}: {error}") from None
        start = self._start[1] if offset == self._start[0] else 0
        end = block.event_count
        if self._end is not None and offset == self._end[0]:
            end = self._end[1]
        if start > block.event_count or end > block.event_count:
            raise CutInvalidError(
                f"segment {self.segment_id}: the block at offset {offset} has {block.event_count} events"
            )
        self._blocks.popleft()
        self._pushes.release(len(data))
        return PlacedBlock(self.segment_id, offset, block, start, max(start, end))

    def close(self) -> None:
        """Fetch no more; what is here is dropped."""
        self._finished = True
        self._blocks.clear()
        self._pushes.close()

    def _pushed(self) -> None:
        """Cut what came into blocks."""
        try:
            while not self._finished and (chunk := self._pushes.take()) is not None:
                self._cut(chunk.data)
        except BlockCorruptError as error:
            self._failure = BlockCorruptError(f"segment {self.segment_id} at offset {self._offset}: {error}")
            self._pushes.close()
        except CutInvalidError as error:
            self._failure = error
            self._pushes.close()
        if self._blocks or self.finished or self.failure is not None:
            self._on_change(self)

    def _cut(self, data: memoryview) -> None:
        place = 0
        while place < len(data):
            if self._partial:
                place += self._fill(data[place:])
                continue
            size = block_size(data, place)
            self._check_end(size or _SIZE_KNOWN_BYTES)
            if size == 0 or place + size > len(data):
                self._begin(data[place:], size)
                return
            if self._accept(data[place : place + size]):
                return
            place += size

    def _begin(self, data: memoryview, size: int) -> None:
        """Keep the beginning of a block; its bytes are given back to the server's credit at once."""
        self._partial = [data]
        self._partial_bytes = len(data)
        self._wanted_bytes = size
        self._pushes.release(len(data))

    def _fill(self, data: memoryview) -> int:
        """Add to the block that is coming; return how many bytes were used."""
        wanted = self._wanted_bytes or _SIZE_KNOWN_BYTES
        used = min(wanted - self._partial_bytes, len(data))
        if used:
            self._partial.append(data[:used])
            self._partial_bytes += used
            self._pushes.release(used)
        if self._partial_bytes < wanted:
            return used
        whole = memoryview(b"".join(self._partial))
        if not self._wanted_bytes:
            self._partial = [whole]
            self._wanted_bytes = block_size(whole)
            self._check_end(self._wanted_bytes)
            return used
        self._partial, self._partial_bytes, self._wanted_bytes = [], 0, 0
        self._pushes.hold(len(whole))
        self._accept(whole)
        return used

    def _check_end(self, size: int) -> None:
        """Raise CutInvalidError if the end lies inside of the block that comes, which has at least that size."""
        if self._end is not None and self._offset < self._end[0] < self._offset + size:
            raise CutInvalidError(
                f"segment {self.segment_id}: {self._end[0]}, where reading is to end, is no border of a block behind"
                f" {self._offset}"
            )

    def _accept(self, data: memoryview) -> bool:
        """Take a whole block; return whether it is the last one wanted."""
        offset = self._offset
        self._offset += len(data)
        self._blocks.append((offset, data))
        if self._end is not None and (self._offset, 0) >= self._end:
            self._finished = True
            self._pushes.close()
            return True
        return False
