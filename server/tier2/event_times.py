"""The earliest and the latest event time in a range of a segment, from the headers of its blocks.

With them a search by event time skips ranges that cannot contain the event, although event times need not ascend:
writers choose them. Bytes that are not event blocks, those of a raw segment, may contain anything.
"""

from typing import Final, NamedTuple

from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES, BLOCK_MAGIC, FLAG_TIMESTAMPS
from millrace.model.block_scan import HEADER_STRUCT, BlockFields
from millrace.model.checksum import Buffer
from millrace.model.limits import APPEND_SIZE_BYTES_MAX

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_MAGIC, _SIZE, _FLAGS, _MIN, _MAX = (
    BlockFields._fields.index(name) for name in ("magic", "size", "flags", "timestamp_us_min", "timestamp_us_max")
)


class EventTimes(NamedTuple):
    """The least and the greatest event time, in Unix microseconds; min above max if no event has one."""

    min_us: int
    max_us: int


NO_TIMES: Final = EventTimes(_INT64_MAX, _INT64_MIN)
ANY_TIMES: Final = EventTimes(_INT64_MIN, _INT64_MAX)
"""The range for bytes that are not event blocks."""


def event_times(payload: Buffer) -> EventTimes:
    """Return the event times of whole blocks, one after the other; about a microsecond for each."""
    low, high = NO_TIMES
    position, last = 0, len(payload) - BLOCK_HEADER_SIZE_BYTES
    unpack = HEADER_STRUCT.unpack_from
    # No object for each header: a chunk may have 200,000.
    while position <= last:
        header = unpack(payload, position)
        size = header[_SIZE]
        if header[_MAGIC] != BLOCK_MAGIC or not BLOCK_HEADER_SIZE_BYTES < size <= APPEND_SIZE_BYTES_MAX:
            return ANY_TIMES
        if header[_FLAGS] & FLAG_TIMESTAMPS:
            low = min(low, header[_MIN])
            high = max(high, header[_MAX])
        position += size
    return EventTimes(low, high) if position == len(payload) else ANY_TIMES
