"""Starting a container from what is on disk, and stopping it.

    1  the checkpoint is loaded; a damaged one is set aside, and its newest copy in tier 2 takes its place
    2  the log is read from where the checkpoint says: records behind it are applied, unflushed bytes held again
    3  the log is made ready to go on, which makes durable all that step 2 saw
    4  a checkpoint is saved under the next container epoch, and chunks published under it from then on
    5  requests are taken

A disk with no room for step 4 does not keep the container from starting, since reads, truncates and deletes are what an
operator needs then. What the checkpoint would have said is still in the log; the flusher saves it when there is room.

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
from millrace.server.errors import CheckpointDamagedError, LogCorruptError, NoSpaceError, ServerError
from millrace.server.host.clock import Clock
from millrace.server.host.files import FileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.tier2 import ChunkStorage, parse_chunk_name
from millrace.server.wal import KIND_APPENDS, Damage, LogOwner, RecoveredBatch, RecoveredRun, Wal, WalOptions
from millrace.wire.framing import decode

from .appends import last_append_offset, payload_size
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
        self._options = options
        self._clock = clock

    async def collect_orphans(self) -> None:
        """Give up, after the grace, the chunks that no segment knew when the container started."""
        if not self._orphans:
            return
        await self._clock.sleep(self._options.orphan_grace_s)
        # The flusher deletes them once no copy of the checkpoint in use refers to them.
        self.flusher.give_up(self._orphans)
        logger.info("orphan chunks given up count=%d", len(self._orphans))
        self._orphans = []

    async def close(self, *, log_s: float, flush_s: float) -> None:
        """End: what is queued becomes durable; if flushing takes no longer than that, the next start replays nothing.

        The flusher's task must have ended. A failure to flush is logged and costs only time at the next start. A disk
        that does not answer within `log_s` is not waited for: what was queued is of unknown outcome then.
        """
        self.container.stop()
        try:
            await asyncio.wait_for(self.wal.close(), log_s)
        except TimeoutError:
            logger.error("the disk of the log does not answer, not waited for waited_s=%.1f", log_s)
            return
        if flush_s > 0 and not self.container.has_failed:
            try:
                async with asyncio.timeout(flush_s):
                    await self.flusher.flush()
                    await self.flusher.checkpoint()
            except (ServerError, OSError) as error:  # a TimeoutError is an OSError
                logger.warning("flush at shutdown failed error=%r", error)
        await asyncio.to_thread(self._checkpoints.close)


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
) -> OpenContainer:
    """Recover the container in `folder` and start it.

    Raises:
        ConfigurationError: the folder belongs to somebody else or to a newer version.
        StorageError: it cannot be recovered; nothing was changed that would make it worse.
    """
    started_s = clock.monotonic_s()
    files.make_directories(folder)
    checkpoints = CheckpointStore(folder / CHECKPOINT_NAME)
    checkpoint, is_restored = await _load_checkpoint(checkpoints, storage)
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
    try:
        chunks = await storage.list("segments/")
        await asyncio.to_thread(_replay, state, wal, checkpoint, has_chunks=bool(chunks))
        # The checkpoint may know of batches that the log has lost: their numbers are not given again.
        await wal.start(after_sequence=checkpoint.sequence if checkpoint else 0)
        report = wal.report
        sequence = wal.durable_sequence
        epoch = _next_epoch(checkpoint, [chunk.name for chunk in chunks])
        await _save_first_checkpoint(checkpoints, state, sequence=sequence, epoch=epoch)
    except BaseException:
        # Another attempt will open the same files.
        await wal.close()
        await asyncio.to_thread(checkpoints.close)
        raise
    known = {chunk.name for segment in state.segments.values() for chunk in segment.chunks}
    flusher = Flusher(
        state=state,
        sequence=lambda: container.sequence,
        wal=wal,
        storage=storage,
        history=history,
        checkpoints=checkpoints,
        container_epoch=epoch,
        page_size_bytes=page_size_bytes,
        options=container_options,
        clock=clock,
        read=container.read,
        on_relief=container.relieve,
    )
    container.start(
        wal,
        sequence=sequence,
        run_size_bytes_max=wal_options.run_size_bytes_max,
        on_progress=flusher.poke,
        on_failure=on_failure,
    )
    orphans = [chunk.name for chunk in chunks if chunk.name not in known]
    if orphans and (is_restored or report.damages):
        # They may hold what the checkpoint or the log has lost.
        logger.warning("orphan chunks kept for salvage count=%d", len(orphans))
        orphans = []
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
        orphans=orphans,
        options=container_options,
        clock=clock,
    )


async def _load_checkpoint(checkpoints: CheckpointStore, storage: ChunkStorage) -> tuple[Checkpoint | None, bool]:
    """Return the checkpoint, from its newest good copy in tier 2 if it is damaged or gone, and whether it was so."""
    is_damaged = False
    try:
        checkpoint = await asyncio.to_thread(checkpoints.load)
        if checkpoint is not None:
            return checkpoint, False
    except CheckpointDamagedError as error:
        is_damaged = True
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
        return checkpoint, True
    return None, is_damaged


def _replay(state: ContainerState, wal: Wal, checkpoint: Checkpoint | None, *, has_chunks: bool) -> None:
    """Apply what the log holds behind the checkpoint, and hold again what is not in tier 2. Blocks.

    Raises:
        LogCorruptError: the checkpoint is lost, and the log alone does not tell what there was.
    """
    applied = checkpoint.sequence if checkpoint else 0
    is_numbered = False
    for item in wal.recover(checkpoint.replay_from if checkpoint else 0):
        if isinstance(item, Damage):
            logger.error("log damaged %s", item)
            for segment_id, offset, size in item.runs:
                segment = state.segments.get(segment_id)
                if segment is not None and offset >= segment.flushed_offset and size:
                    _add_damage(state, segment, offset, offset + size, f"{item.path.name} at {item.offset}")
                    segment.length = max(segment.length, offset + size)
            continue
        if not is_numbered and item.sequence > applied:
            is_numbered = True
            _number_events(state)
        state.begin_batch(item.sequence, item.wall_time_us)
        for run in item.runs:
            if run.kind == KIND_APPENDS:
                _replay_run(state, run, item, is_new=item.sequence > applied)
            elif item.sequence > applied:
                state.apply(decode(run.frames)[1])
    if not is_numbered:
        _number_events(state)
    if checkpoint is None:
        _refuse_lost_checkpoint(wal, has_chunks=has_chunks)
    for segment in state.segments.values():
        if segment.flushed_offset < segment.length:
            _mark_gaps(state, segment)
    state.admit_as_durable()


def _refuse_lost_checkpoint(wal: Wal, *, has_chunks: bool) -> None:
    """Raise unless the log goes back to its very beginning, so that it says all that a checkpoint could."""
    report = wal.report
    if report.last_sequence and report.first_sequence > 1:
        found = f"the log starts at sequence {report.first_sequence} only"
    elif not report.last_sequence and has_chunks:
        found = "the log is empty, though tier 2 is not"
    else:
        return
    raise LogCorruptError(
        f"there is no checkpoint, and {found}; put a copy of {CHECKPOINT_NAME} back, or salvage the folder"
    )


def _add_damage(state: ContainerState, segment: Segment, start: int, end: int, source: str) -> None:
    """Refuse reads of [start, end) from now on, as far as they are not refused already."""
    for known in sorted(segment.damages, key=lambda damage: damage.start):
        if known.start <= start < known.end:
            start = known.end
        elif start < known.start < end:
            segment.damages.append(DamagedRange(start, known.start, source))
            start = known.end
    if start < end:
        segment.damages.append(DamagedRange(start, end, source))
    state.changes.segments.add(segment.segment_id)


def _mark_gaps(state: ContainerState, segment: Segment) -> None:
    """Name as damaged what should be in the tail and is not: the log has lost what the checkpoint still knew."""
    position = max(segment.flushed_offset, segment.start_offset)
    for extent in segment.tail.extents:
        if extent.offset > position:
            _add_damage(state, segment, position, extent.offset, "the log")
        position = max(position, extent.end)
    if position < segment.length:
        _add_damage(state, segment, position, segment.length, "the log")


def _replay_run(state: ContainerState, run: RecoveredRun, batch: RecoveredBatch, *, is_new: bool) -> None:
    segment = state.segments.get(run.segment_id)
    if segment is None:
        if not is_new:
            return  # deleted before the checkpoint
        # Nothing is appended behind the record of a delete: it is the record of the creation that was lost.
        segment = state.orphan(run.segment_id)
    size = payload_size(len(run.frames), run.frame_count)
    if is_new:
        segment.index.add(run.offset, events=segment.event_count, wall_time_us=batch.wall_time_us)
        state.apply_run(
            segment,
            offset=run.offset,
            size=size,
            event_count=run.event_count,
            writer_number=run.writer_number,
            last_event_number=run.last_event_number,
            last_offset=last_append_offset(
                run.frames, offset=run.offset, frame_count=run.frame_count, frame_size=run.frame_size
            )
            if run.writer_number
            else -1,
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
                end_events=segment.event_count if is_new else 0,
                wall_time_us=batch.wall_time_us,
            ),
        )


def _number_events(state: ContainerState) -> None:
    """Count the events of the tails backwards from the end, and index their borders.

    For what the checkpoint knew: only the total is stored, and what lies before the tail follows from it. So this is
    done when all of that is held again, and nothing newer yet.
    """
    for segment in state.unflushed.values():
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
    changes = state.take_changes()
    rows = take_rows(state, changes)
    try:
        await asyncio.to_thread(
            checkpoints.save, rows, sequence=sequence, replay_from=replay_from, container_epoch=epoch
        )
    except NoSpaceError as error:
        # Should the next start not learn of this epoch from a chunk either, then nothing was published under it.
        logger.warning("no room for the first checkpoint, saved later error=%s", error)
        state.give_back(changes)
