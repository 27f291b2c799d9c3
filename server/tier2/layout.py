"""Names and bytes of chunks.

The format is declared, and described byte by byte, in `millrace.wire.schema.chunk`; this module encodes and decodes it.
The name of a chunk identifies its content, so that publishing it twice is idempotent, and so that the list of chunks of
a segment can be rebuilt from names alone:

    segments/07/0000000000000007-00000000000000000100-000000000005-00000002.chunk
             |  segment id, hex  start offset         length       container epoch, hex
             the lowest byte of the id: 256 folders, made once, however many segments are created and deleted
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.model.checksum import Buffer, crc32c
from millrace.server.errors import ChunkCorruptError
from millrace.wire.codec import Codec, fixed_struct
from millrace.wire.errors import CodecError
from millrace.wire.schema.chunk import ChunkIndexEntry, ChunkSummary, PageChecksum

from .event_times import NO_TIMES, EventTimes
from .storage import CHUNK_SUFFIX

_SUMMARY: Final = Codec(ChunkSummary, name="ChunkSummary")
_INDEX_STRUCT: Final = fixed_struct(ChunkIndexEntry, name="ChunkIndexEntry")
_PAGE_STRUCT: Final = fixed_struct(PageChecksum, name="PageChecksum")

SUMMARY_SIZE_BYTES: Final = int(ChunkSummary.sizeof())
INDEX_ENTRY_SIZE_BYTES: Final = _INDEX_STRUCT.size
PAGE_CHECKSUM_SIZE_BYTES: Final = _PAGE_STRUCT.size
_CHECKSUM_OFFSET: Final = SUMMARY_SIZE_BYTES - 4

SEGMENTS_FOLDER: Final = "segments"
_NAME: Final = re.compile(
    SEGMENTS_FOLDER + r"/([0-9a-f]{2})/([0-9a-f]{16})-([0-9]{20})-([0-9]{12})-([0-9a-f]{8})\.chunk", re.ASCII
)


class IndexEntry(NamedTuple):
    """One entry of a sparse index: the border between two appends."""

    offset: int
    """Place in the segment where an append starts."""
    events: int
    """Events of the segment before that place."""
    wall_time_us: int
    """Log wall time of the append that starts there, made monotone."""
    timestamp_us_min: int = NO_TIMES.min_us
    """The least event time from there to the next entry, or the end of the chunk."""
    timestamp_us_max: int = NO_TIMES.max_us

    def event_times(self) -> EventTimes:
        """Return the least and the greatest event time of the interval."""
        return EventTimes(self.timestamp_us_min, self.timestamp_us_max)

    def widened(self, times: EventTimes) -> "IndexEntry":
        """Return the entry with its interval widened by these event times."""
        # Not by `_replace`: this runs for each entry of each chunk.
        low, high = times
        return IndexEntry(
            self.offset,
            self.events,
            self.wall_time_us,
            min(low, self.timestamp_us_min),
            max(high, self.timestamp_us_max),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkId:
    """The fields of a chunk's name."""

    segment_id: int
    start_offset: int
    length: int
    container_epoch: int

    @property
    def end_offset(self) -> int:
        """Place in the segment after the last payload byte."""
        return self.start_offset + self.length


def chunk_name(chunk: ChunkId) -> str:
    """Return the name under which a chunk is published."""
    return (
        f"{segment_prefix(chunk.segment_id)}"
        f"{chunk.start_offset:020d}-{chunk.length:012d}-{chunk.container_epoch:08x}{CHUNK_SUFFIX}"
    )


def segment_prefix(segment_id: int) -> str:
    """Return the common prefix of the names of all chunks of a segment, and of no others; they sort by start offset."""
    return f"segments/{segment_id & 0xFF:02x}/{segment_id:016x}-"


