"""Stores checkpoints of a container, and publishes copies of them in tier 2.

    take the changes  ->  save them in one transaction           (one at a time: `_lock`)
    export the file   ->  verify it  ->  publish it in parts  ->  let it count     (checkpoints continue after the
                                                                                     export)

Only a copy that counts (`Ownership.record_copy`) lets the log forget and chunks be deleted: one that was published by a
server which does not know yet that another one has its container counts for nothing.

Owns what the last checkpoint and its newest copy hold, and the file in which a copy is made. Does not own when either
is due (`selector`), what becomes possible afterwards (`flusher`), nor the formats (`checkpoint/`).
"""

import asyncio
import threading
from dataclasses import dataclass
from typing import Final

from millrace.server.container.checkpoint.backup import delete_copies_besides, delete_old_copies, publish_copy
from millrace.server.container.checkpoint.checkpoint import CheckpointVersion
from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.container import SegmentContainer
from millrace.server.errors import (
    CheckpointDamagedError,
    DiskUnavailableError,
    OwnerFencedError,
    ShuttingDownError,
    StorageError,
)
from millrace.server.host.disk_health import DiskFailure, DiskHealth
from millrace.server.host.supervisor import mark_seen
from millrace.server.ownership import CopyRecord, Ownership
from millrace.server.tier2 import ChunkStorage
from millrace.server.wal import LogOwner

COPY_PAUSE_S: Final = 0.002
"""After each millisecond or so of verifying a copy: others want the disk and the interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint that is stored.

    Attributes:
        number: as the garbage queue counts them.
        version: what it contains, and the epoch under which it was stored.
    """

    number: int
    version: CheckpointVersion


