"""Figures as people read them: sizes, times, durations, rates."""

from datetime import UTC, datetime
from typing import Final

_SIZE_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")
_RATE_UNITS: Final = ("k", "M", "G")


def size_text(size: float) -> str:
    """Return a size in bytes with the unit that leaves one to four digits before the point."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in _SIZE_UNITS:
        size /= 1024
        if size < 1024 or unit == _SIZE_UNITS[-1]:
            break
    return f"{size:.0f} {unit}" if size >= 100 else f"{size:.1f} {unit}"


def rate_text(rate: float) -> str:
    """Return a number of things per second, to three digits."""
    for unit in ("", *_RATE_UNITS):
        if rate < 1000 or unit == _RATE_UNITS[-1]:
            break
        rate /= 1000
    digits = 0 if rate >= 100 else 1 if rate >= 10 else 2
    return f"{rate:.{digits}f} {unit}/s" if unit else f"{rate:.{digits}f}/s"


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
    """Return a moment, given in Unix microseconds, in UTC to the millisecond; what no calendar holds as a number."""
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
