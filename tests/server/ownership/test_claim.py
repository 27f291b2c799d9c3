"""Claiming a container: each step, and each refusal."""

import asyncio
import logging
import re
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.errors import (
    ConfigurationError,
    DiskUnavailableError,
    ManifestUnreadableError,
    ObjectChangedError,
    OwnedElsewhereError,
    OwnerFencedError,
    StorageError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from millrace.server.object_store import ObjectStoreOptions, RetryingStore
from millrace.server.ownership import (
    CopyRecord,
    FolderClaim,
    Manifest,
    RemoteLog,
    decode_manifest,
    lease_key,
    read_folder_claim,
    write_folder_claim,
)
from millrace.server.ownership.folder_claim import CLAIM_NAME
from millrace.server.ownership.manifest import EPOCHS_COUNT_MAX, encode_manifest
from millrace.server.ownership.manifest_ownership import ATTEMPTS_COUNT_MAX
from tests.support.clock import ManualClock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.files import MemoryFileSystem
from tests.support.object_store import MemoryObjectStore
from tests.support.owners import FOLDER, LEASE_S, URL, Process, passing
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

KEY = "c0000/manifest"
ABOUT = f"^container 0 of {URL}: "
COPY = CopyRecord(name="copy", sequence=5, container_epoch=3, replay_from=4)
SINCE = re.escape("2023-11-14T22:13:20+00:00")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory() -> MemoryObjectStore:
    return MemoryObjectStore()


def stored(memory: MemoryObjectStore) -> Manifest:
    return decode_manifest(memory.objects[KEY])


def store_manifest(memory: MemoryObjectStore, manifest: Manifest) -> None:
    memory.objects[KEY] = encode_manifest(replace(manifest, changes=manifest.changes + 1))


# --- who may ---


async def test_the_first_claim_makes_the_manifest(
    memory: MemoryObjectStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    process = await Process(memory, clock).start()
    with caplog.at_level(logging.INFO):
        ownership = await process.claim(3)
    assert (ownership.epoch, ownership.copy, ownership.is_shared, ownership.is_stalled) == (3, None, True, False)
    manifest = stored(memory)
    assert (manifest.epoch, manifest.owner, manifest.claim_id) == (3, manifest.claimant, ownership.claim_id)
    assert manifest.claimant.worker_id == process.lease.worker.worker_id
    assert read_folder_claim(process.files, FOLDER) == FolderClaim(ownership.claim_id)
    assert f"container claimed container=0 epoch=3 claim={ownership.claim_id} url={URL}" in caplog.text
    await process.crash()


async def test_the_next_process_in_a_folder_need_not_wait(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """The lock of the folder says that the one before is dead. The clock stands still here."""
    process = await Process(memory, clock).start()
    await (await process.claim(3)).record_copy(COPY)
    following = await process.next_process()
    ownership = await following.claim(1)
    assert (ownership.epoch, ownership.copy) == (4, COPY)
    assert [*memory.objects] == [KEY, lease_key(following.lease.worker.worker_id)]
    await following.crash()


async def test_a_local_epoch_that_is_higher_counts(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    await process.claim(3)
    following = await process.next_process()
    assert (await following.claim(1030)).epoch == 1030
    await following.crash()


async def test_a_container_that_was_released_is_claimed_elsewhere_at_once(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    process = await Process(memory, clock).start()
    ownership = await process.claim()
    await ownership.release()
    moved = await process.next_process(host="two")
    assert (await moved.claim()).epoch == 2
    assert stored(memory).claimant.host == "two"
    await moved.crash()


async def test_an_owner_that_lives_is_not_disturbed(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Behaviour 90: a second server by mistake is refused, by name."""
    process = await Process(memory, clock).start()
    ownership = await process.claim()
    other = await Process(memory, clock, host="two", files=process.files.copy()).start()
    with pytest.raises(
        OwnedElsewhereError, match=rf"{ABOUT}is served by one \(/data\) since {SINCE}; stop that server first"
    ):
        await passing(clock, other.claim())
    await clock.advance(LEASE_S)
    await ownership.record_copy(COPY)
    assert not process.fenced
    for each in (process, other):
        await each.crash()


async def test_a_silent_owner_is_taken_over_and_told(
    memory: MemoryObjectStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour 91: it may come back at any time."""
    process = await Process(memory, clock).start()
    ownership = await process.claim()
    other = await process.next_process(host="two")
    began_s = clock.monotonic_s()
    taken = await passing(clock, other.claim())
    assert clock.monotonic_s() - began_s >= LEASE_S
    assert taken.epoch == 2
    since = taken.statistics().claimed
    assert "container taken over container=0 from_host=one from_folder=/data" in caplog.text

    assert ownership.is_stalled
    before = memory.objects[KEY]
    with pytest.raises(OwnerFencedError, match=rf"{ABOUT}two \(/data\) has taken it over at {re.escape(since)}; the"):
        await ownership.record_copy(COPY)
    assert memory.objects[KEY] == before
    with pytest.raises(OwnerFencedError, match=r"the server one \(/data\) must end: two \(/data\) has taken over"):
        await process.lease.confirm()
    assert len(process.fenced) == 2  # by the manifest, and by the lease
    await other.crash()


async def test_an_owner_that_is_released_meanwhile_is_not_waited_for(
    memory: MemoryObjectStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    process = await Process(memory, clock).start()
    ownership = await process.claim()
    other = await Process(memory, clock, host="two", files=process.files.copy()).start()
    claiming = asyncio.create_task(other.claim())
    await until(lambda: clock.sleeper_count == 3)
    await process.crash()
    await ownership.release()
    await process.lease.release()
    assert (await passing(clock, claiming)).epoch == 2
    assert "container taken over" not in caplog.text
    await other.crash()


async def test_one_who_dies_in_taking_over_leaves_the_container_to_the_next(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """It has ended the lease, and claimed nothing."""
    process = await Process(memory, clock).start()
    await process.claim()
    faulty = FaultyStore(memory)
    other = await process.next_process(host="two", store=faulty)
    faulty.fail("replace", *[Fault.STALL] * 10)
    claiming = asyncio.create_task(other.claim())
    await other.crash()
    while faulty.stalled_count < 1:
        await clock.advance(1.0)
    # The end of the lease happens, the claim does not.
    faulty._script["replace"].clear()
    faulty.fail("replace", Fault.UNAVAILABLE)
    faulty.release()
    with pytest.raises(StoreUnavailableError):
        await claiming
    assert stored(memory).claimant.host == "one"
    third = await other.next_process(host="three", store=memory)
    assert (await passing(clock, third.claim())).epoch == 2
    await third.crash()


async def test_a_copy_of_the_whole_machine_fences_the_first(memory: MemoryObjectStore, clock: ManualClock) -> None:
    """Then the place says that the owner is dead, and it is not."""
    process = await Process(memory, clock).start()
    await process.claim()
    clone = await Process(memory, clock, files=process.files.copy()).start()
    await clone.claim()
    await clock.advance(LEASE_S / 3)
    assert len(process.fenced) == 1
    with pytest.raises(OwnedElsewhereError, match="have not been its owner since"):
        await (await process.next_process()).claim()
    await clone.crash()


async def test_a_folder_of_the_same_place_that_does_not_know_the_claim_waits(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """Behaviour 90: two machines of one image have the same host name, and new folders the same file numbers."""
    process = await Process(memory, clock).start()
    await process.claim(has_remote_log=True)
    other = await Process(memory, clock, host=process.host).start()
    with pytest.raises(OwnedElsewhereError, match="is served by"):
        await passing(clock, other.claim(has_remote_log=True))
    assert process.fenced == []
    await process.crash()
    await other.crash()


# --- in one process ---


async def test_a_process_may_claim_again(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    first = await process.claim()
    second = await process.claim()
    assert (second.epoch, [*memory.objects]) == (2, [KEY, lease_key(process.lease.worker.worker_id)])
    with pytest.raises(OwnerFencedError, match=f"{ABOUT}this process has claimed it again"):
        await first.record_copy(COPY)
    assert not process.fenced
    await second.record_copy(COPY)
    await process.crash()


async def test_a_process_that_stood_still_claims_after_a_renewal(memory: MemoryObjectStore, clock: ManualClock) -> None:
    store = FaultyStore(memory)
    process = await Process(store, clock).start()
    ownership = await process.claim()
    clock.move(LEASE_S + 1)
    assert ownership.is_stalled
    store.fail("replace", Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await process.claim()
    again = await passing(clock, process.claim())
    assert not again.is_stalled
    await process.crash()


async def test_a_process_whose_lease_was_ended_claims_nothing(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    del memory.objects[lease_key(process.lease.worker.worker_id)]
    await clock.advance(LEASE_S / 3)
    with pytest.raises(OwnerFencedError):
        await process.claim()
    assert not memory.objects


# --- who may not ---


async def test_a_folder_that_never_had_the_container_is_refused(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    await (await process.claim()).release()
    before = dict(memory.objects)
    other = await Process(memory, clock, host="two").start()
    with pytest.raises(
        OwnedElsewhereError,
        match=rf"{ABOUT}was claimed by one \(/data\) at {SINCE}, which has released it; the data in /data on two have"
        rf" never been its owner and are superseded: move that folder away and run `millrace restore --store {URL}"
        " /data`",
    ):
        await other.claim()
    assert {**before, lease_key(other.lease.worker.worker_id): memory.objects[[*memory.objects][-1]]}.keys() == {
        *memory.objects
    }
    assert memory.objects[KEY] == before[KEY]
    assert read_folder_claim(other.files, FOLDER) is None
    for each in (process, other):
        await each.crash()


async def test_a_folder_that_was_superseded_is_refused(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    await (await process.claim()).release()
    moved = await process.next_process(host="two")
    await moved.claim()
    old = await process.next_process()
    with pytest.raises(
        OwnedElsewhereError, match=rf"{ABOUT}was claimed by two \(/data\) at {SINCE}; .* have not been its owner since"
    ):
        await old.claim()
    for each in (moved, old):
        await each.crash()


async def test_a_restored_folder_takes_over(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    ownership = await process.claim()
    await ownership.record_copy(COPY)
    await process.crash()
    files = MemoryFileSystem()
    write_folder_claim(files, FOLDER, FolderClaim(ownership.claim_id, restored_from="copy"))
    restored = await Process(memory, clock, host="two", files=files).start()
    taken = await passing(clock, restored.claim())
    assert read_folder_claim(files, FOLDER) == FolderClaim(taken.claim_id)
    await taken.record_copy(replace(COPY, name="later"))
    assert (await (await restored.next_process()).claim()).epoch == 3


async def test_a_restored_folder_in_a_place_of_the_same_name_does_not_take_over_from_one_that_lives(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """Containers on two machines may have the same host name, folder and inode."""
    process = await Process(memory, clock).start()
    ownership = await process.claim()
    await ownership.record_copy(COPY)
    files = MemoryFileSystem()
    write_folder_claim(files, FOLDER, FolderClaim(ownership.claim_id, restored_from="copy"))
    restored = await Process(memory, clock, files=files).start()
    with pytest.raises(OwnedElsewhereError, match="is served by"):
        await passing(clock, restored.claim())
    assert not process.fenced
    await process.crash()
    await restored.crash()


@pytest.mark.parametrize(("name", "words"), [("old", "restored from old: it is"), ("", "restored from nothing: it is")])
async def test_a_folder_restored_from_what_is_not_the_newest_is_refused(
    name: str, words: str, memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """The owner before still lived when it was restored."""
    process = await Process(memory, clock).start()
    ownership = await process.claim()
    await ownership.record_copy(COPY)
    await process.crash()
    files = MemoryFileSystem()
    write_folder_claim(files, FOLDER, FolderClaim(ownership.claim_id, restored_from=name))
    restored = await Process(memory, clock, host="two", files=files).start()
    with pytest.raises(OwnedElsewhereError, match=rf"{ABOUT}its history .*{words} at copy now, from one \(/data\); .*"):
        await passing(clock, restored.claim())
    await restored.crash()


async def test_a_copy_that_is_recorded_while_the_owner_is_watched_refuses_as_well(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """It can still write, though it does not renew its lease."""
    process = await Process(memory, clock).start()
    ownership = await process.claim()
    await ownership.record_copy(COPY)
    await process.crash()
    files = MemoryFileSystem()
    write_folder_claim(files, FOLDER, FolderClaim(ownership.claim_id, restored_from="copy"))
    restored = await Process(memory, clock, host="two", files=files).start()
    claiming = asyncio.create_task(restored.claim())
    await until(lambda: clock.sleeper_count == 2)
    await ownership.record_copy(replace(COPY, name="later"))
    with pytest.raises(OwnedElsewhereError, match="it is at later now"):
        await passing(clock, claiming)
    await restored.crash()


async def test_a_bucket_without_the_manifest_of_the_folder_is_refused(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    process = await Process(memory, clock).start()
    await process.claim()
    del memory.objects[KEY]
    following = await process.next_process()
    with pytest.raises(
        UnsupportedStoreError, match=f"{ABOUT}holds no manifest, though the server in /data has claimed it"
    ):
        await following.claim()
    assert KEY not in memory.objects
    await following.crash()


async def test_the_container_of_another_server_is_refused(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    await process.claim()
    following = await process.next_process()
    with pytest.raises(UnsupportedStoreError, match=f"{ABOUT}belongs to server .*1, but this is server .*2"):
        await following.claim(server_id=uuid.UUID(int=2))
    await following.crash()


@pytest.mark.parametrize("damage", ["bytes", "container", "version"])
async def test_a_manifest_that_cannot_be_read_is_left_alone(
    damage: str, memory: MemoryObjectStore, clock: ManualClock
) -> None:
    process = await Process(memory, clock).start()
    await process.claim()
    if damage == "bytes":
        memory.objects[KEY] = memory.objects[KEY][:-20]
    if damage == "container":
        store_manifest(memory, replace(stored(memory), container=1))
    if damage == "version":
        memory.objects[KEY] = memory.objects[KEY].replace(b'"format_version": 1', b'"format_version": 2')
    before = memory.objects[KEY]
    following = await process.next_process()
    with pytest.raises(ManifestUnreadableError, match=f"^{URL}/{KEY}: cannot be read: "):
        await following.claim()
    assert memory.objects[KEY] == before
    await following.crash()


async def test_a_folder_that_does_not_tell_is_refused(memory: MemoryObjectStore, clock: ManualClock) -> None:
    process = await Process(memory, clock).start()
    await process.claim()
    process.files.replace_content(FOLDER / CLAIM_NAME, b"")
    with pytest.raises(ConfigurationError, match=f"{CLAIM_NAME}: does not show"):
        await process.claim()
    await process.crash()


async def test_nothing_is_claimed_where_the_folder_cannot_keep_it(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    process = await Process(memory, clock).start()
    process.files.fail_syncs()
    with pytest.raises(DiskUnavailableError, match=str(Path(FOLDER) / CLAIM_NAME)):
        await process.claim()
    assert KEY not in memory.objects
    await process.crash()


# --- what the store does ---


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_claim_whose_answer_is_lost_has_succeeded(
    is_first: bool, memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """Behaviour 92."""
    faulty = FaultyStore(memory)
    retrying = RetryingStore(faulty, clock=clock)
    process = await Process(retrying, clock).start()
    if not is_first:
        await process.claim()
    faulty.fail("create" if is_first else "replace", Fault.LOST_ANSWER, Fault.BUSY)
    ownership = await passing(clock, process.claim(), step_s=0.01)
    assert ownership.epoch == (1 if is_first else 2)
    await ownership.record_copy(COPY)
    await process.crash()


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_ANSWER, Fault.LATE])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_claim_without_an_answer_does_not_lock_the_folder_out(
    fault: Fault, is_first: bool, memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """It may come late: the next claim, and the one after that, know it."""
    faulty = FaultyStore(memory)
    retrying = RetryingStore(faulty, ObjectStoreOptions(patience_s=0.0), clock=clock)
    process = await Process(retrying, clock).start()
    if not is_first:
        await process.claim()
    for is_next in (False, True):
        if KEY in memory.objects:  # the next process first ends the lease of the one before
            faulty.fail("replace", *[None] * is_next, fault)
        else:
            faulty.fail("create", fault)
        with pytest.raises(StoreUnavailableError):
            await process.claim()
        process = await process.next_process()
    await faulty.land()
    ownership = await process.claim()
    await ownership.record_copy(COPY)
    assert stored(memory).epoch == ownership.epoch
    following = await process.next_process()
    assert (await following.claim()).epoch == ownership.epoch + 1
    await following.crash()


class BusyBucket(MemoryObjectStore):
    """A bucket in which somebody is always faster."""

    async def replace(self, key: str, content: object, *, tag: str) -> str:
        """Store what somebody else has said."""
        manifest = decode_manifest(self.objects[key])
        self.objects[key] = encode_manifest(replace(manifest, changes=manifest.changes + 1))
        raise ObjectChangedError("the object is another one", subject=key)


async def test_a_claim_and_a_change_that_never_come_through_end(clock: ManualClock) -> None:
    memory = BusyBucket()
    process = await Process(memory, clock).start()
    ownership = await process.claim()
    with pytest.raises(OwnedElsewhereError, match=rf"{ABOUT}one \(/data\) is claiming it at the same time"):
        await process.claim()
    known = read_folder_claim(process.files, FOLDER)
    assert known is not None
    assert len(known.claiming) == ATTEMPTS_COUNT_MAX
    with pytest.raises(StoreUnavailableError, match=f"the manifest was changed {ATTEMPTS_COUNT_MAX} times meanwhile"):
        await ownership.record_copy(COPY)
    await process.crash()


async def test_a_lease_that_cannot_be_deleted_is_left(
    memory: MemoryObjectStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyStore(memory)
    process = await Process(faulty, clock).start()
    await process.claim()
    following = await process.next_process()
    faulty.fail("delete", Fault.UNAVAILABLE)
    assert (await following.claim()).epoch == 2
    assert "lease of the previous owner not deleted" in caplog.text
    await following.crash()


# --- a log in the store ---


async def test_a_claim_appends_its_epoch_to_the_log_in_the_store(memory: MemoryObjectStore, clock: ManualClock) -> None:
    one = await Process(memory, clock).start()
    ownership = await one.claim(3, has_remote_log=True)
    assert ownership.log == RemoteLog(first_epoch=3, last_epoch=3, from_sequence=1)
    ownership.log_began({}, acknowledged=lambda: 0)
    await ownership.raise_epoch()
    assert ownership.log == RemoteLog(first_epoch=3, last_epoch=3, from_sequence=1)
    again = await one.next_process()
    ownership = await again.claim(has_remote_log=True)
    assert ownership.log == stored(memory).log == RemoteLog(first_epoch=3, last_epoch=5, from_sequence=1)
    assert again.discards_count == 0


async def test_any_folder_may_continue_a_log_in_the_store_without_what_it_keeps(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """Behaviour 92: its checkpoint may refer to chunks that others have deleted since."""
    one = await Process(memory, clock).start()
    await (await one.claim(has_remote_log=True)).release()
    two = await Process(memory, clock, host="two").start()
    await (await two.claim(has_remote_log=True)).release()
    assert two.discards_count == 1
    assert stored(memory).claimant.host == "two"

    back = await one.next_process()
    await back.claim(has_remote_log=True)
    assert back.discards_count == 1


async def test_what_a_folder_keeps_is_discarded_before_it_knows_the_claim(
    memory: MemoryObjectStore, clock: ManualClock
) -> None:
    """A crash in between must not leave a folder that takes an old checkpoint for its own."""
    one = await Process(memory, clock).start()
    await (await one.claim(has_remote_log=True)).release()
    two = await Process(memory, clock, host="two").start()

    def fail() -> None:
        raise DiskUnavailableError("cannot be deleted")

    two._discard = fail  # type: ignore[method-assign]
    before = dict(memory.objects)
    with pytest.raises(DiskUnavailableError):
        await two.claim(has_remote_log=True)
    assert read_folder_claim(two.files, FOLDER) is None
    assert memory.objects["c0000/manifest"] == before["c0000/manifest"]


@pytest.mark.parametrize(
    ("was_remote", "words"),
    [
        (True, "keeps its log in the object store, and that cannot change: start it with --log object"),
        (False, r"keeps its log in the folder of one \(/data\), and that cannot change: start it with --log local"),
    ],
)
async def test_the_kind_of_a_log_stays(
    memory: MemoryObjectStore, clock: ManualClock, *, was_remote: bool, words: str
) -> None:
    one = await Process(memory, clock).start()
    await (await one.claim(has_remote_log=was_remote)).release()
    again = await one.next_process()
    with pytest.raises(UnsupportedStoreError, match=f"{ABOUT}{words}"):
        await again.claim(has_remote_log=not was_remote)


async def test_a_log_that_was_claimed_too_often_is_refused(memory: MemoryObjectStore, clock: ManualClock) -> None:
    one = await Process(memory, clock).start()
    await (await one.claim(has_remote_log=True)).release()
    manifest = stored(memory)
    log = RemoteLog(first_epoch=2, last_epoch=EPOCHS_COUNT_MAX, from_sequence=1)
    store_manifest(memory, replace(manifest, log=log, epoch=EPOCHS_COUNT_MAX))
    last = await one.next_process()
    assert (await last.claim(has_remote_log=True)).log == replace(log, last_epoch=EPOCHS_COUNT_MAX + 1)
    again = await last.next_process()
    with pytest.raises(StorageError, match="epochs 2 to 1048578 of its log have no copy"):
        await again.claim(has_remote_log=True)
    assert stored(memory).log == replace(log, last_epoch=EPOCHS_COUNT_MAX + 1)
