"""Sizes, durations and times as people write them."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeVar

from .errors import InvalidArgumentError

T = TypeVar("T")

UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_NUMBER: Final = re.compile(r"(\d{1,19}(?:\.\d{1,24})?)\s*([A-Za-z]*)", re.ASCII)
_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_DURATIONS_S: Final = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


_SIZE_UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))
_DURATION_UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def parse_size(text: str) -> int:
    """Parse a size such as `4096`, `64k`, `10MiB` or `1.5 GiB`; units are powers of 1024.

    Raises:
        InvalidArgumentError: the text is not a size.
    """
    number, unit = _parts(text)
    factor = _SIZES.get(re.sub("(?<=[kmgtp])(ib|b)$", "", unit.lower()))
    if factor is None:
        raise InvalidArgumentError(f"{text!r} is not a size: write 4096, 64KiB, 10MiB or 1.5GiB")
    return round(Fraction(number) * factor)  # exactly: a float cannot represent odd sizes above 8 PiB


def parse_duration(text: str) -> float:
    """Parse a duration such as `250ms`, `90s`, `15m`, `12h`, `7d` or `2w` into seconds, the default unit.

    Raises:
        InvalidArgumentError: the text is not a duration.
    """
    number, unit = _parts(text)
    factor = _DURATIONS_S.get(unit.lower() or "s")
    if factor is None:
        raise InvalidArgumentError(f"{text!r} is not a duration: write 90s, 15m, 12h, 7d or 2w")
    return float(number) * factor


def exact_size(size_bytes: int) -> str:
    """Format a size in the largest unit of which it is a whole number: `64 MiB`; `parse_size` parses it."""
    unit, factor = next((unit, factor) for unit, factor in _SIZE_UNITS if size_bytes % factor == 0)
    return f"{size_bytes // factor} {unit}" if size_bytes else "0 B"


def exact_duration(duration_s: float) -> str:
    """Format a duration in the largest unit of which it is a whole number, or in seconds: `30 d`, `90 s`, `0.25 s`.

    `parse_duration` parses it.
    """
    if not duration_s:
        return "0 s"
    for unit, factor in _DURATION_UNITS:
        if duration_s % factor == 0:
            return f"{int(duration_s // factor)} {unit}"
    return f"{Decimal(repr(duration_s)):f} s"


def parse_bounds(text: str, parse: Callable[[str], T]) -> tuple[T | None, T | None]:
    """Parse the two sides of `MIN:MAX`, None for a missing one; without a colon it is the maximum.

    Raises:
        InvalidArgumentError: a side is invalid for `parse`.
    """
    least, most = (parse(side) if side.strip() else None for side in text.rpartition(":")[::2])
    return least, most


def parse_moment(text: str) -> int:
    """Parse an ISO 8601 date or time into Unix microseconds; without a zone it is UTC.

    Raises:
        InvalidArgumentError: the text is not a time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(f"{text!r} is not a time: write 2026-01-31T18:00:00Z") from None
    return unix_us_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def unix_us_of(moment: datetime) -> int:
    """Return the Unix microseconds of a time with a time zone; exactly, as floating point would not."""
    return (moment - UNIX_EPOCH) // timedelta(microseconds=1)


def _parts(text: str) -> tuple[str, str]:
    match = _NUMBER.fullmatch(text.strip())
    # Text without a leading number has a unit that no table has.
    return (match[1], match[2]) if match else ("0", "?")
