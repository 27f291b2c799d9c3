"""How old a log stamp is, whatever the wall clock did meanwhile.

Appends are stamped with the wall clock, which may jump; how much time passed, only the monotonic clock knows. This
keeps what both said at the same moments, and answers: which stamps are certainly older than so many seconds? When in
doubt something is younger, so that a clock that jumps makes retention keep more, never less. What was written before
this process started was written at its last stamp or earlier, and grows older from the start on: the time while nobody
ran is not counted, because a forward jump looks just the same.
"""

from collections import deque
from typing import Final

JUMP_US: Final = 1_000_000
"""A wall clock that differs by more from what it should say has jumped."""
ANCHORS_COUNT_MAX: Final = 1000


class Timeline:
    """Readings of the two clocks, kept where they disagree with those before."""

    def __init__(self, *, monotonic_s: float, unix_us: int) -> None:
        self._anchors: deque[tuple[float, int]] = deque([(monotonic_s, unix_us)], maxlen=ANCHORS_COUNT_MAX)
        self._started_s = monotonic_s

    def observe(self, *, monotonic_s: float, unix_us: int) -> None:
        """Take note of what both clocks say now; often, as a jump is dated to the reading before it."""
        if abs(unix_us - self._stamp_at(monotonic_s)) > JUMP_US:
            self._anchors.append((monotonic_s, unix_us))

    def old_before_us(self, age_s: float, *, monotonic_s: float, last_stamp_us: int) -> int:
        """Return a stamp: everything stamped earlier is at least `age_s` old.

        Args:
            monotonic_s: now.
            last_stamp_us: the last stamp of what is asked about, as far as it was there before the start.
        """
        then_s = monotonic_s - age_s
        if then_s >= self._started_s and then_s >= self._anchors[0][0]:
            stamp_us = self._stamp_at(then_s)
        else:
            first_s, first_us = self._anchors[0]
            stamp_us = min(first_us, last_stamp_us) - round((first_s - then_s) * 1e6)
        # A clock that went back later gave stamps to younger events that look older.
        return min([stamp_us, *(unix_us for anchor_s, unix_us in self._anchors if anchor_s > then_s)])

    def _stamp_at(self, monotonic_s: float) -> int:
        """Return what the wall clock said at a moment, as if it had not jumped since the reading before."""
        anchor_s, unix_us = self._anchors[0]
        for later_s, later_us in self._anchors:
            if later_s > monotonic_s:
                break
            anchor_s, unix_us = later_s, later_us
        return unix_us + round((monotonic_s - anchor_s) * 1e6)
