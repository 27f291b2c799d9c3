"""Reads that wait at the tail, and subscriptions."""

import asyncio
import gc
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.cache import CacheOptions
from millrace.server.container.options import ContainerOptions
from millrace.server.front.options import FrontOptions
from millrace.server.front.reads import Subscription
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from millrace.wire.limits import KIB, MIB
from tests.support.protocol import Peer, RefusedError, code_of, read_request
from tests.support.servers import BUSY, SMALL_WAL, server_options
from tests.support.transactions import PeerTransaction, create_stream
from tests.support.waiting import PATIENCE_S, settled, until


async def parked(peer: Peer, segment_id: int, offset: int, *, wait_ms: int = 60_000) -> int:
    """Send a read that waits, and return its id when the server has it."""
    request_id = await peer.start(read_request(segment_id, offset, wait_ms=wait_ms))
    await peer.info(segment_id)
    return request_id


async def pushed(peer: Peer, size: int) -> bytes:
    """Return that many bytes of a subscription."""
    content = b""
    while len(content) < size:
        _, message = await peer.receive()
        assert isinstance(message, m.Data), message
        content += message.payload
    assert len(content) == size
    return content


@pytest.mark.asyncio
async def test_a_parked_reader_wakes_with_the_commit(peer: Peer, server: Server) -> None:
    (segment_id,) = await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    async with await Peer.connect(server.address) as reader:
        waiting = await parked(reader, segment_id, 0)
        await transaction.commit()

        assert bytes((await reader.reply(waiting, m.Data)).payload) == b"event"


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_parked_read_wakes_with_what_became_durable(peer: Peer, other: Peer) -> None:
    """Behaviour 14: a read at the tail waits, and wakes."""
    segment_id = await peer.create_segment("raw/a")
    await peer.store(segment_id, b"before")
    request_id = await parked(other, segment_id, 6)
    await peer.store(segment_id, b"hello")
    data = await other.reply(request_id, m.Data)
    assert (data.offset, bytes(data.payload), data.length) == (6, b"hello", 11)


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_thousand_parked_readers_all_wake(tmp_path: Path) -> None:
    """Behaviour 14: a thousand parked readers all wake."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as writer:
        segment_id = await writer.create_segment("raw/a")
        readers = [await Peer.connect(server.address) for _ in range(20)]
        request = read_request(segment_id, 0, wait_ms=60_000)
        waiting = [(reader, await reader.start(request)) for reader in readers for _ in range(50)]
        for reader in readers:
            await reader.info(segment_id)
        await writer.store(segment_id, b"x")
        for reader, request_id in waiting:
            assert bytes((await reader.reply(request_id, m.Data)).payload) == b"x"
        assert not server.opened.container.segment(segment_id).watchers
        for reader in readers:
            await reader.close()


@pytest.mark.asyncio
async def test_a_parked_read_that_waited_long_enough_is_answered_empty(peer: Peer) -> None:
    segment_id = await peer.create_segment("raw/a")
    header_id = await peer.start(read_request(segment_id, 0, wait_ms=30))
    header, data = await peer.receive()
    assert isinstance(data, m.Data)
    assert (header.request_id, header.flags, bytes(data.payload)) == (header_id, m.DataFlag.AT_TAIL, b"")


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_parked_read_is_released_by_the_seal(peer: Peer, other: Peer) -> None:
    """Behaviour 15: end of segment, at once at a sealed end and for a reader that is parked."""
    segment_id = await peer.create_segment("raw/a")
    await peer.store(segment_id, b"abc")
    request_id = await parked(other, segment_id, 3)
    await peer.ask(m.SealSegment(segment_id), m.SegmentInfo)
    for _ in range(2):
        header, data = await other.receive()
        assert isinstance(data, m.Data)
        assert header.request_id == request_id
        assert header.flags == m.DataFlag.AT_TAIL | m.DataFlag.END_OF_SEGMENT
        request_id = await other.start(read_request(segment_id, 3, wait_ms=60_000))
    await other.receive()


@pytest.mark.asyncio
async def test_a_parked_read_is_released_by_the_delete(peer: Peer, other: Peer) -> None:
    """Behaviour 15: a parked reader is released by the delete."""
    segment_id = await peer.create_segment("raw/a")
    request_id = await parked(other, segment_id, 0)
    await peer.ask(m.DeleteSegment(segment_id), m.Done)
    assert await code_of(other.reply(request_id, m.Data)) is ErrorCode.SEGMENT_NOT_FOUND


@pytest.mark.asyncio
async def test_a_parked_read_is_released_by_the_truncate(peer: Peer, other: Peer) -> None:
    """Behaviour 15: a parked reader is released by the truncate."""
    segment_id = await peer.create_segment("raw/a")
    await peer.store(segment_id, b"abc")
    request_id = await parked(other, segment_id, 3)
    await peer.ask(m.TruncateSegment(segment_id, 3), m.SegmentInfo)
    data = await other.reply(request_id, m.Data)
    assert (data.offset, data.length, bytes(data.payload)) == (3, 3, b"")


@pytest.mark.asyncio
async def test_reads_outside_the_range_are_told_the_range(peer: Peer) -> None:
    """Behaviour 16: below the start Truncated with the valid range, beyond the length OffsetBeyondEnd."""
    segment_id = await peer.create_segment("raw/a")
    await peer.store(segment_id, b"abcdef")
    await peer.ask(m.TruncateSegment(segment_id, 4), m.SegmentInfo)
    for offset, code in (
        (0, ErrorCode.SEGMENT_TRUNCATED),
        (3, ErrorCode.SEGMENT_TRUNCATED),
        (7, ErrorCode.OFFSET_BEYOND_END),
    ):
        with pytest.raises(RefusedError) as caught:
            await peer.read(segment_id, offset, wait_ms=1000)
        reply = caught.value.reply
        assert (caught.value.code, reply.start_offset, reply.length) == (code, 4, 6)
    assert bytes((await peer.read(segment_id, 4)).payload) == b"ef"
    assert await code_of(peer.read(segment_id, 4, size_max=0)) is ErrorCode.INVALID_ARGUMENT


@pytest.mark.asyncio
async def test_parked_reads_of_a_connection_are_bounded(tmp_path: Path) -> None:
    options = server_options(tmp_path, front=FrontOptions(parked_reads_count_max=3))
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        for _ in range(3):
            await parked(peer, segment_id, 0)
        assert await code_of(peer.read(segment_id, 0, wait_ms=1000)) is ErrorCode.THROTTLED
        assert await code_of(peer.ask(m.Subscribe(segment_id, 0, 1), m.Data)) is ErrorCode.THROTTLED


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_subscription_pushes_as_far_as_its_credit(tmp_path: Path) -> None:
    async with (
        Server(server_options(tmp_path)) as server,
        await Peer.connect(server.address) as writer,
        await Peer.connect(server.address) as reader,
    ):
        segment_id = await writer.create_segment("raw/a")
        await writer.store(segment_id, b"0123456789")
        request_id = await reader.start(m.Subscribe(segment_id, 2, 5))
        assert await pushed(reader, 5) == b"23456"
        await writer.store(segment_id, b"abc")
        with pytest.raises(TimeoutError):
            await reader.receive(timeout_s=0.05)
        await reader.send(encode(m.Credit(100), request_id=request_id))
        assert await pushed(reader, 6) == b"789abc"
        await writer.store(segment_id, b"def")
        assert await pushed(reader, 3) == b"def"
        await reader.send(encode(m.Unsubscribe(), request_id=request_id))
        await reader.info(segment_id)
        await writer.store(segment_id, b"ghi")
        with pytest.raises(TimeoutError):
            await reader.receive(timeout_s=0.05)


@pytest.mark.asyncio
async def test_a_subscription_ends_with_the_segment(server: Server, peer: Peer) -> None:
    """Behaviour 15: the end of a sealed segment is pushed, also without credit, and once."""
    segment_id = await peer.create_segment("raw/a")
    await peer.store(segment_id, b"abc")
    subscription = await peer.start(m.Subscribe(segment_id, 0, 3))
    assert await pushed(peer, 3) == b"abc"
    seal = await peer.start(m.SealSegment(segment_id))
    header, data = await peer.receive()
    assert isinstance(data, m.Data)
    assert header.request_id == subscription
    assert header.flags & m.DataFlag.END_OF_SEGMENT
    await peer.reply(seal, m.SegmentInfo)
    assert not server.opened.container.segment(segment_id).watchers


@pytest.mark.asyncio
async def test_a_subscription_that_was_overtaken_by_truncation_is_told(peer: Peer) -> None:
    segment_id = await peer.create_segment("raw/a")
    await peer.store(segment_id, b"abcdef")
    subscription = await peer.start(m.Subscribe(segment_id, 0, 2))
    assert await pushed(peer, 2) == b"ab"
    await peer.start(m.TruncateSegment(segment_id, 4))
    assert await code_of(peer.reply(subscription, m.Data)) is ErrorCode.SEGMENT_TRUNCATED


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_subscription_goes_from_tier_2_to_the_tail_without_a_seam(tmp_path: Path) -> None:
    """Behaviour 16: never a gap, never out of order, across tier 2, cache and tail, under load."""
    pieces = [number.to_bytes(4, "little") * 512 for number in range(300)]
    async with (
        Server(server_options(tmp_path, container=BUSY)) as server,
        await Peer.connect(server.address) as writer,
        await Peer.connect(server.address) as reader,
    ):
        segment_id = await writer.create_segment("raw/a")
        await writer.store(segment_id, *pieces[:20])
        await settled(server)
        await reader.start(m.Subscribe(segment_id, 0, 4 * MIB))

        async def write() -> None:
            for piece in pieces[20:]:
                await writer.store(segment_id, piece)

        writing = asyncio.create_task(write())
        assert await pushed(reader, 2 * KIB * 300) == b"".join(pieces)
        await writing


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_subscriber_that_stops_reading_costs_bounded_memory(tmp_path: Path) -> None:
    """Behaviour 18: a reader that stops reading costs bounded memory, and slows nobody."""
    front = FrontOptions(write_buffer_bytes_high=64 * KIB)
    async with (
        Server(server_options(tmp_path, front=front)) as server,
        await Peer.connect(server.address) as writer,
        await Peer.connect(server.address, read_ahead=1 << 10) as deaf,
    ):
        segment_id = await writer.create_segment("raw/a")
        for _ in range(200):
            await deaf.start(m.Subscribe(segment_id, 0, 1 << 30))
        for number in range(8):
            await writer.store(segment_id, bytes([number]) * (32 * KIB))
        assert server.statistics()["front"].sent_data_bytes_total < 32 * MIB
        total = 0
        while total < 200 * 256 * KIB:
            _, message = await deaf.receive()
            assert isinstance(message, m.Data)
            total += len(message.payload)


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_subscriptions_of_one_connection_are_served_in_turns(tmp_path: Path) -> None:
    """Behaviour 105: while the peer takes less than there is, none gets less than half of the mean."""
    count, size = 60, 512 * KIB
    front = FrontOptions(write_buffer_bytes_high=256 * KIB)
    async with (
        Server(server_options(tmp_path, front=front)) as server,
        await Peer.connect(server.address) as writer,
        await Peer.connect(server.address, read_ahead=64 * KIB) as reader,
    ):
        segment_id = await writer.create_segment("raw/a")
        for _ in range(size // (32 * KIB)):
            await writer.store(segment_id, bytes(32 * KIB))
        # All at once, so that the server has them before the peer takes anything.
        ids = [reader.next_id() for _ in range(count)]
        await reader.send(b"".join(encode(m.Subscribe(segment_id, 0, size), request_id=each) for each in ids))
        received = dict.fromkeys(ids, 0)
        while sum(received.values()) < count * size // 2:
            header, message = await reader.receive()
            assert isinstance(message, m.Data)
            received[header.request_id] += len(message.payload)
        mean = sum(received.values()) / count
        assert min(received.values()) >= mean / 2
        while sum(received.values()) < count * size:
            header, message = await reader.receive()
            assert isinstance(message, m.Data)
            received[header.request_id] += len(message.payload)
        assert set(received.values()) == {size}


@pytest.mark.asyncio
async def test_a_connection_that_is_lost_leaves_no_reader(server: Server, peer: Peer) -> None:
    segment_id = await peer.create_segment("raw/a")
    async with await Peer.connect(server.address) as gone:
        await parked(gone, segment_id, 0)
        await gone.start(m.Subscribe(segment_id, 0, 10))
        await gone.info(segment_id)
    watchers = server.opened.container.segment(segment_id).watchers
    async with asyncio.timeout(PATIENCE_S):
        while watchers:
            await peer.info(segment_id)
    await peer.store(segment_id, b"x")


@pytest.mark.asyncio
async def test_what_was_fetched_for_a_peer_that_left_does_not_stay(tmp_path: Path) -> None:
    """Behaviour 86: nor until garbage is collected, which may be never; it ended while the disk was read for it."""
    caching = CacheOptions(budget_bytes=4 * MIB)
    async with Server(
        server_options(
            tmp_path,
            cache=caching,
            container=ContainerOptions(flush_age_s=0.01),
            wal=replace(SMALL_WAL, file_size_bytes=4 * MIB),
        )
    ) as server:
        async with await Peer.connect(server.address) as writer:
            segment_id = await writer.create_segment("raw/a")
            for _ in range(256):
                await writer.store(segment_id, bytes(32 * KIB))
            await settled(server)
        gc.collect()
        gc.disable()
        try:
            for number in range(20):
                async with await Peer.connect(server.address) as gone:
                    gone.push(encode(m.Subscribe(segment_id, number % 8 * MIB, 8 * MIB), request_id=gone.next_id()))
                await until(lambda: server.statistics()["server"].connections == 0)
            await until(lambda: not any(isinstance(found, Subscription) for found in gc.get_objects()))
        finally:
            gc.enable()
