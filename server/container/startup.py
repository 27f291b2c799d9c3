"""Starting a container from what is on disk.

    1  load       the checkpoint is opened; its newest good copy in tier 2 replaces one that is missing, or older
    2  replay     newer records of the log are applied to it, and unflushed bytes are held again
    3  resume     the log is made ready for new batches, which makes durable all that step 2 saw
    4  save       a checkpoint is saved under the epoch of this start; chunks are published under it from then on
    5  serve      requests are taken

If step 2 finds that content of the log is missing, 3 and 4 are left out: the container answers reads only, and its
files stay as they are, until those that are missing are put back or their loss is accepted (see `log_loss`).

Any step may meet damage in the checkpoint: it is set aside then, and the steps are repeated with what is left, a few
times at most. Any other error ends the start; nothing was changed that would make the next one harder.

A disk that takes no checkpoint in step 4 does not keep the container from starting, since reads, truncates and deletes
are what an operator needs then. What the checkpoint would have said is still in the log; the flusher saves it later.

All of this takes time for what was in use, not for the idle segments, which stay where they are: in the checkpoint. Of
a large one only the sums are verified before requests are taken, and each row in the background.
"""

import asyncio
import logging
from typing import Final

from millrace.server.container.flush.checkpointer import Checkpointer
from millrace.server.container.flush.flusher import Flusher
from millrace.server.container.flush.uploader import Uploader
from millrace.server.container.state.container_state import ContainerState
from millrace.server.errors import CheckpointDamagedError, DiskUnavailableError, NoSpaceError, StorageError
from millrace.server.ownership import CopyRecord

from .catch_up_reader import CatchUpReader
from .container import SegmentContainer
from .environment import ContainerEnvironment
from .recovery import recover
from .running import OpenContainer, RecoverySummary

logger = logging.getLogger(__name__)

ATTEMPTS_COUNT_MAX: Final = 3
"""A start in which the checkpoint is damaged so often has met a disk that damages what is written to it."""


async def open_container(environment: ContainerEnvironment) -> OpenContainer:
    """Recover a container and start it.

    Raises:
        ConfigurationError: the folder belongs to another server or version.
        StorageError: it cannot be recovered; nothing was changed that would make it worse.
    """
    checkpoints = environment.checkpoints
    was_damaged = False
    for attempts_left in reversed(range(ATTEMPTS_COUNT_MAX)):
        try:
            return await _start(environment, was_damaged=was_damaged)
        except CheckpointDamagedError as error:
            aside = await asyncio.to_thread(checkpoints.set_aside)
            logger.error("checkpoint damaged set_aside=%s error=%s", aside, error)
            was_damaged = True
            if not attempts_left:
                raise
        except BaseException:
            await asyncio.to_thread(checkpoints.abandon)
            raise
    raise AssertionError("the last attempt returns or raises")


async def _start(environment: ContainerEnvironment, *, was_damaged: bool) -> OpenContainer:
    """Carry out the steps once. After an error the log is closed, and the checkpoint as it was."""
    clock, checkpoints, storage = environment.clock, environment.checkpoints, environment.storage
    started_s = clock.monotonic_s()
    log = environment.make_log()
    try:
        recovered = await recover(environment, log, was_damaged=was_damaged)
        state, checkpoint, loss = recovered.state, recovered.checkpoint, recovered.loss
        container = SegmentContainer(
            state=state,
            log=log,
            reader=CatchUpReader(storage=storage, cache=environment.cache),
            options=environment.container_options,
            clock=clock,
            ownership=environment.ownership,
            loss=loss,
        )
        checkpointer = Checkpointer(
            container,
            checkpoints=checkpoints,
            storage=storage,
            ownership=environment.ownership,
            owner=environment.owner,
        )
        if loss is None:
            await container.start()
            environment.ownership.log_began(log.report.epoch_ends, acknowledged=lambda: log.durable_sequence)
            await _save_first(checkpointer)
            await _copy_acceptance(checkpointer, environment.ownership.copy, state)
        else:
            logger.error("log content lost, container is read-only loss=%s", loss)
    except BaseException:
        # The next attempt will open the same files.
        await log.close()
        raise
    uploader = Uploader(
        container,
        storage=storage,
        container_epoch=environment.epoch,
        page_size_bytes=environment.page_size_bytes,
    )
    flusher = Flusher(container, storage=storage, uploader=uploader, checkpointer=checkpointer)
    container.on_progress, container.on_failure = flusher.poke, environment.on_failure
    call_in_loop = asyncio.get_running_loop().call_soon_threadsafe
    checkpoints.when_damaged(lambda error: call_in_loop(container.checkpoint_damaged, error))
    report = log.report
    summary = RecoverySummary(
        checkpoint_sequence=checkpoint.sequence,
        restored_from=checkpoint.restored_from,
        last_sequence=state.sequence,
        ending=report.ending.name,
        torn_bytes=report.torn_bytes,
        damages=len(report.damages),
        lost_bytes=0 if loss is None else loss.size_bytes,
        tail_bytes=state.tail_bytes,
        duration_s=clock.monotonic_s() - started_s,
    )
    logger.info(
        "container started segments=%d streams=%d checkpoint_sequence=%d last_sequence=%d ending=%s torn_bytes=%d "
        "damages=%d tail_bytes=%d epoch=%d duration_s=%.3f",
        len(state.segments), len(state.streams), summary.checkpoint_sequence, summary.last_sequence, summary.ending,
        summary.torn_bytes, summary.damages, summary.tail_bytes, environment.epoch, summary.duration_s,
    )  # fmt: skip
    return OpenContainer(
        environment,
        container=container,
        flusher=flusher,
        summary=summary,
        is_verified=checkpoint.is_verified,
        keeps_orphans=(was_damaged or checkpoint.is_restored or bool(checkpoint.newer_copy) or bool(report.damages)),
    )


async def _save_first(checkpointer: Checkpointer) -> None:
    """Save a checkpoint under the epoch of this start, later if the disk does not take it now."""
    try:
        await checkpointer.checkpoint()
    except (NoSpaceError, DiskUnavailableError, OSError) as error:
        logger.warning("first checkpoint postponed error=%s", error)


async def _copy_acceptance(checkpointer: Checkpointer, counted: CopyRecord | None, state: ContainerState) -> None:
    """Let a copy count that knows which loss was accepted, if none does: later, if the store does not take it now.

    A start elsewhere, from a copy that does not know, would give the same ids and offsets again.
    """
    if counted is None or counted.sequence >= state.scalars.accepted.sequence or checkpointer.saved is None:
        return
    try:
        await checkpointer.copy()
    except (StorageError, OSError) as error:
        logger.warning("checkpoint copy of the accepted loss postponed error=%s", error)
