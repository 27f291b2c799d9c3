"""Names of segments, streams and writers: one rule, in one place.

A name is `scope/name`. Each part has 1 to 100 characters, starts with a letter or digit, and continues with letters,
digits, `.`, `_` and `-` (ASCII). So a name needs no escaping anywhere, never becomes a path that leaves its folder, and
cannot collide with the internal names of stream segments, which hold a `#`.
"""

import re
from typing import Final

from .errors import InvalidNameError
from .limits import WRITER_ID_SIZE_BYTES_MAX

PART_LENGTH_MAX: Final = 100

_PART: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{PART_LENGTH_MAX - 1}}}")
_RULE: Final = f"letters, digits, '.', '_' and '-', at most {PART_LENGTH_MAX}, starting with a letter or digit"


def checked_name(name: str, *, kind: str) -> str:
    """Return `name` if it is a valid `scope/name`.

    Args:
        kind: what is named, for the error.

    Raises:
        InvalidNameError: naming the rule that was broken.
    """
    if not isinstance(name, str):
        raise _invalid(kind, repr(name), "is not text")
    parts = name.split("/")
    if len(parts) != 2:
        raise _invalid(kind, name, "is not of the form scope/name")
    for part in parts:
        if _PART.fullmatch(part) is None:
            raise _invalid(kind, name, f"each part may hold {_RULE}")
    return name


def segment_of_stream(stream: str, *, epoch: int, index: int) -> str:
    """Return the internal name of a segment of a stream: `scope/name#epoch.index`."""
    return f"{stream}#{epoch}.{index}"


def checked_writer_id(writer_id: str) -> str:
    """Return `writer_id` if it is 1 to `WRITER_ID_SIZE_BYTES_MAX` bytes of printable text.

    Raises:
        InvalidNameError: otherwise.
    """
    # Printable text holds no lone surrogate, so it can be encoded.
    if not isinstance(writer_id, str) or not writer_id.isprintable():
        raise _invalid("writer id", str(writer_id), "must be printable text")
    if not 1 <= len(writer_id.encode()) <= WRITER_ID_SIZE_BYTES_MAX:
        raise _invalid("writer id", writer_id, f"must have 1 to {WRITER_ID_SIZE_BYTES_MAX} bytes")
    return writer_id


def _invalid(kind: str, name: str, reason: str) -> InvalidNameError:
    return InvalidNameError(f"{kind} {name[:80]!r}: {reason}")
