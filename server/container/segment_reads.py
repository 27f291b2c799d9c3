"""Reads of segments, wherever the bytes are: in memory, in tier 2, or in a segment that was merged into this one."""

from functools import partial

from millrace.server.cache import PendingRead
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import Segment
from millrace.server.errors import SegmentDamagedError, SegmentNotFoundError, StorageError

from .catch_up_reader import CatchUpReader
from .log_loss import LogLoss
from .memtable import LinkedExtent


class SegmentReads:
    """Answers reads of the segments of a container. Belongs to one event loop.

    Args:
        state: what is in memory.
        tier2: reads the rest.
        loss: what the log has lost, None if nothing.
    """

    def __init__(self, state: ContainerState, tier2: CatchUpReader, loss: LogLoss | None) -> None:
        self._state = state
        self._tier2 = tier2
        self._loss = loss

    def check_readable(self, segment: Segment, offset: int) -> None:
        """Raise if a read may not start there.

        Raises:
            SegmentError: the offset cannot be read, also because the log contradicts what the segment has there.
            ContentLostError: it is beyond what is left of a segment of which content was lost.
        """
        if self._loss is not None and offset > segment.length and not segment.sealed:
            raise self._loss.error()
        segment.check_readable(offset)
        if self._state.quarantine:
            self._state.quarantine.check_readable(segment, offset)

    def start(self, segment: Segment, offset: int, size_max: int) -> list[memoryview] | PendingRead:
        """Return at least one and up to `size_max` bytes from `offset` on: at once, or from tier 2 when awaited.

        An empty list means that `offset` is the tail.

        Raises:
            SegmentError: the offset cannot be read; also from awaiting, as of then.
            StorageError: tier 2 failed; from awaiting.
        """
        self.check_readable(segment, offset)
        if offset == segment.length:
            return []
        extent = segment.extent_at(offset)
        if extent is None:
            found = self._tier2.read(segment, offset, size_max)
            return found if isinstance(found, list) else PendingRead(partial(self._fetched, found, segment, offset))
        if isinstance(extent, LinkedExtent):
            place = extent.source_offset + offset - extent.offset
            found = self.start(self._state.segments[extent.source_id], place, min(size_max, extent.end - offset))
            if isinstance(found, list):
                return found
            return PendingRead(partial(self._fetched_of_merged, found, segment, extent, offset, size_max))
        return segment.tail.read(offset, size_max)

    async def read(self, segment: Segment, offset: int, size_max: int) -> list[memoryview]:
        """Return what `start` finds, waiting for it if it is in tier 2. Safe to cancel."""
        found = self.start(segment, offset, size_max)
        return found if isinstance(found, list) else await found

    async def _fetched(self, found: PendingRead, segment: Segment, offset: int) -> list[memoryview]:
        try:
            pieces = await found
        except (SegmentDamagedError, StorageError):
            # Chunks are deleted when a segment is truncated or deleted. Then that is the error to raise.
            segment.check_readable(offset)
            raise
        segment.check_readable(offset)
        return pieces

    async def _fetched_of_merged(
        self, found: PendingRead, segment: Segment, extent: LinkedExtent, offset: int, size_max: int
    ) -> list[memoryview]:
        try:
            return await found
        except SegmentNotFoundError:
            # Its bytes were copied to chunks of this segment during the read, and it was deleted: read them here.
            if segment.extent_at(offset) is extent:
                raise
        return await self.read(segment, offset, size_max)
