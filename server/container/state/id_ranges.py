"""Numbers that clients were given in advance, each to be used once.

A client names a transaction and its parts before the server has answered, so that all of it can be one batch of the
log. The numbers are reserved by a record, so no later start gives them to anybody else; which of them are unused is
known in memory only: with the server all ranges end.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from millrace.server.errors import InvalidArgumentError

RANGES_COUNT_MAX: Final = 10_000
NUMBERS_COUNT_MAX: Final = 32 * 1024 * 1024
"""In all ranges; each takes a byte. The oldest range is void when there are more: its client asks for another one."""

UnusedPlaces = list[tuple[bytearray, int]]
"""Where numbers are noted that can be used."""


class IdRanges:
    """The ranges of one container since it was started."""

    def __init__(self) -> None:
        # By their first numbers, which ascend; with a byte for each number: 1 while it is unused.
        self._firsts: list[int] = []
        self._unused: list[bytearray] = []
        self._count = 0

    def add(self, first: int, count: int) -> None:
        """Add a range above all that were added."""
        assert not self._firsts or first > self._firsts[-1]
        self._firsts.append(first)
        self._unused.append(bytearray(b"\1" * count))
        self._count += count
        while len(self._firsts) > RANGES_COUNT_MAX or self._count > NUMBERS_COUNT_MAX:
            self._count -= len(self._unused[0])
            del self._firsts[0], self._unused[0]

    def is_unused(self, number: int) -> bool:
        """Return whether a number can be used."""
        place = bisect_right(self._firsts, number) - 1
        if place < 0:
            return False
        unused = self._unused[place]
        index = number - self._firsts[place]
        return index < len(unused) and bool(unused[index])

    def checked(self, numbers: Sequence[int]) -> UnusedPlaces:
        """Return where some numbers are noted, for `use`; raise unless all of them can be used.

        Raises:
            InvalidArgumentError: one is not in a range, was used, or is given twice.
        """
        places: UnusedPlaces = []
        for number in numbers:
            place = bisect_right(self._firsts, number) - 1
            if place < 0:
                break
            unused, index = self._unused[place], number - self._firsts[place]
            if index >= len(unused) or not unused[index]:
                break
            places.append((unused, index))
        if len(places) < len(numbers) or len(set(numbers)) < len(numbers):
            raise InvalidArgumentError(
                "each number is one that was reserved since the server started, and is used once"
            )
        return places

    def use(self, places: UnusedPlaces) -> None:
        """Use the numbers that are noted there; they were checked in this step."""
        for unused, index in places:
            unused[index] = 0
