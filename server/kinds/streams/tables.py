"""The checkpoint tables of streams."""

import json
from itertools import takewhile
from typing import Any, Final

from millrace.model.event_times import EventTimeBounds
from millrace.model.lineage import StreamPart
from millrace.server.container.checkpoint.reader import KindArchive
from millrace.server.container.kind import Detail
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.labels import LABEL_TIMES, config_of, labels_of
from millrace.server.container.state.stream import EPOCH_ROW, PART_ROW, Stream, epoch_key, part_key
from millrace.server.container.table import Row, Table, json_text, places_of_texts, range_of_texts, range_texts
from millrace.wire import messages as m

TABLE: Final = Table(
    "streams",
    number=9,
    key=["stream_id"],
    integers=["stream_id", "created_us", "epoch", "sealed"],
    # The lists, as JSON with key ranges in hexadecimal digits, are empty but in folders of earlier versions. A
    # stream is stored whole once when it is read from such a row: see `CUTS`.
    texts=["name", "configuration", "parts", "epochs"],
    indexes=[["name"]],
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
    integers=["stream_id", "kind", "saved_us", "hold_s"],
    texts=["name", "positions"],  # the positions as JSON
)
"""Saved cuts, and the parts and epochs of streams.

A row of kind `PART_ROW` is a part: its id as the name, the epochs that created and replaced it as `saved_us` and
`hold_s`, its key range as the positions, and a 1 if it held nothing when it was replaced. A row of kind `EPOCH_ROW` is
an epoch: its number as the name, its start as `saved_us`, its cause and its segments as the positions. They have no
table of their own, so folders without these rows are as they were.
"""
_NOTHING: Final = "[]"


def row_of(stream: Stream) -> Row:
    """Return the row of a stream."""
    return (
        stream.stream_id,
        stream.created_us,
        stream.epoch,
        stream.sealed,
        stream.name,
        stream.configuration,
        _NOTHING,
        _NOTHING,
    )


def load(*, sealed: int, parts: str, epochs: str, **columns: Any) -> Stream:
    """Return a stream from the columns of its row."""
    stream = Stream(sealed=bool(sealed), **columns)
    if epochs == _NOTHING:
        return stream
    stream.has_rows = False
    stream.parts = [
        StreamPart(
            segment_id=segment_id,
            key_range=range_of_texts(low, last),
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
                m.SegmentRangeRecord(segment_id, *places_of_texts(low, last)) for segment_id, low, last in created
            ],
        )
        for number, started_us, cause, sealed_ids, created in json.loads(epochs)
    ]
    return stream


def _row_of_key(stream: Stream, key: tuple[int, str]) -> Row | None:
    kind, name = key
    if kind == PART_ROW:
        part = stream.part(int(name))
        return None if part is None else _part_row(part, key, is_empty=stream.is_empty(part.segment_id))
    if kind == EPOCH_ROW:
        epoch = stream.epoch_record(int(name))
        return None if epoch is None else _epoch_row(epoch, key)
    cut = stream.cuts.get(key)
    return None if cut is None else (cut.kind, cut.saved_us, cut.hold_s, cut.name, json_text(cut.positions))


def _part_row(part: StreamPart, key: tuple[int, str], *, is_empty: bool) -> Row:
    kind, name = key
    places = range_texts(part.key_range.low, part.key_range.last)
    return kind, part.epoch, part.sealed_epoch, name, json_text((*places, 1) if is_empty else places)


def _part_of_row(epoch: int, sealed_epoch: int, name: str, content: str) -> tuple[StreamPart, bool]:
    """Return a part, and whether it held nothing when it was replaced."""
    low, last, *is_empty = json.loads(content)
    key_range = range_of_texts(low, last)
    return StreamPart(segment_id=int(name), key_range=key_range, epoch=epoch, sealed_epoch=sealed_epoch), bool(is_empty)


def _epoch_row(epoch: m.EpochRecord, key: tuple[int, str]) -> Row:
    kind, name = key
    created = [(segment_id, *range_texts(low, last)) for segment_id, low, last in epoch.created]
    return kind, epoch.started_us, 0, name, json_text((epoch.cause, list(epoch.sealed_ids), created))


def _epoch_of_row(started_us: int, name: str, content: str) -> m.EpochRecord:
    cause, sealed_ids, created = json.loads(content)
    segments = [m.SegmentRangeRecord(segment_id, *places_of_texts(low, last)) for segment_id, low, last in created]
    return m.EpochRecord(int(name), started_us, cause, sealed_ids, segments)


def _load_rows(stream: Stream, rows: list[Row]) -> None:
    parts: list[tuple[StreamPart, bool]] = []
    for kind, saved_us, hold_s, name, content in rows:
        if kind == PART_ROW:
            parts.append(_part_of_row(saved_us, hold_s, name, content))
        elif kind == EPOCH_ROW:
            stream.epochs.append(_epoch_of_row(saved_us, name, content))
        else:
            places = [m.SavedPosition(*position) for position in json.loads(content)]
            stream.cuts[kind, name] = m.SavedCut(kind, name, saved_us, places, hold_s)
    if stream.has_rows:
        stream.parts = sorted((part for part, _ in parts), key=lambda part: (part.epoch, part.segment_id))
        for part, is_empty in parts:
            if is_empty:
                stream.mark_empty(part.segment_id)


def _take_unwritten(stream: Stream) -> list[tuple[int, str]]:
    if stream.has_rows:
        return []
    stream.has_rows = True
    return [*map(part_key, stream.segment_ids), *(epoch_key(epoch.number) for epoch in stream.epochs)]


class StreamArchive(KindArchive[Stream]):
    """The streams of a checkpoint."""

    def labelled(self, label: str, *, prefix: str = "", after: str, count_max: int) -> list[tuple[str, int]]:
        """Return names and numbers of the streams with a label, by name, above `after`."""
        found = self._reader.rows(
            LABELS, f"label = ? AND name > ? AND name >= ? ORDER BY name LIMIT {count_max}", [label, after, prefix]
        )
        return [(name, stream_id) for stream_id, _, name in takewhile(lambda row: row[2].startswith(prefix), found)]

    def with_cursors(self) -> list[int]:
        """Return the numbers of the streams that have cursors."""
        return self._reader.column("SELECT DISTINCT stream_id FROM cuts WHERE kind = ?", [m.CutKind.CURSOR])

    def event_times(self) -> dict[int, EventTimeBounds]:
        """Return the bounds of event times of the streams that have some, by stream id."""
        rows = self._reader.rows(TABLE, "stream_id IN (SELECT stream_id FROM labels WHERE label = ?)", [LABEL_TIMES])
        number, configuration = TABLE.columns.index("stream_id"), TABLE.columns.index("configuration")
        found = ((row[number], config_of(row[configuration]).event_times) for row in rows)
        return {stream_id: bounds for stream_id, bounds in found if bounds is not None}


DETAILS: Final[tuple[Detail[Stream], ...]] = (
    Detail(
        table=LABELS,
        rows=lambda stream: ((label, stream.name) for label in sorted(labels_of(stream.configuration))),
    ),
    Detail(table=CUTS, row=_row_of_key, load=_load_rows, take_unwritten=_take_unwritten),
)


def restore_state(state: ContainerState, archive: StreamArchive) -> None:
    """Keep the bounds of event times of all streams in memory, so that an append is checked without its stream."""
    state.event_times = archive.event_times()
