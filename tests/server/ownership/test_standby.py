"""Waiting for the owner of a container: who is silent is taken over from, and nobody else."""

import asyncio

import pytest

from millrace.server.errors import OwnerFencedError
from millrace.server.ownership import CopyRecord, ManifestOwnership, decode_manifest
from millrace.server.ownership.lease import RENEWALS_COUNT
from millrace.server.ownership.manifest import Claimant
from millrace.server.ownership.manifest_ownership import ATTEMPTS_COUNT_MAX
from millrace.server.ownership.others import WatchOutcome
from millrace.server.ownership.standby import LOOKS_COUNT, stand_by
from tests.support.clock import ManualClock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.object_store import MemoryObjectStore
from tests.support.owners import LEASE_S, Process, passing
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

LOOK_S = LEASE_S / LOOKS_COUNT
COPY = CopyRecord(name="copy", sequence=5, container_epoch=3, replay_from=4)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory() -> MemoryObjectStore:
    return MemoryObjectStore()


class Waiting:
    """A process that stands by.

    Attributes:
        seen: the owners that it was told of.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.seen: list[Claimant] = []
        self.claiming = asyncio.create_task(
            process.claim(has_remote_log=True, on_standby=self.seen.append), name=process.host
        )

    @classmethod
    async def begin(
        cls, memory: MemoryObjectStore, clock: ManualClock, host: str, *, store: FaultyStore | None = None
    ) -> "Waiting":
        waiting = cls(await Process(store or memory, clock, host=host).start())
        await until(lambda: waiting.seen)
        return waiting

    async def end(self) -> None:
        self.claiming.cancel()
        await asyncio.wait([self.claiming])
        await self.process.crash()


def owner_in(memory: MemoryObjectStore) -> Claimant:
    return decode_manifest(memory.objects["c0000/manifest"]).claimant


async def owner(memory: MemoryObjectStore, clock: ManualClock) -> tuple[Process, ManifestOwnership]:
    process = await Process(memory, clock).start()
    return process, await process.claim(has_remote_log=True)


async def test_it_waits_for_as_long_as_the_owner_lives_and_takes_over_from_a_dead_one(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """Behaviour 94: also after the owner has changed the manifest since the standby began."""
    process, ownership = await owner(memory, clock)
    waiting = await Waiting.begin(memory, clock, "two")
    for _ in range(100):
        await clock.advance(LEASE_S / RENEWALS_COUNT)
    await ownership.record_copy(COPY)  # changes the manifest
    assert not waiting.claiming.done()
    assert [each.host for each in waiting.seen] == ["one"]
    assert decode_manifest(memory.objects["c0000/manifest"]).epoch == ownership.epoch

    await process.crash()
    taken = await passing(clock, waiting.claiming, step_s=LOOK_S)
    assert taken.epoch == ownership.epoch + 1
    assert [each.host for each in waiting.seen] == ["one"], "its owner is not watched again once it is ended"
    await waiting.process.crash()


async def test_who_is_dead_is_found_silent_soon_after_the_length_of_its_lease(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """Behaviour 94: counted from its last renewal."""
    process, _ = await owner(memory, clock)
    watching = asyncio.create_task(stand_by(memory, owner_in(memory), clock=clock))
    await clock.advance(LEASE_S / RENEWALS_COUNT)
    await process.crash()
    died_s = clock.monotonic_s()
    watched, found = await passing(clock, watching, step_s=LOOK_S)
    assert watched is WatchOutcome.SILENT
    assert found is not None
    assert LEASE_S <= clock.monotonic_s() - died_s <= LEASE_S + 3 * LOOK_S


async def test_who_ends_in_order_is_gone_at_once(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Behaviour 94."""
    process, ownership = await owner(memory, clock)
    watching = asyncio.create_task(stand_by(memory, owner_in(memory), clock=clock))
    await clock.advance(LOOK_S)
    await ownership.release()
    await process.crash()
    await process.lease.release()
    released_s = clock.monotonic_s()
    assert (await passing(clock, watching, step_s=LOOK_S))[0] is WatchOutcome.GONE
    assert clock.monotonic_s() - released_s <= 2 * LOOK_S


