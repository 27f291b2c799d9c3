import pytest

from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.transaction import TransactionPart, TransactionState
from millrace.server.container.state.transaction import Transaction, TransactionRow
from millrace.server.kinds.transactions.expiry import leases_of
from millrace.wire import messages as m
from millrace.wire.limits import EMPTY_LEASE_S_MAX
from tests.support.scenario import Scenario
from tests.support.transactions import PeerTransaction, create_stream, outcome_of
from tests.support.waiting import until


def transaction(number: int = 1, *, lease_ms: int = 3000, name: str = "") -> Transaction:
    return Transaction(TransactionRow(number=number, name=name, begun_us=0, lease_ms=lease_ms))


def test_the_lease_of_an_empty_transaction_without_a_name_is_minutes_at_most() -> None:
    """Behaviour 104: clients that begin many and disappear lock nobody out for a day."""
    day_ms = 24 * 3600 * 1000
    empty, filled = [transaction(number, lease_ms=day_ms) for number in (1, 2)]
    named = transaction(3, lease_ms=day_ms, name="order-7")
    filled.admit_parts({7: TransactionPart(7, 0, 1, KeyRange.inclusive(0, 1))})
    lengths_s = {number: length_s for number, length_s, _ in leases_of([empty, filled, named])}
    assert lengths_s == {1: EMPTY_LEASE_S_MAX, 2: 86_400.0, 3: 86_400.0}


@pytest.mark.asyncio
async def test_a_commit_that_waits_holds_the_lease(scenario: Scenario) -> None:
    """Behaviour 30: for a scale that is on its way to a disk which stands still for longer than the lease."""
    async with (
        scenario.running(in_background=True) as run,
        run.peer() as peer,
    ):
        (segment_id,) = await create_stream(peer, "a/b", 1)
        waiting, left = [await PeerTransaction.begin(peer, "a/b", lease_ms=2000) for _ in range(2)]
        await waiting.write(b"event")
        await left.write(b"event")
        container = run.container
        scenario.log.is_stalled = True
        middle = KEY_SPACE // 2
        ranges = [m.KeyRangeRecord(0, middle - 1), m.KeyRangeRecord(middle, KEY_SPACE - 1)]
        scale = await peer.start(m.ScaleStream("a/b", [segment_id], ranges))
        await until(container.in_flight.records)
        commit = await peer.start(waiting.commit_request())
        await until(lambda: container.state.open_transactions.by_number[waiting.number].holders_count)
        for _ in range(8):
            await scenario.clock.advance(1.0)
        scenario.log.resume()

        await peer.reply(scale, m.StreamInfo)
        assert (await peer.reply(commit, m.TransactionReply)).changed
        assert (await outcome_of(peer, number=waiting.number)).state == TransactionState.COMMITTED
        while (await outcome_of(peer, number=left.number)).state != TransactionState.EXPIRED:
            await scenario.clock.advance(1.0)


def test_only_open_ones_expire() -> None:
    opened, prepared, ended = [transaction(number) for number in (1, 2, 3)]
    prepared.admitted = prepared.row._replace(state=TransactionState.PREPARED)
    ended.admitted = ended.row._replace(state=TransactionState.COMMITTED)
    assert [number for number, _, _ in leases_of([opened, prepared, ended])] == [1]
