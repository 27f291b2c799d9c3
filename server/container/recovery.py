"""Recovering the state of a container: the checkpoint, then what the log holds after it.

Damaged batches of the log become damaged ranges of their segments, if these can be named, and are logged in any case.
Every other known loss is reported as a `LogLoss` (`log_loss`).
"""

import asyncio
import logging
from dataclasses import dataclass, replace

from millrace.server.container.checkpoint.backup import (
    CHECKPOINT_PREFIX,
    CheckpointCopy,
    restore_copy,
    version_of_copy,
    whole_copies,
)
from millrace.server.container.checkpoint.checkpoint import Checkpoint, CheckpointVersion
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.state.apply import apply_recovered
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import Segment
from millrace.server.errors import CheckpointDamagedError, ChunkCorruptError, LogCorruptError, StorageError
from millrace.server.ownership import CopyRecord, RemoteLog
from millrace.server.wal import Damage, Log, RecoveredBatch
from millrace.wire.errors import WireError

from .environment import ContainerEnvironment
from .idle_budget import IDLE_BYTES_MAX
from .ids import container_of, first_id, scope_of
from .log_loss import LogLoss, LossFinder
from .memtable import Extent

logger = logging.getLogger(__name__)


def state_of(
    checkpoints: CheckpointStore,
    checkpoint: Checkpoint | None,
    *,
    container: int = 0,
    idle_bytes_max: int = IDLE_BYTES_MAX,
    is_shared: bool = False,
) -> ContainerState:
    """Return the state that a loaded checkpoint holds, or an empty one that will be saved there. Blocks.

    Raises:
        StorageError: it is the checkpoint of another container.
    """
    checkpoint = checkpoint or checkpoints.nothing(next_id=first_id(container))
    stored = checkpoint.stored
    if container_of(stored.scalars.next_id) != container:
        raise StorageError(
            f"belongs to container {container_of(stored.scalars.next_id)}, not to container {container}",
            subject=str(checkpoints.path),
        )
    state = ContainerState(stored, idle_bytes_max=idle_bytes_max, is_shared=is_shared)
    state.sequence = checkpoint.sequence
    for link in checkpoints.segments.links():
        with state.segments.pin([link.source_id, link.target_id]):
            state.link(link)
    checkpoints.restore_state(state)
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryResult:
    """The result of a recovery.

    Attributes:
        state: as of the end of the log.
        checkpoint: the one of nothing if there is none.
        loss: what the log has lost, None if nothing is known to be missing.
    """

    state: ContainerState
    checkpoint: Checkpoint
    loss: LogLoss | None


async def recover(environment: ContainerEnvironment, log: Log, *, was_damaged: bool) -> RecoveryResult:
    """Load the checkpoint, or its newest good copy, and apply what the log holds after it.

    Args:
        log: the log of the container, neither recovered nor started.
        was_damaged: a checkpoint was there and has been set aside.

    Raises:
        CheckpointDamagedError: it is to be set aside, and all of this repeated.
        LogCorruptError: the state cannot be recovered from the rest.
        StorageError: the checkpoint is that of another container, or of a later start.
    """
    checkpoints = environment.checkpoints
    found = await _load_checkpoint(environment)
    checkpoint = found or checkpoints.nothing(next_id=first_id(environment.container))
    if checkpoint.container_epoch >= environment.epoch:
        raise StorageError(
            f"was saved in epoch {checkpoint.container_epoch}, but this start has only epoch {environment.epoch}",
            subject=str(checkpoints.path),
        )
    state = await asyncio.to_thread(
        state_of,
        checkpoints,
        checkpoint,
        container=environment.container,
        idle_bytes_max=environment.container_options.idle_bytes_max,
        is_shared=environment.ownership.is_shared,
    )
    remote = environment.ownership.log
    finder = LossFinder(
        checkpoint_sequence=checkpoint.sequence,
        checkpoint_time_us=checkpoint.stored.scalars.wall_time_us,
        accepted=checkpoint.stored.scalars.accepted,
        has_log=checkpoint.stored.scalars.log_capacity_bytes > 0,
        store=environment.ownership.store,
    )
    if remote is not None and (missing := _missing_copies(environment, found, remote)):
        finder.miss_checkpoint(missing)
    await asyncio.to_thread(_replay, state, log, checkpoints, finder, replay_from=checkpoint.replay_from)
    loss = finder.loss(log.report, capacity_bytes=max(log.capacity_bytes, checkpoint.stored.scalars.log_capacity_bytes))
    if remote is not None:
        pass  # whatever is missing there is a loss: any machine may serve the rest
    elif found is None:
        _refuse_lost_log(log, loss)
        _refuse_lost_checkpoint(log, has_chunks=bool(await environment.storage.list("segments/")))
    elif was_damaged or checkpoint.is_restored or checkpoint.newer_copy:
        _refuse_gap_after_copy(checkpoint, log)
    return RecoveryResult(state=state, checkpoint=checkpoint, loss=loss)


