"""When a server gives up what it owns, so that another one can serve.

Only where the log is in an object store: then a server on another machine has all that was acknowledged. It takes over
when the owner is silent. An owner whose own disk fails is not: it renews its lease, which needs no disk. So it gives up
by itself, ends, and is started again by its supervisor.

It does so only if another server waits: one that renews a lease, though the container is not its own. With nobody
there, a server that still answers reads, and continues when the disk works again, is better than one that cannot even
start.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

from millrace.server.errors import OwnershipReleasedError, StorageError
from millrace.server.host.clock import Clock
from millrace.server.host.disk_health import DiskFailure

logger = logging.getLogger(__name__)


class HandOver:
    """Watches over one server; `run` is the body of a task. Belongs to one event loop.

    Args:
        patience_s: how long the disk may keep the server from serving, and how often to look; not below the time
            between two renewals of a lease.
        failure: returns what keeps it from serving now, None if nothing of its own disk does.
        other_leases: returns the leases of all other servers, by key, each with what changes when it is renewed; raises
            StorageError if the store does not say.
        give_up: called once; the server is to end, and to give back what it owns.
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
        # The leases of the look before; empty while there is no reason to look.
        self._seen: Mapping[str, str] = {}

    async def run(self) -> None:
        """Return once the server is given up."""
        while True:
            await self._clock.sleep(self._patience_s)
            if self._failure() is None:
                self._seen = {}
                continue
            waiting = await self._waiting()
            failure = self._failure()  # which may have passed during the look
            if failure is None or not waiting:
                continue
            failed_s = self._clock.monotonic_s() - failure.since_s
            if failed_s >= self._patience_s:
                logger.critical(
                    "given up, the disk has failed and another server waits failed_s=%.1f waiting=%s error=%s",
                    failed_s, waiting, failure.error,
                )  # fmt: skip
                self._give_up(
                    OwnershipReleasedError(
                        f"the disk has kept this server from serving for {failed_s:.0f} s, and another server waits, so"
                        f" this one has given up what it owned: {failure.error}"
                    )
                )
                return

    async def _waiting(self) -> str:
        """Return the key of a lease that was renewed since the look before; empty if there is none."""
        before, self._seen = self._seen, {}
        try:
            self._seen = await self._other_leases()
        except StorageError as error:
            logger.warning("not known whether another server waits error=%s", error)
        return next((key for key, version in self._seen.items() if before.get(key, version) != version), "")
