"""The earliest and the latest event time in some bytes of a segment, from the headers of its blocks.

So a search by event time skips what cannot hold the event, though event times need not ascend: writers choose them.
Bytes that are no event blocks, those of a raw segment, may hold anything.
"""

from typing import Final, NamedTuple

from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES, FLAG_TIMESTAMPS
from millrace.model.block_scan import HEADER_STRUCT, BlockFields, block_size
from millrace.model.checksum import Buffer
from millrace.model.errors import BlockCorruptError

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


class EventTimes(NamedTuple):
    """The least and the greatest event time, in Unix microseconds; min above max if no event has one."""

    min_us: int
    max_us: int

    def union(self, other: "EventTimes") -> "EventTimes":
        """Return the times of both."""
        return EventTimes(min(self.min_us, other.min_us), max(self.max_us, other.max_us))


NO_TIMES: Final = EventTimes(_INT64_MAX, _INT64_MIN)
ANY_TIMES: Final = EventTimes(_INT64_MIN, _INT64_MAX)
"""What is known of bytes that are no event blocks."""


def event_times(payload: Buffer) -> EventTimes:
    """Return the event times of whole blocks, one after the other: a microsecond or two for each."""
    times = NO_TIMES
    position = 0
    while position < len(payload):
        try:
            size = block_size(payload, position)
        except BlockCorruptError:
            return ANY_TIMES
        if not size or position + BLOCK_HEADER_SIZE_BYTES > len(payload):
            return ANY_TIMES
        header = BlockFields._make(HEADER_STRUCT.unpack_from(payload, position))
        if header.flags & FLAG_TIMESTAMPS:
            times = times.union(EventTimes(header.timestamp_us_min, header.timestamp_us_max))
        position += size
    return times if position == len(payload) else ANY_TIMES
