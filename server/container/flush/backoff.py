"""Exponential backoff of a step in the background that fails: 1 s, 2 s, 4 s, 8 s, 16 s, 16 s, ..."""

from typing import Final

from millrace.server.host.clock import Clock

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 16.0
"""Also the longest time for which a store that works again is not used: meanwhile a full log refuses appends."""


class FlushBackoff:
    """When one step may be attempted again; a success resets it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wait_s = RETRY_S
        self._due_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the step may be attempted now."""
        return self._clock.monotonic_s() >= self._due_s

    def failed(self) -> float:
        """Note that an attempt failed; return the seconds until the next one."""
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, RETRY_S_MAX)
        self._due_s = self._clock.monotonic_s() + wait_s
        return wait_s

    def succeeded(self) -> None:
        """Note that an attempt succeeded, or that what kept it from succeeding is gone."""
        self._wait_s, self._due_s = RETRY_S, 0.0
