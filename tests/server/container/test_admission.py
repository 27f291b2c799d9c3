"""Writers: numbers, duplicates, gaps, epochs; also over restarts of the container."""

import asyncio
from typing import Any

import pytest

from millrace.wire import messages as m
from millrace.wire.append_run import Sequences
from millrace.wire.errors import ErrorCode
from tests.support.protocol import Peer, Stored, append_frame
from tests.support.scenario import Run, Scenario
from tests.support.servers import BUSY, QUIET


async def opened(peer: Peer, segment_id: int, writer_id: str = "w") -> dict[str, Any]:
    """Open a writer and return what its appends must carry."""
    writer = await peer.open_writer(writer_id, segment_id)
    return {"writer_number": writer.writer_number, "writer_epoch": writer.writer_epoch}


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_writer_learns_how_far_it_has_come(peer: Peer) -> None:
    """Behaviour 1: never written, then its last event number per segment and a new epoch."""
    a, b = await peer.create_segment("raw/a"), await peer.create_segment("raw/b")
    writer = await peer.open_writer("till-7", a, b)
    assert (writer.known, writer.states) == (0, [m.WriterState(a, 0), m.WriterState(b, 0)])
    fields = {"writer_number": writer.writer_number, "writer_epoch": writer.writer_epoch}
    await peer.store(a, b"1", b"2", b"3", event_number=1, **fields)
    again = await peer.open_writer("till-7", a, b)
    assert (again.known, again.states) == (1, [m.WriterState(a, 3), m.WriterState(b, 0)])
    assert again.writer_number == writer.writer_number
    assert again.writer_epoch > writer.writer_epoch
    asked = await peer.ask(m.GetWriter("till-7", [a]), m.WriterOpened)
    assert (asked.writer_epoch, asked.states) == (again.writer_epoch, [m.WriterState(a, 3)])
    assert (await peer.ask(m.GetWriter("nobody", [a]), m.WriterOpened)).known == 0


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_resending_after_a_dropped_connection_stores_each_event_once(run: Run, peer: Peer) -> None:
    """Behaviour 2: the connection drops before the acks; the open answers k; resending from there gives exactly N."""
    segment_id = await peer.create_segment("raw/a")
    events = [b"%03d" % number for number in range(1, 101)]
    for attempt in range(20):
        async with run.peer() as dropped:
            writer = await dropped.open_writer("w", segment_id)
            known = writer.states[0].last_event_number
            fields = {"writer_number": writer.writer_number, "writer_epoch": writer.writer_epoch}
            if attempt < 19:
                await dropped.append(segment_id, *events[known : known + 10], event_number=known + 1, **fields)
            else:
                await dropped.store(segment_id, *events[known:], event_number=known + 1, **fields)
    assert await peer.read_all(segment_id) == b"".join(events)


@pytest.mark.asyncio
async def test_a_repeated_number_is_acked_and_not_stored(peer: Peer) -> None:
    """Behaviour 3: at or below the last stored one: acked as stored already, with the offset where it is the last."""
    segment_id = await peer.create_segment("raw/a")
    fields = await opened(peer, segment_id)
    await peer.store(segment_id, b"one", b"three", b"fifteen", event_number=1, **fields)
    outcomes = await peer.settled(await peer.append(segment_id, b"fifteen", event_number=3, **fields))
    assert outcomes == [Stored(8, duplicate=True)]
    outcomes = await peer.settled(await peer.append(segment_id, b"one", event_number=1, **fields))
    assert outcomes == [Stored(-1, duplicate=True)]
    assert (await peer.info(segment_id)).length == 15
    await peer.store(segment_id, b"!", event_number=4, **fields)


@pytest.mark.asyncio
async def test_what_was_sent_before_and_what_was_not_are_told_apart_in_one_run(peer: Peer) -> None:
    """Behaviour 3: a run that straddles the border is cut there."""
    segment_id = await peer.create_segment("raw/a")
    fields = await opened(peer, segment_id)
    await peer.store(segment_id, b"1", b"2", b"3", event_number=1, **fields)
    outcomes = await peer.settled(await peer.append(segment_id, b"2", b"3", b"4", b"5", event_number=2, **fields))
    assert [outcome.duplicate for outcome in outcomes if isinstance(outcome, Stored)] == [True, True, False, False]
    assert await peer.read_all(segment_id) == b"12345"


