"""The event blocks of one segment between two positions, fetched ahead within a window of memory.

    OPEN       more blocks may come
    FINISHED   the end position, or the end of a sealed segment, is reached; blocks may wait to be taken
    FAILED     after the blocks that wait to be taken comes an error

A `Subscription` delivers bytes, cut at any place; here they become whole blocks again, between `start` and `end`. A
block counts as consumed when it is taken. One that is larger than the window is let through as a whole.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from millrace.client.transport.channel import Channel
from millrace.model.block_scan import block_size
from millrace.model.errors import BlockCorruptError, CutInvalidError, MillraceError
from millrace.model.event_block import EventBlock, unpack_block

from .subscription import Subscription, SubscriptionState

# The header tells the size of its block; nothing is known of one of which less has come. Every block is larger.
_SIZE_KNOWN_BYTES: Final = 16


class PlacedBlock(NamedTuple):
    """A part of a block: its events [start, end), and where it is."""

    segment_id: int
    offset: int
    block: EventBlock
    start: int
    end: int

    @property
    def next_place(self) -> tuple[int, int]:
        """The place after the part: (offset, index)."""
        if self.end < self.block.event_count:
            return self.offset, self.end
        return self.offset + self.block.size, 0


class BlockStreamState(Enum):
    """Whether more blocks come; see the module docstring."""

    OPEN = auto()
    FINISHED = auto()
    FAILED = auto()


class BlockStreamEvent(Enum):
    """What changes the state."""

    END_REACHED = auto()
    FAIL = auto()
    CLOSE = auto()


OPEN, FINISHED, FAILED = BlockStreamState
END_REACHED, FAIL, CLOSE = BlockStreamEvent

TRANSITIONS: Final[dict[BlockStreamState, dict[BlockStreamEvent, BlockStreamState]]] = {
    OPEN: {END_REACHED: FINISHED, FAIL: FAILED, CLOSE: FINISHED},
    FINISHED: {CLOSE: FINISHED},
    FAILED: {CLOSE: FINISHED},
}
"""Every legal event of every state, and the state after it."""


class BlockStream:
    """Blocks of one segment in order. Belongs to one reader in one event loop.

    Args:
        start: (offset, index) to start at.
        end: (offset, index) to stop before, None for no end.
        on_change: called in the event loop when a block came, the end was reached or the stream failed.
    """

    def __init__(
        self,
        channel: Channel,
        segment_id: int,
        *,
        start: tuple[int, int],
        end: tuple[int, int] | None,
        window_bytes: int,
        on_change: "Callable[[BlockStream], None]" = lambda _: None,
    ) -> None:
        self.segment_id = segment_id
        self.state = OPEN
        self.failure: MillraceError | None = None
        self._start = start
        self._end = end
        self._on_change = on_change
        # Whole blocks that wait to be taken, each with its offset; the offset after them.
        self._blocks: deque[tuple[int, memoryview]] = deque()
        self._offset = start[0]
        # What has come of the block at that offset, and its size: that of its first part while too little has come.
        self._pieces: list[memoryview] = []
        self._partial_bytes = 0
        self._wanted_bytes = _SIZE_KNOWN_BYTES
        self._subscription = Subscription(
            channel, segment_id, offset=start[0], window_bytes=window_bytes, on_change=self._received
        )
        if end is not None and start >= end:
            self._change(END_REACHED)

    def start(self) -> None:
        """Begin to fetch."""
        if self.state is OPEN:
            self._subscription.start()

    @property
    def ready(self) -> bool:
        """Whether `take` would return a block or raise."""
        return bool(self._blocks) or self.state is FAILED

    @property
    def finished(self) -> bool:
        """Whether all blocks were taken and no more come."""
        return not self._blocks and self.state is FINISHED

    def take(self) -> PlacedBlock | None:
        """Return the next block, cut to what is between start and end, and let more be fetched; None if none is here.

        Raises:
            BlockCorruptError: the bytes are no block.
            CutInvalidError: a position is after the last event of its block.
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
        self._subscription.consumed(offset + len(data))
        return PlacedBlock(self.segment_id, offset, block, start, max(start, end))

    async def next(self) -> PlacedBlock | None:
        """Return the next block, waiting for it; None at the end. Cancelling loses nothing. Raises like `take`."""
        self.start()
        while (placed := self.take()) is None and not self.finished:
            await self._subscription.changed()
        return placed

    def close(self) -> None:
        """Fetch no more; what is here is dropped."""
        self._change(CLOSE)
        self.failure = None
        self._blocks.clear()
        self._subscription.close()

    # --- inside ---

    def _change(self, event: BlockStreamEvent) -> None:
        """Go to the state that follows; the only place that does."""
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, f"{event} in {self.state}"
        self.state = following

    def _fail(self, error: MillraceError) -> None:
        self._change(FAIL)
        self.failure = error

    def _received(self) -> None:
        """Cut what came into blocks, and see whether it was the last."""
        subscription = self._subscription
        try:
            while self.state is OPEN and (chunk := subscription.take()) is not None:
                self._cut(chunk.data)
        except BlockCorruptError as error:
            self._fail(BlockCorruptError(f"segment {self.segment_id} at offset {self._offset}: {error}"))
        except CutInvalidError as error:
            self._fail(error)
        if self.state is not OPEN:
            subscription.close()
        elif subscription.failure is not None:
            self._fail(subscription.failure)
        elif subscription.state is SubscriptionState.ENDED:
            if self._partial_bytes:
                self._fail(BlockCorruptError(f"segment {self.segment_id} ends inside the block at {self._offset}"))
            else:
                self._change(END_REACHED)
        if self._blocks or self.state is not OPEN:
            self._on_change(self)

    def _cut(self, data: memoryview) -> None:
        """Cut the bytes that came next into blocks, up to the end position."""
        place = 0
        while place < len(data) and self.state is OPEN:
            if not self._pieces:
                self._expect(block_size(data, place))
            used = min(self._wanted_bytes - self._partial_bytes, len(data) - place)
            piece = data[place : place + used]
            place += used
            self._partial_bytes += used
            if self._partial_bytes < self._wanted_bytes:
                self._pieces.append(piece)
                self._subscription.require(self._offset + self._wanted_bytes)
                continue
            whole = memoryview(b"".join([*self._pieces, piece])) if self._pieces else piece
            if self._wanted_bytes > _SIZE_KNOWN_BYTES:
                self._accept(whole)
            else:
                self._pieces = [whole]
                self._expect(block_size(whole))

    def _expect(self, size: int) -> None:
        """Say how large the block is that comes next, 0 if that is not known yet.

        Raises:
            CutInvalidError: the end is inside of it.
        """
        self._wanted_bytes = size or _SIZE_KNOWN_BYTES
        if self._end is not None and self._offset < self._end[0] < self._offset + self._wanted_bytes:
            raise CutInvalidError(
                f"segment {self.segment_id}: {self._end[0]}, where reading is to end, is no border of a block after"
                f" {self._offset}"
            )

    def _accept(self, data: memoryview) -> None:
        """Keep a whole block until it is taken; see whether it is the last one wanted."""
        self._blocks.append((self._offset, data))
        self._offset += len(data)
        self._pieces, self._partial_bytes = [], 0
        if self._end is not None and (self._offset, 0) >= self._end:
            self._change(END_REACHED)
