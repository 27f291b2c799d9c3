"""A container that runs, with everything that belongs to it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from millrace.server.container.flush.flusher import Flusher
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.errors import CheckpointDamagedError, ServerError, ShuttingDownError

from .container import SegmentContainer
from .environment import ContainerEnvironment
from .orphans import find_orphans, orphans_of_loss

logger = logging.getLogger(__name__)

VERIFICATION_PAUSE_S: Final = 0.005
BACKGROUND_RETRY_S: Final = 10.0
ORPHAN_SEARCH_INTERVAL_S: Final = 24 * 3600.0
"""A server that does not know that it was superseded may publish for as long as it stands still. What comes so late
costs only room, and a search lists all of tier 2: a thousand requests for each million chunks."""
FLUSH_SHARE: Final = 0.8
"""Of the time that a stop has for flushing and checkpoints: the rest is kept for a checkpoint of what was flushed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySummary:
    """What starting found, for the log and the console.

    Attributes:
        restored_from: the copy of the checkpoint that took the place of one that was missing, damaged or older; empty
            if none did.
    """

    checkpoint_sequence: int
    restored_from: str
    last_sequence: int
    ending: str
    torn_bytes: int
    damages: int
    # How much of the log is missing at most, whose loss is not accepted.
    lost_bytes: int
    tail_bytes: int
    duration_s: float


