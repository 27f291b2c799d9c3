"""Recovering the state of a container: the checkpoint, then what the log holds after it.

What the log has lost to damage becomes damaged ranges of its segments, if they can be named, and is logged anyway.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX, restore_copy, whole_copies
from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.store import Checkpoint, CheckpointStore
from millrace.server.container.residency.entity_cache import RESIDENT_COUNT_MAX
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import DamagedRange, Segment
from millrace.server.errors import CheckpointDamagedError, LogCorruptError, NoSpaceError
from millrace.server.tier2 import ChunkId, ChunkStorage
from millrace.server.wal import KIND_APPENDS, Damage, RecoveredBatch, RecoveredRun, Wal
from millrace.wire.framing import decode

from .admission import last_append_offset, payload_size
from .memtable import Extent

logger = logging.getLogger(__name__)

CHECKPOINT_NAME = "checkpoint.db"
LOG_FOLDER = "wal"


def state_of(
    checkpoints: CheckpointStore, checkpoint: Checkpoint | None, *, resident_count_max: int = RESIDENT_COUNT_MAX
) -> ContainerState:
    """Return the state that a loaded checkpoint holds, or an empty one that will be saved there. Blocks."""
    stored = checkpoint.stored if checkpoint else checkpoints.nothing_stored
    state = ContainerState(stored, resident_count_max=resident_count_max)
    for link in checkpoints.segments.links():
        state.link(state.segments[link.source_id], link)
    return state


async def load_checkpoint(checkpoints: CheckpointStore, storage: ChunkStorage) -> tuple[Checkpoint | None, bool]:
    """Return the checkpoint, from its newest good copy in tier 2 if it is damaged or gone, and whether it was so."""
    is_damaged = False
    try:
        checkpoint = await asyncio.to_thread(checkpoints.load)
        if checkpoint is not None:
            return checkpoint, checkpoint.is_restored
    except CheckpointDamagedError as error:
        is_damaged = True
        await set_aside(checkpoints, error)
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


async def set_aside(checkpoints: CheckpointStore, error: CheckpointDamagedError) -> None:
    """Rename a damaged checkpoint, and log the error."""
    aside = await asyncio.to_thread(checkpoints.set_aside)
    logger.error("checkpoint damaged set_aside=%s error=%s", aside, error)


def replay(
    state: ContainerState, wal: Wal, checkpoints: CheckpointStore, checkpoint: Checkpoint | None, *, has_chunks: bool
) -> None:
    """Apply what the log holds after the checkpoint, and hold again what is not in tier 2. Blocks.

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


def refuse_gap_after_copy(checkpoint: Checkpoint, wal: Wal) -> None:
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


def next_epoch(checkpoint: Checkpoint | None, chunks: Iterable[ChunkId]) -> int:
    """Return an epoch above all that ever published a chunk."""
    epochs = [chunk.container_epoch for chunk in chunks]
    return max([checkpoint.container_epoch if checkpoint else 0, *epochs]) + 1


async def save_first_checkpoint(
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
