"""Waits until the owner of a container has ended, for as long as it lives.

A normal start fails if it finds an owner that renews its lease (`watch_lease`). A standby waits on. It reads the lease
more often, since a takeover begins with the read that finds it silent for its whole length. Only the owner's silence
counts: after an outage of the store, in which the owner could not renew its lease and no server could have read it, the
whole length counts again.
"""

import logging
from collections.abc import Callable
from typing import Final

from millrace.server.errors import OwnerFencedError, StorageError
from millrace.server.host.clock import Clock
from millrace.server.object_store import ObjectStore, StoredObject

from .lease import RENEWALS_COUNT
from .lease_format import lease_key
from .manifest import Claimant
from .others import WatchOutcome, is_ended, read_lease

logger = logging.getLogger(__name__)

LOOKS_COUNT: Final = 12
"""Reads in the length of the lease; each is one GET."""


async def stand_by(
    store: ObjectStore, owner: Claimant, *, clock: Clock, fenced: Callable[[], OwnerFencedError | None] = lambda: None
) -> tuple[WatchOutcome, StoredObject | None]:
    """Wait until the lease of an owner was unchanged for its whole length, or is gone; return also its last version.

    Cancelling is safe: nothing is changed.

    Args:
        fenced: returns the error that names the server that ended the lease of this one; None while it is valid.

    Raises:
        OwnerFencedError: from `fenced`: a server whose lease was ended can claim nothing.
    """
    seen: StoredObject | None = None
    since_s: float | None = None
    is_failing = False
    while (fence := fenced()) is None:
        asked_s = clock.monotonic_s()
        try:
            found = await read_lease(store, owner)
        except StorageError as error:
            if not is_failing:
                logger.warning("standby cannot read the lease host=%s error=%s", owner.host, error)
            is_failing, since_s = True, None
        else:
            is_failing = False
            # The result of a slow read may be older than a renewal that the same outage has delayed.
            is_slow = clock.monotonic_s() - asked_s > owner.lease_s / RENEWALS_COUNT
            is_same = since_s is not None and (found and found.content) == (seen and seen.content)
            if since_s is not None and not is_same and is_ended(found, key=lease_key(owner.worker_id)):
                return WatchOutcome.GONE, found
            if since_s is None or is_slow or not is_same:
                seen, since_s = found, clock.monotonic_s()
            elif asked_s - since_s >= owner.lease_s:
                return WatchOutcome.SILENT, found
        await clock.sleep(owner.lease_s / LOOKS_COUNT)
    raise fence
