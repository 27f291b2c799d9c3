"""The leases of the transactions of one client."""

import asyncio
from collections.abc import Sequence

import pytest

from millrace.client.options import ClientOptions
from millrace.client.transactions.control import Transactions
from millrace.client.transactions.leases import LeaseKeeper
from millrace.model.cut import CutChoice, StreamCut
from millrace.model.key_range import KEY_SPACE
from millrace.model.transaction import TransactionState
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.clock import ManualClock
from tests.support.model_server import STREAM, ModelServer, error_reply, turns

pytestmark = pytest.mark.asyncio


class Lease:
    """A transaction whose lease is to be renewed; says so until it is over."""

    def __init__(self, leases: LeaseKeeper, interval_s: float) -> None:
        self.leases = leases
        self.interval_s = interval_s
        self.renewed_count = 0
        self.is_over = False
        self.is_released = False

    async def renew(self) -> bool:
        self.renewed_count += 1
        await asyncio.sleep(0)
        return not self.is_over

    def release(self) -> None:
        self.is_released = True
        self.leases.discard(self)


async def test_each_is_renewed_after_its_interval_until_it_ends() -> None:
    """Behaviour 30: a lease does not run out while its client lives."""
    clock = ManualClock()
    leases = LeaseKeeper(clock)
    quick, slow = Lease(leases, 1.0), Lease(leases, 2.5)
    for each in (slow, quick):  # the second one is due before what the task waits for
        leases.add(each, each.renew, interval_s=each.interval_s)
    await clock.advance(0)

    for _ in range(5):
        await clock.advance(1.0)

    assert (quick.renewed_count, slow.renewed_count) == (5, 1)
    leases.discard(slow)
    await clock.advance(10.0)
    assert (quick.renewed_count, slow.renewed_count) == (6, 1)
    leases.close()


async def test_one_that_is_over_is_renewed_no_more() -> None:
    clock = ManualClock()
    leases = LeaseKeeper(clock)
    lease = Lease(leases, 1.0)
    leases.add(lease, lease.renew, interval_s=lease.interval_s)
    await clock.advance(0)
    lease.is_over = True

    for _ in range(3):
        await clock.advance(1.0)

    assert lease.renewed_count == 1
    assert clock.sleeper_count == 0


async def test_one_that_ends_while_it_is_renewed_is_renewed_no_more() -> None:
    clock = ManualClock()
    leases = LeaseKeeper(clock)
    lease = Lease(leases, 1.0)

    async def renew() -> bool:
        leases.discard(lease)
        return await lease.renew()

    leases.add(lease, renew, interval_s=lease.interval_s)
    await clock.advance(0)

    for _ in range(3):
        await clock.advance(1.0)

    assert lease.renewed_count == 1
    assert clock.sleeper_count == 0


async def test_those_that_begin_and_end_in_time_take_one_task() -> None:
    clock = ManualClock()
    leases = LeaseKeeper(clock)
    before = len(asyncio.all_tasks())
    for _ in range(10):
        lease = Lease(leases, 1.0)
        leases.add(lease, lease.renew, interval_s=lease.interval_s)
        await clock.advance(0.01)
        leases.discard(lease)
    assert len(asyncio.all_tasks()) == before + 1
    await clock.advance(1.0)
    assert len(asyncio.all_tasks()) == before


async def test_closing_releases_all_and_ends_the_task() -> None:
    clock = ManualClock()
    leases = LeaseKeeper(clock)
    before = len(asyncio.all_tasks())
    held = [Lease(leases, 1.0), Lease(leases, 2.0)]
    for lease in held:
        leases.add(lease, lease.renew, interval_s=lease.interval_s)
    await clock.advance(1.0)

    leases.close()
    await clock.advance(5.0)

    assert all(lease.is_released for lease in held)
    assert len(asyncio.all_tasks()) == before
    assert held[1].renewed_count == 0


@pytest.mark.parametrize("code", [ErrorCode.SHUTTING_DOWN, ErrorCode.THROTTLED])
async def test_a_server_that_refuses_for_a_while_is_asked_again(code: ErrorCode) -> None:
    """For longer than a request may take; the lease may be far longer than that."""
    server = ModelServer(options=ClientOptions(request_timeout_s=2.0))
    server.answers[m.ReserveIds] = m.IdRange(100, 1)
    server.answers[m.BeginTransaction] = m.TransactionReply(
        number=100, state=TransactionState.OPEN, changed=1, decided_us=0, cuts=[], tails=[],
        streams=[m.TransactionStream(server.stream_id, 0, [m.SegmentRangeRecord(1, 0, KEY_SPACE - 1)])],
    )  # fmt: skip
    server.answers[m.RenewTransactions] = error_reply(code, retriable=True)
    channel = server.channel()
    transactions = Transactions(channel, fetch_tails=no_tails, find_cut=no_cut)
    begun = transactions.make(STREAM, name="t", lease_s=30.0, producer=None, options=None)
    await begun.__aenter__()

    async def renewals_in(seconds: int) -> int:
        server.requests.clear()
        for _ in range(10 * seconds):
            server.clock.move(0.1)
            await turns()
        return sum(isinstance(request, m.RenewTransactions) for request in server.requests)

    assert await renewals_in(25) > 0
    server.answers[m.RenewTransactions] = m.Done(changed=1)
    assert await renewals_in(25) > 0
    begun.release()
    transactions.close()
    await channel.close()


async def no_cut(stream: str, place: CutChoice) -> StreamCut:
    raise AssertionError(f"nothing asks where {place} of {stream} is")


async def no_tails(_names: Sequence[str]) -> dict[str, StreamCut]:
    return {}
