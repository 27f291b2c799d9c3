"""Rebuilds a manifest that is missing or damaged, for a log in the object store.

All fields of the manifest are stored elsewhere, too:

    server_id           in `cluster.json`, and in the header of each object of the log
    checkpoint          the newest complete copy: an owner deletes chunks that only older copies need
    log.from_sequence   in the header of that copy
    log.first_epoch     the first epoch without a fence, or with a fence above from_sequence: no earlier one is needed
    log.last_epoch      in the names of the log objects, see below
    log.acknowledged    in the leases, as of their last renewals
    claimant            the owner of the lease with the highest `epoch` that was not ended, then `acknowledged`: the
                        leases of standbys have neither. A claim stores its epoch in the lease first, so no owner is
                        missed

Theory. The epoch of the rebuilding claim must be above each epoch that was ever claimed, and every claimed epoch from
first_epoch on must be in the log, so that the claim closes it. An owner closes all earlier epochs with fences before it
stores a batch, and fences stay. So the owner whose epoch is the highest with a batch, and any owner that has not stored
a batch yet, have at most epoch `last + 1`, where `last` is the highest epoch in the names. Only claims that have not
closed the earlier epochs can be above that: each of them has failed, or is still under way. `UNSEEN_COUNT_MAX` epochs
are left for them. If there were more, two owners might share an epoch. They compete for the same names then, so no
sequence is acknowledged twice; but the log of the second one ends, and may have to be repaired.

Two claims may rebuild at once. Each puts its manifest in the place of the missing or damaged one, by a conditional put.
One succeeds, and the other starts over.
"""

import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from millrace.server.errors import (
    FolderVersionError,
    ManifestDamagedError,
    ManifestUnreadableError,
    ObjectNotFoundError,
    UnsupportedStoreError,
)
from millrace.server.object_store import ObjectStore
from millrace.server.wal import decode_log_object, is_fence_size, parse_log_name

from .lease_format import WORKERS_PREFIX, Lease, decode_lease
from .manifest import Claimant, Manifest, log_prefix, manifest_key
from .manifest_ownership import read_manifest
from .ownership import CopyRecord, RemoteLog
from .worker import Worker

UNSEEN_COUNT_MAX: Final = 8
"""Epochs that may have been claimed above the highest one in the names of the log objects."""

NewestCopy = Callable[[], Awaitable[CopyRecord | None]]
"""Returns the newest complete copy of the checkpoint of a container, by name; None if there is none."""


async def rebuilt_manifest(
    store: ObjectStore, container: int, *, server_id: uuid.UUID, worker: Worker, newest_copy: NewestCopy
) -> Manifest | None:
    """Return the manifest of a container, rebuilt from other objects; None if the container has no log.

    Args:
        server_id: owner of the prefix.
        worker: this process, which is about to claim the container.

    Raises:
        StorageError: the store does not answer.
    """
    fences = await _fences(store, container)
    if not fences:
        return None
    copy = await newest_copy()
    begin = 1 if copy is None else copy.replay_from
    last = max(fences)
    open_epochs = (epoch for epoch, fence in fences.items() if fence is None or fence > begin)
    leases = await _leases(store)
    others = [each for each in leases if not each.ended_by and each.worker_id != worker.worker_id]
    owners = [each for each in others if each.epoch or each.acknowledged]
    owner = max(owners, key=lambda lease: (lease.epoch, lease.acknowledged), default=None)
    return Manifest(
        server_id=server_id,
        container=container,
        epoch=last + UNSEEN_COUNT_MAX,
        claim_id=uuid.uuid4(),
        changes=0,
        claimant=Claimant.of_worker(worker, since=worker.started, lease_s=0.0) if owner is None else _claimant(owner),
        is_released=owner is None,
        checkpoint=copy,
        log=RemoteLog(
            first_epoch=min(open_epochs, default=last + 1),
            last_epoch=last + UNSEEN_COUNT_MAX,
            from_sequence=begin,
            acknowledged=max((each.acknowledged for each in leases), default=0),
        ),
    )


async def has_log(store: ObjectStore, container: int) -> bool:
    """Return whether a container has a log in the store."""
    async for page in store.list(log_prefix(container)):
        return bool(page)
    return False


async def server_of_history(store: ObjectStore, *, url: str, is_repair: bool) -> uuid.UUID | None:
    """Return the server that a history belongs to, without `cluster.json`; None if there is no history.

    Args:
        is_repair: whether to use the objects of the log if the manifest cannot be read. The operator must have stopped
            all servers of the prefix.

    Raises:
        UnsupportedStoreError: the store has a log without a readable manifest, and this is not a repair.
        ManifestUnreadableError: the manifest was written by another version.
        StorageError: the store does not answer.
    """
    try:
        found = await read_manifest(store, 0, url=url)
    except ManifestDamagedError:
        found = None
    if found is not None:
        return found.manifest.server_id
    if not await has_log(store, 0):
        return None
    if is_repair:
        return await _server_of_log(store, 0)
    raise UnsupportedStoreError(
        f"contains the log of a server, but cluster.json and {manifest_key(0)} are missing or damaged: put one of"
        f" them back, or stop all servers of this prefix and run `millrace repair --store {url} --accept-loss`",
        subject=url,
    )


async def _server_of_log(store: ObjectStore, container: int) -> uuid.UUID | None:
    """Return the server that the first readable object of a log belongs to."""
    prefix = log_prefix(container)
    async for page in store.list(prefix):
        for each in page:
            point = parse_log_name(each.key.removeprefix(prefix))
            if point is None:
                continue
            try:
                content = (await store.get(each.key)).content
                header = decode_log_object(content, point, owner=None, place=each.key).header
            except (ObjectNotFoundError, FolderVersionError):
                continue
            if header is not None:
                return header.server_id
    return None


async def _fences(store: ObjectStore, container: int) -> dict[int, int | None]:
    """Return the highest fence of each epoch in the names of the log objects; None for an epoch without a fence."""
    prefix = log_prefix(container)
    found: dict[int, int | None] = {}
    async for page in store.list(prefix):
        for each in page:
            if (point := parse_log_name(each.key.removeprefix(prefix))) is None:
                continue
            fence = found.setdefault(point.epoch, None)
            if is_fence_size(each.size):
                found[point.epoch] = max(fence or 0, point.sequence)
    return found


async def _leases(store: ObjectStore) -> list[Lease]:
    """Return all leases of the prefix that can be read."""
    found = []
    async for page in store.list(WORKERS_PREFIX):
        for each in page:
            try:
                found.append(decode_lease((await store.get(each.key)).content, place=each.key))
            except (ObjectNotFoundError, ManifestUnreadableError):
                continue  # released since, or damaged: no other object has its fields
    return found


def _claimant(owner: Lease) -> Claimant:
    """Return the owner of a lease as the claimant of a container; its place is unknown."""
    return Claimant(
        worker_id=owner.worker_id,
        host=owner.host,
        folder=owner.folder,
        place="",
        since=owner.started,
        lease_s=owner.lease_s,
    )
