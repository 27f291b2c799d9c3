"""Checks that a file is the expected chunk: compares its name and its record with its own summary.

A file can be sound and still be the wrong one: two files swapped, a chunk of an older epoch or of another place under
this name, a chunk of another server. Its checksums match. So nothing of a chunk is used before this check.
"""

from typing import Final, NamedTuple

from millrace.server.errors import ChunkIdentityError

from .event_times import NO_TIMES, EventTimes
from .layout import ChunkId, Summary, parse_chunk_name


class ChunkRecord(NamedTuple):
    """A chunk as its segment refers to it, and as the checkpoint stores that."""

    start_offset: int
    length: int
    name: str
    size: int  # of the whole chunk, in bytes
    start_events: int
    end_events: int
    end_wall_time_us: int
    timestamp_us_min: int = NO_TIMES.min_us
    timestamp_us_max: int = NO_TIMES.max_us

    @property
    def end_offset(self) -> int:
        """The segment offset after the last byte."""
        return self.start_offset + self.length

    def event_times(self) -> EventTimes:
        """Return the least and the greatest event time in the chunk."""
        return EventTimes(self.timestamp_us_min, self.timestamp_us_max)


_RECORDED: Final = tuple(name for name in ChunkRecord._fields if name in Summary._fields)
"""Fields that both a record and a summary have."""


def check_identity(summary: Summary, *, name: str, offset: int, record: ChunkRecord | None) -> None:
    """Raise unless the summary is that of the expected chunk.

    A record is more specific than a name: of two chunks that two servers wrote to one place under one epoch, such as a
    server and a copy of its folder, it distinguishes them by their events and times.

    Args:
        summary: of the file, matching its checksum.
        name: of the file.
        offset: of the summary in the file.
        record: the segment's record of the chunk, None if nothing refers to it.

    Raises:
        ChunkIdentityError: it is another chunk.
    """
    named = parse_chunk_name(name)
    found = ChunkId(
        segment_id=summary.segment_id,
        start_offset=summary.start_offset,
        length=summary.length,
        container_epoch=summary.container_epoch,
    )
    if named is None:
        raise ChunkIdentityError(name, offset, found=_text(found), expected="no chunk")
    if named != found:
        raise ChunkIdentityError(name, offset, found=_text(found), expected=_text(named))
    different = [field for field in _RECORDED if record and getattr(record, field) != getattr(summary, field)]
    if different:
        texts = [", ".join(f"{field} {getattr(each, field)}" for field in different) for each in (summary, record)]
        raise ChunkIdentityError(name, offset, found=texts[0], expected=texts[1])


def _text(chunk: ChunkId) -> str:
    return (
        f"bytes [{chunk.start_offset}, {chunk.end_offset}) of segment {chunk.segment_id} "
        f"from epoch {chunk.container_epoch}"
    )
