"""What a container promises about appends and reads, over a real server and its restarts."""

import asyncio
import hashlib
import shutil
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.container.state.sparse_index import SparseIndex
from millrace.server.errors import NoSpaceError
from millrace.server.host.room import RESERVE_BYTES_MIN
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import EVENT_COUNT_MAX, KIB
from tests.support.files import MemoryFileSystem
from tests.support.internal import Appender
from tests.support.protocol import Peer, Stored, code_of
from tests.support.servers import BUSY, server_options
from tests.support.waiting import PATIENCE_S, until
from tests.support.wal import append_run


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_appends_of_a_connection_are_stored_in_order(peer: Peer) -> None:
    segment_id = await peer.create_segment("raw/a")
    payloads = [f"<{number}>".encode() for number in range(500)]
    offsets = await peer.store(segment_id, *payloads)
    assert offsets == [sum(map(len, payloads[:index])) for index in range(500)]
    assert await peer.read_all(segment_id) == b"".join(payloads)
    assert (await peer.info(segment_id)).event_count == 500


@pytest.mark.asyncio
async def test_two_connections_interleave_and_keep_each_its_order(peer: Peer, other: Peer) -> None:
    """Behaviour 7: two writers interleave freely, each one's order kept."""
    segment_id = await peer.create_segment("raw/a")

    async def write(peer: Peer, name: bytes) -> None:
        for number in range(0, 200, 10):
            await peer.store(segment_id, *(name + b"%03d" % (number + index) for index in range(10)))

    await asyncio.gather(write(peer, b"a"), write(other, b"b"))
    content = await peer.read_all(segment_id)
    events = [content[start : start + 4] for start in range(0, len(content), 4)]
    for name in (b"a", b"b"):
        assert [event for event in events if event[:1] == name] == [name + b"%03d" % n for n in range(200)]


@pytest.mark.asyncio
async def test_an_ack_comes_after_the_sync_only(tmp_path: Path) -> None:
    """Behaviour 5: an ack is sent only for synced bytes. Nothing is readable before it is durable."""
    files = MemoryFileSystem()
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    async with Server(server_options(tmp_path), files=files) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        files.stall(folder="wal")
        ids = await peer.append(segment_id, b"hello")
        await asyncio.to_thread(files.stalled.wait)
        assert (await peer.info(segment_id)).length == 0
        assert await code_of(peer.read(segment_id, 1)) is ErrorCode.OFFSET_BEYOND_END
        assert ids[0] not in peer.outcomes
        files.resume()
        assert await peer.settled(ids) == [Stored(0, duplicate=False)]
        assert bytes((await peer.read(segment_id, 0)).payload) == b"hello"


@pytest.mark.asyncio
async def test_appends_to_what_takes_none_get_the_typed_error(peer: Peer) -> None:
    """Behaviour 6: sealed, missing, deleted or truncated away: the typed error, and the connection lives."""
    sealed = await peer.create_segment("raw/sealed")
    ids = await peer.append(sealed, b"a")
    await peer.ask(m.SealSegment(sealed), m.SegmentInfo)
    assert await peer.settled(ids) == [Stored(0, duplicate=False)]
    assert await peer.settled(await peer.append(sealed, b"b")) == [ErrorCode.SEGMENT_SEALED]
    assert await peer.settled(await peer.append(999, b"b")) == [ErrorCode.SEGMENT_NOT_FOUND]
    deleted = await peer.create_segment("raw/deleted")
    await peer.ask(m.DeleteSegment(deleted), m.Done)
    assert await peer.settled(await peer.append(deleted, b"b")) == [ErrorCode.SEGMENT_NOT_FOUND]
    truncated = await peer.create_segment("raw/truncated")
    await peer.store(truncated, b"abc")
    await peer.ask(m.TruncateSegment(truncated, 3), m.SegmentInfo)
    refused = await peer.settled(await peer.append(truncated, b"x", expected_offset=1))
    assert refused == [ErrorCode.CONDITION_FAILED]
    assert await peer.store(truncated, b"def") == [3]


@pytest.mark.asyncio
async def test_what_was_admitted_before_the_seal_is_stored_and_nothing_after(peer: Peer, other: Peer) -> None:
    """Behaviour 6: acks of earlier appends first; the later ones in the pipeline fail."""
    segment_id = await peer.create_segment("raw/a")
    before = await peer.append(segment_id, *[b"x"] * 100)
    seal = await other.start(m.SealSegment(segment_id))
    outcomes = await peer.settled(before)
    info = await other.reply(seal, m.SegmentInfo)
    after = await peer.settled(await peer.append(segment_id, *[b"y"] * 10))
    assert after == [ErrorCode.SEGMENT_SEALED] * 10
    assert sum(isinstance(outcome, Stored) for outcome in outcomes) == info.length


