"""Transactions of one container."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from millrace.model.key_range import KEY_SPACE
from millrace.model.transaction import TransactionState
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from tests.support.clock import ManualClock
from tests.support.protocol import Peer, Stored, code_of
from tests.support.scenario import Run, Scenario
from tests.support.servers import QUIET
from tests.support.transactions import (
    PeerTransaction,
    begin_request,
    content_of,
    create_stream,
    outcome_of,
    reserve,
)

pytestmark = pytest.mark.asyncio


async def segments_count(peer: Peer) -> int:
    return len((await peer.ask(m.ListSegments("", "", 1000), m.SegmentList)).segments)


async def test_events_are_readable_with_the_commit_and_not_before(peer: Peer) -> None:
    """Behaviour 28: over the segments of two streams; none is seen, counted or listed before."""
    orders, returns = await create_stream(peer, "a/orders", 2), await create_stream(peer, "a/returns", 2)
    transaction = await PeerTransaction.begin(peer, "a/orders", "a/returns")
    await peer.store(orders[0], b"before ")
    await transaction.write(b"one ", b"two ")

    assert await content_of(peer, "a/orders") == {orders[0]: b"before "}
    assert await content_of(peer, "a/returns") == {}
    before = await peer.ask(m.GetStream("a/returns"), m.StreamInfo)
    assert [segment.event_count for segment in before.segments] == [0, 0]
    assert await segments_count(peer) == 4

    await peer.store(orders[1], b"meanwhile ")
    committed = await transaction.commit()

    assert (committed.state, committed.changed) == (TransactionState.COMMITTED, 1)
    assert await content_of(peer, "a/orders") == {
        orders[0]: b"before one two ",
        orders[1]: b"meanwhile one two ",
    }
    assert await content_of(peer, "a/returns") == dict.fromkeys(returns, b"one two ")
    after = await peer.ask(m.GetStream("a/returns"), m.StreamInfo)
    assert [segment.event_count for segment in after.segments] == [2, 2]
    assert {cut.stream_id: cut.positions for cut in committed.cuts}[after.stream_id] == [
        m.CutPosition(segment_id, 8) for segment_id in returns
    ]
    await peer.store(orders[0], b"after")
    assert (await peer.read_all(orders[0])) == b"before one two after"


@pytest.mark.parametrize("is_published", [False, True])
async def test_a_kill_leaves_it_open_or_committed_whole(scenario: Scenario, *, is_published: bool) -> None:
    """Behaviours 28, 31: killed after each step, and continued from there."""
    killed: list[Scenario] = []
    async with scenario.running() as run, run.peer() as peer:

        async def kill() -> None:
            if is_published:
                await run.published()
            killed.append(scenario.copy())

        segments = await create_stream(peer, "a/b", 4)
        transaction = await PeerTransaction.begin(peer, "a/b", name="order-7")
        await kill()
        await transaction.write(b"one ")
        await kill()
        await transaction.write(b"two")
        await kill()
        await transaction.commit()
        await kill()

    for number, left in enumerate(killed):
        left.files.crash(number)
        for _ in range(2):
            async with left.running() as run, run.peer() as peer:
                found = await outcome_of(peer, name="order-7")
                is_committed = number == 3
                assert found.number == transaction.number
                assert found.state == (TransactionState.COMMITTED if is_committed else TransactionState.OPEN)
                expected = dict.fromkeys(segments, b"one two") if is_committed else {}
                assert await content_of(peer, "a/b") == expected
        async with left.running() as run, run.peer() as peer:
            count = (0, 4, 8, 8)[number]
            request = m.CommitTransaction(
                number=transaction.number, name="", branches=[m.BranchCount(0, count)], drops_others=0, cursors=[]
            )
            committed = await peer.ask(request, m.TransactionReply)
            assert (committed.state, committed.changed) == (TransactionState.COMMITTED, number < 3)
            content = (b"", b"one ", b"one two", b"one two")[number]
            assert await content_of(peer, "a/b") == (dict.fromkeys(segments, content) if content else {})


async def test_an_open_transaction_continues_after_a_restart(scenario: Scenario) -> None:
    """Behaviour 31: what a checkpoint knows of it is enough."""
    async with scenario.running() as run, run.peer() as peer:
        segments = await create_stream(peer, "a/b", 2)
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.write(b"one ")
    async with scenario.running() as run, run.peer() as peer:
        assert len(run.state.open_transactions) == 1
        transaction.peer = peer

        await transaction.write(b"two")
        await transaction.commit()

        assert await content_of(peer, "a/b") == dict.fromkeys(segments, b"one two")


async def test_a_commit_of_many_segments_is_one_sync(scenario: Scenario) -> None:
    # The clock stands still, so that nothing else is logged meanwhile.
    async with (
        scenario.running() as run,
        run.peer() as peer,
    ):
        await create_stream(peer, "a/b", 64)
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.write(b"event")
        sequence = run.state.sequence

        await transaction.commit()

        assert run.state.sequence == sequence + 1
        assert sum(map(len, (await content_of(peer, "a/b")).values())) == 64 * len(b"event")


async def test_a_commit_of_other_events_than_were_stored_is_refused(peer: Peer) -> None:
    """Behaviour 28: an append that was refused does not become half a commit."""
    await create_stream(peer, "a/b", 2)
    transaction = await PeerTransaction.begin(peer, "a/b")
    first, second = transaction.routed_ids
    await transaction.add_parts([first, second])
    await transaction.append(first, b"stored")
    part_id = transaction.parts[0, second]
    assert await peer.settled(await transaction.send(part_id, b"lost", event_number=2)) == [ErrorCode.EVENT_NUMBER_GAP]
    transaction.counts[0] = 2

    assert await code_of(transaction.commit()) is ErrorCode.BRANCHES_DIFFER

    assert await content_of(peer, "a/b") == {}
    assert await peer.settled(await transaction.send(part_id, b"sent again", event_number=1)) == [Stored(0, False)]
    await transaction.commit()
    assert await content_of(peer, "a/b") == {first: b"stored", second: b"sent again"}


async def test_branches_are_taken_or_dropped_as_a_whole(peer: Peer, run: Run) -> None:
    (segment_id,) = await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"kept ", branch=5)
    await transaction.write(b"of a process that died", branch=6)
    await transaction.write(b"kept, too", branch=7)

    assert await code_of(transaction.commit(5, 7)) is ErrorCode.BRANCHES_DIFFER
    await transaction.commit(7, 5, drops_others=True)

    assert await peer.read_all(segment_id) == b"kept, tookept "
    assert len(run.state.segments) == 3  # the stream's own, and two whose bytes are in it


async def test_a_commit_sent_again_answers_with_the_outcome(peer: Peer) -> None:
    """Behaviour 29: one copy; other branches than were committed are refused, and so is an abort."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    first = await transaction.commit()

    again = await transaction.commit()

    assert (first.changed, again.changed) == (1, 0)
    assert (again.state, again.cuts) == (first.state, first.cuts)
    transaction.counts[0] = 2
    assert await code_of(transaction.commit()) is ErrorCode.TRANSACTION_COMMITTED
    assert await code_of(transaction.abort()) is ErrorCode.TRANSACTION_COMMITTED
    assert await peer.read_all(segment_id) == b"event"
    part_id = transaction.parts[0, segment_id]
    assert await peer.settled(await transaction.send(part_id, b"late", event_number=2)) == [ErrorCode.SEGMENT_NOT_FOUND]


