"""A container whose checkpoint is in a folder of this machine, and its log there or in the object store."""

import asyncio
import logging
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

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
from millrace.server.ownership import CopyRecord, FolderOwnership, NewestCopy, Ownership
from millrace.server.tier2 import ChunkStorage, ScopedStorage, parse_chunk_name
from millrace.server.wal import LOG_PREFIX, Log, LogOwner, ObjectWal, Wal, WalOptions

from .environment import ContainerEnvironment
from .ids import scope_of
from .kind import Kinds
from .options import ContainerOptions

logger = logging.getLogger(__name__)

CHECKPOINT_NAME: Final = "checkpoint.db"
LOG_FOLDER: Final = "wal"


class Claim(Protocol):
    """Takes a container for one start of it."""

    async def __call__(self, next_epoch: int, *, discard: Callable[[], None], newest_copy: NewestCopy) -> Ownership:
        """Return the right to change it, under that or a higher epoch.

        Args:
            next_epoch: above all that folder and tier 2 know of.
            discard: deletes the checkpoint in the folder; called, in a thread, if others have changed the container
                since, and all that they have acknowledged is elsewhere.
            newest_copy: finds the newest whole copy of the checkpoint by its name, if nothing else tells.
        """
        ...


async def local_environment(
    number: int,
    folder: Path,
    *,
    files: FileSystem,
    storage: ChunkStorage,
    kinds: Kinds,
    container_options: ContainerOptions,
    wal_options: WalOptions,
    clock: Clock,
    metrics: Metrics,
    server_id: uuid.UUID,
    cache: PageCache,
    page_size_bytes: int,
    on_failure: Callable[[ServerError], None],
    claim: Claim | None = None,
    store: ObjectStore | None = None,
    reserve: Reserve | None = None,
    room: DiskRoom | None = None,
    threads: Threads = SYSTEM_THREADS,
) -> ContainerEnvironment:
    """Return what a container in a folder of its own needs to start, under an epoch that was not used before.

    Args:
        number: of the container.
        folder: for its log and its checkpoint; made if missing.
        storage: shared by all containers; this one gets its scope of it.
        kinds: of entities that it has.
        page_size_bytes, on_failure: as of `ContainerEnvironment`.
        claim: takes the container; None where the lock of the folder is enough.
        store: for the log, where the claim says that it is there.
        reserve: of that store, None if it has none.
        room: of the volume of the folder, of which the checkpoint gets a reserve; None if there is no bound.
        threads: of a log in files.

    Raises:
        StorageError: tier 2 had to be asked for the epoch, and cannot be read.
        FolderVersionError: the checkpoint is that of another server, or another version wrote it.
        ServerError: of `claim`.
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
        verified_at_once_count_max=container_options.verified_at_once_count_max,
    )
    scoped = ScopedStorage(storage, scope_of(number))
    epoch = await next_epoch(checkpoints, scoped)
    if claim is None:
        ownership: Ownership = FolderOwnership(epoch)
    else:
        newest = partial(newest_copy, scoped, owner=owner)
        ownership = await claim(epoch, discard=checkpoints.discard, newest_copy=newest)

    def make_log() -> Log:
        remote = ownership.log
        if remote is None:
            return Wal(
                files, folder / LOG_FOLDER, wal_options,
                clock=clock, owner=owner, metrics=metrics, room=room, threads=threads,
            )  # fmt: skip
        assert store is not None
        return ObjectWal(
            store,
            f"{scope_of(number)}{LOG_PREFIX}",
            wal_options,
            epochs=remote.epochs,
            from_sequence=remote.from_sequence,
            acknowledged=remote.acknowledged,
            clock=clock,
            owner=owner,
            metrics=metrics,
            reserve=reserve,
        )

    return ContainerEnvironment(
        container=number,
        server_id=server_id,
        ownership=ownership,
        checkpoints=checkpoints,
        storage=scoped,
        container_options=container_options,
        clock=clock,
        make_log=make_log,
        cache=cache,
        page_size_bytes=page_size_bytes,
        on_failure=on_failure,
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
            logger.error("copy of checkpoint damaged name=%s error=%s", copy.name, error)
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
