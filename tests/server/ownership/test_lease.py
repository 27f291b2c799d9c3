"""Leases: how they are renewed, how they end, and what is known of the time in between."""

import asyncio
import logging
import uuid
from collections.abc import Iterator

import pytest

from millrace.server.errors import ObjectExistsError, OwnerFencedError, StoreUnavailableError
from millrace.server.object_store import ObjectStoreOptions, RetryingStore
from millrace.server.ownership import Claimant, Lease, decode_lease, lease_key
from millrace.server.ownership.lease import LATE_COUNT_MAX
from millrace.server.ownership.lease_format import encode_lease
from millrace.server.ownership.others import WatchOutcome, end_lease, read_lease, watch_lease
from tests.support.clock import ManualClock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.object_store import MemoryObjectStore
from tests.support.owners import LEASE_S, URL, Process, passing, worker

pytestmark = pytest.mark.asyncio

THIRD_S = LEASE_S / 3


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def store(memory: MemoryObjectStore) -> Iterator[FaultyStore]:
    """A store that does not repeat anything by itself."""
    faulty = FaultyStore(memory)
    yield faulty
    faulty.release()


def owner_of(process: Process) -> Claimant:
    return Claimant.of_worker(process.lease.worker, since="2026-01-31T12:00:00+00:00", lease_s=LEASE_S)


def stored(memory: MemoryObjectStore, process: Process) -> Lease:
    return decode_lease(memory.objects[lease_key(process.lease.worker.worker_id)])


