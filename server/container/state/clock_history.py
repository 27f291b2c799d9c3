"""Finds log stamps that are certainly older than a time, however the wall clock jumped.

Appends are stamped with the wall clock, which may jump. Age is counted in uptime, which cannot: for how long servers
ran, all of them together, by their monotonic clocks. This keeps what both said at the same moments, as the log has it
(`UPTIME_COUNTED`). When in doubt something is younger, so that a clock that jumps makes retention keep more, never
less. What was written before the first reading is taken to have been written at that moment.

The monotonic clock runs on while the machine does. So of two readings of one start of the machine it is known how much
time between them is not in the uptime, because no server ran, or it was stopped. What is stored grows older by it: the
readings before are moved back. Between two starts of the machine it is not known: only the wall clock tells how long it
was off, and a jump of that clock gives the same readings.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

JUMP_US: Final = 1_000_000
"""A wall clock that differs by more from what it should say has jumped."""
ANCHORS_COUNT_MAX: Final = 1000
NOTHING_US: Final = -(1 << 63)
"""Before the stamps of all events."""


class ClockReading(NamedTuple):
    """What all clocks say at one moment, in microseconds.

    Attributes:
        monotonic_us: of the machine.
        boot: names the start of the machine that these count from; empty if it has no name.
    """

    uptime_us: int
    unix_us: int
    monotonic_us: int
    boot: str


NO_READING: Final = ClockReading(0, 0, 0, "")


class ClockHistory:
    """Uptimes and Unix times of the readings that disagree with those before, ascending in uptime; and the last one.

    Attributes:
        last: the reading that was observed last.
    """

    def __init__(self, last: ClockReading = NO_READING, anchors: Iterable[tuple[int, int]] = ()) -> None:
        self.last = last
        self._anchors: deque[tuple[int, int]] = deque(anchors, maxlen=ANCHORS_COUNT_MAX)

    @property
    def anchors(self) -> list[tuple[int, int]]:
        """What is kept of the readings that disagree, for a checkpoint."""
        return list(self._anchors)

    def observe(self, reading: ClockReading) -> None:
        """Take in a reading; uptimes never descend."""
        uncounted_us = self._uncounted_us(reading)
        if uncounted_us:
            moved = [(uptime_us - uncounted_us, unix_us) for uptime_us, unix_us in self._anchors]
            self._anchors = deque(moved, maxlen=ANCHORS_COUNT_MAX)
        self.last = reading
        if self.has_jumped(reading):
            self._anchors.append((reading.uptime_us, reading.unix_us))

    def has_jumped(self, reading: ClockReading) -> bool:
        """Return whether the wall clock says another time than it should; True before the first reading."""
        return abs(reading.unix_us - self.expected_us(reading)) > JUMP_US

    def expected_us(self, reading: ClockReading) -> int:
        """Return what the wall clock should say when the others say what they do."""
        return self._stamp_at(reading.uptime_us) + self._uncounted_us(reading)

    def old_before_us(self, age_us: int, *, uptime_us: int) -> int:
        """Return a stamp: everything stamped earlier is at least `age_us` old; `NOTHING_US` if nothing is.

        Args:
            uptime_us: now.
        """
        then_us = uptime_us - age_us
        # A clock that was set back later gave younger events lower stamps.
        return min([self._stamp_at(then_us), *(unix_us for anchor_us, unix_us in self._anchors if anchor_us > then_us)])

    def _uncounted_us(self, reading: ClockReading) -> int:
        """Return how much time between the last reading and this one is not in the uptime, as far as that is known."""
        if not reading.boot or reading.boot != self.last.boot:
            return 0
        elapsed_us = reading.monotonic_us - self.last.monotonic_us
        return max(0, elapsed_us - (reading.uptime_us - self.last.uptime_us))

    def _stamp_at(self, uptime_us: int) -> int:
        """Return what the wall clock said at an uptime, as if it had not jumped since the reading before."""
        stamp_us = NOTHING_US
        for anchor_us, unix_us in self._anchors:
            if anchor_us > uptime_us:
                break
            stamp_us = unix_us + uptime_us - anchor_us
        return stamp_us
