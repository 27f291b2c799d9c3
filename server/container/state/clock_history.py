"""Which log stamps are certainly older than some time, whatever the wall clock did meanwhile.

Appends are stamped with the wall clock, which may jump. Age is counted in uptime, which cannot: for how long servers
ran, all of them together, by their monotonic clocks. This keeps what both said at the same moments, as the log has it
(`UPTIME_COUNTED`). When in doubt something is younger, so that a clock that jumps makes retention keep more, never
less. What was written before the first reading is taken to have been written at that moment.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

JUMP_US: Final = 1_000_000
"""A wall clock that differs by more from what it should say has jumped."""
READINGS_COUNT_MAX: Final = 1000
NOTHING_US: Final = -(1 << 63)
"""Before the stamps of all events."""

Reading = tuple[int, int]
"""Uptime, and Unix time at that moment, in microseconds."""


class ClockHistory:
    """Readings of the two clocks, kept where they disagree with those before; ascending in uptime."""

    def __init__(self, readings: Iterable[Reading] = ()) -> None:
        self._readings: deque[Reading] = deque(readings, maxlen=READINGS_COUNT_MAX)

    @property
    def readings(self) -> list[Reading]:
        """What is kept, for a checkpoint."""
        return list(self._readings)

    def observe(self, *, uptime_us: int, unix_us: int) -> None:
        """Keep a reading if the wall clock has jumped; uptimes never descend."""
        if self.has_jumped(uptime_us=uptime_us, unix_us=unix_us):
            self._readings.append((uptime_us, unix_us))

    def has_jumped(self, *, uptime_us: int, unix_us: int) -> bool:
        """Return whether the wall clock says another time than the readings make expect; True if there are none."""
        return abs(unix_us - self.stamp_at(uptime_us)) > JUMP_US

    def old_before_us(self, age_us: int, *, uptime_us: int) -> int:
        """Return a stamp: everything stamped earlier is at least `age_us` old; `NOTHING_US` if nothing is.

        Args:
            uptime_us: now.
        """
        then_us = uptime_us - age_us
        # A clock that was set back later gave younger events lower stamps.
        return min([self.stamp_at(then_us), *(unix_us for read_us, unix_us in self._readings if read_us > then_us)])

    def stamp_at(self, uptime_us: int) -> int:
        """Return what the wall clock said at an uptime, as if it had not jumped since the reading before.

        That is `NOTHING_US` before the first reading.
        """
        stamp_us = NOTHING_US
        for read_us, unix_us in self._readings:
            if read_us > uptime_us:
                break
            stamp_us = unix_us + uptime_us - read_us
        return stamp_us