def parse_chunk_name(name: str) -> ChunkId | None:
    """Parse the name of a chunk; None if `chunk_name` would not produce it."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    chunk = ChunkId(
        segment_id=int(match[2], 16),
        start_offset=int(match[3]),
        length=int(match[4]),
        container_epoch=int(match[5], 16),
    )
    return chunk if chunk_name(chunk) == name else None


class Summary(NamedTuple):
    """The fields of a summary, in the order in which they are declared."""

    page_size: int
    container_epoch: int
    segment_id: int
    start_offset: int
    length: int
    start_events: int
    end_events: int
    index_count: int
    index_checksum: int
    end_wall_time_us: int
    timestamp_us_min: int
    timestamp_us_max: int
    checksum: int

    @property
    def end_offset(self) -> int:
        """Place in the segment after the last payload byte."""
        return self.start_offset + self.length

    @property
    def index_size(self) -> int:
        """Bytes of the index entries."""
        return self.index_count * INDEX_ENTRY_SIZE_BYTES

    @property
    def tail_size(self) -> int:
        """Bytes after the payload: index entries, page checksums, summary."""
        return (
            self.index_size + _page_count(self.length, self.page_size) * PAGE_CHECKSUM_SIZE_BYTES + SUMMARY_SIZE_BYTES
        )

    @property
    def chunk_size(self) -> int:
        """Bytes of the whole chunk."""
        return SUMMARY_SIZE_BYTES + self.length + self.tail_size


assert Summary._fields == _SUMMARY.names


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFooter:
    """All of a chunk but its payload: enough to read and check any part of that. A few KiB, worth caching."""

    name: str
    summary: Summary
    page_checksums: bytes
    """The table as stored; `page_checksum` reads it."""
    index: bytes | None
    """The index entries as stored, or None if they are damaged; `entries` decodes them."""
    footer_damaged: bool = False
    """Whether the summary at the end was damaged and the one at the start was used instead."""

    def page_checksum(self, page: int) -> int:
        """Return the checksum of the page with that index."""
        checksum: int = _PAGE_STRUCT.unpack_from(self.page_checksums, page * PAGE_CHECKSUM_SIZE_BYTES)[0]
        return checksum

    def entries(self) -> Iterator[IndexEntry]:
        """Yield the index entries in order; none if the index is damaged (`index` is None)."""
        return map(IndexEntry._make, _INDEX_STRUCT.iter_unpack(self.index or b""))


def encode_chunk(
    chunk: ChunkId,
    payload: Sequence[Buffer],
    *,
    index: Sequence[IndexEntry],
    start_events: int,
    end_events: int,
    end_wall_time_us: int,
    page_size: int,
) -> list[Buffer]:
    """Return the bytes of a chunk as pieces to be written one after another.

    The pieces of the payload are passed through, not copied; each must be one-dimensional bytes. Checksumming runs at
    memory speed, about 40 us a MiB.
    """
    assert chunk.length > 0
    assert sum(map(len, payload)) == chunk.length, "the payload is not what the name says"
    assert start_events <= end_events
    index_bytes = b"".join([_INDEX_STRUCT.pack(*entry) for entry in index])
    summary = _SUMMARY.pack(
        page_size,
        chunk.container_epoch,
        chunk.segment_id,
        chunk.start_offset,
        chunk.length,
        start_events,
        end_events,
        len(index),
        crc32c(index_bytes),
        end_wall_time_us,
        *times_of(index),
        0,
    )[:_CHECKSUM_OFFSET]
    summary += _PAGE_STRUCT.pack(crc32c(summary))
    assert _is_index_of(Summary._make(_SUMMARY.unpack(summary)), index)
    checksums = b"".join([_PAGE_STRUCT.pack(checksum) for checksum in _page_checksums(payload, page_size)])
    assert len(checksums) == _page_count(chunk.length, page_size) * PAGE_CHECKSUM_SIZE_BYTES
    return [summary, *payload, index_bytes + checksums + summary]


def times_of(index: Sequence[IndexEntry]) -> EventTimes:
    """Return the event times of all that an index covers."""
    return EventTimes(
        min((entry.timestamp_us_min for entry in index), default=NO_TIMES.min_us),
        max((entry.timestamp_us_max for entry in index), default=NO_TIMES.max_us),
    )


def _page_checksums(payload: Iterable[Buffer], page_size: int) -> Iterator[int]:
    """Yield the checksum of every page of the concatenated payload."""
    checksum, room = 0, page_size
    for piece in payload:
        view = memoryview(piece)
        at = 0
        while at < len(view):
            part = view[at : at + room]
            checksum = crc32c(part, checksum)
            at += len(part)
            room -= len(part)
            if not room:
                yield checksum
                checksum, room = 0, page_size
    if room < page_size:
        yield checksum


def decode_summary(data: Buffer, *, name: str, offset: int) -> Summary:
    """Decode the summary in `data`, which is at `offset` of the chunk `name`.

    It describes the content of the file. `check_identity` checks that the file should have that content.

    Raises:
        ChunkCorruptError: the summary is damaged, or invalid.
    """
    try:
        summary = Summary._make(_SUMMARY.unpack(data))
    except CodecError as error:
        raise ChunkCorruptError(name, offset, f"not the summary of a chunk ({error})") from error
    if crc32c(memoryview(data)[:_CHECKSUM_OFFSET]) != summary.checksum:
        raise ChunkCorruptError(name, offset, "the summary does not match its checksum,")
    # The checksum matches, but does not authenticate.
    if not (summary.page_size and summary.length and summary.start_events <= summary.end_events):
        raise ChunkCorruptError(name, offset, "the summary is invalid,")
    return summary


def decode_footer(tail: Buffer, summary: Summary, *, name: str, footer_damaged: bool = False) -> ChunkFooter:
    """Decode the footer of the chunk that ends with `tail`, at least `summary.tail_size` bytes.

    Never fails: a damaged index becomes None, and a damaged page checksum rejects its page when that is read.
    """
    tables = memoryview(tail)[len(tail) - summary.tail_size : len(tail) - SUMMARY_SIZE_BYTES]
    index = bytes(tables[: summary.index_size])
    is_good = crc32c(index) == summary.index_checksum and _is_index_of(
        summary, map(IndexEntry._make, _INDEX_STRUCT.iter_unpack(index))
    )
    return ChunkFooter(
        name=name,
        summary=summary,
        page_checksums=bytes(tables[summary.index_size :]),
        index=index if is_good else None,
        footer_damaged=footer_damaged,
    )


def _is_index_of(summary: Summary, index: Iterable[IndexEntry]) -> bool:
    """Return whether the entries begin with the payload, ascend, and stay within its bytes and its events."""
    offset, events = summary.start_offset, summary.start_events
    is_first = True
    for entry in index:
        if entry.offset < offset or entry.events < events or (is_first and entry.offset > offset):
            return False
        offset, events, is_first = entry.offset + 1, entry.events, False
    return offset <= summary.end_offset and events <= summary.end_events


def _page_count(length: int, page_size: int) -> int:
    return -(-length // page_size)
