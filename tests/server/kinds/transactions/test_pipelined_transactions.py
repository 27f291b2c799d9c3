"""Transactions whose frames arrive back to back are one batch of the log."""

from dataclasses import replace
from functools import partial
from threading import get_ident

import pytest

from millrace.model.transaction import TransactionState
from millrace.server.wal import Wal
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.pipelines import WHOLE, Pipeline
from tests.support.protocol import Peer, Stored, code_of
from tests.support.scenario import Run, Scenario
from tests.support.servers import BUSY, SMALL_WAL
from tests.support.transactions import PeerTransaction, content_of, create_stream, outcome_of
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("segment_count", [1, 4, 64])
async def test_a_whole_transaction_is_one_sync(segment_count: int) -> None:
    """Behaviour 28: its beginning, its parts, their events and the commit are one batch of the log."""
    scenario = Scenario(wal=SMALL_WAL)
    async with scenario.running() as run, run.peer() as peer:
        segments = await create_stream(peer, "a/b", segment_count)
        pipeline = await Pipeline.open(peer)
        number = pipeline.whole("a/b", segments, b"one ", b"two")
        log = run.container.log
        assert isinstance(log, Wal)
        await until(lambda: log.statistics().spare_files == SMALL_WAL.spare_files)  # a thread fills and syncs them
        sequence, syncs = run.sequence, scenario.files.sync_count

        told = await pipeline.told()

        assert told.names() == WHOLE
        assert told.outcomes == [Stored(0, False), Stored(4, False)] * segment_count
        assert run.sequence == sequence + 1
        assert scenario.files.sync_count == syncs + 1
        assert await content_of(peer, "a/b") == dict.fromkeys(segments, b"one two")
        begun, _, committed = told.replies
        assert isinstance(begun, m.TransactionReply)
        assert isinstance(committed, m.TransactionReply)
        assert (begun.number, begun.state, begun.changed) == (number, TransactionState.OPEN, 1)
        assert [each.segment_id for each in begun.streams[0].ranges] == segments
        assert (committed.state, committed.changed) == (TransactionState.COMMITTED, 1)
        assert committed.tails == (await peer.ask(m.GetTails([m.NamedStream("a/b")]), m.StreamTails)).tails


async def test_several_that_arrive_together_are_one_sync(peer: Peer, run: Run) -> None:
    segments = await create_stream(peer, "a/b", 2)
    pipeline = await Pipeline.open(peer)
    for number in range(5):
        pipeline.whole("a/b", segments, b"%d " % number)
    sequence = run.sequence

    assert (await pipeline.told()).names() == WHOLE * 5

    assert run.sequence == sequence + 1
    assert await content_of(peer, "a/b") == dict.fromkeys(segments, b"0 1 2 3 4 ")


async def test_what_is_left_open_is_durable_without_more_frames(peer: Peer) -> None:
    """The log waits for what follows only as long as it is there already."""
    segments = await create_stream(peer, "a/b", 2)
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin("a/b")
    assert (await pipeline.told()).names() == ["TransactionReply"]
    first, second = pipeline.parts(number, segments)
    assert (await pipeline.told()).names() == ["Done"]
    pipeline.append(first, b"one")
    pipeline.append(second, b"two")
    assert (await pipeline.told()).outcomes == [Stored(0, False)] * 2

    pipeline.commit(number, (0, 2))

    assert (await pipeline.told()).names() == ["TransactionReply"]
    assert await content_of(peer, "a/b") == dict(zip(segments, [b"one", b"two"], strict=True))


