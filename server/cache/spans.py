"""Ranges of segments, looked up by the bytes they cover."""

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from sortedcontainers import SortedDict


class Span(Protocol):
    """Bytes [offset, end) of a segment."""

    segment_id: int
    offset: int
    end: int


SpanT = TypeVar("SpanT", bound=Span)


class Spans(Generic[SpanT]):
    """Disjoint spans of any number of segments, ordered by offset; each lookup costs a binary search.

    One tree for all segments, because there may be very many with one span each.
    """

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: SortedDict[tuple[int, int], SpanT] = SortedDict()

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[SpanT]:
        """Yield all spans, by segment and offset; they must not change meanwhile."""
        yield from self._spans.values()

    def __contains__(self, span: SpanT) -> bool:
        """Return whether this very span is included, not another one that starts at the same byte."""
        return self._spans.get((span.segment_id, span.offset)) is span

    def add(self, span: SpanT) -> None:
        """Add a span that overlaps no other."""
        assert span.offset < span.end
        assert self.next_start(span.segment_id, span.offset, span.end) == span.end
        assert self.covering(span.segment_id, span.offset) is None
        self._spans[span.segment_id, span.offset] = span

    def remove(self, span: SpanT) -> None:
        """Remove a span that is here."""
        removed = self._spans.pop((span.segment_id, span.offset))
        assert removed is span

    def covering(self, segment_id: int, offset: int) -> SpanT | None:
        """Return the span that contains the byte at `offset`."""
        span = self._spans.get((segment_id, offset))
        if span is not None:
            return span
        for key in self._spans.irange((segment_id, 0), (segment_id, offset), reverse=True):
            span = self._spans[key]
            return span if offset < span.end else None
        return None

    def next_start(self, segment_id: int, offset: int, end: int) -> int:
        """Return the start of the first span after `offset`, or `end` if that comes first."""
        for _, start in self._spans.irange((segment_id, offset), (segment_id, end), inclusive=(False, False)):
            return start
        return end

    def below(self, segment_id: int, offset: int | None) -> list[SpanT]:
        """Return the spans of a segment that end at or before `offset`, all of them for None."""
        last = (segment_id + 1, 0) if offset is None else (segment_id, offset)
        spans = [self._spans[key] for key in self._spans.irange((segment_id, 0), last, inclusive=(True, False))]
        return [span for span in spans if offset is None or span.end <= offset]
