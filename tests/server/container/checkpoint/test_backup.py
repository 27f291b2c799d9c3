from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.checkpoint.backup import (
    COPIES_KEPT,
    PART_SIZE_BYTES,
    copy_name,
    delete_old_copies,
    part_name,
    publish_copy,
    restore_copy,
    whole_copies,
)
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.host.files import OsFileSystem
from millrace.server.tier2 import ChunkInfo
from tests.support.storage import MemoryStorage


def test_the_newest_copy_sorts_last_also_when_nothing_was_appended_since() -> None:
    names = [
        copy_name(sequence=sequence, container_epoch=epoch, number=number)
        for sequence, epoch, number in ((9, 1, 1), (9, 1, 2), (9, 2, 1), (10, 2, 2), (10**12, 2, 30))
    ]
    assert names == sorted(names)
    assert len(set(names)) == len(names)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.sets(st.integers(0, 3))), unique_by=lambda c: c[0]))
def test_a_copy_of_which_a_part_is_missing_is_none(copies: list[tuple[int, int, set[int]]]) -> None:
    chunks = [
        ChunkInfo(part_name(copy_name(sequence=sequence, container_epoch=1, number=1), part=part, part_count=parts), 9)
        for sequence, parts, missing in copies
        for part in range(parts)
        if part not in missing
    ]

    found = whole_copies([*reversed(chunks), ChunkInfo("checkpoints/something-else.chunk", 5)])

    expected = [
        (copy_name(sequence=sequence, container_epoch=1, number=1), parts)
        for sequence, parts, missing in sorted(copies)
        if not missing & set(range(parts))
    ]
    assert [(copy.name, len(copy.parts)) for copy in found] == expected
    assert all(list(copy.parts) == sorted(copy.parts, key=lambda part: part.name) for copy in found)


@pytest.mark.asyncio
async def test_a_file_of_several_parts_comes_back_whole(tmp_path: Path) -> None:
    storage = MemoryStorage()
    content = bytes(range(251)) * (2 * PART_SIZE_BYTES // 251 + 99)
    store = CheckpointStore(OsFileSystem(), tmp_path / "restored")
    store.copy_path.write_bytes(content)
    name = copy_name(sequence=5, container_epoch=1, number=1)

    await publish_copy(storage, store, name=name, size=len(content))
    (copy,) = whole_copies(await storage.list("checkpoints/"))
    await restore_copy(storage, copy, store)

    assert len(copy.parts) == 3
    assert store.path.read_bytes() == content


@pytest.mark.asyncio
async def test_old_copies_go_and_so_do_those_never_finished(tmp_path: Path) -> None:
    storage = MemoryStorage()
    store = CheckpointStore(OsFileSystem(), tmp_path / "checkpoint.db")
    store.copy_path.write_bytes(b"x" * 10)
    for number in range(1, 6):
        name = copy_name(sequence=5, container_epoch=1, number=number)
        if number == 4:
            await storage.publish(part_name(name, part=0, part_count=2), [b"half"])
        else:
            await publish_copy(storage, store, name=name, size=10)

    await delete_old_copies(storage)

    kept = whole_copies(await storage.list("checkpoints/"))
    assert len(kept) == COPIES_KEPT
    assert [copy.name[-1] for copy in kept] == ["3", "5"]
    assert len(await storage.list("checkpoints/")) == COPIES_KEPT