@pytest.mark.asyncio
async def test_a_resend_while_the_first_attempt_is_on_its_way_waits_for_it(peer: Peer) -> None:
    """Behaviour 5: also the ack of a duplicate is sent only when the bytes are synced."""
    segment_id = await peer.create_segment("raw/a")
    fields = await opened(peer, segment_id)
    first = peer.next_id(4)
    await peer.send(
        *(
            append_frame(segment_id, b"x", request_id=first + index, event_number=number, **fields)
            for index, number in enumerate((1, 1, 2, 1))
        )
    )
    outcomes = await peer.settled(range(first, first + 4))
    assert [outcome.duplicate for outcome in outcomes if isinstance(outcome, Stored)] == [False, True, False, True]
    assert await peer.read_all(segment_id) == b"xx"


@pytest.mark.asyncio
async def test_a_gap_is_refused(peer: Peer) -> None:
    """Behaviour 3: a gap upwards is refused."""
    segment_id = await peer.create_segment("raw/a")
    fields = await opened(peer, segment_id)
    assert await peer.settled(await peer.append(segment_id, b"x", event_number=2, **fields)) == [
        ErrorCode.EVENT_NUMBER_GAP
    ]
    await peer.store(segment_id, b"1", event_number=1, **fields)
    assert await peer.settled(await peer.append(segment_id, b"x", event_number=3, **fields)) == [
        ErrorCode.EVENT_NUMBER_GAP
    ]
    await peer.store(segment_id, b"2", event_number=2, **fields)
    assert await peer.read_all(segment_id) == b"12"


@pytest.mark.asyncio
async def test_an_append_that_holds_stored_and_new_events_is_refused(peer: Peer) -> None:
    """Behaviour 3: an append is stored whole or not at all, so it cannot be cut."""
    segment_id = await peer.create_segment("raw/a")
    fields = await opened(peer, segment_id)
    await peer.store(segment_id, b"12", event_number=1, event_count=2, **fields)
    ids = await peer.append(segment_id, b"234", event_number=2, event_count=3, **fields)
    assert await peer.settled(ids) == [ErrorCode.EVENT_NUMBER_OVERLAP]
    await peer.store(segment_id, b"34", event_number=3, event_count=2, **fields)
    info = await peer.info(segment_id)
    assert (info.length, info.event_count) == (4, 4)


@pytest.mark.asyncio
async def test_what_is_stored_is_told_also_when_the_segment_was_sealed_since(peer: Peer) -> None:
    """Behaviour 3: were it refused as sealed, the writer would send it to a successor, a second time."""
    segment_id = await peer.create_segment("raw/a")
    fields = await opened(peer, segment_id)
    await peer.store(segment_id, b"1", b"2", event_number=1, **fields)
    await peer.ask(m.SealSegment(segment_id), m.SegmentInfo)
    outcomes = await peer.settled(await peer.append(segment_id, b"1", b"2", b"3", event_number=1, **fields))
    assert outcomes[2] is ErrorCode.SEGMENT_SEALED
    assert [outcome.duplicate for outcome in outcomes[:2] if isinstance(outcome, Stored)] == [True, True]
    # A gap is no news about a sealed segment: that it is sealed is.
    assert await peer.settled(await peer.append(segment_id, b"9", event_number=9, **fields)) == [
        ErrorCode.SEGMENT_SEALED
    ]


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_the_older_epoch_is_fenced(peer: Peer, other: Peer) -> None:
    """Behaviour 4: the older epoch's next append is refused and stores nothing; the newer one continues."""
    segment_id = await peer.create_segment("raw/a")
    older = await opened(peer, segment_id)
    await peer.store(segment_id, b"1", event_number=1, **older)
    newer = await opened(other, segment_id)
    for event_number in (2, 1):
        ids = await peer.append(segment_id, b"x", event_number=event_number, **older)
        assert await peer.settled(ids) == [ErrorCode.WRITER_FENCED]
    await other.store(segment_id, b"2", event_number=2, **newer)
    assert await other.read_all(segment_id) == b"12"


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_of_many_that_open_one_writer_at_once_each_has_an_epoch_of_its_own(scenario: Scenario) -> None:
    """Behaviour 4: the last one opened is the only one that may write."""
    async with scenario.running() as run:
        peers = [run.peer() for _ in range(10)]
        segment_id = await peers[0].create_segment("raw/a")
        writers = await asyncio.gather(*(peer.open_writer("w", segment_id) for peer in peers))
        epochs = [writer.writer_epoch for writer in writers]
        assert len(set(epochs)) == 10
        assert len({writer.writer_number for writer in writers}) == 1
        for peer, writer in zip(peers, writers, strict=True):
            (outcome,) = await peer.settled(
                await peer.append(
                    segment_id,
                    b"x",
                    event_number=1,
                    writer_number=writer.writer_number,
                    writer_epoch=writer.writer_epoch,
                )
            )
            expected = Stored(0, duplicate=False) if writer.writer_epoch == max(epochs) else ErrorCode.WRITER_FENCED
            assert outcome == expected
        for peer in peers:
            await peer.close()


