"""The containers of one server, over one data folder or object store; one container runs today.

The listener, the console and the budgets are the server's (`app`). Here is what every container shares: the backend,
the cache of old events, and the watch over the local disk (`hand_over`).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from millrace.server.cache import PageCache
from millrace.server.errors import OwnerFencedError
from millrace.server.host.disk_health import DiskFailure
from millrace.server.host.machine import Machine
from millrace.server.host.supervisor import Supervisor
from millrace.server.object_store import ObjectStore, StoreMonitor
from millrace.server.options import ServerOptions
from millrace.server.tier2 import ChunkStorage

from .backend import Backend
from .container import HostedContainer
from .hand_over import HandOver
from .life import STANDBY

CONTAINERS_COUNT: Final = 1


@dataclass(frozen=True, slots=True)
class HistoryStatistics:
    """Statistics of a server's history.

    Attributes:
        is_standing_by: whether it waits for another server that owns the history.
    """

    is_standing_by: bool


class Host:
    """The containers of one server, and their shared parts. Belongs to one event loop.

    Args:
        storage, store: replace those of the options, closed with this.
        on_failure: called with name and error when the server is to exit.
        on_reopened: called after a container was reopened; ends the connections to its predecessor.

    Attributes:
        containers: by number.
        cache: of old events, for all containers.
    """

    def __init__(
        self,
        options: ServerOptions,
        machine: Machine,
        *,
        on_failure: Callable[[str, BaseException], None],
        on_reopened: Callable[[], Awaitable[None]],
        storage: ChunkStorage | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        self.backend = Backend(
            options,
            files=machine.files,
            clock=machine.clock,
            metrics=machine.metrics,
            monitor=StoreMonitor(machine.metrics, machine.clock),
            on_fenced=self._fenced,
            on_failure=on_failure,
            storage=storage,
            store=store,
        )
        self.cache = PageCache(options.cache)
        self.containers = tuple(
            HostedContainer(
                number,
                options=options,
                machine=machine,
                backend=self.backend,
                cache=self.cache,
                on_failure=on_failure,
                on_reopened=on_reopened,
            )
            for number in range(CONTAINERS_COUNT)
        )
        self._options = options
        self._clock = machine.clock
        self._on_failure = on_failure
        self._watch = Supervisor(metrics=machine.metrics, on_failure=on_failure)

    @property
    def container(self) -> HostedContainer:
        """The container of all requests, until requests are routed by their ids."""
        (container,) = self.containers
        return container

    @property
    def is_standing_by(self) -> bool:
        """Whether a container waits for another server that owns it."""
        return any(each.state is STANDBY for each in self.containers)

    async def open(self, *, on_standby: Callable[[str], None]) -> None:
        """Lock the data folder, or claim the prefix of the store; then claim and open each container in turn.

        Whatever comes of it, `close` and `release` give back what was taken.

        Args:
            on_standby: called with the owner, for people, while a container stands by.

        Raises:
            ServerError: see `Backend.open` and `HostedContainer.open`.
        """
        await self.backend.open()
        for each in self.containers:
            await each.open(on_standby=on_standby if self._options.standby else None)
        if self._options.has_remote_log:
            hand_over = HandOver(
                clock=self._clock,
                patience_s=self.backend.lease_s,
                failure=self._disk_failure,
                other_leases=self.backend.other_leases,
                give_up=partial(self._on_failure, "hand over"),
            )
            self._watch.start(hand_over.run(), name="hand over")

    def stop(self) -> bool:
        """Open no container again from now on; return False if it was called before."""
        is_first = False
        for each in self.containers:
            is_first |= each.stop()
        return is_first

    def refuse_requests(self) -> None:
        """Reject requests; runs queued for the logs still become durable."""
        for each in self.containers:
            each.refuse_requests()

    async def end_recovery(self) -> None:
        """Cancel the attempts to open containers again, and the watch over the disk; after `stop`."""
        for each in self.containers:
            await each.end_recovery()
        await self._watch.stop()

    async def close(self, *, flush_s: float) -> None:
        """Close the containers, after `end_recovery`, even if `open` failed.

        Args:
            flush_s: how long flushing may take.
        """
        flushed_s = self._clock.monotonic_s() + flush_s
        for each in self.containers:
            await each.close(flush_s=max(0.0, flushed_s - self._clock.monotonic_s()))
        await self.cache.close()

    async def release(self, *, release_s: float) -> None:
        """Release the history, after `close`.

        Args:
            release_s: how long the store may take to record the release.
        """
        is_fenced = any(each.fence is not None for each in self.containers)
        await self.backend.close(release_s=None if is_fenced else release_s)

    def health(self) -> str:
        """Return why the containers do not serve well, empty if they do. May be called from any thread."""
        return "; ".join(filter(None, (each.health() for each in self.containers)))

    def statistics(self) -> HistoryStatistics:
        """Return figures as of now. May be called from any thread."""
        return HistoryStatistics(is_standing_by=self.is_standing_by)

    def _fenced(self, error: OwnerFencedError) -> None:
        """Another server has ended the lease with which all containers were claimed."""
        for each in self.containers:
            each.fenced(error)

    def _disk_failure(self) -> DiskFailure | None:
        return next((failure for each in self.containers if (failure := each.disk_failure)), None)
