"""Keeps the leases of a client's open transactions from running out: one task for all of them.

Most transactions end long before their first renewal is due. So beginning and ending one costs an entry here, and no
task: the one task sleeps until the first renewal that may be due, and starts a task of its own for each that is.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from millrace.client.transport.clock import Clock


class LeaseHolder(Protocol):
    """A transaction, as far as its lease goes."""

    def release(self) -> None:
        """Write and renew nothing any more."""
        ...


class _Renewal(NamedTuple):
    """How one is renewed, and when: on the monotonic clock."""

    renew: Callable[[], Awaitable[bool]]
    due_s: float


class LeaseKeeper:
    """The transactions of a client that have begun and not ended. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # All of them, with the interval of each.
        self._intervals: dict[LeaseHolder, float] = {}
        # By interval, those that are not being renewed now: in the order in which they are due, for each came to the
        # end of its queue when it was due an interval later.
        self._queues: dict[float, OrderedDict[LeaseHolder, _Renewal]] = {}
        # What wakes when the first may be due, and when that is.
        self._waking: asyncio.Task[None] | None = None
        self._wakes_s = math.inf
        self._renewing: set[asyncio.Task[None]] = set()

    def add(self, transaction: LeaseHolder, renew: Callable[[], Awaitable[bool]], *, interval_s: float) -> None:
        """Renew the lease of one that has begun now.

        Args:
            renew: renews it, and returns whether to do so again. Safe to cancel, and never raises.
            interval_s: from now, or from the last renewal, until the next.
        """
        due_s = self._clock.monotonic_s() + interval_s
        self._intervals[transaction] = interval_s
        self._queues.setdefault(interval_s, OrderedDict())[transaction] = _Renewal(renew, due_s)
        if due_s < self._wakes_s:
            if self._waking is not None:
                self._waking.cancel()
            self._wakes_s = due_s
            self._waking = asyncio.create_task(self._wake(), name="transactions renew their leases")

    def discard(self, transaction: LeaseHolder) -> None:
        """Renew the lease of one no more; nothing happens if it was not renewed."""
        interval_s = self._intervals.pop(transaction, None)
        if interval_s is not None and (queue := self._queues.get(interval_s)) is not None:
            queue.pop(transaction, None)

    def close(self) -> None:
        """Release all of them, and renew nothing any more."""
        for transaction in list(self._intervals):
            transaction.release()
        self._intervals.clear()
        self._queues.clear()
        for task in (self._waking, *self._renewing):
            if task is not None:
                task.cancel()

    async def _wake(self) -> None:
        """Renew what is due, for as long as there is something to renew."""
        while self._forget_empty():
            self._wakes_s = min(next(iter(queue.values())).due_s for queue in self._queues.values())
            await self._clock.sleep(max(0.0, self._wakes_s - self._clock.monotonic_s()))
            now_s = self._clock.monotonic_s()
            for queue in self._queues.values():
                while queue and next(iter(queue.values())).due_s <= now_s:
                    transaction, renewal = queue.popitem(last=False)
                    task = asyncio.create_task(self._renew(transaction, renewal), name="a transaction renews its lease")
                    self._renewing.add(task)
                    task.add_done_callback(self._renewing.discard)
        self._wakes_s, self._waking = math.inf, None

    def _forget_empty(self) -> bool:
        """Forget the queues that nothing is in; return whether there are others."""
        self._queues = {interval_s: queue for interval_s, queue in self._queues.items() if queue}
        return bool(self._queues)

    async def _renew(self, transaction: LeaseHolder, renewal: _Renewal) -> None:
        is_open = await renewal.renew()
        interval_s = self._intervals.get(transaction)
        if interval_s is None:
            return  # it has ended meanwhile
        if is_open:
            self.add(transaction, renewal.renew, interval_s=interval_s)
        else:
            self.discard(transaction)
