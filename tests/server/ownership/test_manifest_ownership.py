"""What the owner of a container may change, and what it learns when it is one no more."""

import logging
from dataclasses import replace

import pytest

from millrace.server.errors import ManifestDamagedError, OwnerFencedError, StoreUnavailableError
from millrace.server.ownership import (
    CopyRecord,
    Manifest,
    ManifestOwnership,
    Ownership,
    RemoteLog,
    decode_manifest,
)
from tests.support.clock import ManualClock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.object_store import MemoryObjectStore
from tests.support.owners import LEASE_S, URL, Process

pytestmark = pytest.mark.asyncio

KEY = "c0000/manifest"
COPY = CopyRecord(name="copy", sequence=5, container_epoch=1, replay_from=4)
LATER = replace(COPY, name="later", sequence=9)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> FaultyStore:
    """A store that does not repeat anything by itself."""
    return FaultyStore(MemoryObjectStore())


def stored(store: FaultyStore) -> Manifest:
    assert isinstance(store.store, MemoryObjectStore)
    return decode_manifest(store.store.objects[KEY])


async def owned(store: FaultyStore, clock: ManualClock) -> tuple[Process, ManifestOwnership]:
    process = Process(store, clock)
    await process.lease.start()
    return process, await process.claim()


async def taken_over(process: Process) -> Process:
    """Return a process on a copy of the machine that has claimed the container, too."""
    clone = Process(process.store, process.clock, host=process.host, files=process.files.copy())
    await clone.lease.start()
    await clone.claim()
    return clone


async def test_changes_are_in_the_manifest_when_they_return(store: FaultyStore, clock: ManualClock) -> None:
    _, first = await owned(store, clock)
    ownership: Ownership = first
    await ownership.record_copy(COPY)
    assert stored(store).checkpoint == ownership.copy == COPY
    assert await ownership.raise_epoch() == ownership.epoch == stored(store).epoch == 2
    await ownership.record_copy(LATER)
    assert stored(store).checkpoint == ownership.copy == LATER
    assert stored(store).changes == 3


async def test_the_owner_tells_how_it_is(store: FaultyStore, clock: ManualClock) -> None:
    _, ownership = await owned(store, clock)
    clock.move(LEASE_S / 2)
    statistics = ownership.statistics()
    assert (statistics.epoch, statistics.claimed) == (1, "2023-11-14T22:13:20+00:00")
    assert (statistics.is_fenced, statistics.is_stalled, statistics.lease_age_s) == (False, False, LEASE_S / 2)
    assert (statistics.renewals_count, statistics.failed_renewals_count) == (0, 0)
    clock.move(LEASE_S)
    assert ownership.is_stalled
    assert ownership.statistics().is_stalled


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.BUSY, Fault.LOST_ANSWER, Fault.LATE])
async def test_a_change_without_an_answer_may_be_made_again_or_another_be_made(
    fault: Fault, store: FaultyStore, clock: ManualClock
) -> None:
    """Behaviour 92: whatever became of it, and whenever."""
    _, ownership = await owned(store, clock)
    for copy in (COPY, LATER):
        store.fail("replace", fault)
        with pytest.raises(StoreUnavailableError):
            await ownership.record_copy(COPY)
        await store.land()
        await ownership.record_copy(copy)
        assert stored(store).checkpoint == ownership.copy == copy
    assert await ownership.raise_epoch() == stored(store).epoch


async def test_a_late_change_comes_to_nothing_after_another_one(store: FaultyStore, clock: ManualClock) -> None:
    _, ownership = await owned(store, clock)
    store.fail("replace", Fault.LATE)
    with pytest.raises(StoreUnavailableError):
        await ownership.record_copy(COPY)
    await ownership.record_copy(LATER)
    await store.land()
    assert stored(store).checkpoint == LATER
    assert await ownership.raise_epoch() == 2


async def test_a_conflict_that_was_none_is_tried_again(store: FaultyStore, clock: ManualClock) -> None:
    _, ownership = await owned(store, clock)
    store.fail("replace", Fault.CONFLICT, Fault.CONFLICT)
    await ownership.record_copy(COPY)
    assert stored(store).checkpoint == COPY