@pytest.mark.asyncio
async def test_a_writer_that_was_not_opened_is_unknown(peer: Peer) -> None:
    segment_id = await peer.create_segment("raw/a")
    fields = await opened(peer, segment_id)
    for number, epoch in ((fields["writer_number"] + 1, 1), (fields["writer_number"], fields["writer_epoch"] + 1)):
        ids = await peer.append(segment_id, b"x", event_number=1, writer_number=number, writer_epoch=epoch)
        assert await peer.settled(ids) == [ErrorCode.WRITER_UNKNOWN]


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("container", [QUIET, BUSY], ids=["log", "checkpoint"])
async def test_writers_survive_a_restart(scenario: Scenario, container: Any) -> None:
    """Behaviours 1 and 3: numbers, epochs and offsets are known to the next process."""
    async with scenario.running(container=container) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        fields = await opened(peer, segment_id)
        await peer.store(segment_id, b"one", b"three", b"fifteen", event_number=1, **fields)
        if container is BUSY:
            await run.published()
    async with scenario.running(container=container) as run, run.peer() as peer:
        outcomes = await peer.settled(await peer.append(segment_id, b"fifteen", event_number=3, **fields))
        assert outcomes == [Stored(8, duplicate=True)]
        await peer.store(segment_id, b"4", event_number=4, **fields)
        writer = await peer.open_writer("w", segment_id)
        assert (writer.known, writer.states[0].last_event_number) == (1, 4)
        assert writer.writer_epoch > fields["writer_epoch"]


@pytest.mark.parametrize("options", [QUIET, BUSY], ids=["in the log", "in tier 2"])
@pytest.mark.asyncio
async def test_sequenced_appends_are_stored_like_others(scenario: Scenario, options: Any) -> None:
    """Their longer headers are no part of the segment, also when they are read back from the log or from tier 2."""
    async with scenario.running(container=options) as run, run.peer() as peer:
        stream = await peer.ask(m.CreateStream("raw/a", 1, ""), m.StreamInfo)
        segment_id = stream.segments[0].segment_id
        writer = await peer.ask(m.OpenWriter("w", [segment_id], 0, stream.stream_id), m.WriterOpened)
        fields: dict[str, Any] = {"writer_number": writer.writer_number, "writer_epoch": writer.writer_epoch}
        for number in range(1, 6):
            sequences = Sequences(10 * number, 10 * number, 10)
            payload = b"event-%d " % number
            await peer.store(segment_id, payload, event_number=number, sequences=sequences, **fields)
        await peer.store(segment_id, b"plain ", b"two")
        again = await peer.append(segment_id, b"event-3 ", event_number=3, sequences=Sequences(30, 30, 10), **fields)
        assert await peer.settled(again) == [Stored(-1, duplicate=True)]
        expected = b"event-1 event-2 event-3 event-4 event-5 plain two"
        assert await peer.read_all(segment_id) == expected
        if options is BUSY:
            await run.published()
    async with scenario.running(container=options) as run, run.peer() as peer:
        assert await peer.read_all(segment_id) == expected
        assert (await peer.open_writer("w", segment_id)).states == [m.WriterState(segment_id, 5)]