async def test_a_lease_is_renewed_three_times_in_its_length(
    store: FaultyStore, memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """Behaviour 95: what it costs. At 10 s, that is 0.3 requests a second."""
    process = await Process(store, clock).start()
    for _ in range(100):
        await clock.advance(LEASE_S / 12)
    assert stored(memory, process).renewals == 25
    assert store.calls == {"create": 1, "replace": 25}
    assert not process.lease.is_stalled
    statistics = process.lease.statistics()
    assert (statistics.renewals_count, statistics.failures_count, statistics.age_s) == (25, 0, 0.0)
    await process.crash()


async def test_a_lease_that_is_released_is_deleted(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    await clock.advance(THIRD_S)
    await process.crash()
    await process.lease.release()
    assert not memory.objects
    assert not process.fenced


async def test_a_start_whose_answer_was_lost_may_be_made_again(store: FaultyStore, clock: ManualClock) -> None:
    process = Process(store, clock)
    store.fail("create", Fault.LOST_ANSWER)
    with pytest.raises(StoreUnavailableError):
        await process.lease.start()
    await process.lease.start()


async def test_a_lease_of_somebody_else_is_not_taken_for_ours(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = Process(memory, clock)
    memory.objects[lease_key(process.lease.worker.worker_id)] = b"?"
    with pytest.raises(ObjectExistsError):
        await process.lease.start()


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.BUSY, Fault.CONFLICT, Fault.LOST_ANSWER, Fault.LATE])
async def test_a_renewal_that_fails_is_made_again(
    fault: Fault,
    store: FaultyStore,
    memory: MemoryObjectStore,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Behaviour 92: whatever became of the first, the second succeeds."""
    process = await Process(store, clock).start()
    store.fail("replace", fault)
    with caplog.at_level(logging.INFO):
        await clock.advance(THIRD_S)
        assert process.lease.statistics().failures_count == 1
        await clock.advance(THIRD_S)
    assert stored(memory, process).renewals == 1
    await store.land()
    await clock.advance(THIRD_S)
    assert stored(memory, process).renewals == 2
    assert process.lease.statistics().renewals_count == 2
    assert not process.fenced
    assert "lease renewal failed" in caplog.text
    assert "lease renewal recovered" in caplog.text
    await process.crash()


async def test_an_outage_of_the_store_ends_nobody(store: FaultyStore, clock: ManualClock) -> None:
    """Behaviour 92: a server whose log is its own keeps serving."""
    process = await Process(store, clock).start()
    store.fail("replace", *[Fault.UNAVAILABLE] * 30)
    for _ in range(30):
        await clock.advance(THIRD_S)
        assert not process.lease.is_stalled
    assert process.lease.statistics().age_s == 10 * LEASE_S
    await clock.advance(THIRD_S)
    # It may have landed with the first attempt, and others have seen no other since.
    assert process.lease.statistics().age_s == 10 * LEASE_S
    assert process.lease.is_lapsed
    await clock.advance(THIRD_S)
    assert process.lease.statistics().age_s == 0.0
    assert not process.lease.is_lapsed
    assert not process.fenced
    await process.crash()


async def test_one_lost_request_does_not_let_the_lease_run_out(store: FaultyStore, clock: ManualClock) -> None:
    process = await Process(store, clock).start()
    store.fail("replace", Fault.STALL)
    await clock.advance(THIRD_S)
    assert store.stalled_count == 1
    for _ in range(4):
        await clock.advance(THIRD_S)
    statistics = process.lease.statistics()
    assert statistics.failures_count == 1
    assert statistics.renewals_count > 1
    assert statistics.age_s < LEASE_S
    store.release()
    await clock.advance(LEASE_S)
    assert process.lease.statistics().failures_count == 1
    assert not process.fenced
    await process.crash()


async def test_a_store_that_does_not_answer_is_asked_a_few_times(memory: MemoryObjectStore, clock: ManualClock) -> None:
    is_away = False
    store = FaultyStore(memory, schedule=lambda operation: Fault.STALL if is_away and operation == "replace" else None)
    process = await Process(store, clock).start()
    is_away = True
    for _ in range(50):
        await clock.advance(1.0)
        assert not process.lease.is_stalled
    assert store.calls["replace"] == store.stalled_count == LATE_COUNT_MAX + 1
    assert process.lease.statistics().failures_count > LATE_COUNT_MAX + 1
    is_away = False
    store.release()
    await clock.advance(1.0)
    await clock.advance(LEASE_S)
    assert process.lease.statistics().renewals_count >= 2
    assert not process.fenced
    await process.crash()


async def test_a_process_may_end_while_the_store_does_not_answer(
    store: FaultyStore, memory: MemoryObjectStore, clock: ManualClock
) -> None:
    retrying = RetryingStore(store, ObjectStoreOptions(patience_s=0.0), clock=clock)
    process = await Process(retrying, clock).start()
    store.fail("replace", Fault.STALL)
    await clock.advance(THIRD_S)
    await process.crash()
    await process.lease.release()
    store.release()
    await retrying.close()
    assert not memory.objects


async def test_a_process_that_stood_still_is_stalled_until_a_renewal_succeeds(
    store: FaultyStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour 91: whether another has taken over is known only then."""
    process = await Process(store, clock).start()
    await clock.advance(THIRD_S)
    clock.move(LEASE_S)
    assert not process.lease.is_stalled
    clock.move(0.5)
    assert process.lease.is_stalled
    store.fail("replace", Fault.UNAVAILABLE, Fault.UNAVAILABLE)
    await clock.advance(0.0)
    assert process.lease.statistics().failures_count == 1
    assert process.lease.is_stalled
    await clock.advance(THIRD_S)
    assert process.lease.statistics().failures_count == 2
    assert process.lease.is_stalled
    assert process.lease.statistics().is_stalled
    await clock.advance(THIRD_S)
    assert not process.lease.is_stalled
    assert "process stalled for_s=12.5 lease_s=12.0" in caplog.text
    await process.crash()


async def test_a_machine_that_was_suspended_is_stalled(store: FaultyStore, clock: ManualClock) -> None:
    """Its monotonic clock does not tell: it stood still, too."""
    process = await Process(store, clock).start()
    clock.suspend(LEASE_S + 0.5)
    assert process.lease.is_stalled
    await clock.advance(THIRD_S)
    assert not process.lease.is_stalled
    await process.crash()


async def test_an_answer_from_before_it_stood_still_says_nothing(store: FaultyStore, clock: ManualClock) -> None:
    """The renewal came to the store before the stop; another server may have taken over after it."""
    process = await Process(store, clock).start()
    store.fail("replace", Fault.STALL, Fault.STALL)
    await clock.advance(THIRD_S)
    assert store.stalled_count == 1
    clock.move(2 * LEASE_S)
    store.release()
    assert process.lease.is_stalled
    for _ in range(3):
        await asyncio.sleep(0)
        assert process.lease.is_stalled
    await clock.advance(0.0)
    await clock.advance(0.0)
    assert store.calls["replace"] == 2
    assert process.lease.statistics().renewals_count == 1
    assert not process.lease.is_stalled
    await process.crash()


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_ANSWER, Fault.LATE])
async def test_an_epoch_is_withdrawn_whatever_became_of_its_announcement(
    fault: Fault, store: FaultyStore, memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """Behaviour 95: or two claimants that start over after an outage wait for the lease of each other."""
    process = await Process(store, clock).start()
    store.fail("replace", fault)
    with pytest.raises(StoreUnavailableError):
        await process.lease.announce(3)
    await process.lease.announce(0)
    assert stored(memory, process).epoch == 0
    for _ in range(2):
        await store.land()
        await clock.advance(THIRD_S)
        assert stored(memory, process).epoch == 0
    assert not process.fenced
    await process.crash()


async def test_confirming_waits_for_a_renewal_only_after_a_stop(store: FaultyStore, clock: ManualClock) -> None:
    process = Process(store, clock)
    await process.lease.start()
    await process.lease.confirm()
    assert "replace" not in store.calls
    clock.move(LEASE_S + 1)
    store.fail("replace", Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await process.lease.confirm()
    await process.lease.confirm()
    assert store.calls["replace"] == 2


async def test_a_process_whose_lease_was_ended_learns_by_whom(
    memory: MemoryObjectStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    process, other = await Process(memory, clock).start(), Process(memory, clock, host="two")
    found = await read_lease(memory, owner_of(process))
    assert await end_lease(memory, owner_of(process), found=found, by=other.lease.worker)
    assert not process.fenced
    await clock.advance(THIRD_S)
    [error] = process.fenced
    assert process.lease.fenced is error
    assert process.lease.statistics().is_fenced
    key = lease_key(process.lease.worker.worker_id)
    assert str(error) == (
        f"{URL}: the server one (/data) must end: two (/data) has taken over ({key}); the data in its folder may be"
        " superseded"
    )
    assert "server fenced" in caplog.text
    with pytest.raises(OwnerFencedError):
        await process.lease.confirm()
    await clock.advance(LEASE_S)
    assert len(process.fenced) == 1
    await process.lease.release()
    assert key in memory.objects


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "another server ended its lease, or somebody deleted it"),
        (b"?", "another server ended its lease, or somebody deleted it"),
        (b"lease", "its lease was overwritten"),
    ],
)
async def test_a_lease_that_is_gone_or_another_one_ends_its_owner(
    content: bytes | None, words: str, memory: MemoryObjectStore, clock: ManualClock
) -> None:
    process = await Process(memory, clock).start()
    key = lease_key(process.lease.worker.worker_id)
    del memory.objects[key]
    if content is not None:
        other = Lease(
            worker_id=uuid.uuid4(), host="two", folder="/", pid=1, started="2026-01-31T12:00:00+00:00", lease_s=1.0
        )
        memory.objects[key] = encode_lease(other) if content == b"lease" else content
    await clock.advance(THIRD_S)
    assert words in str(process.fenced[0])


