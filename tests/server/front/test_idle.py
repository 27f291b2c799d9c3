"""Connections whose requests are about idle segments: what they are about has to be loaded first."""

import asyncio
import contextlib
import gc
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.wire import messages as m
from millrace.wire.append_pipeline import BROKEN_COUNT_MAX
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from millrace.wire.limits import KIB
from millrace.wire.server_session import ClientFrame
from tests.support.databases import FaultyDatabases
from tests.support.protocol import Peer, Stored, append_frame
from tests.support.servers import QUIET, server_options
from tests.support.storage import FaultyStorage
from tests.support.waiting import PATIENCE_S, until

IDLE = replace(QUIET, idle_bytes_max=0)
COUNT = 12


async def checkpoint(server: Server) -> None:
    """Let everything be idle."""
    await server.opened.flusher.flush()
    await server.opened.flusher.checkpoint()


async def check_idle(server: Server) -> None:
    """Check that nothing is in memory, once nobody is connected."""
    await until(lambda: not server.connections)
    await asyncio.sleep(0)  # idle entities leave memory after the step in which they fell idle
    gc.collect()
    # The log still holds its last batch, and what that was about.
    assert len(server.opened.container.state.segments.present()) <= 1


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_appends_to_idle_segments_keep_their_order(tmp_path: Path) -> None:
    """Behaviours 1 and 10: each waits for its segment, and what comes after it on the connection waits, too."""
    async with Server(server_options(tmp_path, container=IDLE)) as server:
        async with await Peer.connect(server.address) as peer:
            segments = [await peer.create_segment(f"raw/{number}") for number in range(COUNT)]
            other = await peer.create_segment("raw/other")
            writers = [await peer.open_writer(f"w{number}", segments[number]) for number in range(COUNT)]
        for turn in range(3):
            await checkpoint(server)
            await check_idle(server)
            async with await Peer.connect(server.address) as peer:
                sent: list[int] = []
                for part in range(2):
                    for segment_id, writer in zip(segments, writers, strict=True):
                        sent += await peer.append(
                            segment_id,
                            *(f"{turn}{part}{index}".encode() for index in range(3)),
                            event_number=6 * turn + 3 * part + 1,
                            writer_number=writer.writer_number,
                            writer_epoch=writer.writer_epoch,
                        )
                assert all(isinstance(outcome, Stored) for outcome in await peer.settled(sent))
                await peer.store(other, b"the log holds its last batch")
        async with await Peer.connect(server.address) as peer:
            expected = b"".join(b"%d%d%d" % (turn, part, n) for turn in range(3) for part in range(2) for n in range(3))
            for segment_id in segments:
                assert await peer.read_all(segment_id) == expected


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_subscription_to_an_idle_segment_gets_the_credit_that_follows_it(tmp_path: Path) -> None:
    async with Server(server_options(tmp_path, container=IDLE)) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"x" * 100)
        await checkpoint(server)

        request_id = await peer.start(m.Subscribe(segment_id, 0, 0))
        await peer.send(encode(m.Credit(60), request_id=request_id))
        _, data = await peer.receive()
        assert isinstance(data, m.Data)
        assert bytes(data.payload) == b"x" * 60


@pytest.mark.asyncio
async def test_a_connection_that_is_lost_before_its_load_begins_leaves_nothing(tmp_path: Path) -> None:
    """Not even a warning, of something that was to be loaded and never was."""
    async with Server(server_options(tmp_path, container=IDLE)) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"x")
        await checkpoint(server)
        (connection,) = server.connections
        read = m.Read(segment_id=segment_id, offset=0, size_max=100, wait_ms=0)

        connection._dispatcher.take(ClientFrame(1, read))
        connection._dispatcher.cancel()

        await until(lambda: connection._dispatcher.is_idle)
        gc.collect()  # what is left tells of itself then, and fails this


