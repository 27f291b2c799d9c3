import pytest

from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.transaction import TransactionPart, TransactionState
from millrace.server.container.state.transaction import Transaction
from millrace.server.kinds.transactions.expiry import LeaseClock, TransactionLeases
from millrace.wire import messages as m
from millrace.wire.limits import EMPTY_LEASE_S_MAX
from tests.support.clock import ManualClock
from tests.support.scenario import Scenario
from tests.support.transactions import PeerTransaction, create_stream, outcome_of
from tests.support.waiting import until


def transaction(number: int = 1, *, lease_ms: int = 3000, name: str = "") -> Transaction:
    return Transaction(number=number, name=name, begun_us=0, lease_ms=lease_ms)


def test_the_lease_of_an_empty_transaction_without_a_name_is_minutes_at_most() -> None:
    """Behaviour 104: clients that begin many and disappear lock nobody out for a day."""
    day_ms = 24 * 3600 * 1000
    leases, empty, filled = TransactionLeases(), transaction(1, lease_ms=day_ms), transaction(2, lease_ms=day_ms)
    named = transaction(3, lease_ms=day_ms, name="order-7")
    filled.admit_parts({7: TransactionPart(7, 0, 1, KeyRange.inclusive(0, 1))})
    everybody = [empty, filled, named]
    assert leases.expired(everybody, now_s=0.0) == []
    assert leases.expired(everybody, now_s=EMPTY_LEASE_S_MAX) == []
    assert leases.expired(everybody, now_s=EMPTY_LEASE_S_MAX + 1) == [empty]
    assert leases.expired([filled, named], now_s=86_401.0) == [filled, named]


def test_a_lease_counts_while_the_loop_turns() -> None:
    """A suspended machine, or a disk that stands still, costs a second of the lease."""
    clock = ManualClock()
    leases = LeaseClock(clock)
    clock.move(0.25)
    assert leases.tick() == 0.25
    clock.move(3600.0)
    assert leases.tick() == 1.25
    clock.jump_wall(3_600_000_000)
    assert leases.tick() == 1.25
    clock.move(60.0)
    assert leases.tick(counts=False) == 1.25, "nobody could be heard"
    clock.move(0.25)
    assert leases.tick() == 1.5


def test_a_lease_begins_with_the_first_look_and_with_every_name() -> None:
    """Behaviour 30."""
    leases, one = TransactionLeases(), transaction()
    assert leases.expired([one], now_s=100.0) == []
    assert leases.expired([one], now_s=103.0) == []
    one.is_renewed = True
    assert leases.expired([one], now_s=103.5) == []
    assert leases.expired([one], now_s=106.5) == []
    assert leases.expired([one], now_s=106.6) == [one]


def test_a_request_that_waits_holds_the_lease() -> None:
    leases, one = TransactionLeases(), transaction()
    leases.expired([one], now_s=0.0)
    one.holders_count = 1
    assert leases.expired([one], now_s=10.0) == []
    one.holders_count = 0
    assert leases.expired([one], now_s=12.0) == []
    assert leases.expired([one], now_s=13.1) == [one]


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
    leases, prepared, ended = TransactionLeases(), transaction(1), transaction(2)
    leases.expired([prepared, ended], now_s=0.0)
    prepared.admitted_state = TransactionState.PREPARED
    ended.admitted_state = TransactionState.COMMITTED
    assert leases.expired([prepared, ended], now_s=100.0) == []
