"""Sends the blocks of one writer through the connection of its channel, as far as there is room in flight.

There is room while the bytes of the writer in flight, and those of all writers on the connection, are within their
limits. A block larger than the limit of the writer is sent alone. Segments that found no room are served in turn, once
there is some.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from millrace.client.errors import ConnectionLostError
from millrace.client.transport.channel import Channel
from millrace.client.transport.connection import Connection
from millrace.model.errors import MillraceError
from millrace.wire.append_run import Sequences
from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES

from .events import Block
from .segment_writer import SegmentWriter


@dataclass(slots=True, eq=False)
class _Flight:
    """A block in flight, as its connection sees it."""

    _sender: "BlockSender"
    _segment: SegmentWriter
    _block: Block

    def acked(self, offset: int | None) -> None:
        self._sender.acked(self._segment, self._block, offset)

    def failed(self, error: MillraceError) -> None:
        self._sender.failed(self._segment, self._block, error)


class BlockSender:
    """Sends one writer's blocks to the server.

    Args:
        in_flight_bytes_max: the limit of this writer.
        stored_below: returns the sequence below which all events are stored.
        on_acked: called with each durable block and its offset; None for a duplicate whose offset is unknown.
        on_failed: called with each block that was rejected, or whose connection was lost.
        on_missing: called if there is no connection; call `pump` again when there is one.

    Attributes:
        in_flight_bytes: size of the blocks without an answer yet, including headers.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        in_flight_bytes_max: int,
        stored_below: Callable[[], int],
        on_acked: Callable[[SegmentWriter, Block, int | None], None],
        on_failed: Callable[[SegmentWriter, Block, MillraceError], None],
        on_missing: Callable[[MillraceError], None],
    ) -> None:
        self._channel = channel
        self._in_flight_bytes_max = in_flight_bytes_max
        self._stored_below = stored_below
        self._on_acked = on_acked
        self._on_failed = on_failed
        self._on_missing = on_missing
        self._number = 0
        self._epoch = 0
        self.in_flight_bytes = 0
        # Segments with blocks that wait for room, in order.
        self._waiting: deque[SegmentWriter] = deque()
        # Done when the connection has room. One for all segments: otherwise each would pump all, and all would retry.
        self._room: asyncio.Future[None] | None = None

    def start(self, number: int, epoch: int) -> None:
        """Use this number and epoch of the writer from now on."""
        self._number, self._epoch = number, epoch

    def pump(self, segment: SegmentWriter) -> None:
        """Send the blocks of a segment as far as there is room; the others are sent when there is some."""
        while (block := segment.next_block()) is not None:
            connection = self._connection_with_room(segment, len(block.payload))
            if connection is None:
                return
            segment.sent()
            self.in_flight_bytes += len(block.payload) + APPEND_HEADER_SIZE_BYTES
            try:
                connection.send_append(
                    _Flight(self, segment, block),
                    block.payload,
                    segment_id=segment.segment_id,
                    event_count=block.event_count,
                    writer_number=self._number,
                    writer_epoch=self._epoch,
                    event_number=block.event_number,
                    sequences=self._sequences_of(block),
                )
            except MillraceError as error:
                self.failed(segment, block, error)

    def pump_waiting(self) -> None:
        """Send the blocks of the waiting segments, in turn, as far as there is room now."""
        while self._waiting:
            segment = self._waiting.popleft()
            self.pump(segment)
            if segment in self._waiting:
                return  # it found no room for all of its blocks, and waits after the others

    def acked(self, segment: SegmentWriter, block: Block, offset: int | None) -> None:
        """Process the ack of a block; called by the connection."""
        self.in_flight_bytes -= len(block.payload) + APPEND_HEADER_SIZE_BYTES
        self._on_acked(segment, block, offset)

    def failed(self, segment: SegmentWriter, block: Block, error: MillraceError) -> None:
        """Process the failure of a block; called by the connection."""
        self.in_flight_bytes -= len(block.payload) + APPEND_HEADER_SIZE_BYTES
        self._on_failed(segment, block, error)

    def _connection_with_room(self, segment: SegmentWriter, payload_size: int) -> Connection | None:
        """Return the connection if a block may be sent now; else pump the segment when it may."""
        connection = self._channel.live
        if connection is None:
            self._on_missing(ConnectionLostError(f"not connected to {self._channel.address}"))
            return None
        is_full = not connection.has_room(payload_size)
        size = payload_size + APPEND_HEADER_SIZE_BYTES
        if is_full or (self.in_flight_bytes and self.in_flight_bytes + size > self._in_flight_bytes_max):
            if segment not in self._waiting:
                self._waiting.append(segment)
                if is_full and (self._room is None or self._room.done()):
                    self._room = connection.room_waiter()
                    self._room.add_done_callback(lambda _: self.pump_waiting())
            return None
        return connection

    def _sequences_of(self, block: Block) -> Sequences | None:
        """Return the sequences for the frame of a block that is sent now."""
        if block.sequences is None:
            return None
        return Sequences(block.sequences[0], block.sequences[-1], self._stored_below())
