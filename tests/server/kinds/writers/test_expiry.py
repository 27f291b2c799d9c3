"""Writers that expire, under a clock that advances when the test says so."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import Any

import pytest

from millrace.server.kinds.writers.commands import WriterCommands
from millrace.server.kinds.writers.expiry_plan import Borders
from millrace.server.kinds.writers.options import WritersOptions
from millrace.wire import messages as m
from millrace.wire.append_run import Sequences
from millrace.wire.errors import ErrorCode
from tests.support.clock import ManualClock
from tests.support.protocol import Peer, RefusedError, Stored, code_of
from tests.support.scenario import CHECKPOINT, Run, Scenario
from tests.support.waiting import PATIENCE_S

NAMED_S, UNNAMED_S = 2_000, 800
STEP_S = 50
SLACK_S = 3 * STEP_S
OPTIONS = WritersOptions(named_idle_s=NAMED_S, unnamed_idle_s=UNNAMED_S)


@asynccontextmanager
async def started(scenario: Scenario, *, options: WritersOptions = OPTIONS) -> AsyncIterator[Run]:
    """Run the container, and end it in good order."""
    async with scenario.running(writers=options) as run:
        yield run
        await run.published()


async def pass_time(run: Run, duration_s: float) -> None:
    """Let time pass, and let the container look at its writers as often as it would."""
    clock = run.container.clock
    assert isinstance(clock, ManualClock)
    for _ in range(round(duration_s / STEP_S)):
        clock.move(STEP_S)
        await run.services.expiry.expire()


def fields_of(opened: m.WriterOpened) -> dict[str, Any]:
    return {"writer_number": opened.writer_number, "writer_epoch": opened.writer_epoch}


async def outcome(peer: Peer, segment_id: int, payload: bytes, **fields: int) -> Stored | ErrorCode:
    return (await peer.settled(await peer.append(segment_id, payload, **fields)))[0]


def rows(scenario: Scenario, table: str) -> list[tuple[Any, ...]]:
    """Return the rows of the checkpoint of a container that has ended."""
    with closing(scenario.files.database(CHECKPOINT, mode="ro")) as connection:
        return connection.execute(f"SELECT * FROM {table}").fetchall()


async def refused(answer: Awaitable[m.Message]) -> m.ErrorReply:
    with pytest.raises(RefusedError) as caught:
        await answer
    return caught.value.reply


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_an_unnamed_writer_is_exactly_once_within_its_time(scenario: Scenario) -> None:
    """Behaviours 2, 3: over a reconnect and a restart, until it was idle for too long; then it is told so."""
    async with started(scenario) as run:
        async with run.peer() as peer:
            segment_id = await peer.create_segment("raw/a")
            writer = fields_of(await peer.open_writer("", segment_id))
            await peer.store(segment_id, b"one", event_number=1, **writer)
        await pass_time(run, UNNAMED_S)
        async with run.peer() as peer:
            assert await outcome(peer, segment_id, b"one", event_number=1, **writer) == Stored(0, duplicate=True)
            await peer.store(segment_id, b"two", event_number=2, **writer)
    async with started(scenario) as run, run.peer() as peer:
        await pass_time(run, UNNAMED_S)
        assert await outcome(peer, segment_id, b"two", event_number=2, **writer) == Stored(3, duplicate=True)
        await pass_time(run, SLACK_S)
        for number in (2, 3):
            code = await outcome(peer, segment_id, b"two", event_number=number, **writer)
            assert code is ErrorCode.WRITER_EXPIRED
        assert await peer.read_all(segment_id) == b"onetwo"
    assert (rows(scenario, "writers"), rows(scenario, "progress")) == ([], [])
    async with started(scenario) as run, run.peer() as peer:
        assert await outcome(peer, segment_id, b"two", event_number=3, **writer) is ErrorCode.WRITER_EXPIRED


@pytest.mark.asyncio
async def test_a_named_writer_leaves_a_mark(scenario: Scenario) -> None:
    """Behaviours 1, 4: its name says that it expired, until it starts over or the mark is forgotten."""
    async with started(scenario) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        first = await peer.open_writer("till-7", segment_id)
        again = await peer.open_writer("till-7", segment_id)
        await peer.store(segment_id, b"one", event_number=1, **fields_of(again))
        await pass_time(run, NAMED_S + SLACK_S)
        expired_us = (await peer.ask(m.GetWriter("till-7", []), m.WriterOpened)).expired_us
        assert 0 <= scenario.clock.unix_us() - expired_us <= SLACK_S * 1e6

        assert await outcome(peer, segment_id, b"!", event_number=2, **fields_of(again)) is ErrorCode.WRITER_EXPIRED
        assert await outcome(peer, segment_id, b"!", event_number=1, **fields_of(first)) is ErrorCode.WRITER_EXPIRED
        reply = await refused(peer.open_writer("till-7", segment_id))
        assert (reply.code, reply.subject) == (ErrorCode.WRITER_EXPIRED, "till-7")
        assert "2023-11-14T22:4" in reply.message
        asked = await peer.ask(m.GetWriter("till-7", [segment_id]), m.WriterOpened)
        assert (asked.known, asked.expired_us, asked.writer_epoch) == (0, expired_us, 2)
        assert (asked.active_us, asked.states) == (1_700_000_000_000_000, [m.WriterState(segment_id, 0)])

        restarted = await peer.open_writer("till-7", segment_id, start_over=True)
        assert (restarted.known, restarted.expired_us, restarted.writer_epoch) == (0, expired_us, 3)
        assert restarted.states == [m.WriterState(segment_id, 0)]
        await peer.store(segment_id, b"two", event_number=1, **fields_of(restarted))
        # Not fenced, and never taken for the writer of now: that number is gone.
        assert await outcome(peer, segment_id, b"!", event_number=1, **fields_of(again)) is ErrorCode.WRITER_EXPIRED
        known = await peer.open_writer("till-7", segment_id)
        assert (known.known, known.expired_us, known.writer_epoch) == (1, 0, 4)
        assert (known.writer_number, known.states) == (restarted.writer_number, [m.WriterState(segment_id, 1)])
        assert await peer.read_all(segment_id) == b"onetwo"
    assert [row[0] for row in rows(scenario, "writers")] == [restarted.writer_number]
    assert [row[1] for row in rows(scenario, "progress")] == [restarted.writer_number]


@pytest.mark.asyncio
async def test_a_mark_stays_as_long_as_few_came_after_it(scenario: Scenario) -> None:
    """Behaviour 66: also one of a writer with sequences, whose caller would write all events a second time."""
    async with started(scenario) as run, run.peer() as peer:
        stream = await peer.ask(m.CreateStream("a/b", 1, ""), m.StreamInfo)
        opened = await peer.ask(m.OpenWriter("till-7", [], 0, stream.stream_id), m.WriterOpened)
        ids = await peer.append(
            stream.segments[0].segment_id, b"x", event_number=1, sequences=Sequences(0, 0, 0), **fields_of(opened)
        )
        assert await peer.settled(ids) == [Stored(0, duplicate=False)]
        for _ in range(10):
            await pass_time(run, NAMED_S + SLACK_S)
        assert run.services.expiry.statistics.marks_forgotten_total == 0
    async with started(scenario) as run, run.peer() as peer:
        reply = await refused(peer.ask(m.OpenWriter("till-7", [], 0, stream.stream_id), m.WriterOpened))
        assert reply.code == ErrorCode.WRITER_EXPIRED
        assert "start over, or take another id" in reply.message
        opened = await peer.ask(m.OpenWriter("till-7", [], 1, stream.stream_id), m.WriterOpened)
        assert (opened.known, opened.writer_epoch, opened.stored_through, opened.marks) == (0, 2, -1, [])


@pytest.mark.asyncio
async def test_the_oldest_marks_are_forgotten_after_as_long_again(scenario: Scenario) -> None:
    options = replace(OPTIONS, marks_count_max=2)
    async with started(scenario, options=options) as run, run.peer() as peer:
        for number in range(3):
            await peer.open_writer(f"till-{number}")
            await pass_time(run, 2 * STEP_S)
        await pass_time(run, NAMED_S + SLACK_S)
        assert run.services.expiry.statistics.named_expired_total == 3
    async with started(scenario, options=options) as run, run.peer() as peer:
        await pass_time(run, NAMED_S - 4 * SLACK_S)
        assert run.services.expiry.statistics.marks_forgotten_total == 0
        await pass_time(run, 8 * SLACK_S)
        opened = await peer.open_writer("till-0")
        assert (opened.known, opened.expired_us, opened.writer_epoch) == (0, 0, 1)
        for number in (1, 2):
            assert (await refused(peer.open_writer(f"till-{number}"))).code == ErrorCode.WRITER_EXPIRED
        statistics = run.services.expiry.statistics
        assert (statistics.marks_forgotten_total, statistics.unnamed_expired_total) == (1, 0)


@pytest.mark.asyncio
async def test_a_mark_survives_restarts(scenario: Scenario) -> None:
    async with started(scenario) as run, run.peer() as peer:
        await peer.open_writer("till-7")
        await pass_time(run, NAMED_S + SLACK_S)
    for _ in range(2):
        async with started(scenario) as run, run.peer() as peer:
            assert (await refused(peer.open_writer("till-7"))).code == ErrorCode.WRITER_EXPIRED
    async with started(scenario) as run, run.peer() as peer:
        assert (await peer.open_writer("till-7", start_over=True)).writer_epoch == 2
    async with started(scenario) as run, run.peer() as peer:
        opened = await peer.open_writer("till-7")
        assert (opened.known, opened.writer_epoch) == (1, 3)


@pytest.mark.asyncio
async def test_expiry_survives_a_kill_before_the_checkpoint(scenario: Scenario) -> None:
    """The record alone says it: nothing of it is in a checkpoint when the server is killed."""
    async with scenario.running(writers=OPTIONS) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        named = fields_of(await peer.open_writer("till-7", segment_id))
        unnamed = fields_of(await peer.open_writer("", segment_id))
        await peer.store(segment_id, b"one", event_number=1, **named)
        await peer.store(segment_id, b"two", event_number=1, **unnamed)
        await pass_time(run, NAMED_S + SLACK_S)
    assert rows(scenario, "writers") == []
    async with started(scenario) as run, run.peer() as peer:
        for fields in (named, unnamed):
            assert await outcome(peer, segment_id, b"!", event_number=2, **fields) is ErrorCode.WRITER_EXPIRED
        assert (await refused(peer.open_writer("till-7"))).code == ErrorCode.WRITER_EXPIRED
        assert await peer.read_all(segment_id) == b"onetwo"
    assert [(row[0], row[6]) for row in rows(scenario, "writers")] == [(named["writer_number"], "till-7")]
    assert rows(scenario, "progress") == []


@pytest.mark.asyncio
async def test_a_clock_that_jumps_makes_no_writer_expire(scenario: Scenario) -> None:
    """Either way, while the server runs and while it does not, and with others active in between."""
    year_us = 365 * 86400 * 1_000_000
    async with started(scenario) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        writer, other = [fields_of(await peer.open_writer("", segment_id)) for _ in range(2)]
        await peer.store(segment_id, b"one", event_number=1, **writer)
        for number, jump_us in enumerate((year_us, -2 * year_us, 5 * year_us), start=1):
            scenario.clock.jump_wall(jump_us)
            await pass_time(run, STEP_S)
            await peer.store(segment_id, b"x", event_number=number, **other)
    for number in range(4, 7):
        scenario.clock.jump_wall(year_us)
        async with started(scenario) as run, run.peer() as peer:
            await pass_time(run, 2 * STEP_S)
            await peer.store(segment_id, b"x", event_number=number, **other)
    async with started(scenario) as run, run.peer() as peer:
        await pass_time(run, UNNAMED_S - 10 * STEP_S)
        await peer.store(segment_id, b"two", event_number=2, **writer)


@pytest.mark.asyncio
async def test_a_server_that_stood_still_lets_no_writer_expire(scenario: Scenario) -> None:
    async with started(scenario) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        writer = fields_of(await peer.open_writer("", segment_id))
        scenario.clock.move(1e9)
        await run.services.expiry.expire()
        await peer.store(segment_id, b"one", event_number=1, **writer)


@pytest.mark.asyncio
async def test_a_connection_alone_does_not_keep_a_writer(scenario: Scenario) -> None:
    """What keeps it are appends and opens; its next append says that it expired, and the connection lives."""
    async with started(scenario) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        silent = fields_of(await peer.open_writer("", segment_id))
        busy = fields_of(await peer.open_writer("", segment_id))
        for number in range(1, 5):
            await pass_time(run, UNNAMED_S / 2)
            await peer.store(segment_id, b"x", event_number=number, **busy)
        assert await outcome(peer, segment_id, b"!", event_number=1, **silent) is ErrorCode.WRITER_EXPIRED
        await peer.store(segment_id, b"x", event_number=5, **busy)


@pytest.mark.asyncio
async def test_a_writer_with_an_append_on_its_way_does_not_expire(scenario: Scenario) -> None:
    """The append was admitted, so it is stored; then the writer was seen just now."""
    all_of_them = Borders(1 << 62, 1 << 62, 1 << 62)
    async with started(scenario) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        writer = fields_of(await peer.open_writer("", segment_id))
        scenario.log.is_stalled = True
        request_ids = await peer.append(segment_id, b"one", event_number=1, **writer)
        assert run.container.in_flight.writers()
        await run.services.expiry.expire_page([writer["writer_number"]], all_of_them)
        scenario.log.resume()
        assert await peer.settled(request_ids) == [Stored(0, duplicate=False)]
        await peer.store(segment_id, b"two", event_number=2, **writer)
        assert run.services.expiry.statistics.unnamed_expired_total == 0

        looks = [
            run.services.expiry.expire_page([writer["writer_number"]], all_of_them) for _ in range(2)
        ]  # the other one's record is on its way
        await asyncio.gather(*looks)
        assert run.services.expiry.statistics.unnamed_expired_total == 1


@pytest.mark.asyncio
async def test_what_comes_while_an_expiry_is_queued_is_decided_after_it(scenario: Scenario) -> None:
    """Behaviour 4: an append is refused, a name starts over under a higher epoch; also after a restart."""
    async with started(scenario) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        writer = fields_of(await peer.open_writer("till-7", segment_id))
        await peer.store(segment_id, b"one", event_number=1, **writer)
        control = WriterCommands(run.container)
        decided = control.expire(marked=[writer["writer_number"]], forgotten=[])
        with pytest.raises(Exception, match="idle for too long"):
            await control.open("till-7")
        opened = await control.open("till-7", start_over=True)
        assert decided.done()
        assert (opened.known, opened.writer_epoch) == (0, 2)
        assert opened.writer_number > writer["writer_number"]
        assert await outcome(peer, segment_id, b"!", event_number=2, **writer) is ErrorCode.WRITER_EXPIRED
    async with started(scenario) as run, run.peer() as peer:
        again = await peer.open_writer("till-7", segment_id)
        assert (again.writer_number, again.writer_epoch) == (opened.writer_number, 3)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_very_many_writers_expire_a_page_at_a_time(scenario: Scenario) -> None:
    async with started(scenario) as run, run.peer() as peer:
        for _ in range(25):
            ids = [await peer.start(m.OpenWriter("", [], 0)) for _ in range(100)]
            for request_id in ids:
                await peer.reply(request_id, m.WriterOpened)
        kept = await peer.open_writer("till-7")
        await pass_time(run, UNNAMED_S + SLACK_S)
        assert run.services.expiry.statistics.unnamed_expired_total == 2500
        assert len(run.state.writers) == 1
    assert [row[0] for row in rows(scenario, "writers")] == [kept.writer_number]


@pytest.mark.asyncio
async def test_the_container_looks_by_itself(scenario: Scenario) -> None:
    async with scenario.running(in_background=True, writers=OPTIONS) as run, run.peer() as peer:
        await peer.open_writer("")
        async with asyncio.timeout(PATIENCE_S):
            while not run.services.expiry.statistics.unnamed_expired_total:
                await scenario.clock.advance(STEP_S)


@pytest.mark.asyncio
async def test_a_number_that_was_never_given_is_unknown(scenario: Scenario) -> None:
    async with started(scenario) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        fields = {"writer_number": 1_000_000, "writer_epoch": 1}
        assert await outcome(peer, segment_id, b"!", event_number=1, **fields) is ErrorCode.WRITER_UNKNOWN
        assert await code_of(peer.ask(m.OpenWriter("", [99], 1), m.WriterOpened)) is ErrorCode.SEGMENT_NOT_FOUND


@pytest.mark.asyncio
async def test_an_exclusive_writer_that_expires_leaves_its_stream_to_all(scenario: Scenario) -> None:
    """By the record of the expiry itself; also after a restart, from the checkpoint."""
    async with started(scenario) as run, run.peer() as peer:
        streams = [await peer.ask(m.CreateStream(f"raw/{each}", 1, ""), m.StreamInfo) for each in range(2)]
        ids = [stream.segments[0].segment_id for stream in streams]
        for stream, writer_id in zip(streams, ("", "till-7"), strict=True):
            await peer.ask(m.OpenWriter(writer_id, [], 0, stream.stream_id, exclusive=1), m.WriterOpened)
    async with started(scenario) as run, run.peer() as peer:
        await pass_time(run, UNNAMED_S + SLACK_S)
        await peer.store(ids[0], b"free")
        assert await outcome(peer, ids[1], b"x") is ErrorCode.WRITER_EXCLUDED
        await pass_time(run, NAMED_S + SLACK_S - UNNAMED_S)
        await peer.store(ids[1], b"free")
        assert (await peer.ask(m.GetStream("raw/1"), m.StreamInfo)).exclusive_number == 0
    assert rows(scenario, "exclusive_writers") == []
