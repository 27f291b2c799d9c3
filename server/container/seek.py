"""Search by time in a segment: borders near the first event from a time on, and the last one before it.

Event times need not ascend with the offset, so this is no binary search. Forward: chunks, then the entries of one
chunk's index, then the runs of the tail are skipped as long as all they hold is earlier. Backward: the same from the
end, as long as all they hold is of that time or later. The caller scans the blocks there.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import islice

from millrace.server.errors import ChunkCorruptError, ChunkNotFoundError
from millrace.server.tier2 import ChunkRecord, IndexEntry

from .catch_up_reader import CatchUpReader
from .memtable import Extent, LinkedExtent
from .state.segment import Segment


async def seek_event_time(
    reader: CatchUpReader, merged: Mapping[int, Segment], segment: Segment, *, timestamp_us: int
) -> IndexEntry | None:
    """Return a border before which no event has this time or a later one; None if no event in the segment has.

    The first such event is in the interval that begins there, or in a later one if only the outline is known (a merged
    segment, a damaged index). Safe to cancel.

    Args:
        reader: of tier 2, for the indexes of chunks.
        merged: merged segments whose bytes are in the tail of another, by id.
        segment: of event blocks; in any other every byte may be the one that is searched for.
        timestamp_us: Unix microseconds.

    Raises:
        StorageError: tier 2 failed.
    """
    place = segment.start_offset
    entry = None
    while entry is None and (chunk := _next_chunk(segment, place, timestamp_us)) is not None:
        entry = await _seek_in_chunk(reader, chunk, place=place, timestamp_us=timestamp_us)
        place = chunk.end_offset
    # In the same step in which the last chunk was found: extents that are flushed meanwhile are in this list still.
    extents = [extent for extent in segment.tail.extents if extent.end > place] if entry is None else []
    if extents or segment.unreadable:
        borders = [
            (IndexEntry(extent.offset, extent.start_events, extent.wall_time_us), parts_of(merged, extent))
            for extent in (*segment.unreadable, *extents)
        ]
        in_extents = await asyncio.to_thread(_seek_in_tail, borders, timestamp_us)
        entry = min((each for each in (entry, in_extents) if each is not None), default=None)
    return None if entry is None else _clipped(entry, segment)


async def seek_before_event_time(
    reader: CatchUpReader, merged: Mapping[int, Segment], segment: Segment, *, timestamp_us: int, end: int
) -> tuple[int, int] | None:
    """Return the last interval (start, end) that starts before `end` and may hold an event earlier than a time.

    None if no event before `end` is earlier; no event from the end of the interval up to `end` is. The interval itself
    may hold none if only the outline is known; then the caller asks for the one before it. Safe to cancel.

    Raises like `seek_event_time`, whose arguments the others are.
    """
    extents = [extent for extent in segment.tail.extents if extent.offset < end]
    spans = [(extent.offset, extent.end, parts_of(merged, extent)) for extent in reversed(extents)]
    found = await asyncio.to_thread(_seek_before_in_tail, spans, timestamp_us)
    place = end
    # What is flushed meanwhile is in a chunk by now, and looked at once more.
    while found is None and (chunk := _previous_chunk(segment, place, timestamp_us)) is not None:
        found = await _seek_before_in_chunk(reader, chunk, place=place, timestamp_us=timestamp_us)
        place = chunk.start_offset
    links = [link for link in segment.unreadable if link.offset < end]
    if links:
        spans = [(link.offset, link.end, parts_of(merged, link)) for link in reversed(links)]
        in_links = await asyncio.to_thread(_seek_before_in_tail, spans, timestamp_us)
        found = max((each for each in (found, in_links) if each is not None), default=None)
    if found is None or found[1] <= segment.start_offset:
        return None
    return max(found[0], segment.start_offset), found[1]


def parts_of(merged: Mapping[int, Segment], extent: Extent | LinkedExtent) -> list[ChunkRecord | Extent]:
    """Return what holds the bytes of an extent: itself, or chunks and extents of the segments merged there."""
    if isinstance(extent, Extent):
        return [extent]
    return parts_between(merged, merged[extent.source_id], extent.source_offset, extent.source_offset + extent.size)


def parts_between(merged: Mapping[int, Segment], segment: Segment, start: int, end: int) -> list[ChunkRecord | Extent]:
    """Return the chunks and extents that hold bytes of [start, end)."""
    parts: list[ChunkRecord | Extent] = [c for c in segment.chunks if c.start_offset < end and c.end_offset > start]
    for extent in (*segment.unreadable, *segment.tail.extents):
        if extent.offset < end and extent.end > start:
            parts += parts_of(merged, extent)
    return parts


def _next_chunk(segment: Segment, place: int, timestamp_us: int) -> ChunkRecord | None:
    """Return the first chunk with bytes from `place` on that may hold the time."""
    first = max(0, bisect_right(segment.chunks, place, key=lambda chunk: chunk.start_offset) - 1)
    for chunk in islice(segment.chunks, first, None):
        if chunk.end_offset > place and chunk.timestamp_us_max >= timestamp_us:
            return chunk
    return None


async def _seek_in_chunk(
    reader: CatchUpReader, chunk: ChunkRecord, *, place: int, timestamp_us: int
) -> IndexEntry | None:
    for entry, end in await _intervals(reader, chunk):
        if end > place and entry.timestamp_us_max >= timestamp_us:
            return entry
    return None


def _previous_chunk(segment: Segment, place: int, timestamp_us: int) -> ChunkRecord | None:
    """Return the last chunk with bytes before `place` that may hold an event earlier than the time."""
    count = bisect_left(segment.chunks, place, key=lambda chunk: chunk.start_offset)
    for number in range(count - 1, -1, -1):
        chunk = segment.chunks[number]
        if chunk.timestamp_us_min < timestamp_us:
            return chunk
    return None


async def _seek_before_in_chunk(
    reader: CatchUpReader, chunk: ChunkRecord, *, place: int, timestamp_us: int
) -> tuple[int, int] | None:
    for entry, end in reversed(await _intervals(reader, chunk)):
        if entry.offset < place and entry.timestamp_us_min < timestamp_us:
            return entry.offset, end
    return None


async def _intervals(reader: CatchUpReader, chunk: ChunkRecord) -> list[tuple[IndexEntry, int]]:
    """Return the entries of the index of a chunk, each with its end; one for all of it if the index is damaged."""
    start = IndexEntry(chunk.start_offset, chunk.start_events, 0, *chunk.event_times())
    try:
        entries = [*(await reader.footer(chunk)).entries()] or [start]
    except (ChunkCorruptError, ChunkNotFoundError):
        entries = [start]
    ends = [*(entry.offset for entry in entries[1:]), chunk.end_offset]
    return list(zip(entries, ends, strict=True))


def _seek_in_tail(
    borders: Sequence[tuple[IndexEntry, Sequence[ChunkRecord | Extent]]], timestamp_us: int
) -> IndexEntry | None:
    """Run in a thread: runs are stripped of their headers, as they are when they are flushed."""
    for entry, parts in borders:
        if any(part.event_times().max_us >= timestamp_us for part in parts):
            return entry
    return None


def _seek_before_in_tail(
    spans: Sequence[tuple[int, int, Sequence[ChunkRecord | Extent]]], timestamp_us: int
) -> tuple[int, int] | None:
    """Run in a thread, as `_seek_in_tail`; the last span comes first."""
    for start, end, parts in spans:
        if any(part.event_times().min_us < timestamp_us for part in parts):
            return start, end
    return None


def _clipped(entry: IndexEntry, segment: Segment) -> IndexEntry:
    """Return the entry, or the start of the segment if that is after it: it was truncated meanwhile, or in between."""
    return entry if entry.offset >= segment.start_offset else IndexEntry(segment.start_offset, 0, 0)
