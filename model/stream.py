"""A stream and its segments as they were at one moment."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from .cut import StreamCut
from .errors import CutOrderError, ErrorFacts, InvalidArgumentError
from .exclusive_writer import ExclusiveWriter
from .html_table import html_table, shown_keys, shown_time
from .key_range import KEY_SPACE, KeyRange
from .lineage import Lineage, StreamPart
from .policy import StreamConfig
from .position import START, Mark, Position
from .shown import ShortRepr

FLOAT_ERROR: Final = 1 << 12
"""Tolerance for a float near 1 that stands for a border, out of 2^64: two of its steps."""

Border = int | float | Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSegment(StreamPart):
    """A segment of a stream as it was when the server answered.

    Attributes:
        start_offset, start_index: its first event: the offset of a block, and the index of the event in it.
        event_count: events appended since it was created, including truncated ones.
    """

    start_offset: int = 0
    start_index: int = 0
    length: int = 0
    event_count: int = 0
    sealed: bool = False

    @property
    def start(self) -> Position:
        """The position of its first remaining event, or its end."""
        return Position(self.start_offset, self.start_index)

    @property
    def end(self) -> Mark:
        """Its end, with the events before it."""
        return Mark(self.length, 0, self.event_count)

    @property
    def low(self) -> float:
        """Start of its part of the key space, out of 1."""
        return self.key_range.fractions[0]

    @property
    def high(self) -> float:
        """End of its part of the key space, out of 1; exclusive."""
        return self.key_range.fractions[1]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StreamInfo(ShortRepr):
    """A stream as it was when the server answered.

    Attributes:
        epoch: how often it was scaled.
        segments: all that still have content, including replaced ones, in the order of their creation. The results of
            `scale_stream` and `update_stream` have the open segments only.
        replaced_from: segments that were replaced in earlier epochs are left out; 0 if `segments` has all.
        exclusive_writer: the exclusive writer of the stream; None if it has none.
    """

    name: str
    stream_id: int
    created_us: int
    epoch: int
    sealed: bool
    configuration: StreamConfig
    segments: tuple[StreamSegment, ...]
    exclusive_writer: ExclusiveWriter | None = None
    replaced_from: int = 0

    def _repr_html_(self) -> str:
        state = "sealed" if self.sealed else "open"
        caption = f"{self.name}: {state}, created {shown_time(self.created_us)}, scaled {self.epoch} times, " + (
            "open segments" if self.replaced_from else f"{self.size_bytes:,} bytes"
        )
        rows = [
            (
                segment.segment_id,
                shown_keys(segment.key_range),
                segment.epoch,
                segment.sealed_epoch or "",
                f"{segment.start_offset:,}",
                f"{segment.length:,}",
                f"{segment.event_count:,}",
            )
            for segment in self.segments
        ]
        header = ("segment", "keys", "since epoch", "replaced in epoch", "start", "length", "events")
        return html_table(caption, header, rows)

    @property
    def open_segments(self) -> tuple[StreamSegment, ...]:
        """The segments that were not replaced, in the order of their keys."""
        return tuple(self.lineage().tail())

    def lineage(self) -> Lineage[StreamSegment]:
        """Return the lineage of the segments."""
        return Lineage(self.segments)

    def head(self) -> StreamCut:
        """Return where the stream started.

        Raises:
            InvalidArgumentError: replaced segments are left out here.
        """
        self._check_complete()
        return StreamCut.of(self.name, {segment.segment_id: segment.start for segment in self.lineage().head()})

    def tail(self) -> StreamCut:
        """Return where the stream ended."""
        return StreamCut.of(self.name, {segment.segment_id: (segment.length, 0) for segment in self.lineage().tail()})

    def progress(self, cut: StreamCut) -> dict[int, Position]:
        """Return the progress of each segment before a cut: its end, its start, or its position in the cut.

        Raises:
            InvalidArgumentError: replaced segments are left out here.
        """
        self._check_complete()
        return self.lineage().progress(cut.places, start=START, end_of=lambda segment: segment.end.position)

    def check_order(self, start: StreamCut, end: StreamCut, *, key: str | None = None) -> None:
        """Check that one resolved cut is after another in no segment.

        Args:
            key: the key to read: segments without it may have any order.

        Raises:
            CutOrderError: the cuts are reversed; names both, and the segments.
        """
        starts, ends = self.progress(start), self.progress(end)
        reversed_ids = [
            segment.segment_id
            for segment in self.segments
            if starts[segment.segment_id] > ends[segment.segment_id] and segment.holds(key)
        ]
        if reversed_ids:
            message = f"the start, {start}, is after the end, {end}, in segments {reversed_ids}; swap them"
            raise CutOrderError(ErrorFacts(message=message, subject=self.name))

    @property
    def size_bytes(self) -> int:
        """Bytes that can be read.

        Raises:
            InvalidArgumentError: replaced segments are left out here.
        """
        self._check_complete()
        return sum(segment.length - segment.start_offset for segment in self.segments)

    def _check_complete(self) -> None:
        if self.replaced_from:
            raise InvalidArgumentError(
                f"this description of {self.name} has its open segments only; `stream_info` returns all segments"
            )


def scaled_ranges(ranges: Iterable[tuple[Border, Border]], *, segments: Iterable[StreamPart]) -> list[KeyRange]:
    """Return the exact ranges of keys for a caller's ranges.

    A border is a number from 0 to 1, or an exact integer above 1 out of 2^64. A float so near to a border of one of
    `segments` that both print the same stands for that border: 1/3 of the key space is not a float.

    Raises:
        InvalidArgumentError: a range is empty, or is outside of the key space.
    """
    known = sorted({border for segment in segments for border in (segment.key_range.low, segment.key_range.high)})
    found = []
    for each in ranges:
        if not isinstance(each, Sequence) or isinstance(each, str) or len(each) != 2:
            raise InvalidArgumentError(f"a range of keys is two borders, such as (0, 0.5), not {each!r:.120}")
        low, high = each
        try:
            found.append(KeyRange(_border(low, known), _border(high, known)))
        except ValueError as error:
            raise InvalidArgumentError(f"({low}, {high}) is not a range of keys: {error}") from None
    return found


def _border(value: Border, known: Sequence[int]) -> int:
    if isinstance(value, int) and value > 1:
        return value
    if not isinstance(value, Border):
        raise InvalidArgumentError(f"a border of a range of keys is a number from 0 to 1, not {value!r:.120}")
    if not 0 <= value <= 1:
        raise InvalidArgumentError(f"a border of a range of keys is a number from 0 to 1, not {value}")
    exact = math.floor(Fraction(value) * KEY_SPACE)
    if isinstance(value, float):
        place = bisect_left(known, exact)
        near = [border for border in known[max(0, place - 1) : place + 1] if abs(border - exact) <= FLOAT_ERROR]
        return min(near, key=lambda border: abs(border - exact), default=exact)
    return exact
