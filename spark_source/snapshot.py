"""A stream over its epochs, as one answer of the server described it: how two of its cuts compare, by key; pure.

A cut is kept here as *marks*: a position in each segment that it names, with the number of events before it. Of two
cuts one may be after the other in some keys and before it in the rest. Their *maximum* and *minimum*, taken for each
key, are cuts again.

A segment that is wholly before the truncation is *deleted*: the server keeps which segments it replaced and which
replaced it, but neither its bytes nor their number.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from millrace.model.cut import StreamCut
from millrace.model.errors import CutInvalidError
from millrace.model.lineage import Lineage, StreamPart
from millrace.model.position import START_MARK, Mark
from millrace.model.stream import StreamInfo

from .errors import MissingRange

Marks = Mapping[int, Mark]
"""A cut of a stream: a mark in each segment that it names, by the id."""

UNCOUNTED: Final = -1
"""In place of the number of events before a mark, where they are not counted yet: less than every count, so that of two
marks at one position the counted one is the greater."""


class StreamSnapshot:
    """The segments of a stream and what came before and after which.

    Args:
        past: segments that the stream ever had; needed only where a cut names some that are deleted.
        tail: where the stream counts as ended; None is its end in the answer.
    """

    def __init__(self, stream: StreamInfo, *, past: Iterable[StreamPart] = (), tail: Marks | None = None) -> None:
        self.stream = stream
        self._tail = tail
        self._listed = {segment.segment_id: segment for segment in stream.segments}
        # Ignore segments newer than this snapshot: their end is unknown.
        known = {segment.segment_id: segment for segment in past if segment.epoch <= stream.epoch}
        self._lineage = Lineage[StreamPart]([*known.values(), *self._listed.values()])

    @property
    def head(self) -> dict[int, Mark]:
        """The start of what is left, uncounted."""
        return uncounted(self.stream.head())

    @property
    def tail(self) -> dict[int, Mark]:
        """The end of the stream, or where it counts as ended."""
        if self._tail is not None:
            return dict(self._tail)
        return {segment.segment_id: self.end(segment.segment_id) for segment in self._lineage.tail()}

    def end(self, segment_id: int) -> Mark:
        """Return the end of a segment that is not deleted."""
        return self._listed[segment_id].end

    def is_replaced(self, segment_id: int) -> bool:
        """Return whether a segment has successors: its end is final."""
        return self._lineage.by_id[segment_id].sealed_epoch > 0

    def holds(self, segment_id: int, key: str | None) -> bool:
        """Return whether events of a key, or of any where it is None, may be in a segment."""
        return self._lineage.by_id[segment_id].holds(key)

    def is_newer_than(self, marks: Marks) -> bool:
        """Return whether a place is of another stream of this name, which was deleted before this one was created.

        Segments of two streams never share an id.
        """
        return bool(marks) and not any(segment_id in self._lineage.by_id for segment_id in marks)

    def check(self, cut: StreamCut) -> None:
        """Check that a cut is one of this stream, and names no place beyond its end.

        Raises:
            CutInvalidError: it does not.
        """
        if cut.stream != self.stream.name:
            raise CutInvalidError(f"a cut of {cut.stream} cannot be used for {self.stream.name}")
        if strangers := [segment_id for segment_id in cut.places if segment_id not in self._lineage.by_id]:
            raise CutInvalidError(f"the cut names segments {strangers}, which {self.stream.name} never had")
        self._lineage.check_cut(cut.places)
        for segment_id, (offset, event_index) in cut.positions:
            length = self._listed[segment_id].length if segment_id in self._listed else None
            if length is not None and (offset, event_index) > (length, 0):
                raise CutInvalidError(f"{offset}.{event_index} is beyond the end of segment {segment_id}, {length}")

    def maximum(self, one: Marks, other: Marks) -> dict[int, Mark]:
        """Return the cut that is, for each key, where that of two cuts is which is after the other."""
        passed_by_one, passed_by_other = self._lineage.before(one), self._lineage.before(other)
        found = {segment_id: mark for segment_id, mark in one.items() if segment_id not in passed_by_other}
        for segment_id, mark in other.items():
            if segment_id not in passed_by_one:
                found[segment_id] = max(mark, found.get(segment_id, mark))
        return found

    def clamped(self, cut: StreamCut) -> dict[int, Mark]:
        """Return a cut, or the head of the stream where that is after it; uncounted."""
        return self.maximum(uncounted(cut), self.head)

    def minimum(self, one: Marks, other: Marks) -> dict[int, Mark]:
        """Return the cut that is, for each key, where that of two cuts is which is before the other."""
        passed_by_one, passed_by_other = self._lineage.before(one), self._lineage.before(other)
        found = {
            segment_id: mark for segment_id, mark in one.items() if segment_id in other or segment_id in passed_by_other
        }
        for segment_id, mark in other.items():
            if segment_id in one or segment_id in passed_by_one:
                found[segment_id] = _before(mark, found.get(segment_id, mark))
        return found

    def progress(self, cut: Marks) -> dict[int, Mark]:
        """Return how far each segment that is not deleted is before a cut."""
        whole = self._lineage.before(cut)
        return {
            segment_id: cut.get(segment_id, self.end(segment_id) if segment_id in whole else START_MARK)
            for segment_id in self._listed
        }

    def enter_successors(self, cut: Marks, *, bound: Marks) -> dict[int, Mark]:
        """Return the cut moved from segments that are read to their ends to the starts of those which replaced them.

        Only once *all* that were replaced together are read, and never past the bound. No event is between the two.
        """
        moved = dict(cut)
        whole = self._lineage.before(bound)
        self._lineage.advance(
            moved,
            lambda segment_id: segment_id in whole and moved[segment_id].position == self.end(segment_id).position,
            start=START_MARK,
        )
        return moved

    def pass_others(self, cut: Marks, *, bound: Marks, key: str | None) -> dict[int, Mark]:
        """Return the cut moved up to the bound in all segments that hold no events of a key, and into successors.

        No event of the key is between the two. Without a key it is `enter_successors`.
        """
        moved = self.enter_successors(cut, bound=bound)
        ends = self.progress(bound)
        while True:
            passed = {
                segment_id: mark if self.holds(segment_id, key) else max(mark, ends[segment_id])
                for segment_id, mark in moved.items()
            }
            moved = self.enter_successors(passed, bound=bound)
            if moved == passed:
                return moved

    def missing(self, cut: Marks, *, key: str | None = None) -> list[MissingRange]:
        """Return the ranges after a cut that were truncated away, in the order of the epochs; uncounted.

        With a key, those that may have held events of it.

        A segment that is deleted is named also if the cut is at its end: its end is not known any more.
        """
        head = self.head
        truncated, read = self._lineage.before(head), self._lineage.before(cut)
        found = []
        for segment in sorted(self._lineage.by_id.values(), key=lambda each: (each.epoch, each.key_range.low)):
            segment_id = segment.segment_id
            start = cut.get(segment_id, START_MARK)
            is_gone = segment_id in truncated or start.position < head.get(segment_id, START_MARK).position
            if segment_id in read or not is_gone or not segment.holds(key):
                continue
            found.append(
                MissingRange(
                    segment_id=segment_id,
                    start_offset=start.offset,
                    start_index=start.event_index,
                    end_offset=None if segment_id in truncated else head[segment_id].offset,
                    end_index=0 if segment_id in truncated else head[segment_id].event_index,
                )
            )
        return found


def cut_of(stream: str, marks: Marks) -> StreamCut:
    """Return the cut without the counts."""
    return StreamCut.of(stream, {segment_id: mark.position for segment_id, mark in marks.items()})


def uncounted(cut: StreamCut) -> dict[int, Mark]:
    """Return the marks of a cut, without the counts."""
    return {segment_id: Mark(*place, UNCOUNTED) for segment_id, place in cut.positions}


def _before(one: Mark, other: Mark) -> Mark:
    """Return the mark that is before the other; of two at one position, that with the count, which is the greater."""
    return max(one, other) if one.position == other.position else min(one, other)