@pytest.mark.asyncio
async def test_a_violation_by_an_append_that_waited_to_be_loaded_is_told_as_one(tmp_path: Path) -> None:
    """Behaviour 49: a protocol error, whatever the connection was waiting for."""
    async with Server(server_options(tmp_path, container=IDLE)) as server:
        async with await Peer.connect(server.address) as peer:
            idle = await peer.create_segment("raw/idle")
            await peer.store(idle, b"x")
            await peer.create_segment("raw/last")  # the log holds its last batch
        await checkpoint(server)
        await check_idle(server)
        async with await Peer.connect(server.address) as peer:
            first = peer.next_id(BROKEN_COUNT_MAX + 1)
            failing = [
                append_frame(99_999 + number, b"x", request_id=first + number) for number in range(BROKEN_COUNT_MAX)
            ]
            # One failed pipeline too many, and its segment has to be loaded first.
            last = append_frame(idle, b"x", request_id=first + BROKEN_COUNT_MAX, expected_offset=7)
            await peer.send(*failing, last)
            replies = await peer.ended()
            assert isinstance(replies[-1], m.ErrorReply)
            assert replies[-1].code == ErrorCode.PROTOCOL
            assert "no PONG came" in replies[-1].message
        assert server.counters.protocol_errors_total == 1


@pytest.mark.asyncio
async def test_nothing_is_read_for_one_who_has_not_said_hello(tmp_path: Path) -> None:
    """Who is not let in makes the server do no work."""
    files, reads = FaultyDatabases(), list[str]()
    async with Server(server_options(tmp_path, container=IDLE), files=files) as server:
        async with await Peer.connect(server.address) as peer:
            segments = [await peer.create_segment(f"raw/{number}") for number in range(COUNT)]
        await checkpoint(server)
        await check_idle(server)
        files.trace(reads.append)
        host, port = server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.writelines(append_frame(segment_id, b"x", request_id=1) for segment_id in segments)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()
        assert server.counters.protocol_errors_total == 1
        assert reads == []
        async with await Peer.connect(server.address) as peer:
            await peer.info(segments[0])
        assert reads


@pytest.mark.asyncio
async def test_a_refusal_about_an_idle_segment_does_not_wait_for_room(tmp_path: Path) -> None:
    """Behaviours 10 and 51: the peer is not read while memory is full, but it is answered."""
    container = replace(
        IDLE,
        flush_size_bytes=64 * KIB,
        chunk_size_bytes_max=64 * KIB,
        tail_size_bytes_high=128 * KIB,
        tail_size_bytes_low=64 * KIB,
    )
    storage = FaultyStorage()
    async with Server(server_options(tmp_path, container=container), storage=storage) as server:
        async with await Peer.connect(server.address) as peer:
            idle = await peer.create_segment("raw/idle")
            busy = await peer.create_segment("raw/busy")
            await peer.ask(m.SealSegment(idle), m.SegmentInfo)
        await checkpoint(server)
        await check_idle(server)
        storage.open.clear()
        async with await Peer.connect(server.address) as writer, await Peer.connect(server.address) as peer:
            await writer.store(busy, *[bytes(16 * KIB)] * 9)
            (sent,) = await peer.append(idle, b"x")
            async with asyncio.timeout(PATIENCE_S):
                while sent not in peer.outcomes:
                    peer.note(*await peer.receive())
            assert peer.outcomes[sent] is ErrorCode.SEGMENT_SEALED
            assert peer.throttles
            storage.open.set()


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("asked_for", [True, False], ids=["read by a request", "found in the background"])
async def test_a_damaged_row_that_is_read_late_is_restored(tmp_path: Path, asked_for: bool) -> None:
    """Behaviour 41: the rows of a large checkpoint are verified when they are read, and in the background."""
    async with Server(server_options(tmp_path, container=IDLE)) as server, await Peer.connect(server.address) as peer:
        segments = [await peer.create_segment(f"raw/{number}") for number in range(COUNT)]
        for segment_id in segments:
            await peer.store(segment_id, b"content %d" % segment_id)
        await checkpoint(server)
    path = tmp_path / "containers" / "0000" / "checkpoint.db"

    def damage() -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("UPDATE segments SET length = length - 1 WHERE segment_id = ?", [segments[5]])

    large = replace(IDLE, verified_at_once_count_max=1_000_000 if asked_for else 0)
    if not asked_for:
        await asyncio.to_thread(damage)
    async with Server(server_options(tmp_path, container=large)) as server:
        if asked_for:
            await asyncio.to_thread(damage)
            async with await Peer.connect(server.address) as peer:
                with contextlib.suppress(Exception):
                    await peer.ask(m.GetSegment(segments[5], ""), m.SegmentInfo)
        await until(lambda: list(path.parent.glob("checkpoint.db.damaged-1")) and not server.health())
        async with await Peer.connect(server.address) as peer:
            for segment_id in segments:
                assert await peer.read_all(segment_id) == b"content %d" % segment_id
