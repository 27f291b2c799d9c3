"""Stream cuts: positions that cover a whole stream, as values and as text.

A cut names a position in each of a set of segments that covers the key space exactly once. `HEAD` and `TAIL` are the
start and the end of a stream at the time of their use. As text::

    shop/orders@12:4096.0,13:8192.17        segment : offset of a block . index of an event in it
    head
    tail

Other places in a stream are resolved when they are used: a `TimeCut` by event time, a `PastCut` by an age, a
`SavedPlace` by the name under which the server saved it. `parse_choice` parses them all, for every part. `chosen`
accepts Python objects as well: a datetime, a date, Unix microseconds, and a timedelta for an age.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from operator import index
from typing import Final, SupportsIndex

from .errors import CutInvalidError, InvalidArgumentError, InvalidNameError
from .html_table import html_table
from .limits import SEGMENTS_PER_STREAM_MAX
from .names import checked_stream_name
from .position import Position
from .quantities import UNIX_EPOCH, parse_duration, parse_moment, unix_us_of
from .shown import PublicNames, ShortRepr

_POSITION: Final = re.compile(r"(\d{1,20}):(\d{1,20})\.(\d{1,10})", re.ASCII)
_UNSIGNED_64: Final = 1 << 64
_AGO: Final = re.compile(r"(.*\S)\s+ago", re.IGNORECASE)

CUT_EXAMPLE: Final = "shop/orders@12:4096.0,13:8192.17"
CHOICE_FORMS: Final = (
    "head, tail, 2026-01-31 or 2026-01-31T18:00:00Z (UTC where no zone is named), 15m ago, bookmark:NAME, cursor:NAME, "
    f"1769882400000000 (Unix microseconds), or a cut like {CUT_EXAMPLE}"
)
"""The forms that `parse_choice` accepts, for people."""


class SpecialCut(PublicNames, Enum):
    """The two cuts that every stream has."""

    HEAD = "head"
    TAIL = "tail"

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return f"millrace.{self.name}"


HEAD: Final = SpecialCut.HEAD
TAIL: Final = SpecialCut.TAIL


@dataclass(frozen=True, slots=True, repr=False)
class StreamCut(ShortRepr):
    """A position in each of some segments of a stream. Hashable; equal cuts have equal texts.

    Attributes:
        positions: (segment id, position) in the order of the ids.
    """

    stream: str
    positions: tuple[tuple[int, Position], ...]

    def __post_init__(self) -> None:
        try:
            checked_stream_name(self.stream)
        except InvalidNameError as error:
            raise CutInvalidError(str(error)) from None
        ids = [segment_id for segment_id, _ in self.positions]
        if not 1 <= len(ids) <= SEGMENTS_PER_STREAM_MAX or ids != sorted(set(ids)):
            raise CutInvalidError(f"a cut of {self.stream} names 1 to {SEGMENTS_PER_STREAM_MAX} segments, each once")
        for segment_id, (offset, event_index) in self.positions:
            if not (0 < segment_id < _UNSIGNED_64 and 0 <= offset < _UNSIGNED_64 and 0 <= event_index < 1 << 32):
                raise CutInvalidError(f"{segment_id}:{offset}.{event_index} is not a position")

    @classmethod
    def of(cls, stream: str, positions: Mapping[int, tuple[int, int]]) -> "StreamCut":
        """Return the cut of these positions, given by segment id."""
        return cls(stream, tuple(sorted((segment_id, Position(*place)) for segment_id, place in positions.items())))

    @classmethod
    def parse(cls, text: str) -> "StreamCut":
        """Parse the text of a cut, as `str` makes it.

        Raises:
            CutInvalidError: the text is invalid.
        """
        stream, at, rest = text.partition("@")
        if not at:
            raise CutInvalidError(f"{text[:100]!r} is not a stream cut: write one like {CUT_EXAMPLE}")
        positions: list[tuple[int, Position]] = []
        for part in rest.split(","):
            match = _POSITION.fullmatch(part)
            if match is None:
                raise CutInvalidError(f"{part[:100]!r} is not a position of a cut: write one like {CUT_EXAMPLE}")
            segment_id, offset, event_index = (int(number) for number in match.groups())
            positions.append((segment_id, Position(offset, event_index)))
        return cls(stream, tuple(sorted(positions)))

    def __str__(self) -> str:
        places = (f"{segment_id}:{place.offset}.{place.event_index}" for segment_id, place in self.positions)
        return f"{self.stream}@{','.join(places)}"

    def _repr_html_(self) -> str:
        rows = [(segment_id, place.offset, place.event_index) for segment_id, place in self.positions]
        return html_table(f"cut of {self.stream}", ("segment", "offset", "index"), rows)

    @property
    def places(self) -> dict[int, Position]:
        """The position in each segment, by its id."""
        return dict(self.positions)


Cut = StreamCut | SpecialCut


@dataclass(frozen=True, slots=True, repr=False)
class TimeCut(ShortRepr):
    """The cut at an event time, resolved when it is used.

    Event times need not ascend in a segment, so it is a different place as a start than as an end, and inclusive as
    both: no event of that time or a newer one lies before the start, no older event lies after the end. If times
    ascend, both are the place before the first event of that time or a newer one.

    Attributes:
        unix_us: Unix microseconds.
    """

    unix_us: int

    @classmethod
    def at(cls, when: int | date) -> "TimeCut":
        """Return the cut at a time: Unix microseconds, a datetime, or the beginning of a date.

        A time without a zone is UTC, as in the texts that `parse_choice` accepts.
        """
        if not isinstance(when, date):
            return cls(index(when))
        moment = when if isinstance(when, datetime) else datetime.combine(when, time())
        return cls(unix_us_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC)))

    def __str__(self) -> str:
        """Return the text for `parse_choice`; a number for times outside of the calendar."""
        try:
            return (UNIX_EPOCH + timedelta(microseconds=self.unix_us)).isoformat().replace("+00:00", "Z")
        except OverflowError:
            return str(self.unix_us)


@dataclass(frozen=True, slots=True, repr=False)
class PastCut(ShortRepr):
    """The cut at an event time of a given age, resolved when it is used.

    Attributes:
        age_us: microseconds, not below 0.
    """

    age_us: int

    def at(self, now_us: int) -> TimeCut:
        """Return the cut as of a moment, in Unix microseconds."""
        return TimeCut(now_us - self.age_us)

    def __str__(self) -> str:
        """Return the text for `parse_choice`."""
        return f"{self.age_us // 1_000_000}.{self.age_us % 1_000_000:06}s ago"


class SavedKind(Enum):
    """The kind of a saved cut."""

    BOOKMARK = "bookmark"
    CURSOR = "cursor"


@dataclass(frozen=True, slots=True, repr=False)
class SavedPlace(ShortRepr):
    """The cut that the server has saved under a name, at the time of its use: `bookmark:NAME` or `cursor:NAME`."""

    kind: SavedKind
    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise CutInvalidError(f"{str(self)!r} lacks the name of the {self.kind.value}")

    def __str__(self) -> str:
        """Return the text for `parse_choice`."""
        return f"{self.kind.value}:{self.name}"


CutChoice = Cut | TimeCut | PastCut | SavedPlace
"""A place in a stream."""
Place = CutChoice | str | int | date | timedelta
"""Every form of a place in a stream that the API accepts, in every part: see `chosen`."""


def parse_cut(text: str) -> Cut:
    """Parse a cut: `head`, `tail`, or the text of a `StreamCut`.

    Raises:
        CutInvalidError: the text is invalid.
    """
    lowered = text.strip().lower()
    if lowered in ("head", "tail"):
        return SpecialCut(lowered)
    return StreamCut.parse(text.strip())


def parse_choice(text: str) -> CutChoice:
    """Parse a place in one of the forms of `CHOICE_FORMS`.

    Raises:
        InvalidArgumentError: the text is invalid.
    """
    text = text.strip()
    if is_saved(text):
        kind, _, name = text.partition(":")
        return SavedPlace(SavedKind(kind.strip().lower()), name.strip())
    if "@" in text or text.lower() in ("head", "tail"):
        return parse_cut(text)
    if re.fullmatch(r"-?\d{1,19}", text, re.ASCII):
        return TimeCut(int(text))
    try:
        if match := _AGO.fullmatch(text):
            return PastCut(round(parse_duration(match[1]) * 1_000_000))
        return TimeCut(parse_moment(text))
    except InvalidArgumentError:
        raise InvalidArgumentError(f"{text[:100]!r} is not a place in a stream: write {CHOICE_FORMS}") from None


def is_saved(text: str) -> bool:
    """Return whether a text has the form of a `SavedPlace`, whatever its name contains."""
    kind, colon, _ = text.partition(":")
    return bool(colon) and kind.strip().lower() in _SAVED_KINDS


def chosen(place: Place) -> CutChoice:
    """Return the place for an argument: a cut, a text of `CHOICE_FORMS`, a time of `TimeCut.at`, or an age.

    Raises:
        InvalidArgumentError: the argument is invalid.
    """
    if isinstance(place, str):
        return parse_choice(place)
    if isinstance(place, CutChoice):
        return place
    if isinstance(place, timedelta):
        if place < timedelta(0):
            raise InvalidArgumentError(f"{place!r} is in the future: pass an age such as timedelta(minutes=15)")
        return PastCut(place // timedelta(microseconds=1))
    if isinstance(place, date) or (isinstance(place, SupportsIndex) and not isinstance(place, bool)):
        return TimeCut.at(place)
    raise InvalidArgumentError(f"{place!r} is not a place in a stream: write {CHOICE_FORMS}")


def chosen_time(place: Place) -> TimeCut | PastCut:
    """Return the time for an argument. Raises like `chosen`.

    Raises:
        InvalidArgumentError: the place is not a time.
    """
    choice = chosen(place)
    if not isinstance(choice, TimeCut | PastCut):
        raise InvalidArgumentError(f"{place!r} is not a time: write 2026-01-31, 2026-01-31T18:00:00Z or 15m ago")
    return choice


def check_stream(stream: str, place: CutChoice | None) -> None:
    """Check that a cut belongs to a stream; other places may belong to any stream.

    Raises:
        CutInvalidError: it belongs to another stream.
    """
    if isinstance(place, StreamCut) and place.stream != stream:
        raise CutInvalidError(f"a cut of {place.stream} cannot be used for {stream}")


_SAVED_KINDS: Final = frozenset(kind.value for kind in SavedKind)
