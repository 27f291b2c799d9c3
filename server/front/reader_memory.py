"""Memory of the readers of all connections: bytes fetched for them, and bytes sent and not yet received.

A peer that requests much and receives nothing keeps it in memory. So each connection has an *account* of its memory,
and the sum of all accounts is bounded. A read takes a *grant* first. If it gets none, it waits for memory, and its
connection is not read.

Stalled peers must not stop the others:

- The last eighth is for connections that hold nothing, a little for each: a reader that keeps up with the tail
  continues while others have filled the rest.
- Above that mark, a connection that has not received the bytes it held for longer than the patience is closed, the
  longest stalled first. A reader that receives its bytes, however slowly, passes its *goal* now and then: everything
  that was sent to it when it passed the last goal.

Transports do not report when they have sent something, as long as they hold little. So the unsent bytes are polled:
when a connection sends, and for all connections when memory seems to be full.
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
"""Share of the limit; the rest is for connections that hold nothing."""
GRANT_SIZE_BYTES_SMALL: Final = 64 * KIB
"""Grant for one of those. Nor is it worthwhile to read less than this when memory is nearly full."""
FETCH_SIZE_BYTES_MIN: Final = 4 * KIB
"""The least that a read in progress counts: the memory of its task."""
MEASURED_AGAIN_S: Final = 0.02
CHECKED_AGAIN_S: Final = 0.1


class ReaderConnection(Protocol):
    """The memory-accounting interface of a connection's readers."""

    def unsent_bytes(self) -> int:
        """Return how many bytes were passed to the transport but not yet to the system."""
        ...

    def abort(self) -> None:
        """End at once."""
        ...


class ReaderAccount:
    """Memory of one connection; created by `ReaderMemory.account`.

    Attributes:
        fetching_bytes: granted to reads in progress.
        unsent_bytes: in the transport, when last polled.
    """

    __slots__ = ("_goal_s", "_goal_total", "_memory", "_sent_total", "fetching_bytes", "holder", "unsent_bytes")

    def __init__(self, memory: "ReaderMemory", holder: ReaderConnection) -> None:
        self._memory = memory
        self.holder = holder
        self.fetching_bytes = 0
        self.unsent_bytes = 0
        self._sent_total = 0
        # The total received bytes at which a new goal is set; and since when this one is.
        self._goal_total = 0
        self._goal_s = 0.0

    @property
    def held_bytes(self) -> int:
        """The connection's memory in total."""
        return self.fetching_bytes + self.unsent_bytes

    def grant(self, size: int) -> int:
        """Return how many of the requested bytes may be read now; 0 if the read has to wait."""
        return self._memory.grant(self, size)

    def fetch(self, size: int) -> None:
        """Hold memory for a read in progress, until it is `fetched`."""
        size = max(size, FETCH_SIZE_BYTES_MIN)
        self.fetching_bytes += size
        self._memory.changed(self, size)

    def fetched(self, size: int) -> None:
        """Release the memory of a read that has ended; bytes sent of it count from then on."""
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
        """Poll the unsent bytes."""
        unsent = self.holder.unsent_bytes()
        difference, self.unsent_bytes = unsent - self.unsent_bytes, unsent
        if self._sent_total - unsent >= self._goal_total:
            self._goal_total, self._goal_s = self._sent_total, now_s
        if difference:
            self._memory.changed(self, difference)

    def stalled_s(self, now_s: float) -> float:
        """How long the peer has not received the bytes that it held at some time; 0 if none are unsent."""
        return now_s - self._goal_s if self.unsent_bytes else 0.0

    def close(self) -> None:
        """Release everything: the connection is gone."""
        held = self.held_bytes
        self.fetching_bytes = self.unsent_bytes = 0
        self._memory.changed(self, -held)


class ReaderMemory:
    """The accounts of all connections; belongs to one event loop.

    Args:
        bytes_max: the limit of their sum.
        patience_s: how long a connection may stall while others have to wait.
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
        # Callbacks of waiting reads, the longest wait first.
        self._waiting: dict[Callable[[], None], None] = {}
        self._checking: asyncio.TimerHandle | None = None
        self._is_checked_soon = False

    def account(self, holder: ReaderConnection) -> ReaderAccount:
        """Return the account of a new connection."""
        return ReaderAccount(self, holder)

    def wait(self, callback: Callable[[], None]) -> None:
        """Call back once when memory may be available."""
        self._waiting[callback] = None
        self._check_later(CHECKED_AGAIN_S)

    def stop_waiting(self, callback: Callable[[], None]) -> None:
        """Cancel a callback; does nothing if it is not waiting."""
        self._waiting.pop(callback, None)

    def grant(self, account: ReaderAccount, size: int) -> int:
        """Return how many of the requested bytes an account may take now."""
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
        """Record that an account holds more, or less."""
        self.held_bytes += difference
        assert 0 <= account.held_bytes <= self.held_bytes, "an account is a part of the sum"
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
        """Free memory if needed, and wake waiters. Repeats itself while anything waits."""
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
        """Close stalled connections; above the limit, which other replies may exceed, any that hold memory."""
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
