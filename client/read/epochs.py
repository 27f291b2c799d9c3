"""The segments of a stream over all its epochs: which comes before which, and what a cut means for each of them.

Scaling *replaces* segments by successors that cover the same keys. Of two segments that share a key, one was replaced
before the other came to be: it *precedes* it, and all its events of that key are older. So

- a cut names segments of which none shares a key with another and which together cover all keys. What precedes one of
  them lies in front of the cut as a whole, what one of them precedes lies behind it. A cut that puts a segment on both
  sides is none;
- a reader goes on to the successors once it has read to their ends *all* the segments that were replaced together with
  the one it finished. Not before, even if the successor it wants has only that one predecessor: its place is then a cut
  at any moment.

Everything here is pure.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from millrace.client.errors import CutInvalidError
from millrace.wire.names import KEY_SPACE, KeyRange

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSegment:
    """A segment of a stream.

    Attributes:
        key_range: the part of the key space whose events it holds.
        epoch: in which it came to be.
        sealed_epoch: which replaced it by successors; 0 while none did.
        event_count: events appended since it was created, those truncated included.
    """

    segment_id: int
    key_range: KeyRange
    epoch: int = 0
    sealed_epoch: int = 0
    start_offset: int = 0
    length: int = 0
    event_count: int = 0
    sealed: bool = False

    @property
    def low(self) -> float:
        """Where its part of the key space begins, out of 1."""
        return self.key_range.fractions[0]

    @property
    def high(self) -> float:
        """Where its part of the key space ends, out of 1; the end belongs to the next one."""
        return self.key_range.fractions[1]

    def overlaps(self, other: "StreamSegment") -> bool:
        """Return whether there are keys of both."""
        return self.key_range.low < other.key_range.high and other.key_range.low < self.key_range.high

    def precedes(self, other: "StreamSegment") -> bool:
        """Return whether there are keys whose events were written here before they were written to `other`."""
        return 0 < self.sealed_epoch <= other.epoch and self.overlaps(other)


class Replacement(NamedTuple):
    """Segments that were replaced together, and what replaced them: the same keys on both sides."""

    predecessors: tuple[StreamSegment, ...]
    successors: tuple[StreamSegment, ...]


class Lineage:
    """Who precedes and who succeeds whom among the segments of a stream."""

    def __init__(self, segments: Iterable[StreamSegment]) -> None:
        self.by_id = {segment.segment_id: segment for segment in segments}
        self._replacing: dict[int, Replacement] = {}
        self._replaced_by: dict[int, Replacement] = {}
        of_epoch: dict[int, list[StreamSegment]] = defaultdict(list)
        for segment in self.by_id.values():
            if segment.epoch:
                of_epoch[segment.epoch].append(segment)
            if segment.sealed_epoch:
                of_epoch[segment.sealed_epoch].append(segment)
        for epoch, changed in of_epoch.items():
            for together in _connected(changed):
                replacement = Replacement(
                    tuple(segment for segment in together if segment.sealed_epoch == epoch),
                    tuple(segment for segment in together if segment.epoch == epoch),
                )
                self._replaced_by.update((segment.segment_id, replacement) for segment in replacement.predecessors)
                self._replacing.update((segment.segment_id, replacement) for segment in replacement.successors)

    def replacement(self, segment_id: int) -> Replacement | None:
        """Return by what a segment was replaced, and together with what; None while it was not."""
        return self._replaced_by.get(segment_id)

    def predecessors(self, segment_id: int) -> list[StreamSegment]:
        """Return the segments that a segment replaced and that are left, in the order of their keys."""
        replacement = self._replacing.get(segment_id)
        segment = self.by_id[segment_id]
        return [] if replacement is None else [each for each in replacement.predecessors if each.overlaps(segment)]

    def successors(self, segment_id: int) -> list[StreamSegment]:
        """Return the segments that replaced a segment, in the order of their keys."""
        replacement = self._replaced_by.get(segment_id)
        segment = self.by_id[segment_id]
        return [] if replacement is None else [each for each in replacement.successors if each.overlaps(segment)]

    def head(self) -> list[StreamSegment]:
        """Return the segments without a predecessor left, in the order of their keys."""
        first = (segment for segment in self.by_id.values() if not self.predecessors(segment.segment_id))
        return sorted(first, key=_low)

    def tail(self) -> list[StreamSegment]:
        """Return the segments that nothing has replaced, in the order of their keys."""
        return sorted((segment for segment in self.by_id.values() if not segment.sealed_epoch), key=_low)

    def check_cut(self, segment_ids: Iterable[int]) -> None:
        """Raise if segments, all of them known, cannot be those of a cut.

        Raises:
            CutInvalidError: they do not cover each key exactly once, or a segment would be on both sides of the cut.
        """
        cut = _Members([self.by_id[segment_id] for segment_id in segment_ids])
        if not cut.covers_all_once():
            raise CutInvalidError(f"a cut covers every key exactly once; segments {sorted(cut.ids)} together do not")
        for segment in self.by_id.values():
            sharing = cut.sharing(segment)
            if any(segment.precedes(member) for member in sharing) and any(
                member.precedes(segment) for member in sharing
            ):
                raise CutInvalidError(
                    f"segment {segment.segment_id} would lie in front of the cut and behind it: a place before it and "
                    "one after it are no cut"
                )

    def in_front(self, segment_ids: Iterable[int]) -> set[int]:
        """Return the segments that lie as a whole in front of a cut through these segments."""
        cut = _Members([self.by_id[segment_id] for segment_id in segment_ids])
        return {
            segment.segment_id
            for segment in self.by_id.values()
            if any(segment.precedes(member) for member in cut.sharing(segment))
        }

    def progress(self, places: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """Return how far each segment lies in front of a cut: its end, nothing of it, or the place in the cut."""
        whole = self.in_front(places)
        return {
            segment_id: places.get(segment_id, (segment.length, 0) if segment_id in whole else (0, 0))
            for segment_id, segment in self.by_id.items()
        }

    def go_on(self, reached: dict[int, P], at_end: Callable[[int], bool]) -> list[int]:
        """Take out segments that are at their ends and were replaced together; return what replaced them."""
        added: list[int] = []
        for segment_id in list(reached):
            replacement = self.replacement(segment_id)
            if segment_id not in reached or replacement is None:
                continue
            together = [each.segment_id for each in replacement.predecessors]
            if all(each in reached and at_end(each) for each in together):
                for each in together:
                    del reached[each]
                added += [each.segment_id for each in replacement.successors]
        return added


def covers_once(ranges: Iterable[KeyRange]) -> bool:
    """Return whether every key is in exactly one of the ranges."""
    covered = 0
    for each in sorted(ranges):
        if each.low != covered:
            return False
        covered = each.high
    return covered == KEY_SPACE


class _Members:
    """The segments of a cut, found by their keys."""

    def __init__(self, segments: list[StreamSegment]) -> None:
        self._segments = sorted(segments, key=_low)
        self._lows = [segment.key_range.low for segment in self._segments]
        self.ids = {segment.segment_id for segment in segments}

    def covers_all_once(self) -> bool:
        return covers_once(segment.key_range for segment in self._segments)

    def sharing(self, segment: StreamSegment) -> list[StreamSegment]:
        """Return the members that share keys with a segment and are another one."""
        if segment.segment_id in self.ids:
            return []
        first = max(0, bisect_right(self._lows, segment.key_range.low) - 1)
        last = bisect_right(self._lows, segment.key_range.high - 1)
        return [member for member in self._segments[first:last] if member.overlaps(segment)]


def _connected(segments: Iterable[StreamSegment]) -> list[list[StreamSegment]]:
    """Return the segments in groups of which each holds what shares keys, directly or through others."""
    groups: list[list[StreamSegment]] = []
    reached = 0
    for segment in sorted(segments, key=_low):
        if not groups or segment.key_range.low >= reached:
            groups.append([])
        groups[-1].append(segment)
        reached = max(reached, segment.key_range.high)
    return groups


def _low(segment: StreamSegment) -> int:
    return segment.key_range.low
