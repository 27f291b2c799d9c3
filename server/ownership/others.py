"""Leases of other servers with the same prefix: a claimant watches, ends and lists them."""

import logging
import uuid
from dataclasses import replace
from enum import Enum
from typing import Final

from millrace.server.errors import ManifestUnreadableError, ObjectChangedError, ObjectNotFoundError
from millrace.server.host.clock import Clock
from millrace.server.object_store import ObjectStore, StoredObject

from .lease_format import WORKERS_PREFIX, Ender, Lease, decode_lease, encode_lease, lease_key
from .manifest import Claimant
from .stored import read_object
from .worker import Worker

logger = logging.getLogger(__name__)

LOOKS_COUNT: Final = 4
"""In `lease_s`, by a claimant that watches the lease of another server."""


async def other_leases(store: ObjectStore, worker_id: uuid.UUID) -> dict[str, str]:
    """Return the key and the tag of each lease of another worker that was not ended.

    Costs a listing, and one request for each lease. A live lease has another tag after a third of its length.

    Raises:
        StorageError: the store does not answer.
    """
    own = lease_key(worker_id)
    keys = [each.key async for page in store.list(WORKERS_PREFIX) for each in page if each.key != own]
    found = {}
    for key in keys:
        try:
            lease = await store.get(key)
            if decode_lease(lease.content, place=key).ended_by is None:
                found[key] = lease.tag
        except (ObjectNotFoundError, ManifestUnreadableError):
            continue  # released since, or damaged: not the lease of a standby
    return found


class WatchOutcome(Enum):
    """Outcome of watching a lease."""

    ALIVE = "its owner renewed it"
    SILENT = "it was not renewed for its whole length"
    GONE = "it was deleted, or ended by another server"


async def watch_lease(store: ObjectStore, owner: Claimant, *, clock: Clock) -> tuple[WatchOutcome, StoredObject | None]:
    """Watch the lease of an owner until it changes, at most for its length; return also its last version.

    A lease that is missing, or was ended before, is watched for as long: its owner may not have noticed yet.

    Raises:
        StorageError: the store does not answer.
    """
    key = lease_key(owner.worker_id)
    first = await read_object(store, key)
    started_s = clock.monotonic_s()
    while True:
        await clock.sleep(owner.lease_s / LOOKS_COUNT)
        asked_s = clock.monotonic_s()
        found = await read_object(store, key)
        if (found and found.content) != (first and first.content):
            return (WatchOutcome.GONE if is_ended(found, key=key) else WatchOutcome.ALIVE), found
        if asked_s - started_s >= owner.lease_s:
            return WatchOutcome.SILENT, found


def is_ended(found: StoredObject | None, *, key: str) -> bool:
    """Return whether the lease with that key was deleted, or ended by another server; False if it is damaged."""
    if found is None:
        return True
    try:
        return decode_lease(found.content, place=key).ended_by is not None
    except ManifestUnreadableError as error:
        logger.error("lease damaged key=%s error=%s", key, error)
        return False


def _readable(found: StoredObject, owner: Claimant) -> Lease:
    """Return a lease; if it is damaged, the fields that the owner's claim has, too."""
    try:
        return decode_lease(found.content)
    except ManifestUnreadableError:
        return Lease(
            worker_id=owner.worker_id,
            host=owner.host,
            folder=owner.folder,
            pid=0,
            started=owner.since,
            lease_s=owner.lease_s,
        )


async def read_acknowledged(store: ObjectStore, owner: Claimant) -> int:
    """Return the last acknowledged batch in the lease of an owner; 0 if the lease is missing or damaged.

    Raises:
        StorageError: the store does not answer.
    """
    found = await read_lease(store, owner)
    return 0 if found is None else _readable(found, owner).acknowledged


async def end_lease(store: ObjectStore, owner: Claimant, *, found: StoredObject | None, by: Worker) -> bool:
    """End the lease of another worker, which then fails at its next renewal; return whether it is ended.

    Args:
        found: the lease as it was read, None if it was missing.

    A damaged lease is ended as well: if its owner is alive after all, it finds an object that it did not put.

    Raises:
        StorageError: the lease may be ended.
    """
    key = lease_key(owner.worker_id)
    if found is None or is_ended(found, key=key):
        return True
    ender = Ender(worker_id=by.worker_id, host=by.host, folder=by.folder)
    content = encode_lease(replace(_readable(found, owner), ended_by=ender))
    try:
        await store.replace(key, content, tag=found.tag)
        return True
    except ObjectChangedError:
        return is_ended(await read_object(store, key), key=key)


async def read_lease(store: ObjectStore, owner: Claimant) -> StoredObject | None:
    """Return the lease of an owner as it is stored, None if it is missing.

    Raises:
        StorageError: the store does not answer.
    """
    return await read_object(store, lease_key(owner.worker_id))
