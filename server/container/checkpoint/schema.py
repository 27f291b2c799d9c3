"""The tables of a checkpoint, with a checksum in each row, and how each kind of thing is stored in them.

Each kind of thing is declared once, as a `Kind`; everything else about it is derived.

A checkpoint is a SQLite database. SQLite finds a torn page by no checksum of its own, and a flipped bit in a value by
nothing at all, so each row carries one, and the one row of `meta` knows how many rows each table has and the sum of
their checksums. So a row that is damaged, lost, doubled, moved to another table, or of an older version of its page (a
write that the disk lost) is noticed when the checkpoint is verified.

Format, version 4. Each table has integer columns (signed, 64 bits), then text columns, then blob columns, then
`checksum`. The checksum of a row is the CRC-32C, started with the number of the table instead of 0, of:

    offset   size   field
    0        8 k    the k integers, little-endian
    8 k      4      size in bytes of the first text, little-endian
    8 k + 4  ...    the first text in UTF-8; then the other texts and the blobs in the same way

For example the row of `writers` with writer_number 7, epoch 2, opened_us 1700000000000000, active_us a minute later,
expired_us 0, seen_uptime_us 5400000000 and writer_id "w1" is read as

    0700000000000000020000000000000000401e18240a060000c7b11b240a060000000000000000000076dd4101000000020000007731

and its checksum is 0x42839873. Key ranges use all 64 bits, without a sign; they are kept as 16 hexadecimal digits.
The row of `meta` is read in the same way. Its `..._count` and `..._sum` columns are kept by triggers, so that writing
rows need not read the rows that they replace.

Table `format` never changes its shape: any version can tell which version wrote the file.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import Any, Final, Generic, TypeVar

from millrace.model.checksum import crc32c
from millrace.model.key_range import KeyRange
from millrace.model.lineage import StreamPart
from millrace.model.sequence_row import SequenceRow
from millrace.server.container.memtable import LinkedExtent
from millrace.server.container.state.labels import labels_of
from millrace.server.container.state.segment import DamagedRange, Segment, WriterProgress
from millrace.server.container.state.sequences import Refusal, SequenceView, StreamProgress
from millrace.server.container.state.stream import Stream
from millrace.server.container.state.writer import Writer
from millrace.server.errors import CheckpointDamagedError
from millrace.server.tier2 import ChunkRecord, IndexEntry
from millrace.wire import messages as m

Entity = TypeVar("Entity")
Row = tuple[Any, ...]
"""The values of a row, without its checksum: int, str and bytes as its table declares them."""
Key = tuple[Any, ...]
"""The leading values of a row, at most its primary key."""

FORMAT_VERSION: Final = 4
PRODUCT: Final = "millrace checkpoint"


class Table:
    """A table of the checkpoint: its columns, and the checksum of its rows."""

    __slots__ = ("_integers", "_pack", "_texts_end", "columns", "create", "indexes", "key", "name", "number")

    def __init__(
        self,
        name: str,
        *,
        number: int,
        key: Sequence[str],
        integers: Sequence[str],
        texts: Sequence[str] = (),
        blobs: Sequence[str] = (),
        indexes: Sequence[Sequence[str]] = (),
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
        # By name, the columns that rows are also found by.
        self.indexes = {f"{name}_by_{index[0]}": tuple(index) for index in indexes}

    def key_of(self, row: Row) -> Row:
        """Return the primary key of a row."""
        return tuple(row[self.columns.index(column)] for column in self.key)

    def matches(self, row: Row, checksum: object) -> bool:
        """Return whether a row, given without its checksum, is what was written, whatever its values are."""
        try:
            return self.checksum(row) == checksum
        except (struct.error, TypeError, AttributeError):
            return False

    def checksum(self, row: Row) -> int:
        """Return the checksum of a row, given without it.

        Raises:
            struct.error, TypeError, AttributeError: a value is not of the type of its column.
        """
        data: bytes = self._pack(*row[: self._integers])
        for text in row[self._integers : self._texts_end]:
            encoded = text.encode()
            data += len(encoded).to_bytes(4, "little") + encoded
        for blob in row[self._texts_end :]:
            data += len(blob).to_bytes(4, "little") + blob
        return crc32c(data, self.number)


def checked_row(table: Table, row: Row, *, path: Path) -> Row:
    """Return a row, given with its checksum at the end, without it.

    Raises:
        CheckpointDamagedError: it is not what was written.
    """
    values, checksum = row[:-1], row[-1]
    if not table.matches(values, checksum):
        raise CheckpointDamagedError(
            f"a row of {table.name} does not match its checksum: {values[:2]}", subject=str(path)
        )
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail(Generic[Entity]):
    """A table with any number of rows for each entity of a kind; its first column is the number of the entity.

    Attributes:
        table: where they are.
        load: puts the rows of an entity, in the order of their keys, into it. Its number is left out of them. None if
            they are not loaded with it.
        rows: returns all rows of an entity, without its number: they are replaced whenever the entity has changed.
        row: returns the row of one key of an entity, None if it has none: for tables of which the state says what
            changed row by row (`ContainerState.touch`, by the name of the table), since an entity may have very many.
    """

    table: Table
    load: Callable[[Entity, list[Row]], None] | None = None
    rows: Callable[[Entity], Iterable[Row]] | None = None
    row: Callable[[Entity, Any], Row | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[Entity]):
    """A kind of things with a number and a name: all that a checkpoint has to know of it.

    From this follow the statements that make its tables, what a checkpoint stores of what changed, how an entity is
    read back, verification, and what `inspect` shows. What a cache of entities needs besides is in `ContainerState`.

    Attributes:
        table: with one row for each entity; its key is the number.
        name: the column with the name.
        row: returns the row of an entity.
        load: makes an entity of its row; its admitted view is the durable one.
        details: what else is stored of it.
    """

    table: Table
    name: str
    row: Callable[[Entity], Row]
    load: Callable[..., Entity]
    details: tuple[Detail[Entity], ...] = ()

    def restore(self, row: Row, rows_of: Callable[[Table], list[Row]]) -> Entity:
        """Return an entity from its row; `rows_of` returns its rows in another table, in the order of their keys."""
        entity = self.load(**dict(zip(self.table.columns[:-1], row, strict=True)))
        for detail in self.details:
            if detail.load is not None:
                detail.load(entity, [each[1:] for each in rows_of(detail.table)])
        return entity


def _kind_of(table: Table, **parts: Any) -> Kind[Any]:
    """Return a kind whose columns are attributes of the entity, by the same names."""
    return Kind(table=table, row=attrgetter(*table.columns[:-1]), **parts)


# --- segments ---


def _range_texts(low: int, last: int) -> tuple[str, str]:
    return f"{low:016x}", f"{last:016x}"


def _segment_row(segment: Segment) -> Row:
    keys = segment.keys
    return (*_segment_columns(segment), "" if keys is None else "".join(_range_texts(keys.low, keys.last)))


def _load_segment(*, sealed: int, keys: str, **columns: Any) -> Segment:
    key_range = KeyRange.inclusive(int(keys[:16], 16), int(keys[16:], 16)) if keys else None
    return Segment(sealed=bool(sealed), keys=key_range, **columns)


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


def _link_rows(segment: Segment) -> list[Row]:
    return [] if segment.link is None else [_link_row(segment.link)]


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
    value = segment.attributes.get(name)
    return None if value is None else (name, value)


def _load_attributes(segment: Segment, rows: list[Row]) -> None:
    segment.replace_attributes(dict(rows))


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


def link_of_row(row: Row) -> LinkedExtent:
    """Return where the bytes of a merged segment are."""
    return LinkedExtent(**dict(zip(_LINK_FIELDS, row, strict=True)))


_SEGMENT_INTEGERS: Final = (
    "segment_id", "stream_id", "created_us", "start_offset", "length", "event_count", "flushed_offset", "sealed",
)  # fmt: skip
_segment_columns: Final = attrgetter(*_SEGMENT_INTEGERS, "name")
SEGMENTS: Final[Kind[Segment]] = Kind(
    table=Table(
        "segments",
        number=3,
        key=["segment_id"],
        integers=_SEGMENT_INTEGERS,
        texts=["name", "keys"],  # the first and the last place of its key range; empty for a raw one
        indexes=[["name"]],
    ),
    name="name",
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
        Detail(table=PROGRESS, row=_row_of_progress, load=_load_progress),
        Detail(table=ATTRIBUTES, row=_row_of_attribute, load=_load_attributes),
        # Not loaded with the source: the state begins with all of them.
        Detail(table=LINKS, rows=_link_rows),
    ),
)

# --- writers ---

SEQUENCES: Final = Table(
    "sequences",
    number=14,
    key=["writer_number", "stream_id"],
    integers=[
        "writer_number", "stream_id", "stored_through", "is_plain", "refused_segment_id", "refused_first",
        "refused_through",
    ],
    blobs=["marks"],  # as `SequenceRow.encode_marks` makes them
    indexes=[["stream_id"]],
)  # fmt: skip
_NOT_REFUSED: Final = (0, -1, -1)


def _row_of_sequences(writer: Writer, stream_id: int) -> Row | None:
    progress = writer.streams.get(stream_id)
    if progress is None:
        return None
    view = progress.durable
    refusal = view.refusal or _NOT_REFUSED
    return (stream_id, view.row.through, view.is_plain, *refusal, view.row.encode_marks())


def _load_sequences(writer: Writer, rows: list[Row]) -> None:
    for stream_id, stored_through, is_plain, *refusal, marks in rows:
        view = SequenceView(
            SequenceRow.decode(stored_through, marks),
            is_plain=bool(is_plain),
            refusal=None if tuple(refusal) == _NOT_REFUSED else Refusal(*refusal),
        )
        writer.streams[stream_id] = StreamProgress(stream_id, view)


WRITERS: Final[Kind[Writer]] = _kind_of(
    Table(
        "writers",
        number=8,
        key=["writer_number"],
        integers=["writer_number", "epoch", "opened_us", "active_us", "expired_us", "seen_uptime_us"],
        texts=["writer_id"],
        blobs=["nonces"],
        indexes=[["writer_id"]],
    ),
    name="writer_id",
    load=Writer,
    details=(Detail(table=SEQUENCES, row=_row_of_sequences, load=_load_sequences),),
)

# --- streams ---


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _stream_row(stream: Stream) -> Row:
    parts = [
        (part.segment_id, *_range_texts(part.key_range.low, part.key_range.last), part.epoch, part.sealed_epoch)
        for part in stream.parts
    ]
    epochs = [
        (
            epoch.number,
            epoch.started_us,
            epoch.cause,
            list(epoch.sealed_ids),
            [(segment_id, *_range_texts(low, last)) for segment_id, low, last in epoch.created],
        )
        for epoch in stream.epochs
    ]
    return (
        stream.stream_id,
        stream.created_us,
        stream.epoch,
        stream.sealed,
        stream.name,
        stream.configuration,
        _json(parts),
        _json(epochs),
    )


def _load_stream(*, sealed: int, parts: str, epochs: str, **columns: Any) -> Stream:
    stream = Stream(sealed=bool(sealed), **columns)
    stream.parts = [
        StreamPart(
            segment_id=segment_id,
            key_range=KeyRange.inclusive(int(low, 16), int(last, 16)),
            epoch=epoch,
            sealed_epoch=sealed_epoch,
        )
        for segment_id, low, last, epoch, sealed_epoch in json.loads(parts)
    ]
    stream.epochs = [
        m.EpochRecord(
            number=number,
            started_us=started_us,
            cause=cause,
            sealed_ids=sealed_ids,
            created=[
                m.SegmentRangeRecord(segment_id, int(low, 16), int(last, 16)) for segment_id, low, last in created
            ],
        )
        for number, started_us, cause, sealed_ids, created in json.loads(epochs)
    ]
    return stream


def _load_cuts(stream: Stream, rows: list[Row]) -> None:
    for kind, saved_us, name, positions in rows:
        stream.cuts[kind, name] = m.SavedCut(
            kind, name, saved_us, [m.SavedPosition(*position) for position in json.loads(positions)]
        )


LABELS: Final = Table(
    "labels",
    number=10,
    key=["stream_id", "label"],
    integers=["stream_id"],
    texts=["label", "name"],
    indexes=[["label", "name"]],
)
CUTS: Final = Table(
    "cuts",
    number=13,
    key=["stream_id", "kind", "name"],
    integers=["stream_id", "kind", "saved_us"],
    texts=["name", "positions"],  # the positions as JSON
)
STREAMS: Final[Kind[Stream]] = Kind(
    table=Table(
        "streams",
        number=9,
        key=["stream_id"],
        integers=["stream_id", "created_us", "epoch", "sealed"],
        texts=["name", "configuration", "parts", "epochs"],  # the lists as JSON, key ranges in hexadecimal digits
        indexes=[["name"]],
    ),
    name="name",
    row=_stream_row,
    load=_load_stream,
    details=(
        Detail(
            table=LABELS,
            rows=lambda stream: ((label, stream.name) for label in sorted(labels_of(stream.configuration))),
        ),
        Detail(
            table=CUTS,
            rows=lambda stream: (
                (cut.kind, cut.saved_us, cut.name, _json(cut.positions)) for cut in stream.cuts.values()
            ),
            load=_load_cuts,
        ),
    ),
)

# --- everything ---

KINDS: Final[tuple[Kind[Any], ...]] = (SEGMENTS, WRITERS, STREAMS)
TABLES: Final = tuple(table for kind in KINDS for table in (kind.table, *(detail.table for detail in kind.details)))
"""The tables of what a container knows."""

FORMAT: Final = Table("format", number=1, key=["version"], integers=["version"], texts=["product"])
META_NUMBERS: Final = (
    "sequence",
    "replay_from",
    "container_epoch",
    "next_id",
    "uptime_us",
    "wall_time_us",
    "accepted_sequence",
    "accepted_file_number",
    "log_capacity_bytes",
)
META: Final = Table(
    "meta",
    number=2,
    key=["id"],
    integers=["id", *META_NUMBERS, *(f"{table.name}_{figure}" for table in TABLES for figure in ("count", "sum"))],
    texts=["clock_history"],  # the last reading, and pairs of uptime and Unix time, as JSON
)


def schema() -> Iterator[str]:
    """Yield the statements that make the tables and triggers of an empty checkpoint."""
    for table in (FORMAT, META, *TABLES):
        yield table.create
    for table in TABLES:
        for name, columns in table.indexes.items():
            yield f"CREATE INDEX {name} ON {table.name} ({', '.join(columns)})"
    for table in TABLES:
        count, total = f"{table.name}_count", f"{table.name}_sum"
        for event, sign, row in (("INSERT", "+", "NEW"), ("DELETE", "-", "OLD")):
            yield (
                f"CREATE TRIGGER {table.name}_{event.lower()} AFTER {event} ON {table.name} BEGIN UPDATE meta "  # noqa: S608  # our own names
                f"SET {count} = {count} {sign} 1, {total} = {total} {sign} {row}.checksum; END"
            )
