"""The rows of a checkpoint: which tables there are, and how a container's state becomes rows.

A checkpoint is a SQLite database. SQLite finds a torn page by no checksum of its own, and a flipped bit in a value by
nothing at all, so each row carries one, and the one row of `meta` knows how many rows each table has and the sum of
their checksums. So a row that is damaged, lost, doubled, moved to another table, or of an older version of its page (a
write that the disk lost) is noticed when the checkpoint is loaded.

Format, version 1. Each table has integer columns (signed, 64 bits), then text columns, then blob columns, then
`checksum`. The checksum of a row is the CRC-32C, started with the number of the table instead of 0, of:

    offset   size   field
    0        8 k    the k integers, little-endian
    8 k      4      size in bytes of the first text, little-endian
    8 k + 4  ...    the first text in UTF-8; then the other texts and the blobs in the same way

For example the row of `writers` with writer_number 7, epoch 2, opened_us 1700000000000000 and writer_id "w1" is read
as

    0700000000000000020000000000000000401e18250a0600020000007731

and its checksum is 0x8ef9bb0f. Key ranges use all 64 bits, without a sign; they are kept as 16 hexadecimal digits.
The row of `meta` is read in the same way. Its `..._count` and `..._sum` columns are kept by triggers, so that writing
rows needs no look at the rows that they replace.

Table `format` never changes its shape: any version can tell which version wrote the file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import Final

from millrace.wire.checksum import crc32c

from .segment import ChunkRecord, Segment
from .state import Changes, ContainerState

Value = int | str | bytes
Row = tuple[Value, ...]
Key = tuple[Value, ...]

FORMAT_VERSION: Final = 1
PRODUCT: Final = "millrace checkpoint"


class Table:
    """A table of the checkpoint: its columns, and the checksum of its rows."""

    __slots__ = ("_integers", "_pack", "columns", "create", "key", "name", "number", "_texts_end")

    def __init__(
        self,
        name: str,
        *,
        number: int,
        key: Sequence[str],
        integers: Sequence[str],
        texts: Sequence[str] = (),
        blobs: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.number = number  # never given to another table: it tells equal rows of two tables apart
        self.key = tuple(key)
        self.columns = (*integers, *texts, *blobs, "checksum")
        self._integers = len(integers)
        self._texts_end = len(integers) + len(texts)
        self._pack = Struct(f"<{len(integers)}q").pack
        types = ["INTEGER"] * len(integers) + ["TEXT"] * len(texts) + ["BLOB"] * len(blobs) + ["INTEGER"]
        columns = ", ".join(f"{column} {kind} NOT NULL" for column, kind in zip(self.columns, types, strict=True))
        self.create = f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({', '.join(key)})) WITHOUT ROWID"

    def checksum(self, row: Row) -> int:
        """Return the checksum of a row, given without it.

        Raises:
            struct.error, TypeError, AttributeError: a value is not of the type of its column.
        """
        data: bytes = self._pack(*row[: self._integers])
        for text in row[self._integers : self._texts_end]:
            encoded = text.encode()  # type: ignore[union-attr]  # a value of another type is to fail here
            data += len(encoded).to_bytes(4, "little") + encoded
        for blob in row[self._texts_end :]:
            data += len(blob).to_bytes(4, "little") + blob  # type: ignore[arg-type,operator]  # likewise
        return crc32c(data, self.number)


FORMAT: Final = Table("format", number=1, key=["version"], integers=["version"], texts=["product"])
SEGMENTS: Final = Table(
    "segments",
    number=3,
    key=["segment_id"],
    integers=[
        "segment_id", "stream_id", "created_us", "start_offset", "length", "event_count", "flushed_offset", "sealed"
    ],
    texts=["name"],
)  # fmt: skip
CHUNKS: Final = Table(
    "chunks",
    number=4,
    key=["segment_id", "start_offset"],
    integers=["segment_id", "start_offset", "length", "size", "start_events", "end_events", "end_wall_time_us"],
    texts=["name"],
)
DAMAGES: Final = Table(
    "damages",
    number=5,
    key=["segment_id", "position"],
    integers=["segment_id", "position", "start_offset", "end_offset"],
    texts=["source"],
)
PROGRESS: Final = Table(
    "progress",
    number=6,
    key=["segment_id", "writer_number"],
    integers=["segment_id", "writer_number", "last_event_number", "last_offset"],
)
ATTRIBUTES: Final = Table(
    "attributes", number=7, key=["segment_id", "name"], integers=["segment_id"], texts=["name"], blobs=["value"]
)
WRITERS: Final = Table(
    "writers",
    number=8,
    key=["writer_number"],
    integers=["writer_number", "epoch", "opened_us"],
    texts=["writer_id"],
)
STREAMS: Final = Table(
    "streams",
    number=9,
    key=["stream_id"],
    integers=["stream_id", "created_us", "sealed"],
    texts=["name", "configuration"],
)
STREAM_SEGMENTS: Final = Table(
    "stream_segments",
    number=10,
    key=["stream_id", "position"],
    integers=["stream_id", "position", "segment_id"],
    texts=["low", "last"],
)
TABLES: Final = (SEGMENTS, CHUNKS, DAMAGES, PROGRESS, ATTRIBUTES, WRITERS, STREAMS, STREAM_SEGMENTS)
"""The tables of what a container knows, parents first."""

META: Final = Table(
    "meta",
    number=2,
    key=["id"],
    integers=[
        "id", "sequence", "replay_from", "container_epoch", "next_id",
        *(f"{table.name}_{figure}" for table in TABLES for figure in ("count", "sum")),
    ],
)  # fmt: skip


def schema() -> Iterator[str]:
    """Yield the statements that make the tables and triggers of an empty checkpoint."""
    for table in (FORMAT, META, *TABLES):
        yield table.create
    for table in TABLES:
        count, total = f"{table.name}_count", f"{table.name}_sum"
        for event, sign, row in (("INSERT", "+", "NEW"), ("DELETE", "-", "OLD")):
            yield (
                f"CREATE TRIGGER {table.name}_{event.lower()} AFTER {event} ON {table.name} BEGIN UPDATE meta "
                f"SET {count} = {count} {sign} 1, {total} = {total} {sign} {row}.checksum; END"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRows:
    """What one checkpoint changes in the stored tables. Removals come first, then additions."""

    # Keys, or leading parts of keys: then all rows that begin so are removed.
    removed: Mapping[Table, Sequence[Key]]
    added: Mapping[Table, Sequence[Row]]
    # All chunks of each changed segment; which of them are new is found out by the store, off the event loop.
    chunks: Mapping[int, Sequence[ChunkRecord]]
    # How many rows there must be afterwards, of the tables where the state knows it.
    counts: Mapping[Table, int]
    next_id: int


def everything(state: ContainerState) -> Changes:
    """Return changes that name all there is, for a first checkpoint in place of one that was set aside."""
    return Changes(
        segments=set(state.segments),
        writers=set(state.writers),
        streams=set(state.streams),
        progress={(segment.segment_id, number) for segment in state.segments.values() for number in segment.writers},
        attributes={(segment.segment_id, key) for segment in state.segments.values() for key in segment.attributes},
    )


def take_rows(state: ContainerState, changes: Changes) -> CheckpointRows:
    """Return copies of what `changes` names, as it is now and durable.

    Called in the event loop, in the same step that chooses the sequence number of the checkpoint. Takes time for what
    changed only, but for the references to the chunks of each changed segment.
    """
    segments = [segment for number in changes.segments if (segment := state.segments.get(number)) is not None]
    streams = [stream for number in changes.streams if (stream := state.streams.get(number)) is not None]
    writers = [writer for number in changes.writers if (writer := state.writers.get(number)) is not None]
    gone: list[Key] = [(number,) for number in changes.deleted_segments]
    gone_streams: list[Key] = [(number,) for number in changes.deleted_streams]
    changed: list[Key] = [(segment.segment_id,) for segment in segments]
    changed_streams: list[Key] = [(stream.stream_id,) for stream in streams]
    return CheckpointRows(
        removed={
            SEGMENTS: gone + changed,
            DAMAGES: gone + changed,
            PROGRESS: [*gone, *changes.progress],
            ATTRIBUTES: [*gone, *changes.attributes],
            WRITERS: [(writer.writer_number,) for writer in writers],
            STREAMS: gone_streams + changed_streams,
            STREAM_SEGMENTS: gone_streams + changed_streams,
        },
        added={
            SEGMENTS: [_segment_row(segment) for segment in segments],
            DAMAGES: [row for segment in segments for row in _damage_rows(segment)],
            PROGRESS: list(_progress_rows(state, changes.progress)),
            ATTRIBUTES: list(_attribute_rows(state, changes.attributes)),
            WRITERS: [(writer.writer_number, writer.epoch, writer.opened_us, writer.writer_id) for writer in writers],
            STREAMS: [
                (stream.stream_id, stream.created_us, int(stream.sealed), stream.name, stream.configuration)
                for stream in streams
            ],
            STREAM_SEGMENTS: [
                (stream.stream_id, position, segment_id, f"{low:016x}", f"{last:016x}")
                for stream in streams
                for position, (segment_id, low, last) in enumerate(stream.segments)
            ],
        },
        chunks={number: () for number in changes.deleted_segments}
        | {segment.segment_id: list(segment.chunks) for segment in segments},
        counts={SEGMENTS: len(state.segments), WRITERS: len(state.writers), STREAMS: len(state.streams)},
        next_id=state.next_id,
    )


def chunk_differences(
    segment_id: int, *, stored: Sequence[ChunkRecord], wanted: Sequence[ChunkRecord]
) -> tuple[list[Key], list[Row]]:
    """Return the keys to remove and the rows to add to make the wanted chunks of the stored ones.

    Chunks are dropped at the front by truncation and come at the end by flushes, so the two lists share a middle part,
    which is left alone. What follows the first chunk that was replaced (by compaction) is written anew.
    """
    first = 0
    if wanted:
        while first < len(stored) and stored[first].start_offset < wanted[0].start_offset:
            first += 1
    shared = 0
    for shared_stored, shared_wanted in zip(islice(stored, first, None), wanted, strict=False):
        # By identity, which is exact enough: an equal record that is another object is merely written again.
        if shared_stored is not shared_wanted:
            break
        shared += 1
    removed: list[Key] = [(segment_id, chunk.start_offset) for chunk in stored[:first]]
    removed += [(segment_id, chunk.start_offset) for chunk in stored[first + shared :]]
    return removed, [_chunk_row(segment_id, chunk) for chunk in wanted[shared:]]


def _segment_row(segment: Segment) -> Row:
    return (
        segment.segment_id,
        segment.stream_id,
        segment.created_us,
        segment.start_offset,
        segment.length,
        segment.event_count,
        segment.flushed_offset,
        int(segment.sealed),
        segment.name,
    )


def _chunk_row(segment_id: int, chunk: ChunkRecord) -> Row:
    return (
        segment_id,
        chunk.start_offset,
        chunk.length,
        chunk.size,
        chunk.start_events,
        chunk.end_events,
        chunk.end_wall_time_us,
        chunk.name,
    )


def _damage_rows(segment: Segment) -> Iterator[Row]:
    for position, damage in enumerate(segment.damages):
        yield (segment.segment_id, position, damage.start, damage.end, damage.source)


def _progress_rows(state: ContainerState, pairs: Iterable[tuple[int, int]]) -> Iterator[Row]:
    for segment_id, writer_number in pairs:
        segment = state.segments.get(segment_id)
        if segment is not None and (progress := segment.writers.get(writer_number)) is not None:
            yield (segment_id, writer_number, progress.durable, progress.last_offset)


def _attribute_rows(state: ContainerState, pairs: Iterable[tuple[int, str]]) -> Iterator[Row]:
    for segment_id, key in pairs:
        segment = state.segments.get(segment_id)
        if segment is not None and (value := segment.attributes.get(key)) is not None:
            yield (segment_id, key, value)
