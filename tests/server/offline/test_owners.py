import uuid
from dataclasses import replace

import pytest

from millrace.server.offline.owners import RELEASED, Life, life_of, owners
from millrace.server.ownership import Claimant, CopyRecord, Lease, Manifest, lease_key, manifest_key
from millrace.server.ownership.lease_format import Ender, encode_lease
from millrace.server.ownership.manifest import encode_manifest
from tests.support.clock import ManualClock
from tests.support.object_store import MemoryObjectStore

URL = "s3://bucket/history"
WORKER = uuid.UUID(int=3)
CLAIMANT = Claimant(
    worker_id=WORKER,
    host="db1",
    folder="/data",
    place="db1:/data#1",
    since="2026-01-31T12:00:00+00:00",
    lease_s=10.0,
)
MANIFEST = Manifest(
    server_id=uuid.UUID(int=1),
    container=0,
    epoch=7,
    claim_id=uuid.UUID(int=2),
    changes=41,
    claimant=CLAIMANT,
    is_released=False,
    checkpoint=CopyRecord(name="checkpoints/1-7", sequence=12, container_epoch=7, replay_from=5),
)
LEASE = Lease(worker_id=WORKER, host="db1", folder="/data", pid=9, started=CLAIMANT.since, lease_s=10.0, renewals=4)


def store_with(manifest: Manifest = MANIFEST, lease: Lease | None = LEASE) -> MemoryObjectStore:
    store = MemoryObjectStore()
    store.objects[manifest_key(0)] = encode_manifest(manifest)
    if lease is not None:
        store.objects[lease_key(WORKER)] = encode_lease(lease)
    return store


class RenewingClock(ManualClock):
    """Passes at once, and lets the owner renew its lease meanwhile, if it is to."""

    def __init__(self, store: MemoryObjectStore | None = None) -> None:
        super().__init__()
        self._store = store

    async def sleep(self, duration_s: float) -> None:
        self.move(duration_s)
        if self._store is not None:
            self._store.objects[lease_key(WORKER)] = encode_lease(replace(LEASE, renewals=5))


@pytest.mark.asyncio
async def test_an_owner_is_shown_with_its_lease_and_the_copy_that_counts() -> None:
    [row] = await owners(store_with(), url=URL)

    assert (row.container, row.epoch, row.claimed_by, row.since) == (0, 7, "db1 (/data)", CLAIMANT.since)
    assert (row.copy, row.sequence, row.problem) == ("checkpoints/1-7", 12, "")
    assert row.lease == "of 10 s, renewed 4 times"


@pytest.mark.asyncio
async def test_a_lease_is_told_as_it_is() -> None:
    ended = replace(LEASE, ended_by=Ender(worker_id=uuid.UUID(int=5), host="db2", folder="/other"))
    damaged = store_with()
    damaged.objects[lease_key(WORKER)] = b"{"

    stores = [store_with(replace(MANIFEST, is_released=True)), store_with(lease=None), store_with(lease=ended), damaged]
    texts = [(await owners(store, url=URL))[0].lease for store in stores]

    assert texts[:3] == [RELEASED, "none", "ended by db2 (/other)"]
    assert "cannot be read" in texts[3]


@pytest.mark.asyncio
async def test_a_damaged_manifest_is_a_problem_and_a_missing_one_is_none() -> None:
    store = store_with()
    store.objects[manifest_key(0)] = b"nothing of ours"

    [row] = await owners(store, url=URL)

    assert row.problem.startswith("c0000/manifest cannot be read")
    assert await owners(MemoryObjectStore(), url=URL, containers=[0, 1]) == []


@pytest.mark.asyncio
async def test_an_owner_lives_if_its_lease_moves() -> None:
    store = store_with()

    assert await life_of(store, MANIFEST, url=URL, clock=RenewingClock(store)) is Life.ALIVE
    assert await life_of(store, MANIFEST, url=URL, clock=RenewingClock()) is Life.SILENT
    assert await life_of(store_with(lease=None), MANIFEST, url=URL, clock=RenewingClock()) is Life.SILENT
    assert await life_of(store, replace(MANIFEST, is_released=True), url=URL, clock=ManualClock()) is Life.RELEASED


@pytest.mark.parametrize(
    ("left", "life"),
    [
        (replace(MANIFEST, is_released=True), Life.RELEASED),
        (replace(MANIFEST, claim_id=uuid.UUID(int=8)), Life.REPLACED),
        (MANIFEST, Life.SILENT),
    ],
)
@pytest.mark.asyncio
async def test_of_a_lease_that_goes_meanwhile_the_manifest_tells_why(left: Manifest, life: Life) -> None:
    store = store_with()

    class EndingClock(ManualClock):
        async def sleep(self, duration_s: float) -> None:
            self.move(duration_s)
            store.objects[manifest_key(0)] = encode_manifest(left)
            store.objects.pop(lease_key(WORKER), None)

    assert await life_of(store, MANIFEST, url=URL, clock=EndingClock()) is life
