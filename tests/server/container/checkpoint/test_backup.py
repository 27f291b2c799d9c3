import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.checkpoint.backup import (
    COPIES_KEPT,
    PART_HEADER_SIZE_BYTES,
    CheckpointCopy,
    CopyPart,
    decode_part,
    delete_copies_besides,
    delete_old_copies,
    encode_part,
    parse_part_name,
    publish_copy,
    restore_copy,
    version_of_copy,
    whole_copies,
)
from millrace.server.container.checkpoint.checkpoint import CheckpointVersion
from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.recovery import state_of
from millrace.server.errors import ChunkCorruptError, ChunkIdentityError
from millrace.server.host.files import OsFileSystem
from millrace.server.kinds.registry import KINDS
from millrace.server.tier2 import ChunkInfo
from millrace.server.wal import LogOwner
from tests.server.container.histories import history
from tests.server.tier2.chunks import flipped
from tests.support.storage import FaultyStorage
from tests.support.tables import table

OWNER = LogOwner(3, uuid.UUID(int=7))
PART = CopyPart(sequence=5, container_epoch=1, number=1, part=0, part_count=1)


GOLDEN = Path(__file__).parents[3] / "golden" / "checkpoint_copy_v1.hex"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CheckpointStore]:
    """A checkpoint to be copied."""
    store = CheckpointStore(OsFileSystem(), tmp_path / "checkpoint.db", KINDS)
    store.load()
    past = history(*[("create", 0, number) for number in range(40)], state=state_of(store, None))
    store.save(take_rows(past.state), sequence=5, replay_from=4, container_epoch=1)
    yield store
    store.close()


async def copied(
    storage: FaultyStorage, store: CheckpointStore, *, sequence: int = 5, number: int = 1, owner: LogOwner = OWNER
) -> CheckpointCopy:
    """Publish a copy, and return it."""
    version = CheckpointVersion(sequence, 1, 4)
    size = store.export()
    await publish_copy(storage, store, version=version, number=number, size=size, owner=owner, part_size_bytes=20_000)
    name = replace(PART, sequence=sequence, number=number).copy_name
    return next(copy for copy in whole_copies(await storage.list("checkpoints/")) if copy.name == name)


def test_the_newest_copy_sorts_last_also_when_nothing_was_appended_since() -> None:
    names = [
        CopyPart(sequence, epoch, number, 0, 1).name
        for sequence, epoch, number in ((9, 1, 1), (9, 1, 2), (9, 2, 1), (10, 2, 2), (10**12, 2, 30))
    ]
    assert names == sorted(names)
    assert len(set(names)) == len(names)


@given(st.builds(CopyPart, *[st.integers(0, 10**5 - 1)] * 5))
def test_a_name_says_which_part_of_which_copy_it_is(part: CopyPart) -> None:
    assert parse_part_name(part.name) == part
    assert parse_part_name(f"{part.name}x") is None


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.sets(st.integers(0, 3))), unique_by=lambda c: c[0]))
def test_a_copy_of_which_a_part_is_missing_is_none(copies: list[tuple[int, int, set[int]]]) -> None:
    chunks = [
        ChunkInfo(CopyPart(sequence, 1, 1, part, parts).name, 9)
        for sequence, parts, missing in copies
        for part in range(parts)
        if part not in missing
    ]

    found = whole_copies([*reversed(chunks), ChunkInfo("checkpoints/something-else.chunk", 5)])

    expected = [
        ((sequence, 1), parts) for sequence, parts, missing in sorted(copies) if not missing & set(range(parts))
    ]
    assert [(copy.point, len(copy.parts)) for copy in found] == expected
    assert all(list(copy.parts) == sorted(copy.parts, key=lambda part: part.name) for copy in found)


def test_the_golden_bytes_of_a_part_are_read_and_written_as_they_were() -> None:
    golden = bytes.fromhex(GOLDEN.read_text(encoding="ascii"))
    part = CopyPart(sequence=0x1112131415161718, container_epoch=0x21222324, number=5, part=1, part_count=3)
    owner = LogOwner(0x3132, uuid.UUID(bytes=bytes(range(16))))
    replay_from = 0x0102030405060708

    written = b"".join(encode_part(part, b"hello", replay_from=replay_from, owner=owner))
    version, content = decode_part(golden, name=part.name, owner=owner)

    assert written.hex(" ") == golden.hex(" ")
    assert version == CheckpointVersion(part.sequence, part.container_epoch, replay_from)
    assert bytes(content) == b"hello"


@pytest.mark.asyncio
async def test_a_copy_of_several_parts_comes_back_whole(tmp_path: Path, store: CheckpointStore) -> None:
    storage = FaultyStorage()
    copy = await copied(storage, store)
    content = store.copy_path.read_bytes()
    other = CheckpointStore(OsFileSystem(), tmp_path / "restored", KINDS)

    assert await version_of_copy(storage, copy, owner=OWNER) == CheckpointVersion(5, 1, 4)
    await restore_copy(storage, copy, other, owner=OWNER)

    assert len(copy.parts) > 2
    assert other.path.read_bytes() == content
    assert not other.copy_path.exists()


