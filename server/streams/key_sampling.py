"""Which keys the newest events of a segment have: a few of them, read out of the blocks in its tail.

The only place where the server reads events, and it trusts nothing there: bytes that are no block, or do not fit
together, yield nothing; nor does a compressed block where the package of its compression is not installed. The work is
bounded whatever the tail holds; it is for a thread, as decompressing takes milliseconds.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest

from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES, FLAG_COMPRESSED, FLAG_KEYS, FLAG_MISSING_KEYS
from millrace.model.block_scan import BlockFields, BlockWalk
from millrace.model.compression import decompress
from millrace.model.errors import BlockCorruptError
from millrace.model.event_block import padded
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


def recent_extents(segment: Segment, offset: int) -> list[Extent]:
    """Return the newest runs of appends of a segment that end after `offset`, to take samples of."""
    return [
        extent
        for extent in segment.tail.extents[-EXTENTS_COUNT_MAX:]
        if isinstance(extent, Extent) and extent.end > offset and extent.size <= EXTENT_SIZE_BYTES_MAX
    ]


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
    for columns, fields in blocks:
        indexes = range(first, fields.event_count, step)
        first = indexes.start + len(indexes) * step - fields.event_count
        if indexes and fields.flags & FLAG_COMPRESSED:
            spare_bytes -= fields.columns_size
            columns = _decompressed(columns, fields) if spare_bytes >= 0 else memoryview(b"")
        if indexes:
            samples += _samples_of_block(columns, fields, indexes)
    return samples


def _blocks(data: memoryview) -> Iterator[tuple[memoryview, BlockFields]]:
    """Yield columns and header of the blocks that follow one another; stop at anything else."""
    with suppress(BlockCorruptError):
        for header in BlockWalk(0).feed(data):
            if header.end > len(data):
                return
            yield data[header.offset + BLOCK_HEADER_SIZE_BYTES : header.end], header.fields


def _samples_of_block(columns: memoryview, fields: BlockFields, indexes: range) -> list[Sample]:
    flags, count = fields.flags, fields.event_count
    offsets_size = padded(4 * (count + 1))
    key_start = offsets_size + padded(fields.value_size)
    validity = memoryview(b"")
    if flags & FLAG_MISSING_KEYS:
        validity = columns[key_start : key_start + (count + 7) // 8]
        key_start += padded((count + 7) // 8)
    if key_start + (offsets_size if flags & FLAG_KEYS else 0) > len(columns):
        return []
    sizes = _lengths(columns, 0, count, indexes)
    if not flags & FLAG_KEYS:
        return [(None, size) for _, size in sizes]
    keys = columns[key_start + offsets_size :]
    samples: list[Sample] = []
    for index, (_, size), (start, length) in zip(
        indexes, sizes, _lengths(columns, key_start, count, indexes), strict=True
    ):
        if flags & FLAG_MISSING_KEYS and not validity[index // 8] >> index % 8 & 1:
            samples.append((None, size))
        elif 0 <= start <= start + length <= len(keys):
            samples.append((xxh3_64_intdigest(keys[start : start + length]), size))
    return samples


def _decompressed(columns: memoryview, fields: BlockFields) -> memoryview:
    """Return the columns of a compressed block; empty if they cannot be had."""
    try:
        return memoryview(decompress(fields.compression, columns, size_bytes=fields.columns_size))
    except (BlockCorruptError, ModuleNotFoundError):
        return memoryview(b"")


def _lengths(columns: memoryview, start: int, count: int, indexes: range) -> list[tuple[int, int]]:
    """Return start and length of some items of a column, from its offsets."""
    offsets = np.frombuffer(columns, np.int32, count + 1, start)
    chosen = slice(indexes.start, indexes.stop, indexes.step)
    starts = offsets[:-1][chosen].tolist()
    ends = offsets[1:][chosen].tolist()
    return [(begin, max(0, end - begin)) for begin, end in zip(starts, ends, strict=True)]
