"""Samples the keys of the newest events of a segment from the blocks in its tail.

The only place where the server reads events, and it trusts nothing there: bytes that are no valid block yield nothing;
nor does a compressed block where the package of its compression is not installed. The work is bounded whatever the tail
holds; it is for a thread, as checking and decompressing take milliseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest

from millrace.model.block_layout import FLAG_COMPRESSED
from millrace.model.block_scan import BlockFields, BlockWalk
from millrace.model.errors import BlockCorruptError, MissingExtraError
from millrace.model.event_block import unpack_block
from millrace.server.container.memtable import Extent
from millrace.server.container.state.segment import Segment

SAMPLES_COUNT_MAX: Final = 256
"""Events that are sampled of a segment at once."""
EXTENTS_COUNT_MAX: Final = 4
EXTENT_SIZE_BYTES_MAX: Final = 4 << 20
"""The headers of a larger run of appends are not stripped for the sake of samples."""
BLOCKS_COUNT_MAX: Final = 512
DECOMPRESSED_SIZE_BYTES_MAX: Final = 2 << 20
"""Of one run of appends, not more is decompressed."""

Sample = tuple[int | None, int]
"""The place of the key of an event, None without a key, and the bytes of its value."""


def recent_extents(segment: Segment, offset: int, *, merged: Mapping[int, Segment]) -> list[Extent]:
    """Return the newest runs of appends of a segment that end after `offset`, to take samples of.

    Args:
        merged: merged segments whose bytes are in the tail of another, by id; so are those of a transaction.
    """
    end = segment.tail.extents[-1].end if segment.tail else 0
    found = islice(_newest_first(segment, offset, end, merged), EXTENTS_COUNT_MAX)
    return [extent for extent in found if extent.size <= EXTENT_SIZE_BYTES_MAX][::-1]


def _newest_first(segment: Segment, start: int, end: int, merged: Mapping[int, Segment]) -> Iterator[Extent]:
    """Yield the runs in memory that hold bytes of [start, end), the newest first."""
    for extent in reversed(segment.tail.extents):
        if extent.end <= start:
            return
        if extent.offset >= end:
            continue
        if isinstance(extent, Extent):
            yield extent
        elif (source := merged.get(extent.source_id)) is not None:
            less = extent.offset - extent.source_offset
            yield from _newest_first(source, max(start, extent.offset) - less, min(end, extent.end) - less, merged)


def recent_keys(extents: Sequence[Extent]) -> list[Sample]:
    """Return samples of the events in some runs of appends. May be called in any thread."""
    samples: list[Sample] = []
    for extent in extents:
        samples += samples_of(extent.payload(), count_max=SAMPLES_COUNT_MAX // len(extents))
    return samples


def samples_of(data: memoryview, *, count_max: int) -> list[Sample]:
    """Return up to about `count_max` samples of blocks that follow one another, evenly spaced over their events."""
    blocks = list(islice(_blocks(data), BLOCKS_COUNT_MAX))
    step = max(1, -(-sum(fields.event_count for _, fields in blocks) // count_max))
    samples: list[Sample] = []
    spare_bytes = DECOMPRESSED_SIZE_BYTES_MAX
    first = 0  # of the next block: where the step led out of the one before
    for block, fields in blocks:
        indexes = range(first, fields.event_count, step)
        first = indexes.start + len(indexes) * step - fields.event_count
        if not indexes:
            continue
        if fields.flags & FLAG_COMPRESSED:
            spare_bytes -= fields.columns_size
            if spare_bytes < 0:
                continue
        with suppress(BlockCorruptError, MissingExtraError):
            samples += _samples_of_block(block, indexes)
    return samples


def _blocks(data: memoryview) -> Iterator[tuple[memoryview, BlockFields]]:
    """Yield bytes and header of the blocks that follow one another; stop at anything else."""
    with suppress(BlockCorruptError):
        for header in BlockWalk(0).feed(data):
            if header.end > len(data):
                return
            yield data[header.offset : header.end], header.fields


def _samples_of_block(data: memoryview, indexes: range) -> list[Sample]:
    """Return samples of some events of a block.

    Raises:
        BlockCorruptError: it is not a valid one.
        MissingExtraError: its compression is not installed.
    """
    block = unpack_block(data)
    sizes = np.diff(block.value_offsets)[indexes].tolist()
    if block.key_offsets is None or block.key_data is None:
        return [(None, size) for size in sizes]
    starts, ends = block.key_offsets[indexes].tolist(), block.key_offsets[1:][indexes].tolist()
    places: list[int | None] = [
        xxh3_64_intdigest(block.key_data[start:end]) for start, end in zip(starts, ends, strict=True)
    ]
    validity = block.key_validity
    if validity is not None:
        places = [
            place if validity[index // 8] >> index % 8 & 1 else None
            for index, place in zip(indexes, places, strict=True)
        ]
    return list(zip(places, sizes, strict=True))