async def test_an_abort_leaves_nothing(scenario: Scenario, run: Run, peer: Peer) -> None:
    """Behaviours 29, 65: aborting twice is fine; parts go, also those that are in tier 2."""
    await create_stream(peer, "a/b", 2)
    transaction = await PeerTransaction.begin(peer, "a/b", name="order-7")
    await transaction.write(b"event")
    await run.published()
    assert len(scenario.storage.names()) == 2

    aborted = await transaction.abort()

    assert (aborted.state, aborted.changed) == (TransactionState.ABORTED, 1)
    assert (await transaction.abort()).changed == 0
    assert await code_of(transaction.commit()) is ErrorCode.TRANSACTION_ABORTED
    assert len(run.state.segments) == 2
    assert len(run.state.open_transactions) == 0
    await run.published()
    assert scenario.storage.names() == []
    assert await content_of(peer, "a/b") == {}


async def test_a_name_leads_to_the_open_one(peer: Peer) -> None:
    """Behaviours 29, 31: begin of a used name joins, is refused after a commit, begins anew after an abort."""
    await create_stream(peer, "a/b", 1)
    await create_stream(peer, "a/c", 1)
    numbers = await reserve(peer, 10)
    first = await PeerTransaction.begin(peer, "a/b", name="order-7")

    async def begin(number: int, *streams: str) -> m.TransactionReply:
        return await peer.ask(begin_request(number, *streams, name="order-7"), m.TransactionReply)

    joined = await begin(numbers[0], "a/b")
    assert (joined.number, joined.changed) == (first.number, 0)
    assert await code_of(begin(numbers[0], "a/c")) is ErrorCode.INVALID_ARGUMENT
    await first.abort()
    assert (await outcome_of(peer, name="order-7")).state == TransactionState.ABORTED

    # The number was reserved before that of the first one: it is lower.
    second = await begin(numbers[0], "a/b")
    assert (second.number, second.changed) == (numbers[0], 1)
    assert second.number < first.number
    assert (await begin(numbers[0], "a/b")).changed == 0
    assert (await outcome_of(peer, name="order-7")).number == second.number
    assert (await outcome_of(peer, number=first.number)).state == TransactionState.ABORTED
    committed = await peer.ask(
        m.CommitTransaction(number=second.number, name="", branches=[], drops_others=0, cursors=[]), m.TransactionReply
    )
    assert committed.state == TransactionState.COMMITTED
    assert await code_of(begin(numbers[1], "a/b")) is ErrorCode.TRANSACTION_COMMITTED
    assert (await outcome_of(peer, name="order-7")).state == TransactionState.COMMITTED


