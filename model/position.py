"""Positions in a segment of events: between two events, wherever these are stored."""

from typing import Final, NamedTuple


class Position(NamedTuple):
    """A position in one segment: before the event of that index in the block at that offset.

    Between two blocks it is index 0 of the second; at the end of a segment, index 0 at its length.
    """

    offset: int
    event_index: int


class Mark(NamedTuple):
    """A position in a segment, and how many events of the segment, truncated ones included, come before it."""

    offset: int
    event_index: int
    events: int

    @property
    def position(self) -> Position:
        """The position alone."""
        return Position(self.offset, self.event_index)


EVENT_INDEX_MAX: Final = (1 << 32) - 1
"""The largest index of an event in a block, as the protocol has it."""
START: Final = Position(0, 0)
START_MARK: Final = Mark(0, 0, 0)