@pytest.mark.asyncio
async def test_the_events_of_a_segment_are_counted_up_to_what_a_checkpoint_can_store(
    server: Server, peer: Peer
) -> None:
    """A sum above that is refused before it is one: of appends, of what is in flight, of a merge."""
    segment_id, source_id = [await peer.create_segment(name) for name in ("raw/a", "raw/b")]
    for each in (segment_id, source_id):
        await peer.store(each, b"x")
    segment = server.opened.container.segment(segment_id)
    segment.event_count = EVENT_COUNT_MAX - 5
    segment.admit_as_durable()

    ids = await peer.append(segment_id, b"two", event_count=2)
    ids += await peer.append(segment_id, b"expects", expected_offset=4, event_count=3)
    ids += await peer.append(segment_id, b"more", expected_offset=11)
    assert await peer.settled(ids) == [
        Stored(1, duplicate=False),
        Stored(4, duplicate=False),
        ErrorCode.INVALID_ARGUMENT,
    ]
    assert "events" in peer.errors[ids[-1]].message
    await peer.ask(m.SealSegment(source_id), m.SegmentInfo)
    merge = m.MergeSegment(target_id=segment_id, source_id=source_id)
    assert await code_of(peer.ask(merge, m.SegmentInfo)) is ErrorCode.INVALID_ARGUMENT
    assert (await peer.info(segment_id)).event_count == EVENT_COUNT_MAX
    await server.opened.flusher.checkpoint()
    assert await peer.store(segment_id, b"none", event_count=0) == [11]


@pytest.mark.asyncio
async def test_conditional_appends(peer: Peer) -> None:
    """Behaviour 11: right expected offset: stored. Wrong: the actual length; the connection lives."""
    segment_id = await peer.create_segment("raw/a")
    assert await peer.store(segment_id, b"abc", expected_offset=0) == [0]
    ids = await peer.append(segment_id, b"no", expected_offset=0)
    assert await peer.settled(ids) == [ErrorCode.CONDITION_FAILED]
    reply = peer.errors[ids[0]]
    assert (reply.start_offset, reply.length, reply.retriable) == (0, 3, 0)
    assert await peer.store(segment_id, b"def", expected_offset=3) == [3]


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_of_racing_conditional_appends_one_wins_each_offset(server: Server, peer: Peer) -> None:
    """Behaviour 12: exactly one winner per offset; wins = records stored."""
    segment_id = await peer.create_segment("raw/a")

    async def race(name: bytes) -> list[int]:
        won: list[int] = []
        async with await Peer.connect(server.address) as racer:
            while len(won) < 10:
                length = (await racer.info(segment_id)).length
                (outcome,) = await racer.settled(await racer.append(segment_id, name * 8, expected_offset=length))
                if isinstance(outcome, Stored):
                    won.append(outcome.offset)
                else:
                    assert outcome in (ErrorCode.CONDITION_FAILED, ErrorCode.PIPELINE_BROKEN)
        return won

    names = [bytes([65 + number]) for number in range(6)]
    wins = await asyncio.gather(*map(race, names))
    # Not by `peer`: it has answered no PING meanwhile, and the server may have given it up.
    async with await Peer.connect(server.address) as reader:
        content = await reader.read_all(segment_id)
    assert sorted(offset for won in wins for offset in won) == list(range(0, 8 * 60, 8))
    for name, won in zip(names, wins, strict=True):
        assert all(content[offset : offset + 8] == name * 8 for offset in won)


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_the_same_bytes_from_tail_log_cache_and_tier_2(tmp_path: Path) -> None:
    """Behaviour 17: the same bytes whether served from the tail, the log after a restart, the cache, or tier 2."""
    options = server_options(tmp_path)
    payloads = [hashlib.sha256(number.to_bytes(4, "big")).digest() * (1 + number % 40) for number in range(200)]
    content = b"".join(payloads)

    async def check(server: Server) -> None:
        async with await Peer.connect(server.address) as reader:
            for size_max in (1000, 64 * KIB, 8 << 20):
                assert await reader.read_all(segment_id, size_max=size_max) == content
            for start in (0, 1, 31, 4095, len(content) - 1, len(content)):
                assert await reader.read_all(segment_id, start=start, size_max=5000) == content[start:]

    async with Server(options) as server:
        async with await Peer.connect(server.address) as peer:
            segment_id = await peer.create_segment("raw/a")
            for start in range(0, 200, 20):
                await peer.store(segment_id, *payloads[start : start + 20])
        await check(server)  # from the tail
        # As a kill leaves it: nobody writes at this moment.
        copy = tmp_path.with_name(tmp_path.name + "-killed")
        await asyncio.to_thread(shutil.copytree, tmp_path, copy)
    async with Server(server_options(copy)) as server:
        assert server.opened.summary.tail_bytes > 0
        await check(server)  # from the log
    async with Server(options) as server:
        assert server.opened.summary.tail_bytes == 0
        await check(server)  # from tier 2, then from the cache
        await check(server)
        await server.opened.container.reads.read(server.opened.container.segment(segment_id), 0, 10)


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_reads_stay_the_same_while_everything_moves_to_tier_2(tmp_path: Path) -> None:
    """Behaviour 16: never garbage, never a gap, while chunks are flushed and small ones replaced."""
    async with Server(server_options(tmp_path, container=BUSY)) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        content = b""
        async with await Peer.connect(server.address) as reader:
            for number in range(120):
                piece = number.to_bytes(4, "little") * (50 + 7 * (number % 50))
                await peer.store(segment_id, piece)
                content += piece
                start = (number * 7919) % len(content)
                assert await reader.read_all(segment_id, start=start, size_max=3000) == content[start:]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_failed_sync_is_of_unknown_outcome_and_recovered_from(tmp_path: Path) -> None:
    """Behaviour 43: waiting appends end as unknown, no ack ever comes for them, the container recovers by itself."""
    files = MemoryFileSystem()
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    async with Server(server_options(tmp_path), files=files) as server:
        async with await Peer.connect(server.address) as peer:
            segment_id = await peer.create_segment("raw/a")
            await peer.store(segment_id, b"acknowledged")
            files.fail_syncs()
            ids = await peer.append(segment_id, b"unknown")
            assert await peer.settled(ids) == [ErrorCode.OUTCOME_UNKNOWN]
            assert not any(isinstance(message, m.AppendAck) for message in await peer.ended())
        await until(lambda: not server.health())
        async with await Peer.connect(server.address) as peer:
            content = await peer.read_all(segment_id)
            assert content in (b"acknowledged", b"acknowledgedunknown")
            await peer.store(segment_id, b"!")
            assert await peer.read_all(segment_id) == content + b"!"
    files.crash(1)
    async with Server(server_options(tmp_path), files=files) as server, await Peer.connect(server.address) as peer:
        assert await peer.read_all(segment_id) == content + b"!"


