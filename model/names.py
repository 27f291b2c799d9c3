"""Names of segments, streams and writers: one rule, in one place.

A name is `scope/name`. Each part has 1 to 100 characters, starts with a letter or digit, and continues with letters,
digits, `.`, `_` and `-` (ASCII). So a name needs no escaping anywhere, never becomes a path that leaves its folder, and
cannot collide with names that only the server gives, which contain a `#`:

    scope/name#epoch.index    a segment of a stream
    #kind/name                an internal segment of the server
"""

import re
from typing import Final

from .errors import InvalidNameError
from .limits import PRODUCER_PART_SIZE_BYTES_MAX, TRANSACTION_NAME_SIZE_BYTES_MAX, WRITER_ID_SIZE_BYTES_MAX

PART_LENGTH_MAX: Final = 100

INTERNAL_MARK: Final = "#"
AFTER_INTERNAL: Final = "$"
"""Sorts after every internal name, and before every other one: these begin with a letter or digit."""
assert INTERNAL_MARK < AFTER_INTERNAL < "0"

_PART: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{PART_LENGTH_MAX - 1}}}")
_RULE: Final = f"letters, digits, '.', '_' and '-', at most {PART_LENGTH_MAX}, starting with a letter or digit"


def checked_name(name: str, *, kind: str) -> str:
    """Return `name` if it is a valid `scope/name`.

    Args:
        kind: of the named thing, for the error.

    Raises:
        InvalidNameError: names the violated rule.
    """
    if not isinstance(name, str):
        raise _invalid(kind, repr(name), "is not text")
    if is_internal(name):
        raise _invalid(kind, name, f"names that start with '{INTERNAL_MARK}' are reserved for internal segments")
    parts = name.split("/")
    if len(parts) != 2:
        raise _invalid(kind, name, "is not of the form scope/name")
    for part in parts:
        if _PART.fullmatch(part) is None:
            raise _invalid(kind, name, f"each part may hold {_RULE}")
    return name


def checked_stream_name(name: str) -> str:
    """Return `name` if it is valid for a stream. Raises like `checked_name`."""
    return checked_name(name, kind="stream")


def segment_of_stream(stream: str, *, epoch: int, index: int) -> str:
    """Return the internal name of a segment of a stream: `scope/name#epoch.index`."""
    return f"{stream}#{epoch}.{index}"


def is_internal(name: str) -> bool:
    """Return whether a name is that of an internal segment."""
    return name.startswith(INTERNAL_MARK)


def internal_name(kind: str, name: str) -> str:
    """Return the name of an internal segment: `#kind/name`.

    Raises:
        InvalidNameError: a part is invalid.
    """
    return INTERNAL_MARK + checked_name(f"{kind}/{name}", kind="internal segment")


def checked_writer_id(writer_id: str) -> str:
    """Return `writer_id` if it is 1 to `WRITER_ID_SIZE_BYTES_MAX` bytes of printable text.

    Raises:
        InvalidNameError: otherwise.
    """
    return _checked_text(writer_id, kind="writer id", size_max=WRITER_ID_SIZE_BYTES_MAX)


def checked_holder(holder: str) -> str:
    """Return `holder` if it is 1 to `PRODUCER_PART_SIZE_BYTES_MAX` bytes of printable text.

    Raises:
        InvalidNameError: otherwise.
    """
    return _checked_text(holder, kind="holder of a producer", size_max=PRODUCER_PART_SIZE_BYTES_MAX)


def checked_run(run: str) -> str:
    """Return `run` if it is a valid run of a producer: 1 to `PRODUCER_PART_SIZE_BYTES_MAX` bytes of printable text.

    Raises:
        InvalidNameError: otherwise.
    """
    return _checked_text(run, kind="run of a producer", size_max=PRODUCER_PART_SIZE_BYTES_MAX)


def checked_transaction_name(name: str) -> str:
    """Return `name` if it is at most `TRANSACTION_NAME_SIZE_BYTES_MAX` bytes of printable text; empty is no name.

    Raises:
        InvalidNameError: otherwise.
    """
    return _checked_text(name, kind="transaction name", size_min=0, size_max=TRANSACTION_NAME_SIZE_BYTES_MAX)


def _checked_text(text: str, *, kind: str, size_min: int = 1, size_max: int) -> str:
    # Printable text has no lone surrogate, so it can be encoded.
    if not isinstance(text, str) or not text.isprintable():
        raise _invalid(kind, str(text), "must be printable text")
    if not size_min <= len(text.encode()) <= size_max:
        raise _invalid(kind, text, f"must have {size_min} to {size_max} bytes")
    return text


def _invalid(kind: str, name: str, reason: str) -> InvalidNameError:
    return InvalidNameError(f"{kind} {name[:80]!r}: {reason}")