async def test_an_end_whose_renewal_had_no_answer_is_seen_at_the_next(
    store: FaultyStore, memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """The store that repeats says then that the outcome is unknown: the same bytes are put again."""
    retrying = RetryingStore(store, ObjectStoreOptions(patience_s=3.0), clock=clock)
    process, other = await Process(retrying, clock).start(), Process(memory, clock, host="two")
    store.fail("replace", Fault.UNAVAILABLE)
    await clock.advance(THIRD_S)
    found = await read_lease(memory, owner_of(process))
    assert await end_lease(memory, owner_of(process), found=found, by=other.lease.worker)
    for _ in range(20):
        await clock.advance(0.5)
    assert len(process.fenced) == 1
    await retrying.close()


# --- of others ---


async def test_who_is_alive_is_seen_at_once(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    began_s = clock.monotonic_s()
    watched, _ = await passing(clock, watch_lease(memory, owner_of(process), clock=clock))
    assert watched is WatchOutcome.ALIVE
    assert clock.monotonic_s() - began_s <= THIRD_S + LEASE_S / 4 + 1
    await process.crash()


@pytest.mark.parametrize("state", ["crashed", "missing", "ended"])
async def test_who_says_nothing_is_watched_for_the_length_of_its_lease(
    state: str, memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """Also where the lease was ended or deleted before: its owner may not have noticed yet."""
    process, other = await Process(memory, clock).start(), Process(memory, clock, host="two")
    await process.crash()
    owner = owner_of(process)
    if state == "missing":
        memory.objects.clear()
    if state == "ended":
        assert await end_lease(memory, owner, found=await read_lease(memory, owner), by=other.lease.worker)
    began_s = clock.monotonic_s()
    watched, found = await passing(clock, watch_lease(memory, owner, clock=clock))
    assert watched is WatchOutcome.SILENT
    assert LEASE_S <= clock.monotonic_s() - began_s <= LEASE_S + 2
    assert await end_lease(memory, owner, found=found, by=other.lease.worker)


async def test_who_releases_its_lease_is_gone(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    watching = asyncio.create_task(watch_lease(memory, owner_of(process), clock=clock))
    await clock.advance(1.0)
    await process.crash()
    await process.lease.release()
    assert (await passing(clock, watching))[0] is WatchOutcome.GONE


async def test_of_two_that_end_a_lease_both_know_that_it_is_ended(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    process = await Process(memory, clock).start()
    await process.crash()
    owner = owner_of(process)
    found = await read_lease(memory, owner)
    ended = [await end_lease(memory, owner, found=found, by=worker(host)) for host in ("two", "three")]
    assert ended == [True, True]
    ender = stored(memory, process).ended_by
    assert ender is not None
    assert ender.host == "two"


async def test_a_lease_that_was_renewed_meanwhile_is_not_ended(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    found = await read_lease(memory, owner_of(process))
    await clock.advance(THIRD_S)
    assert not await end_lease(memory, owner_of(process), found=found, by=worker("two"))
    await clock.advance(THIRD_S)
    assert not process.fenced
    await process.crash()


async def test_a_damaged_lease_is_ended_and_its_owner_ends_too(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Behaviour 101: what is left of a dead server keeps nobody from taking over."""
    process = await Process(memory, clock).start()
    key = lease_key(process.lease.worker.worker_id)
    memory.objects[key] = b"?"
    assert await end_lease(memory, owner_of(process), found=await memory.get(key), by=worker("two"))
    ended = stored(memory, process).ended_by
    assert ended is not None
    assert ended.host == "two"
    await clock.advance(LEASE_S)
    assert [type(error) for error in process.fenced] == [OwnerFencedError]
    await process.crash()


async def test_a_renewal_that_is_repeated_has_the_same_bytes(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Behaviour 91: what comes late of it changes nothing, also where more was acknowledged meanwhile."""
    store = FaultyStore(memory)
    process = await Process(store, clock).start()
    acknowledged = 5
    process.lease.watch_acknowledged(lambda: acknowledged)
    store.fail("replace", Fault.LOST_ANSWER, Fault.UNAVAILABLE)
    await clock.advance(THIRD_S)
    assert (stored(memory, process).renewals, stored(memory, process).acknowledged) == (1, 5)
    acknowledged = 8
    for _ in range(6):
        await clock.advance(THIRD_S / 2)
    assert stored(memory, process).acknowledged == 8
    assert process.fenced == []
    await process.crash()


async def test_it_lapses_before_anybody_can_find_it_silent(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Behaviour 91: counted from the first attempt at the last renewal, which had landed without an answer."""
    store = FaultyStore(memory)
    process = await Process(store, clock).start()
    # Of one renewal: it lands and nobody hears of it, then its bytes are found to be there.
    store.fail("replace", Fault.LOST_ANSWER, None, *[Fault.UNAVAILABLE] * 20)
    await clock.advance(THIRD_S)
    landed_s = clock.monotonic_s()
    assert stored(memory, process).renewals == 1
    while not process.lease.is_lapsed:
        await clock.advance(0.5)
    assert stored(memory, process).renewals == 1
    assert THIRD_S < clock.monotonic_s() - landed_s <= LEASE_S + 0.5
    await process.crash()
