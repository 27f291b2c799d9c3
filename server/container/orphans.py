"""Search for orphans: chunks that no segment refers to.

A crash between publishing a chunk and saving the checkpoint that names it leaves them. They are deleted after a grace.
"""

import asyncio
import logging

from millrace.server.container.checkpoint.reader import SegmentArchive
from millrace.server.container.state.garbage import DeleteAfter, GarbageQueue
from millrace.server.errors import ServerError
from millrace.server.host.clock import Clock
from millrace.server.tier2 import ChunkStorage, parse_chunk_name

logger = logging.getLogger(__name__)

ORPHANS_AT_ONCE_COUNT = 1000
SEARCH_RETRY_S = 10.0


async def collect_orphans(
    *,
    storage: ChunkStorage,
    segments: SegmentArchive,
    container_epoch: int,
    grace_s: float,
    keeps_orphans: bool,
    garbage: GarbageQueue,
    clock: Clock,
) -> None:
    """Queue for deletion, after the grace, the chunks of earlier epochs that no segment refers to. Safe to cancel.

    Args:
        storage: where the chunks are.
        segments: the segments of the checkpoint.
        container_epoch: of this start: only chunks of earlier epochs can be orphans.
        grace_s: how long after the start to search.
        keeps_orphans: report them only.
        garbage: takes the orphans, to be deleted once a copy of a checkpoint that does not refer to them is published.
        clock: for the waits.
    """
    await clock.sleep(grace_s)
    while (orphans := await _find_orphans(storage, segments, container_epoch=container_epoch)) is None:
        await clock.sleep(SEARCH_RETRY_S)
    if not orphans:
        return
    if keeps_orphans:
        # They may hold what the checkpoint or the log has lost.
        logger.warning("orphan chunks kept for salvage count=%d", len(orphans))
        return
    garbage.add(orphans, delete_after=DeleteAfter.COPY)
    logger.info("orphan chunks to be deleted count=%d", len(orphans))


async def _find_orphans(storage: ChunkStorage, segments: SegmentArchive, *, container_epoch: int) -> list[str] | None:
    """Return the orphans; None if tier 2 or the checkpoint cannot be read now."""
    orphans = []
    try:
        chunks = [chunk.name for chunk in await storage.list("segments/")]
        for start in range(0, len(chunks), ORPHANS_AT_ONCE_COUNT):
            names = chunks[start : start + ORPHANS_AT_ONCE_COUNT]
            orphans += await asyncio.to_thread(_orphans_among, names, segments, container_epoch=container_epoch)
    except (ServerError, OSError) as error:
        logger.warning("search for orphans failed, retry_in_s=%.0f error=%s", SEARCH_RETRY_S, error)
        return None
    return orphans


def _orphans_among(names: list[str], segments: SegmentArchive, *, container_epoch: int) -> list[str]:
    """Return the chunks that are older than this start and not known since then, blocking.

    What segments know of earlier epochs is in the checkpoint, and new chunks are published under this epoch.
    """
    return [
        name
        for name in names
        if (chunk := parse_chunk_name(name)) is not None
        and chunk.container_epoch < container_epoch
        and not segments.has_chunk(segment_id=chunk.segment_id, start_offset=chunk.start_offset, name=name)
    ]
