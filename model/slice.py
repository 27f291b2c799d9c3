"""Slices: a part of a stream as one value, between two cuts, of all keys or of one; and its text.

    shop/orders@head..tail                                  stream @ start .. end
    shop/orders@12:4096.0,13:8192.17..tail#customer-3       # key, to the end of the text, with any characters
    shop/orders@2026-01-31T18:00:00Z..2026-02-01T00:00:00Z  times
    shop/orders@tail..                                      without an end

Start and end are in the forms of `parse_choice`, cuts by their positions. In names of bookmarks and cursors the marks
of a slice are escaped as in the path of a URL: `%23` for `#`, `%2E` for each of `..`, `%25` for `%`.
"""

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote

from .cut import HEAD, TAIL, CutChoice, Place, SavedPlace, StreamCut, check_stream, chosen, parse_choice
from .errors import InvalidArgumentError, InvalidNameError
from .key_range import key_place
from .names import checked_stream_name
from .shown import ShortRepr

_POSITIONS: Final = re.compile(r"\d+:\d+\.", re.ASCII)
_MARKS: Final = re.compile(r"[%#]|\.(?=\.|$)|(?<=\.)\.|^ | $")
"""Characters that must be escaped in a name: marks, two dots or a dot before them, and spaces that are stripped."""
_FORM: Final = "shop/orders@head..tail or shop/orders@head..tail#customer-3"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Slice(ShortRepr):
    """The events of a stream from a start to an end, of all keys or of one.

    Attributes:
        end: None: without an end, including new events.
        key: None for all events, including those without a key.
    """

    stream: str
    start: CutChoice
    end: CutChoice | None
    key: str | None

    def __init__(self, stream: str, start: Place = HEAD, end: Place | None = TAIL, key: str | None = None) -> None:
        first, last = chosen(start), None if end is None else chosen(end)
        checked_stream_name(stream)
        for place in (first, last):
            check_stream(stream, place)
        if key is not None:
            key_place(key)
        for name, value in (("stream", stream), ("start", first), ("end", last), ("key", key)):
            object.__setattr__(self, name, value)  # frozen, and the fields are of fewer types than the arguments

    @classmethod
    def parse(cls, text: str) -> "Slice":
        """Parse the text of a slice, as `str` makes it.

        Raises:
            InvalidArgumentError: the text is invalid.
        """
        place, mark, key = text.partition("#")
        stream, at, between = place.strip().partition("@")
        start, dots, end = between.partition("..")
        if not (at and dots and start):
            raise InvalidArgumentError(f"{text[:100]!r} is not a slice: write {_FORM}")
        try:
            return cls(stream, _choice(stream, start), _choice(stream, end) if end else None, key if mark else None)
        except InvalidNameError as error:
            raise InvalidArgumentError(f"{text[:100]!r} is not a slice: {error}") from None

    def __str__(self) -> str:
        """Return the text for `parse`."""
        end = "" if self.end is None else _text(self.end)
        key = "" if self.key is None else f"#{self.key}"
        return f"{self.stream}@{_text(self.start)}..{end}{key}"


def is_slice(text: str) -> bool:
    """Return whether a text has the form of a slice, and not of a stream name or a cut."""
    return ".." in text.partition("#")[0].partition("@")[2]


def _choice(stream: str, text: str) -> CutChoice:
    choice = parse_choice(f"{stream}@{text}" if _POSITIONS.match(text) else text)
    return replace(choice, name=unquote(choice.name)) if isinstance(choice, SavedPlace) else choice


def _text(choice: CutChoice) -> str:
    if isinstance(choice, SavedPlace):
        return f"{choice.kind.value}:{_MARKS.sub(lambda mark: f'%{ord(mark[0]):02X}', choice.name)}"
    return str(choice).partition("@")[2] if isinstance(choice, StreamCut) else str(choice)


def slice_of(stream: str | Slice, *, start: Place = HEAD, end: Place | None = None, key: str | None = None) -> Slice:
    """Return the slice for arguments: a stream with its places and a key; or a slice by itself.

    Raises:
        InvalidArgumentError: a slice with a start, an end or a key beside it, or an invalid place.
    """
    if not isinstance(stream, Slice):
        return Slice(stream, start, end, key)
    if start is not HEAD or end is not None or key is not None:
        raise InvalidArgumentError(f"{stream} has its own start, end and key; give them in the slice, or none of them")
    return stream
