"""The place of a server's history, and its right to change it: in its data folder, or in an object store.

    open     lock the data folder; with a store, probe it, claim its prefix, and create a lease
    claim    claim a container, at each start of it: the lock of the folder suffices, or its manifest is changed
    close    release everything, so that the next owner need not wait

The lease is renewed all the time in between, even while a container is closed and reopened.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from millrace.server.container.local import LocalContainer
from millrace.server.errors import DiskUnavailableError, OwnerFencedError, ServerError, UnsupportedStoreError
from millrace.server.folder import DataFolder, check_writable, open_folder
from millrace.server.host.clock import Clock
from millrace.server.host.files import FileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.host.room import DiskRoom
from millrace.server.host.supervisor import Supervisor
from millrace.server.object_store import (
    ObjectStore,
    Reserve,
    StoreMonitor,
    StoreUrl,
    claim,
    find_owner,
    open_store,
    when_there_is_room,
)
from millrace.server.options import ServerOptions
from millrace.server.ownership import (
    Claimant,
    FolderOwnership,
    Ownership,
    Worker,
    WorkerLease,
    claim_container,
    other_leases,
    read_manifest,
    server_of_history,
)
from millrace.server.tier2 import ChunkStorage, LocalStorage, ObjectStorage

logger = logging.getLogger(__name__)


class Backend:
    """The history of one server while it runs. Belongs to one event loop.

    Args:
        options: of the server.
        on_fenced: called when another server has ended the lease: nothing may be changed any more.
        on_failure: called with name and error if the lease cannot be renewed for an unexpected reason.
        storage: replaces tier 2 of the folder, closed with this.
        store: replaces the object store of the URL, closed with this.
        is_repair: an operator has stopped all servers of the prefix, so the log may identify its server.

    Attributes:
        room: of the volume of the data folder.
    """

    def __init__(
        self,
        options: ServerOptions,
        *,
        files: FileSystem,
        clock: Clock,
        metrics: Metrics,
        monitor: StoreMonitor,
        on_fenced: Callable[[OwnerFencedError], None],
        on_failure: Callable[[str, BaseException], None],
        storage: ChunkStorage | None = None,
        store: ObjectStore | None = None,
        is_repair: bool = False,
    ) -> None:
        self._is_repair = is_repair
        self._options = options
        self._files = files
        self._clock = clock
        self._monitor = monitor
        self._on_fenced = on_fenced
        self._storage = storage
        self._given_store = store
        self.room = DiskRoom(files, has_tier2=options.store is None and storage is None)
        self._folder: DataFolder | None = None
        self._lease: WorkerLease | None = None
        self._store: ObjectStore | None = None
        self._reserve: Reserve | None = None
        self._keeps_reserve = False
        # By container, to be released.
        self._ownerships: dict[int, Ownership] = {}
        # Separate from the tasks of the server, which end before its container does.
        self._supervisor = Supervisor(metrics=metrics, on_failure=on_failure)

    @property
    def folder(self) -> DataFolder:
        """The data folder, once it is open."""
        assert self._folder is not None
        return self._folder

    @property
    def storage(self) -> ChunkStorage:
        """Tier 2 of all containers, once it is open."""
        assert self._storage is not None
        return self._storage

    @property
    def store(self) -> ObjectStore | None:
        """The object store for logs, once it is open; None without one. Closed with this."""
        return self._store

    @property
    def reserve(self) -> Reserve | None:
        """The reserve of the store, once it is open; None without one."""
        return self._reserve

    @property
    def lease_s(self) -> float:
        """The length of the lease, 0 without one."""
        return 0.0 if self._lease is None else self._lease.lease_s

    async def other_leases(self) -> dict[str, str]:
        """Return the leases of other servers with the same store, see `ownership.other_leases`."""
        assert self._lease is not None
        return await other_leases(self._lease.store, self._lease.worker.worker_id)

    async def open(self) -> None:
        """Lock the data folder and, if configured, open the prefix of an object store.

        Even after an error, `close` releases what was acquired.

        Raises:
            ConfigurationError: the folder or the store cannot be used, or belongs to another server.
            StorageError: the store does not answer, or denies access; or the disk of a standby rejects writes.
        """
        options = self._options
        if options.store is not None:
            await self._open_store(options.store)
            return
        self._folder = await asyncio.to_thread(open_folder, self._files, options.data_folder)
        self._storage = self._storage or LocalStorage(self._files, self._folder.tier2, options.tier2, room=self.room)

    async def _open_store(self, url: StoreUrl) -> None:
        options, clock = self._options, self._clock
        store = await open_store(
            url,
            options.objects,
            clock=clock,
            monitor=self._monitor,
            store=self._given_store,
            has_reserve=options.has_remote_log,
        )
        self._store, self._reserve = store.with_hedged_creates(), store.reserve
        self._storage = ObjectStorage(store, puts_count_max=options.objects.puts_count_max)
        folder = self._folder = await self._own_folder(store, url)
        if options.standby:
            await self._check_disk(folder.path)
        worker = await asyncio.to_thread(Worker.in_folder, folder.path, clock=clock)
        lease = WorkerLease(
            store, worker, url=str(url), lease_s=options.objects.lease_s, clock=clock, on_fenced=self._on_fenced
        )
        self._lease = lease
        await when_there_is_room(lease.start, name="lease", clock=clock)
        self._supervisor.start(lease.run(), name="lease")

    async def _check_disk(self, folder: Path) -> None:
        """Raise StorageError if the disk rejects writes: a standby must be able to take over, see `HandOver`."""
        try:
            await asyncio.to_thread(check_writable, self._files, folder)
        except OSError as error:
            raise DiskUnavailableError(f"cannot be written: {error.strerror or error}", subject=str(folder)) from error

    async def _own_folder(self, store: ObjectStore, url: StoreUrl) -> DataFolder:
        """Lock the data folder, as that of the server that owns the prefix from now on."""
        is_remote = self._options.has_remote_log
        while True:
            owner = await find_owner(store, url)
            known = owner.server_id or await server_of_history(store, url=str(url), is_repair=self._is_repair)
            # If everything is in the store, a new folder continues its history.
            server_id = known if is_remote else None
            folder = self._folder = await asyncio.to_thread(
                open_folder, self._files, self._options.data_folder, store=str(url), server_id=server_id
            )
            try:
                claimed = partial(claim, store, url, server_id=folder.server_id, is_new=folder.is_new, known=known)
                await when_there_is_room(claimed, name="prefix", clock=self._clock)
            except UnsupportedStoreError as error:
                if folder.is_new and not is_remote and await self._has_remote_log(store, url):
                    raise UnsupportedStoreError(
                        "the log of its server is in the object store, too: start this one with --log object, or with"
                        " another --store prefix",
                        subject=str(url),
                    ) from error
                if not (is_remote and folder.is_new) or server_id is not None:
                    raise
                # Another server claimed the empty prefix meanwhile.
                folder.lock.close()
            else:
                return folder

    async def _has_remote_log(self, store: ObjectStore, url: StoreUrl) -> bool:
        """Return whether the store has the log of the server that owns a prefix."""
        found = await read_manifest(store, 0, url=str(url))
        return found is not None and found.manifest.log is not None

    async def claim(
        self,
        local: LocalContainer,
        *,
        on_fenced: Callable[[OwnerFencedError], None] | None = None,
        on_standby: Callable[[Claimant], None] | None = None,
    ) -> Ownership:
        """Claim a container for one start of it. After a cancel it may be claimed or not.

        Args:
            local: its files in the data folder. Its checkpoint there is discarded if others have changed the container
                since, and all acknowledged events are in the store.
            on_fenced, on_standby: see `claim_container`.

        Raises:
            ConfigurationError: another server owns it, or has owned it since; names that server.
            OwnerFencedError: another server has taken over everything that this process owned.
            StorageError: the store does not answer.
        """
        if self._lease is None:
            return FolderOwnership(local.next_epoch)
        number = local.owner.container_id
        ownership = self._ownerships[number] = await claim_container(
            self._lease,
            number,
            files=self._files,
            folder=local.folder,
            server_id=local.owner.server_id,
            next_epoch=local.next_epoch,
            has_remote_log=self._options.has_remote_log,
            discard=local.discard,
            newest_copy=local.newest_copy,
            on_fenced=on_fenced,
            on_standby=on_standby,
        )
        if self._reserve is not None and not self._keeps_reserve:
            self._keeps_reserve = True
            self._supervisor.start(self._reserve.run(), name="reserve")
        return ownership

    async def end_tasks(self) -> None:
        """Cancel the renewal of the lease and of the reserve."""
        await self._supervisor.stop()

    async def close(self, *, release_s: float | None) -> None:
        """Release everything; call it after the containers have ended, even if `open` failed.

        Args:
            release_s: how long the store may take to record the release. After that the next owner has to wait for
                lease expiry. None: another server has taken over, so there is nothing to release.
        """
        if self._lease is not None and release_s is not None:
            try:
                async with self._clock.timeout(release_s):
                    await self._release(self._lease)
            except (ServerError, TimeoutError) as error:
                logger.warning("release failed, the next owner has to wait for lease expiry error=%r", error)
        await self.end_tasks()
        if self._storage is not None:
            await self._storage.close()
        if self._folder is not None:
            self._folder.lock.close()

    def health(self) -> str:
        """Return what is wrong with the store or the lease, empty if nothing is. May be called in any thread."""
        problems = [self._monitor.health()]
        if self._lease is not None and (age_s := self._lease.statistics().age_s) > self._lease.lease_s:
            problems.append(f"the lease was not renewed for {age_s:.0f} s: another server may take over")
        return "; ".join(filter(None, problems))

    async def _release(self, lease: WorkerLease) -> None:
        for ownership in self._ownerships.values():
            await ownership.release()
        await self.end_tasks()  # a lease that is renewed would be there again
        await lease.release()