async def _load_checkpoint(environment: ContainerEnvironment) -> Checkpoint | None:
    """Return the newest good checkpoint, from its copies in tier 2 if the file is missing or older; None without any.

    The file may have been put back from a backup. A copy that is newer was made after it; then tier 2 may have lost
    chunks, and the log batches, that the file needs.
    """
    checkpoints, storage, owner = environment.checkpoints, environment.storage, environment.owner
    counted = environment.ownership.copy
    checkpoint = await asyncio.to_thread(checkpoints.load)
    stored = checkpoint.version if checkpoint is not None else CheckpointVersion(0, 0, 0)
    newer_copy = ""
    copies = whole_copies(await storage.list(CHECKPOINT_PREFIX))
    if counted is not None:
        copies, missing = usable_copies(
            copies, counted, environment.ownership.copy_before, is_loss_known=environment.ownership.log is not None
        )
        for each in missing:
            logger.error("checkpoint copy missing name=%s", each.name)
            environment.ownership.copy_unusable(each.name)
            if (each.sequence, each.container_epoch) > stored[:2]:
                newer_copy = newer_copy or each.name
    for copy in reversed(copies):
        if copy.point < stored[:2]:
            break
        try:
            version = await version_of_copy(storage, copy, owner=owner)
            if version <= stored:
                break
            await restore_copy(storage, copy, checkpoints, owner=owner)
        except (CheckpointDamagedError, ChunkCorruptError) as error:
            logger.error("checkpoint copy damaged name=%s error=%s", copy.name, error)
            environment.ownership.copy_unusable(copy.name)
            if copy.point > stored[:2]:
                newer_copy = newer_copy or copy.name
            continue
        found = "older" if checkpoint is not None else "missing"
        # Where the log is in the store, each takeover begins so.
        level = logging.WARNING if environment.ownership.log is None else logging.INFO
        logger.log(level, "checkpoint restored from tier 2 name=%s was=%s version=%s", copy.name, found, version)
        restored = await asyncio.to_thread(checkpoints.load)
        assert restored is not None, "it was just put there"
        return replace(restored, restored_from=copy.name)
    return checkpoint and replace(checkpoint, newer_copy=newer_copy)


def usable_copies(
    copies: list[CheckpointCopy], counted: CopyRecord, before: CopyRecord | None, *, is_loss_known: bool
) -> tuple[list[CheckpointCopy], list[CopyRecord]]:
    """Return the whole copies that a start may use, the oldest first, and those that count and are not whole.

    Those that count are used alone, if one is whole: others were made by servers that were superseded, or were not
    recorded, and chunks that they refer to may be deleted. Without such a record, older copies are all that there is.

    Args:
        is_loss_known: whether a start from any other copy is known to have lost something: it stores nothing then.
    """
    recorded = [each for each in (before, counted) if each is not None]
    names = {copy.name for copy in copies}
    missing = [each for each in recorded if each.name not in names]
    if before is not None and len(missing) < len(recorded):
        return [copy for copy in copies if copy.name in {each.name for each in recorded}], missing
    if is_loss_known and len(missing) == len(recorded):
        return copies, missing
    # Later ones are of a superseded server that has not noticed, or do not count yet.
    return [copy for copy in copies if copy.name <= counted.name], missing


def _missing_copies(environment: ContainerEnvironment, checkpoint: Checkpoint | None, remote: RemoteLog) -> str:
    """Return why checkpoint and log are incomplete, with the names of the copies that are missing; "" if complete."""
    counted, before = environment.ownership.copy, environment.ownership.copy_before
    recorded = [each.name for each in (counted, before) if each is not None]
    names = " and ".join(f"{scope_of(environment.container)}{each}" for each in recorded) or "the checkpoint"
    if checkpoint is None:
        if remote.from_sequence == 1:
            return ""
        return f"{names}: missing or damaged, and the log begins with batch {remote.from_sequence}"
    if counted is not None and checkpoint.is_restored and checkpoint.restored_from not in recorded:
        return f"{names}: missing or damaged; restored from {checkpoint.restored_from}, which was never current"
    return ""


