"""How streams are stored in a checkpoint."""

import json
from typing import Any, Final

from millrace.model.lineage import StreamPart
from millrace.server.container.state.labels import labels_of
from millrace.server.container.state.stream import Stream
from millrace.wire import messages as m

from .kind import Detail, Kind
from .table import Row, Table, json_text, places_of_texts, range_of_texts, range_texts

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


def _stream_row(stream: Stream) -> Row:
    parts = [
        (part.segment_id, *range_texts(part.key_range.low, part.key_range.last), part.epoch, part.sealed_epoch)
        for part in stream.parts
    ]
    epochs = [
        (
            epoch.number,
            epoch.started_us,
            epoch.cause,
            list(epoch.sealed_ids),
            [(segment_id, *range_texts(low, last)) for segment_id, low, last in epoch.created],
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
        json_text(parts),
        json_text(epochs),
    )


def _load_stream(*, sealed: int, parts: str, epochs: str, **columns: Any) -> Stream:
    stream = Stream(sealed=bool(sealed), **columns)
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


def _load_cuts(stream: Stream, rows: list[Row]) -> None:
    for kind, saved_us, hold_s, name, positions in rows:
        places = [m.SavedPosition(*position) for position in json.loads(positions)]
        stream.cuts[kind, name] = m.SavedCut(kind, name, saved_us, places, hold_s)


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
                (cut.kind, cut.saved_us, cut.hold_s, cut.name, json_text(cut.positions)) for cut in stream.cuts.values()
            ),
            load=_load_cuts,
        ),
    ),
)
