"""Keeps the leases of a client's open transactions from running out: one task for all of them.

Most transactions end long before their first renewal is due. So beginning and ending one costs an entry here, and no
task: the one task sleeps until the first renewal that may be due, and starts a task of its own for each that is.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from millrace.client.transport.clock import Clock


class Leased(Protocol):
    """A transaction, as far as its lease goes."""

    def release(self) -> None:
        """Write and renew nothing any more."""
        ...


class _Renewal(NamedTuple):
    """How one is renewed, and when: on the monotonic clock; infinite while it is under way."""

    renew: Callable[[], Awaitable[bool]]
    interval_s: float
    due_s: float


class Leases:
    """The transactions of a client that have begun and not ended. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renewals: dict[Leased, _Renewal] = {}
        # What wakes when the first may be due, and when that is.
        self._waking: asyncio.Task[None] | None = None
        self._wakes_s = math.inf
        self._renewing: set[asyncio.Task[None]] = set()

    def add(self, transaction: Leased, renew: Callable[[], Awaitable[bool]], *, interval_s: float) -> None:
        """Renew the lease of one that has begun now.

        Args:
            renew: renews it, and returns whether to do so again. Safe to cancel, and never raises.
            interval_s: from now, or from the last renewal, until the next.
        """
        due_s = self._clock.monotonic_s() + interval_s
        self._renewals[transaction] = _Renewal(renew, interval_s, due_s)
        if due_s < self._wakes_s:
            if self._waking is not None:
                self._waking.cancel()
            self._wakes_s = due_s
            self._waking = asyncio.create_task(self._wake(), name="transactions renew their leases")

    def discard(self, transaction: Leased) -> None:
        """Renew the lease of one no more; nothing happens if it was not renewed."""
        self._renewals.pop(transaction, None)

    def close(self) -> None:
        """Release all of them, and renew nothing any more."""
        for transaction in list(self._renewals):
            transaction.release()
        self._renewals.clear()
        for task in (self._waking, *self._renewing):
            if task is not None:
                task.cancel()

    async def _wake(self) -> None:
        """Renew what is due, for as long as there is something to renew."""
        while (due_s := min([each.due_s for each in self._renewals.values()], default=math.inf)) < math.inf:
            self._wakes_s = due_s
            await self._clock.sleep(max(0.0, self._wakes_s - self._clock.monotonic_s()))
            now_s = self._clock.monotonic_s()
            for transaction, renewal in [each for each in self._renewals.items() if each[1].due_s <= now_s]:
                self._renewals[transaction] = renewal._replace(due_s=math.inf)
                task = asyncio.create_task(self._renew(transaction, renewal), name="a transaction renews its lease")
                self._renewing.add(task)
                task.add_done_callback(self._renewing.discard)
        self._wakes_s, self._waking = math.inf, None

    async def _renew(self, transaction: Leased, renewal: _Renewal) -> None:
        is_open = await renewal.renew()
        if transaction in self._renewals:  # else it has ended meanwhile
            if is_open:
                self.add(transaction, renewal.renew, interval_s=renewal.interval_s)
            else:
                self.discard(transaction)
