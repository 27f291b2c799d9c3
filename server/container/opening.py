"""Starting a container from what is on disk, and stopping it.

    1  the checkpoint is loaded; a damaged one is set aside, and its newest copy in tier 2 takes its place
    2  the log is read from where the checkpoint says: records behind it are applied, unflushed bytes held again
    3  the log is made ready to go on, which makes durable all that step 2 saw
    4  a checkpoint is saved under the next container epoch, and chunks published under it from then on
    5  requests are taken

What the log has lost to damage becomes damaged ranges of its segments, if they can be named, and is logged anyway.
Chunks that no segment knows were left by a crash between publishing and checkpointing. They are deleted after a grace.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millrace.server.cache import PageCache
from millrace.server.errors import CheckpointDamagedError, LogCorruptError, ServerError
from millrace.server.host.clock import Clock
from millrace.server.host.files import FileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.tier2 import ChunkStorage, parse_chunk_name
from millrace.server.wal import KIND_APPENDS, Damage, LogOwner, RecoveredBatch, RecoveredRun, Wal, WalOptions
from millrace.wire.framing import decode

from .appends import payload_size
from .checkpoint import Checkpoint, CheckpointStore, take_rows
from .container import SegmentContainer
from .flusher import CHECKPOINT_PREFIX, Flusher
from .history import History
from .options import ContainerOptions
from .segment import DamagedRange, Segment
from .state import ContainerState
from .tail import Extent

logger = logging.getLogger(__name__)

CHECKPOINT_NAME = "checkpoint.db"
LOG_FOLDER = "wal"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySummary:
    """What starting found, for the log and the console."""

    checkpoint_sequence: int
    last_sequence: int
    ending: str
    torn_bytes: int
    damages: int
    tail_bytes: int
    duration_s: float


class OpenContainer:
    """A container that runs, with everything that belongs to it. `close` ends it."""

    def __init__(
        self,
        *,
        container: SegmentContainer,
        history: History,
        wal: Wal,
        flusher: Flusher,
        checkpoints: CheckpointStore,
        summary: RecoverySummary,
        orphans: list[str],
        storage: ChunkStorage,
        options: ContainerOptions,
        clock: Clock,
    ) -> None:
        self.container = container
        self.history = history
        self.wal = wal
        self.flusher = flusher
        self.summary = summary
        self._checkpoints = checkpoints
        self._orphans = orphans
        self._storage = storage
        self._options = options
        self._clock = clock

    async def collect_orphans(self) -> None:
        """Delete, after the grace, the chunks that no segment knew when the container started."""
        if not self._orphans:
            return
        await self._clock.sleep(self._options.orphan_grace_s)
        for name in self._orphans:
            await self._storage.delete(name)
        logger.info("orphan chunks deleted count=%d", len(self._orphans))
        self._orphans = []

    async def close(self, *, flush: bool = True) -> None:
        """End: what is queued becomes durable; with `flush`, the next start has nothing to replay.

        The flusher's task must have ended. A failure to flush is logged and costs only time at the next start.
        """
        self.container.stop()
        await self.wal.close()
        if flush and not self.container.has_failed:
            try:
                await self.flusher.flush(everything=True)
                await self.flusher.checkpoint()
            except ServerError as error:
                logger.warning("flush at shutdown failed error=%s", error)
        await asyncio.to_thread(self._checkpoints.close)


async def open_container(
    *,
    folder: Path,
    files: FileSystem,
    storage: ChunkStorage,
    cache: PageCache,
    container_options: ContainerOptions,
    wal_options: WalOptions,
    clock: Clock,
    metrics: Metrics,
    server_id: uuid.UUID,
    on_failure: Callable[[ServerError], None],
) -> OpenContainer:
    """Recover the container in `folder` and start it.

    Raises:
        ConfigurationError: the folder belongs to somebody else or to a newer version.
        StorageError: it cannot be recovered; nothing was changed that would make it worse.
    """
    started_s = clock.monotonic_s()
    files.make_directories(folder)
    checkpoints = CheckpointStore(folder / CHECKPOINT_NAME)
    checkpoint = await _load_checkpoint(checkpoints, storage)
    state = checkpoint.state if checkpoint else ContainerState()
    history = History(storage=storage, cache=cache)
    container = SegmentContainer(state=state, history=history, options=container_options, clock=clock)
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
    await asyncio.to_thread(_replay, state, wal, checkpoint)
    await wal.start()
    report = wal.report
    sequence = max(wal.durable_sequence, checkpoint.sequence if checkpoint else 0)
    chunks = await storage.list("segments/")
    epoch = _next_epoch(checkpoint, [chunk.name for chunk in chunks])
    await _save_first_checkpoint(checkpoints, state, sequence=sequence, epoch=epoch)
    known = {chunk.name for segment in state.segments.values() for chunk in segment.chunks}
    flusher = Flusher(
        state=state,
        sequence=lambda: container.sequence,
        wal=wal,
        storage=storage,
        history=history,
        checkpoints=checkpoints,
        container_epoch=epoch,
        options=container_options,
        clock=clock,
        read=container.read,
        on_relief=container.relieve,
    )
    container.start(wal, sequence=sequence, on_progress=flusher.poke, on_failure=on_failure)
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
        history=history,
        wal=wal,
        flusher=flusher,
        checkpoints=checkpoints,
        summary=summary,
        orphans=[chunk.name for chunk in chunks if chunk.name not in known],
        storage=storage,
        options=container_options,
        clock=clock,
    )


async def _load_checkpoint(checkpoints: CheckpointStore, storage: ChunkStorage) -> Checkpoint | None:
    """Return the checkpoint, from its newest good copy in tier 2 if it is damaged or gone."""
    try:
        checkpoint = await asyncio.to_thread(checkpoints.load)
        if checkpoint is not None:
            return checkpoint
    except CheckpointDamagedError as error:
        aside = await asyncio.to_thread(checkpoints.set_aside)
        logger.error("checkpoint damaged set_aside=%s error=%s", aside, error)
    for copy in reversed(await storage.list(CHECKPOINT_PREFIX)):
        data = await storage.read(copy.name, offset=0, size=copy.size)
        try:
            await asyncio.to_thread(checkpoints.restore, data)
            checkpoint = await asyncio.to_thread(checkpoints.load)
        except CheckpointDamagedError as error:
            logger.error("copy of checkpoint damaged name=%s error=%s", copy.name, error)
            continue
        logger.warning("checkpoint restored from tier 2 name=%s", copy.name)
        return checkpoint
    return None


def _replay(state: ContainerState, wal: Wal, checkpoint: Checkpoint | None) -> None:
    """Apply what the log holds behind the checkpoint, and hold again what is not in tier 2. Blocks."""
    applied = checkpoint.sequence if checkpoint else 0
    for item in wal.recover(checkpoint.replay_from if checkpoint else 0):
        if isinstance(item, Damage):
            logger.error("log damaged %s", item)
            for segment_id, offset, size in item.runs:
                segment = state.segments.get(segment_id)
                if segment is not None and offset >= segment.flushed_offset and size:
                    segment.damages.append(DamagedRange(offset, offset + size, f"{item.path.name} at {item.offset}"))
                    segment.length = max(segment.length, offset + size)
                    state.changes.segments.add(segment_id)
            continue
        state.begin_batch(item.sequence, item.wall_time_us)
        for run in item.runs:
            if run.kind == KIND_APPENDS:
                _replay_run(state, run, item, is_new=item.sequence > applied)
            elif item.sequence > applied:
                state.apply(decode(run.frames)[1])
    if checkpoint is None and not state.segments and wal.report.last_sequence and wal.report.first_sequence > 1:
        raise LogCorruptError(
            f"there is no checkpoint, and the log starts at sequence {wal.report.first_sequence} only; "
            "put a copy of checkpoint.db back, or salvage the folder"
        )
    for segment in state.unflushed.values():
        _number_events(segment)
    state.admit_as_durable()


def _replay_run(state: ContainerState, run: RecoveredRun, batch: RecoveredBatch, *, is_new: bool) -> None:
    segment = state.segments.get(run.segment_id)
    if segment is None:
        if not is_new or run.segment_id < state.next_id:
            return  # deleted meanwhile
        segment = state.orphan(run.segment_id)
    size = payload_size(len(run.frames), run.frame_count)
    if is_new:
        state.apply_run(
            segment,
            offset=run.offset,
            size=size,
            event_count=run.event_count,
            writer_number=run.writer_number,
            last_event_number=run.last_event_number,
        )
    if run.offset + size > max(segment.flushed_offset, segment.start_offset):
        state.hold(
            segment,
            Extent(
                offset=run.offset,
                size=size,
                frames=bytes(run.frames),
                frame_count=run.frame_count,
                frame_size=run.frame_size,
                event_count=run.event_count,
                sequence=batch.sequence,
                end_events=0,
                wall_time_us=batch.wall_time_us,
            ),
        )


def _number_events(segment: Segment) -> None:
    """Count the events of the tail backwards from the end, and index its borders.

    Only the total is stored: what lies before the tail follows from it.
    """
    end_events = segment.event_count
    for extent in reversed(segment.tail.extents):
        extent.end_events = end_events
        end_events -= extent.event_count
    for extent in segment.tail.extents:
        segment.index.add(extent.offset, events=extent.start_events, wall_time_us=extent.wall_time_us)


def _next_epoch(checkpoint: Checkpoint | None, chunk_names: list[str]) -> int:
    """Return an epoch above all that ever published a chunk."""
    epochs = [chunk.container_epoch for chunk in map(parse_chunk_name, chunk_names) if chunk is not None]
    return max([checkpoint.container_epoch if checkpoint else 0, *epochs]) + 1


async def _save_first_checkpoint(
    checkpoints: CheckpointStore, state: ContainerState, *, sequence: int, epoch: int
) -> None:
    replay_from = min((segment.tail.first.sequence for segment in state.unflushed.values()), default=sequence + 1)
    rows = take_rows(state, state.take_changes())
    await asyncio.to_thread(
        checkpoints.save, rows, sequence=sequence, replay_from=replay_from, container_epoch=epoch
    )