class FaultyIndex(SparseIndex):
    """An index that cannot be changed: a fault of ours."""

    __slots__ = ()

    def add(self, offset: int, *, events: int, wall_time_us: int) -> None:
        raise MemoryError


@pytest.mark.asyncio
async def test_a_batch_that_cannot_be_applied_is_recovered_from_the_log(tmp_path: Path) -> None:
    """What is in memory is not what the log says then: it is neither served nor stored, nor does anybody wait."""
    files = MemoryFileSystem()
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    async with Server(server_options(tmp_path), files=files) as server:
        async with await Peer.connect(server.address) as peer:
            segments = [await peer.create_segment(f"raw/{name}") for name in "abc"]
            server.opened.container.segment(segments[1]).index = FaultyIndex()
            # While the log is busy with one batch, the next one collects.
            files.stall(folder="wal")
            first = await peer.append(segments[0], b"1")
            assert await asyncio.to_thread(files.stalled.wait, 10)
            batch = [(await peer.append(segment_id, b"x"))[0] for segment_id in segments]
            await peer.info(segments[0])
            files.resume()
            assert await peer.settled(first) == [Stored(0, duplicate=False)]
            assert await peer.settled(batch) == [ErrorCode.OUTCOME_UNKNOWN] * 3
            await peer.ended()
        await until(lambda: not server.health())
        async with await Peer.connect(server.address) as peer:
            for segment_id, content in zip(segments, (b"1x", b"x", b"x"), strict=True):
                assert await peer.read_all(segment_id) == content
                await peer.store(segment_id, b"y")
    async with Server(server_options(tmp_path), files=files) as server, await Peer.connect(server.address) as peer:
        for segment_id, content in zip(segments, (b"1xy", b"xy", b"xy"), strict=True):
            assert await peer.read_all(segment_id) == content


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_full_log_refuses_before_any_ack_and_recovers_by_itself(tmp_path: Path) -> None:
    """Behaviour 44: NoSpace before any ack; reads, truncates and deletes work; it recovers when space returns."""
    files = MemoryFileSystem()
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    async with Server(server_options(tmp_path), files=files) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        doomed = await peer.create_segment("raw/doomed")
        files.capacity_bytes = files.used_bytes + RESERVE_BYTES_MIN
        content = b""
        for number in range(200):
            piece = bytes([number]) * (8 * KIB)
            (outcome,) = await peer.settled(await peer.append(segment_id, piece))
            if outcome is ErrorCode.NO_SPACE:
                break
            assert isinstance(outcome, Stored)
            content += piece
        else:
            pytest.fail("the disk never filled")
        assert await peer.read_all(segment_id) == content
        await peer.ask(m.TruncateSegment(segment_id, 8 * KIB), m.SegmentInfo)
        await peer.ask(m.DeleteSegment(doomed), m.Done)
        await until(lambda: "no room" in server.health())
        with pytest.raises(NoSpaceError, match=r"no room for a.* log file.*; reads, truncates and deletes work"):
            server.opened.container.append(append_run(segment_id, 0, b"x"), Appender())
        files.capacity_bytes = 64 << 20
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance((await peer.settled(await peer.append(segment_id, b"again")))[0], Stored):
                pass
        assert await peer.read_all(segment_id, start=8 * KIB) == content[8 * KIB :] + b"again"
