"""Counts uptime: for how long servers ran, all of them together, by their monotonic clocks.

It is the one age of things: writers that are idle, and what streams hold, grow older by it. So no wall clock that jumps
makes anything older. It is recorded in the log every few minutes, together with what the other clocks say, so that the
age of the wall clock's stamps is known: see `container.state.scalars.clock_history`.

What was not recorded when a server ends is not counted, and of the time between two records no more than a step
(`expiry.step_us`): the process may have been stopped meanwhile.
"""

from pathlib import Path
from typing import Final

from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.clock_history import ClockReading
from millrace.wire import messages as m

from .expiry_plan import step_us
from .options import WritersOptions

RECORD_INTERVAL_S_MAX: Final = 600.0


class Uptime:
    """The uptime of one container. Made when the container was opened, before anything is appended."""

    def __init__(self, container: SegmentContainer, options: WritersOptions, *, boot: str) -> None:
        """Begin to count.

        Args:
            container: whose log keeps what is counted.
            options: of the writers of the container.
            boot: names the present start of the machine; empty if it has no name.
        """
        self._container = container
        self._clock = container.clock
        self._boot = boot
        self._history = container.state.scalars.clock_history
        self._step_us = step_us(options)
        # Twice in a step, so that a record which comes a bit late loses nothing.
        self.record_interval_s = min(self._step_us / 2e6, RECORD_INTERVAL_S_MAX)
        # What was counted, first by the servers before us, and until when.
        self._counted_us = container.state.scalars.uptime_us
        self._counted_s = self._clock.monotonic_s()
        # When the wall clock last said what the history expects of it.
        self._agreed_us = self._counted_us

    def now_us(self) -> int:
        """Return the uptime now."""
        elapsed_us = round((self._clock.monotonic_s() - self._counted_s) * 1e6)
        return self._counted_us + min(elapsed_us, self._step_us)

    def old_before_us(self, age_s: float) -> int:
        """Return a log stamp: what was stamped earlier is at least so old. Right after `record_jump` only."""
        return self._history.old_before_us(round(age_s * 1e6), uptime_us=self.now_us())

    async def record_jump(self) -> None:
        """Record the uptime if the wall clock has jumped since that was done last. Cancelling is safe.

        Raises:
            ServerError: the log takes nothing now.
        """
        if self._has_jumped():
            await self.record()

    async def record(self) -> None:
        """Record the uptime, and what the wall clock says. Cancelling is safe.

        Raises:
            ServerError: the log takes nothing now.
        """
        now = self._reading()
        unix_us = now.unix_us
        if self._has_jumped() and unix_us < self._history.expected_us(now):
            # It may have been set back right after the last look, and what was appended since has the lower stamps.
            unix_us -= now.uptime_us - self._agreed_us
        self._counted_us, self._counted_s = now.uptime_us, self._clock.monotonic_s()
        await self._container.decide(m.UptimeCounted(now.uptime_us, unix_us, now.monotonic_us, self._boot))

    def _reading(self) -> ClockReading:
        monotonic_us = round(self._clock.monotonic_s() * 1e6)
        return ClockReading(self.now_us(), self._clock.unix_us(), monotonic_us, self._boot)

    def _has_jumped(self) -> bool:
        now = self._reading()
        has_jumped = self._history.has_jumped(now)
        if not has_jumped:
            self._agreed_us = now.uptime_us
        return has_jumped


def boot_id() -> str:
    """Return the name of the present start of the machine, empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
