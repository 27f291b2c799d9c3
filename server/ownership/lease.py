"""The lease of this process: its renewal, and the limits on a process that was silent.

No clock is compared with the clock of another machine. A claimant reads the object, and reads it again after `lease_s`
of its own time: if it is unchanged, its owner has not renewed it for that long. The claimant then ends the lease, by
compare-and-swap, so an owner that returns late fails at its next renewal.

The other half is with the owner. A process that stalled (SIGSTOP, a suspended machine) may have been superseded in the
meantime, and cannot see that when it wakes. So it measures the time since the last answer of the store. If that is
above `lease_s`, it acknowledges nothing until a renewal that began afterwards has succeeded. (All clocks of a paused
virtual machine may stop; then its next renewal fails after a takeover.)

An error of the store counts as an answer. A server with a local log therefore keeps serving while the store fails for
all servers. (It also does if the store fails for it alone: batches that it acknowledges after a takeover are only in
its own log.) A server whose log is in the store then acknowledges nothing and sends no replies: its lease has expired,
and another server may have acknowledged batches that it has not read. The time is measured from the first attempt at
the last successful renewal, which may have landed without an answer. So the lease expires before any other server can
have found it silent for as long.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from millrace.server.errors import (
    ManifestUnreadableError,
    ObjectChangedError,
    ObjectExistsError,
    OwnerFencedError,
    StorageError,
    StoreUnavailableError,
)
from millrace.server.host.clock import Clock
from millrace.server.host.supervisor import mark_seen
from millrace.server.object_store import ObjectStore, StoredObject

from .lease_format import Lease, decode_lease, encode_lease, lease_key
from .stored import read_object
from .worker import Worker

logger = logging.getLogger(__name__)

RENEWALS_COUNT: Final = 3
"""In `lease_s`."""
LATE_COUNT_MAX: Final = 4
"""The most overdue renewals that may still be pending: in a long outage no more are sent beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatistics:
    """State of a lease.

    Attributes:
        renewals_count: renewals that succeeded.
        failures_count: renewal attempts that failed or had no answer in time.
        age_s: seconds since others may have seen the last successful renewal: since its first attempt.
        is_stalled: as of `WorkerLease`.
        is_fenced: whether another server has ended it.
    """

    renewals_count: int
    failures_count: int
    age_s: float
    is_stalled: bool
    is_fenced: bool


