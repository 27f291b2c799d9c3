"""The segments of a stream over all its epochs: their order, and the meaning of a cut for each of them.

Scaling *replaces* segments by successors that cover the same keys, and begins a new epoch. Of two segments that share a
key, one was replaced before the other was created: it *precedes* it, and all its events of that key are older. So

- a cut goes through segments of which no two share a key and which together cover all keys. Every segment that precedes
  one of them is before the cut as a whole, every segment that one of them precedes is after it. A set of segments that
  would put some segment on both sides is not a cut;
- a reader continues with the successors once it has read *all* the segments that were replaced together to their ends.
  Not before, even if the required successor has only one predecessor: so its place is a cut at any moment.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from .errors import CutInvalidError
from .html_table import html_table, shown_keys, shown_time
from .key_range import KeyRange, covers_once, key_place
from .shown import ShortRepr


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPart:
    """A segment as a part of a stream.

    Attributes:
        key_range: its part of the key space.
        epoch: in which it was created.
        sealed_epoch: in which it was replaced by successors; 0 if it was not.
    """

    segment_id: int
    key_range: KeyRange
    epoch: int = 0
    sealed_epoch: int = 0

    def holds(self, key: str | None) -> bool:
        """Return whether the segment may have events of a key; None stands for events of any."""
        return key is None or key_place(key) in self.key_range

    def overlaps(self, other: "StreamPart") -> bool:
        """Return whether the ranges share keys."""
        return self.key_range.overlaps(other.key_range)

    def precedes(self, other: "StreamPart") -> bool:
        """Return whether this segment got events of some keys before `other` did."""
        return 0 < self.sealed_epoch <= other.epoch and self.overlaps(other)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Epoch(ShortRepr):
    """A time between two scalings of a stream.

    Attributes:
        started_us: Unix microseconds.
        cause: why it began, in words.
        sealed_ids: the segments that it replaced.
        created: its new segments, (id, keys).
    """

    number: int
    started_us: int
    cause: str
    sealed_ids: tuple[int, ...]
    created: tuple[tuple[int, KeyRange], ...]


class History(list[Epoch]):
    """The epochs of a stream, oldest first. A list, which notebooks show as a table."""

    def _repr_html_(self) -> str:
        rows = [
            (
                epoch.number,
                shown_time(epoch.started_us),
                epoch.cause,
                ", ".join(map(str, epoch.sealed_ids)),
                ", ".join(f"{segment_id} ({shown_keys(keys)})" for segment_id, keys in epoch.created),
            )
            for epoch in self
        ]
        return html_table("history", ("epoch", "began", "cause", "replaced", "created"), rows)


PlaceT = TypeVar("PlaceT")
"""The caller's type of a place in a segment: an offset, a position, a position with a count of events."""
PartT = TypeVar("PartT", bound=StreamPart)


class Replacement(NamedTuple, Generic[PartT]):
    """Segments that were replaced together, and their successors, with the same keys unless some are deleted."""

    predecessors: tuple[PartT, ...]
    successors: tuple[PartT, ...]


