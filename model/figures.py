"""Figures as people read them: sizes, times, durations, rates."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_RATE_UNITS: Final = ("", " k", " M", " G")


def size_text(size: float) -> str:
    """Return a size in bytes with the unit that leaves one to four digits before the point."""
    unit, suffix = _pick_unit(size, _SIZE_UNITS, base=1024)
    digits = 0 if unit == 1 or size >= 100 * unit else 1
    return f"{size / unit:.{digits}f} {suffix}"


def rate_text(rate: float) -> str:
    """Format a rate per second, to three digits."""
    unit, suffix = _pick_unit(rate, _RATE_UNITS, base=1000)
    digits = 0 if rate >= 100 * unit else 1 if rate >= 10 * unit else 2
    return f"{rate / unit:.{digits}f}{suffix}/s"


def duration_text(duration_s: float) -> str:
    """Return a duration with the unit that suits it."""
    if duration_s < 0.001:
        return f"{duration_s * 1e6:.0f} us"
    if duration_s < 1:
        return f"{duration_s * 1e3:.1f} ms"
    if duration_s < 120:
        return f"{duration_s:.1f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 120:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def time_text(unix_us: int | None) -> str:
    """Format Unix microseconds in UTC to the millisecond; times outside of the calendar as a number."""
    if unix_us is None:
        return ""
    try:
        moment = datetime.fromtimestamp(unix_us / 1e6, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{unix_us} us"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def count_text(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun in the right number: `1 segment`, `12,000 segments`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _pick_unit(value: float, names: Sequence[str], *, base: int) -> tuple[int, str]:
    """Return the largest unit that is not above a value, and its name; the smallest for smaller values."""
    power = 0
    while power < len(names) - 1 and int(value) >= base ** (power + 1):
        power += 1
    return base**power, names[power]
