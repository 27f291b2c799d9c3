"""The leases of other servers with the same prefix."""

import pytest

from millrace.server.errors import StoreUnavailableError
from millrace.server.ownership import Claimant, other_leases
from millrace.server.ownership.lease_format import lease_key
from millrace.server.ownership.others import end_lease, read_lease
from tests.support.clock import ManualClock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.object_store import MemoryObjectStore
from tests.support.owners import LEASE_S, Process

pytestmark = pytest.mark.asyncio


async def test_the_lease_of_one_that_lives_has_another_tag_after_each_renewal() -> None:
    store, clock = MemoryObjectStore(), ManualClock()
    own, alive, dead = [await Process(store, clock, host=name).start() for name in ("own", "alive", "dead")]
    await dead.crash()
    before = await other_leases(store, own.lease.worker.worker_id)
    for _ in range(4):
        await clock.advance(LEASE_S / 12)
    after = await other_leases(store, own.lease.worker.worker_id)
    keys = {each: lease_key(each.lease.worker.worker_id) for each in (alive, dead)}
    assert before.keys() == after.keys() == {*keys.values()}
    assert before[keys[alive]] != after[keys[alive]]
    assert before[keys[dead]] == after[keys[dead]]
    for each in (own, alive):
        await each.crash()


async def test_what_nobody_can_wait_with_is_left_out() -> None:
    """A lease that was ended, and what is none."""
    store, clock = MemoryObjectStore(), ManualClock()
    own, ended = [await Process(store, clock, host=name).start() for name in ("own", "ended")]
    for each in (own, ended):
        await each.crash()
    claimant = Claimant.of_worker(ended.lease.worker, since="2026-01-31T12:00:00+00:00", lease_s=LEASE_S)
    found = await read_lease(store, claimant)
    assert await end_lease(store, claimant, found=found, by=own.lease.worker)
    await store.create("workers/damaged", [b"{"])
    assert await other_leases(store, own.lease.worker.worker_id) == {}


async def test_a_store_that_does_not_answer_is_told() -> None:
    memory, clock = MemoryObjectStore(), ManualClock()
    own = await Process(memory, clock).start()
    await own.crash()
    store = FaultyStore(memory)
    store.fail("list", Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await other_leases(store, own.lease.worker.worker_id)
