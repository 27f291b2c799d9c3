"""The routing key of a record: a field of a JSON object, or a column of CSV.

The first record decides: `{` means JSON. In CSV a field is a number, counted from 1, or a name; in the latter case the
first record is the header, and not an event. CSV follows RFC 4180: a field in quotes may contain commas, line ends, and
doubled quotes.
"""

import re
from collections.abc import Callable
from typing import Final

from .line_json import decoded, json_text, parse_json, utf8

KeyOf = Callable[[bytes], str]

_FIELD: Final = re.compile(r'(?:"((?:[^"]|"")*+)"|((?!")[^,\r\n\0]*+))(,|\Z)')


class KeyFieldError(ValueError):
    """A record without the requested field."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} (--key-field)")


def is_json(first_line: bytes) -> bool:
    """Return whether the records of an input are JSON objects, not CSV."""
    return first_line.lstrip().startswith(b"{")


def key_reader(field: str, first_record: bytes) -> tuple[KeyOf, bool]:
    """Return a function that extracts the key of a record, and whether `first_record` is a header.

    Raises:
        KeyFieldError: the header does not have exactly one such column, or the number is 0.
    """
    if is_json(first_record):
        return (lambda record: _json_key(field, record)), False
    if field.isascii() and field.isdigit():
        if int(field) == 0:
            raise KeyFieldError("columns are counted from 1")
        return (lambda record: _csv_key(int(field) - 1, record)), False
    try:
        header = _columns(first_record)
    except ValueError as error:
        raise KeyFieldError(f"the first line {error}") from None
    if header.count(field) > 1:
        raise KeyFieldError(f"the first line has {header.count(field)} columns {field!r}: select one by its number")
    if field not in header:
        raise KeyFieldError(f"the first line has no column {field!r}, but {', '.join(map(repr, header))}")
    index = header.index(field)
    return (lambda record: _csv_key(index, record)), True


def _json_key(field: str, record: bytes) -> str:
    try:
        content = parse_json(record)
        if not isinstance(content, dict) or content.get(field) is None:
            raise ValueError(f"has no field {field!r}")
        value = content[field]
        key = value if isinstance(value, str) else json_text(value, f"field {field!r}")
        utf8(key, f"field {field!r}")
    except ValueError as error:
        raise KeyFieldError(str(error)) from None
    return key


def _csv_key(index: int, record: bytes) -> str:
    try:
        columns = _columns(record)
    except ValueError as error:
        raise KeyFieldError(str(error)) from None
    if index >= len(columns):
        raise KeyFieldError(f"has {len(columns)} columns, but column {index + 1} was requested")
    return columns[index]


def _columns(record: bytes) -> list[str]:
    """Return the columns of a record. Python's `csv` would accept unclosed quotes, and text after a closing quote.

    Raises:
        ValueError: the record is not CSV.
    """
    text = decoded(record)
    columns: list[str] = []
    at = 0
    while True:
        field = _FIELD.match(text, at)
        if field is None:
            raise ValueError(f"is not CSV: column {len(columns) + 1} {_problem(text, at)}")
        quoted, plain, separator = field.groups()
        if quoted is None and plain.lstrip().startswith('"'):
            raise ValueError(f"is not CSV: column {len(columns) + 1} has a space before its quote")
        columns.append(plain if quoted is None else quoted.replace('""', '"'))
        at = field.end()
        if not separator:
            return columns


def _problem(text: str, at: int) -> str:
    if text.startswith('"', at):
        return "continues after its closing quote, or is not closed"
    return "has a carriage return or a zero byte outside of quotes"
