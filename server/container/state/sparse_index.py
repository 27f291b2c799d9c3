"""The sparse index of one segment: what is known about a few of the borders between its appends.

An entry says: at this offset an append starts, so many events are before it, and the log wrote it at this time. All
three columns ascend (offsets strictly), so every question is a binary search for the nearest entry that is not too
late; the caller scans on from there through the bytes themselves.

Entries are made as appends are applied, at least every 64 KiB or second as far as appends start that often, and are
stored with each chunk. In memory, the entries of a chunk may be evicted but for the first: answers then are earlier
than they could be, until the entries of that one chunk are loaded again. So a segment of a terabyte costs some thousand
entries, not millions.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from millrace.server.tier2 import IndexEntry
from millrace.wire.limits import KIB

SPACING_BYTES: Final = 64 * KIB
SPACING_US: Final = 1_000_000


class SparseIndex:
    """Entries of one segment in memory, 24 bytes each.

    Every query answers with an entry at or before what was asked for. Bytes between two entries carry wall times
    and event counts between theirs, the borders included.
    """

    __slots__ = ("_events", "_offsets", "_wall_max", "_walls")

    def __init__(self, entries: Iterable[IndexEntry] = ()) -> None:
        self._offsets = array("Q")
        self._events = array("Q")
        self._walls = array("q")
        # The latest time seen, also of appends that made no entry.
        self._wall_max = -(2**63)
        if entries:
            self.merge(entries)

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, *, events: int, wall_time_us: int) -> None:
        """Note an append that starts at `offset`, at or after all that is known.

        An entry is made when the last one is 64 KiB or a second before it. A wall clock that went back is held at the
        latest time seen, so that time ascends with the offset.
        """
        wall_time_us = self._wall_max = max(wall_time_us, self._wall_max)
        offsets = self._offsets
        if offsets:
            distance = offset - offsets[-1]
            assert distance >= 0
            assert events >= self._events[-1]
            if distance == 0 or (distance < SPACING_BYTES and wall_time_us - self._walls[-1] < SPACING_US):
                return
        offsets.append(offset)
        self._events.append(events)
        self._walls.append(wall_time_us)

    def merge(self, entries: Iterable[IndexEntry]) -> None:
        """Add the entries of a chunk, in order; those known already are left as they are.

        Merging twice is merging once. Entries after all that is known, the usual case while a container starts, are
        appended. The time of a border may be earlier than entries before it, which were not in memory when the border
        was made: the time of an entry is held between those beside it, so that time ascends with the offset.
        """
        for entry in entries:
            offsets = self._offsets
            place = len(offsets) if not offsets or entry.offset > offsets[-1] else bisect_left(offsets, entry.offset)
            if place < len(offsets) and offsets[place] == entry.offset:
                continue
            assert place == 0 or self._events[place - 1] <= entry.events
            assert place == len(offsets) or entry.events <= self._events[place]
            wall_time_us = entry.wall_time_us
            if place < len(offsets):
                wall_time_us = min(wall_time_us, self._walls[place])
            if place:
                wall_time_us = max(wall_time_us, self._walls[place - 1])
            offsets.insert(place, entry.offset)
            self._events.insert(place, entry.events)
            self._walls.insert(place, wall_time_us)
        if self._walls:
            self._wall_max = max(self._wall_max, self._walls[-1])

    def evict(self, start_offset: int, end_offset: int) -> None:
        """Drop all entries in [start_offset, end_offset) but the first: a chunk holds them."""
        first = bisect_left(self._offsets, start_offset) + 1
        self._delete(first, bisect_left(self._offsets, end_offset))

    def truncate(self, offset: int) -> None:
        """Drop entries below `offset`, but for the nearest one, which still counts events for what remains."""
        self._delete(0, bisect_right(self._offsets, offset) - 1)

    def entries(self, start_offset: int, end_offset: int) -> list[IndexEntry]:
        """Return the entries in [start_offset, end_offset), for a chunk of that range."""
        places = range(bisect_left(self._offsets, start_offset), bisect_left(self._offsets, end_offset))
        return [self._entry(place) for place in places]

    def floor(self, offset: int) -> IndexEntry | None:
        """Return the last entry at or before `offset`; None when there is none."""
        place_after = bisect_right(self._offsets, offset)
        return self._entry(place_after - 1) if place_after else None

    def split(self, start_offset: int, end_offset: int, *, target_bytes: int) -> list[IndexEntry]:
        """Return the entries that cut [start_offset, end_offset) into parts of about `target_bytes`, ascending.

        Each part is at least that long, but for the last one, and ends at the first entry from there on; so a part is
        longer than asked for by no more than the distance of two entries.
        """
        assert target_bytes > 0
        borders = []
        offsets = self._offsets
        place = bisect_left(offsets, start_offset + target_bytes)
        while place < len(offsets) and offsets[place] < end_offset:
            borders.append(self._entry(place))
            place = bisect_left(offsets, offsets[place] + target_bytes, lo=place)
        return borders

    def columns(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return offsets and wall times of all entries; not to be changed, and valid until the next change."""
        return self._offsets, self._walls

    def check(self) -> None:
        """Assert the invariants; in linear time, for tests and after recovery."""
        assert len(self._offsets) == len(self._events) == len(self._walls)
        for place in range(1, len(self._offsets)):
            assert self._offsets[place - 1] < self._offsets[place]
            assert self._events[place - 1] <= self._events[place]
            assert self._walls[place - 1] <= self._walls[place]

    def _entry(self, place: int) -> IndexEntry:
        return IndexEntry(self._offsets[place], self._events[place], self._walls[place])

    def _delete(self, start: int, end: int) -> None:
        if start < end:
            del self._offsets[start:end]
            del self._events[start:end]
            del self._walls[start:end]
