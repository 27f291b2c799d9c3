"""Parsing of Spark options: strings, whose names ignore case."""

import difflib
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from millrace.client.options import parse_addresses
from millrace.model.names import checked_stream_name
from millrace.model.quantities import parse_duration, parse_size

from .errors import OptionError
from .values.formats import ValueFormat

Choice = TypeVar("Choice", bound=StrEnum)


def named_options(
    options: Mapping[str, str],
    names: Collection[str],
    *,
    verbatim: Collection[str] = (),
    advise: Callable[[str, str], str | None] = lambda _key, _value: None,
) -> dict[str, str]:
    """Return the options from Spark, by their documented names.

    Args:
        verbatim: options whose blanks are significant.
        advise: returns advice about an unknown option and its value, or None.

    Raises:
        OptionError: an option is unknown.
    """
    name_of_lowered = {name.lower(): name for name in names}
    given = {}
    for key, value in options.items():
        name = name_of_lowered.get(key.lower())
        if name is None:
            if advice := advise(key, value):
                raise OptionError(key, advice)
            close = difflib.get_close_matches(key.lower(), name_of_lowered, n=1)
            advice = f"did you mean {name_of_lowered[close[0]]}?" if close else f"the options are {', '.join(names)}"
            raise OptionError(key, f"unknown; {advice}")
        given[name] = value if name in verbatim else value.strip()
    return given


def values_of(given: Mapping[str, str], parsers: Mapping[str, tuple[str, Callable[[str], Any]]]) -> dict[str, Any]:
    """Return the values of options, by the names of their fields.

    Args:
        parsers: for each option the name of its field, and its parser, which raises ValueError for an invalid value.

    Raises:
        OptionError: a value is invalid.
    """
    values = {}
    for name, text in given.items():
        field_name, parse = parsers[name]
        try:
            values[field_name] = parse(text)
        except ValueError as error:
            raise OptionError(name, str(error)) from None
    return values


def address_of(text: str) -> str:
    """Return an address with its port; several with commas between them."""
    return str(parse_addresses(text))


def size_of(text: str) -> int:
    """Return the bytes that `64m` means."""
    size = parse_size(text)
    if not 0 < size < 1 << 63:
        raise ValueError(f"{text!r} must be above 0 and below 8 EiB")
    return size


def duration_of(text: str) -> float:
    """Return the seconds that `15m` means."""
    duration_s = parse_duration(text)
    if not duration_s > 0:
        raise ValueError(f"{text!r} must be above 0")
    return duration_s


def count_of(text: str) -> int:
    """Return a number above 0."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 63):
        raise ValueError(f"{text!r} is no number above 0")
    return int(text)


def flag_of(text: str) -> bool:
    """Return whether it is `true`."""
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return lowered == "true"


def choice_of(choices: type[Choice], text: str) -> Choice:
    """Return which of the choices a word is."""
    try:
        return choices(text)
    except ValueError:
        raise ValueError(f"{text!r} is none of {', '.join(choices)}") from None


def names_of(text: str) -> tuple[str, ...]:
    """Return the names in a list like `key, value`, without duplicates."""
    names = tuple(name.strip() for name in text.split(","))
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]} is named twice")
    return names


def stream_names_of(text: str) -> tuple[str, ...]:
    """Return the names in a list like `shop/orders, shop/returns`."""
    return tuple(map(checked_stream_name, names_of(text)))


def value_format_of(text: str) -> ValueFormat:
    """Return the format of values; its case is not regarded."""
    return choice_of(ValueFormat, text.lower())
