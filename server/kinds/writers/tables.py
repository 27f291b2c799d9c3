"""The checkpoint tables of writers."""

from typing import Final

from millrace.model.sequence_row import SequenceRow
from millrace.server.container.checkpoint.reader import KindArchive
from millrace.server.container.kind import Detail
from millrace.server.container.state.sequences import SequenceRefusal, SequenceView, StreamProgress
from millrace.server.container.state.writer import Writer, WriterRow
from millrace.server.container.table import Row, Table

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
            refusal=None if tuple(refusal) == _NOT_REFUSED else SequenceRefusal(*refusal),
        )
        writer.streams[stream_id] = StreamProgress(stream_id, view)


TABLE: Final = Table(
    "writers",
    number=8,
    key=["writer_number"],
    integers=["writer_number", "epoch", "opened_us", "active_us", "expired_us", "seen_uptime_us"],
    texts=["writer_id"],
    blobs=["nonces"],
    indexes=[["writer_id"]],
)


def row_of(writer: Writer) -> Row:
    """Return the row of a writer."""
    row = writer.row
    return (
        row.number,
        row.epoch,
        row.opened_us,
        writer.active_us,
        row.expired_us,
        writer.seen_uptime_us,
        row.writer_id,
        row.nonces,
    )


def load(
    *,
    writer_number: int,
    epoch: int,
    opened_us: int,
    active_us: int,
    expired_us: int,
    seen_uptime_us: int,
    writer_id: str,
    nonces: bytes,
) -> Writer:
    """Return a writer from the columns of its row."""
    row = WriterRow(
        number=writer_number,
        writer_id=writer_id,
        epoch=epoch,
        opened_us=opened_us,
        expired_us=expired_us,
        nonces=nonces,
    )
    return Writer(row, active_us=active_us, seen_uptime_us=seen_uptime_us)


DETAILS: Final[tuple[Detail[Writer], ...]] = (
    Detail(table=SEQUENCES, row=_row_of_sequences, load=_load_sequences, forget_column="stream_id"),
)


class WriterArchive(KindArchive[Writer]):
    """The writers of a checkpoint."""

    def idle(self, *, before_uptime_us: int, marks_before_uptime_us: int, after: int, count_max: int) -> list[int]:
        """Return the numbers above `after` of writers, and of marks, that were seen last before these uptimes."""
        return self._reader.column(
            "SELECT writer_number FROM writers WHERE writer_number > ? AND seen_uptime_us < iif(expired_us, ?, ?) "
            f"ORDER BY writer_number LIMIT {count_max}",
            [after, marks_before_uptime_us, before_uptime_us],
        )

    def marks_seen_from(self, *, newest_count: int) -> int:
        """Return the uptime when the oldest of so many marks was made, the newest ones; 0 if there are fewer."""
        found = self._reader.column(
            "SELECT seen_uptime_us FROM writers WHERE expired_us > 0 "
            f"ORDER BY seen_uptime_us DESC LIMIT 1 OFFSET {newest_count - 1}"
        )
        return found[0] if found else 0
