"""What goes to tier 2, when, and what a failing tier 2 does to everybody else."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.container.checkpoint_copies import COPIES_KEPT
from millrace.server.container.segment import Segment
from millrace.wire import frames as f
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.support.protocol import Peer, Stored, code_of
from tests.support.servers import BUSY, QUIET, SMALL_WAL, server_options
from tests.support.storage import FaultyStorage


def segment_of(server: Server, segment_id: int) -> Segment:
    assert server._open is not None
    return server._open.container.segment(segment_id)


async def flushed(server: Server, peer: Peer, segment_id: int) -> None:
    """Wait until a segment is in tier 2."""
    async with asyncio.timeout(10):
        while segment_of(server, segment_id).tail:
            await peer.info(segment_id)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_full_tier_2_throttles_then_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """Behaviour 44: the log grows to its bound, then refuses; everything is stored when there is space again."""
    storage = FaultyStorage(capacity_bytes=100 * KIB)
    async with (
        Server(server_options(tmp_path, container=BUSY), storage=storage) as server,
        await Peer.connect(server.address) as peer,
    ):
        segment_id = await peer.create_segment("raw/a")
        content = b""
        refused = 0
        async with asyncio.timeout(30):
            while refused < 3:
                piece = bytes([len(content) // KIB % 251]) * (4 * KIB)
                (outcome,) = await peer.settled(await peer.append(segment_id, piece))
                if isinstance(outcome, Stored):
                    content += piece
                else:
                    assert outcome is ErrorCode.NO_SPACE
                    refused += 1
        assert len(content) > 300 * KIB
        assert await peer.read_all(segment_id) == content
        storage.capacity_bytes = None
        async with asyncio.timeout(30):
            while not isinstance((await peer.settled(await peer.append(segment_id, b"end")))[0], Stored):
                pass
        await flushed(server, peer, segment_id)
        assert await peer.read_all(segment_id) == content + b"end"


@pytest.mark.slow
@pytest.mark.asyncio
async def test_deleting_makes_room_in_a_tier_2_that_is_too_full_to_flush(tmp_path: Path) -> None:
    """Behaviour 44: deletes work, and it recovers by itself; the copy of the checkpoint must still fit."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=BUSY, wal=replace(SMALL_WAL, files_max=32))
    async with (
        Server(options, storage=storage) as server,
        await Peer.connect(server.address) as peer,
    ):
        doomed, segment_id = await peer.create_segment("raw/doomed"), await peer.create_segment("raw/a")
        await peer.store(doomed, *[bytes(8 * KIB)] * 50)
        await flushed(server, peer, doomed)
        storage.capacity_bytes = storage.size_bytes + 260 * KIB
        await peer.store(segment_id, *[bytes(8 * KIB)] * 60)
        await asyncio.sleep(0.2)
        assert segment_of(server, segment_id).tail
        await peer.ask(f.DeleteSegment(doomed), f.Done)
        await flushed(server, peer, segment_id)
        assert await peer.read_all(segment_id) == bytes(480 * KIB)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_one_damaged_chunk_holds_up_no_other_flush(tmp_path: Path) -> None:
    """Behaviour 41: only its range refuses; what is appended behind it is flushed, for this segment and others."""
    storage = FaultyStorage()
    container = replace(BUSY, chunk_size_bytes_small=48 * KIB)
    options = server_options(tmp_path, container=container)
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        a, b = await peer.create_segment("raw/a"), await peer.create_segment("raw/b")
        await peer.store(a, b"a" * 100)
        await flushed(server, peer, a)
        for name in storage.names():
            storage.replace(name, bytes(len(await storage.read(name, offset=0, size=1 << 20))))
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        await peer.store(a, b"A" * 100)
        await peer.store(b, b"B" * 100)
        await flushed(server, peer, a)
        await flushed(server, peer, b)
        assert await peer.read_all(b) == b"B" * 100
        assert await peer.read_all(a, start=100) == b"A" * 100
        assert await code_of(peer.read(a, 0)) is ErrorCode.SEGMENT_DAMAGED


@pytest.mark.slow
@pytest.mark.asyncio
async def test_chunks_are_deleted_only_when_no_copy_in_use_refers_to_them(tmp_path: Path) -> None:
    """Behaviour 41: with the checkpoint lost at any time, its newest copy in tier 2 leads to all bytes."""
    storage = FaultyStorage()
    referred: list[tuple[str, bool]] = []

    def step(when: str, action: str, name: str) -> None:
        if (when, action) == ("before", "delete") and name.startswith("segments/"):
            newest = storage.names("checkpoints/")[-1]
            referred.append((name, name.encode() in storage._chunks[newest]))

    storage.on_step = step
    container = replace(BUSY, chunk_size_bytes_small=32 * KIB)
    async with (
        Server(server_options(tmp_path, container=container), storage=storage) as server,
        await Peer.connect(server.address) as peer,
    ):
        segment_id = await peer.create_segment("raw/a")
        async with asyncio.timeout(20):
            while len(referred) < 5:
                await peer.store(segment_id, bytes(500))
                await flushed(server, peer, segment_id)
        assert not any(is_referred for _, is_referred in referred)
        assert len(storage.names("checkpoints/")) <= COPIES_KEPT + 1
        storage.on_step = lambda when, action, name: None


@pytest.mark.slow
@pytest.mark.asyncio
async def test_flushing_goes_on_while_nobody_writes(tmp_path: Path) -> None:
    """Behaviour 51: writers that are throttled send nothing that would wake the flusher."""
    storage = FaultyStorage()
    storage.open.clear()
    container = replace(QUIET, flush_size_bytes=8 * KIB, chunk_size_bytes_max=8 * KIB)
    options = server_options(tmp_path, container=container, wal=replace(SMALL_WAL, files_max=32))
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, *[bytes(4 * KIB)] * 20)
        storage.open.set()
        async with asyncio.timeout(10):
            while segment_of(server, segment_id).tail.size >= 8 * KIB:
                await peer.info(segment_id)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_segment_emptied_while_it_waits_to_be_flushed_stops_nobody(tmp_path: Path) -> None:
    storage = FaultyStorage()
    async with (
        Server(server_options(tmp_path, container=BUSY), storage=storage) as server,
        await Peer.connect(server.address) as peer,
    ):
        kept = await peer.create_segment("raw/kept")
        for number in range(100):
            segment_id = await peer.create_segment(f"raw/s{number}")
            await peer.store(segment_id, bytes(2000))
            await peer.append(kept, bytes(100))
            await peer.start(f.TruncateSegment(segment_id, 2000) if number % 2 else f.DeleteSegment(segment_id))
        await flushed(server, peer, kept)
        assert server._fatal is None
        assert (await peer.info(kept)).length == 10_000


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_index_in_memory_stays_thin(tmp_path: Path) -> None:
    """What is in tier 2 costs one entry a chunk in memory, however long the segment."""
    async with (
        Server(server_options(tmp_path, container=BUSY, wal=replace(SMALL_WAL, files_max=64))) as server,
        await Peer.connect(server.address) as peer,
    ):
        segment_id = await peer.create_segment("raw/a")
        for _ in range(40):
            await peer.store(segment_id, *[bytes(15 * KIB)] * 4)
        await flushed(server, peer, segment_id)
        segment = segment_of(server, segment_id)
        segment.index.check()
        assert len(segment.index) <= len(segment.chunks) + 2
