"""The background task of a container: flush to tier 2, store checkpoints, let the log be recycled, delete garbage.

A pass does what is due in that order, but for the recycling: that waits for a copy of the checkpoint, which may take
long and is made beside the passes. A segment is flushed when it has enough unflushed bytes, when they are old enough,
or when memory or the log run full; where flushes are paid for, no more of these than have to be. A chunk is published
first; only then does the segment refer to it and drop its tail; a checkpoint then stores that; a copy of the checkpoint
is published in tier 2, and counts; only then may the log forget. A crash between any two steps loses nothing and stores
nothing twice: what the checkpoint does not know is replayed from the log and flushed again, and a chunk that no
checkpoint knows is an orphan.

If tier 2 is full or cannot be reached, the flusher waits and the server continues: tail and log grow to their bounds,
appends are throttled and then refused, and the flusher tries again. Checkpoints are stored meanwhile: they are on the
disk, and let less of the log be replayed.

Owns the order, the waits and the retries. Does not own the rules (`selector`), nor the steps (`uploader`,
`checkpointer`), nor what may be deleted (`state.garbage`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.segment import Segment
from millrace.server.errors import ChunkExistsError, NoSpaceError, ServerError, StorageError
from millrace.server.host.disk_health import DiskFailure
from millrace.server.tier2 import ChunkStorage

from .backoff import RETRY_S, FlushBackoff
from .budget import FlushBudget
from .checkpointer import Checkpointer
from .selector import (
    ADDED_COUNT_MAX,
    are_many,
    flush_wait_s,
    is_checkpoint_due,
    is_copy_due,
    is_log_filling,
    is_log_held,
    is_log_short_of_room,
    largest_first,
    pass_interval_s,
    recycling_pays,
    segments_to_flush,
    segments_to_flush_sparingly,
)
from .uploader import Uploader

logger = logging.getLogger(__name__)

Step = Callable[[], Coroutine[Any, Any, None]]

DELETES_COUNT_MAX: Final = 128
"""Chunks that are deleted before it is looked again what is due: a store takes its time for each."""


class Flusher:
    """The one background task of a container; `run` is its body. Belongs to the event loop of the container.

    `flush`, `checkpoint` and `copy` do one thing at once, whether it is due or not: at the stop, and in tests. They may
    be called at any time: each waits for what of its kind is under way.
    """

    def __init__(
        self,
        container: SegmentContainer,
        *,
        storage: ChunkStorage,
        uploader: Uploader,
        checkpointer: Checkpointer,
    ) -> None:
        self._container = container
        self._state = container.state
        self._options = container.options
        self._clock = container.clock
        self._storage = storage
        self._uploader = uploader
        self._checkpointer = checkpointer
        self._log = container.log
        per_s, age_s = self._options.small_flushes_per_s_max, self._options.flush_age_s
        # None: flushes cost nothing.
        self._budget = FlushBudget(per_s, saved_s=age_s, now_s=self._clock.monotonic_s()) if per_s else None
        self._work = asyncio.Event()
        self._backoffs = {name: FlushBackoff(self._clock) for name in ("flush", "checkpoint", "delete", "copy")}
        self._copying: asyncio.Task[None] | None = None
        # Set while tier 2 has no room for what is due.
        self.short_of_room = asyncio.Event()
        # One copy after the other: they are made in the same file.
        self._copy_lock = asyncio.Lock()

    def poke(self) -> None:
        """Check whether there is work; called after each batch, so it is quick."""
        if (
            self._state.tail_bytes >= self._options.flush_size_bytes
            or is_log_filling(self._log.fullness)
            or self._changes_are_many
        ):
            self._work.set()

    async def run(self) -> None:
        """Do what is due until cancelled, or until something other than the storage fails."""
        try:
            while True:
                await self._wait_for_work()
                self._work.clear()
                has_failed = False
                # One failing does not keep the others from being tried: a disk that is too full to flush is relieved by
                # the deletes that follow a checkpoint.
                for name, step in (
                    ("flush", partial(self._beside_checkpoints, self._flush_due)),
                    ("checkpoint", self._checkpoint_due),
                    ("delete", partial(self._beside_checkpoints, self._delete_some)),
                ):
                    if not await self._succeeds(name, step):
                        has_failed = True
                if self._copying is not None and self._copying.done():
                    # An error that is not of the storage ends this task, too.
                    copying, self._copying = self._copying, None
                    copying.result()
                if self._is_copy_due():
                    self._copying = asyncio.get_running_loop().create_task(self._copy_in_background(), name="copy")
                # Writers that are throttled send nothing that could wake us: what is left does not wait to be old.
                if has_failed or self._segments_due():
                    self._work.set()
                await self._clock.sleep(RETRY_S if has_failed else pass_interval_s(len(self._state.unflushed)))
        finally:
            self._checkpointer.stop_copying()
            if self._copying is not None:
                self._copying.cancel()
                await asyncio.gather(self._copying, return_exceptions=True)

    async def flush(self) -> None:
        """Flush everything there is, and what comes meanwhile.

        Raises:
            StorageError: tier 2 refused; what was flushed before stays flushed.
        """
        while self._state.unflushed:
            await self._upload(largest_first(self._uploader.candidates()))

    async def checkpoint(self) -> None:
        """Store a checkpoint, and delete what only older ones refer to.

        Raises:
            StorageError: nothing is lost; it is tried again.
        """
        await self._checkpointer.checkpoint()
        await self._delete_due()

    async def copy(self) -> None:
        """Publish a copy of the last checkpoint; recycle the log and delete what only older copies refer to.

        Raises:
            StorageError: what was not done is tried again.
        """
        async with self._copy_lock:
            self._check_sound()
            await self._checkpointer.copy()
            self._log.recycle(self._checkpointer.copy_replay_from - 1)
            self._container.room_changed()
            await self._checkpointer.delete_old_copies()
            await self._delete_due()

    async def copy_at_end(self) -> None:
        """Publish a copy of the last checkpoint if such are made for their own sake: the disk may not be there again.

        For the stop: a caller that cancels it does not wait for its thread.

        Raises:
            StorageError: the last copy is an older one.
        """
        if self._options.copy_interval_s and self._checkpointer.has_news:
            try:
                await self.copy()
            finally:
                self._checkpointer.stop_copying()

    @property
    def disk_failure(self) -> DiskFailure | None:
        """What the disk of this machine refuses, see `Checkpointer`."""
        return self._checkpointer.disk_failure

    async def _upload(self, segments: list[Segment]) -> None:
        self._check_sound()
        if not self._checkpointer.is_epoch_stored:
            # Nothing is published under an epoch before it is stored: the next start takes one above it.
            await self._checkpointer.checkpoint()
        # Also if another checkpoint has stored it since it was raised.
        self._uploader.container_epoch = self._checkpointer.container_epoch
        try:
            await self._uploader.upload(segments)
        except ChunkExistsError:
            if self._uploader.container_epoch == self._checkpointer.container_epoch:
                await self._checkpointer.raise_epoch()
            raise

    def _check_sound(self) -> None:
        """Raise if the container has failed: it may be another server's, and tier 2 is not to be changed any more."""
        if self._container.has_failed:
            raise StorageError("the container has failed: it may neither store nor delete anything")

    async def _succeeds(self, name: str, step: Step) -> bool:
        """Do a step; return False if it failed, or failed so recently that it is not attempted now."""
        backoff = self._backoffs[name]
        if not backoff.is_over:
            return False
        try:
            await step()
        except (ServerError, OSError) as error:
            logger.warning("background step failed step=%s retry_after_s=%.1f error=%s", name, backoff.failed(), error)
            return False
        backoff.succeeded()
        return True

    async def _beside_checkpoints(self, step: Step) -> None:
        """Do a step that asks tier 2, which may take long, and store the checkpoints that become due meanwhile."""
        task = asyncio.get_running_loop().create_task(step(), name="step in tier 2")
        try:
            while not task.done():
                age_s = self._clock.monotonic_s() - self._checkpointer.begun_s
                with suppress(TimeoutError):
                    async with self._clock.timeout(max(RETRY_S, self._options.checkpoint_interval_s - age_s)):
                        await asyncio.wait([task])
                if not task.done():
                    await self._succeeds("checkpoint", self._checkpoint_due)
            task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _flush_due(self) -> None:
        if segments := self._segments_due():
            if self._budget is not None:
                self._budget.spend(sum(each.tail.size < self._options.flush_size_bytes for each in segments))
            try:
                await self._upload(segments)
            except NoSpaceError:
                self.short_of_room.set()
                raise
        self.short_of_room.clear()

    async def _checkpoint_due(self) -> None:
        if self._is_checkpoint_due():
            await self._checkpointer.checkpoint()

    async def _delete_some(self) -> None:
        """Delete what may be deleted, but let a flush that is due go first after so many."""
        if await self._delete_due(DELETES_COUNT_MAX) == DELETES_COUNT_MAX:
            self._work.set()

    async def _delete_due(self, count_max: int | None = None) -> int:
        """Delete what may be deleted, a few chunks at the same time; return how many that were."""
        garbage = self._state.garbage
        names = islice(iter(garbage.take, None), count_max)
        count = 0
        while not self._container.has_failed and (some := list(islice(names, self._options.flushes_at_once))):
            left = set(some)
            try:
                results = await asyncio.gather(*map(self._storage.delete, some), return_exceptions=True)
                left -= {name for name, result in zip(some, results, strict=True) if result is None}
            finally:
                for name in left:
                    garbage.put_back(name)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            count += len(some)
            if self.short_of_room.is_set():
                self._backoffs["flush"].succeeded()  # there is room again
        return count

    async def _copy_in_background(self) -> None:
        backoff = self._backoffs["copy"]
        try:
            await self.copy()
        except (ServerError, OSError) as error:
            wait_s = backoff.failed()
            logger.warning("checkpoint copy failed retry_after_s=%.1f error=%s", wait_s, error)
            await self._clock.sleep(wait_s)  # each attempt exports and verifies the whole checkpoint
        else:
            backoff.succeeded()
        self._work.set()

    async def _wait_for_work(self) -> None:
        """Return when poked, when the oldest bytes are old enough, or when a checkpoint may be due."""
        wait_s = flush_wait_s(self._uploader.candidates(), now_us=self._clock.unix_us(), options=self._options)
        timeout_s = min(wait_s, self._options.checkpoint_interval_s)
        with suppress(TimeoutError):
            async with self._clock.timeout(timeout_s):
                await self._work.wait()

    # --- what the selector is asked ---

    @property
    def _changes_are_many(self) -> bool:
        changed_count = self._state.changed_count
        # What was added has changed: most of the time there is no need to count it.
        return changed_count >= ADDED_COUNT_MAX and are_many(
            added_count=self._state.added_count, changed_count=changed_count
        )

    def _segments_due(self) -> list[Segment]:
        if self._log.lacks_room:
            return []  # what frees room, records and copies, needs the last of it
        if self._budget is None:
            return segments_to_flush(
                self._uploader.candidates(),
                tail_bytes=self._state.tail_bytes,
                is_log_filling=is_log_filling(self._log.fullness),
                now_us=self._clock.unix_us(),
                options=self._options,
            )
        return segments_to_flush_sparingly(
            self._uploader.candidates(),
            tail_bytes=self._state.tail_bytes,
            small_count_max=self._budget.available(self._clock.monotonic_s()),
            is_log_held=self._is_log_held(),
            now_us=self._clock.unix_us(),
            options=self._options,
        )

    def _is_log_held(self) -> bool:
        log = self._log
        capacity_bytes = log.capacity_bytes
        used_bytes = int(log.fullness * capacity_bytes)
        # As a rule so little is used that nobody has to look which of it is needed.
        if not is_log_held(used_bytes=used_bytes, reclaimable_bytes=0, capacity_bytes=capacity_bytes):
            return False
        reclaimable_bytes = log.reclaimable_bytes(self._state.replay_from - 1)
        return is_log_held(used_bytes=used_bytes, reclaimable_bytes=reclaimable_bytes, capacity_bytes=capacity_bytes)

    def _recycling_pays(self, replay_from: int) -> bool:
        """Return whether recycling pays once a copy is published that needs the log from there on.

        Where the log is kept for the copy before the newest one, this copy frees what the next one counts as news. So
        what is between the two copies is compared, and it may be half as much: the log has to hold it twice.
        """
        log, kept_from = self._log, self._checkpointer.keeps_log_from
        reclaimable_bytes, capacity_bytes = log.reclaimable_bytes(replay_from - 1), log.capacity_bytes
        if kept_from is not None:
            reclaimable_bytes -= log.reclaimable_bytes(kept_from - 1)
            capacity_bytes //= 2
        return recycling_pays(
            reclaimable_bytes=reclaimable_bytes,
            capacity_bytes=capacity_bytes,
            copy_size_bytes=self._checkpointer.copy_size_bytes,
            is_full=log.refusal is not None and is_log_short_of_room(log.fullness) and not log.lacks_room,
        )

    def _frees_kept_log(self) -> bool:
        """Return whether the log is short of room, and the next copy frees what is kept for the copy before the newest.

        Then one is due even without news: a full log takes no append that would be news.
        """
        log, kept_from = self._log, self._checkpointer.keeps_log_from
        return kept_from is not None and is_log_short_of_room(log.fullness) and log.reclaimable_bytes(kept_from - 1) > 0

    def _is_checkpoint_due(self) -> bool:
        # While a copy of an earlier checkpoint is made, a newer one would not recycle the log sooner.
        recycles = self._copying is None and self._log.reclaimable_bytes(self._state.sequence) > 0
        recycles = recycles and self._recycling_pays(self._state.replay_from)
        has_changes = self._state.changed_count > 0 or self._state.garbage.waits_for_checkpoint
        return is_checkpoint_due(
            # A copy is of a checkpoint of this start.
            has_changes=has_changes or (self._checkpointer.saved is None and self._frees_kept_log()),
            is_pressing=recycles or self._changes_are_many or self.short_of_room.is_set(),
            age_s=self._clock.monotonic_s() - self._checkpointer.begun_s,
            options=self._options,
        )

    def _is_copy_due(self) -> bool:
        checkpointer = self._checkpointer
        saved = checkpointer.saved
        return self._copying is None and is_copy_due(
            frees_log=saved is not None and (self._recycling_pays(saved.version.replay_from) or self._frees_kept_log()),
            frees_garbage=self._state.garbage.waits_for_copy,
            is_short_of_room=self.short_of_room.is_set(),
            has_news=checkpointer.has_news,
            age_s=self._clock.monotonic_s() - checkpointer.copy_begun_s,
            options=self._options,
        )
