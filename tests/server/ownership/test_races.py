"""Claimants that come together, over stores with faults: of each epoch there is one owner."""

import asyncio
import random

import pytest

from millrace.server.errors import ConfigurationError, OwnerFencedError, StorageError
from millrace.server.object_store import ObjectStoreOptions, RetryingStore
from millrace.server.ownership import CopyRecord, ManifestOwnership, decode_manifest
from tests.support.clock import ManualClock
from tests.support.faulty_store import FaultyStore, random_faults
from tests.support.files import MemoryFileSystem
from tests.support.object_store import MemoryObjectStore
from tests.support.owners import Process, passing
from tests.support.tables import table

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("seed", range(12))
async def test_each_epoch_has_one_owner_and_what_it_records_is_never_lost(seed: int) -> None:
    """Behaviours 90 and 92. All machines have a copy of the folder, so each may claim until another one has."""
    draws = random.Random(seed)
    clock = ManualClock()
    memory = MemoryObjectStore()
    owners: dict[int, ManifestOwnership] = {}
    recorded = 0
    files = MemoryFileSystem()

    def process_on(host: str, files: MemoryFileSystem) -> Process:
        faulty = FaultyStore(memory, random_faults(draws.randrange(2**32), rate=draws.choice([0.0, 0.2])))
        options = ObjectStoreOptions(patience_s=draws.choice([0.0, 5.0]))
        store = RetryingStore(faulty, options, clock=clock, random=random.Random(seed))
        return Process(store, clock, host=host, files=files)

    async def live(process: Process) -> None:
        """Claim, record a copy, and end in some way."""
        nonlocal recorded
        try:
            await process.start()
            ownership = await process.claim()
        except (StorageError, ConfigurationError):
            return
        assert ownership.epoch not in owners
        owners[ownership.epoch] = ownership
        assert (ownership.copy.sequence if ownership.copy else 0) >= recorded
        try:
            copy = CopyRecord(name="c", sequence=recorded + 1, container_epoch=ownership.epoch, replay_from=0)
            await ownership.record_copy(copy)
            recorded = max(recorded, copy.sequence)
            if draws.random() < 0.5:
                await ownership.release()
        except (StorageError, OwnerFencedError):
            pass

    for _ in range(4):
        processes = [process_on(f"host-{number}", files.copy()) for number in range(3)]
        await passing(clock, asyncio.gather(*[live(process) for process in processes]))
        for process in processes:
            await process.crash()
        if "c0000/manifest" in memory.objects:
            newest = decode_manifest(memory.objects["c0000/manifest"]).claimant.host
            files = next(process.files for process in processes if process.host == newest)
    assert owners


@pytest.mark.parametrize("seed", range(10))
@table("is_first", [True, False])
async def test_of_those_that_claim_together_one_wins(seed: int, is_first: bool) -> None:
    draws = random.Random(seed)

    async def pause() -> None:
        for _ in range(draws.randrange(4)):
            await asyncio.sleep(0)

    clock = ManualClock()
    memory = MemoryObjectStore(pause=pause)
    files = MemoryFileSystem()
    if not is_first:
        process = await Process(memory, clock, files=files).start()
        await (await process.claim()).release()
        await process.crash()
    rivals = [await Process(memory, clock, host=f"host-{n}", files=files.copy()).start() for n in range(3)]

    outcomes = await passing(
        clock, asyncio.gather(*[rival.claim() for rival in rivals], return_exceptions=True), step_s=0.1
    )

    winners = [each for each in outcomes if isinstance(each, ManifestOwnership)]
    assert len(winners) == 1
    assert all(isinstance(each, (ManifestOwnership, ConfigurationError)) for each in outcomes)
    assert winners[0].epoch == (1 if is_first else 2)
    assert decode_manifest(memory.objects["c0000/manifest"]).claim_id == winners[0].claim_id
    for rival in rivals:
        await rival.crash()
        assert not rival.fenced