async def test_what_is_not_known_is_said_so(peer: Peer, run: Run) -> None:
    """By name alone, what is not found is unknown; a number that cannot begin any more was aborted."""
    unused, used = await reserve(peer, 2)
    await create_stream(peer, "a/b", 1)
    assert (await outcome_of(peer, name="never")).state == TransactionState.UNKNOWN
    assert (await outcome_of(peer, number=unused)).state == TransactionState.UNKNOWN
    await peer.ask(begin_request(used, "a/b"), m.TransactionReply)
    await peer.ask(m.AbortTransaction(used, ""), m.TransactionReply)
    assert await code_of(peer.ask(m.AbortTransaction(unused, ""), m.TransactionReply)) is ErrorCode.TRANSACTION_UNKNOWN
    container = run.container
    with await container.loader.pin(m.Required(transactions=[used])):
        await container.decide(m.OutcomesForgotten([used]))

    assert container.state.scalars.horizon == used + 1
    assert (await outcome_of(peer, number=used)).state == TransactionState.UNKNOWN


async def test_numbers_are_used_once(peer: Peer) -> None:
    (segment_id,) = await create_stream(peer, "a/b", 1)
    numbers = await reserve(peer, 3)
    begin = begin_request(numbers[0], "a/b")
    assert (await peer.ask(begin, m.TransactionReply)).changed == 1
    assert (await peer.ask(begin, m.TransactionReply)).changed == 0
    add = m.AddParts(number=numbers[0], branch=0, parts=[m.NewPart(numbers[1], segment_id)])
    assert (await peer.ask(add, m.Done)).changed == 1
    assert (await peer.ask(add, m.Done)).changed == 0

    for number in (numbers[1], numbers[2] + 1, segment_id, 1 << 50):
        refused = peer.ask(begin_request(number, "a/b"), m.TransactionReply)
        assert await code_of(refused) is ErrorCode.INVALID_ARGUMENT, number
    for part in (m.NewPart(numbers[0], segment_id), m.NewPart(numbers[2], 12345), m.NewPart(numbers[2], segment_id)):
        add = m.AddParts(number=numbers[0], branch=0, parts=[part])
        assert await code_of(peer.ask(add, m.Done)) is ErrorCode.INVALID_ARGUMENT, part
    own = m.AddParts(number=numbers[0], branch=1, parts=[m.NewPart(numbers[0], segment_id)])
    assert await code_of(peer.ask(own, m.Done)) is ErrorCode.INVALID_ARGUMENT
    assert (await peer.ask(m.AddParts(number=numbers[0], branch=1, parts=[part]), m.Done)).changed == 1


