"""Events as they are read."""

from typing import NamedTuple


class Event(NamedTuple):
    """One event of a stream.

    Attributes:
        timestamp_us: Unix microseconds, given by the caller or the writer's clock; None if its block has none.
        offset: of its block in the segment.
        event_index: its place in the block, from 0.
    """

    value: bytes
    key: str | None
    timestamp_us: int | None
    segment_id: int
    offset: int
    event_index: int

    @property
    def position(self) -> "EventPosition":
        """Where the event is."""
        return EventPosition(self.segment_id, self.offset, self.event_index)


class EventPosition(NamedTuple):
    """Where an event is: the event of that index in the block at that offset of that segment."""

    segment_id: int
    offset: int
    event_index: int