class Checkpointer:
    """Checkpoints and copies of one container.

    Args:
        container: its state is stored, as of the last batch that was applied.
        checkpoints: where to.
        storage: where copies go.
        ownership: has the epoch of this start, and decides which copy counts.
        owner: whose container it is; stored in each copy.
    """

    def __init__(
        self,
        container: SegmentContainer,
        *,
        checkpoints: CheckpointStore,
        storage: ChunkStorage,
        ownership: Ownership,
        owner: LogOwner,
    ) -> None:
        self._container = container
        self._checkpoints = checkpoints
        self._storage = storage
        self._ownership = ownership
        self._owner = owner
        self._clock = container.clock
        self._lock = asyncio.Lock()
        self._copy_count = 0
        self._copied: CheckpointVersion | None = None
        # Set when the copy that is under way is to end: each has one, as its thread may outlive the wait for it.
        self._ending = threading.Event()
        # What is being saved, in a thread: it continues if whoever waits for it is cancelled.
        self._saving: asyncio.Task[None] | None = None
        # The newest stored checkpoint, None until one was stored under this epoch.
        self.saved: SavedCheckpoint | None = None
        # The copies that a start may use need the log from here on; from its beginning if none was made here.
        self.copy_replay_from = 1
        self.begun_s = self.copy_begun_s = self._clock.monotonic_s()
        self._saves, self._copies = DiskHealth(self._clock), DiskHealth(self._clock)
        self.copy_size_bytes = 0

    @property
    def has_news(self) -> bool:
        """Whether the last checkpoint is another than the one of which this start has published a copy."""
        return self.saved is not None and self.saved.version != self._copied

    @property
    def keeps_log_from(self) -> int | None:
        """From where on the log stays when the next copy counts; None if only that copy needs it."""
        if self._ownership.log is None:
            return None
        return 1 if self._ownership.copy is None else self._ownership.copy.replay_from

    @property
    def is_epoch_stored(self) -> bool:
        """Whether a checkpoint was stored under the epoch: before that, nothing is published under it."""
        return self.saved is not None and self.saved.version.container_epoch == self.container_epoch

    @property
    def disk_failure(self) -> DiskFailure | None:
        """What the disk of this machine refuses: checkpoints, or the file in which a copy is made."""
        return self._saves.failure or self._copies.failure

    @property
    def container_epoch(self) -> int:
        """Under which checkpoints are stored."""
        return self._ownership.epoch

    async def raise_epoch(self) -> None:
        """Continue under a higher epoch, since somebody has published under this one.

        That is so if the container was started with an older checkpoint, which did not know of a later start.

        Raises:
            OwnerFencedError: another server has the container; the container knows it now.
            StorageError: it is to be tried again.
        """
        try:
            await self._ownership.raise_epoch()
        except OwnerFencedError as error:
            self._container.fenced(error)
            raise

    async def checkpoint(self) -> None:
        """Store a checkpoint of the state as it is now.

        Raises:
            StorageError: nothing is lost; the changes go into the next checkpoint.
        """
        async with self._lock:
            if self._saving is not None:
                await asyncio.wait({self._saving})  # or it could be saved after this one, and what is older would stay
            state = self._container.state
            if self._container.has_failed:
                raise StorageError("the container has failed: its state may lack durable batches of the log")
            # In one step, without an await: sequence, rows and garbage belong together.
            version = CheckpointVersion(state.sequence, self.container_epoch, state.replay_from)
            saved = SavedCheckpoint(number=state.garbage.checkpoint_begun(), version=version)
            rows = take_rows(state)
            self.begun_s = self._clock.monotonic_s()
            # If this fails, or is not waited for, the next checkpoint takes the same changes again.
            save = asyncio.to_thread(
                self._checkpoints.save,
                rows,
                sequence=version.sequence,
                replay_from=version.replay_from,
                container_epoch=version.container_epoch,
            )
            self._saving = asyncio.get_running_loop().create_task(save, name="save")
            self._saving.add_done_callback(mark_seen)
            with self._saves.watched():
                await asyncio.shield(self._saving)
            state.stored(stored_below=rows.next_id)
            state.garbage.checkpoint_stored(saved.number)
            self.saved = saved

    async def copy(self) -> None:
        """Publish a copy of the last checkpoint in tier 2; checkpoints continue, as a large copy takes long.

        To be called for one copy at a time.

        Raises:
            OwnerFencedError: another server has the container; the container knows it now.
            StorageError: no copy was published, or it is not known whether it counts.
        """
        with self._copies.watched():
            await self._copy()

    async def _copy(self) -> None:
        checkpoints = self._checkpoints
        self._ending = ending = threading.Event()
        async with self._lock:
            saved = self.saved
            assert saved is not None, "nothing was stored"
            self.copy_begun_s = self._clock.monotonic_s()
            self.copy_size_bytes = await asyncio.to_thread(checkpoints.export)
        try:
            await asyncio.to_thread(self._verify_copy, ending)
            self._copy_count += 1
            name = await publish_copy(
                self._storage,
                checkpoints,
                version=saved.version,
                number=self._copy_count,
                size=self.copy_size_bytes,
                owner=self._owner,
            )
        finally:
            await asyncio.to_thread(checkpoints.remove_copy)
        await self._let_count(name, saved.version)
        self._container.state.garbage.copy_published(saved.number)
        # A log in the store is kept for a start from the copy before, if the newest one is damaged then.
        remote = self._ownership.log
        self.copy_replay_from = saved.version.replay_from if remote is None else remote.from_sequence
        self._copied = saved.version

    async def _let_count(self, name: str, version: CheckpointVersion) -> None:
        """Let a published copy be the one to start from. Raises like `copy`."""
        if self._container.has_failed:
            raise StorageError("the container has failed: its copies must not become current")
        sequence, container_epoch, replay_from = version
        try:
            await self._ownership.record_copy(
                CopyRecord(name=name, sequence=sequence, container_epoch=container_epoch, replay_from=replay_from)
            )
        except OwnerFencedError as error:
            self._container.fenced(error)
            raise

    async def delete_old_copies(self) -> None:
        """Delete the copies that no start uses any more, after `copy`.

        Raises:
            StorageError: some are left; the next call deletes them.
        """
        counted, before = self._ownership.copy, self._ownership.copy_before
        if not self._ownership.is_shared:
            await delete_old_copies(self._storage)  # the names tell which they are
        elif counted is not None and before is not None:
            await delete_copies_besides(
                {counted.name, before.name}, self._storage, container_epoch_max=counted.container_epoch
            )

    def stop_copying(self) -> None:
        """End the verification of the copy that is under way at its next pause: a stop does not wait for it."""
        self._ending.set()

    def _verify_copy(self, ending: threading.Event) -> None:
        """Verify the copy, and if it is damaged, whether the checkpoint is so; blocks."""

        def pause() -> None:
            if ending.is_set():
                raise ShuttingDownError("the copy of the checkpoint is not waited for")
            self._clock.pause(COPY_PAUSE_S)

        try:
            self._checkpoints.verify_copy(pause=pause)
        except CheckpointDamagedError as error:
            self._checkpoints.verify(pause=pause)
            raise DiskUnavailableError(
                f"a copy of the checkpoint is damaged, the checkpoint is not: {error}"
            ) from error
