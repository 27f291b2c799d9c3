"""What a reader was given: the events in their order, checked as they come and held against others at the end."""

import bisect
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millrace.model.cut import StreamCut
from millrace.model.event import EventPosition
from millrace.model.lineage import Lineage, StreamPart
from millrace.model.stream import StreamInfo

PLACES_REMEMBERED = 12

Numbered = tuple[str, int]
"""An event: its key, and the how manieth of that key it is."""


@dataclass
class Seen:
    """What one reader was given, from the head on: every number of each key, once, in order.

    Attributes:
        events: where each one is, in the order in which they were given.
        marks: how many had been given when the reader's place was this cut.
    """

    name: str
    next_number: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    events: dict[EventPosition, Numbered] = field(default_factory=dict)
    marks: list[tuple[int, StreamCut]] = field(default_factory=list)
    recent: deque[EventPosition] = field(default_factory=lambda: deque(maxlen=1000))
    # The last places of each key, for those who have to find out what went wrong.
    last_places: defaultdict[str, deque[tuple[int, EventPosition]]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=PLACES_REMEMBERED))
    )

    def take(self, key: str | None, value: bytes, place: EventPosition) -> None:
        """Count an event."""
        assert key is not None
        number = int(value)
        expected = self.next_number[key]
        # Twice at one place would be the reader's fault, at two places the writer's or the server's.
        assert number == expected, (
            f"{self.name}: key {key} has {number} at {place} where {expected} must come; "
            f"before it: {list(self.last_places[key])}"
        )
        assert place not in self.events, f"{self.name}: {place} came twice: {self.events[place]}, now {key} {number}"
        self.next_number[key] = expected + 1
        self.last_places[key].append((number, place))
        self.events[place] = key, number
        self.recent.append(place)

    def mark(self, cut: StreamCut) -> None:
        """Remember that the reader is at this cut now."""
        self.marks.append((len(self.events), cut))


@dataclass
class SeenInParts:
    """What a reader was given that is overtaken by truncations, and continues where there is something left.

    Attributes:
        resumed_at: the cuts where it continued, after what was lost.
    """

    name: str
    events: dict[EventPosition, Numbered] = field(default_factory=dict)
    last_number: dict[str, int] = field(default_factory=dict)
    resumed_at: list[StreamCut] = field(default_factory=list)

    def take(self, key: str | None, value: bytes, place: EventPosition) -> None:
        """Count an event."""
        assert key is not None
        number = int(value)
        last = self.last_number.get(key, -1)
        assert number > last, f"{self.name}: key {key} has {number} at {place} after {last}"
        assert place not in self.events, f"{self.name}: {place} came twice: {self.events[place]}, now {key} {number}"
        self.last_number[key] = number
        self.events[place] = key, number


def check_same_events(first: Seen, other: Seen) -> None:
    """Assert that two readers were given the same events at the same places, whatever the order between the keys."""
    strange = first.events.items() ^ other.events.items()
    assert not strange, f"{first.name} and {other.name} were given different events: {sorted(strange)[:20]}"


def check_predecessors_first(seen: Seen, lineage: Lineage[StreamPart]) -> None:
    """Assert that nothing of a segment was given before all that it replaced, together with others, was given."""
    first_index: dict[int, int] = {}
    last_index: dict[int, int] = {}
    for index, place in enumerate(seen.events):
        first_index.setdefault(place.segment_id, index)
        last_index[place.segment_id] = index
    for segment_id, last in last_index.items():
        replacement = lineage.replacement(segment_id)
        if replacement is None:
            continue
        # An empty segment hides nothing: what replaced its successors is looked at through those themselves.
        for successor in replacement.successors:
            first = first_index.get(successor.segment_id)
            assert first is None or first > last, (
                f"{seen.name}: the first event of {successor.segment_id} came before the last of {segment_id}"
            )


def lies_in_front(place: EventPosition, cut: StreamCut, in_front: Iterable[int]) -> bool:
    """Return whether an event is before a cut, given the segments that are as a whole."""
    here = cut.places.get(place.segment_id)
    if here is not None:
        return (place.offset, place.event_index) < here
    return place.segment_id in in_front


def check_only_truncated_are_missing(seen: SeenInParts, everything: Seen, lineage: Lineage[StreamPart]) -> None:
    """Assert that what a reader was not given is before a cut where it continued, and the rest is as it was."""
    strange = seen.events.items() - everything.events.items()
    assert not strange, f"{seen.name} was given what nobody else was: {sorted(strange)[:20]}"
    missing = [place for place in everything.events if place not in seen.events]
    # The last cut is after the others.
    last = seen.resumed_at[-1] if seen.resumed_at else None
    in_front = lineage.before(last.places) if last is not None else set()
    lost = [place for place in missing if last is None or not lies_in_front(place, last, in_front)]
    assert not lost, (
        f"{seen.name} went on {len(seen.resumed_at)} times, at last at {last}, and lacks {len(lost)} events after it, "
        f"the first at {lost[0]}: {everything.events[lost[0]]}"
    )


def check_slice(seen: Seen, events: dict[EventPosition, Numbered], *, start: int, end: int) -> None:
    """Assert that these are the events that a reader was given between two of its marks."""
    expected = dict(list(seen.events.items())[start:end])
    strange = expected.items() ^ events.items()
    assert not strange, f"the slice from {start} to {end} of {seen.name} is another: {sorted(strange)[:20]}"


def marks_behind(seen: Seen, cut: StreamCut, info: StreamInfo) -> list[tuple[int, StreamCut]]:
    """Return the marks of a reader that a truncation to a cut has left, the first one first."""
    progress = info.progress(cut)
    listed = info.lineage().by_id.keys()
    known = [(count, mark) for count, mark in seen.marks if listed >= mark.places.keys()]
    # A reader's marks follow one another, so those that are left are the last ones.
    first = bisect.bisect_left(known, True, key=lambda mark: has_passed(info, mark[1], progress))
    return known[first:]


def has_passed(info: StreamInfo, cut: StreamCut, progress: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether a cut is nowhere before `progress`. The stream must have all segments of the cut."""
    return all(place >= progress[segment_id] for segment_id, place in info.progress(cut).items())
