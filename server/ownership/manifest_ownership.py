"""The ownership of a container in an object store: changes the manifest for as long as it belongs to this process."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from millrace.server.errors import (
    ManifestDamagedError,
    ObjectChangedError,
    ObjectNotFoundError,
    OwnerFencedError,
    StoreUnavailableError,
)
from millrace.server.object_store import ObjectStore

from .lease import WorkerLease
from .manifest import Manifest, decode_manifest, encode_manifest, manifest_key
from .ownership import CopyRecord, OwnershipStatistics, RemoteLog

logger = logging.getLogger(__name__)

ATTEMPTS_COUNT_MAX: Final = 8
"""Attempts at a claim, and at a change: each attempt but the last may lose to a concurrent change."""


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """A manifest as stored, or as it is to be stored.

    Attributes:
        content: empty if the manifest was rebuilt.
        tag: of the object in its place; empty if it is missing.
    """

    manifest: Manifest
    content: bytes
    tag: str


async def read_manifest(store: ObjectStore, container: int, *, url: str) -> FoundManifest | None:
    """Return the manifest of a container; None if it is missing.

    Raises:
        ManifestDamagedError: the manifest is damaged.
        ManifestUnreadableError: it belongs to another container, or was written by another version.
        StorageError: the store does not answer.
    """
    key = manifest_key(container)
    try:
        found = await store.get(key)
    except ObjectNotFoundError:
        return None
    return FoundManifest(
        decode_manifest(found.content, container=container, place=f"{url}/{key}"), found.content, found.tag
    )


class ManifestOwnership:
    """The `Ownership` of a container, kept in its manifest.

    All changes are compare-and-swap against the version that was seen last, one after the other.

    Args:
        lease: of this process.
        found: the manifest, claimed by this process.
        on_fenced: see `claim_container`.
    """

    def __init__(
        self, lease: WorkerLease, found: FoundManifest, *, on_fenced: Callable[[OwnerFencedError], None]
    ) -> None:
        self.is_shared = True
        self._lease = lease
        self._found = found
        self._on_fenced = on_fenced
        self._changing = asyncio.Lock()
        self._fenced: OwnerFencedError | None = None
        # Where earlier epochs of the log have ended; empty before the epoch of this start begins.
        self._epoch_ends: Mapping[int, int] = {}
        # Names of current copies that this start could not use.
        self._unusable: set[str] = set()

    @property
    def epoch(self) -> int:
        """Epoch of this start, see `Ownership`."""
        return self._found.manifest.epoch

    @property
    def claim_id(self) -> uuid.UUID:
        """The claim that created this ownership."""
        return self._found.manifest.claim_id

    @property
    def is_stalled(self) -> bool:
        """Whether this process stalled, see `Ownership`."""
        return self._lease.is_stalled

    @property
    def is_lapsed(self) -> bool:
        """Whether the lease has expired, see `Ownership`."""
        return self.log is not None and self._lease.is_lapsed

    @property
    def store(self) -> str:
        """URL of the store if it has the log, see `Ownership`."""
        return "" if self.log is None else self._lease.url

    @property
    def copy(self) -> CopyRecord | None:
        """The copy that the manifest names, see `Ownership`."""
        return self._found.manifest.checkpoint

    @property
    def copy_before(self) -> CopyRecord | None:
        """The previous copy that the manifest names, see `Ownership`."""
        return self._found.manifest.checkpoint_before

    def copy_unusable(self, name: str) -> None:
        """Note that a copy is missing or damaged, see `Ownership`."""
        self._unusable.add(name)

    @property
    def log(self) -> RemoteLog | None:
        """Location of the log, see `Ownership`."""
        return self._found.manifest.log

    def log_began(self, epoch_ends: Mapping[int, int], *, acknowledged: Callable[[], int]) -> None:
        """Record where earlier epochs of the log have ended, see `Ownership`."""
        self._epoch_ends = dict(epoch_ends)
        if self.log is not None:
            self._lease.watch_acknowledged(acknowledged)

    @property
    def fenced(self) -> OwnerFencedError | None:
        """The error that names the server that has taken over the container or the lease; None if none is known."""
        return self._fenced or self._lease.fenced

    def statistics(self) -> OwnershipStatistics:
        """Return the state of the ownership, see `Ownership`."""
        lease = self._lease.statistics()
        return OwnershipStatistics(
            epoch=self.epoch,
            claimed=self._found.manifest.claimant.since,
            is_fenced=self.fenced is not None,
            is_stalled=lease.is_stalled,
            renewals_count=lease.renewals_count,
            failed_renewals_count=lease.failures_count,
            lease_age_s=lease.age_s,
        )

    async def record_copy(self, copy: CopyRecord) -> None:
        """Record a copy in the manifest, and let the log begin where the previous copy needs it, see `Ownership`.

        After a cancel the copy may be recorded or not.
        """
        await self._change(partial(self._with_copy, copy))

    def _with_copy(self, copy: CopyRecord, manifest: Manifest) -> Manifest:
        kept = [manifest.checkpoint, manifest.checkpoint_before]
        before = next((each for each in kept if each and each != copy and each.name not in self._unusable), None)
        log = manifest.log and self._shortened(manifest.log, before.replay_from if before else 1)
        return replace(manifest, checkpoint=copy, checkpoint_before=before, log=log)

    def _shortened(self, log: RemoteLog, from_sequence: int) -> RemoteLog:
        """Return the log from a batch on, without epochs that end before it: no other epoch depends on their fences."""
        first = max(log.from_sequence, from_sequence)
        # Epochs end in order, and that of this start has not ended.
        needed = next(each for each in log.epochs if self._epoch_ends.get(each, first + 1) > first)
        return replace(log, first_epoch=needed, from_sequence=first)

    async def raise_epoch(self) -> int:
        """Continue under the next epoch, see `Ownership`. After a cancel it may be raised or not."""
        await self._change(lambda manifest: replace(manifest, epoch=manifest.epoch + 1))
        return self.epoch

    async def release(self) -> None:
        """Mark the container as released in the manifest, see `Ownership`.

        Does nothing if another server owns the container.

        Raises:
            OwnerFencedError: another server owns the container, as this call noticed.
        """
        if self.fenced is not None or self._found.manifest.is_released:
            return
        await self._change(lambda manifest: replace(manifest, is_released=True))
        logger.info(
            "container released container=%d epoch=%d url=%s",
            self._found.manifest.container,
            self.epoch,
            self._lease.url,
        )

    async def _change(self, edit: Callable[[Manifest], Manifest]) -> None:
        async with self._changing:
            for _ in range(ATTEMPTS_COUNT_MAX):
                if self.fenced is not None:
                    raise self.fenced
                before = self._found
                wanted = self._acknowledging(replace(edit(before.manifest), changes=before.manifest.changes + 1))
                content = encode_manifest(wanted)
                key = manifest_key(wanted.container)
                try:
                    tag = await self._lease.store.replace(key, content, tag=before.tag)
                except ObjectChangedError:
                    if await self._look_again() == content:
                        return
                    continue  # a change of this process, whose answer was lost, arrived late
                self._found = FoundManifest(wanted, content, tag)
                return
            raise StoreUnavailableError(
                f"the manifest was changed {ATTEMPTS_COUNT_MAX} times meanwhile", subject=manifest_key(wanted.container)
            )

    def _acknowledging(self, manifest: Manifest) -> Manifest:
        """Return a manifest with the last acknowledged batch, if its log is in the store."""
        if manifest.log is None:
            return manifest
        acknowledged = max(manifest.log.acknowledged, self._lease.acknowledged)
        return replace(manifest, log=replace(manifest.log, acknowledged=acknowledged))

    async def _look_again(self) -> bytes:
        """Read the manifest again after a concurrent change, and return it.

        Raises:
            OwnerFencedError: another owner changed it; or it is missing or damaged, and the next claim rebuilds it.
        """
        ours = self._found.manifest
        try:
            found = await read_manifest(self._lease.store, ours.container, url=self._lease.url)
        except ManifestDamagedError:
            if ours.log is None:
                raise
            found = None
        if found is None or found.manifest.claim_id != ours.claim_id:
            self._fenced = _fenced_error(found, container=ours.container, lease=self._lease)
            logger.critical(
                "container fenced container=%d epoch=%d reason=%s", ours.container, ours.epoch, self._fenced
            )
            # A later claim of this very process is no reason to exit.
            if found is None or found.manifest.claimant.worker_id != self._lease.worker.worker_id:
                self._on_fenced(self._fenced)
            raise self._fenced
        if found.manifest.changes < ours.changes:
            # It was reset to an older version, which names objects that are deleted by now.
            self._found = replace(self._found, tag=found.tag)
        else:
            self._found = found
        return found.content


def _fenced_error(found: FoundManifest | None, *, container: int, lease: WorkerLease) -> OwnerFencedError:
    subject = subject_of(container, lease.url)
    if found is None:
        return OwnerFencedError(
            "its manifest was deleted or damaged while it was served, so nothing may be changed",
            subject=subject,
        )
    claimant = found.manifest.claimant
    if claimant.worker_id == lease.worker.worker_id:
        return OwnerFencedError("this process has claimed it again", subject=subject)
    return OwnerFencedError(
        f"{claimant} has taken it over at {claimant.since}; the server {lease.worker} must end, and the data in its"
        f" folder are superseded",
        subject=subject,
    )


def subject_of(container: int, url: str) -> str:
    """Return the name of a container in a store, for errors."""
    return f"container {container} of {url}"
