"""One container of a server: claimed, opened, opened again after failures, and closed; its states are in `life`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from millrace.server.cache import PageCache
from millrace.server.container.local import local_container
from millrace.server.container.running import OpenContainer
from millrace.server.container.startup import open_container
from millrace.server.errors import OwnedElsewhereError, OwnerFencedError, ServerError, UnsupportedStoreError
from millrace.server.folder import check_writable
from millrace.server.host.disk_health import DiskFailure, DiskHealth
from millrace.server.host.machine import Machine
from millrace.server.host.supervisor import Supervisor
from millrace.server.kinds.registry import KINDS
from millrace.server.object_store import when_there_is_room
from millrace.server.options import ServerOptions
from millrace.server.ownership import Claimant, Ownership

from .backend import Backend
from .life import (
    CLAIM,
    CLAIMED,
    CLOSE,
    CLOSED,
    CLOSING,
    FAIL,
    FENCE,
    OPENED,
    RECOVERED,
    RECOVERING,
    SERVING,
    STANDBY,
    STOP,
    WAIT,
    Life,
    LifeEvent,
    LifeState,
)
from .services import ContainerServices

logger = logging.getLogger(__name__)

REOPEN_DELAY_S: Final = 1.0
REOPEN_DELAY_S_MAX: Final = 10.0
STALL_WARNING_S: Final = 1.0
DISK_WARNING_S: Final = 10.0


class HostedContainer:
    """One container of a server. Belongs to one event loop; health and state may be read from any thread.

    Args:
        number: of the container.
        on_failure: called with name and error when the server is to exit.
        on_reopened: called after the container was reopened; ends the connections to its predecessor.

    Attributes:
        fence: names the server that has taken over the container; None as far as is known.
    """

    def __init__(
        self,
        number: int,
        *,
        options: ServerOptions,
        machine: Machine,
        backend: Backend,
        cache: PageCache,
        on_failure: Callable[[str, BaseException], None],
        on_reopened: Callable[[], Awaitable[None]],
    ) -> None:
        self.number = number
        self._life = Life()
        self.fence: OwnerFencedError | None = None
        self._options = options
        self._machine = machine
        self._clock = machine.clock
        self._backend = backend
        self._cache = cache
        self._on_failure = on_failure
        self._on_reopened = on_reopened
        # Set while STANDBY.
        self._owner: Claimant | None = None
        self._ownership: Ownership | None = None
        self._services: ContainerServices | None = None
        # The tasks of the open container, and the task that closes and reopens it.
        self._tasks = Supervisor(metrics=machine.metrics, on_failure=on_failure)
        self._recovery = Supervisor(metrics=machine.metrics, on_failure=on_failure)
        self._reopening = DiskHealth(machine.clock)

    @property
    def state(self) -> LifeState:
        """The state of the container's life."""
        return self._life.state

    @property
    def services(self) -> ContainerServices | None:
        """The services of the open container; None while it is not open."""
        return self._services

    @property
    def opened(self) -> OpenContainer | None:
        """The container that answers requests; None while there is none."""
        services = self._services  # read once: other threads read it, too
        return None if services is None else services.opened

    @property
    def may_be_superseded(self) -> bool:
        """True if the lease may have expired, so another server may be the owner. Cheap."""
        return self._ownership is not None and self._ownership.is_lapsed

    @property
    def standing_by(self) -> str:
        """The owner while this server stands by, for people; else empty."""
        owner = self._owner
        return "" if owner is None else f"standing by: {owner} serves since {owner.since}"

    @property
    def disk_failure(self) -> DiskFailure | None:
        """The failure of the local disk that prevents serving; None while the container serves, or has ended."""
        if self.state is RECOVERING:
            return self._reopening.failure
        if self.state is CLOSING or self.opened is None:
            return None
        return self.opened.flusher.disk_failure if self.opened.container.is_full else None

    async def open(self, *, on_standby: Callable[[str], None] | None = None) -> None:
        """Claim the container, recover it, and serve it; wait while the object store is full.

        Args:
            on_standby: called with each other owner, for people; the claim then waits. None: raise.

        Raises:
            ConfigurationError: another server owns it, or has owned it since.
            OwnerFencedError: another server has taken over everything that this process owned.
            StorageError: it cannot be recovered.
        """
        step = partial(self._open, on_standby)
        await when_there_is_room(step, name="container", clock=self._clock)

    def stop(self) -> bool:
        """Stop reopening from now on; return False if called before."""
        is_first = self.state not in (CLOSING, CLOSED)
        self._change(STOP)
        return is_first

    def refuse_requests(self) -> None:
        """Reject requests; runs queued for the log still become durable."""
        if (opened := self.opened) is not None:
            opened.container.stop()

    async def end_recovery(self) -> None:
        """Cancel an attempt to reopen the container, if there is one."""
        await self._recovery.stop()

    async def end_tasks(self) -> None:
        """Cancel the background tasks of the open container."""
        await self._tasks.stop()

    async def close(self, *, flush_s: float) -> None:
        """Close, after `stop` and `end_recovery`: first the background tasks, then the container."""
        await self.end_tasks()
        services, self._services = self._services, None
        if services is not None:
            await services.opened.close(log_s=self._options.shutdown_s, flush_s=flush_s)
        self._change(CLOSE)

    def fenced(self, error: OwnerFencedError) -> None:
        """Record, once, that another server has taken over: this server is to exit."""
        if self.fence is not None:
            return
        self.fence = error
        self._change(FENCE)
        if (opened := self.opened) is not None:
            opened.container.fenced(error)
        self._on_failure("ownership", error)

    def health(self) -> str:
        """Return why the container does not serve well, empty if it does. May be called from any thread."""
        state, opened = self.state, self.opened
        if state in (CLOSING, CLOSED):
            return "the server is shutting down"
        store = self._backend.health()
        if opened is None:
            waiting = self.standing_by or (str(self.fence) if self.fence else "the container is being recovered")
            return _joined(waiting, store)
        refusal = opened.container.refusal
        if state is RECOVERING:
            return refusal or "connections to the container before its recovery are being ended"
        stalled_s = opened.container.log.statistics().write_age_s
        if stalled_s > STALL_WARNING_S:
            place = "object store" if self._options.has_remote_log else "disk"
            return _joined(f"the {place} of the log has not answered for {stalled_s:.1f} s", store)
        return _joined(refusal or store, self._disk_health(opened))

    def _disk_health(self, opened: OpenContainer) -> str:
        """Return a disk failure that the log, which is in the store, cannot report; empty if there is none."""
        failure = opened.flusher.disk_failure if self._options.has_remote_log else None
        failed_s = 0.0 if failure is None else self._clock.monotonic_s() - failure.since_s
        if failure is None or failed_s < DISK_WARNING_S:
            return ""
        return f"the disk has refused the checkpoint, or a copy of it, for {failed_s:.0f} s: {failure.error}"

    # --- inside ---

    def _change(self, event: LifeEvent) -> LifeState:
        following = self._life.change(event)
        if following is not STANDBY:
            self._owner = None
        return following

    async def _open(self, on_standby: Callable[[str], None] | None = None) -> None:
        """Take the steps of one start: claim, recover, serve."""
        options, backend, machine = self._options, self._backend, self._machine
        self._change(CLAIM)
        local = await local_container(
            self.number,
            backend.folder.container(self.number),
            files=machine.files,
            storage=backend.storage,
            kinds=KINDS,
            server_id=backend.folder.server_id,
            options=options.container,
            room=backend.room,
        )
        self._ownership = await backend.claim(
            local, on_fenced=self.fenced, on_standby=None if on_standby is None else partial(self._stand_by, on_standby)
        )
        self._change(CLAIMED)
        environment = local.environment(
            self._ownership,
            container_options=options.container,
            wal_options=options.wal,
            clock=machine.clock,
            metrics=machine.metrics,
            cache=self._cache,
            page_size_bytes=options.tier2.page_size_bytes,
            on_failure=self._failed,
            store=backend.store,
            reserve=backend.reserve,
            threads=machine.threads,
        )
        self._serve(ContainerServices(await open_container(environment), options))

    def _serve(self, services: ContainerServices) -> None:
        self._services = services
        services.start(self._tasks)
        self._change(OPENED)
        container = services.opened.container
        # It may have failed, or been fenced, before it could report that or be notified.
        if self.fence is not None:
            container.fenced(self.fence)
        elif container.loss is None and container.must_recover:
            self._recover()

    def _stand_by(self, on_standby: Callable[[str], None], owner: Claimant) -> None:
        """Record that another server owns the container, and that the claim waits for it."""
        is_news = owner != self._owner
        if self._change(WAIT) is not STANDBY:
            return
        self._owner = owner
        if is_news:
            logger.info(
                "standing by host=%s folder=%s since=%s lease_s=%g",
                owner.host, owner.folder, owner.since, owner.lease_s,
            )  # fmt: skip
            on_standby(self.standing_by)

    def _failed(self, error: ServerError) -> None:
        """The log failed, or the checkpoint is damaged, or another server has the container."""
        if isinstance(error, OwnerFencedError):
            self.fenced(error)
        else:
            self._recover()

    def _recover(self) -> None:
        """Reopen the container from disk; once, until that has succeeded."""
        before = self.state
        self._change(FAIL)
        if before is SERVING:
            self._recovery.start(self._reopen(), name="reopen")

    async def _reopen(self) -> None:
        """Reopen the container until it runs: its log may fail again before all of the old one is released."""
        while self.state is RECOVERING and self.opened is not None and self.opened.container.must_recover:
            await self._open_again(self.opened)
        if self.state is RECOVERING:
            self._change(RECOVERED)

    async def _open_again(self, before: OpenContainer) -> None:
        """Reopen the container until that succeeds; meanwhile the one in memory answers reads."""
        folder = self._backend.folder.container(self.number)
        await self.end_tasks()
        delay_s = REOPEN_DELAY_S
        while self.state is RECOVERING:
            try:
                with self._reopening.watched():
                    await before.end_storing()
                    await asyncio.to_thread(check_writable, self._machine.files, folder)
                    await self._open()
                break
            except (OwnedElsewhereError, OwnerFencedError, UnsupportedStoreError) as error:
                self.fenced(OwnerFencedError(str(error)))
                break
            except (ServerError, OSError) as error:
                logger.error("recovery failed retry_after_s=%.1f error=%s", delay_s, error)
                before.container.stay_failed(f"the log failed, and could not be opened again: {error}")
                await self._clock.sleep(delay_s)
                delay_s = min(2 * delay_s, REOPEN_DELAY_S_MAX)
        if self.opened is not before:
            try:
                await self._on_reopened()
            finally:  # a stopping server may end this in between
                await before.release()


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))
