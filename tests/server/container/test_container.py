"""What a container promises about appends and reads, also over its restarts."""

import asyncio
import hashlib

import pytest

from millrace.server.container.state.sparse_index import SparseIndex
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import EVENT_COUNT_MAX, KIB
from tests.support.protocol import Peer, Stored, code_of
from tests.support.scenario import Run, Scenario
from tests.support.servers import BUSY


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
async def test_an_ack_comes_after_the_sync_only(peer: Peer, scenario: Scenario) -> None:
    """Behaviour 5: an ack is sent only for synced bytes. Nothing is readable before it is durable."""
    segment_id = await peer.create_segment("raw/a")
    scenario.log.is_stalled = True
    ids = await peer.append(segment_id, b"hello")
    assert (await peer.info(segment_id)).length == 0
    assert await code_of(peer.read(segment_id, 1)) is ErrorCode.OFFSET_BEYOND_END
    assert ids[0] not in peer.outcomes
    scenario.log.resume()
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
async def test_the_events_of_a_segment_are_counted_up_to_what_a_checkpoint_can_store(run: Run, peer: Peer) -> None:
    """A sum above that is refused before it is one: of appends, of what is in flight, of a merge."""
    segment_id, source_id = [await peer.create_segment(name) for name in ("raw/a", "raw/b")]
    for each in (segment_id, source_id):
        await peer.store(each, b"x")
    segment = run.container.segment(segment_id)
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
    await run.opened.flusher.checkpoint()
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
async def test_of_racing_conditional_appends_one_wins_each_offset(run: Run, peer: Peer) -> None:
    """Behaviour 12: exactly one winner per offset; wins = records stored."""
    segment_id = await peer.create_segment("raw/a")

    async def race(name: bytes) -> list[int]:
        won: list[int] = []
        async with run.peer() as racer:
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
    content = await peer.read_all(segment_id)
    assert sorted(offset for won in wins for offset in won) == list(range(0, 8 * 60, 8))
    for name, won in zip(names, wins, strict=True):
        assert all(content[offset : offset + 8] == name * 8 for offset in won)


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_the_same_bytes_from_tail_log_cache_and_tier_2(scenario: Scenario) -> None:
    """Behaviour 17: the same bytes whether served from the tail, the log after a restart, the cache, or tier 2."""
    payloads = [hashlib.sha256(number.to_bytes(4, "big")).digest() * (1 + number % 40) for number in range(200)]
    content = b"".join(payloads)

    async def check(run: Run) -> None:
        async with run.peer() as reader:
            for size_max in (1000, 64 * KIB, 8 << 20):
                assert await reader.read_all(segment_id, size_max=size_max) == content
            for start in (0, 1, 31, 4095, len(content) - 1, len(content)):
                assert await reader.read_all(segment_id, start=start, size_max=5000) == content[start:]

    async with scenario.running() as run:
        async with run.peer() as peer:
            segment_id = await peer.create_segment("raw/a")
            for start in range(0, 200, 20):
                await peer.store(segment_id, *payloads[start : start + 20])
        await check(run)  # from the tail
    async with scenario.running() as run:
        assert run.opened.summary.tail_bytes > 0
        await check(run)  # from the log
        await run.published()
    async with scenario.running() as run:
        assert run.opened.summary.tail_bytes == 0
        await check(run)  # from tier 2, then from the cache
        await check(run)
        await run.container.reads.read(run.container.segment(segment_id), 0, 10)


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_reads_stay_the_same_while_everything_moves_to_tier_2(scenario: Scenario) -> None:
    """Behaviour 16: never garbage, never a gap, while chunks are flushed and small ones replaced."""
    async with scenario.running(container=BUSY, in_background=True) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        content = b""
        async with run.peer() as reader:
            for number in range(120):
                piece = number.to_bytes(4, "little") * (50 + 7 * (number % 50))
                await peer.store(segment_id, piece)
                content += piece
                scenario.clock.move(0.05)
                start = (number * 7919) % len(content)
                assert await reader.read_all(segment_id, start=start, size_max=3000) == content[start:]


class FaultyIndex(SparseIndex):
    """An index that cannot be changed: a fault of ours."""

    __slots__ = ()

    def add(self, offset: int, *, events: int, wall_time_us: int) -> None:
        raise MemoryError


@pytest.mark.asyncio
async def test_a_batch_that_cannot_be_applied_is_recovered_from_the_log(scenario: Scenario) -> None:
    """What is in memory is not what the log says then: it is neither served nor stored, nor does anybody wait."""
    async with scenario.running() as run, run.peer() as peer:
        segments = [await peer.create_segment(f"raw/{name}") for name in "abc"]
        run.container.segment(segments[1]).index = FaultyIndex()
        first = await peer.append(segments[0], b"1")
        assert await peer.settled(first) == [Stored(0, duplicate=False)]
        # One batch, in which the second append cannot be applied.
        scenario.log.is_stalled = True
        batch = [(await peer.append(segment_id, b"x"))[0] for segment_id in segments]
        scenario.log.resume()
        assert await peer.settled(batch) == [ErrorCode.OUTCOME_UNKNOWN] * 3
        assert len(scenario.failures) == 1
        assert run.container.has_failed
    for content in ((b"1x", b"x", b"x"), (b"1xy", b"xy", b"xy")):
        async with scenario.running() as run, run.peer() as peer:
            for segment_id, expected in zip(segments, content, strict=True):
                assert await peer.read_all(segment_id) == expected
                await peer.store(segment_id, b"y")
