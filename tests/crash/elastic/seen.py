"""What a reader was given: the events with their positions, to find the rest of the stream by, and slices of it."""

import bisect
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.model.cut import StreamCut
from millrace.model.event import EventPosition
from millrace.model.stream import StreamInfo

Numbered = tuple[str, int]
"""An event: its key, and the how manieth of that key it is."""


@dataclass
class Seen:
    """What one reader was given, from the head on.

    Attributes:
        counts: how many of each key.
        events: where each one is, in the order in which they were given.
        marks: how many had been given when the reader's place was this cut.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    events: dict[EventPosition, Numbered] = field(default_factory=dict)
    marks: list[tuple[int, StreamCut]] = field(default_factory=list)
    recent: deque[EventPosition] = field(default_factory=lambda: deque(maxlen=1000))

    def take(self, key: str, number: int, place: EventPosition) -> None:
        """Count an event."""
        self.counts[key] += 1
        self.events[place] = key, number
        self.recent.append(place)

    def mark(self, cut: StreamCut) -> None:
        """Remember that the reader is at this cut now."""
        self.marks.append((len(self.events), cut))


def check_slice(seen: Seen, events: dict[EventPosition, Numbered], *, start: int, end: int) -> None:
    """Assert that these are the events that a reader was given between two of its marks."""
    expected = dict(list(seen.events.items())[start:end])
    strange = expected.items() ^ events.items()
    assert not strange, f"the slice from {start} to {end} of {seen.name} is another: {sorted(strange)[:20]}"


def marks_left(seen: Seen, cut: StreamCut, info: StreamInfo) -> list[tuple[int, StreamCut]]:
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
