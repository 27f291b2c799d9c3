"""Lines of an input that comes in pieces, with their numbers.

Pure: pieces of bytes go in, groups of lines come out. Empty lines count, and have no event.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.model.limits import EVENT_SIZE_BYTES_MAX

from .figures import size_text


class LineError(ValueError):
    """A line that cannot be written.

    Attributes:
        number: of the line, counted from 1.
    """

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"line {number:,} {problem}")
        self.number = number


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of the input that are not empty, and their numbers, counted from 1."""

    numbers: Sequence[int]
    lines: list[bytes]

    def after(self, number: int) -> "Lines":
        """Return the lines of higher numbers."""
        start = bisect_right(self.numbers, number)
        return self if start == 0 else Lines(self.numbers[start:], self.lines[start:])

    def part(self, start: int, end: int) -> "Lines":
        """Return the lines from one place up to, not with, another, counted from 0."""
        return Lines(self.numbers[start:end], self.lines[start:end])


class LineSplitter:
    """Cuts an input into lines.

    Attributes:
        failure: a line is longer than an event may be: nothing after it is returned.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._number = 1
        self.failure: LineError | None = None

    def feed(self, data: bytes) -> Lines:
        """Return the lines that end in the next piece; after an empty one, the end of the input, the last line."""
        if self.failure is not None:
            return Lines((), [])
        *whole, self._rest = (self._rest + data).split(b"\n")
        if not data:
            whole, self._rest = [self._rest], b""
        longest = max(map(len, (*whole, self._rest)))
        if longest > EVENT_SIZE_BYTES_MAX:
            whole = self._before_the_long_one(whole)
        first, self._number = self._number, self._number + len(whole)
        return _numbered(first, whole)

    def _before_the_long_one(self, whole: list[bytes]) -> list[bytes]:
        """Return the lines before the first one that is too long, and remember that there is one."""
        kept = next((at for at, line in enumerate(whole) if len(line) > EVENT_SIZE_BYTES_MAX), len(whole))
        self._rest = b""
        self.failure = LineError(
            self._number + kept, f"is longer than {size_text(EVENT_SIZE_BYTES_MAX)}, the most of an event"
        )
        return whole[:kept]


def _numbered(first: int, lines: list[bytes]) -> Lines:
    """Return the lines that are not empty, of which the first has a number."""
    lines = [line.removesuffix(b"\r") for line in lines]
    if all(lines):
        return Lines(range(first, first + len(lines)), lines)
    kept = [(number, line) for number, line in enumerate(lines, start=first) if line]
    return Lines([number for number, _ in kept], [line for _, line in kept])
