"""The key space: the place of a routing key, and ranges of places.

A routing key is text; its place in [0, 1) is xxh3-64 of its UTF-8 bytes over 2^64, forever. Ranges are stored as
integers out of 2^64, so that borders are exact.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from xxhash import xxh3_64_intdigest

from .errors import InvalidNameError

KEY_SPACE: Final = 1 << 64
RANGES_KEPT_COUNT: Final = 4096


def key_place(key: str) -> int:
    """Return the place of a routing key: an integer below 2^64.

    >>> round(key_place("customer-3") / 2**64, 6)
    0.034428

    Raises:
        InvalidNameError: the key is not text that UTF-8 can encode.
    """
    try:
        return xxh3_64_intdigest(key.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidNameError(f"routing key {str(key)[:80]!r}: {error}") from None


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

    @staticmethod
    @lru_cache(maxsize=RANGES_KEPT_COUNT)
    def inclusive(low: int, last: int) -> "KeyRange":
        """Return the range from `low` to `last`, both included: the form in which 64 bits hold every range.

        The most recent results are cached: the parts of all transactions over a stream have the same few.
        """
        return KeyRange(low, last + 1)

    @property
    def last(self) -> int:
        """The last place of the range."""
        return self.high - 1

    @property
    def width(self) -> int:
        """The number of places in the range."""
        return self.high - self.low

    @property
    def fractions(self) -> tuple[float, float]:
        """The range as numbers in [0, 1], for people."""
        return self.low / KEY_SPACE, self.high / KEY_SPACE

    def overlaps(self, other: "KeyRange") -> bool:
        """Return whether the ranges have a place in common."""
        return self.low < other.high and other.low < self.high


def equal_ranges(count: int) -> list[KeyRange]:
    """Return `count` ranges of (nearly) equal width that cover the key space; `count` is 1 or more."""
    borders = [KEY_SPACE * index // count for index in range(count + 1)]
    return [KeyRange(low, high) for low, high in pairwise(borders)]


def covers_once(ranges: Iterable[KeyRange]) -> bool:
    """Return whether every place is in exactly one of the ranges."""
    covered = 0
    for each in sorted(ranges):
        if each.low != covered:
            return False
        covered = each.high
    return covered == KEY_SPACE
