"""A block sender against a server that answers when the test says so."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millrace.client.errors import ConnectionLostError
from millrace.client.transport.channel import Channel
from millrace.client.write.accumulator import Accumulator
from millrace.client.write.block_sender import BlockSender
from millrace.client.write.events import Block, Events
from millrace.client.write.segment_writer import SegmentWriter
from millrace.model.compression import Compression
from millrace.model.errors import MillraceError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES
from tests.support.model_server import WRITER_NUMBER, ModelServer, turns


class Sending:
    """A sender of two segments, and what it was told."""

    def __init__(self, channel: Channel, *, in_flight_bytes_max: int) -> None:
        self.acked: list[tuple[int, int, int | None]] = []
        self.failed: list[tuple[int, int, MillraceError]] = []
        self.missing: list[MillraceError] = []
        self.segments = {
            segment_id: SegmentWriter(segment_id, Accumulator(last_event_number=0, compression=Compression.NONE))
            for segment_id in (1, 2)
        }
        self.sender = BlockSender(
            channel,
            in_flight_bytes_max=in_flight_bytes_max,
            stored_below=lambda: 0,
            on_acked=self._on_acked,
            on_failed=self._on_failed,
            on_missing=self.missing.append,
        )
        self.sender.start(WRITER_NUMBER, 1)

    def add(self, segment_id: int, count: int) -> None:
        """Queue so many blocks of 100 bytes and more in a segment, and send them as far as there is room."""
        segment = self.segments[segment_id]
        for _ in range(count):
            events = Events([b"x" * 100], None, 0, [], 0)
            (block,) = segment.accumulator.pack(events, APPEND_SIZE_BYTES_MAX)
            segment.add(block)
        self.sender.pump(segment)

    def _on_acked(self, segment: SegmentWriter, block: Block, offset: int | None) -> None:
        self.acked.append((segment.segment_id, block.event_number, offset))
        segment.acked(block)
        self.sender.pump_waiting()

    def _on_failed(self, segment: SegmentWriter, block: Block, error: MillraceError) -> None:
        self.failed.append((segment.segment_id, block.event_number, error))
        segment.failed(block, error)


@asynccontextmanager
async def sending(
    server: ModelServer, *, in_flight_bytes_max: int = 1 << 20, connected: bool = True
) -> AsyncIterator[Sending]:
    channel = server.channel()
    if connected:
        await channel.connection()
    try:
        yield Sending(channel, in_flight_bytes_max=in_flight_bytes_max)
    finally:
        await channel.close()


def arrived(server: ModelServer) -> list[tuple[int, int]]:
    return [(append.segment_id, append.event_number) for append in server.arrived]


@pytest.mark.asyncio
async def test_what_is_sent_counts_as_in_flight_until_it_is_answered() -> None:
    server = ModelServer(segment_count=2)
    async with sending(server) as sends:
        sends.add(1, 2)
        await turns()
        assert arrived(server) == [(1, 1), (1, 2)]
        sizes = [len(append.payload) + APPEND_HEADER_SIZE_BYTES for append in server.arrived]
        assert sends.sender.in_flight_bytes == sum(sizes)
        server.answer(1)
        assert sends.acked == [(1, 1, 0)]
        assert sends.sender.in_flight_bytes == sizes[1]
        server.refuse(ErrorCode.THROTTLED, retriable=True)
        assert [each[:2] for each in sends.failed] == [(1, 2)]
        assert sends.sender.in_flight_bytes == 0


@pytest.mark.asyncio
async def test_a_block_above_the_bound_is_sent_alone_and_segments_take_turns() -> None:
    """However much the others have: each block that was answered makes room for the segment that waits longest."""
    server = ModelServer(segment_count=2)
    async with sending(server, in_flight_bytes_max=1) as sends:
        sends.add(1, 3)
        sends.add(2, 3)
        sent = []
        for _ in range(6):
            await turns()
            (append,) = arrived(server)
            sent.append(append)
            server.answer()
        assert sent == [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (2, 3)]


@pytest.mark.asyncio
async def test_segments_wait_for_room_on_the_connection_together() -> None:
    """Each that asked for itself would let all of them ask again, and so on."""
    server = ModelServer(segment_count=2)
    server.appends_in_flight_max = 1
    async with sending(server) as sends:
        sends.add(1, 2)
        sends.add(2, 2)
        connection = sends.sender._channel.live
        assert connection is not None
        for _ in range(4):
            await turns()
            assert len(server.arrived) == 1
            assert len(connection._room_waiters) <= 1
            server.answer()
        assert sorted(each[:2] for each in sends.acked) == [(1, 1), (1, 2), (2, 1), (2, 2)]


@pytest.mark.asyncio
async def test_without_a_connection_the_owner_is_told_and_nothing_is_sent() -> None:
    server = ModelServer(segment_count=2)
    async with sending(server, connected=False) as sends:
        sends.add(1, 1)
        assert [type(error) for error in sends.missing] == [ConnectionLostError]
        assert sends.segments[1].next_block() is not None
        assert sends.sender.in_flight_bytes == 0


@pytest.mark.asyncio
async def test_what_is_lost_with_its_connection_has_failed() -> None:
    server = ModelServer(segment_count=2)
    async with sending(server) as sends:
        sends.add(1, 2)
        await turns()
        server.lose()
        assert [(each[1], type(each[2])) for each in sends.failed] == [
            (1, ConnectionLostError),
            (2, ConnectionLostError),
        ]
        assert sends.sender.in_flight_bytes == 0