async def test_only_its_transaction_changes_a_part(peer: Peer) -> None:
    (segment_id,) = await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    part_id = transaction.parts[0, segment_id]

    assert await peer.settled(await peer.append(part_id, b"without a number")) == [ErrorCode.INVALID_ARGUMENT]
    for request in (m.SealSegment(part_id), m.TruncateSegment(part_id, 1)):
        assert await code_of(peer.ask(request, m.SegmentInfo)) is ErrorCode.INVALID_ARGUMENT
    assert await code_of(peer.ask(m.DeleteSegment(part_id), m.Done)) is ErrorCode.INVALID_ARGUMENT
    await transaction.commit()
    assert await peer.read_all(segment_id) == b"event"


async def scale(peer: Peer, stream: str, sealed_ids: list[int], *borders: int) -> list[int]:
    """Replace segments by others with borders at so many 16ths; return their ids."""
    places = [border * KEY_SPACE // 16 for border in borders]
    ranges = [m.KeyRangeRecord(low, high - 1) for low, high in pairwise(places)]
    info = await peer.ask(m.ScaleStream(stream, sealed_ids, ranges), m.StreamInfo)
    return [segment.segment_id for segment in info.segments if segment.epoch == info.epoch]


async def test_a_transaction_goes_where_its_keys_went(peer: Peer) -> None:
    """Behaviour 32: segments that were merged meanwhile, or split beside it."""
    halves = await create_stream(peer, "a/b", 2)
    transaction = await PeerTransaction.begin(peer, "a/b")
    (whole,) = await scale(peer, "a/b", halves, 0, 16)
    await peer.store(whole, b"new ")
    await transaction.write(b"event ")

    committed = await transaction.commit()

    assert await content_of(peer, "a/b") == {whole: b"new event event "}
    assert [(cut.epoch, cut.positions) for cut in committed.cuts] == [(1, [m.CutPosition(whole, 16)])]


async def test_a_transaction_that_a_split_overtook_is_an_epoch_of_its_own(scenario: Scenario) -> None:
    """Behaviours 32, 63: no byte is written anew, predecessors come first; also after a restart."""
    async with scenario.running() as run, run.peer() as peer:
        (whole,) = await create_stream(peer, "a/b", 1)
        transaction = await PeerTransaction.begin(peer, "a/b")
        await transaction.write(b"event ")
        left, right = await scale(peer, "a/b", [whole], 0, 8, 16)
        await peer.store(left, b"left ")
        await peer.store(right, b"right ")

        committed = await transaction.commit()

        info = await peer.ask(m.GetStream("a/b"), m.StreamInfo)
        assert info.epoch == 3
        (between,) = [segment for segment in info.segments if segment.epoch == 2]
        after = [segment for segment in info.segments if segment.epoch == 3]
        assert (between.sealed_epoch, between.sealed, between.length) == (3, 1, len(b"event "))
        assert [(segment.low, segment.last) for segment in after] == [
            (0, KEY_SPACE // 2 - 1),
            (KEY_SPACE // 2, KEY_SPACE - 1),
        ]
        expected = {left: b"left ", right: b"right ", between.segment_id: b"event "}
        assert await content_of(peer, "a/b") == expected
        assert committed.cuts[0].positions == [m.CutPosition(between.segment_id, 6)]
        assert await peer.settled(await peer.append(left, b"late")) == [ErrorCode.SEGMENT_SEALED]
        await peer.store(after[0].segment_id, b"later")
        # It can be scaled on.
        await scale(peer, "a/b", [segment.segment_id for segment in after], 0, 16)
    async with scenario.running() as run, run.peer() as peer:
        assert await content_of(peer, "a/b") == {**expected, after[0].segment_id: b"later"}


async def test_commits_that_a_split_overtook_wait_for_each_other(peer: Peer) -> None:
    """Behaviour 63: the second one is planned on what the first one leaves, though that is not durable yet."""
    (whole,) = await create_stream(peer, "a/b", 1)
    transactions = [await PeerTransaction.begin(peer, "a/b") for _ in range(3)]
    for number, transaction in enumerate(transactions):
        await transaction.write(b"event %d " % number)
    await scale(peer, "a/b", [whole], 0, 8, 16)

    # In one piece, so that the server has all of them before the first one is durable.
    started = [peer.next_id() for _ in transactions]
    requests = zip(transactions, started, strict=True)
    await peer.send(*[encode(each.commit_request(), request_id=number) for each, number in requests])
    for request_id in started:
        await peer.reply(request_id, m.TransactionReply)

    info = await peer.ask(m.GetStream("a/b"), m.StreamInfo)
    assert info.epoch == 7
    assert len([segment for segment in info.segments if not segment.sealed_epoch]) == 2
    assert list((await content_of(peer, "a/b")).values()) == [b"event 0 ", b"event 1 ", b"event 2 "]


async def test_sealing_a_stream_aborts_its_transactions(peer: Peer) -> None:
    """Behaviour 21: over all of their streams; others stay."""
    await create_stream(peer, "a/b", 1)
    await create_stream(peer, "a/c", 1)
    both, other = await PeerTransaction.begin(peer, "a/b", "a/c"), await PeerTransaction.begin(peer, "a/c")
    await both.write(b"event")
    await other.write(b"event")

    await peer.ask(m.SealStream("a/b"), m.StreamInfo)

    assert (await outcome_of(peer, number=both.number)).state == TransactionState.ABORTED
    assert await code_of(both.commit()) is ErrorCode.TRANSACTION_ABORTED
    assert (await other.commit()).state == TransactionState.COMMITTED
    late = peer.ask(begin_request(other.ids[-1], "a/b"), m.TransactionReply)
    assert await code_of(late) is ErrorCode.STREAM_SEALED


async def test_a_lease_that_runs_out_aborts(scenario: Scenario) -> None:
    """Behaviour 30: whatever names it renews it: an append to a part, a request, a list of numbers."""
    options = TransactionsOptions(tick_s=0.5)
    async with scenario.running(in_background=True, transactions=options) as run, run.peer() as peer:
        await create_stream(peer, "a/b", 1)
        held, renewed, left = [await PeerTransaction.begin(peer, "a/b", lease_ms=5000) for _ in range(3)]
        await held.add_parts(held.routed_ids)
        for _ in range(4):
            for _ in range(8):
                await scenario.clock.advance(0.5)
            await held.append(held.routed_ids[0], b"x")
            await peer.ask(m.RenewTransactions([renewed.number]), m.Done)

        assert len(run.state.open_transactions) == 2
        assert (await outcome_of(peer, number=left.number)).state == TransactionState.EXPIRED
        assert await code_of(left.commit()) is ErrorCode.TRANSACTION_ABORTED
        assert (await peer.ask(m.RenewTransactions([renewed.number, left.number]), m.Done)).changed == 0
        assert (await held.commit()).state == TransactionState.COMMITTED
        assert (await renewed.abort()).state == TransactionState.ABORTED


async def test_those_that_are_not_over_are_listed_in_pages(peer: Peer) -> None:
    await create_stream(peer, "a/b", 1)
    begun = [await PeerTransaction.begin(peer, "a/b", name=name) for name in ("", "order-7", "", "order-9", "")]
    await begun[1].write(b"event")
    await begun[1].prepare()
    await begun[2].abort()
    await begun[3].commit()

    listed: list[m.ListedTransaction] = []
    more = True
    while more:
        after = listed[-1].number if listed else 0
        page = await peer.ask(m.ListTransactions(after, 2), m.TransactionList)
        assert len(page.transactions) <= 2
        listed, more = listed + page.transactions, bool(page.more)

    assert [(each.number, each.name, each.state, each.part_count) for each in listed] == [
        (begun[0].number, "", TransactionState.OPEN, 0),
        (begun[1].number, "order-7", TransactionState.PREPARED, 1),
        (begun[4].number, "", TransactionState.OPEN, 0),
    ]
    for each in listed:
        assert each.begun_us == (await outcome_of(peer, number=each.number)).begun_us
    assert (await peer.ask(m.ListTransactions(0, 0), m.TransactionList)).transactions == listed


@pytest.mark.parametrize("ends", ["commit", "abort", "prepare and commit"])
async def test_one_that_a_checkpoint_has_stored_ends_where_nothing_idle_is_held(scenario: Scenario, ends: str) -> None:
    """Behaviour 28: it is in memory until its outcome is, whatever else would be evicted first."""
    running = partial(scenario.running, container=replace(QUIET, idle_bytes_max=0))
    async with running() as run, run.peer() as peer:
        (segment_id,) = await create_stream(peer, "a/b", 1)
        transaction = await PeerTransaction.begin(peer, "a/b", name="one")
        await transaction.write(b"event")
        await run.opened.flusher.checkpoint()
        if ends == "prepare and commit":
            await transaction.prepare()
            await run.opened.flusher.checkpoint()
        # So its stream, and what it is merged into, are in memory: nothing has to be loaded, and pinned for that.
        await peer.store(segment_id, b"before ")
        saved = m.NamedCut(m.CutKind.BOOKMARK, "here", [m.SavedPosition(segment_id, 0, 0)])
        await peer.ask(m.SaveCuts("a/b", [saved]), m.Done)

        found = await (transaction.abort() if ends == "abort" else transaction.commit())

        assert (await outcome_of(peer, number=transaction.number)).state == found.state
        assert await content_of(peer, "a/b") == {segment_id: b"before " if ends == "abort" else b"before event"}


async def test_one_that_was_open_at_a_start_is_one_where_nothing_idle_is_held(scenario: Scenario) -> None:
    """Behaviours 29 and 30: once prepared it never expires, though what is loaded is evicted at once."""
    running = partial(scenario.running, container=replace(QUIET, idle_bytes_max=0))
    async with running() as run, run.peer() as peer:
        (segment_id,) = await create_stream(peer, "a/b", 1)
        transaction = await PeerTransaction.begin(peer, "a/b", name="one", lease_ms=2000)
        await transaction.write(b"event")
    clock = ManualClock()
    async with running() as run, run.peer() as peer:
        transaction.peer = peer
        await transaction.prepare()
        for _ in range(8):
            await clock.advance(1.0)
        assert (await outcome_of(peer, name="one")).state == TransactionState.PREPARED

        assert (await transaction.commit()).state == TransactionState.COMMITTED
        assert await content_of(peer, "a/b") == {segment_id: b"event"}
