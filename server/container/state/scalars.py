"""The scalars of a container, beside its entities: columns of the one row of `meta` in its checkpoint."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.server.wal import NOTHING_ACCEPTED, AcceptedLoss

from .clock_history import ClockHistory, ClockReading
from .quarantine import EntityDamage

_NUMBERS: Final = ("next_id", "horizon", "uptime_us", "wall_time_us", "log_capacity_bytes")
_ACCEPTED: Final = ("accepted_sequence", "accepted_file_number")
NUMBER_COLUMNS: Final = (*_NUMBERS[:4], *_ACCEPTED, *_NUMBERS[4:])
"""The columns that are integers, in their order in `meta`."""
HISTORY_COLUMN: Final = "clock_history"
"""The column of the clock history, as JSON: the last reading, and pairs of uptime and Unix time. Where entities are
damaged, also the fields of each `EntityDamage`."""


@dataclass(slots=True, kw_only=True)
class Scalars:
    """What a container knows once.

    Attributes:
        next_id: no number from this on was given.
        horizon: every transaction whose outcome was forgotten has a number below it.
        uptime_us: for how long servers ran, as counted last: the age of everything.
        wall_time_us: when the last batch that is applied was written.
        log_capacity_bytes: the most that the log can hold, and so can lose at once; 0 while there is no log.
        accepted: what of the log an operator has given up.
        clock_history: what the clocks said.
    """

    next_id: int
    horizon: int = 0
    uptime_us: int = 0
    wall_time_us: int = 0
    log_capacity_bytes: int = 0
    accepted: AcceptedLoss = NOTHING_ACCEPTED
    clock_history: ClockHistory = field(default_factory=ClockHistory)

    def columns(self, damages: Iterable[EntityDamage]) -> dict[str, int | str]:
        """Return the columns of `meta` that hold this, and damages of entities."""
        history = [self.clock_history.last, self.clock_history.anchors]
        damaged = list(damages)
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            **dict(zip(_ACCEPTED, self.accepted, strict=True)),
            HISTORY_COLUMN: json.dumps([*history, damaged] if damaged else history),
        }


def read_scalars(meta: Mapping[str, Any]) -> tuple[Scalars, list[EntityDamage]]:
    """Return what the columns of `meta` hold, and the damages of entities."""
    last, anchors, *damages = json.loads(meta[HISTORY_COLUMN])
    scalars = Scalars(
        **{name: meta[name] for name in _NUMBERS},
        accepted=AcceptedLoss(*(meta[name] for name in _ACCEPTED)),
        clock_history=ClockHistory(ClockReading._make(last), map(tuple, anchors)),
    )
    return scalars, [EntityDamage._make(each) for each in (damages[0] if damages else ())]
