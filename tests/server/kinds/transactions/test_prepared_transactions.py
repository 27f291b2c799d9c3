"""Transactions that are prepared: they wait for their end, whatever happens, whatever their container does."""

import pytest

from millrace.model.transaction import TransactionState
from millrace.server.kinds.transactions.expiry import TransactionExpiryLoop
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.protocol import Peer, RefusedError, code_of
from tests.support.scenario import Run, Scenario
from tests.support.transactions import (
    PeerTransaction,
    begin_request,
    content_of,
    create_stream,
    outcome_of,
)
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


async def test_a_prepared_transaction_waits_for_its_commit(scenario: Scenario) -> None:
    """Behaviours 30, 31: also over a restart; another process commits it by its name."""
    async with scenario.running(in_background=True) as run, run.peer() as peer:
        (segment_id,) = await create_stream(peer, "a/b", 1)
        transaction = await PeerTransaction.begin(peer, "a/b", name="order-7", lease_ms=1000)
        await transaction.write(b"kept", branch=5)
        await transaction.write(b"dropped", branch=6)
        by_name = m.CommitTransaction(number=0, name="order-7", branches=[], drops_others=0, cursors=[])
        assert await code_of(peer.ask(by_name, m.TransactionReply)) is ErrorCode.INVALID_ARGUMENT
        assert await code_of(transaction.prepare(5)) is ErrorCode.BRANCHES_DIFFER

        prepared = await transaction.prepare(5, drops_others=True)

        assert (prepared.state, prepared.changed) == (TransactionState.PREPARED, 1)
        assert (await outcome_of(peer, name="order-7")).branches == [m.BranchCount(5, 1)]
        assert (await transaction.prepare(5, drops_others=True)).changed == 0
        late = await transaction.send(transaction.parts[5, segment_id], b"late", event_number=2)
        assert await peer.settled(late) == [ErrorCode.TRANSACTION_PREPARED]
        assert await code_of(transaction.add_parts([segment_id], branch=7)) is ErrorCode.TRANSACTION_PREPARED
        assert await code_of(transaction.commit(5, 6)) is ErrorCode.TRANSACTION_PREPARED
        joined = await peer.ask(begin_request(transaction.ids[-1], "a/b", name="order-7"), m.TransactionReply)
        assert (joined.number, joined.state, joined.changed) == (transaction.number, TransactionState.PREPARED, 0)
        for _ in range(10):
            await scenario.clock.advance(1.0)
    async with scenario.running(in_background=True) as run, run.peer() as peer:
        assert (await outcome_of(peer, name="order-7")).state == TransactionState.PREPARED

        committed = await peer.ask(by_name, m.TransactionReply)

        assert (committed.state, committed.changed) == (TransactionState.COMMITTED, 1)
        assert (await peer.ask(by_name, m.TransactionReply)).changed == 0
        assert await content_of(peer, "a/b") == {segment_id: b"kept"}


async def test_those_that_wait_are_counted_and_the_age_of_the_oldest(scenario: Scenario) -> None:
    """Behaviour 30: also over a restart; how many ended in each way is counted since the start."""

    def counted(run: Run) -> tuple[int, ...]:
        found = run.services.get(TransactionExpiryLoop).statistics
        return found.open, found.prepared, found.committed_total, found.aborted_total, found.expired_total

    async with scenario.running(in_background=True) as run, run.peer() as peer:
        await create_stream(peer, "a/b", 1)
        prepared = await PeerTransaction.begin(peer, "a/b", name="order-7", lease_ms=1000)
        await prepared.write(b"event")
        await prepared.prepare()
        assert (counted(run), run.services.get(TransactionExpiryLoop).statistics.oldest_age_s) == ((1, 1, 0, 0, 0), 0.0)
        await PeerTransaction.begin(peer, "a/b", lease_ms=1000)
        for _ in range(5):
            await scenario.clock.advance(1.0)
        await until(lambda: counted(run) == (1, 1, 0, 0, 1))
        committed, aborted, _ = [await PeerTransaction.begin(peer, "a/b", lease_ms=3_600_000) for _ in range(3)]
        await committed.commit()
        await aborted.abort()
        assert counted(run) == (2, 1, 1, 1, 1)
        assert run.services.get(TransactionExpiryLoop).statistics.oldest_age_s == 5.0
        assert run.services.get(TransactionExpiryLoop).statistics.open_parts == 1
    scenario.clock.move(60.0)
    async with scenario.running(in_background=True) as run:
        assert (counted(run), run.services.get(TransactionExpiryLoop).statistics.oldest_age_s) == (
            (2, 1, 0, 0, 0),
            65.0,
        )


async def test_a_stream_is_not_sealed_while_a_transaction_is_prepared(peer: Peer) -> None:
    """Behaviour 21: the error names it; `force` aborts it."""
    await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b", name="order-7")
    open_one = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    await transaction.prepare()

    with pytest.raises(RefusedError, match=r"TRANSACTION_PREPARED: a/b transaction order-7 is prepared"):
        await peer.ask(m.SealStream("a/b"), m.StreamInfo)

    assert (await outcome_of(peer, number=open_one.number)).state == TransactionState.OPEN
    await peer.ask(m.SealStream("a/b", 1), m.StreamInfo)
    assert (await outcome_of(peer, name="order-7")).state == TransactionState.ABORTED
    assert (await outcome_of(peer, number=open_one.number)).state == TransactionState.ABORTED


async def test_one_without_a_name_is_not_prepared(peer: Peer) -> None:
    """Behaviour 30: if its client dies, nobody can end it; it stays open."""
    await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b")
    await transaction.write(b"event")
    with pytest.raises(RefusedError, match=r"INVALID_ARGUMENT: .*give it a name"):
        await transaction.prepare()
    assert (await outcome_of(peer, number=transaction.number)).state == TransactionState.OPEN
    await transaction.commit()


async def test_a_prepared_transaction_may_be_aborted(peer: Peer) -> None:
    await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b", name="order-7")
    await transaction.write(b"event")
    await transaction.prepare()

    assert (await transaction.abort()).state == TransactionState.ABORTED
    assert await code_of(transaction.commit()) is ErrorCode.TRANSACTION_ABORTED
