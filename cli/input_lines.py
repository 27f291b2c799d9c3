"""Splits an input that arrives in pieces into numbered lines.

Pure: pieces of bytes in, groups of lines out. A UTF-8 byte order mark before the first line is not part of it. UTF-16
and UTF-32 are rejected: the byte that separates lines here is not their line end.
"""

from bisect import bisect_right
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from millrace.model.figures import size_text
from millrace.model.limits import EVENT_SIZE_BYTES_MAX

_WIDE_PROBLEM: Final = (
    "is UTF-16 or UTF-32: it begins with a byte order mark, or has zero bytes beside its line end; convert the input "
    "to UTF-8 (iconv -f UTF-16 -t UTF-8)"
)


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
    """Lines of the input, or records of several lines, with the numbers of their (last) lines, counted from 1."""

    numbers: Sequence[int]
    lines: list[bytes]

    def after(self, number: int) -> "Lines":
        """Return the lines after a number."""
        start = bisect_right(self.numbers, number)
        return self if start == 0 else Lines(self.numbers[start:], self.lines[start:])

    def part(self, start: int, end: int) -> "Lines":
        """Return the lines of a half-open range of indexes."""
        return Lines(self.numbers[start:end], self.lines[start:end])

    def written(self) -> "Lines":
        """Return the lines that become events: without empty lines, and without a carriage return at the end."""
        lines = [line.removesuffix(b"\r") for line in self.lines]
        if all(lines):
            return Lines(self.numbers, lines)
        kept = [(number, line) for number, line in zip(self.numbers, lines, strict=True) if line]
        return Lines([number for number, _ in kept], [line for _, line in kept])


NO_LINES = Lines((), [])


class LineSplitter:
    """Splits an input at its line feeds.

    Attributes:
        failure: why the input ends here: no line after this is returned.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._number = 1
        self._is_encoding_known = False
        self.failure: LineError | None = None

    def feed(self, data: bytes) -> Lines:
        """Return the lines that end in the next piece; an empty piece, the end of the input, returns the last line."""
        if self.failure is not None:
            return NO_LINES
        start = self._rest + data
        if not self._is_encoding_known and (data == b"" or b"\n" in start):
            head = start[: start.find(b"\n") + 2] if b"\n" in start else start
            if is_wide(head):
                return self._fail([], 0, _WIDE_PROBLEM)
            if head in (b"\n", b"\r\n") and data:
                # The next byte decides, and an empty line is not written: nothing is delayed by waiting for it.
                self._rest = start
                return NO_LINES
            self._is_encoding_known, start = True, start.removeprefix(BOM_UTF8)
        *whole, self._rest = start.split(b"\n")
        if not data:
            whole, self._rest = [*whole, self._rest], b""
        longest = max(map(len, (*whole, self._rest)))
        if longest > EVENT_SIZE_BYTES_MAX:
            at = next((at for at, line in enumerate(whole) if len(line) > EVENT_SIZE_BYTES_MAX), len(whole))
            return self._fail(whole, at, f"is longer than {size_text(EVENT_SIZE_BYTES_MAX)}, the maximum of an event")
        return self._numbered(whole)

    def _fail(self, whole: list[bytes], at: int, problem: str) -> Lines:
        """Return the lines before the invalid one, and record the failure."""
        self._rest = b""
        self.failure = LineError(self._number + at, problem)
        return self._numbered(whole[:at])

    def _numbered(self, lines: list[bytes]) -> Lines:
        first, self._number = self._number, self._number + len(lines)
        return Lines(range(first, first + len(lines)), lines)


def is_wide(head: bytes) -> bool:
    """Return whether an input is UTF-16 or UTF-32.

    Without a byte order mark, a zero byte beside the first line feed shows it. An input without a line feed is
    recognized if all its characters are below 256, so that every other byte is zero.

    Args:
        head: the input up to the byte after its first line feed.
    """
    if head.startswith((BOM_UTF16_LE, BOM_UTF16_BE, BOM_UTF32_BE)):
        return True
    if b"\n" in head:
        return b"\0\n" in head or b"\n\0" in head
    # In a character below 256, one of 2 or 4 bytes is not zero: the first (little-endian) or the last (big-endian).
    return any(
        len(head) >= size and all(head[at::size]) and len(head) - head.count(0) == count
        for size in (2, 4)
        for at in (0, size - 1)
        for count in (len(head[at::size]),)
    )
