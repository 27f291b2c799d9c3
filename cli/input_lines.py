"""Lines of an input that arrives in pieces, with their numbers.

Pure: pieces of bytes go in, groups of lines come out. A byte order mark of UTF-8 before the first line is not part of
it. UTF-16 and UTF-32 are refused: their line ends are not the byte that separates lines here.
"""

from bisect import bisect_right
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE
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
    """Lines of the input, or records of several lines, and the numbers of their (last) lines, counted from 1."""

    numbers: Sequence[int]
    lines: list[bytes]

    def after(self, number: int) -> "Lines":
        """Return the lines of higher numbers."""
        start = bisect_right(self.numbers, number)
        return self if start == 0 else Lines(self.numbers[start:], self.lines[start:])

    def part(self, start: int, end: int) -> "Lines":
        """Return the lines from one place up to, not with, another, counted from 0."""
        return Lines(self.numbers[start:end], self.lines[start:end])

    def written(self) -> "Lines":
        """Return the lines that become events: without the empty ones, and without a carriage return at the end."""
        lines = [line.removesuffix(b"\r") for line in self.lines]
        if all(lines):
            return Lines(self.numbers, lines)
        kept = [(number, line) for number, line in zip(self.numbers, lines, strict=True) if line]
        return Lines([number for number, _ in kept], [line for _, line in kept])


NO_LINES = Lines((), [])


class LineSplitter:
    """Cuts an input at its line feeds.

    Attributes:
        failure: why the input ends here: nothing after this line is returned.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._number = 1
        self.failure: LineError | None = None

    def feed(self, data: bytes) -> Lines:
        """Return the lines that end in the next piece; after an empty one, the end of the input, the last line."""
        if self.failure is not None:
            return NO_LINES
        *whole, self._rest = (self._rest + data).split(b"\n")
        if not data:
            whole, self._rest = [self._rest], b""
        if self._number == 1 and whole:
            whole[0] = whole[0].removeprefix(BOM_UTF8)
            if is_wide(whole[0]):
                return self._fail(
                    whole, 0, "is UTF-16 or UTF-32; convert the input to UTF-8 (iconv -f UTF-16 -t UTF-8)"
                )
        longest = max(map(len, (*whole, self._rest)))
        if longest > EVENT_SIZE_BYTES_MAX:
            at = next((at for at, line in enumerate(whole) if len(line) > EVENT_SIZE_BYTES_MAX), len(whole))
            return self._fail(whole, at, f"is longer than {size_text(EVENT_SIZE_BYTES_MAX)}, the most of an event")
        return self._numbered(whole)

    def _fail(self, whole: list[bytes], at: int, problem: str) -> Lines:
        """Return the lines before the one that cannot be written, and remember why."""
        self._rest = b""
        self.failure = LineError(self._number + at, problem)
        return self._numbered(whole[:at])

    def _numbered(self, lines: list[bytes]) -> Lines:
        first, self._number = self._number, self._number + len(lines)
        return Lines(range(first, first + len(lines)), lines)


def is_wide(first_line: bytes) -> bool:
    """Return whether the bytes before the first line feed of an input are UTF-16 or UTF-32.

    Without a byte order mark, this is recognized for characters below 256, in which every other byte is zero.
    """
    # Two bytes alone are a value that is not text, rather than an empty line after a mark.
    if len(first_line) > 2 and first_line.startswith((BOM_UTF16_LE, BOM_UTF16_BE, BOM_UTF32_BE)):
        return True
    # Of a character below 256, one byte of 2 or 4 is not zero: the first (little-endian) or the last (big-endian).
    return any(
        len(first_line) >= size and all(first_line[at::size]) and len(first_line) - first_line.count(0) == count
        for size in (2, 4)
        for at in (0, size - 1)
        for count in (len(first_line[at::size]),)
    )
