"""Requests about what is not in memory: idle segments, streams and writers lie in the checkpoint."""

import asyncio
import contextlib
import gc
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.errors import ConfigurationError
from millrace.wire import messages as m
from millrace.wire.append_pipeline import BROKEN_COUNT_MAX
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from millrace.wire.limits import KIB
from millrace.wire.server_session import ClientFrame
from tests.support.files import MemoryFileSystem
from tests.support.protocol import Peer, Stored, append_frame, code_of
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


def reads_of(server: Server, *, in_loop: bool = False) -> list[str]:
    """Return a list that grows with each statement that reads single things from the checkpoint, or does it here."""
    connection = server.opened.checkpoints._reader._connection
    assert connection is not None
    statements: list[str] = []
    here = threading.get_ident()

    def note(statement: str) -> None:
        if not in_loop or threading.get_ident() == here:
            statements.append(statement)

    connection.set_trace_callback(note)
    return statements


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
async def test_what_does_not_exist_is_not_found_however_often_one_asks(tmp_path: Path) -> None:
    async with Server(server_options(tmp_path, container=IDLE)) as server, await Peer.connect(server.address) as peer:
        gone = await peer.create_segment("raw/gone")
        await peer.create_segment("raw/kept")
        await peer.ask(m.DeleteSegment(gone), m.Done)
        await checkpoint(server)
        for _ in range(2):
            for segment_id in (gone, 99_999):
                assert (
                    await code_of(peer.ask(m.GetSegment(segment_id, ""), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
                )
            assert await code_of(peer.ask(m.GetSegment(0, "raw/gone"), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
            assert await code_of(peer.ask(m.GetStream("raw/gone"), m.StreamInfo)) is ErrorCode.STREAM_NOT_FOUND
        again = await peer.create_segment("raw/gone")
        assert again > gone


@pytest.mark.asyncio
async def test_pages_of_names_hold_what_is_stored_and_what_is_not(tmp_path: Path) -> None:
    """Behaviour 19: listing is paged, by prefix; also while checkpoints are stored."""
    async with Server(server_options(tmp_path, container=IDLE)) as server, await Peer.connect(server.address) as peer:
        ids = {}
        for number in range(30):
            ids[number] = await peer.create_segment(f"raw/{number:02d}")
            if number == 14:
                await checkpoint(server)
        for number in (3, 20):
            await peer.ask(m.DeleteSegment(ids[number]), m.Done)
        expected = [f"raw/{number:02d}" for number in range(30) if number not in (3, 20)]
        for count_max in (1, 4, 100):
            names: list[str] = []
            more = 1
            while more:
                page = await peer.ask(m.ListSegments("raw/", names[-1] if names else "", count_max), m.SegmentList)
                names += [segment.name for segment in page.segments]
                more = page.more
            assert names == expected


@pytest.mark.asyncio
async def test_a_page_of_nothing_but_merged_segments_is_passed_over(tmp_path: Path) -> None:
    """Behaviour 19: a page is empty only when nothing follows."""
    async with Server(server_options(tmp_path, container=IDLE)) as server, await Peer.connect(server.address) as peer:
        target = await peer.create_segment("raw/z")
        for number in range(4):
            source = await peer.create_segment(f"raw/a{number}")
            await peer.store(source, b"x")
            await peer.ask(m.SealSegment(source), m.SegmentInfo)
            await peer.ask(m.MergeSegment(target_id=target, source_id=source), m.SegmentInfo)

        for count_max in (1, 3, 100):
            page = await peer.ask(m.ListSegments("raw/", "", count_max), m.SegmentList)
            assert ([segment.name for segment in page.segments], page.more) == (["raw/z"], 0)


@pytest.mark.asyncio
async def test_nothing_is_read_for_a_segment_that_none_can_be(tmp_path: Path) -> None:
    """No client makes the server read its disk for nothing, again and again."""
    async with Server(server_options(tmp_path, container=IDLE)) as server, await Peer.connect(server.address) as peer:
        await peer.create_segment("raw/a")
        await checkpoint(server)
        reads = reads_of(server)
        for segment_id in (0, 10**9):
            assert await code_of(peer.ask(m.SealSegment(segment_id), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
            assert await peer.settled(await peer.append(segment_id, b"x")) == [ErrorCode.SEGMENT_NOT_FOUND]
        assert reads == []


@pytest.mark.asyncio
async def test_nothing_is_read_for_one_who_has_not_said_hello(tmp_path: Path) -> None:
    """Who is not let in makes the server do no work."""
    async with Server(server_options(tmp_path, container=IDLE)) as server:
        async with await Peer.connect(server.address) as peer:
            segments = [await peer.create_segment(f"raw/{number}") for number in range(COUNT)]
        await checkpoint(server)
        await check_idle(server)
        reads = reads_of(server)
        host, port = server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.writelines(append_frame(segment_id, b"x", request_id=1) for segment_id in segments)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()
        assert server.counters.protocol_errors_total == 1
        assert reads == []


@pytest.mark.asyncio
async def test_of_a_request_that_names_too_many_segments_none_is_read(tmp_path: Path) -> None:
    async with Server(server_options(tmp_path, container=IDLE)) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        # As if so many writers had been opened: numbers are given to all kinds of things in turn.
        server.opened.container.state.scalars.next_id += SEGMENTS_PER_STREAM_MAX + 1
        await peer.create_segment("raw/b")
        await checkpoint(server)
        reads = reads_of(server)

        named = list(range(segment_id + 1, segment_id + SEGMENTS_PER_STREAM_MAX + 2))
        assert await code_of(peer.ask(m.GetWriter("w", named), m.WriterOpened)) is ErrorCode.INVALID_ARGUMENT
        assert not [statement for statement in reads if "FROM segments" in statement]


@pytest.mark.asyncio
async def test_what_an_append_is_about_stays_in_memory_until_it_is_applied(tmp_path: Path) -> None:
    """Neither admitting it nor applying it reads a disk: the latter has nobody whom it could tell of a failure."""
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files = MemoryFileSystem()
    options = server_options(tmp_path, container=IDLE)
    async with Server(options, files=files) as server:
        async with await Peer.connect(server.address) as peer:
            segments = [await peer.create_segment(f"raw/{number}") for number in range(COUNT)]
            writers = [await peer.open_writer(f"w{number}", segments[number]) for number in range(COUNT)]
        await checkpoint(server)
        await check_idle(server)
        reads = reads_of(server, in_loop=True)
        async with await Peer.connect(server.address) as peer:
            files.stall(folder="wal")
            sent: list[int] = []
            for segment_id, writer in zip(segments, writers, strict=True):
                sent += await peer.append(
                    segment_id,
                    b"x",
                    event_number=1,
                    writer_number=writer.writer_number,
                    writer_epoch=writer.writer_epoch,
                )
            # It is answered when everything before it was admitted.
            await peer.info(segments[0])
            assert await asyncio.to_thread(files.stalled.wait, 10)
            gc.collect()
            files.resume()
            assert await peer.settled(sent) == [Stored(0, duplicate=False)] * COUNT
        assert reads == []


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


def test_bounds_of_residency_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="idle_bytes_max"):
        ContainerOptions(idle_bytes_max=-1)
