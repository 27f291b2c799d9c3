"""Names of segments and streams, and the place of a routing key.

One rule, in one place: a name is `scope/name`. Each part has 1 to 100 characters, starts with a letter or digit,
and goes on with letters, digits, `.`, `_` and `-` (ASCII). So a name needs no escaping anywhere, never
becomes a path that leaves its folder, and cannot collide with the internal names of stream segments, which
hold a `#`.

A routing key is text; its place in [0, 1) is xxh3-64 of its UTF-8 bytes over 2^64, for ever. Ranges are kept as
integers out of 2^64 (`KeyRange`), so that borders are exact.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from xxhash import xxh3_64_intdigest

from .errors import InvalidNameError
from .limits import WRITER_ID_SIZE_BYTES_MAX

PART_LENGTH_MAX: Final = 100
KEY_SPACE: Final = 1 << 64

_PART: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{PART_LENGTH_MAX - 1}}}")
_RULE: Final = f"letters, digits, '.', '_' and '-', at most {PART_LENGTH_MAX}, starting with a letter or digit"


def checked_name(name: str, *, kind: str) -> str:
    """Return `name` if it is a valid `scope/name`.

    Raises:
        InvalidNameError: naming the rule that was broken.
    """
    if not isinstance(name, str):
        raise InvalidNameError(kind=kind, name=repr(name), reason="is not text")
    parts = name.split("/")
    if len(parts) != 2:
        raise InvalidNameError(kind=kind, name=name, reason="is not of the form scope/name")
    for part in parts:
        if _PART.fullmatch(part) is None:
            raise InvalidNameError(kind=kind, name=name, reason=f"each part may hold {_RULE}")
    return name


def segment_of_stream(stream: str, *, epoch: int, index: int) -> str:
    """Return the internal name of a segment of a stream: `scope/name#epoch.index`."""
    return f"{stream}#{epoch}.{index}"


def checked_writer_id(writer_id: str) -> str:
    """Return `writer_id` if it is 1 to `WRITER_ID_SIZE_BYTES_MAX` bytes of printable text.

    Raises:
        InvalidNameError: otherwise.
    """
    # What is printable holds no lone surrogate, so it can be encoded.
    if not isinstance(writer_id, str) or not writer_id.isprintable():
        raise InvalidNameError(kind="writer id", name=str(writer_id), reason="must be printable text")
    if not 1 <= len(writer_id.encode()) <= WRITER_ID_SIZE_BYTES_MAX:
        reason = f"must have 1 to {WRITER_ID_SIZE_BYTES_MAX} bytes"
        raise InvalidNameError(kind="writer id", name=writer_id, reason=reason)
    return writer_id


def key_place(key: str) -> int:
    """Return the place of a routing key: an integer below 2^64.

    >>> round(key_place("customer-3") / 2**64, 6)
    0.034428

    Raises:
        InvalidNameError: the key is not text that UTF-8 can hold.
    """
    try:
        return xxh3_64_intdigest(key.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidNameError(kind="routing key", name=str(key), reason=str(error)) from None


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """A half-open range of the key space, [low, high) out of 2^64."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= KEY_SPACE:
            raise ValueError(f"key range [{self.low}, {self.high}) is not a non-empty part of [0, 2^64)")

    def __contains__(self, place: int) -> bool:
        return self.low <= place < self.high

    @property
    def fractions(self) -> tuple[float, float]:
        """The range as numbers in [0, 1], for people."""
        return self.low / KEY_SPACE, self.high / KEY_SPACE


def equal_ranges(count: int) -> list[KeyRange]:
    """Return `count` ranges of (nearly) equal width that cover the key space; `count` is 1 or more."""
    borders = [KEY_SPACE * index // count for index in range(count + 1)]
    return [KeyRange(low, high) for low, high in pairwise(borders)]
