"""The segments that a cut goes through, and which others lie in front of it or behind it.

A cut covers each key exactly once. Every other segment lies as a whole in front of the cut or behind it, for all of its
keys: a cut with some segment on both sides would tear it apart.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from millrace.server.container.state.stream import StreamPart, covers_key_space_once


def earliest_of_place(
    parts: Collection[StreamPart], positions: Mapping[int, int], *, length_of: Callable[[int], int]
) -> dict[int, int]:
    """Return the cut that goes through the oldest segments, of all those that are the same place.

    Where a cut enters segments at their beginnings, the ends of those which they replaced are the same
    place: the same events lie in front of it. Whoever truncates there keeps a cut through the ends good, for it has
    lost nothing.

    Args:
        positions: offsets by segment; the cut covers the key space once.
        length_of: the end of a segment that was replaced.
    """
    result = dict(positions)
    created: defaultdict[int, list[StreamPart]] = defaultdict(list)
    replaced: defaultdict[int, list[StreamPart]] = defaultdict(list)
    for part in parts:
        created[part.epoch].append(part)
        replaced[part.sealed_epoch].append(part)
    for epoch in sorted(replaced.keys() - {0}, reverse=True):
        for group in _groups([*created[epoch], *replaced[epoch]]):
            new = [part for part in group if part.epoch == epoch]
            old = [part for part in group if part.epoch != epoch]
            # Of either some may be gone already: then they do not have the same keys.
            if all(result.get(part.segment_id) == 0 for part in new) and _key_count(new) == _key_count(old):
                for part in new:
                    del result[part.segment_id]
                result.update((part.segment_id, length_of(part.segment_id)) for part in old)
    return result


def _groups(parts: Iterable[StreamPart]) -> list[list[StreamPart]]:
    """Return parts in groups of which no two have a key in common: one scale may replace at many places."""
    groups: list[list[StreamPart]] = []
    end = -1
    for part in sorted(parts, key=lambda part: part.low):
        if part.low > end:
            groups.append([])
        groups[-1].append(part)
        end = max(end, part.last)
    return groups


class CutParts:
    """Parts of a stream that share no keys, found by their keys."""

    def __init__(self, parts: Iterable[StreamPart]) -> None:
        self._parts = sorted(parts, key=lambda part: part.low)
        self._lows = [part.low for part in self._parts]

    @property
    def covers_all_once(self) -> bool:
        """Whether each key is in exactly one of the parts; nothing else may be asked if some are in two."""
        return covers_key_space_once((part.low, part.last) for part in self._parts)

    def is_behind(self, part: StreamPart) -> bool:
        """Return whether a part lies in front of the cut: the cut is behind it, for some keys."""
        return part.sealed_epoch > 0 and any(part.precedes(other) for other in self._sharing(part))

    def is_in_front_of(self, part: StreamPart) -> bool:
        """Return whether a part lies behind the cut, for some keys."""
        return any(other.precedes(part) for other in self._sharing(part))

    def tears(self, part: StreamPart) -> bool:
        """Return whether a part would lie in front of the cut with some keys, and behind it with others."""
        return self.is_behind(part) and self.is_in_front_of(part)

    def _sharing(self, part: StreamPart) -> list[StreamPart]:
        first = max(0, bisect_right(self._lows, part.low) - 1)
        return [
            other for other in self._parts[first : bisect_right(self._lows, part.last)] if other.overlaps(*part[1:3])
        ]


def _key_count(parts: Iterable[StreamPart]) -> int:
    return sum(part.last - part.low + 1 for part in parts)
