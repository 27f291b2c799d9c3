"""The borders between appends in the bytes of a merged segment.

They are for the index of its target, as long as the bytes are not copied, and for that of the chunk that they are
copied to.

The bytes may be in memory, in chunks, or again in a segment that was merged. In chunks only those borders are known
that the index has. Each comes with what tells the event times from there to the next one.
"""

from collections.abc import Mapping
from typing import TypeAlias

from millrace.server.errors import ChunkCorruptError, ChunkNotFoundError
from millrace.server.tier2 import ChunkRecord, IndexEntry

from .catch_up_reader import CatchUpReader
from .memtable import Extent, LinkedExtent
from .state.segment import Segment
from .state.sparse_index import SPACING_BYTES

Border: TypeAlias = tuple[IndexEntry, Extent | IndexEntry]
"""A border, and what has the event times from there on: `event_times` of an extent may have to read it."""


async def load_merged_index(
    reader: CatchUpReader, merged: Mapping[int, Segment], segment: Segment, start: int, end: int
) -> None:
    """Load borders inside of what was merged in [start, end) into the index of the segment, 64 KiB apart.

    The merge itself is one border: a large transaction could not be split before it is copied. Once it is copied, the
    entries are evicted with those of its chunks. Safe to cancel.

    Raises:
        StorageError: tier 2 failed.
    """
    for extent in list(segment.tail.extents):
        if not (isinstance(extent, LinkedExtent) and extent.size > SPACING_BYTES):
            continue
        source = merged.get(extent.source_id)
        if source is None or extent.offset >= end or extent.end <= start:
            continue
        source_end = extent.source_offset + extent.size
        found = await borders_between(reader, merged, source, extent.source_offset, source_end)
        distant: list[IndexEntry] = []
        before = extent.offset
        for entry, _ in moved(found, extent, source):
            if entry.offset - before >= SPACING_BYTES and entry.offset >= segment.start_offset:
                distant.append(IndexEntry(*entry[:3]))
                before = entry.offset
        if segment.tail and segment.tail.first.offset <= extent.offset:  # else it was truncated, or copied, meanwhile
            segment.index.merge(distant)


async def borders_between(
    reader: CatchUpReader, merged: Mapping[int, Segment], segment: Segment, start: int, end: int
) -> list[Border]:
    """Return the known borders in [start, end) of a segment, ascending, the first one at `start`. Safe to cancel.

    Of what is deleted meanwhile none are found.

    Raises:
        StorageError: tier 2 failed.
    """
    borders: list[Border] = []
    # Both are taken before the first wait.
    chunks, extents = list(segment.chunks), [*segment.unreadable, *segment.tail.extents]
    for chunk in chunks:
        if chunk.start_offset < end and chunk.end_offset > start:
            borders += await _borders_of_chunk(reader, chunk, start, end)
    for extent in extents:
        if extent.offset >= end or extent.end <= start:
            continue
        if isinstance(extent, Extent):
            borders.append((IndexEntry(max(extent.offset, start), extent.start_events, extent.wall_time_us), extent))
        elif (source := merged.get(extent.source_id)) is not None:
            less = extent.offset - extent.source_offset
            source_start, source_end = max(extent.offset, start) - less, min(extent.end, end) - less
            borders += moved(await borders_between(reader, merged, source, source_start, source_end), extent, source)
    return borders


def moved(borders: list[Border], link: LinkedExtent, source: Segment) -> list[Border]:
    """Return borders of a segment that was merged as those of its target, where all are as old as the merge."""
    more_bytes, more_events = link.offset - link.source_offset, link.end_events - source.event_count
    return [
        (
            IndexEntry(
                border.offset + more_bytes,
                # What the log has lost of the source may make its counts lower than they were.
                min(max(border.events + more_events, link.start_events), link.end_events),
                link.wall_time_us,
            ),
            held,
        )
        for border, held in borders
    ]


async def _borders_of_chunk(reader: CatchUpReader, chunk: ChunkRecord, start: int, end: int) -> list[Border]:
    """Return the borders that the index of a chunk has in [start, end); its start alone if the index is damaged."""
    outline = IndexEntry(chunk.start_offset, chunk.start_events, 0, *chunk.event_times())
    try:
        entries = list((await reader.footer(chunk)).entries()) or [outline]
    except (ChunkCorruptError, ChunkNotFoundError):
        entries = [outline]
    ends = [*(entry.offset for entry in entries[1:]), chunk.end_offset]
    return [
        (entry._replace(offset=max(entry.offset, start)), entry)
        for entry, entry_end in zip(entries, ends, strict=True)
        if entry.offset < end and entry_end > start
    ]
