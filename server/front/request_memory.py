"""The memory that requests of all connections hold.

That is what receive buffers have above their initial size, the objects of requests that are carried out, appends that
wait for their segment to be loaded, and reads that wait at a tail. Each connection has an *account* of what it holds,
and the sum of all accounts is bounded. Who gets no more is not read until it is its turn, or is refused.

- A frame is given room for all of it before it is received. So who has begun needs nothing more in order to end, and
  who waits holds nothing that another one waits for. A frame that does not arrive meets its time limit.
- Who waits is served in turn. Meanwhile others get nothing before them, and give back what they do not use.
- The last eighth is for connections that hold next to nothing, a little for each: small requests continue while others
  have filled the rest.
"""

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

from millrace.wire.limits import KIB

from .counters import FrontCounters

USUAL_SHARE: Final = 7 / 8
"""Of the bound; the rest is for connections that hold next to nothing."""
SMALL_SIZE_BYTES: Final = 64 * KIB
"""What one of those may hold."""


class RequestConnection(Protocol):
    """A connection, as far as the memory of its requests is concerned."""

    def give_back(self) -> None:
        """Give back what is not in use."""
        ...

    def request_room_found(self) -> None:
        """Ask again for what there was no room for."""
        ...


class RequestAccount:
    """What the requests of one connection hold; made by `RequestMemory.account`."""

    __slots__ = ("_memory", "held_bytes", "holder")

    def __init__(self, memory: "RequestMemory", holder: RequestConnection) -> None:
        self._memory = memory
        self.holder = holder
        self.held_bytes = 0

    def take(self, size: int) -> bool:
        """Hold that much more; return False, and hold no more, if there is no room now."""
        if not self._memory.has_room(self, size):
            return False
        self.hold(size)
        return True

    def hold(self, size: int) -> None:
        """Hold that much more, whether there is room or not: it is here already."""
        self.held_bytes += size
        self._memory.changed(self, size)

    def give(self, size: int) -> None:
        """Hold that much less."""
        size = min(size, self.held_bytes)  # none, if the connection is gone
        self.held_bytes -= size
        self._memory.changed(self, -size)

    def wait(self) -> None:
        """Have the holder told when it is its turn to ask again."""
        self._memory.wait(self)

    def close(self) -> None:
        """Hold nothing more: the connection is gone."""
        self._memory.stop_waiting(self)
        self.give(self.held_bytes)


class RequestMemory:
    """The accounts of all connections; belongs to one event loop.

    Args:
        bytes_max: what they hold together.
    """

    def __init__(self, *, bytes_max: int, counters: FrontCounters) -> None:
        self._bytes_max = bytes_max
        self._usual_max = int(bytes_max * USUAL_SHARE)
        self._counters = counters
        self.held_bytes = 0
        self._holding: set[RequestAccount] = set()
        # Who has waited longest comes first.
        self._waiting: OrderedDict[RequestAccount, None] = OrderedDict()
        # Whose turn it is, while it asks again.
        self._served: RequestAccount | None = None
        self._serving: asyncio.Handle | None = None

    @property
    def is_contended(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def account(self, holder: RequestConnection) -> RequestAccount:
        """Return the account of a new connection."""
        return RequestAccount(self, holder)

    def has_room(self, account: RequestAccount, size: int) -> bool:
        """Return whether an account may hold that much more now."""
        total = self.held_bytes + size
        if account.held_bytes + size <= SMALL_SIZE_BYTES:
            return total <= self._bytes_max
        return total <= self._usual_max and (account is self._served or not self._waiting)

    def changed(self, account: RequestAccount, difference: int) -> None:
        """Note that an account holds more, or less."""
        self.held_bytes += difference
        if account.held_bytes:
            self._holding.add(account)
        else:
            self._holding.discard(account)
        if difference < 0 and self._waiting:
            self._serve_soon()

    def wait(self, account: RequestAccount) -> None:
        """Let an account have its turn after those that wait already."""
        self._counters.requests_delayed_total += 1
        self._waiting[account] = None
        if account is self._served:
            self._waiting.move_to_end(account, last=False)  # it is still its turn
        elif len(self._waiting) == 1:
            for other in list(self._holding):
                other.holder.give_back()

    def stop_waiting(self, account: RequestAccount) -> None:
        """Forget that an account waits; nothing happens if it does not."""
        if account in self._waiting:
            del self._waiting[account]
            self._serve_soon()

    def _serve_soon(self) -> None:
        if self._serving is None:
            self._serving = asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Let those who wait ask again, until one has to continue to wait."""
        self._serving = None
        while self._waiting:
            account, _ = self._waiting.popitem(last=False)
            self._served = account
            try:
                account.holder.request_room_found()
            finally:
                self._served = None
            if account in self._waiting:
                return