class OpenContainer:
    """A container that runs, with everything that belongs to it. `close` ends it.

    Args:
        environment: what it runs in.
        container: as started.
        flusher: its `run` is the caller's to start, as `clean_tier2` and `verify_checkpoint` are.
        summary: what starting found.
        is_verified: whether every row of the checkpoint was verified.
        keeps_orphans: whether something was lost that the chunks which nothing refers to may hold.
    """

    def __init__(
        self,
        environment: ContainerEnvironment,
        *,
        container: SegmentContainer,
        flusher: Flusher,
        summary: RecoverySummary,
        is_verified: bool,
        keeps_orphans: bool,
    ) -> None:
        self.environment = environment
        self.container = container
        self.flusher = flusher
        self.checkpoints = environment.checkpoints
        self.summary = summary
        self.keeps_orphans = keeps_orphans
        self._is_verified = is_verified
        self._clock = environment.clock
        # As it was: chunks of this start are no orphans, also if its epoch was raised.
        self._epoch = environment.epoch
        self._is_closing = False
        self._is_set_aside = False

    async def verify_checkpoint(self) -> None:
        """Verify every row of a checkpoint that was too large for that before the start."""
        if not self._is_verified:
            await self._retried("verification of the checkpoint", self._verify_checkpoint)

    async def clean_tier2(self) -> None:
        """Delete what a crash has left in tier 2: temporary files at once, orphans after the grace. Safe to cancel.

        Orphans are chunks of earlier epochs that no segment refers to. They are deleted once a copy of a checkpoint
        that does not refer to them is published. Where another server may have been superseded, they are looked for
        again and again: it may publish until it knows.
        """
        await self._retried("deletion of temporary files", self._delete_temporary_files)
        await self._orphan_grace()
        await self._retried("search for orphans", self._collect_orphans)
        while self.environment.ownership.is_shared and not self._is_closing:
            await self._clock.sleep(ORPHAN_SEARCH_INTERVAL_S)
            await self._retried("search for orphans", self._collect_orphans)

    async def _orphan_grace(self) -> None:
        """Wait until orphans may be deleted: less long if tier 2 has no room, unless another server may publish."""
        grace_s = self.environment.container_options.orphan_grace_s
        if self.environment.ownership.is_shared:
            await self._clock.sleep(grace_s)
            return
        with suppress(TimeoutError):
            async with self._clock.timeout(grace_s):
                await self.flusher.short_of_room.wait()

    async def _retried(self, name: str, attempt: Callable[[], Awaitable[None]]) -> None:
        """Do something in the background, again and again until the disk and tier 2 let it succeed."""
        while not self._is_closing:
            try:
                await attempt()
            except (CheckpointDamagedError, ShuttingDownError):
                return  # of damage, the container was told, and is about to be recovered
            except (ServerError, OSError) as error:
                logger.warning(
                    "background step failed step=%s retry_after_s=%.0f error=%s", name, BACKGROUND_RETRY_S, error
                )
                await self._clock.sleep(BACKGROUND_RETRY_S)
            else:
                return

    async def _verify_checkpoint(self) -> None:
        await asyncio.to_thread(self.checkpoints.verify, self._pause_verification)
        logger.info("checkpoint verified")

    def _pause_verification(self) -> None:
        if self._is_closing:
            raise ShuttingDownError("the container is being closed")
        self._clock.pause(VERIFICATION_PAUSE_S)

    async def _delete_temporary_files(self) -> None:
        count = await self.environment.storage.delete_temporary_files()
        if count:
            logger.info("temporary files of a crash deleted count=%d", count)

    async def _collect_orphans(self) -> None:
        environment = self.environment
        orphans = await find_orphans(environment.storage, self.checkpoints.segments, container_epoch=self._epoch)
        # They may hold what the checkpoint or the log has lost.
        kept = orphans
        if not self.keeps_orphans:
            kept = orphans_of_loss(orphans, self.container.state.scalars.accepted, container_epoch=self._epoch)
        if kept:
            logger.warning("orphan chunks kept for salvage count=%d", len(kept))
        if orphans := sorted(set(orphans) - set(kept)):
            self.container.state.garbage.add(orphans, delete_after=DeleteAfter.COPY)
            logger.info("orphan chunks scheduled for deletion count=%d", len(orphans))

    async def end_storing(self) -> None:
        """End log and checkpoint, so that the container can be opened again; what is in memory can still be read.

        A disk that does not answer is waited for: two logs must not write to the same files. May be repeated.

        Raises:
            OSError: a damaged checkpoint could not be set aside.
        """
        self._is_closing = True
        await self.container.log.close()
        await asyncio.to_thread(self.checkpoints.end_saving)
        await self._set_aside()

    async def release(self) -> None:
        """Give the files back after `end_storing`; what is idle cannot be read any more."""
        await asyncio.to_thread(self.checkpoints.close)

    async def close(self, *, log_s: float, flush_s: float) -> None:
        """End: what is queued becomes durable; if flushing takes no longer than that, the next start replays nothing.

        A tier 2 that takes less keeps no checkpoint from the disk, and the log keeps what was not flushed. Where the
        checkpoint is copied as time goes by, its last copy has everything that was.

        The flusher's task must have ended. A failure to flush is logged and costs only time at the next start. A disk
        that does not answer within `log_s` is not waited for: what was queued is of unknown outcome then.
        """
        container = self.container
        container.stop()
        self._is_closing = True
        try:
            async with self._clock.timeout(log_s):
                await container.log.close()
        except TimeoutError:
            logger.error("log disk does not respond, shutdown continues waited_s=%.1f", log_s)
            return
        is_sound = container.loss is None and not container.has_failed and container.checkpoint_damage is None
        try:
            await self._set_aside()
            if flush_s > 0 and is_sound:
                async with self._clock.timeout(flush_s):
                    await self._flush(FLUSH_SHARE * flush_s)
                    await self.flusher.checkpoint()
                    await self.flusher.copy_at_end()
        except (ServerError, OSError) as error:  # a TimeoutError is an OSError
            logger.warning("shutdown incomplete error=%r", error)
        await self.release()

    async def _flush(self, flush_s: float) -> None:
        """Flush for so long; what is left is in the log, and is flushed after the next start."""
        try:
            async with self._clock.timeout(flush_s):
                await self.flusher.flush()
        except (ServerError, OSError) as error:
            state = self.container.state
            logger.warning(
                "shutdown before all data was flushed, the log keeps the rest segments_left=%d tail_bytes=%d error=%r",
                len(state.unflushed), state.tail_bytes, error,
            )  # fmt: skip

    async def _set_aside(self) -> None:
        """Put a damaged checkpoint aside, once."""
        if self.container.checkpoint_damage is not None and not self._is_set_aside:
            aside = await asyncio.to_thread(self.checkpoints.set_aside)
            self._is_set_aside = True
            logger.error("damaged checkpoint set aside path=%s", aside)
