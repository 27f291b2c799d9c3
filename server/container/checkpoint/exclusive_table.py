"""The checkpoint table of exclusive writers.

They are no detail of the streams: the state begins with all of them, and changes them without the stream or the writer.
"""

from typing import Final

from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.server.container.table import Row, Table

from .reader import CheckpointReader

EXCLUSIVE_WRITERS: Final = Table(
    "exclusive_writers",
    number=17,
    key=["stream_id"],
    integers=["stream_id", "writer_number", "writer_epoch", "since_us"],
    texts=["writer_id"],
)


def exclusive_writer_row(stream_id: int, writer: ExclusiveWriter) -> Row:
    """Return the row of the exclusive writer of a stream."""
    return (stream_id, writer.number, writer.epoch, writer.since_us, writer.writer_id)


def stored_exclusive_writers(reader: CheckpointReader) -> dict[int, ExclusiveWriter]:
    """Return the exclusive writers of streams, by stream id."""
    rows = reader.rows(EXCLUSIVE_WRITERS, "TRUE ORDER BY stream_id", [])
    return {
        stream_id: ExclusiveWriter(number, epoch, writer_id, since_us)
        for stream_id, number, epoch, since_us, writer_id in rows
    }
