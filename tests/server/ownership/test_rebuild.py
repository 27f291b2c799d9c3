"""Rebuilding a manifest from the log, the leases and the copies of the checkpoint."""

import asyncio
import uuid
from dataclasses import replace

import pytest

from millrace.server.errors import (
    ManifestUnreadableError,
    OwnedElsewhereError,
    OwnerFencedError,
    UnsupportedStoreError,
)
from millrace.server.ownership import (
    CopyRecord,
    Manifest,
    RemoteLog,
    decode_lease,
    decode_manifest,
    has_log,
    lease_key,
    server_of_history,
)
from millrace.server.ownership.manifest import encode_manifest
from millrace.server.ownership.rebuild import UNSEEN_COUNT_MAX, rebuilt_manifest
from millrace.server.wal import LogOwner
from millrace.server.wal.log_objects import LogPoint, encode_fence
from tests.support.clock import ManualClock
from tests.support.object_store import MemoryObjectStore
from tests.support.owners import LEASE_S, SERVER_ID, URL, Process, passing, worker
from tests.support.ownership import with_checksum

pytestmark = pytest.mark.asyncio

KEY = "c0000/manifest"
LOG = "c0000/log/"
COPY = CopyRecord(name="copy", sequence=30, container_epoch=3, replay_from=21)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory() -> MemoryObjectStore:
    return MemoryObjectStore()


def put_log(memory: MemoryObjectStore, *points: tuple[int, int], fences: tuple[tuple[int, int], ...] = ()) -> None:
    """Store objects of a log: batches that nobody reads here, and fences."""
    for point in points:
        memory.objects[LOG + LogPoint(*point).name] = bytes(100)
    for point in fences:
        owner = LogOwner(container_id=0, server_id=SERVER_ID)
        memory.objects[LOG + LogPoint(*point).name] = encode_fence(LogPoint(*point), owner=owner)


def stored(memory: MemoryObjectStore) -> Manifest:
    return decode_manifest(memory.objects[KEY])


async def rebuilt(memory: MemoryObjectStore, *, copy: CopyRecord | None = None) -> RemoteLog:
    async def newest() -> CopyRecord | None:
        return copy

    found = await rebuilt_manifest(memory, 0, server_id=SERVER_ID, worker=worker("new"), newest_copy=newest)
    assert found is not None
    assert found.log is not None
    assert (found.checkpoint, found.checkpoint_before) == (copy, None)
    assert found.epoch == found.log.last_epoch
    return found.log


async def killed_owner(memory: MemoryObjectStore, clock: ManualClock, *, acknowledged: int = 24) -> Process:
    """Return a process that was killed after it had acknowledged batches of epoch 3."""
    process = await Process(memory, clock).start()
    process.newest_copy = COPY
    ownership = await process.claim(3, has_remote_log=True)
    put_log(memory, (3, 23), (3, 24), fences=((2, 23),))
    ownership.log_began({2: 23}, acknowledged=lambda: acknowledged)
    await clock.advance(LEASE_S)
    await process.crash()
    return process


# --- what the objects tell ---


@pytest.mark.parametrize(
    ("points", "fences", "copy", "expected"),
    [
        # Without a copy, all of the log is needed.
        ([(1, 1)], [], None, RemoteLog(first_epoch=1, last_epoch=1 + UNSEEN_COUNT_MAX, from_sequence=1)),
        # An epoch that ended before the copy needs it is not.
        (
            [(3, 23)],
            [(1, 9), (2, 21), (2, 12)],
            COPY,
            RemoteLog(first_epoch=3, last_epoch=3 + UNSEEN_COUNT_MAX, from_sequence=21),
        ),
        ([(3, 23)], [(1, 9), (2, 22)], COPY, RemoteLog(first_epoch=2, last_epoch=11, from_sequence=21)),
        # All that have objects have ended: an owner of the next epoch may have stored nothing yet.
        ([], [(1, 9), (2, 21)], COPY, RemoteLog(first_epoch=3, last_epoch=10, from_sequence=21)),
    ],
)
async def test_the_log_is_as_its_names_and_the_copy_tell(
    points: list[tuple[int, int]],
    fences: list[tuple[int, int]],
    copy: CopyRecord | None,
    expected: RemoteLog,
    memory: MemoryObjectStore,
) -> None:
    put_log(memory, *points, fences=tuple(fences))
    assert await rebuilt(memory, copy=copy) == expected


