"""Checks of options. Each error names the option, its value, and the valid values.

The unit of an option is in its name, and only this module parses it: `file_size_bytes`, `flush_age_s`.
"""

import re
from typing import Any, Final

from millrace.model.quantities import exact_duration, exact_size

from .errors import SettingError

_SIZE: Final = re.compile(r"(?:^|_)bytes(_|$)")
_DURATION: Final = re.compile(r"(?<!_per)_s(_|$)")
"""Not of a rate, as in `small_flushes_per_s_max`."""


def is_size(option: str) -> bool:
    """Return whether an option of this name is a number of bytes."""
    return _SIZE.search(option) is not None


def is_duration(option: str) -> bool:
    """Return whether an option of this name is a number of seconds."""
    return _DURATION.search(option) is not None


def option_text(option: str, value: object) -> str:
    """Return a value with its unit, as a person would write it into a file of settings."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if is_size(option) and isinstance(value, int) and value >= 0:
        return exact_size(value)
    if is_duration(option) and isinstance(value, int | float) and 0 <= value < float("inf"):
        return exact_duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def demand(holds: bool, options: object, option: str, right: str) -> None:
    """Raise SettingError about an option unless a condition holds.

    Args:
        right: the valid values, as a continuation of "it must be".
    """
    if not holds:
        value: Any = getattr(options, option)
        raise SettingError(option, value=option_text(option, value), right=right)


def demand_at_least(options: object, least: float, *names: str) -> None:
    """Raise SettingError about the first of these options that is below `least`, or no number."""
    for name in names:
        demand(getattr(options, name) >= least, options, name, f"at least {option_text(name, least)}")


def demand_above_zero(options: object, *names: str) -> None:
    """Raise SettingError about the first of these options that is not above 0."""
    for name in names:
        demand(getattr(options, name) > 0, options, name, "above 0")
