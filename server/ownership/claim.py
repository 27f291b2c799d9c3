"""Claiming a container in an object store.

In this order, at each start of a container:

1. Read the manifest. One that is missing or damaged is rebuilt if the store contains a log (`rebuild`). If the store
has neither, this folder must never have claimed the container: otherwise the history is gone, or the bucket is the
wrong one. 2. The newest claim must be known to the folder (`folder_claim`). An unknown claim was made by another
folder, which has acknowledged events that are missing in this one. If the log is in the store, any folder can claim the
container, because the events are there; but a folder that does not know the newest claim first discards its own files.
3. The container must have no live owner. Processes in one folder run one after the other, because the folder is locked;
the lease of any other owner is watched (`lease`). If the owner is silent, its lease is ended, so that it notices. 4.
Write the new claim into the folder, its epoch into the lease, then the claim into the manifest, by compare-and-swap: of
any number of claimants one succeeds, and the others start over. The lease comes first, so that a claim that rebuilds
the manifest finds each owner (`rebuild`). A claimant that starts over clears the epoch before it reads anything: of two
claimants, at most one waits for the lease of the other.

A crash between any two steps leaves a folder that can claim the container, or in which a claim is rejected.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from millrace.server.errors import (
    ManifestDamagedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OwnedElsewhereError,
    OwnerFencedError,
    StorageError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from millrace.server.host.files import FileSystem
from millrace.server.object_store import StoredObject
from millrace.server.wal import parse_log_name

from .fields import utc_text
from .folder_claim import NO_CLAIM, FolderClaim, read_folder_claim, write_folder_claim
from .lease import WorkerLease
from .lease_format import lease_key
from .manifest import EPOCHS_COUNT_MAX, Claimant, Manifest, encode_manifest, log_prefix, manifest_key
from .manifest_ownership import ATTEMPTS_COUNT_MAX, FoundManifest, ManifestOwnership, read_manifest, subject_of
from .others import WatchOutcome, end_lease, read_acknowledged, read_lease, watch_lease
from .ownership import RemoteLog
from .rebuild import NewestCopy, has_log, rebuilt_manifest
from .standby import stand_by

logger = logging.getLogger(__name__)


async def claim_container(
    lease: WorkerLease,
    container: int,
    *,
    files: FileSystem,
    folder: Path,
    server_id: uuid.UUID,
    next_epoch: int,
    has_remote_log: bool = False,
    discard: Callable[[], None] = lambda: None,
    newest_copy: NewestCopy,
    on_fenced: Callable[[OwnerFencedError], None] | None = None,
    on_standby: Callable[[Claimant], None] | None = None,
) -> ManifestOwnership:
    """Claim a container for this process, again if it owns it already, and return the ownership.

    After a cancel the claim may have succeeded or not; the folder records it, so the next claim in it is possible.

    Args:
        lease: of this process, started.
        folder: of the container, with its log and checkpoint.
        next_epoch: above all epochs that the folder knows.
        has_remote_log: whether the log is to be in the store.
        discard: deletes the files of the container in the folder, which other servers have superseded; blocks.
        newest_copy: called to rebuild a manifest that is missing or damaged.
        on_fenced: called once, in the loop, when another server has taken over; the lease's by default.
        on_standby: called with each other owner that is found; the claim then waits for as long as that owner lives.
            None: the claim fails if it finds a live owner.

    Raises:
        OwnedElsewhereError: another server owns the container, or has owned it since this folder did; names that
            server, and what to do.
        UnsupportedStoreError: a required manifest is missing, or belongs to another server, or the log is elsewhere.
        ConfigurationError: the claim file of the folder is damaged.
        OwnerFencedError: another server has taken over everything that this process owned.
        StorageError: the disk or the store cannot be used now. Try again.
    """
    claiming = _ClaimAttempt(
        lease,
        container,
        files=files,
        folder=folder,
        server_id=server_id,
        next_epoch=next_epoch,
        has_remote_log=has_remote_log,
        discard=discard,
        newest_copy=newest_copy,
        on_standby=on_standby,
    )
    found = await claiming.claim()
    return ManifestOwnership(lease, found, on_fenced=on_fenced or lease.on_fenced)


class _ClaimAttempt:
    """A claim that is under way."""

    def __init__(
        self,
        lease: WorkerLease,
        container: int,
        *,
        files: FileSystem,
        folder: Path,
        server_id: uuid.UUID,
        next_epoch: int,
        has_remote_log: bool,
        discard: Callable[[], None],
        newest_copy: NewestCopy,
        on_standby: Callable[[Claimant], None] | None,
    ) -> None:
        self._has_remote_log = has_remote_log
        self._discard = discard
        self._newest_copy = newest_copy
        self._on_standby = on_standby
        self._lease = lease
        self._store = lease.store
        self._worker = lease.worker
        self._container = container
        self._files = files
        self._folder = folder
        self._server_id = server_id
        self._next_epoch = next_epoch
        self._subject = subject_of(container, lease.url)
        # The owner whose lease was ended last.
        self._ended: uuid.UUID | None = None
        # The tag of a manifest that was reset to an older version; empty if none was seen.
        self._outdated_tag = ""

    async def claim(self) -> FoundManifest:
        """Go through the steps until a claim succeeds, or none can; a standby retries when the store fails."""
        while True:
            try:
                return await self._claim()
            except (StoreUnavailableError, StoreRefusedError) as error:
                if self._on_standby is None:
                    raise
                logger.warning(
                    "standby cannot reach the object store retry_after_s=%g error=%s", self._lease.lease_s, error
                )
                await self._lease.clock.sleep(self._lease.lease_s)

    async def _claim(self) -> FoundManifest:
        owner: Claimant | None = None
        failed_count = 0
        while failed_count < ATTEMPTS_COUNT_MAX:
            await self._lease.confirm()
            await self._announce(0)
            mine = await asyncio.to_thread(read_folder_claim, self._files, self._folder)
            found = await self._find()
            self._check_ours(found, mine)
            owner = found.manifest.owner if found else None
            knows = _knows(mine, found)
            if owner is not None and not await self._is_over(owner, mine, knows=knows):
                # The owner released the container meanwhile, or another server takes over. A standby retries without
                # limit.
                failed_count = 0 if self._on_standby else failed_count + 1
                continue
            await self._lease.confirm()  # it may have stalled while it waited
            if owner is not None and found is not None and not found.content:
                continue  # rebuilt from the leases: there may be further owners whose leases are not ended
            if found is not None and await self._is_outdated(found.manifest):
                self._outdated_tag = found.tag
                continue
            wanted = self._wanted(found, acknowledged=await self._acknowledged(found))
            if self._has_remote_log and not knows:
                # Discard before the claim is in the folder: otherwise a crash in between would keep the superseded
                # files.
                await _to_the_end(self._discard)
            begun = (mine or NO_CLAIM).begun(wanted.claim_id, over=found.manifest.claim_id if found else None)
            await self._keep(begun)
            await self._announce(wanted.epoch)
            if (tag := await self._put(found, encode_manifest(wanted))) is None:
                failed_count += 1
                continue
            await self._keep(FolderClaim(wanted.claim_id))
            self._log(wanted, owner)
            await self._forget(owner)
            return FoundManifest(wanted, encode_manifest(wanted), tag)
        raise OwnedElsewhereError(
            f"{owner or 'another server'} is claiming it at the same time; stop one of the two servers",
            subject=self._subject,
        )

    async def _announce(self, epoch: int) -> None:
        """Store the epoch of a claim in the lease, if the manifest could be rebuilt from it."""
        if self._has_remote_log:
            await self._lease.announce(epoch)

    def _check_ours(self, found: FoundManifest | None, mine: FolderClaim | None) -> None:
        """Raise if the data in the folder are not the newest of the container."""
        folder, url = self._worker.folder, self._lease.url
        if found is None:
            if mine is not None and mine.claimed is not None:
                advice = f" If only the manifest is lost, run `millrace restore --store {url}` into a new folder"
                raise UnsupportedStoreError(
                    f"holds no manifest{' and no log' if self._has_remote_log else ''}, though the server in {folder}"
                    f" has claimed it: is it the right bucket?{'' if self._has_remote_log else advice}",
                    subject=self._subject,
                )
            return
        manifest = found.manifest
        if manifest.server_id != self._server_id:
            raise UnsupportedStoreError(
                f"belongs to server {manifest.server_id}, but this is server {self._server_id}", subject=self._subject
            )
        if self._has_remote_log != (manifest.log is not None):
            is_remote = manifest.log is not None
            place = "in the object store" if is_remote else f"in the folder of {manifest.claimant}"
            raise UnsupportedStoreError(
                f"keeps its log {place}, and that cannot change: start it with --log"
                f" {'object' if is_remote else 'local'}, or with a new --store prefix",
                subject=self._subject,
            )
        if self._has_remote_log:
            return
        if mine is not None and mine.knows(manifest.claim_id):
            self._check_restored(manifest, mine)
            return
        claimant = manifest.claimant
        what = f"was claimed by {claimant} at {claimant.since}"
        if manifest.is_released:
            what += ", which has released it"
        why = "never been its owner" if mine is None else "not been its owner since"
        raise OwnedElsewhereError(
            f"{what}; the data in {folder} on {self._worker.host} have {why} and are superseded: move that folder away"
            f" and run `millrace restore --store {url} {folder}`, or start the server that has claimed it",
            subject=self._subject,
        )

    def _check_restored(self, manifest: Manifest, mine: FolderClaim) -> None:
        """Raise if the folder was restored from another copy than the current one."""
        if mine.restored_from is None or manifest.claim_id != mine.claimed:
            return
        name = manifest.checkpoint.name if manifest.checkpoint else ""
        if name != mine.restored_from:
            folder = self._worker.folder
            raise OwnedElsewhereError(
                f"its history has changed since {folder} was restored from {mine.restored_from or 'nothing'}: it is at"
                f" {name or 'nothing'} now, from {manifest.claimant}; move that folder away and run `millrace restore"
                f" --store {self._lease.url} {folder}` again",
                subject=self._subject,
            )

    async def _is_over(self, owner: Claimant, mine: FolderClaim | None, *, knows: bool) -> bool:
        """Return whether an owner is dead, False if the manifest is to be read again.

        Args:
            mine: the claims of this folder.
            knows: whether the owner's claim is, or was, one of them.

        Raises:
            OwnedElsewhereError: the owner is alive, and this process is not a standby.
        """
        if owner.worker_id in (self._worker.worker_id, self._ended):
            return True
        is_restored = mine is not None and mine.restored_from is not None
        if owner.place == self._worker.place and knows and not is_restored:
            # The owner had the lock of the folder that this process holds: it has crashed. In case the place is that of
            # a copy of this machine after all, its lease is ended, so that it notices. A folder that was restored never
            # had an owner, nor has one that does not know the claim. Two machines may have the same place, because
            # containers get equal names and volumes.
            is_alive, found = False, await read_lease(self._store, owner)
        else:
            if self._on_standby is not None:
                self._on_standby(owner)
                watched, found = await stand_by(
                    self._store, owner, clock=self._lease.clock, fenced=lambda: self._lease.fenced
                )
                if watched is WatchOutcome.SILENT:
                    await self._end(owner, found)
                return False  # the owner may have changed the manifest since it was read
            logger.info(
                "container has an owner, watching its lease container=%d host=%s folder=%s since=%s lease_s=%g",
                self._container,
                owner.host,
                owner.folder,
                owner.since,
                owner.lease_s,
            )
            watched, found = await watch_lease(self._store, owner, clock=self._lease.clock)
            if watched is WatchOutcome.GONE:
                return False
            is_alive = watched is WatchOutcome.ALIVE
        if is_alive or not await self._end(owner, found):
            raise OwnedElsewhereError(
                f"is served by {owner} since {owner.since}; stop that server first"
                + (", or start this one with --standby" if self._has_remote_log else ""),
                subject=self._subject,
            )
        return True

    async def _end(self, owner: Claimant, found: StoredObject | None) -> bool:
        """End the lease of an owner, which is not watched again then; return whether the lease is ended."""
        is_ended = await end_lease(self._store, owner, found=found, by=self._worker)
        if is_ended:
            self._ended = owner.worker_id
        return is_ended

    async def _find(self) -> FoundManifest | None:
        """Return the manifest, rebuilt if missing, damaged or outdated; None if there is nothing to rebuild it from.

        Raises:
            ManifestDamagedError: the store has no log to rebuild it from.
            UnsupportedStoreError: the manifest is missing, and the log is in the store instead of the folder.
        """
        tag, damage = "", None
        try:
            found = await read_manifest(self._store, self._container, url=self._lease.url)
        except ManifestDamagedError as error:
            found, damage = None, error
            tag = await self._tag()
        if found is not None and found.tag != self._outdated_tag:
            return found
        tag = found.tag if found is not None else tag
        rebuilt = await self._rebuilt(tag) if self._has_remote_log else None
        if rebuilt is None and damage is not None:
            raise damage
        if not self._has_remote_log and await has_log(self._store, self._container):
            raise UnsupportedStoreError(
                "contains a log but no manifest: start the server with --log object, or with a new --store prefix",
                subject=self._subject,
            )
        return rebuilt

    async def _tag(self) -> str:
        """Return the tag of the object at the manifest's key, empty if it is missing."""
        try:
            return (await self._store.get(manifest_key(self._container))).tag
        except ObjectNotFoundError:
            return ""

    async def _rebuilt(self, tag: str) -> FoundManifest | None:
        """Return the manifest, rebuilt from other objects, to be put in the place of the object with a tag."""
        manifest = await rebuilt_manifest(
            self._store,
            self._container,
            server_id=self._server_id,
            worker=self._worker,
            newest_copy=self._newest_copy,
        )
        if manifest is None:
            return None
        logger.warning(
            "manifest missing, damaged or outdated, rebuilt container=%d checkpoint=%s log=%s url=%s",
            self._container,
            manifest.checkpoint,
            manifest.log,
            self._lease.url,
        )
        return FoundManifest(manifest, b"", tag)

    async def _is_outdated(self, manifest: Manifest) -> bool:
        """Return whether the log has a later epoch: the manifest was reset to an older version."""
        if manifest.log is None:
            return False
        prefix = log_prefix(self._container)
        last = f"{prefix}{manifest.epoch:08d}/{'9' * 16}"
        async for page in self._store.list(prefix, after=last):
            if any(parse_log_name(each.key.removeprefix(prefix)) for each in page):
                return True
        return False

    async def _acknowledged(self, found: FoundManifest | None) -> int:
        """Return the last batch of the log that is known to be acknowledged, for the manifest."""
        if found is None or found.manifest.log is None:
            return 0
        acknowledged = max(found.manifest.log.acknowledged, self._lease.acknowledged)
        if (owner := found.manifest.owner) is None:
            return acknowledged
        # Read after the lease has ended: the fence decides about later batches.
        return max(acknowledged, await read_acknowledged(self._store, owner))

    def _wanted(self, found: FoundManifest | None, *, acknowledged: int) -> Manifest:
        """Return the manifest with this process as the owner."""
        clock, lease_s = self._lease.clock, self._lease.lease_s
        claimant = Claimant.of_worker(self._worker, since=utc_text(clock.unix_us()), lease_s=lease_s)
        if found is None:
            return Manifest(
                server_id=self._server_id,
                container=self._container,
                epoch=self._next_epoch,
                claim_id=uuid.uuid4(),
                changes=0,
                claimant=claimant,
                is_released=False,
                checkpoint=None,
                log=RemoteLog(first_epoch=self._next_epoch, last_epoch=self._next_epoch, from_sequence=1)
                if self._has_remote_log
                else None,
            )
        epoch, log = max(self._next_epoch, found.manifest.epoch + 1), found.manifest.log
        if log is not None:
            if epoch - log.first_epoch >= EPOCHS_COUNT_MAX:
                raise StorageError(
                    f"cannot be claimed: epochs {log.first_epoch} to {epoch} of its log have no copy of the checkpoint"
                    f" between them; at most {EPOCHS_COUNT_MAX} are allowed",
                    subject=self._subject,
                )
            log = replace(log, last_epoch=epoch, acknowledged=acknowledged)
        return replace(
            found.manifest,
            epoch=epoch,
            claim_id=uuid.uuid4(),
            changes=found.manifest.changes + 1,
            claimant=claimant,
            is_released=False,
            log=log,
        )

    async def _put(self, found: FoundManifest | None, content: bytes) -> str | None:
        """Replace a manifest, and return the new tag; None if the old one has changed meanwhile."""
        key = manifest_key(self._container)
        try:
            if found is None or not found.tag:
                return await self._store.create(key, [content])
            return await self._store.replace(key, content, tag=found.tag)
        except (ObjectExistsError, ObjectChangedError):
            return None

    async def _keep(self, claim: FolderClaim) -> None:
        """Write the claims of the folder."""
        await _to_the_end(partial(write_folder_claim, self._files, self._folder, claim))

    def _log(self, wanted: Manifest, owner: Claimant | None) -> None:
        if owner is not None and owner.place != self._worker.place:
            logger.warning(
                "container taken over container=%d from_host=%s from_folder=%s since=%s silent_s=%g",
                self._container,
                owner.host,
                owner.folder,
                owner.since,
                owner.lease_s,
            )
        logger.info(
            "container claimed container=%d epoch=%d claim=%s url=%s",
            self._container,
            wanted.epoch,
            wanted.claim_id,
            self._lease.url,
        )

    async def _forget(self, owner: Claimant | None) -> None:
        """Delete the lease of an earlier process of this folder; an owner elsewhere has to find its lease ended."""
        if owner is None or owner.worker_id == self._worker.worker_id or owner.place != self._worker.place:
            return
        key = lease_key(owner.worker_id)
        try:
            await self._store.delete([key])
        except StorageError as error:
            logger.warning("lease of the previous owner not deleted key=%s error=%s", key, error)


def _knows(mine: FolderClaim | None, found: FoundManifest | None) -> bool:
    """Return whether the claim in a manifest is, or may be, of this folder."""
    return found is not None and mine is not None and mine.knows(found.manifest.claim_id)


async def _to_the_end(change: Callable[[], None]) -> None:
    """Change the folder in a thread, to the end even if cancelled: a late change would undo one of the next process."""
    changing = asyncio.ensure_future(asyncio.to_thread(change))
    try:
        await asyncio.shield(changing)
    except asyncio.CancelledError:
        await asyncio.wait([changing])
        raise
