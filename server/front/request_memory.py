"""Memory of the requests of all connections.

It includes receive buffers above their initial size, the objects of requests in progress, appends that wait for their
segment to be loaded, and reads parked at a tail. Each connection has an *account* of its memory, and the sum of all
accounts is bounded. A connection that gets no memory is not read until its turn, or is rejected.

- Reserve up front, so that a request never waits while holding, which would be a deadlock: a frame gets memory for all
  of it before it is received, and a waiting connection holds nothing that another one needs. A frame that does not
  arrive meets its deadline.
- Waiters are served in turn. Meanwhile other connections get nothing before them, and release unused memory.
- The last eighth is for connections that hold next to nothing, a little for each: small requests continue while others
  have filled the rest.
"""

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

from millrace.wire.limits import KIB

from .counters import FrontCounters

USUAL_SHARE: Final = 7 / 8
"""Share of the limit; the rest is for connections that hold next to nothing."""
SMALL_SIZE_BYTES: Final = 64 * KIB
"""The most that one of those may hold."""


class RequestConnection(Protocol):
    """The memory-accounting interface of a connection."""

    def give_back(self) -> None:
        """Release unused memory."""
        ...

    def request_room_found(self) -> None:
        """Retry taking memory."""
        ...


class RequestAccount:
    """Memory of the requests of one connection; created by `RequestMemory.account`."""

    __slots__ = ("_memory", "held_bytes", "holder")

    def __init__(self, memory: "RequestMemory", holder: RequestConnection) -> None:
        self._memory = memory
        self.holder = holder
        self.held_bytes = 0

    def take(self, size: int) -> bool:
        """Hold this much more; return False, and hold no more, if it is not available now."""
        if not self._memory.has_room(self, size):
            return False
        self.hold(size)
        return True

    def hold(self, size: int) -> None:
        """Hold this much more, whether it is available or not: it is in memory already."""
        self.held_bytes += size
        self._memory.changed(self, size)

    def give(self, size: int) -> None:
        """Release this much."""
        size = min(size, self.held_bytes)  # none, if the connection is gone
        self.held_bytes -= size
        self._memory.changed(self, -size)

    def wait(self) -> None:
        """Have the holder called when it is its turn to retry."""
        self._memory.wait(self)

    def close(self) -> None:
        """Release everything: the connection is gone."""
        self._memory.stop_waiting(self)
        self.give(self.held_bytes)


class RequestMemory:
    """The accounts of all connections; belongs to one event loop.

    Args:
        bytes_max: the limit of their sum.
    """

    def __init__(self, *, bytes_max: int, counters: FrontCounters) -> None:
        self._bytes_max = bytes_max
        self._usual_max = int(bytes_max * USUAL_SHARE)
        self._counters = counters
        self.held_bytes = 0
        self._holding: set[RequestAccount] = set()
        # The longest wait first.
        self._waiting: OrderedDict[RequestAccount, None] = OrderedDict()
        # The account whose turn it is, while it retries.
        self._served: RequestAccount | None = None
        self._serving: asyncio.Handle | None = None

    @property
    def is_contended(self) -> bool:
        """Whether any account waits."""
        return bool(self._waiting)

    def account(self, holder: RequestConnection) -> RequestAccount:
        """Return the account of a new connection."""
        return RequestAccount(self, holder)

    def has_room(self, account: RequestAccount, size: int) -> bool:
        """Return whether an account may hold this much more now."""
        total = self.held_bytes + size
        if account.held_bytes + size <= SMALL_SIZE_BYTES:
            return total <= self._bytes_max
        return total <= self._usual_max and (account is self._served or not self._waiting)

    def changed(self, account: RequestAccount, difference: int) -> None:
        """Record that an account holds more, or less."""
        self.held_bytes += difference
        assert 0 <= account.held_bytes <= self.held_bytes, "an account is a part of the sum"
        if account.held_bytes:
            self._holding.add(account)
        else:
            self._holding.discard(account)
        if difference < 0 and self._waiting:
            self._serve_soon()

    def wait(self, account: RequestAccount) -> None:
        """Queue an account after those that wait already."""
        self._counters.requests_delayed_total += 1
        self._waiting[account] = None
        if account is self._served:
            self._waiting.move_to_end(account, last=False)  # it is still its turn
        elif len(self._waiting) == 1:
            for other in list(self._holding):
                other.holder.give_back()

    def stop_waiting(self, account: RequestAccount) -> None:
        """Remove an account from the queue; does nothing if it is not waiting."""
        if account in self._waiting:
            del self._waiting[account]
            self._serve_soon()

    def _serve_soon(self) -> None:
        if self._serving is None:
            self._serving = asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Let waiting accounts retry in turn, until one has to continue to wait."""
        self._serving = None
        while self._waiting:
            account, _ = self._waiting.popitem(last=False)
            # While it retries, `has_room` ignores the queue for this account: its turn has come.
            self._served = account
            try:
                account.holder.request_room_found()
            finally:
                self._served = None
            if account in self._waiting:
                # It needs more than is free, and is at the front again. Serving later accounts would starve it.
                return
