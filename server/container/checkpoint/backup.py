"""Copies of the checkpoint in tier 2, from which one that is lost, damaged or older is replaced.

A copy is published in parts, each a chunk under a name of its own:

    checkpoints/<sequence>-<container epoch>-<number>-<part>-<parts>.chunk

`sequence` is that of the last log batch which the checkpoint contains, 20 decimal digits. The container epoch and the
number of the copy in it have 8 hexadecimal digits: one sequence may be copied more than once, when bytes were flushed
and nothing was appended. The part, from 0, and how many there are have 5 decimal digits each. So the newest copy sorts
last, and a copy of which a part is missing is known as one that was never finished.

Each part begins with a header that says the same, and whose it is (`millrace.wire.schema.checkpoint_copy`). A part
under the name of another one, or of another container, is refused.
"""

import asyncio
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

from millrace.model.checksum import Buffer, crc32c
from millrace.server.errors import ChunkCorruptError, ChunkIdentityError
from millrace.server.tier2 import ChunkInfo, ChunkStorage
from millrace.server.wal import LogOwner
from millrace.wire.codec import Codec
from millrace.wire.errors import CodecError
from millrace.wire.limits import MIB
from millrace.wire.schema.checkpoint_copy import CopyPartHeader

from .checkpoint import CheckpointVersion
from .store import CheckpointStore

CHECKPOINT_PREFIX: Final = "checkpoints/"
PART_SIZE_BYTES: Final = 8 * MIB
COPIES_KEPT: Final = 2

_HEADER: Final = Codec(CopyPartHeader, name="CopyPartHeader")
PART_HEADER_SIZE_BYTES: Final = int(CopyPartHeader.sizeof())
_CHECKSUM_END: Final = PART_HEADER_SIZE_BYTES - 4

_NAME: Final = re.compile(r"(checkpoints/(\d{20})-([0-9a-f]{8})-([0-9a-f]{8}))-(\d{5})-(\d{5})\.chunk", re.ASCII)


@dataclass(frozen=True, slots=True)
class CopyPart:
    """One part of a copy, as its name says."""

    sequence: int
    container_epoch: int
    number: int
    part: int
    part_count: int

    @property
    def copy_name(self) -> str:
        """What the names of all parts of the copy begin with."""
        return f"{CHECKPOINT_PREFIX}{self.sequence:020d}-{self.container_epoch:08x}-{self.number:08x}"

    @property
    def name(self) -> str:
        """The name of the part."""
        return f"{self.copy_name}-{self.part:05d}-{self.part_count:05d}.chunk"


class PartHeader(NamedTuple):
    """What the header of a part says besides what its name says."""

    version: CheckpointVersion
    size: int
    content_checksum: int


@dataclass(frozen=True, slots=True)
class CheckpointCopy:
    """A whole copy: what its parts have in common of their names, and the parts in their order."""

    name: str
    parts: tuple[ChunkInfo, ...]
    point: tuple[int, int]
    """Sequence and epoch, as the name says."""