def _replay(
    state: ContainerState, wal: Log, checkpoints: CheckpointStore, finder: LossFinder, *, replay_from: int
) -> None:
    """Apply the log after the checkpoint, and hold in memory the bytes that are not in tier 2. Blocks."""
    # Those that the log has lost the bytes of are to be found here at the end.
    unflushed = checkpoints.segments.unflushed()
    with state.segments.pin(unflushed):
        is_numbered = False
        for item in wal.recover(replay_from, accepted=state.scalars.accepted):
            finder.read(item)
            if isinstance(item, Damage):
                logger.error("log damaged damage=%s", item)
            elif not is_numbered and item.sequence > state.sequence:
                is_numbered = True
                _number_events(state)
            try:
                apply_recovered(state, item, before_hold=Extent.copy_frames)
            except WireError as error:
                raise _unreadable(item, error) from error
            for damage in state.quarantine.take_news():
                logger.error("log record contradicts the checkpoint damage=%s", damage)
        if not is_numbered:
            _number_events(state)
        # All that may have gaps is in memory: it was unflushed before, or has changed.
        for segment in state.segments.present():
            if segment.flushed_offset < segment.length:
                _mark_gaps(state, segment)
        state.admit_as_durable()


def _unreadable(item: RecoveredBatch | Damage, error: WireError) -> LogCorruptError:
    """Return the error of a start that meets a record of another version."""
    place = f"batch {item.sequence} in {item.place}" if isinstance(item, RecoveredBatch) else item.place
    return LogCorruptError(
        f"a record of {place} is not one that this version knows: {error}; start the version that wrote it"
    )


def _refuse_lost_log(wal: Log, loss: LogLoss | None) -> None:
    """Raise if there is neither a checkpoint nor a batch of a log that was there."""
    if loss is not None and not wal.report.batch_count:
        raise LogCorruptError(
            f"the checkpoint is missing, and all of the log is lost: {'; '.join(loss.reasons)}; restore its files"
        )


def _refuse_gap_after_copy(checkpoint: Checkpoint, wal: Log) -> None:
    """Raise if the log was recycled beyond what a restored copy needs: a newer copy is lost."""
    report = wal.report
    if report.last_sequence and report.first_sequence > checkpoint.replay_from:
        raise LogCorruptError(
            f"the newest whole copy of the checkpoint needs the log from sequence {checkpoint.replay_from}, but it "
            f"starts at {report.first_sequence}; restore a newer copy of the checkpoint"
        )


def _refuse_lost_checkpoint(wal: Log, *, has_chunks: bool) -> None:
    """Raise unless the log goes back to its beginning, so that no checkpoint is needed."""
    report = wal.report
    if report.last_sequence and report.first_sequence > 1:
        found = f"the log starts at sequence {report.first_sequence} only"
    elif not report.last_sequence and has_chunks:
        found = "the log is empty, though tier 2 is not"
    else:
        return
    raise LogCorruptError(f"the checkpoint is missing, and {found}; restore a copy of the checkpoint")


def _mark_gaps(state: ContainerState, segment: Segment) -> None:
    """Name as damaged what should be in the tail and is not: the log has lost what the checkpoint still knew."""
    position = max(segment.flushed_offset, segment.start_offset)
    for extent in segment.tail.extents:
        if extent.offset > position:
            state.add_damage(segment, position, extent.offset, "the log")
        position = max(position, extent.end)
    if position < segment.length:
        state.add_damage(segment, position, segment.length, "the log")


def _number_events(state: ContainerState) -> None:
    """Count the events of the tails backwards from the end, and index their borders.

    For what the checkpoint knew: only the total is stored, and the count before the tail follows from it. So this is
    done when all of that is held again, and nothing newer yet.
    """
    for segment in state.unflushed.values():
        end_events = segment.event_count
        for extent in reversed(segment.tail.extents):
            extent.end_events = end_events
            end_events -= extent.event_count
        for extent in segment.tail.extents:
            segment.index.add(extent.offset, events=extent.start_events, wall_time_us=extent.wall_time_us)