class Lineage(Generic[PartT]):
    """The order of the segments of a stream: which precede and succeed which."""

    def __init__(self, parts: Iterable[PartT]) -> None:
        self.by_id = {part.segment_id: part for part in parts}
        self._replacements: list[Replacement[PartT]] = []
        self._replacing: dict[int, Replacement[PartT]] = {}
        self._replaced_by: dict[int, Replacement[PartT]] = {}
        of_epoch: dict[int, list[PartT]] = defaultdict(list)
        for part in self.by_id.values():
            if part.epoch:
                of_epoch[part.epoch].append(part)
            if part.sealed_epoch:
                of_epoch[part.sealed_epoch].append(part)
        for epoch in sorted(of_epoch):
            for together in _connected(of_epoch[epoch]):
                replacement = Replacement(
                    tuple(part for part in together if part.sealed_epoch == epoch),
                    tuple(part for part in together if part.epoch == epoch),
                )
                self._replacements.append(replacement)
                self._replaced_by.update((part.segment_id, replacement) for part in replacement.predecessors)
                self._replacing.update((part.segment_id, replacement) for part in replacement.successors)

    def replacement(self, segment_id: int) -> Replacement[PartT] | None:
        """Return the replacement of a segment, with the segments replaced together; None if it was not replaced."""
        return self._replaced_by.get(segment_id)

    def predecessors(self, segment_id: int) -> list[PartT]:
        """Return the known segments that a segment replaced, in the order of their keys."""
        replacement = self._replacing.get(segment_id)
        part = self.by_id[segment_id]
        return [] if replacement is None else [each for each in replacement.predecessors if each.overlaps(part)]

    def head(self) -> list[PartT]:
        """Return the segments without a known predecessor, in the order of their keys."""
        return sorted((part for part in self.by_id.values() if not self.predecessors(part.segment_id)), key=_low)

    def tail(self) -> list[PartT]:
        """Return the segments that were not replaced, in the order of their keys."""
        return sorted((part for part in self.by_id.values() if not part.sealed_epoch), key=_low)

    def check_cut(self, segment_ids: Iterable[int]) -> None:
        """Raise unless segments, all of them known, can be those of a cut.

        Raises:
            CutInvalidError: they do not cover each key exactly once, or a segment would be on both sides of the cut.
        """
        cut = self._members(segment_ids)
        if not cut.covers_all_once():
            raise CutInvalidError(f"a cut covers every key exactly once; segments {sorted(cut.ids)} together do not")
        for part in self.by_id.values():
            sharing = cut.sharing(part)
            if any(part.precedes(member) for member in sharing) and any(member.precedes(part) for member in sharing):
                raise CutInvalidError(
                    f"segment {part.segment_id} would be before the cut and after it: its keys are cut in two epochs"
                )

    def before(self, segment_ids: Iterable[int]) -> set[int]:
        """Return the segments that are as a whole before a cut through these segments."""
        cut = self._members(segment_ids)
        return {
            part.segment_id
            for part in self.by_id.values()
            if part.sealed_epoch and any(part.precedes(member) for member in cut.sharing(part))
        }

    def progress(
        self, cut: Mapping[int, PlaceT], *, start: PlaceT, end_of: Callable[[PartT], PlaceT]
    ) -> dict[int, PlaceT]:
        """Return the progress of each segment before a cut: its end, its start, or its place in the cut."""
        whole = self.before(cut)
        return {
            segment_id: cut[segment_id] if segment_id in cut else end_of(part) if segment_id in whole else start
            for segment_id, part in self.by_id.items()
        }

    def advance(self, reached: dict[int, PlaceT], at_end: Callable[[int], bool], *, start: PlaceT) -> set[int]:
        """Replace segments that are read to their ends by their successors; return the replaced ones.

        Only if all segments that were replaced together are read. A successor that is itself at its end is passed as
        well.

        Args:
            reached: changed in place; a cut before and after.
            at_end: called for segments in `reached`.
        """
        passed: set[int] = set()
        waiting = list(reached)
        while waiting:
            replacement = self.replacement(waiting.pop())
            if replacement is None:
                continue
            together = [part.segment_id for part in replacement.predecessors]
            if all(each in reached and at_end(each) for each in together):
                for each in together:
                    del reached[each]
                successors = [part.segment_id for part in replacement.successors]
                reached.update(dict.fromkeys(successors, start))
                passed.update(together)
                waiting += successors
        return passed

    def retreat(
        self, reached: dict[int, PlaceT], at_start: Callable[[int], bool], *, end_of: Callable[[PartT], PlaceT]
    ) -> None:
        """Replace unread segments by their predecessors: the reverse of `advance`.

        Only if all segments that were created together are reached and unread. All of their predecessors must be known.

        Args:
            reached: changed in place; a cut before and after.
            at_start: called for segments in `reached`.
        """
        waiting = list(reached)
        while waiting:
            replacement = self._replacing.get(waiting.pop())
            if replacement is None or _width(replacement.predecessors) != _width(replacement.successors):
                continue
            together = [part.segment_id for part in replacement.successors]
            if all(each in reached and at_start(each) for each in together):
                for each in together:
                    del reached[each]
                reached.update((part.segment_id, end_of(part)) for part in replacement.predecessors)
                waiting += [part.segment_id for part in replacement.predecessors]

    def earliest(
        self, cut: Mapping[int, PlaceT], *, start: PlaceT, end_of: Callable[[int], PlaceT]
    ) -> dict[int, PlaceT]:
        """Return the cut through the oldest segments of all cuts that are the same place.

        If a cut enters segments at their starts, the ends of their predecessors are the same place: the same events are
        before it. A truncation there keeps a cut through these ends valid, because no later event is lost.
        """
        result = dict(cut)
        for predecessors, successors in reversed(self._replacements):
            # Some of either may be deleted already: then their keys differ.
            if all(result.get(part.segment_id) == start for part in successors) and _width(successors) == _width(
                predecessors
            ):
                for part in successors:
                    del result[part.segment_id]
                result.update((part.segment_id, end_of(part.segment_id)) for part in predecessors)
        return result

    def _members(self, segment_ids: Iterable[int]) -> "_Members[PartT]":
        return _Members([self.by_id[segment_id] for segment_id in segment_ids])


def parts_of_history(epochs: Iterable[Epoch]) -> list[StreamPart]:
    """Return every segment that a stream ever had; `epochs` must be complete, oldest first."""
    created: dict[int, tuple[KeyRange, int]] = {}
    sealed: dict[int, int] = {}
    for epoch in epochs:
        sealed.update(dict.fromkeys(epoch.sealed_ids, epoch.number))
        created.update((segment_id, (key_range, epoch.number)) for segment_id, key_range in epoch.created)
    return [
        StreamPart(segment_id=segment_id, key_range=key_range, epoch=number, sealed_epoch=sealed.get(segment_id, 0))
        for segment_id, (key_range, number) in created.items()
    ]


class _Members(Generic[PartT]):
    """The segments of a cut, looked up by their keys."""

    def __init__(self, parts: list[PartT]) -> None:
        self._parts = sorted(parts, key=_low)
        self._lows = [part.key_range.low for part in self._parts]
        self.ids = {part.segment_id for part in parts}

    def covers_all_once(self) -> bool:
        return covers_once(part.key_range for part in self._parts)

    def sharing(self, part: StreamPart) -> list[PartT]:
        """Return the members that share keys with a segment and are another one."""
        if part.segment_id in self.ids:
            return []
        first = max(0, bisect_right(self._lows, part.key_range.low) - 1)
        last = bisect_right(self._lows, part.key_range.last)
        return [member for member in self._parts[first:last] if member.overlaps(part)]


def _connected(parts: Iterable[PartT]) -> list[list[PartT]]:
    """Return the segments in groups; segments that share keys, directly or through others, are in one group."""
    groups: list[list[PartT]] = []
    reached = 0
    for part in sorted(parts, key=_low):
        if not groups or part.key_range.low >= reached:
            groups.append([])
        groups[-1].append(part)
        reached = max(reached, part.key_range.high)
    return groups


def _low(part: StreamPart) -> int:
    return part.key_range.low


def _width(parts: Iterable[StreamPart]) -> int:
    return sum(part.key_range.width for part in parts)
