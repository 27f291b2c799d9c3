from millrace.model.transaction import TransactionState
from millrace.server.container.state.transaction import Transaction
from millrace.server.streams.lease_loop import LeaseClock, Leases
from tests.support.clock import ManualClock


def transaction(number: int = 1, *, lease_ms: int = 3000) -> Transaction:
    return Transaction(number=number, name="", begun_us=0, lease_ms=lease_ms)


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


def test_a_lease_begins_with_the_first_look_and_with_every_name() -> None:
    """Behaviour 30."""
    leases, one = Leases(), transaction()
    assert leases.expired([one], now_s=100.0) == []
    assert leases.expired([one], now_s=103.0) == []
    one.is_renewed = True
    assert leases.expired([one], now_s=103.5) == []
    assert leases.expired([one], now_s=106.5) == []
    assert leases.expired([one], now_s=106.6) == [one]


def test_a_request_that_waits_holds_the_lease() -> None:
    leases, one = Leases(), transaction()
    leases.expired([one], now_s=0.0)
    one.holders_count = 1
    assert leases.expired([one], now_s=10.0) == []
    one.holders_count = 0
    assert leases.expired([one], now_s=12.0) == []
    assert leases.expired([one], now_s=13.1) == [one]


def test_only_open_ones_expire() -> None:
    leases, prepared, ended = Leases(), transaction(1), transaction(2)
    leases.expired([prepared, ended], now_s=0.0)
    prepared.admitted_state = TransactionState.PREPARED
    ended.admitted_state = TransactionState.COMMITTED
    assert leases.expired([prepared, ended], now_s=100.0) == []
