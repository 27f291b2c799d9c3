"""Bounds on event times relative to the server's clock, and detection of wrong units."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from .errors import InvalidArgumentError

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_SECONDS_MAX: Final = 1e12
_UNITS: Final = (("seconds", 1_000_000), ("milliseconds", 1000), ("nanoseconds", 1 / 1000))
_LIKELY_US: Final = (946_684_800_000_000, 4_102_444_800_000_000)
"""The years 2000 to 2100."""


class OutsideTimes(StrEnum):
    """The treatment of events with a time outside of the bounds."""

    REFUSE = "refuse"
    """The append fails, and none of its events is stored."""
    CLAMP = "clamp"
    """The events are stored with the time of the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeBounds:
    """Bounds on the event times of a stream, relative to the server's clock at the append.

    Attributes:
        future_s_max: after the clock; None: any time.
        past_s_max: before the clock; None: any time.
        outside: how to handle an event outside.
    """

    future_s_max: float | None = None
    past_s_max: float | None = None
    outside: OutsideTimes = OutsideTimes.REFUSE

    def __post_init__(self) -> None:
        for name in ("future_s_max", "past_s_max"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 <= value <= _SECONDS_MAX):
                raise InvalidArgumentError(
                    f"{name} must be a number of seconds from 0 to {_SECONDS_MAX:.0e}, not {value!r:.120}"
                )
        if self.future_s_max is None and self.past_s_max is None:
            raise InvalidArgumentError("bounds of event times need future_s_max, past_s_max, or both")
        try:
            object.__setattr__(self, "outside", OutsideTimes(self.outside))
        except ValueError:
            known = ", ".join(OutsideTimes)
            raise InvalidArgumentError(f"outside must be one of {known}, not {self.outside!r:.120}") from None

    def limits_us(self, now_us: int) -> tuple[int, int]:
        """Return the earliest and the latest time, in Unix microseconds, that an event may have."""
        low = _INT64_MIN if self.past_s_max is None else now_us - round(self.past_s_max * 1e6)
        high = _INT64_MAX if self.future_s_max is None else now_us + round(self.future_s_max * 1e6)
        return max(low, _INT64_MIN), min(high, _INT64_MAX)

    def to_dict(self) -> dict[str, Any]:
        """Return the bounds as they are in the JSON of a configuration."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "EventTimeBounds":
        """Return the bounds in the JSON of a configuration.

        Raises:
            InvalidArgumentError: a value is wrong; the message names it.
        """
        return cls(
            future_s_max=content.get("future_s_max"),
            past_s_max=content.get("past_s_max"),
            outside=content.get("outside", OutsideTimes.REFUSE),
        )


def unit_hint(timestamp_us: int) -> str:
    """Return a sentence if a time is probably in another unit than microseconds, else an empty text.

    As microseconds it is far from the years 2000 to 2100, but within them in another unit.
    """
    low, high = _LIKELY_US
    if low <= timestamp_us <= high:
        return ""
    for unit, factor in _UNITS:
        if low <= timestamp_us * factor <= high:
            return f"{timestamp_us} looks like {unit}: the time of an event is in microseconds"
    return ""