@pytest.mark.asyncio
async def test_old_copies_go_and_so_do_those_never_finished(store: CheckpointStore) -> None:
    storage = FaultyStorage()
    for number in range(1, 6):
        if number == 4:
            await storage.publish(replace(PART, number=number, part_count=2).name, [b"half"])
        else:
            await copied(storage, store, number=number)

    await delete_old_copies(storage)

    kept = whole_copies(await storage.list("checkpoints/"))
    assert len(kept) == COPIES_KEPT
    assert [copy.name[-1] for copy in kept] == ["3", "5"]
    assert len(await storage.list("checkpoints/")) == sum(len(copy.parts) for copy in kept)


@pytest.mark.asyncio
async def test_all_copies_go_but_those_that_count_and_those_of_later_owners() -> None:
    """Behaviour 91: a newer name says nothing, as a superseded server may have published it."""
    storage = FaultyStorage()
    at = {
        (sequence, epoch): replace(PART, sequence=sequence, container_epoch=epoch)
        for sequence in (5, 6, 7)
        for epoch in (1, 2, 3)
    }
    for part in at.values():
        await storage.publish(part.name, [b"a part"])

    await delete_copies_besides({at[5, 1].copy_name, at[6, 2].copy_name}, storage, container_epoch_max=2)

    kept = [at[5, 1], at[6, 2], at[5, 3], at[6, 3], at[7, 3]]
    assert sorted(part.name for part in kept) == [chunk.name for chunk in await storage.list("checkpoints/")]


@table(
    ("other", "owner"),
    [
        (replace(PART, sequence=4), OWNER),
        (replace(PART, container_epoch=2), OWNER),
        (replace(PART, number=2), OWNER),
        (replace(PART, part=1, part_count=2), OWNER),
        (replace(PART, part_count=2), OWNER),
        (PART, LogOwner(4, OWNER.server_id)),
        (PART, LogOwner(3, uuid.UUID(int=8))),
    ],
    ids=["sequence", "epoch", "number", "part", "parts", "container", "server"],
)
def test_a_part_of_another_copy_is_refused(other: CopyPart, owner: LogOwner) -> None:
    """Behaviour 81: both are named, whatever it is that differs."""
    data = b"".join(encode_part(other, b"content", replay_from=1, owner=owner))

    with pytest.raises(ChunkIdentityError) as caught:
        decode_part(data, name=PART.name, owner=OWNER)

    assert f"part 0 of 1 of copy 1 at sequence 5 from epoch 1 of {OWNER}" in caught.value.expected
    assert f"part {other.part} of {other.part_count} of copy {other.number} at sequence" in caught.value.found
    assert caught.value.found.endswith(str(owner))
    assert bytes(decode_part(data, name=other.name, owner=None)[1]) == b"content"


@given(st.integers(0, PART_HEADER_SIZE_BYTES + 4), st.integers(0, 7))
def test_every_flipped_bit_of_a_part_is_found(offset: int, bit: int) -> None:
    """Behaviour 41."""
    data = b"".join(encode_part(PART, b"hello", replay_from=1, owner=OWNER))

    with pytest.raises(ChunkCorruptError):
        decode_part(flipped(data, offset=offset, bit=bit), name=PART.name, owner=OWNER)


@table("size", [0, 1, PART_HEADER_SIZE_BYTES - 1, PART_HEADER_SIZE_BYTES, PART_HEADER_SIZE_BYTES + 4])
def test_a_part_cut_short_is_found(size: int) -> None:
    data = b"".join(encode_part(PART, b"hello", replay_from=1, owner=OWNER))

    with pytest.raises(ChunkCorruptError):
        decode_part(data[:size], name=PART.name, owner=OWNER)


@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["swapped", "renamed", "of another server", "forged"])
async def test_a_copy_that_is_another_one_replaces_nothing(tmp_path: Path, store: CheckpointStore, what: str) -> None:
    """Behaviour 81: parts of two copies changed places; a copy under another name; one with a header that lies."""
    storage = FaultyStorage()
    older, newer = await copied(storage, store), await copied(storage, store, number=2)
    if what == "swapped":
        one, other = older.parts[1].name, newer.parts[1].name
        swapped = storage.content(one), storage.content(other)
        storage.replace(one, swapped[1])
        storage.replace(other, swapped[0])
    elif what == "renamed":
        for part, wrong in zip(newer.parts, older.parts, strict=True):
            storage.replace(part.name, storage.content(wrong.name))
    elif what == "of another server":
        newer = await copied(storage, store, number=3, owner=LogOwner(3, uuid.UUID(int=8)))
    else:
        newer = await copied(storage, store, sequence=6)
    target = CheckpointStore(OsFileSystem(), tmp_path / "restored", KINDS)
    target.path.write_bytes(b"what was there")

    with pytest.raises(ChunkCorruptError, match="several checkpoints" if what == "forged" else "the file holds part"):
        await restore_copy(storage, newer, target, owner=OWNER)

    assert target.path.read_bytes() == b"what was there"
