"""The pattern that Spark looks for, of each card: one function, whatever payments it is given."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import Row

from .limits import KNOWN_PAYMENTS, SMALL_CENTS, Limits
from .payments import City, kilometres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAYMENT: Final = (
    "number long, cents long, city string, latitude double, longitude double, "
    "_key string, _timestamp timestamp, _segment long, _offset long, _index int"
)
"""The schema of payments, as the source of Millrace reads them."""
_PLACE: Final = "struct<segment: long, offset: long, index: int>"
ALERT: Final = f"card string, number long, rule string, payment {_PLACE}, before {_PLACE}"
_SEEN: Final = "at_us long, city string, latitude double, longitude double, segment long, offset long, `index` int"


class _Seen(NamedTuple):
    """What the state keeps of a payment: when, in which city (online: in none), and its place in the stream."""

    at_us: int
    city: str | None
    latitude: float | None
    longitude: float | None
    segment: int
    offset: int
    event_index: int

    @classmethod
    def of(cls, row: Row) -> "_Seen":
        place = (row["_segment"], row["_offset"], row["_index"])
        return cls(row["at_us"], row["city"], row["latitude"], row["longitude"], *place)

    @property
    def where(self) -> City | None:
        if self.city is None or self.latitude is None or self.longitude is None:
            return None
        return City(self.city, self.latitude, self.longitude)

    @property
    def place(self) -> Row:
        return Row(segment=self.segment, offset=self.offset, index=self.event_index)


class Watch(StatefulProcessor):
    """Watches each card: knows its mean, its last small payment, and its last one in a city."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self._usual = handle.getValueState("usual", "payments long, cents long")
        self._small = handle.getValueState("small", _SEEN)
        self._visit = handle.getValueState("visit", _SEEN)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Tell what is suspicious among the next payments of a card.

        There is no timer, and no clock: what is told depends on the payments of the card and their times alone. So it
        is the same, however these come: as years at once, or one by one.
        """
        payments, cents = self._usual.get() or (0, 0)
        small, visit = (_Seen(*found) if (found := state.get()) else None for state in (self._small, self._visit))
        # A shuffle has no order. The places of the payments of one card ascend as they were written.
        for row in sorted(rows, key=lambda row: (row["_segment"], row["_offset"], row["_index"])):
            seen = _Seen.of(row)
            is_large = payments >= KNOWN_PAYMENTS and row["cents"] * payments > self._limits.times * cents
            if small and is_large and seen.at_us - small.at_us <= self._limits.minutes * 60_000_000:
                yield _alert(key[0], row["number"], "tested", seen, small)
            elif visit and self._is_too_fast(visit, seen):
                yield _alert(key[0], row["number"], "far apart", seen, visit)
            payments, cents = payments + 1, cents + row["cents"]
            small = seen if row["cents"] <= SMALL_CENTS else small
            visit = seen if seen.city is not None else visit
        self._usual.update((payments, cents))
        for state, value in ((self._small, small), (self._visit, visit)):
            if value is not None:
                state.update(tuple(value))

    def _is_too_fast(self, before: _Seen, seen: _Seen) -> bool:
        here, there = seen.where, before.where
        if here is None or there is None:
            return False
        return kilometres(there, here) * 3600e6 > self._limits.kmh * (seen.at_us - before.at_us)

    def close(self) -> None:
        """Nothing is open."""


def _alert(card: str, number: int, rule: str, seen: _Seen, before: _Seen) -> Row:
    return Row(card=card, number=number, rule=rule, payment=seen.place, before=before.place)


def patterns(payments: "DataFrame", limits: Limits) -> "DataFrame":
    """Return the alerts of payments, which have the columns of `PAYMENT`: a slice, or as they come."""
    return (
        payments.selectExpr("*", "unix_micros(_timestamp) as at_us")
        .groupBy("_key")
        .transformWithState(
            statefulProcessor=Watch(limits), outputStructType=ALERT, outputMode="append", timeMode="none"
        )
    )
