"""The times of the events of a block: their bounds, and a copy of the block with other times."""

from typing import Final, NamedTuple

import numpy as np

from .block_layout import FLAG_TIMESTAMPS
from .block_packing import EventColumns, pack_columns
from .block_scan import BlockWalk
from .checksum import Buffer
from .compression import Compression
from .errors import BlockCorruptError
from .event_block import unpack_block
from .limits import APPEND_SIZE_BYTES_MAX

_NO_DATA: Final = b""


class TimedBlock(NamedTuple):
    """A block of an append, as its header describes it.

    Attributes:
        start, end: in the append.
        times: the earliest and the latest one; None if its events have no times.
        unpacked_size_bytes: of its columns when they are not compressed.
    """

    start: int
    end: int
    times: tuple[int, int] | None
    unpacked_size_bytes: int

    def is_within(self, low_us: int, high_us: int) -> bool:
        """Return whether no event has a time outside of two bounds; readers rely on the times of the header."""
        return self.times is None or low_us <= self.times[0] <= self.times[1] <= high_us


def blocks_of(payload: Buffer) -> list[TimedBlock]:
    """Return the blocks of an append.

    Raises:
        BlockCorruptError: the append is not made of whole blocks.
    """
    walk = BlockWalk(0)
    found = []
    for header in walk.feed(payload):
        fields = header.fields
        times = (fields.timestamp_us_min, fields.timestamp_us_max) if fields.flags & FLAG_TIMESTAMPS else None
        found.append(TimedBlock(header.offset, header.end, times, fields.columns_size))
    if walk.offset != len(payload):
        raise BlockCorruptError("the append is not made of whole event blocks")
    return found


def with_times_between(block: Buffer, low_us: int, high_us: int) -> bytearray:
    """Return a copy of a block in which each time outside of two bounds is replaced by the nearer bound.

    Raises:
        BlockCorruptError: it is not a valid block.
        EventTooLargeError: compressed again, it is larger than an append.
        MissingExtraError: the package of its compression is not installed.
    """
    events = unpack_block(block)
    assert events.timestamps is not None, "only a block with timestamps has times to clamp"
    has_key = None
    if events.key_validity is not None:
        bits = np.unpackbits(np.frombuffer(events.key_validity, dtype=np.uint8), bitorder="little")
        has_key = bits[: events.fields.event_count].astype(np.bool_)
    columns = EventColumns(
        events.value_offsets,
        events.value_data,
        events.key_offsets,
        _NO_DATA if events.key_data is None else events.key_data,
        has_key,
        np.clip(events.timestamps, low_us, high_us),
        events.header_columns,
    )
    return pack_columns(
        columns,
        first_event_number=events.fields.first_event_number,
        compression=Compression(events.fields.compression),
        size_bytes_max=APPEND_SIZE_BYTES_MAX,
    )
