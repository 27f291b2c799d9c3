"""A container whose checkpoint is in a folder of this machine, and its log there or in the object store."""

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.server.cache import PageCache
from millrace.server.container.checkpoint.backup import (
    CHECKPOINT_PREFIX,
    parse_part_name,
    version_of_copy,
    whole_copies,
)
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.errors import ChunkCorruptError, ServerError
from millrace.server.host.clock import Clock
from millrace.server.host.files import FileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.host.room import DiskRoom
from millrace.server.host.threads import SYSTEM_THREADS, Threads
from millrace.server.object_store import ObjectStore, Reserve
from millrace.server.ownership import CopyRecord, Ownership
from millrace.server.tier2 import ChunkStorage, ScopedStorage, parse_chunk_name
from millrace.server.wal import LOG_PREFIX, Log, LogOwner, ObjectWal, Wal, WalOptions

from .environment import ContainerEnvironment
from .ids import scope_of
from .kind import Kinds
from .options import ContainerOptions

logger = logging.getLogger(__name__)

CHECKPOINT_NAME: Final = "checkpoint.db"
LOG_FOLDER: Final = "wal"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalContainer:
    """The files of a container in a folder of this machine, before the container is claimed.

    Attributes:
        folder: of its log and its checkpoint.
        owner: its number, and the server that it belongs to.
        storage: its own scope of tier 2.
        room: of the volume of the folder; None if there is no bound.
        next_epoch: above all epochs that the folder and tier 2 know of.
    """

    folder: Path
    files: FileSystem
    owner: LogOwner
    checkpoints: CheckpointStore
    storage: ChunkStorage
    room: DiskRoom | None
    next_epoch: int

    def discard(self) -> None:
        """Delete the checkpoint in the folder, which other servers have superseded; blocks."""
        self.checkpoints.discard()

    async def newest_copy(self) -> CopyRecord | None:
        """Return the newest whole copy of the checkpoint, see `newest_copy`."""
        return await newest_copy(self.storage, owner=self.owner)

    def environment(
        self,
        ownership: Ownership,
        *,
        container_options: ContainerOptions,
        wal_options: WalOptions,
        clock: Clock,
        metrics: Metrics,
        cache: PageCache,
        page_size_bytes: int,
        on_failure: Callable[[ServerError], None],
        store: ObjectStore | None = None,
        reserve: Reserve | None = None,
        threads: Threads = SYSTEM_THREADS,
    ) -> ContainerEnvironment:
        """Return what the container needs to start, once it is claimed.

        Args:
            ownership: the claim; its epoch was not used before.
            page_size_bytes, on_failure: as of `ContainerEnvironment`.
            store: for the log, where the claim says that it is there.
            reserve: of that store, None if it has none.
            threads: of a log in files.
        """

        def make_log() -> Log:
            remote = ownership.log
            if remote is None:
                return Wal(
                    self.files, self.folder / LOG_FOLDER, wal_options,
                    clock=clock, owner=self.owner, metrics=metrics, room=self.room, threads=threads,
                )  # fmt: skip
            assert store is not None
            return ObjectWal(
                store,
                f"{scope_of(self.owner.container_id)}{LOG_PREFIX}",
                wal_options,
                epochs=remote.epochs,
                from_sequence=remote.from_sequence,
                acknowledged=remote.acknowledged,
                clock=clock,
                owner=self.owner,
                metrics=metrics,
                reserve=reserve,
            )

        return ContainerEnvironment(
            container=self.owner.container_id,
            server_id=self.owner.server_id,
            ownership=ownership,
            checkpoints=self.checkpoints,
            storage=self.storage,
            container_options=container_options,
            clock=clock,
            make_log=make_log,
            cache=cache,
            page_size_bytes=page_size_bytes,
            on_failure=on_failure,
        )


async def local_container(
    number: int,
    folder: Path,
    *,
    files: FileSystem,
    storage: ChunkStorage,
    kinds: Kinds,
    server_id: uuid.UUID,
    options: ContainerOptions,
    room: DiskRoom | None = None,
) -> LocalContainer:
    """Return the files of a container in a folder of its own, to be claimed.

    Args:
        number: of the container.
        folder: for its log and its checkpoint; made if missing.
        storage: shared by all containers; this one gets its scope of it.
        kinds: of entities that it has.
        room: of the volume of the folder, of which the checkpoint gets a reserve; None if there is no bound.

    Raises:
        StorageError: tier 2 had to be asked for the epoch, and cannot be read.
        FolderVersionError: the checkpoint is that of another server, or another version wrote it.
    """
    files.make_directories(folder)
    if room is not None:
        room.reserve_for(folder / CHECKPOINT_NAME)
    owner = LogOwner(container_id=number, server_id=server_id)
    checkpoints = CheckpointStore(
        files,
        folder / CHECKPOINT_NAME,
        kinds,
        owner=owner,
        verified_at_once_count_max=options.verified_at_once_count_max,
    )
    scoped = ScopedStorage(storage, scope_of(number))
    return LocalContainer(
        folder=folder,
        files=files,
        owner=owner,
        checkpoints=checkpoints,
        storage=scoped,
        room=room,
        next_epoch=await next_epoch(checkpoints, scoped),
    )


async def newest_copy(storage: ChunkStorage, *, owner: LogOwner) -> CopyRecord | None:
    """Return the newest copy of a checkpoint of which all parts exist and the header can be read; None without any.

    Raises:
        StorageError: tier 2 cannot be read.
    """
    for copy in reversed(whole_copies(await storage.list(CHECKPOINT_PREFIX))):
        try:
            version = await version_of_copy(storage, copy, owner=owner)
        except ChunkCorruptError as error:
            logger.error("checkpoint copy damaged name=%s error=%s", copy.name, error)
            continue
        sequence, epoch = copy.point
        return CopyRecord(name=copy.name, sequence=sequence, container_epoch=epoch, replay_from=version.replay_from)
    return None


async def next_epoch(checkpoints: CheckpointStore, storage: ChunkStorage) -> int:
    """Return an epoch above all under which a container can have published anything.

    The checkpoint counts them: nothing is published under an epoch before a checkpoint with it is stored. If there is
    none that is known to be the newest, since it is lost or a copy has a newer name, the names in tier 2 tell.
    """
    stored = await asyncio.to_thread(checkpoints.last_version)
    copies = [
        part for each in await storage.list(CHECKPOINT_PREFIX) if (part := parse_part_name(each.name)) is not None
    ]
    if stored is not None and all((copy.sequence, copy.container_epoch) <= stored[:2] for copy in copies):
        return stored.container_epoch + 1
    chunks = [chunk for each in await storage.list("segments/") if (chunk := parse_chunk_name(each.name)) is not None]
    used = [*(chunk.container_epoch for chunk in chunks), *(copy.container_epoch for copy in copies)]
    return max([stored.container_epoch if stored else 0, *used]) + 1
