"""The memory that readers of all connections hold: what is fetched for them, and what was sent and is not taken yet.

A peer that asks for much and takes nothing keeps it in memory. So each connection has an *account* of what it holds,
and the sum of all accounts is bounded. A read asks for a *grant* first. Where it gets none, it waits until there is
room, and its connection is not read.

Those who take nothing must not stop those who do:

- The last eighth is for connections that hold nothing, a little for each: a reader that keeps up with the tail
  continues while others have filled the rest.
- Above that mark, a connection that has not taken what it held for longer than the patience is ended, the one that has
  been so for longest first. A reader that takes its bytes, however slow, passes its *goal* now and then: all that was
  sent to it when it passed the last one.

Transports do not tell when they have sent something, as long as they hold little. So what is unsent is asked for: when
a connection sends, and of all connections when there seems to be no room.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from millrace.server.host.clock import Clock
from millrace.wire.limits import KIB

from .counters import FrontCounters

logger = logging.getLogger(__name__)

USUAL_SHARE: Final = 7 / 8
"""Of the bound; the rest is for connections that hold nothing."""
GRANT_SIZE_BYTES_SMALL: Final = 64 * KIB
"""What is granted to one of those. Nor is it worth while to read less than this in a fuller memory."""
FETCH_SIZE_BYTES_MIN: Final = 4 * KIB
"""What a read of fewer bytes counts as while it is under way: so much has the task that carries it out."""
MEASURED_AGAIN_S: Final = 0.02
CHECKED_AGAIN_S: Final = 0.1


class ReaderConnection(Protocol):
    """A connection, as far as its memory is concerned."""

    def unsent_bytes(self) -> int:
        """Return how much was handed to the transport and is not with the system yet."""
        ...

    def abort(self) -> None:
        """End at once."""
        ...


class ReaderAccount:
    """What one connection holds; made by `ReaderMemory.account`.

    Attributes:
        fetching_bytes: granted to reads that are under way.
        unsent_bytes: handed to the transport, when that was asked last.
    """

    __slots__ = ("_goal_s", "_goal_total", "_memory", "_sent_total", "fetching_bytes", "holder", "unsent_bytes")

    def __init__(self, memory: "ReaderMemory", holder: ReaderConnection) -> None:
        self._memory = memory
        self.holder = holder
        self.fetching_bytes = 0
        self.unsent_bytes = 0
        self._sent_total = 0
        # When that much was taken of what was sent, there is a new goal; and since when this is it.
        self._goal_total = 0
        self._goal_s = 0.0

    @property
    def held_bytes(self) -> int:
        """What the connection holds in all."""
        return self.fetching_bytes + self.unsent_bytes

    def grant(self, size: int) -> int:
        """Return how many of so many bytes may be read now; 0 if the read has to wait."""
        return self._memory.grant(self, size)

    def fetch(self, size: int) -> None:
        """Hold that much for a read that is under way, until it is `fetched`."""
        size = max(size, FETCH_SIZE_BYTES_MIN)
        self.fetching_bytes += size
        self._memory.changed(self, size)

    def fetched(self, size: int) -> None:
        """Hold nothing more for a read that has ended; what is sent of it counts from then on."""
        size = min(max(size, FETCH_SIZE_BYTES_MIN), self.fetching_bytes)  # none, if the connection is gone
        self.fetching_bytes -= size
        self._memory.changed(self, -size)

    def sent(self, size: int, now_s: float) -> None:
        """Note that the transport was handed that much."""
        if not self.unsent_bytes:
            self._goal_total, self._goal_s = self._sent_total + size, now_s
        self._sent_total += size
        self.measure(now_s)

    def measure(self, now_s: float) -> None:
        """Ask how much is unsent."""
        unsent = self.holder.unsent_bytes()
        difference, self.unsent_bytes = unsent - self.unsent_bytes, unsent
        if self._sent_total - unsent >= self._goal_total:
            self._goal_total, self._goal_s = self._sent_total, now_s
        if difference:
            self._memory.changed(self, difference)

    def stalled_s(self, now_s: float) -> float:
        """For how long the peer has not taken what it held at some time; 0 if it holds nothing unsent."""
        return now_s - self._goal_s if self.unsent_bytes else 0.0

    def close(self) -> None:
        """Hold nothing more: the connection is gone."""
        held = self.held_bytes
        self.fetching_bytes = self.unsent_bytes = 0
        self._memory.changed(self, -held)


class ReaderMemory:
    """The accounts of all connections; belongs to one event loop.

    Args:
        bytes_max: what they hold together.
        patience_s: for how long a connection may take nothing while others have to wait.
    """

    def __init__(self, *, bytes_max: int, patience_s: float, clock: Clock, counters: FrontCounters) -> None:
        self._bytes_max = bytes_max
        self._usual_max = int(bytes_max * USUAL_SHARE)
        self._patience_s = patience_s
        self._clock = clock
        self._counters = counters
        self.held_bytes = 0
        self._measured_s = 0.0
        # Accounts that hold something, as far as is known.
        self._holding: set[ReaderAccount] = set()
        # Those who wait for room, who has waited longest first.
        self._waiting: dict[Callable[[], None], None] = {}
        self._checking: asyncio.TimerHandle | None = None
        self._is_checked_soon = False

    def account(self, holder: ReaderConnection) -> ReaderAccount:
        """Return the account of a new connection."""
        return ReaderAccount(self, holder)

    def wait(self, callback: Callable[[], None]) -> None:
        """Call back once when there may be room."""
        self._waiting[callback] = None
        self._check_later(CHECKED_AGAIN_S)

    def stop_waiting(self, callback: Callable[[], None]) -> None:
        """Do not call back any more; nothing happens if it did not wait."""
        self._waiting.pop(callback, None)

    def grant(self, account: ReaderAccount, size: int) -> int:
        """Return how many of so many bytes an account may take now."""
        least = min(size, GRANT_SIZE_BYTES_SMALL)
        if self.held_bytes + size > self._usual_max:
            self._measure()
        room = self._usual_max - self.held_bytes
        if room >= least:
            return min(size, room)
        if not account.held_bytes and self.held_bytes + least <= self._bytes_max:
            return least
        return 0

    def changed(self, account: ReaderAccount, difference: int) -> None:
        """Note that an account holds more, or less."""
        self.held_bytes += difference
        if account.held_bytes:
            self._holding.add(account)
        else:
            self._holding.discard(account)
        if (difference < 0 and self._waiting) or self.held_bytes > self._bytes_max:
            self._check_later(0.0)

    def _check_later(self, delay_s: float) -> None:
        if self._checking is not None:
            if delay_s or self._is_checked_soon:
                return
            self._checking.cancel()
        self._is_checked_soon = not delay_s
        self._checking = asyncio.get_running_loop().call_later(delay_s, self._check)

    def _check(self) -> None:
        """Make room, if it is needed, and call those who wait for it. Comes again for as long as anybody waits."""
        self._checking = None
        self._measured_s = 0.0
        self._measure()
        if self.held_bytes > self._usual_max - GRANT_SIZE_BYTES_SMALL:
            self._end_stalled()
        for callback in list(self._waiting):
            if self.held_bytes >= self._bytes_max:
                break
            if callback in self._waiting:
                del self._waiting[callback]
                callback()
        if self._waiting:
            self._check_later(CHECKED_AGAIN_S)

    def _measure(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._measured_s >= MEASURED_AGAIN_S:
            self._measured_s = now_s
            for account in list(self._holding):
                account.measure(now_s)

    def _end_stalled(self) -> None:
        """End connections that have stalled; above the bound, which replies of other kinds may pass, any that hold."""
        now_s = self._clock.monotonic_s()
        room_needed = self._usual_max // 2

        def order(account: ReaderAccount) -> tuple[float, int]:
            stalled_s = account.stalled_s(now_s)
            return stalled_s if stalled_s >= self._patience_s else 0.0, account.held_bytes

        for account in sorted(self._holding, key=order, reverse=True):
            stalled_s = account.stalled_s(now_s)
            if self.held_bytes <= room_needed:
                return
            if stalled_s < self._patience_s and self.held_bytes <= self._bytes_max:
                return
            logger.debug("reader ended held_bytes=%d stalled_s=%.1f", account.held_bytes, stalled_s)
            self._counters.readers_ended_total += 1
            account.holder.abort()
            account.close()
