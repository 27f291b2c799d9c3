"""A container that runs, with everything that belongs to it."""

import asyncio
import logging
from dataclasses import dataclass

from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.flush.flusher import Flusher
from millrace.server.errors import CheckpointDamagedError, ServerError, ShuttingDownError, StorageError
from millrace.server.host.clock import Clock
from millrace.server.tier2 import ChunkStorage
from millrace.server.wal import Log

from .container import SegmentContainer
from .options import ContainerOptions
from .orphans import collect_orphans

logger = logging.getLogger(__name__)

VERIFICATION_PAUSE_S = 0.005
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
        wal: Log,
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
                return  # the container was told, and is about to be recovered
            except StorageError as error:
                logger.warning("checkpoint not verified, retry_in_s=%.0f error=%s", BACKGROUND_RETRY_S, error)
                await self._clock.sleep(BACKGROUND_RETRY_S)

    def _pause_verification(self) -> None:
        if self._is_closing:
            raise ShuttingDownError("the container is being closed")
        self._clock.pause(VERIFICATION_PAUSE_S)

    async def collect_orphans(self) -> None:
        """Queue for deletion, after the grace, the chunks of earlier epochs that no segment refers to."""
        await collect_orphans(
            storage=self._storage,
            segments=self.checkpoints.segments,
            container_epoch=self._container_epoch,
            grace_s=self._options.orphan_grace_s,
            keeps_orphans=self._keeps_orphans,
            garbage=self.container.state.garbage,
            clock=self._clock,
        )

    async def close(self, *, log_s: float, flush_s: float) -> None:
        """End: what is queued becomes durable; if flushing takes no longer than that, the next start replays nothing.

        The flusher's task must have ended. A failure to flush is logged and costs only time at the next start. A disk
        that does not answer within `log_s` is not waited for: what was queued is of unknown outcome then.
        """
        self.container.stop()
        self._is_closing = True
        try:
            async with self._clock.timeout(log_s):
                await self.wal.close()
        except TimeoutError:
            logger.error("the disk of the log does not answer, not waited for waited_s=%.1f", log_s)
            return
        if self.container.checkpoint_damage is not None:
            aside = await asyncio.to_thread(self.checkpoints.set_aside)
            logger.error("damaged checkpoint set aside path=%s", aside)
            return
        if flush_s > 0 and not self.container.has_failed:
            try:
                async with self._clock.timeout(flush_s):
                    await self.flusher.flush()
                    await self.flusher.checkpoint()
            except (ServerError, OSError) as error:  # a TimeoutError is an OSError
                logger.warning("flush at shutdown failed error=%r", error)
        await asyncio.to_thread(self.checkpoints.close)
