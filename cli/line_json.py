"""Text and JSON in an input line; an invalid line is a ValueError whose text continues "line 3 ..."."""

import json
import math
from dataclasses import dataclass
from typing import Any, Final

_DIGITS_MAX: Final = 4000
"""Digits of an integer that Python always converts, whatever its limit is set to; a longer one is a `WideNumber`."""


@dataclass(frozen=True, slots=True, repr=False)
class WideNumber:
    """A number that is not converted: an integer of thousands of digits, or one above the range of floats."""

    text: str

    def __repr__(self) -> str:
        return self.text


def decoded(line: bytes) -> str:
    """Return a line as text.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: {error.object[error.start]:#04x} at byte {error.start + 1:,}") from None


def parse_json(line: bytes) -> Any:
    """Parse a line of JSON; numbers out of range become `WideNumber`.

    Raises:
        ValueError: it is not UTF-8, not JSON, or nested too deeply.
    """
    text = decoded(line)
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("is JSON that is nested too deeply, hundreds of levels") from None
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None


def json_text(content: Any, name: str) -> str:
    """Return content as canonical JSON: names are sorted, and there are no spaces.

    Raises:
        ValueError: it contains a `WideNumber`, or is nested too deeply.
    """
    if isinstance(content, WideNumber):
        return content.text
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":"))
    except TypeError:
        raise ValueError(f"has a {name} with a number inside that is out of range") from None
    except RecursionError:
        raise ValueError(f"has a {name} that is nested too deeply, hundreds of levels") from None


def utf8(text: str, name: str) -> bytes:
    r"""Encode a text in UTF-8.

    Raises:
        ValueError: it has one half of a surrogate pair, as `"\ud800"` in JSON.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(f"has a {name} with half a surrogate pair: \\u{ord(half):04x}") from None


def _integer(text: str) -> Any:
    return int(text) if len(text) <= _DIGITS_MAX else WideNumber(text)


def _float(text: str) -> Any:
    number = float(text)
    return WideNumber(text) if math.isinf(number) else number


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


_DECODER: Final = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_constant)
