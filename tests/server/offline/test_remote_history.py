from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.container.checkpoint.backup import CopyPart
from millrace.server.errors import ObjectNotFoundError, StorageError
from millrace.server.object_store import StoredObject
from millrace.server.offline.remote_history import LISTINGS_COUNT_MAX, UnclaimedStorage, read_history
from millrace.server.ownership import CopyRecord, manifest_key
from millrace.server.ownership.manifest import encode_manifest
from tests.server.offline.test_owners import MANIFEST
from tests.support.object_store import MemoryObjectStore
from tests.support.storage import MemoryStorage

URL = "s3://bucket/history"


def part(sequence: int) -> str:
    return f"c0000/{CopyPart(sequence, container_epoch=1, number=1, part=0, part_count=1).name}"


def fetched(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.chunk")}


class ChangingStore(MemoryObjectStore):
    """Before each of its first reads, a server makes one more copy of the checkpoint, and deletes all older ones."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        self.reads: list[str] = []
        self._changes = changes

    async def read(self, key: str, *, offset: int, size: int) -> bytes:
        if len(self.reads) < self._changes:
            self.objects.clear()
            self.objects[part(100 + len(self.reads))] = b"newer"
        self.reads.append(key)
        return await super().read(key, offset=offset, size=size)


@pytest.mark.asyncio
async def test_a_copy_that_is_deleted_before_it_is_fetched_is_left_out(tmp_path: Path) -> None:
    store = ChangingStore(changes=2)
    store.objects.update({part(1): b"first", part(2): b"second"})

    history = await read_history(store, tmp_path, url=URL)

    assert store.reads == [part(2), part(100), part(101)]
    assert [chunk.name for chunk in history.objects] == [part(101)]
    assert (tmp_path / part(101)).read_bytes() == b"newer"


@pytest.mark.asyncio
async def test_a_store_that_never_holds_still_is_told_in_the_end(tmp_path: Path) -> None:
    store = ChangingStore(changes=100)
    store.objects[part(1)] = b"first"

    with pytest.raises(ObjectNotFoundError):
        await read_history(store, tmp_path, url=URL)

    assert len(store.reads) == LISTINGS_COUNT_MAX


@pytest.mark.asyncio
async def test_what_was_fetched_once_is_not_fetched_again_and_goes_with_its_object(tmp_path: Path) -> None:
    store = ChangingStore(changes=0)
    store.objects.update({part(1): b"first", part(2): b"second"})
    first = await read_history(store, tmp_path, url=URL)
    del store.objects[part(1)]
    store.objects[part(3)] = b"third"

    second = await read_history(store, tmp_path, url=URL)

    assert store.reads == [part(2), part(1), part(3)]
    assert {*fetched(tmp_path).values()} == {b"second", b"third"}
    assert first.copies != second.copies


@pytest.mark.asyncio
async def test_no_name_in_a_store_leads_out_of_the_folder(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    store.objects.update({"c0000/checkpoints/../../../out.chunk": b"", part(1): b"first"})

    await read_history(store, tmp_path / "folder", url=URL)

    assert fetched(tmp_path) == {part(1).rpartition("/")[2]: b"first"}


@pytest.mark.asyncio
async def test_the_copy_that_a_manifest_names_counts_and_is_waited_for(tmp_path: Path) -> None:
    class LateStore(MemoryObjectStore):
        """The copy that counts was made while the first listing was under way."""

        async def get(self, key: str) -> StoredObject:
            self.objects[part(2)] = b"second"
            return await super().get(key)

    name = part(2).removeprefix("c0000/").removesuffix("-00000-00001.chunk")
    manifest = replace(MANIFEST, checkpoint=CopyRecord(name=name, sequence=2, container_epoch=1, replay_from=1))
    store = LateStore()
    store.objects.update({part(1): b"first", part(3): b"of a zombie", manifest_key(0): encode_manifest(manifest)})

    history = await read_history(store, tmp_path, url=URL)

    assert history.copies == {0: name}
    assert len(fetched(tmp_path)) == 3


@pytest.mark.asyncio
async def test_a_copy_that_a_manifest_names_and_nobody_made_ends_no_reading(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    store.objects.update({part(1): b"first", manifest_key(0): encode_manifest(MANIFEST)})

    history = await read_history(store, tmp_path, url=URL)

    assert MANIFEST.checkpoint is not None
    assert history.copies == {0: MANIFEST.checkpoint.name}


@pytest.mark.asyncio
async def test_nothing_is_stored_by_who_has_claimed_nothing() -> None:
    storage = UnclaimedStorage(MemoryStorage())

    with pytest.raises(StorageError):
        await storage.publish("a.chunk", [b""])
    with pytest.raises(StorageError):
        await storage.delete("a.chunk")
    assert await storage.list() == []
