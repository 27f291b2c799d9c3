"""Releases ownership if the local disk fails and a standby is ready.

Only if the log is in an object store: then a server on another machine has all acknowledged events. It takes over when
the owner is silent. An owner whose own disk fails is not silent: it renews its lease, which needs no disk. So it
releases ownership by itself, exits, and is restarted by its supervisor.

It does so only if a standby waits: a server that renews a lease without owning the container. Without a standby, a
server that still answers reads, and continues when the disk works again, is better than one that cannot even start.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

from millrace.server.errors import OwnershipReleasedError, StorageError
from millrace.server.host.clock import Clock
from millrace.server.host.disk_health import DiskFailure

logger = logging.getLogger(__name__)


class HandOver:
    """Watches one server; `run` is the body of a task. Belongs to one event loop.

    Args:
        patience_s: how long the disk may fail before the release, and the interval of checks; not below the time
            between two renewals of a lease.
        failure: returns the current failure of the local disk, None if it works.
        other_leases: returns the leases of all other servers, by key, each with a value that changes at renewal; raises
            StorageError if the store does not answer.
        give_up: called once; the server is to exit, and to release its ownership.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        patience_s: float,
        failure: Callable[[], DiskFailure | None],
        other_leases: Callable[[], Awaitable[Mapping[str, str]]],
        give_up: Callable[[OwnershipReleasedError], None],
    ) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._failure = failure
        self._other_leases = other_leases
        self._give_up = give_up
        # The leases of the last check; empty while the disk works.
        self._seen: Mapping[str, str] = {}

    async def run(self) -> None:
        """Return once ownership is to be released."""
        while True:
            await self._clock.sleep(self._patience_s)
            if self._failure() is None:
                self._seen = {}
                continue
            waiting = await self._waiting()
            failure = self._failure()  # the disk may have recovered during the check
            if failure is None or not waiting:
                continue
            failed_s = self._clock.monotonic_s() - failure.since_s
            if failed_s >= self._patience_s:
                logger.critical(
                    "released ownership, the disk failed and a standby is ready failed_s=%.1f waiting=%s error=%s",
                    failed_s, waiting, failure.error,
                )  # fmt: skip
                self._give_up(
                    OwnershipReleasedError(
                        f"the disk has kept this server from serving for {failed_s:.0f} s, and a standby is ready, so"
                        f" this server has released ownership: {failure.error}"
                    )
                )
                return

    async def _waiting(self) -> str:
        """Return the key of a lease that was renewed since the last check; empty if there is none."""
        before, self._seen = self._seen, {}
        try:
            self._seen = await self._other_leases()
        except StorageError as error:
            logger.warning("check for a standby failed error=%s", error)
        return next((key for key, version in self._seen.items() if before.get(key, version) != version), "")
