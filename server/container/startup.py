"""Starting a container from what is on disk.

    1  the checkpoint is opened; a damaged one is set aside, and its newest copy in tier 2 takes its place
    2  the log is read from where the checkpoint says: newer records are applied, unflushed bytes held again
    3  the log is made ready to resume, which makes durable all that step 2 saw
    4  a checkpoint is saved under the next container epoch, and chunks published under it from then on
    5  requests are taken

A disk with no room for step 4 does not keep the container from starting, since reads, truncates and deletes are what an
operator needs then. What the checkpoint would have said is still in the log; the flusher saves it when there is room.

All of this takes time for what was in use, not for the idle segments, which stay where they are: in the checkpoint. Of
a large one only the sums are verified before requests are taken, and each row in the background.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from millrace.server.cache import PageCache
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.flush.flusher import Flusher
from millrace.server.errors import CheckpointDamagedError, ServerError
from millrace.server.host.clock import Clock
from millrace.server.host.files import FileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.tier2 import ChunkId, ChunkStorage, parse_chunk_name
from millrace.server.wal import LogOwner, Wal, WalOptions

from .catch_up_reader import CatchUpReader
from .container import SegmentContainer
from .options import ContainerOptions
from .recovery import (
    CHECKPOINT_NAME,
    LOG_FOLDER,
    load_checkpoint,
    next_epoch,
    refuse_gap_after_copy,
    replay,
    save_first_checkpoint,
    set_aside,
    state_of,
)
from .running import OpenContainer, RecoverySummary

logger = logging.getLogger(__name__)


async def open_container(
    *,
    folder: Path,
    files: FileSystem,
    storage: ChunkStorage,
    cache: PageCache,
    container_options: ContainerOptions,
    page_size_bytes: int,
    wal_options: WalOptions,
    clock: Clock,
    metrics: Metrics,
    server_id: uuid.UUID,
    on_failure: Callable[[ServerError], None],
    labels_of: Callable[[str], Iterable[str]] = lambda configuration: (),
) -> OpenContainer:
    """Recover the container in `folder` and start it.

    Args:
        labels_of: by which labels a stream of some configuration is to be found in the checkpoint.

    Raises:
        ConfigurationError: the folder belongs to somebody else or to a newer version.
        StorageError: it cannot be recovered; nothing was changed that would make it worse.
    """
    started_s = clock.monotonic_s()
    files.make_directories(folder)
    checkpoints = CheckpointStore(
        folder / CHECKPOINT_NAME, verified_at_once_count_max=container_options.verified_at_once_count_max
    )
    is_restored = False
    while True:
        checkpoint, was_restored = await load_checkpoint(checkpoints, storage)
        is_restored = is_restored or was_restored
        reader = CatchUpReader(storage=storage, cache=cache)
        try:
            state = await asyncio.to_thread(
                state_of, checkpoints, checkpoint, resident_count_max=container_options.resident_count_max
            )
        except CheckpointDamagedError as error:
            await set_aside(checkpoints, error)
            is_restored = True
            continue
        container = SegmentContainer(state=state, reader=reader, options=container_options, clock=clock)
        wal = Wal(
            files,
            folder / LOG_FOLDER,
            wal_options,
            clock=clock,
            on_durable=container.durable,
            on_failure=container.log_failed,
            owner=LogOwner(container_id=0, server_id=server_id),
            metrics=metrics,
        )
        try:
            # Whatever happened to the checkpoint, no epoch comes twice under which chunks were published.
            chunks: list[ChunkId] = []
            if checkpoint is None or is_restored:
                listed = await storage.list("segments/")
                chunks = [chunk for each in listed if (chunk := parse_chunk_name(each.name)) is not None]
            await asyncio.to_thread(replay, state, wal, checkpoints, checkpoint, has_chunks=bool(chunks))
            if is_restored and checkpoint is not None:
                refuse_gap_after_copy(checkpoint, wal)
            # The checkpoint may know of batches that the log has lost: their numbers are not given again.
            await wal.start(after_sequence=checkpoint.sequence if checkpoint else 0)
            report = wal.report
            sequence = wal.durable_sequence
            epoch = next_epoch(checkpoint, chunks)
            stored = await save_first_checkpoint(
                checkpoints, state, sequence=sequence, epoch=epoch, labels_of=labels_of
            )
            break
        except CheckpointDamagedError as error:
            # Found only now, in a row that was not verified when it was opened.
            await wal.close()
            await set_aside(checkpoints, error)
            is_restored = True
        except BaseException:
            # Another attempt will open the same files.
            await wal.close()
            # It would not know a restored copy for one, and what is published since then is to be looked for again.
            await asyncio.to_thread(checkpoints.discard if is_restored else checkpoints.close)
            raise
    flusher = Flusher(
        state=state,
        sequence=lambda: state.sequence,
        has_failed=lambda: container.has_failed,
        wal=wal,
        storage=storage,
        reader=reader,
        checkpoints=checkpoints,
        container_epoch=epoch,
        page_size_bytes=page_size_bytes,
        options=container_options,
        clock=clock,
        read=container.read,
        labels_of=labels_of,
        on_relief=container.relieve,
        stored=stored,
    )
    container.start(
        wal,
        sequence=sequence,
        run_size_bytes_max=wal_options.run_size_bytes_max,
        on_progress=flusher.poke,
        on_failure=on_failure,
    )
    loop = asyncio.get_running_loop()

    def tell_damage(error: CheckpointDamagedError) -> None:
        loop.call_soon_threadsafe(container.checkpoint_damaged, error)

    checkpoints.when_damaged(tell_damage)
    summary = RecoverySummary(
        checkpoint_sequence=checkpoint.sequence if checkpoint else 0,
        last_sequence=sequence,
        ending=report.ending.name,
        torn_bytes=report.torn_bytes,
        damages=len(report.damages),
        tail_bytes=state.tail_bytes,
        duration_s=clock.monotonic_s() - started_s,
    )
    logger.info(
        "container started segments=%d streams=%d checkpoint_sequence=%d last_sequence=%d ending=%s torn_bytes=%d "
        "damages=%d tail_bytes=%d epoch=%d duration_s=%.3f",
        len(state.segments), len(state.streams), summary.checkpoint_sequence, sequence, summary.ending,
        summary.torn_bytes, summary.damages, summary.tail_bytes, epoch, summary.duration_s,
    )  # fmt: skip
    return OpenContainer(
        container=container,
        wal=wal,
        flusher=flusher,
        checkpoints=checkpoints,
        storage=storage,
        summary=summary,
        container_epoch=epoch,
        is_verified=checkpoint is None or checkpoint.is_verified,
        keeps_orphans=is_restored or bool(report.damages),
        options=container_options,
        clock=clock,
    )