async def test_prepare_and_commit_arrive_with_the_rest(peer: Peer, run: Run) -> None:
    """Behaviour 30: what the prepare drops is no part of the commit after it."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin("a/b", name="order-7")
    for branch in (5, 6):
        (part_id,) = pipeline.parts(number, [segment_id], branch=branch)
        pipeline.append(part_id, b"branch %d" % branch)
    pipeline.prepare(number, (5, 1), drops_others=True)
    pipeline.commit(number, (5, 1))
    sequence = run.sequence

    told = await pipeline.told()

    assert told.names() == ["TransactionReply", "Done", "Done", "TransactionReply", "TransactionReply"]
    assert run.sequence == sequence + 1
    assert await content_of(peer, "a/b") == {segment_id: b"branch 5"}
    assert len(run.state.segments) == 2  # the stream's own, and one whose bytes are in it


async def test_an_abort_arrives_with_the_rest(peer: Peer, run: Run) -> None:
    segments = await create_stream(peer, "a/b", 2)
    pipeline = await Pipeline.open(peer)
    number = pipeline.begin("a/b")
    for part_id in pipeline.parts(number, segments):
        pipeline.append(part_id, b"event")
    pipeline.ask(m.AbortTransaction(number, ""))

    assert (await pipeline.told()).names() == WHOLE

    assert await content_of(peer, "a/b") == {}
    assert (await outcome_of(peer, number=number)).state == TransactionState.ABORTED
    assert len(run.state.segments) == 2
    assert run.state.open_transactions.parts_count == 0


async def test_it_is_not_said_to_be_over_before_it_is_durable(peer: Peer, other: Peer, scenario: Scenario) -> None:
    """Queries tell what is durable: of one that is about to begin, nothing."""
    segments = await create_stream(peer, "a/b", 1)
    pipeline = await Pipeline.open(peer)
    scenario.log.is_stalled = True
    number = pipeline.begin("a/b")
    (part_id,) = pipeline.parts(number, segments)
    pipeline.append(part_id, b"event")
    await pipeline.send()

    assert (await outcome_of(other, number=number)).state == TransactionState.UNKNOWN
    assert (await other.ask(m.ListTransactions(0, 10), m.TransactionList)).transactions == []
    assert await code_of(other.ask(m.GetSegment(part_id, ""), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
    scenario.log.resume()
    assert (await pipeline.told()).names() == ["TransactionReply", "Done"]
    assert (await outcome_of(other, number=number)).state == TransactionState.OPEN


async def test_the_lease_of_one_that_is_about_to_begin_is_renewed(peer: Peer, other: Peer, scenario: Scenario) -> None:
    """Else its client would take it for over."""
    await create_stream(peer, "a/b", 1)
    pipeline = await Pipeline.open(peer)
    scenario.log.is_stalled = True
    number = pipeline.begin("a/b")
    await pipeline.send()

    assert (await other.ask(m.RenewTransactions([number]), m.Done)).changed == 1
    scenario.log.resume()
    assert (await pipeline.told()).names() == ["TransactionReply"]


async def test_what_is_refused_renews_the_lease(peer: Peer, run: Run) -> None:
    """It is named by it; its client has to have the time to send what is missing."""
    await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b", name="x")
    found = run.state.transactions[transaction.number]
    transaction.counts[0] = 5
    for refused in (transaction.commit, transaction.prepare):
        found.is_renewed = False
        assert await code_of(refused()) is ErrorCode.BRANCHES_DIFFER
        assert found.is_renewed


async def test_one_is_joined_as_it_was_and_committed_meanwhile(
    peer: Peer, other: Peer, run: Run, scenario: Scenario
) -> None:
    """Who joins needs its routes; that it is over is told by what comes next."""
    await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b", name="x")
    pipeline = await Pipeline.open(other)
    in_flight = run.container.in_flight
    scenario.log.is_stalled = True
    await peer.start(m.CreateSegment("raw/a"))
    await until(in_flight.records)
    pipeline.begin("a/b", name="x")
    await pipeline.send()
    committed = await peer.start(transaction.commit_request())
    await until(lambda: any(isinstance(each, m.TransactionCommitted) for each in in_flight.records()))
    scenario.log.resume()

    (joined,) = (await pipeline.told()).replies
    await peer.reply(committed, m.TransactionReply)
    assert isinstance(joined, m.TransactionReply)
    assert (joined.number, joined.state, joined.changed) == (transaction.number, TransactionState.OPEN, 0)
    assert joined.streams == transaction.info.streams


# --- what is not in memory ---


async def test_what_is_on_disk_is_loaded_before_what_follows(scenario: Scenario) -> None:
    """Nothing overtakes a beginning that waits for its stream; nor are numbers of later use looked for."""
    async with scenario.running(container=BUSY) as run:
        async with run.peer() as peer:
            streams = {f"a/{number}": await create_stream(peer, f"a/{number}", 2) for number in range(40)}
            pipeline = await Pipeline.open(peer)
            await run.opened.flusher.checkpoint()
            await peer.ask(m.CreateSegment("raw/a"), m.SegmentInfo)  # the checkpoint is asked first about what is idle
            state = run.state
            idle = [name for name in streams if not state.streams.is_resident(name)]
            assert idle
            for name in idle[:3]:
                pipeline.whole(name, streams[name], b"event")

            assert (await pipeline.told()).names() == WHOLE * 3

            for name in idle[:3]:
                assert await content_of(peer, name) == dict.fromkeys(streams[name], b"event")


async def test_a_commit_that_begins_epochs_does_not_load_in_the_loop(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream and the open segments are in memory, but not those that were scaled away before."""
    running = partial(scenario.running, container=replace(BUSY, checkpoint_interval_s=3600.0))
    async with running() as run, run.peer() as peer:
        info = await peer.ask(m.CreateStream("a/b", 1, "{}"), m.StreamInfo)
        last = info.segments[0].last
        halves = [m.KeyRangeRecord(0, last // 2), m.KeyRangeRecord(last // 2 + 1, last)]
        transaction = None
        scales = [halves, [m.KeyRangeRecord(0, last)]] * 5 + [halves]
        for number, ranges in enumerate(scales, start=1):
            opened = [segment.segment_id for segment in info.segments if not segment.sealed]
            if number == len(scales):
                transaction = await PeerTransaction.begin(peer, "a/b")
                await transaction.write(b"event")
            info = await peer.ask(m.ScaleStream("a/b", opened, ranges), m.StreamInfo)
        assert transaction is not None
        state, loader = run.state, run.container.loader
        await run.opened.flusher.flush()
        await run.opened.flusher.checkpoint()
        for number in range(60):
            await peer.ask(m.CreateSegment(f"raw/{number}"), m.SegmentInfo)
        opened = [segment.segment_id for segment in info.segments if not segment.sealed]
        with await loader.pin(m.Required(segments=opened)) as pins:
            await loader._pin(state.streams, ["a/b"], pins)
            stream = state.streams.find("a/b")
            assert stream is not None
            assert not all(map(state.segments.is_resident, stream.segment_ids))
            loop, loads = get_ident(), []
            load = state.segments.archive.load

            def watched_load(number: int) -> object:
                loads.append(get_ident())
                return load(number)

            monkeypatch.setattr(state.segments.archive, "load", watched_load)
            assert (await transaction.commit()).cuts[0].epoch == info.epoch + 2
            assert loads
            assert loop not in loads


async def test_numbers_that_were_reserved_before_a_checkpoint_need_no_load(peer: Peer, run: Run) -> None:
    segments = await create_stream(peer, "a/b", 2)
    pipeline = await Pipeline.open(peer)
    await run.opened.flusher.checkpoint()
    pipeline.whole("a/b", segments, b"event")
    sequence = run.sequence

    assert (await pipeline.told()).names() == WHOLE

    assert run.sequence == sequence + 1
