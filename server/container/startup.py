"""Starting a container from what is on disk, and stopping it.

    1  the checkpoint is opened; a damaged one is set aside, and its newest copy in tier 2 takes its place
    2  the log is read from where the checkpoint says: records behind it are applied, unflushed bytes held again
    3  the log is made ready to go on, which makes durable all that step 2 saw
    4  a checkpoint is saved under the next container epoch, and chunks published under it from then on
    5  requests are taken

A disk with no room for step 4 does not keep the container from starting, since reads, truncates and deletes are what an
operator needs then. What the checkpoint would have said is still in the log; the flusher saves it when there is room.

What the log has lost to damage becomes damaged ranges of its segments, if they can be named, and is logged anyway.
Chunks that no segment knows were left by a crash between publishing and checkpointing. They are deleted after a grace.

All of this takes time for what was in use, not for the idle segments, which stay where they are: in the checkpoint. Of
a large one only the sums are verified before requests are taken, and each row in the background.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.server.cache import PageCache
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX, restore_copy, whole_copies
from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.store import Checkpoint, CheckpointStore
from millrace.server.container.flush.flusher import Flusher
from millrace.server.container.residency.entity_cache import RESIDENT_COUNT_MAX
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import DamagedRange, Segment
from millrace.server.errors import (
    CheckpointDamagedError,
    LogCorruptError,
    NoSpaceError,
    ServerError,
    ShuttingDownError,
    StorageError,
)
from millrace.server.host.clock import Clock
from millrace.server.host.files import FileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.tier2 import ChunkId, ChunkStorage, parse_chunk_name
from millrace.server.wal import KIND_APPENDS, Damage, LogOwner, RecoveredBatch, RecoveredRun, Wal, WalOptions
from millrace.wire.framing import decode

from .admission import last_append_offset, payload_size
from .catch_up_reader import History
from .container import SegmentContainer
from .memtable import Extent
from .options import ContainerOptions

logger = logging.getLogger(__name__)

CHECKPOINT_NAME = "checkpoint.db"
LOG_FOLDER = "wal"
VERIFICATION_PAUSE_S = 0.005
ORPHANS_AT_ONCE_COUNT = 1000
BACKGROUND_RETRY_S = 10.0


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
        storage: ChunkStorage,
        summary: RecoverySummary,
        container_epoch: int,
        is_verified: bool,
        keeps_orphans: bool,
        options: ContainerOptions,
        clock: Clock,
    ) -> None:
        self.container = container
        self.history = history
        self.wal = wal
        self.flusher = flusher
        self.checkpoints = checkpoints
        self.summary = summary
        self._storage = storage
        self._container_epoch = container_epoch
        self._is_verified = is_verified
        self._keeps_orphans = keeps_orphans
        self._options = options
        self._clock = clock
        self._is_closing = False

    async def verify_checkpoint(self) -> None:
        """Verify every row of a checkpoint that was too large for that before the start."""
        if self._is_verified:
            return
        while not self._is_closing:
            try:
                await asyncio.to_thread(self.checkpoints.verify, self._pause_verification)
                logger.info("checkpoint verified")
                return
            except ShuttingDownError:
                return
            except CheckpointDamagedError:
                return  # the container was told, and is about to be opened anew
            except StorageError as error:
                logger.warning("checkpoint not verified, retry_in_s=%.0f error=%s", BACKGROUND_RETRY_S, error)
                await self._clock.sleep(BACKGROUND_RETRY_S)

    def _pause_verification(self) -> None:
        if self._is_closing:
            raise ShuttingDownError("the container is being closed")
        time.sleep(VERIFICATION_PAUSE_S)

    async def collect_orphans(self) -> None:
        """Give up, after the grace, the chunks of earlier epochs that no segment knows."""
        await self._clock.sleep(self._options.orphan_grace_s)
        while (orphans := await self._find_orphans()) is None:
            await self._clock.sleep(BACKGROUND_RETRY_S)
        if not orphans:
            return
        if self._keeps_orphans:
            # They may hold what the checkpoint or the log has lost.
            logger.warning("orphan chunks kept for salvage count=%d", len(orphans))
            return
        # The flusher deletes them once no copy of the checkpoint in use refers to them.
        self.flusher.give_up(orphans)
        logger.info("orphan chunks given up count=%d", len(orphans))

    async def _find_orphans(self) -> list[str] | None:
        """Return the orphans; None if tier 2 or the checkpoint cannot be read now."""
        orphans = []
        try:
            chunks = [chunk.name for chunk in await self._storage.list("segments/")]
            for start in range(0, len(chunks), ORPHANS_AT_ONCE_COUNT):
                orphans += await asyncio.to_thread(self._orphans_among, chunks[start : start + ORPHANS_AT_ONCE_COUNT])
        except (ServerError, OSError) as error:
            logger.warning("orphans not looked for, retry_in_s=%.0f error=%s", BACKGROUND_RETRY_S, error)
            return None
        return orphans

    def _orphans_among(self, names: list[str]) -> list[str]:
        """Return the chunks that are older than this start and not known since then, blocking.

        What segments know of earlier epochs is in the checkpoint, and new chunks are published under this epoch.
        """
        return [
            name
            for name in names
            if (chunk := parse_chunk_name(name)) is not None
            and chunk.container_epoch < self._container_epoch
            and not self.checkpoints.segments.has_chunk(
                segment_id=chunk.segment_id, start_offset=chunk.start_offset, name=name
            )
        ]

    async def close(self, *, log_s: float, flush_s: float) -> None:
        """End: what is queued becomes durable; if flushing takes no longer than that, the next start replays nothing.

        The flusher's task must have ended. A failure to flush is logged and costs only time at the next start. A disk
        that does not answer within `log_s` is not waited for: what was queued is of unknown outcome then.
        """
        self.container.stop()
        self._is_closing = True
        try:
            await asyncio.wait_for(self.wal.close(), log_s)
        except TimeoutError:
            logger.error("the disk of the log does not answer, not waited for waited_s=%.1f", log_s)
            return
        if self.container.checkpoint_damage is not None:
            aside = await asyncio.to_thread(self.checkpoints.set_aside)
            logger.error("damaged checkpoint set aside path=%s", aside)
            return
        if flush_s > 0 and not self.container.has_failed:
            try:
                async with asyncio.timeout(flush_s):
                    await self.flusher.flush()
                    await self.flusher.checkpoint()
            except (ServerError, OSError) as error:  # a TimeoutError is an OSError
                logger.warning("flush at shutdown failed error=%r", error)
        await asyncio.to_thread(self.checkpoints.close)


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
        checkpoint, was_restored = await _load_checkpoint(checkpoints, storage)
        is_restored = is_restored or was_restored
        history = History(storage=storage, cache=cache)
        try:
            state = await asyncio.to_thread(
                state_of, checkpoints, checkpoint, resident_count_max=container_options.resident_count_max
            )
        except CheckpointDamagedError as error:
            await _set_aside(checkpoints, error)
            is_restored = True
            continue
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
            # Whatever happened to the checkpoint, no epoch comes twice under which chunks were published.
            chunks: list[ChunkId] = []
            if checkpoint is None or is_restored:
                listed = await storage.list("segments/")
                chunks = [chunk for each in listed if (chunk := parse_chunk_name(each.name)) is not None]
            await asyncio.to_thread(_replay, state, wal, checkpoints, checkpoint, has_chunks=bool(chunks))
            if is_restored and checkpoint is not None:
                _refuse_gap_behind_copy(checkpoint, wal)
            # The checkpoint may know of batches that the log has lost: their numbers are not given again.
            await wal.start(after_sequence=checkpoint.sequence if checkpoint else 0)
            report = wal.report
            sequence = wal.durable_sequence
            epoch = _next_epoch(checkpoint, chunks)
            stored = await _save_first_checkpoint(
                checkpoints, state, sequence=sequence, epoch=epoch, labels_of=labels_of
            )
            break
        except CheckpointDamagedError as error:
            # Found only now, in a row that was not verified when it was opened.
            await wal.close()
            await _set_aside(checkpoints, error)
            is_restored = True
        except BaseException:
            # Another attempt will open the same files.
            await wal.close()
            # It would not know a restored copy for one, and what is published since then is to be looked for again.
            await asyncio.to_thread(checkpoints.discard if is_restored else checkpoints.close)
            raise
    flusher = Flusher(
        state=state,
        sequence=lambda: container.sequence,
        has_failed=lambda: container.has_failed,
        wal=wal,
        storage=storage,
        history=history,
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
        history=history,
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


def state_of(
    checkpoints: CheckpointStore, checkpoint: Checkpoint | None, *, resident_count_max: int = RESIDENT_COUNT_MAX
) -> ContainerState:
    """Return the state that a loaded checkpoint holds, or an empty one that will be saved there. Blocks."""
    stored = checkpoint.stored if checkpoint else checkpoints.nothing_stored
    state = ContainerState(stored, resident_count_max=resident_count_max)
    for link in checkpoints.segments.links():
        state.link(state.segments[link.source_id], link)
    return state


async def _load_checkpoint(checkpoints: CheckpointStore, storage: ChunkStorage) -> tuple[Checkpoint | None, bool]:
    """Return the checkpoint, from its newest good copy in tier 2 if it is damaged or gone, and whether it was so."""
    is_damaged = False
    try:
        checkpoint = await asyncio.to_thread(checkpoints.load)
        if checkpoint is not None:
            return checkpoint, checkpoint.is_restored
    except CheckpointDamagedError as error:
        is_damaged = True
        await _set_aside(checkpoints, error)
    for copy in reversed(whole_copies(await storage.list(CHECKPOINT_PREFIX))):
        try:
            await restore_copy(storage, copy, checkpoints)
            checkpoint = await asyncio.to_thread(_load_whole, checkpoints)
        except CheckpointDamagedError as error:
            logger.error("copy of checkpoint damaged name=%s error=%s", copy.name, error)
            continue
        logger.warning("checkpoint restored from tier 2 name=%s", copy.name)
        return checkpoint, True
    # What is left of the last copy is in tier 2, too.
    await asyncio.to_thread(checkpoints.discard)
    return await asyncio.to_thread(checkpoints.load), is_damaged


def _load_whole(checkpoints: CheckpointStore) -> Checkpoint | None:
    """Load a checkpoint of which every row was verified, however large it is: another one may be better."""
    checkpoint = checkpoints.load()
    if checkpoint is None or checkpoint.is_verified:
        return checkpoint
    checkpoints.verify()
    return replace(checkpoint, is_verified=True)


async def _set_aside(checkpoints: CheckpointStore, error: CheckpointDamagedError) -> None:
    aside = await asyncio.to_thread(checkpoints.set_aside)
    logger.error("checkpoint damaged set_aside=%s error=%s", aside, error)


def _replay(
    state: ContainerState, wal: Wal, checkpoints: CheckpointStore, checkpoint: Checkpoint | None, *, has_chunks: bool
) -> None:
    """Apply what the log holds behind the checkpoint, and hold again what is not in tier 2. Blocks.

    Raises:
        LogCorruptError: the checkpoint is lost, and the log alone does not tell what there was.
    """
    # Those that the log has lost the bytes of are to be found here at the end.
    unflushed = [state.segments[segment_id] for segment_id in checkpoints.segments.unflushed()]
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
    for segment in {*unflushed, *state.segments.present()}:
        if segment.flushed_offset < segment.length and not segment.deleted:
            _mark_gaps(state, segment)
    state.admit_as_durable()


def _refuse_gap_behind_copy(checkpoint: Checkpoint, wal: Wal) -> None:
    """Raise if the log was recycled beyond what a restored copy needs: a newer copy is lost."""
    report = wal.report
    if report.last_sequence and report.first_sequence > checkpoint.replay_from:
        raise LogCorruptError(
            f"the newest whole copy of the checkpoint needs the log from sequence {checkpoint.replay_from}, but it "
            f"starts at {report.first_sequence}; put a newer copy of {CHECKPOINT_NAME} back, or salvage the folder"
        )


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
    state.segments.changed(segment)


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


def _next_epoch(checkpoint: Checkpoint | None, chunks: Iterable[ChunkId]) -> int:
    """Return an epoch above all that ever published a chunk."""
    epochs = [chunk.container_epoch for chunk in chunks]
    return max([checkpoint.container_epoch if checkpoint else 0, *epochs]) + 1


async def _save_first_checkpoint(
    checkpoints: CheckpointStore,
    state: ContainerState,
    *,
    sequence: int,
    epoch: int,
    labels_of: Callable[[str], Iterable[str]],
) -> tuple[int, int] | None:
    """Save a checkpoint under a new epoch.

    Returns:
        The sequence that it contains and from where the log is needed with it; None if there was no room for it.
    """
    replay_from = min((segment.tail.first.sequence for segment in state.unflushed.values()), default=sequence + 1)
    rows = take_rows(state, state.take_changes(), labels_of=labels_of)
    try:
        await asyncio.to_thread(
            checkpoints.save, rows, sequence=sequence, replay_from=replay_from, container_epoch=epoch
        )
    except NoSpaceError as error:
        # Nothing is published under this epoch until it is stored.
        logger.warning("no room for the first checkpoint, saved later error=%s", error)
        state.give_back()
        return None
    state.stored()
    return sequence, replay_from