class WorkerLease:
    """The lease of this process. Belongs to one event loop.

    Args:
        store: contains the history.
        url: of the store, for messages.
        worker: this process, which holds the lock of its data folder.
        lease_s: how long it may be silent.
        on_fenced: called once, in the loop, when another server has ended the lease: this process must exit.
    """

    def __init__(
        self,
        store: ObjectStore,
        worker: Worker,
        *,
        url: str,
        lease_s: float,
        clock: Clock,
        on_fenced: Callable[[OwnerFencedError], None],
    ) -> None:
        self.store = store
        self.worker = worker
        self.url = url
        self.lease_s = lease_s
        self.clock = clock
        self.on_fenced = on_fenced
        self._key = lease_key(worker.worker_id)
        self._lease = Lease(
            worker_id=worker.worker_id,
            host=worker.host,
            folder=worker.folder,
            pid=worker.pid,
            started=worker.started,
            lease_s=lease_s,
        )
        self._tag = ""
        # The next version, from its first attempt on.
        self._wanted: Lease | None = None
        # The last batch that earlier starts of the container have acknowledged, and a function for the newest start.
        self._acknowledged_before = 0
        self._acknowledged: Callable[[], int] = lambda: 0
        # Of the claim that was announced last, 0 if it was withdrawn.
        self._epoch = 0
        # The renewal under way. After an error or a timeout the same bytes are put again, so that a late older put
        # changes nothing: one lost packet does not end the lease.
        self._pending: asyncio.Task[str] | None = None
        self._late: set[asyncio.Task[str]] = set()
        self._pending_s = 0.0
        # When the next renewal was first attempted; None before that. It may have landed without an answer.
        self._attempted_s: float | None = None
        self._renewing = asyncio.Lock()
        # When the last answered attempt began; an error or a timeout counts as an answer.
        self._heard_s = clock.elapsed_s()
        # When other servers may have seen the last renewal first: none finds the lease silent for longer.
        self._seen_from_s = self._heard_s
        # When the process noticed that it had stalled; cleared by a renewal that began later.
        self._stalled_s: float | None = None
        self._failure: StorageError | None = None
        self._failures_count = 0
        self._fenced: OwnerFencedError | None = None

    @property
    def is_stalled(self) -> bool:
        """Whether this process stalled for so long that another server may have taken over unnoticed."""
        return self._stalled_s is not None or self.clock.elapsed_s() - self._heard_s > self.lease_s

    @property
    def is_lapsed(self) -> bool:
        """Whether the lease has expired: no renewal succeeded for so long that another server may have taken over."""
        return self._fenced is not None or self.clock.elapsed_s() - self._seen_from_s > self.lease_s

    @property
    def fenced(self) -> OwnerFencedError | None:
        """The error that names the server that ended the lease; None while the lease is valid."""
        return self._fenced

    @property
    def acknowledged(self) -> int:
        """The last batch that this process is known to have acknowledged, in any of its starts of the container."""
        return max(self._acknowledged_before, self._acknowledged())

    def watch_acknowledged(self, acknowledged: Callable[[], int]) -> None:
        """Report the result of a function in each renewal, in place of the function of an earlier start."""
        self._acknowledged_before = self.acknowledged
        self._acknowledged = acknowledged

    def statistics(self) -> LeaseStatistics:
        """Return the state of the lease."""
        return LeaseStatistics(
            renewals_count=self._lease.renewals,
            failures_count=self._failures_count,
            age_s=self.clock.elapsed_s() - self._seen_from_s,
            is_stalled=self.is_stalled,
            is_fenced=self._fenced is not None,
        )

    async def start(self) -> None:
        """Create the lease, before the first claim. May be called again after an error.

        Raises:
            StorageError: the store rejected it or does not answer.
        """
        started_s = self.clock.elapsed_s()
        content = encode_lease(self._lease)
        try:
            self._tag = await self.store.create(self._key, [content])
        except ObjectExistsError:
            found = await read_object(self.store, self._key)  # an earlier attempt had no answer
            if found is None or found.content != content:
                raise
            self._tag = found.tag
        self._heard_s = self._seen_from_s = started_s

    async def run(self) -> None:
        """Renew the lease until another server ends it, or this is cancelled."""
        interval_s = self.lease_s / RENEWALS_COUNT
        try:
            while self._fenced is None:
                is_late = self._stalled_s is not None and self._failure is None
                await self.clock.sleep(0.0 if is_late else self._heard_s + interval_s - self.clock.elapsed_s())
                await self._renew()
        finally:
            if self._pending is not None:
                self._late.add(self._pending)
                self._pending = None
            for each in self._late:
                each.cancel()

    async def confirm(self) -> None:
        """Return at once unless the process stalled; then wait until a renewal proves that no server has taken over.

        Raises:
            OwnerFencedError: the lease was ended.
            StorageError: unknown so far; try again.
        """
        while True:
            if self._fenced is not None:
                raise self._fenced
            if not self.is_stalled:
                return
            await self._renew()
            if self._failure is not None:
                raise self._failure

    async def announce(self, epoch: int) -> None:
        """Store the epoch of a claim in the lease before the claim, 0 to withdraw it; return once it is stored.

        Raises:
            OwnerFencedError: the lease was ended.
            StorageError: it may not be stored; try again.
        """
        self._epoch = epoch
        # A renewal that failed may have stored another epoch, and is put again first.
        while self._lease.epoch != epoch or (self._wanted is not None and self._wanted.epoch != epoch):
            if self._fenced is not None:
                raise self._fenced
            await self._renew()
            if self._failure is not None:
                raise self._failure

    async def release(self) -> None:
        """Delete the lease, after all containers were released and `run` was ended. A lease that was ended stays.

        Raises:
            StorageError: it may stay; it expires after `lease_s`.
        """
        if self._fenced is None:
            await self.store.delete([self._key])

    async def _renew(self) -> None:
        """Make one attempt, or wait for the one under way; returns within a third of the lease."""
        async with self._renewing:
            started_s = self.clock.elapsed_s()
            if started_s - self._heard_s > self.lease_s:
                if self._stalled_s is None:
                    logger.warning("process stalled for_s=%.1f lease_s=%.1f", started_s - self._heard_s, self.lease_s)
                self._stalled_s = started_s
            if self._pending is None:
                if self._wanted is None:
                    self._wanted = replace(
                        self._lease,
                        renewals=self._lease.renewals + 1,
                        acknowledged=self.acknowledged,
                        epoch=self._epoch,
                    )
                self._pending = asyncio.create_task(self._put(encode_lease(self._wanted)), name="lease renewal")
                self._pending.add_done_callback(mark_seen)
                self._pending_s = started_s
                if self._attempted_s is None:
                    self._attempted_s = started_s
            with suppress(TimeoutError):
                async with self.clock.timeout(self.lease_s / RENEWALS_COUNT):
                    await asyncio.wait([self._pending])
            self._heard(started_s)

    def _heard(self, started_s: float) -> None:
        """Process the result of an attempt that was begun or continued at that time."""
        pending = self._pending
        assert pending is not None
        failure: StorageError | None = None
        if pending.done():
            self._pending = None
            try:
                self._tag = pending.result()
            except _EndedError as error:
                self._fence(error.found)
                return
            except StorageError as error:
                failure = error
            else:
                assert self._wanted is not None
                self._lease, self._wanted = self._wanted, None
                assert self._attempted_s is not None
                self._seen_from_s, self._attempted_s = self._attempted_s, None
                if self._stalled_s is not None and self._pending_s >= self._stalled_s:
                    self._stalled_s = None
        else:
            failure = StoreUnavailableError("the store does not answer in time", subject=self._key)
            if len(self._late) < LATE_COUNT_MAX:
                self._late.add(pending)
                pending.add_done_callback(self._late.discard)
                self._pending = None
        self._heard_s = started_s
        if failure is not None:
            self._failures_count += 1
            if self._failure is None:
                logger.warning("lease renewal failed key=%s error=%s", self._key, failure)
        elif self._failure is not None:
            logger.info("lease renewal recovered key=%s", self._key)
        self._failure = failure

    async def _put(self, content: bytes) -> str:
        """Replace the object and return its tag."""
        try:
            return await self.store.replace(self._key, content, tag=self._tag)
        except ObjectChangedError as error:
            found = await read_object(self.store, self._key)
            if found is not None and found.content == content:
                return found.tag
            if found is not None and found.tag == self._tag:
                raise StoreUnavailableError(
                    "the store reports that the lease has changed, but it has not", subject=self._key
                ) from error
            raise _EndedError(found) from error

    def _fence(self, found: StoredObject | None) -> None:
        """Record that another server has ended the lease, and call `on_fenced`."""
        who = "another server ended its lease, or somebody deleted it"
        if found is not None:
            with suppress(ManifestUnreadableError):
                by = decode_lease(found.content).ended_by
                who = f"{by.host} ({by.folder}) has taken over" if by else "its lease was overwritten"
        self._fenced = OwnerFencedError(
            f"the server {self.worker} must end: {who} ({self._key}); the data in its folder may be superseded",
            subject=self.url,
        )
        logger.critical("server fenced url=%s key=%s reason=%s", self.url, self._key, who)
        self.on_fenced(self._fenced)


class _EndedError(Exception):
    """The lease no longer belongs to this process.

    Attributes:
        found: the object in its place; None if it is missing.
    """

    def __init__(self, found: StoredObject | None) -> None:
        super().__init__()
        self.found = found
