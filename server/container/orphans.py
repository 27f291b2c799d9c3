"""Search for orphans: chunks that no segment refers to.

A crash between publishing a chunk and saving the checkpoint that names it leaves them. They are deleted after a grace,
but for those from before a loss that an operator has accepted: they may hold what was lost.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from millrace.server.container.checkpoint.segment_tables import SegmentArchive
from millrace.server.tier2 import ChunkStorage, parse_chunk_name
from millrace.server.wal import AcceptedLoss

from .ids import CONTAINER_EPOCHS_COUNT

ORPHANS_AT_ONCE_COUNT: Final = 1000


async def find_orphans(storage: ChunkStorage, segments: SegmentArchive, *, container_epoch: int) -> list[str]:
    """Return the chunks of epochs before `container_epoch` that no segment refers to. Safe to cancel.

    What segments know of earlier epochs is in the checkpoint, and new chunks are published under this epoch.

    Raises:
        StorageError, OSError: tier 2 or the checkpoint cannot be read now.
    """
    orphans = []
    chunks = [chunk.name for chunk in await storage.list("segments/")]
    for start in range(0, len(chunks), ORPHANS_AT_ONCE_COUNT):
        names = chunks[start : start + ORPHANS_AT_ONCE_COUNT]
        orphans += await asyncio.to_thread(_orphans_among, names, segments, container_epoch=container_epoch)
    return orphans


def orphans_of_loss(orphans: Iterable[str], accepted: AcceptedLoss, *, container_epoch: int) -> list[str]:
    """Return the orphans that were published before a loss was accepted, and can be what is missing; never fewer.

    Accepting has raised the epoch by `CONTAINER_EPOCHS_COUNT` above all of them, so they are that far back. What a
    later crash leaves is less far back when the next start finds it.

    Args:
        orphans: names of chunks.
        accepted: what is accepted, if anything.
        container_epoch: of this start.
    """
    if not accepted.sequence:
        return []
    last_epoch = container_epoch - CONTAINER_EPOCHS_COUNT
    return [name for name in orphans if (chunk := parse_chunk_name(name)) and chunk.container_epoch <= last_epoch]


def _orphans_among(names: list[str], segments: SegmentArchive, *, container_epoch: int) -> list[str]:
    """Return the orphans among some chunks, blocking."""
    return [
        name
        for name in names
        if (chunk := parse_chunk_name(name)) is not None
        and chunk.container_epoch < container_epoch
        and not segments.has_chunk(segment_id=chunk.segment_id, start_offset=chunk.start_offset, name=name)
    ]
