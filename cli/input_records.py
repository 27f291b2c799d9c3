"""Splits an input into records: lines, or for CSV, several lines joined by a quoted field.

Pure, like `millrace.cli.input_lines`. The number of a record is that of its last line, because an input is resumed
after a line. Errors name the first line of a record.
"""

import re
from collections.abc import Iterator
from typing import Final

from millrace.model.figures import size_text
from millrace.model.limits import EVENT_SIZE_BYTES_MAX

from .input_lines import NO_LINES, LineError, Lines, LineSplitter
from .key_fields import is_json

_OPENING: Final = re.compile(rb'(?:^|,)"')
_QUOTED: Final = re.compile(rb'(?:[^"]|"")*+')
"""The content of a quoted field, as far as it is in one line."""


class InputRecords:
    """Splits an input into records.

    Args:
        can_be_csv: whether a record may have several lines: then a first line that does not begin with `{` means CSV.
    """

    def __init__(self, *, can_be_csv: bool) -> None:
        self._splitter = LineSplitter()
        self._can_be_csv = can_be_csv
        self._joiner: CsvJoiner | None = None

    @property
    def failure(self) -> LineError | None:
        """Why the input ends here: no line after this is returned."""
        found = None if self._joiner is None else self._joiner.failure
        return found or self._splitter.failure

    def feed(self, data: bytes) -> Lines:
        """Return the records that end in the next piece; an empty piece ends the input, and returns the last one."""
        if self.failure is not None:
            return NO_LINES
        lines = self._splitter.feed(data)
        if self._can_be_csv and self._joiner is None:
            first = next((line for line in lines.lines if line.removesuffix(b"\r")), None)
            if first is not None:
                self._joiner, self._can_be_csv = (None, False) if is_json(first) else (CsvJoiner(), True)
        if self._joiner is None:
            return lines.written()
        records = self._joiner.feed(lines)
        if not data:
            self._joiner.end()
        return records


class CsvJoiner:
    """Joins lines of CSV if a line feed is inside of a quoted field.

    Attributes:
        failure: a quoted field that does not end.
    """

    def __init__(self) -> None:
        self._open: list[bytes] = []
        self._first_number = 0
        self._size_bytes = 0
        self.failure: LineError | None = None

    def feed(self, lines: Lines) -> Lines:
        """Return the records that end in these lines."""
        if not self._open and not any(b'"' in line for line in lines.lines):
            return lines.written()
        records = list(self._records(lines))
        return Lines([number for number, _ in records], [record for _, record in records]).written()

    def end(self) -> None:
        """Note the end of the input."""
        if self._open and self.failure is None:
            self.failure = LineError(self._first_number, "has a quoted field that is not closed before the input ends")

    def _records(self, lines: Lines) -> Iterator[tuple[int, bytes]]:
        for number, line in zip(lines.numbers, lines.lines, strict=True):
            if not self._open:
                self._first_number, self._size_bytes = number, 0
            is_open = ends_in_quotes(line, is_open=bool(self._open))
            self._open.append(line)
            self._size_bytes += len(line) + 1
            if not is_open:
                record, self._open = b"\n".join(self._open), []
                yield number, record
            elif self._size_bytes > EVENT_SIZE_BYTES_MAX:
                problem = f"has a quoted field that is not closed within {size_text(EVENT_SIZE_BYTES_MAX)}"
                self.failure = LineError(self._first_number, f"{problem}, the maximum of an event")
                return


def ends_in_quotes(line: bytes, *, is_open: bool) -> bool:
    """Return whether a quoted field is open at the end of a line; `is_open`: whether one was open at its beginning.

    A quote opens a field only as its first character. Anywhere else in a field it is an ordinary character.
    """
    at = 0
    while True:
        if not is_open:
            opening = _OPENING.search(line, at)
            if opening is None:
                return False
            at = opening.end()
        quoted = _QUOTED.match(line, at)
        assert quoted is not None  # the pattern also matches an empty text
        at = quoted.end() + 1
        if at > len(line):
            return True
        is_open = False
