"""The segments that a cut goes through, and which others lie in front of it or behind it.

A cut covers each key exactly once. Every other segment lies as a whole in front of the cut or behind it, for all of its
keys: a cut with some segment on both sides would tear it apart.
"""

from bisect import bisect_right
from collections.abc import Iterable

from millrace.server.container.stream import StreamPart, covers_key_space_once


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
