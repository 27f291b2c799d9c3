"""How old a log stamp is, whatever the wall clock did meanwhile.

Appends are stamped with the wall clock, which may jump; how much time passed, only the monotonic clock knows. This
keeps what both said at the same moments, and answers: which stamps are certainly older than so many seconds? When in
doubt something is younger, so that a clock that jumps makes retention keep more, never less.

The readings outlive the server, in a small file. The monotonic clock runs on while the machine does, so the time
between two servers counts. It does not count when the machine was started again meanwhile: only the wall clock tells
how long it was off, and a jump of that clock gives the same readings. What was written before the first reading is
taken to have been written at that moment: without the file, everything is young again.

    {"boot": "5a0c...",                                 which start of the machine the monotonic seconds count from
     "kept_s": 1180.2,                                  when this was kept
     "readings": [[1000.5, 1700000000000000], ...],     monotonic seconds, Unix microseconds
     "checksum": 3735928559}                            CRC-32C of the others, written as JSON without blanks
"""

import json
import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from millrace.model.checksum import crc32c

JUMP_US: Final = 1_000_000
"""A wall clock that differs by more from what it should say has jumped."""
ANCHORS_COUNT_MAX: Final = 1000
NOTHING_US: Final = -(1 << 63)
"""Before the stamps of all events."""


class ClockHistory:
    """Readings of the two clocks, kept where they disagree with those before; at least one, ascending in the first."""

    def __init__(self, readings: Iterable[tuple[float, int]]) -> None:
        self._anchors: deque[tuple[float, int]] = deque(readings, maxlen=ANCHORS_COUNT_MAX)

    def observe(self, *, monotonic_s: float, unix_us: int) -> bool:
        """Compare a reading of both clocks with the record; add it and return True if the wall clock jumped."""
        has_jumped = abs(unix_us - self._stamp_at(monotonic_s)) > JUMP_US
        if has_jumped:
            self._anchors.append((monotonic_s, unix_us))
        return has_jumped

    def old_before_us(self, age_s: float, *, monotonic_s: float) -> int:
        """Return a stamp: everything stamped earlier is at least `age_s` old; `NOTHING_US` if nothing is.

        Args:
            monotonic_s: now.
        """
        then_s = monotonic_s - age_s
        if then_s < self._anchors[0][0]:
            return NOTHING_US
        # A clock that was set back later gave younger events lower stamps.
        return min([self._stamp_at(then_s), *(unix_us for anchor_s, unix_us in self._anchors if anchor_s > then_s)])

    def to_text(self, *, boot: str, monotonic_s: float) -> str:
        """Return the readings as they are kept, now."""
        content = {"boot": boot, "kept_s": monotonic_s, "readings": list(self._anchors)}
        return json.dumps(content | {"checksum": _checksum(content)})

    def _stamp_at(self, monotonic_s: float) -> int:
        """Return what the wall clock said at a moment, as if it had not jumped since the reading before."""
        anchor_s, unix_us = self._anchors[0]
        for later_s, later_us in self._anchors:
            if later_s > monotonic_s:
                break
            anchor_s, unix_us = later_s, later_us
        return unix_us + round((monotonic_s - anchor_s) * 1e6)


def clock_history_of_text(text: str, *, boot: str, monotonic_s: float, unix_us: int) -> ClockHistory:
    """Return the clock_history that continues what an earlier server kept; a new one if that cannot be used.

    Args:
        boot: names the present start of the machine; empty if it is unknown.
        monotonic_s, unix_us: now.
    """
    try:
        kept: dict[str, Any] = json.loads(text)
        if kept.pop("checksum") != _checksum(kept):
            raise ValueError("the checksum does not match")
        kept_s = float(kept["kept_s"])
        readings = [(float(seconds), int(stamp_us)) for seconds, stamp_us in kept["readings"]]
        seconds = [each for each, _ in readings]
        moments = [*seconds, kept_s]
        if not readings or not all(map(math.isfinite, moments)) or moments != sorted(moments):
            raise ValueError("the readings do not ascend")
        # After another start of the machine, the moment at which they were kept counts as this one.
        goes_on = bool(boot) and kept["boot"] == boot and kept_s <= monotonic_s
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError):
        return ClockHistory([(monotonic_s, unix_us)])
    shift_s = 0.0 if goes_on else monotonic_s - kept_s
    clock_history = ClockHistory((each + shift_s, stamp_us) for each, stamp_us in readings)
    clock_history.observe(monotonic_s=monotonic_s, unix_us=unix_us)
    return clock_history


def _checksum(content: dict[str, Any]) -> int:
    return crc32c(json.dumps(content, separators=(",", ":")).encode())
