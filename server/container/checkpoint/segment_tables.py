"""The checkpoint tables of segments."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from millrace.model.names import AFTER_INTERNAL
from millrace.server.container.kind import Detail, Kind
from millrace.server.container.memtable import LinkedExtent
from millrace.server.container.state import apply_segments
from millrace.server.container.state.segment import (
    ATTRIBUTE_OVERHEAD_BYTES,
    START_INDEX_ROW,
    DamagedRange,
    Segment,
    WriterProgress,
)
from millrace.server.container.table import Row, Table, range_of_texts, range_texts
from millrace.server.tier2 import ChunkRecord, IndexEntry

from .reader import KindArchive

CHUNKS: Final = Table(
    "chunks",
    number=4,
    key=["segment_id", "start_offset"],
    integers=[
        "segment_id",
        "start_offset",
        "length",
        "size",
        "start_events",
        "end_events",
        "end_wall_time_us",
        "timestamp_us_min",
        "timestamp_us_max",
    ],
    texts=["name"],
)
_CHUNK_FIELDS: Final = CHUNKS.columns[1:-1]
_chunk_row: Final = attrgetter(*_CHUNK_FIELDS)


def _row_of_chunk(segment: Segment, start_offset: int) -> Row | None:
    chunk = segment.chunk_from(start_offset)
    return None if chunk is None else _chunk_row(chunk)


def _load_chunks(segment: Segment, rows: list[Row]) -> None:
    segment.chunks = [ChunkRecord(**dict(zip(_CHUNK_FIELDS, row, strict=True))) for row in rows]
    if segment.chunks:
        segment.index.merge(chunk_borders(segment.chunks, created_us=segment.created_us))


def chunk_borders(chunks: Sequence[ChunkRecord], *, created_us: int) -> list[IndexEntry]:
    """Return index entries for the borders of chunks: the start of each, and the end of the last.

    The time of an entry is that of the last append before it, so it is a little early, which an index may be: still no
    append of a later time starts before the entry. The one at the end keeps what follows from being dated earlier.
    """
    borders = []
    wall_time_us = min(created_us, chunks[0].end_wall_time_us)
    end = 0
    for chunk in chunks:
        borders.append(IndexEntry(chunk.start_offset, chunk.start_events, wall_time_us))
        # The clock may have been set back.
        wall_time_us = max(wall_time_us, chunk.end_wall_time_us)
        end = chunk.end_events
    borders.append(IndexEntry(chunks[-1].end_offset, end, wall_time_us))
    return borders


DAMAGES: Final = Table(
    "damages",
    number=5,
    key=["segment_id", "position"],
    integers=["segment_id", "position", "start_offset", "end_offset"],
    texts=["source"],
)


def _load_damages(segment: Segment, rows: list[Row]) -> None:
    segment.damages = [DamagedRange(start, end, source) for _, start, end, source in rows]


PROGRESS: Final = Table(
    "progress",
    number=6,
    key=["segment_id", "writer_number"],
    integers=["segment_id", "writer_number", "last_event_number", "last_offset"],
    indexes=[["writer_number"]],
)


def _row_of_progress(segment: Segment, writer_number: int) -> Row | None:
    progress = segment.writers.get(writer_number)
    return None if progress is None else (writer_number, progress.durable, progress.last_offset)


def _load_progress(segment: Segment, rows: list[Row]) -> None:
    segment.writers = {
        writer_number: WriterProgress(durable=last_event_number, last_offset=last_offset)
        for writer_number, last_event_number, last_offset in rows
    }


ATTRIBUTES: Final = Table(
    "attributes", number=7, key=["segment_id", "name"], integers=["segment_id"], texts=["name"], blobs=["value"]
)


def _row_of_attribute(segment: Segment, name: str) -> Row | None:
    # Not a column of `segments`: few segments are truncated inside a block, and folders without it are as they were.
    if name == START_INDEX_ROW:
        return (name, str(segment.start_index).encode()) if segment.start_index else None
    value = segment.attributes.get(name)
    return None if value is None else (name, value)


def _load_attributes(segment: Segment, rows: list[Row]) -> None:
    attributes: dict[str, bytes] = dict(rows)
    segment.start_index = int(attributes.pop(START_INDEX_ROW, b"0"))
    segment.replace_attributes(attributes)


LINKS: Final = Table(
    "links",
    number=11,
    key=["source_id"],
    integers=[
        "source_id", "target_id", "offset", "size", "source_offset", "event_count", "end_events", "sequence",
        "wall_time_us"
    ],
)  # fmt: skip
_LINK_FIELDS: Final = LINKS.columns[:-1]
_link_row: Final = attrgetter(*_LINK_FIELDS[1:])


def _link_rows(segment: Segment) -> list[Row]:
    return [] if segment.link is None else [_link_row(segment.link)]


def link_of_row(row: Row) -> LinkedExtent:
    """Return where the bytes of a merged segment are."""
    return LinkedExtent(**dict(zip(_LINK_FIELDS, row, strict=True)))


_SEGMENT_INTEGERS: Final = (
    "segment_id", "stream_id", "created_us", "start_offset", "length", "event_count", "flushed_offset", "sealed",
)  # fmt: skip
_segment_columns: Final = attrgetter(*_SEGMENT_INTEGERS, "name")


def _segment_row(segment: Segment) -> Row:
    keys = segment.keys
    return (*_segment_columns(segment), "" if keys is None else "".join(range_texts(keys.low, keys.last)))


def _load_segment(*, sealed: int, keys: str, **columns: Any) -> Segment:
    key_range = range_of_texts(keys[:16], keys[16:]) if keys else None
    return Segment(sealed=bool(sealed), keys=key_range, **columns)


class SegmentArchive(KindArchive[Segment]):
    """The segments of a checkpoint."""

    def unflushed(self) -> list[int]:
        """Return the numbers of the segments that had bytes which were not in tier 2."""
        return self._reader.column("SELECT segment_id FROM segments WHERE flushed_offset < length ORDER BY segment_id")

    def damaged(self) -> list[int]:
        """Return the numbers of the segments of which bytes were lost to damage."""
        return self._reader.column("SELECT DISTINCT segment_id FROM damages ORDER BY segment_id")

    def internal_count(self) -> int:
        """Return how many segments are internal; takes time for these only."""
        return sum(self._reader.column("SELECT count(*) FROM segments WHERE name < ?", [AFTER_INTERNAL]))

    def attribute_bytes(self) -> int:
        """Return what the attributes of all segments count against their limit; reads their sizes only."""
        sizes = "count(*), total(length(CAST(name AS BLOB))), total(length(value))"
        rows = self._reader.select(f"SELECT {sizes} FROM attributes WHERE substr(name, 1, 1) <> '#'", [])
        return sum(ATTRIBUTE_OVERHEAD_BYTES * count + int(keys) + int(values) for count, keys, values in rows)

    def links(self) -> list[LinkedExtent]:
        """Return where the bytes of merged segments are."""
        return [link_of_row(row) for row in self._reader.rows(LINKS, "TRUE ORDER BY target_id, offset", [])]

    def has_chunk(self, *, segment_id: int, start_offset: int, name: str) -> bool:
        """Return whether a segment refers to a chunk."""
        rows = self._reader.under(CHUNKS, (segment_id, start_offset))
        return any(row[-1] == name for row in rows)


SEGMENTS: Final[Kind[Segment]] = Kind(
    table=Table(
        "segments",
        number=3,
        key=["segment_id"],
        integers=_SEGMENT_INTEGERS,
        texts=["name", "keys"],  # the first and the last place of its key range; empty for a raw one
        indexes=[["name"]],
    ),
    name_column="name",
    row=_segment_row,
    load=_load_segment,
    details=(
        Detail(table=CHUNKS, row=_row_of_chunk, load=_load_chunks),
        Detail(
            table=DAMAGES,
            rows=lambda segment: (
                (position, damage.start, damage.end, damage.source) for position, damage in enumerate(segment.damages)
            ),
            load=_load_damages,
        ),
        Detail(table=PROGRESS, row=_row_of_progress, load=_load_progress, forget_column="writer_number"),
        Detail(table=ATTRIBUTES, row=_row_of_attribute, load=_load_attributes),
        # Not loaded with the source: the state begins with all of them.
        Detail(table=LINKS, rows=_link_rows),
    ),
    archive=SegmentArchive,
    records=apply_segments.RECORDS,
)