async def test_without_a_log_there_is_nothing_to_rebuild(memory: MemoryObjectStore, clock: ManualClock) -> None:
    assert not await has_log(memory, 0)
    process = await Process(memory, clock).start()
    ownership = await process.claim(has_remote_log=True)
    assert ownership.log == RemoteLog(first_epoch=1, last_epoch=1, from_sequence=1)
    await process.crash()


# --- the claim ---


@pytest.mark.parametrize("how", ["lost", "flipped", "cut", "put back"])
async def test_a_claim_rebuilds_the_manifest(how: str, memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Behaviour 101: the log, the copy and the last acknowledged batch are those that the other objects tell."""
    first = await Process(memory, clock, host="first").start()
    await (await first.claim(2, has_remote_log=True)).release()
    older = memory.objects[KEY]
    await first.crash()
    await killed_owner(memory, clock)
    content = memory.objects[KEY]
    if how == "lost":
        del memory.objects[KEY]
    elif how == "put back":
        memory.objects[KEY] = older
    else:
        memory.objects[KEY] = content.replace(b'"epoch": 3', b'"epoch": 1') if how == "flipped" else content[:-20]

    other = await Process(memory, clock, host="two").start()
    other.newest_copy = COPY
    ownership = await passing(clock, other.claim(1, has_remote_log=True))
    epoch = 3 + UNSEEN_COUNT_MAX + 1
    assert (ownership.epoch, ownership.copy, ownership.copy_before) == (epoch, COPY, None)
    assert ownership.log == RemoteLog(first_epoch=2, last_epoch=epoch, from_sequence=21, acknowledged=24)
    assert stored(memory).log == ownership.log
    assert stored(memory).claimant.host == "two"
    assert other.discards_count == 1
    await other.crash()


async def test_of_two_that_rebuild_at_once_one_succeeds(memory: MemoryObjectStore, clock: ManualClock) -> None:
    await killed_owner(memory, clock)
    del memory.objects[KEY]
    processes = [await Process(memory, clock, host=host).start() for host in ("two", "three")]
    claims = asyncio.gather(*(each.claim(has_remote_log=True) for each in processes), return_exceptions=True)
    results = await passing(clock, claims)
    assert sorted(type(each).__name__ for each in results) == ["ManifestOwnership", "OwnedElsewhereError"]
    for each in processes:
        await each.crash()


async def test_an_owner_that_lives_is_not_disturbed_although_its_manifest_is_lost(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """Behaviour 90. Its next change of the manifest ends it."""
    owner = await Process(memory, clock).start()
    ownership = await owner.claim(3, has_remote_log=True)
    put_log(memory, (3, 1))
    ownership.log_began({}, acknowledged=lambda: 1)
    await clock.advance(LEASE_S)
    del memory.objects[KEY]
    other = await Process(memory, clock, host="two").start()
    with pytest.raises(OwnedElsewhereError, match=r"is served by one \(/data\) since .*; stop that server first"):
        await passing(clock, other.claim(has_remote_log=True))
    assert KEY not in memory.objects
    with pytest.raises(OwnerFencedError, match="its manifest was deleted or damaged"):
        await ownership.record_copy(COPY)
    for each in (owner, other):
        await each.crash()


@pytest.mark.parametrize("how", ["lost", "put back"])
async def test_an_owner_that_has_just_claimed_is_found(how: str, memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Behaviour 101: the epoch is in its lease before the claim, and no renewal has to report a batch."""
    first = await Process(memory, clock, host="first").start()
    await (await first.claim(2, has_remote_log=True)).release()
    older = memory.objects[KEY]
    await first.crash()
    owner = await Process(memory, clock).start()
    await owner.claim(3, has_remote_log=True)
    put_log(memory, (3, 1), fences=((2, 1),))
    if how == "put back":
        memory.objects[KEY] = older
    else:
        del memory.objects[KEY]
    other = await Process(memory, clock, host="two").start()
    with pytest.raises(OwnedElsewhereError, match=r"is served by one \(/data\) since "):
        await passing(clock, other.claim(has_remote_log=True))
    assert not owner.fenced
    for each in (owner, other):
        await each.crash()


async def test_all_leases_with_an_epoch_are_ended(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Two claimants may have announced one epoch, and nothing shows which of them has claimed it."""
    processes = [await Process(memory, clock, host=host).start() for host in ("one", "two")]
    for each in processes:
        await each.lease.announce(3)
        await each.crash()
    put_log(memory, fences=((2, 1),))
    other = await Process(memory, clock, host="three").start()
    await passing(clock, other.claim(has_remote_log=True))
    for each in processes:
        lease = decode_lease(memory.objects[lease_key(each.lease.worker.worker_id)])
        assert lease.ended_by is not None
        assert lease.ended_by.host == "three"
    await other.crash()


async def test_a_claimant_that_waits_has_withdrawn_its_epoch(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Two standbys whose claims have failed do not wait for the leases of each other."""
    put_log(memory, fences=((2, 1),))
    processes = [await Process(memory, clock, host=host).start() for host in ("one", "two")]
    for each in processes:
        await each.lease.announce(3)
    claims = [asyncio.ensure_future(each.claim(has_remote_log=True, on_standby=lambda _: None)) for each in processes]
    for _ in range(20):
        await clock.advance(LEASE_S / 12)
    assert [each.done() for each in claims].count(True) == 1
    for claim in claims:
        claim.cancel()
    await asyncio.gather(*claims, return_exceptions=True)
    for each in processes:
        await each.crash()


async def test_a_manifest_of_another_version_is_left_alone(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await killed_owner(memory, clock)
    content = memory.objects[KEY].replace(b'"format_version": 1', b'"format_version": 2')
    memory.objects[KEY] = with_checksum(content)
    before = memory.objects[KEY]
    following = await process.next_process()
    with pytest.raises(ManifestUnreadableError, match=f"^{URL}/{KEY}: cannot be read: it is in format 2"):
        await following.claim(has_remote_log=True)
    assert memory.objects[KEY] == before
    await following.crash()


async def test_a_start_with_a_local_log_does_not_take_the_place_of_one_in_the_store(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    await killed_owner(memory, clock)
    del memory.objects[KEY]
    other = await Process(memory, clock, host="two").start()
    with pytest.raises(
        UnsupportedStoreError, match="contains a log but no manifest: start the server with --log object"
    ):
        await other.claim()
    assert KEY not in memory.objects
    await other.crash()


# --- whose history it is ---


async def test_the_manifest_names_the_server_of_a_history(memory: MemoryObjectStore, clock: ManualClock) -> None:
    assert await server_of_history(memory, url=URL, is_repair=False) is None
    await killed_owner(memory, clock)
    assert await server_of_history(memory, url=URL, is_repair=False) == SERVER_ID
    other = uuid.UUID(int=7)
    memory.objects[KEY] = encode_manifest(replace(stored(memory), server_id=other))
    assert await server_of_history(memory, url=URL, is_repair=False) == other


@pytest.mark.parametrize("damage", ["lost", "flipped"])
async def test_a_log_names_its_server_to_a_repair_alone(
    damage: str, memory: MemoryObjectStore, clock: ManualClock
) -> None:
    await killed_owner(memory, clock)
    if damage == "lost":
        del memory.objects[KEY]
    else:
        memory.objects[KEY] = memory.objects[KEY].replace(b'"epoch": 3', b'"epoch": 1')
    command = f"millrace repair --store {URL} --accept-loss"
    with pytest.raises(UnsupportedStoreError, match=f"cluster.json and {KEY} are missing or damaged: .*{command}"):
        await server_of_history(memory, url=URL, is_repair=False)
    assert await server_of_history(memory, url=URL, is_repair=True) == SERVER_ID
