"""Leases of other servers with the same prefix: of standbys, and of servers that were killed."""

import uuid

from millrace.server.errors import ManifestUnreadableError, ObjectNotFoundError
from millrace.server.object_store import ObjectStore

from .lease import WORKERS_PREFIX, decode_lease, lease_key


async def other_leases(store: ObjectStore, worker_id: uuid.UUID) -> dict[str, str]:
    """Return the key and the tag of each lease of another worker that was not ended.

    A listing, and one request for each. One that is still renewed has another tag after a third of its length.

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
            continue  # released since, or damaged: no standby has it
    return found