async def test_one_whose_own_lease_is_ended_stops_waiting_at_its_next_look(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """It could never claim with that lease, however long the owner lives."""
    process, _ = await owner(memory, clock)
    fences: list[OwnerFencedError] = []
    watching = asyncio.create_task(
        stand_by(memory, owner_in(memory), clock=clock, fenced=lambda: fences[0] if fences else None)
    )
    await clock.advance(LOOK_S)
    assert not watching.done()
    fences.append(OwnerFencedError("ended"))
    await clock.advance(LOOK_S)
    with pytest.raises(OwnerFencedError, match="ended"):
        await watching
    await process.crash()


async def test_after_an_orderly_end_it_takes_over(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Behaviour 94."""
    process, ownership = await owner(memory, clock)
    waiting = await Waiting.begin(memory, clock, "two")
    await ownership.release()
    await process.crash()
    await process.lease.release()
    assert (await passing(clock, waiting.claiming, step_s=LOOK_S)).epoch == ownership.epoch + 1
    await waiting.process.crash()


async def test_of_two_one_takes_over_and_the_other_waits_for_that(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """Behaviour 94: any number of owners may come and go."""
    process, _ = await owner(memory, clock)
    waiting = {host: await Waiting.begin(memory, clock, host) for host in ("two", "three")}
    for number in range(2 * ATTEMPTS_COUNT_MAX):
        await process.crash()
        await passing(
            clock, asyncio.wait([each.claiming for each in waiting.values()], return_when=asyncio.FIRST_COMPLETED)
        )
        (host,) = [host for host, each in waiting.items() if each.claiming.done()]
        await waiting[host].claiming
        process = waiting.pop(host).process
        waiting[f"next {number}"] = await Waiting.begin(memory, clock, f"next {number}")
        for _ in range(10):
            await clock.advance(LEASE_S / RENEWALS_COUNT)
    for each in waiting.values():
        assert not each.claiming.done()
        await each.end()
    await process.crash()


async def test_an_outage_of_the_store_is_no_silence_of_the_owner(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Behaviour 92: the owner cannot renew its lease meanwhile. Once the store answers, the whole length counts."""
    store = FaultyStore(memory)
    process, ownership = await owner(memory, clock)
    waiting = await Waiting.begin(memory, clock, "two", store=store)
    await process.crash()  # it renews nothing, as in an outage
    for _ in range(20):
        store.fail("get", Fault.UNAVAILABLE)
        await clock.advance(LEASE_S / RENEWALS_COUNT)
    assert not waiting.claiming.done()
    for _ in range(LOOKS_COUNT - 2):
        await clock.advance(LOOK_S)
    assert not waiting.claiming.done()
    assert (await passing(clock, waiting.claiming)).epoch == ownership.epoch + 1
    await waiting.process.crash()


async def test_a_look_that_took_long_does_not_count(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Behaviour 92: what held it up may have held up a renewal, too."""
    store = FaultyStore(memory)
    process, _ = await owner(memory, clock)
    waiting = await Waiting.begin(memory, clock, "two", store=store)
    await process.crash()
    store.fail("get", Fault.STALL)
    for _ in range(LOOKS_COUNT):
        await clock.advance(LOOK_S)
    store.release()
    for _ in range(LOOKS_COUNT - 2):
        await clock.advance(LOOK_S)
    assert not waiting.claiming.done()
    await passing(clock, waiting.claiming)
    await waiting.process.crash()


async def test_a_store_that_fails_at_the_takeover_is_asked_again(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Behaviour 92: it answers reads, and takes no writes for a while."""
    store = FaultyStore(memory)
    process, ownership = await owner(memory, clock)
    waiting = await Waiting.begin(memory, clock, "two", store=store)
    await process.crash()
    store.fail("replace", *[Fault.UNAVAILABLE] * 12)  # its own renewals among them
    assert (await passing(clock, waiting.claiming)).epoch == ownership.epoch + 1
    await waiting.process.crash()


async def test_it_can_be_cancelled(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process, ownership = await owner(memory, clock)
    waiting = await Waiting.begin(memory, clock, "two")
    await waiting.end()
    assert decode_manifest(memory.objects["c0000/manifest"]).claim_id == ownership.claim_id
    await process.crash()