def parse_part_name(name: str) -> CopyPart | None:
    """Return what the name of a part says, or None if it is no such name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return CopyPart(int(match[2]), int(match[3], 16), int(match[4], 16), int(match[5]), int(match[6]))


def whole_copies(chunks: Iterable[ChunkInfo]) -> list[CheckpointCopy]:
    """Return the copies of which all parts are there, the oldest first."""
    found = [(part, chunk) for chunk in chunks if (part := parse_part_name(chunk.name)) is not None]
    found.sort(key=lambda pair: pair[1].name)
    copies = []
    for name, group in groupby(found, key=lambda pair: pair[0].copy_name):
        parts = list(group)
        if [(part.part, part.part_count) for part, _ in parts] == [(at, len(parts)) for at in range(len(parts))]:
            first, _ = parts[0]
            point = first.sequence, first.container_epoch
            copies.append(CheckpointCopy(name, tuple(chunk for _, chunk in parts), point))
    return copies


def encode_part(part: CopyPart, content: Buffer, *, replay_from: int, owner: LogOwner) -> list[Buffer]:
    """Return the bytes of a part as pieces to be written one after another."""
    header = _HEADER.pack(
        owner.server_id.bytes,
        owner.container_id,
        part.container_epoch,
        part.sequence,
        replay_from,
        part.number,
        part.part,
        part.part_count,
        len(content),
        crc32c(content),
        0,
    )[:_CHECKSUM_END]
    return [header + crc32c(header).to_bytes(4, "little"), content]


def decode_part(data: bytes, *, name: str, owner: LogOwner | None) -> tuple[CheckpointVersion, memoryview]:
    """Return which version of the checkpoint a part is of, and its content.

    Args:
        data: the whole part.
        name: under which it was found.
        owner: whose it must be, None if that does not matter.

    Raises:
        ChunkIdentityError: it is another part than its name says, or that of another container.
        ChunkCorruptError: it is damaged.
    """
    header = decode_part_header(data, name=name, owner=owner)
    content = memoryview(data)[PART_HEADER_SIZE_BYTES:]
    if (len(content), crc32c(content)) != (header.size, header.content_checksum):
        reason = f"{len(content)} bytes, which are not the {header.size} that were published,"
        raise ChunkCorruptError(name, PART_HEADER_SIZE_BYTES, reason)
    return header.version, content


def decode_part_header(data: bytes, *, name: str, owner: LogOwner | None) -> PartHeader:
    """Return what the header of a part says; see `decode_part`."""
    header = data[:PART_HEADER_SIZE_BYTES]
    try:
        (
            server_id,
            container_id,
            epoch,
            sequence,
            replay_from,
            number,
            part,
            part_count,
            size,
            checksum,
            own_checksum,
        ) = _HEADER.unpack(header)
    except CodecError as error:
        raise ChunkCorruptError(name, 0, f"no header of a part of a copy ({error})") from error
    if crc32c(header[:_CHECKSUM_END]) != own_checksum:
        raise ChunkCorruptError(name, 0, "the header does not match its checksum,")
    found = CopyPart(sequence, epoch, number, part, part_count), LogOwner(container_id, UUID(bytes=server_id))
    expected = parse_part_name(name), owner or found[1]
    if found != expected:
        raise ChunkIdentityError(name, 0, found=_text(*found), expected=_text(*expected))
    return PartHeader(CheckpointVersion(sequence, epoch, replay_from), size, checksum)


def _text(part: CopyPart | None, owner: LogOwner) -> str:
    if part is None:
        return "no part"
    return (
        f"part {part.part} of {part.part_count} of copy {part.number} at sequence {part.sequence} "
        f"from epoch {part.container_epoch} of {owner}"
    )


async def publish_copy(
    storage: ChunkStorage,
    checkpoints: CheckpointStore,
    *,
    version: CheckpointVersion,
    number: int,
    size: int,
    owner: LogOwner,
    part_size_bytes: int = PART_SIZE_BYTES,
) -> str:
    """Publish the copy of `size` bytes that `CheckpointStore.export` made, one part in memory at a time.

    Returns what the names of its parts begin with.

    Args:
        version: of the checkpoint that was copied.
        number: of the copy in its epoch.
        size: of the copy, in bytes.
        owner: whose checkpoint it is.
        part_size_bytes: bytes of the copy in each part.

    Raises:
        StorageError: the copy is not whole, and counts for nothing.
    """
    part_count = max(1, -(-size // part_size_bytes))
    for index in range(part_count):
        content = await asyncio.to_thread(checkpoints.read_copy, part_size_bytes, offset=index * part_size_bytes)
        part = CopyPart(version.sequence, version.container_epoch, number, index, part_count)
        await storage.publish(part.name, encode_part(part, content, replay_from=version.replay_from, owner=owner))
    return CopyPart(version.sequence, version.container_epoch, number, 0, part_count).copy_name


async def delete_old_copies(storage: ChunkStorage) -> None:
    """Delete what is older than the newest copies, finished or not.

    Raises:
        StorageError: some are left; the next call deletes them.
    """
    chunks = await storage.list(CHECKPOINT_PREFIX)
    kept = whole_copies(chunks)[-COPIES_KEPT:]
    names = {chunk.name for copy in kept for chunk in copy.parts}
    for chunk in chunks:
        if kept and chunk.name not in names and chunk.name < kept[-1].name:
            await storage.delete(chunk.name)


async def delete_copies_besides(names: Collection[str], storage: ChunkStorage, *, container_epoch_max: int) -> None:
    """Delete the copies of these and earlier epochs, finished or not, but for some that are kept.

    For a container that another server may have taken over meanwhile: its copies are of higher epochs.

    Args:
        names: of the copies that are kept, `CheckpointCopy.name`.
        container_epoch_max: copies of higher epochs are kept, too.

    Raises:
        StorageError: some are left; the next call deletes them.
    """
    for chunk in await storage.list(CHECKPOINT_PREFIX):
        part = parse_part_name(chunk.name)
        if part is not None and part.container_epoch <= container_epoch_max and part.copy_name not in names:
            await storage.delete(chunk.name)


async def version_of_copy(storage: ChunkStorage, copy: CheckpointCopy, *, owner: LogOwner) -> CheckpointVersion:
    """Return which version of the checkpoint a copy says that it is.

    Raises:
        ChunkCorruptError: it is damaged, or another copy than its name says.
        StorageError: it cannot be read.
    """
    name = copy.parts[0].name
    data = await storage.read(name, offset=0, size=PART_HEADER_SIZE_BYTES)
    return decode_part_header(data, name=name, owner=owner).version


async def restore_copy(
    storage: ChunkStorage, copy: CheckpointCopy, checkpoints: CheckpointStore, *, owner: LogOwner
) -> None:
    """Put a copy in the place of the checkpoint; `load` comes next. What was there is set aside.

    Raises:
        ChunkCorruptError, CheckpointDamagedError: the copy is damaged, or another one than its name says.
        StorageError, OSError: a part cannot be read, or written. After any error, what was there is as it was.
    """
    await asyncio.to_thread(checkpoints.begin_restore)
    offset = 0
    versions = set()
    for part in copy.parts:
        data = await storage.read(part.name, offset=0, size=part.size)
        version, content = decode_part(data, name=part.name, owner=owner)
        versions.add(version)
        await asyncio.to_thread(checkpoints.restore_part, content, offset=offset)
        offset += len(content)
    versions.add(await asyncio.to_thread(checkpoints.verify_copy))
    if len(versions) > 1:
        raise ChunkCorruptError(copy.parts[0].name, 0, f"parts of several checkpoints {sorted(versions)}")
    await asyncio.to_thread(checkpoints.finish_restore)
