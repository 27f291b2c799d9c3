"""Stream cuts: positions that cover a whole stream, as values and as text.

A cut names a position in each of a set of segments that covers the key space exactly once. `HEAD` and `TAIL` are the
start and the end of a stream, wherever these are when they are used. As text::

    shop/orders@12:4096.0,13:8192.17        segment : offset of a block . index of an event in it
    head
    tail
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from .errors import CutInvalidError, InvalidNameError
from .limits import SEGMENTS_PER_STREAM_MAX
from .names import checked_name
from .position import Position

_POSITION: Final = re.compile(r"(\d{1,20}):(\d{1,20})\.(\d{1,10})", re.ASCII)
_UNSIGNED_64: Final = 1 << 64


class SpecialCut(Enum):
    """The two cuts that every stream has."""

    HEAD = "head"
    TAIL = "tail"

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return f"millrace.{self.name}"


HEAD: Final = SpecialCut.HEAD
TAIL: Final = SpecialCut.TAIL


@dataclass(frozen=True, slots=True)
class StreamCut:
    """A position in each of some segments of a stream. Hashable; equal cuts have equal texts.

    Attributes:
        positions: (segment id, position) in the order of the ids.
    """

    stream: str
    positions: tuple[tuple[int, Position], ...]

    def __post_init__(self) -> None:
        try:
            checked_name(self.stream, kind="stream")
        except InvalidNameError as error:
            raise CutInvalidError(str(error)) from None
        ids = [segment_id for segment_id, _ in self.positions]
        if not 1 <= len(ids) <= SEGMENTS_PER_STREAM_MAX or ids != sorted(set(ids)):
            raise CutInvalidError(f"a cut of {self.stream} names 1 to {SEGMENTS_PER_STREAM_MAX} segments, each once")
        for segment_id, (offset, event_index) in self.positions:
            if not (0 < segment_id < _UNSIGNED_64 and 0 <= offset < _UNSIGNED_64 and 0 <= event_index < 1 << 32):
                raise CutInvalidError(f"{segment_id}:{offset}.{event_index} is no position")

    @classmethod
    def of(cls, stream: str, positions: Mapping[int, tuple[int, int]]) -> "StreamCut":
        """Return the cut of these positions, given by segment id."""
        return cls(stream, tuple(sorted((segment_id, Position(*place)) for segment_id, place in positions.items())))

    @classmethod
    def parse(cls, text: str) -> "StreamCut":
        """Return the cut that `str` made this text of.

        Raises:
            CutInvalidError: it made no such text.
        """
        stream, at, rest = text.partition("@")
        if not at:
            raise CutInvalidError(f"{text[:100]!r} is no stream cut: write STREAM@SEGMENT:OFFSET.INDEX,...")
        positions: list[tuple[int, Position]] = []
        for part in rest.split(","):
            match = _POSITION.fullmatch(part)
            if match is None:
                raise CutInvalidError(f"{part[:100]!r} is no position: write SEGMENT:OFFSET.INDEX")
            segment_id, offset, event_index = (int(number) for number in match.groups())
            positions.append((segment_id, Position(offset, event_index)))
        return cls(stream, tuple(sorted(positions)))

    def __str__(self) -> str:
        places = (f"{segment_id}:{place.offset}.{place.event_index}" for segment_id, place in self.positions)
        return f"{self.stream}@{','.join(places)}"

    @property
    def places(self) -> dict[int, Position]:
        """The position in each segment, by its id."""
        return dict(self.positions)


Cut = StreamCut | SpecialCut


def parse_cut(text: str) -> Cut:
    """Return the cut that a text names: `head`, `tail`, or what `str` makes of a `StreamCut`.

    Raises:
        CutInvalidError: it names none.
    """
    lowered = text.strip().lower()
    if lowered in ("head", "tail"):
        return SpecialCut(lowered)
    return StreamCut.parse(text.strip())
