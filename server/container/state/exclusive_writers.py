"""The exclusive writers of streams, and the step by which records change them.

An exclusive writer is a row of its stream: the stream takes appends from that writer alone. What ends the stream, or
the writer, ends the row, by the same record.

All rows are in memory in both views, so that an append is checked without loading anything, and a stream without an
exclusive writer costs nothing; how many there may be is bounded.
"""

from collections.abc import Collection, Mapping
from typing import Final

from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.server.container.kind import Applier
from millrace.server.container.views import move, move_all
from millrace.wire import messages as m

from .current_batch import CurrentBatch

EXCLUSIVE_WRITERS_COUNT_MAX: Final = 65_536
"""Streams of one container that may have an exclusive writer; each takes about 400 bytes of memory."""

ExclusiveRecord = m.WriterRecorded | m.ExclusiveReleased | m.WritersExpired | m.StreamSealed | m.StreamDeleted
"""A record after which a stream may have another exclusive writer, or none."""


def step(row: ExclusiveWriter | None, record: ExclusiveRecord) -> ExclusiveWriter | None:
    """Return the exclusive writer of a stream after a record, None for none."""
    match record:
        case m.WriterRecorded():
            return ExclusiveWriter(record.writer_number, record.writer_epoch, record.writer_id, record.opened_us)
        case m.ExclusiveReleased():
            # A release that comes after a takeover does not release the new writer.
            is_held = row is not None and (row.number, row.epoch) == (record.writer_number, record.writer_epoch)
            return None if is_held else row
        case m.WritersExpired() | m.StreamSealed() | m.StreamDeleted():
            return None


def held_by(rows: Mapping[int, ExclusiveWriter], numbers: Collection[int]) -> list[int]:
    """Return the ids of the streams that some writers have."""
    return [stream_id for stream_id, row in rows.items() if row.number in numbers]


def _opened(batch: CurrentBatch, record: m.WriterRecorded) -> None:
    if record.is_exclusive:
        move(batch.view.exclusive_writers, record.stream_id, step, record)


def _ended(batch: CurrentBatch, record: m.ExclusiveReleased | m.StreamSealed | m.StreamDeleted) -> None:
    move(batch.view.exclusive_writers, record.stream_id, step, record)


def _expired(batch: CurrentBatch, record: m.WritersExpired) -> None:
    rows = batch.view.exclusive_writers
    if rows:
        move_all(rows, held_by(rows, {*record.marked, *record.forgotten}), step, record)


TRANSITIONS: Final[Mapping[type[m.Record], Applier]] = {
    m.WriterRecorded: _opened,
    m.ExclusiveReleased: _ended,
    m.WritersExpired: _expired,
    m.StreamSealed: _ended,
    m.StreamDeleted: _ended,
}
