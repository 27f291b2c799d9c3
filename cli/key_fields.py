"""The routing key of a line: a field of the JSON object, or the column of CSV, that the line is.

What the lines are is told by the first of them: one that starts with `{` means JSON. In CSV a field is a number,
counted from 1, or a name; then the first line is the header, and no event.
"""

import csv
import json
from collections.abc import Callable

KeyOf = Callable[[bytes], str]


class KeyFieldError(ValueError):
    """A line without the field that was asked for."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} (--key-field)")


def key_reader(field: str, first_line: bytes) -> tuple[KeyOf, bool]:
    """Return what finds the key of a line, and whether `first_line` is a header and no event.

    Raises:
        KeyFieldError: the header has no such column, or the number is none of a column.
    """
    if first_line.lstrip().startswith(b"{"):
        return (lambda line: _json_key(field, line)), False
    if field.isascii() and field.isdigit():
        if int(field) == 0:
            raise KeyFieldError("columns are counted from 1")
        return (lambda line: _csv_key(int(field) - 1, line)), False
    header = _columns(first_line)
    if field not in header:
        raise KeyFieldError(f"the first line has no column {field!r}, but {', '.join(map(repr, header))}")
    index = header.index(field)
    return (lambda line: _csv_key(index, line)), True


def _json_key(field: str, line: bytes) -> str:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise KeyFieldError(f"is no JSON: {error}") from None
    if not isinstance(content, dict) or content.get(field) is None:
        raise KeyFieldError(f"has no field {field!r}")
    value = content[field]
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _csv_key(index: int, line: bytes) -> str:
    columns = _columns(line)
    if index >= len(columns):
        raise KeyFieldError(f"has {len(columns)} columns, column {index + 1} is asked for")
    return columns[index]


def _columns(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode()]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise KeyFieldError(f"is no CSV: {error}") from None
