"""Leases of clients: what a client began ends when it is silent for longer than its lease.

A kind whose entities have leases keeps one `Leases`, by the numbers of its entities, and looks at it in its own loop.
All of a container share one clock. A lease counts time in which the server could have received from a client: while the
event loop turned. A step longer than a second (the machine was suspended, the disk stood still) counts as a second. In
an outage of the object store, a server whose log is there accepts no clients, and nothing counts.

Only the length of a lease is durable: after a start each lease begins again. Writers have no leases: the time in which
they are idle is days, is counted over starts, and so is durable itself (`kinds.writers.uptime`).
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from millrace.server.host.clock import Clock

STEP_S_MAX: Final = 1.0

Key = TypeVar("Key", bound=Hashable)


class LeaseClock:
    """How long clients could be received from, as of the last `tick`.

    Args:
        is_open: returns whether they can be now.

    Attributes:
        now_s: the time that leases are measured in, in seconds.
    """

    def __init__(self, clock: Clock, *, is_open: Callable[[], bool] = lambda: True) -> None:
        self._clock = clock
        self._is_open = is_open
        self._last_s = clock.monotonic_s()
        self.now_s = 0.0

    def tick(self) -> float:
        """Count the time since the last tick, and return `now_s`; to be called at each look at leases."""
        now_s = self._clock.monotonic_s()
        if self._is_open():
            self.now_s += min(now_s - self._last_s, STEP_S_MAX)
        self._last_s = now_s
        return self.now_s


class Leased(Protocol):
    """What has a lease.

    Attributes:
        is_renewed: whether its client named it since the last look; set by requests, cleared by the look.
        holders_count: how many waiting requests keep the lease from expiring.
    """

    is_renewed: bool
    holders_count: int


class Leases(Generic[Key]):
    """When each of a set of leases was renewed last. Belongs to one event loop."""

    def __init__(self, clock: LeaseClock) -> None:
        self._clock = clock
        self._renewed_s: dict[Key, float] = {}

    def expired(self, leases: Iterable[tuple[Key, float, Leased]]) -> list[Key]:
        """Look at all leases, and return the keys of those that have expired.

        Args:
            leases: all that are open, with their lengths in seconds. A lease begins with the first look at it; one that
                is missing is forgotten.
        """
        now_s = self._clock.tick()
        renewed_s: dict[Key, float] = {}
        expired = []
        for key, length_s, leased in leases:
            since_s = self._renewed_s.get(key, now_s)
            if leased.is_renewed or leased.holders_count:
                leased.is_renewed = False
                since_s = now_s
            elif now_s - since_s > length_s:
                expired.append(key)
            renewed_s[key] = since_s
        self._renewed_s = renewed_s
        return expired
