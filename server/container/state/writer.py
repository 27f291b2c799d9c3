"""The state of one writer in memory, and the steps by which records change its row."""

from dataclasses import dataclass, replace
from typing import Final

from millrace.server.container.entity_cache import EntityCache
from millrace.server.container.views import AdmittedView, EntityRows
from millrace.wire import messages as m

from .sequences import SequenceView, StreamProgress

NONCES_KEPT: Final = 4
"""So many openings later, a request that was under way for so long is taken for a new opening."""
WRITER_SIZE_BYTES: Final = 800
STREAM_SIZE_BYTES: Final = 1200
PIECE_SIZE_BYTES: Final = 160
"""Memory of a writer, of a stream that it has sequences on, and of a piece of its row there (measured, rounded up)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterRow:
    """A writer: its number forever, its epoch now; or the mark that is left of a named one that has expired.

    A number identifies what was stored under it: after the expiry its name continues under another number, and under
    epochs above those before.

    Attributes:
        writer_id: empty for an unnamed one.
        expired_us: when its state expired, by the wall clock; 0 while it has not.
        nonces: of the requests that opened it last, the newest at the end: one that comes again is no other opening.
    """

    number: int
    writer_id: str
    epoch: int
    opened_us: int
    expired_us: int = 0
    nonces: bytes = b""

    def with_epoch(self, epoch: int, *, nonce: bytes = m.NO_NONCE) -> "WriterRow":
        """Return the row under a higher epoch; this row if the epoch is not higher."""
        if epoch <= self.epoch:
            return self
        return replace(self, epoch=epoch, nonces=with_nonce(self.nonces, nonce))


def opened(row: WriterRow | None, record: m.WriterRecorded) -> WriterRow:
    """Return the row of a writer after it was opened."""
    if row is None:
        return WriterRow(
            number=record.writer_number,
            writer_id=record.writer_id,
            epoch=record.writer_epoch,
            opened_us=record.opened_us,
            nonces=with_nonce(b"", record.nonce),
        )
    return replace(row.with_epoch(record.writer_epoch, nonce=record.nonce), opened_us=record.opened_us)


def fenced(row: WriterRow | None, record: m.WriterRecorded | m.ExclusiveReleased) -> WriterRow | None:
    """Return the row of a writer that lost a stream: it has an epoch of which nobody knows, unless the record has 0."""
    return None if row is None else row.with_epoch(record.fenced_epoch)


def reset(row: WriterRow | None, record: m.SequencesReset) -> WriterRow | None:
    """Return the row of a writer after its sequences were reset."""
    return None if row is None else row.with_epoch(record.writer_epoch)


def marked(row: WriterRow | None, record: m.WritersExpired) -> WriterRow | None:
    """Return the mark that is left of a named writer."""
    return None if row is None else replace(row, expired_us=record.expired_us)


class Writer(EntityRows[WriterRow]):
    """A writer in memory. Appends move what is not in its rows.

    Attributes:
        active_us: its last durable append or open, by the wall clock; moved only once in `ACTIVITY_STEP_US`.
        seen_uptime_us: the uptime that was counted when it was active or expired last: its age, which no clock changes.
        streams: how far it is on each stream that it was opened for, if it has a name.
    """

    __slots__ = ("active_us", "seen_uptime_us", "streams")

    def __init__(self, row: WriterRow, *, active_us: int = 0, seen_uptime_us: int = 0) -> None:
        super().__init__(row.number, row.writer_id, row)
        self.active_us = active_us or row.opened_us
        self.seen_uptime_us = seen_uptime_us
        self.streams: dict[int, StreamProgress] = {}

    @property
    def writer_number(self) -> int:
        """The number of the writer."""
        return self.number

    @property
    def writer_id(self) -> str:
        """The name of the writer, empty if it has none."""
        return self.name

    def on_stream(self, stream_id: int) -> StreamProgress:
        """Return how far it is on a stream, from now on also where it never was."""
        progress = self.streams.get(stream_id)
        if progress is None:
            progress = self.streams[stream_id] = StreamProgress(stream_id)
        return progress

    def admit_as_durable(self) -> None:
        """Implement `EntityRows`."""
        super().admit_as_durable()
        for progress in self.streams.values():
            progress.admit_as_durable()

    @property
    def memory_bytes(self) -> int:
        """About how much memory this takes."""
        pieces = sum(progress.durable.row.piece_count for progress in self.streams.values())
        return (
            WRITER_SIZE_BYTES + len(self.writer_id) + STREAM_SIZE_BYTES * len(self.streams) + PIECE_SIZE_BYTES * pieces
        )


def admitted_sequences(
    writers: AdmittedView[WriterRow, Writer], writer_number: int, stream_id: int
) -> SequenceView | None:
    """Return how far a writer is on a stream with all that is in flight; None if there is no such writer."""
    writer = writers.entity(writer_number)
    return None if writer is None else writer.on_stream(stream_id).admitted


def durable_sequences(writers: EntityCache[Writer], writer_number: int, stream_id: int) -> SequenceView | None:
    """Return what is durable of a writer on a stream; None if there is no such writer."""
    writer = writers.loaded(writer_number)
    return None if writer is None else writer.on_stream(stream_id).durable


def with_nonce(nonces: bytes, nonce: bytes) -> bytes:
    """Return the nonces that are remembered after an opening."""
    return (nonces + nonce)[-NONCES_KEPT * len(m.NO_NONCE) :]


def is_among(nonces: bytes, nonce: bytes) -> bool:
    """Return whether a nonce is remembered; zeros, which are none, never are."""
    size = len(nonce)
    return nonce != m.NO_NONCE and nonce in (nonces[start : start + size] for start in range(0, len(nonces), size))