async def test_an_owner_that_was_taken_over_changes_nothing_and_says_so_once(
    store: FaultyStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour 91: nothing is deleted before a copy is recorded, and none is."""
    process, ownership = await owned(store, clock)
    await taken_over(process)
    before = stored(store)
    with pytest.raises(
        OwnerFencedError, match=rf"^container 0 of {URL}: one \(/data\) has taken it over at "
    ) as caught:
        await ownership.record_copy(COPY)
    asked = dict(store.calls)
    for change in (ownership.raise_epoch, ownership.raise_epoch):
        with pytest.raises(OwnerFencedError):
            await change()
    await ownership.release()
    assert (store.calls, stored(store)) == (asked, before)
    assert process.fenced == [ownership.fenced] == [caught.value]
    assert ownership.statistics().is_fenced
    assert "container fenced container=0 epoch=1" in caplog.text


async def test_an_owner_may_see_only_at_its_end_that_it_was_taken_over(store: FaultyStore, clock: ManualClock) -> None:
    process, ownership = await owned(store, clock)
    await taken_over(process)
    with pytest.raises(OwnerFencedError):
        await ownership.release()
    assert len(process.fenced) == 1
    assert stored(store).owner is not None


async def test_an_owner_whose_lease_was_ended_changes_nothing(store: FaultyStore, clock: ManualClock) -> None:
    """Also before the other one has claimed the container."""
    process, ownership = await owned(store, clock)
    await store.delete([f"workers/{process.lease.worker.worker_id}"])
    clock.move(LEASE_S + 1)
    with pytest.raises(OwnerFencedError):
        await process.lease.confirm()
    with pytest.raises(OwnerFencedError):
        await ownership.record_copy(COPY)
    assert stored(store).checkpoint is None


async def test_a_manifest_that_is_gone_ends_its_owner(store: FaultyStore, clock: ManualClock) -> None:
    process, ownership = await owned(store, clock)
    await store.delete([KEY])
    with pytest.raises(OwnerFencedError, match="its manifest was deleted or damaged while it was served"):
        await ownership.record_copy(COPY)
    assert len(process.fenced) == 1


@pytest.mark.parametrize("has_remote_log", [False, True])
async def test_a_damaged_manifest_ends_an_owner_whose_log_is_in_the_store(
    has_remote_log: bool, store: FaultyStore, clock: ManualClock
) -> None:
    """The next claim rebuilds it then. With a local log, nobody could, so the owner keeps serving."""
    process = await Process(store, clock).start()
    ownership = await process.claim(has_remote_log=has_remote_log)
    found = await store.get(KEY)
    await store.replace(KEY, found.content[:-9], tag=found.tag)
    with pytest.raises(OwnerFencedError if has_remote_log else ManifestDamagedError):
        await ownership.record_copy(COPY)
    assert len(process.fenced) == has_remote_log
    await process.crash()


async def test_a_manifest_that_was_put_back_is_replaced_by_its_owner(store: FaultyStore, clock: ManualClock) -> None:
    process, ownership = await owned(store, clock)
    older = (await store.get(KEY)).content
    await ownership.record_copy(COPY)
    newer = await store.get(KEY)
    await store.replace(KEY, older, tag=newer.tag)
    later = replace(COPY, name="later")
    await ownership.record_copy(later)
    manifest = stored(store)
    assert (manifest.checkpoint, manifest.checkpoint_before) == (later, COPY)
    await process.crash()


async def test_a_container_is_released_once(
    store: FaultyStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    _, ownership = await owned(store, clock)
    await ownership.record_copy(COPY)
    with caplog.at_level(logging.INFO):
        await ownership.release()
        await ownership.release()
    assert stored(store).owner is None
    assert stored(store).checkpoint == COPY
    assert caplog.text.count(f"container released container=0 epoch=1 url={URL}") == 1


# --- where the log begins ---


async def test_a_copy_lets_the_log_begin_where_the_copy_before_needs_it(store: FaultyStore, clock: ManualClock) -> None:
    """Behaviour 90: in the same change, so that nothing is deleted that a copy that counts needs.

    Behaviour 101: a start from either of both copies finds all that follows.
    """
    one = await Process(store, clock).start()
    await one.claim(1, has_remote_log=True)
    two = await one.next_process()
    ownership = await two.claim(has_remote_log=True)
    copies = [replace(COPY, name=f"checkpoints/{each}", replay_from=each) for each in (4, 8, 9, 8, 9)]
    await ownership.record_copy(copies[0])
    assert stored(store).log == RemoteLog(first_epoch=1, last_epoch=2, from_sequence=1)
    ownership.log_began({1: 9}, acknowledged=lambda: 0)
    await ownership.record_copy(copies[1])
    assert (stored(store).checkpoint, stored(store).checkpoint_before) == (copies[1], copies[0])
    assert stored(store).log == RemoteLog(first_epoch=1, last_epoch=2, from_sequence=4)
    await ownership.record_copy(copies[2])
    assert stored(store).log == RemoteLog(first_epoch=1, last_epoch=2, from_sequence=8)
    await ownership.record_copy(copies[3])
    assert stored(store).log == RemoteLog(first_epoch=2, last_epoch=2, from_sequence=9)
    # What may be deleted by now is not named again.
    await ownership.record_copy(copies[4])
    assert stored(store).log == RemoteLog(first_epoch=2, last_epoch=2, from_sequence=9)


async def test_a_copy_that_a_start_could_not_use_is_not_kept_beside_the_next(
    store: FaultyStore, clock: ManualClock
) -> None:
    """Behaviour 101: the copy before it, from which the start was made, stays."""
    one = await Process(store, clock).start()
    ownership = await one.claim(1, has_remote_log=True)
    copies = [replace(COPY, name=f"checkpoints/{each}", replay_from=each) for each in (4, 8, 9)]
    for each in copies[:2]:
        await ownership.record_copy(each)
    ownership.copy_unusable(copies[1].name)
    await ownership.record_copy(copies[2])
    found = stored(store)
    assert (found.checkpoint, found.checkpoint_before) == (copies[2], copies[0])
    assert found.log is not None
    assert found.log.from_sequence == 4


async def test_each_change_tells_what_was_acknowledged(store: FaultyStore, clock: ManualClock) -> None:
    """Behaviour 101: and a claim what the lease before it told."""
    one = await Process(store, clock).start()
    ownership = await one.claim(1, has_remote_log=True)
    acknowledged = 7
    ownership.log_began({}, acknowledged=lambda: acknowledged)
    await ownership.record_copy(COPY)
    log = stored(store).log
    assert log is not None
    assert log.acknowledged == 7
    acknowledged = 9
    await clock.advance(LEASE_S)
    two = await one.next_process()
    again = await two.claim(has_remote_log=True)
    assert again.log is not None
    assert again.log.acknowledged == 9
    again.log_began({}, acknowledged=lambda: 12)
    await again.release()
    three = await two.next_process()
    last = await three.claim(has_remote_log=True)
    assert last.log is not None
    assert last.log.acknowledged == 12


async def test_an_epoch_leaves_the_log_with_its_last_batch(store: FaultyStore, clock: ManualClock) -> None:
    """Behaviour 90: so that a fence before the first batch that is needed tells nothing of the epochs that are left."""
    one = await Process(store, clock).start()
    await one.claim(1, has_remote_log=True)
    two = await one.next_process()
    await two.claim(has_remote_log=True)
    three = await two.next_process()
    ownership = await three.claim(has_remote_log=True)
    ownership.log_began({1: 5, 2: 9}, acknowledged=lambda: 0)
    expected = [(1, 1), (1, 4), (2, 5), (3, 20)]
    for replay_from, (first_epoch, from_sequence) in zip((4, 5, 20, 21), expected, strict=True):
        await ownership.record_copy(replace(COPY, name=f"checkpoints/{replay_from}", replay_from=replay_from))
        assert stored(store).log == RemoteLog(first_epoch=first_epoch, last_epoch=3, from_sequence=from_sequence)
