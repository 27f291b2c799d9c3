"""Copies of the checkpoint in tier 2, from which a lost or damaged one is restored.

A copy is published in parts, each a chunk under a name of its own:

    checkpoints/<sequence>-<container epoch>-<number>-<part>-<parts>.chunk

`sequence` is that of the last log batch which the checkpoint contains, 20 decimal digits. The container epoch and the
number of the copy in it have 8 hexadecimal digits: one sequence may be copied more than once, when bytes were flushed
and nothing was appended. The part, from 0, and how many there are have 5 decimal digits each. So the newest copy sorts
last, and a copy of which a part is missing is known as one that was never finished.
"""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from millrace.server.tier2 import ChunkInfo, ChunkStorage
from millrace.wire.limits import MIB

from .store import CheckpointStore

CHECKPOINT_PREFIX: Final = "checkpoints/"
PART_SIZE_BYTES: Final = 8 * MIB
COPIES_KEPT: Final = 2

_NAME: Final = re.compile(r"(checkpoints/\d{20}-[0-9a-f]{8}-[0-9a-f]{8})-(\d{5})-(\d{5})\.chunk")


@dataclass(frozen=True, slots=True)
class CheckpointCopy:
    """A whole copy: what its parts have in common of their names, and the parts in their order."""

    name: str
    parts: tuple[ChunkInfo, ...]


def copy_name(*, sequence: int, container_epoch: int, number: int) -> str:
    """Return what the names of all parts of a copy begin with."""
    return f"{CHECKPOINT_PREFIX}{sequence:020d}-{container_epoch:08x}-{number:08x}"


def part_name(name: str, *, part: int, part_count: int) -> str:
    """Return the name of one part of a copy."""
    return f"{name}-{part:05d}-{part_count:05d}.chunk"


def whole_copies(chunks: Iterable[ChunkInfo]) -> list[CheckpointCopy]:
    """Return the copies of which all parts are there, the oldest first."""
    matches = [(match, chunk) for chunk in chunks if (match := _NAME.fullmatch(chunk.name)) is not None]
    matches.sort(key=lambda pair: pair[1].name)
    copies = []
    for name, group in groupby(matches, key=lambda pair: pair[0].group(1)):
        parts = list(group)
        numbers = [(int(match.group(2)), int(match.group(3))) for match, _ in parts]
        if numbers == [(part, len(parts)) for part in range(len(parts))]:
            copies.append(CheckpointCopy(name, tuple(chunk for _, chunk in parts)))
    return copies


def epoch_of_copy(name: str) -> int:
    """Return the container epoch in the name of a part of a copy, 0 if it is no such name."""
    match = _NAME.fullmatch(name)
    return int(match[1].split("-")[1], 16) if match else 0


async def publish_copy(storage: ChunkStorage, checkpoints: CheckpointStore, *, name: str, size: int) -> None:
    """Publish the copy of `size` bytes that `CheckpointStore.export` made, one part in memory at a time.

    Raises:
        StorageError: the copy is not whole, and counts for nothing.
    """
    part_count = max(1, -(-size // PART_SIZE_BYTES))
    for part in range(part_count):
        data = await asyncio.to_thread(checkpoints.read_copy, PART_SIZE_BYTES, offset=part * PART_SIZE_BYTES)
        await storage.publish(part_name(name, part=part, part_count=part_count), [data])


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


async def restore_copy(storage: ChunkStorage, copy: CheckpointCopy, checkpoints: CheckpointStore) -> None:
    """Put a copy in the place of the checkpoint.

    Raises:
        StorageError, OSError: a part cannot be read, or written; what was there is as it was.
    """
    await asyncio.to_thread(checkpoints.begin_restore)
    offset = 0
    for part in copy.parts:
        data = await storage.read(part.name, offset=0, size=part.size)
        await asyncio.to_thread(checkpoints.restore_part, data, offset=offset)
        offset += len(data)
    await asyncio.to_thread(checkpoints.finish_restore)
