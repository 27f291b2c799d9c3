"""What records about writers, and their appends, do to the state."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from millrace.model.sequence_row import NO_SEQUENCE
from millrace.server.container.kind import RecordStep
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun

from .clock_history import ClockReading
from .current_batch import EPOCH_MAX, CurrentBatch
from .exclusive_writers import held_by
from .quarantine import CONTAINER
from .segment import Segment, WriterProgress
from .sequences import SequenceRefusal, SequenceView
from .writer import Writer, with_nonce

UPTIME_US_MAX: Final = 1 << 62
"""No servers run for so long: what is added to it can still be stored."""
ACTIVITY_STEP_US: Final = 60_000_000
"""A busy writer is stored again this often, not with every checkpoint; `active_us` may be that much too early."""


def advance(batch: CurrentBatch, segment: Segment, run: AppendRun) -> None:
    """Record how far a writer is in a segment after a run."""
    state = batch.state
    progress = segment.writers.get(run.writer_number)
    if progress is None:
        progress = segment.writers[run.writer_number] = WriterProgress()
    progress.durable = max(progress.durable, run.last_event_number)
    progress.last_offset = run.last_append_offset
    state.touch("progress", segment.segment_id, run.writer_number)
    writer = state.writers.loaded(run.writer_number)
    if writer is None:
        return  # damage has taken its record
    # Seldom, as its row is stored again each time.
    if (
        writer.seen_uptime_us != state.scalars.uptime_us
        or abs(batch.wall_time_us - writer.active_us) >= ACTIVITY_STEP_US
    ):
        writer.active_us = batch.wall_time_us
        writer.seen_uptime_us = state.scalars.uptime_us
        state.writers.changed(writer)
    if not segment.stream_id:
        return
    if run.sequences is not None:
        writer.on_stream(segment.stream_id).durable.store(segment, run.sequences)
        state.touch_sequences(writer, segment.stream_id)
    elif writer.streams:
        _advance_plain(batch, writer, segment.stream_id)


def _advance_plain(batch: CurrentBatch, writer: Writer, stream_id: int) -> None:
    """Record that events without sequences were stored."""
    progress = writer.streams.get(stream_id)
    if progress is not None and not progress.durable.is_plain:
        progress.durable.is_plain = True
        batch.state.touch_sequences(writer, stream_id)


def _check_recorded(batch: CurrentBatch, record: m.WriterRecorded) -> None:
    number = record.writer_number
    _check_epoch(batch, number, record.writer_epoch)
    _check_epoch(batch, record.fenced_number, record.fenced_epoch)
    if record.is_exclusive and not record.stream_id:  # it would exclude all others from every raw segment
        raise batch.unfit("writers", number, "it is to be an exclusive writer without a stream")
    writer = batch.state.writers.loaded(number)
    if writer is None:
        batch.check_number("writers", number)
    elif writer.writer_id != record.writer_id:
        raise batch.unfit("writers", number, f"it is {writer.writer_id!r}, and not {record.writer_id!r}")


def _writer_recorded(batch: CurrentBatch, record: m.WriterRecorded) -> None:
    state = batch.state
    writer = state.writers.loaded(record.writer_number)
    if writer is None:
        before = state.writers.find(record.writer_id)
        if before is not None:
            if not before.expired_us:  # damage has taken the record that says so
                state.forget_progress([before.writer_number])
                for stream_id in held_by(batch.view.exclusive_writers, [before.writer_number]):
                    batch.view.exclusive_writers.put(stream_id, None)
            state.writers.remove(before.writer_number)
            state.quarantine.discard("writers", before.writer_number)
        writer = state.admitted_writers.pop(record.writer_id, None)
        if writer is None:
            # An unnamed one, which nobody can find before this.
            writer = Writer(
                writer_number=record.writer_number,
                writer_id=record.writer_id,
                epoch=record.writer_epoch,
                nonces=with_nonce(b"", record.nonce),
                opened_us=record.opened_us,
            )
        state.use_id(writer.writer_number)
        state.writers.add(writer)
    _begin_epoch(writer, record.writer_epoch, nonce=record.nonce)
    writer.opened_us = writer.active_us = record.opened_us
    writer.seen_uptime_us = state.scalars.uptime_us
    state.writers.changed(writer)
    if record.stream_id and writer.writer_id:
        view = writer.on_stream(record.stream_id).durable
        view.is_plain = view.is_plain or bool(record.is_plain)
        state.touch_sequences(writer, record.stream_id)
    if record.is_exclusive:
        _fence(batch, record.fenced_number, record.fenced_epoch)


def _check_epoch(batch: CurrentBatch, writer_number: int, epoch: int) -> None:
    """Raise if a writer cannot have an epoch: the next one must fit a record, too."""
    if epoch > EPOCH_MAX:
        raise batch.unfit("writers", writer_number, f"it is to have epoch {epoch}, above {EPOCH_MAX}")


def _check_released(batch: CurrentBatch, record: m.ExclusiveReleased) -> None:
    _check_epoch(batch, record.writer_number, record.fenced_epoch)


def _exclusive_released(batch: CurrentBatch, record: m.ExclusiveReleased) -> None:
    _fence(batch, record.writer_number, record.fenced_epoch)


def _fence(batch: CurrentBatch, writer_number: int, epoch: int) -> None:
    """Give a writer another epoch, of which nobody knows; 0 is none."""
    writer = batch.state.writers.loaded(writer_number)
    if writer is not None and epoch > writer.epoch:
        _begin_epoch(writer, epoch, nonce=m.NO_NONCE)
        batch.state.writers.changed(writer)


def _changing_sequences(
    change: Callable[[SequenceView, Any], object],
) -> Callable[[CurrentBatch, Any], None]:
    """Return what applies a record about a writer on a stream; one that damage has made unknown is left aside."""

    def apply(batch: CurrentBatch, record: Any) -> None:
        writer = batch.state.writers.loaded(record.writer_number)
        if writer is not None:
            change(writer.on_stream(record.stream_id).durable, record)
            batch.state.touch_sequences(writer, record.stream_id)

    return apply


def _stored_told(view: SequenceView, record: m.StoredTold) -> None:
    view.row.raise_through(record.stored_below)


def _sequences_refused(view: SequenceView, record: m.SequencesRefused) -> None:
    view.refusal = view.refusal or SequenceRefusal(record.segment_id, record.first_sequence, record.stored_through)


def _check_reset(batch: CurrentBatch, record: m.SequencesReset) -> None:
    number = record.writer_number
    _check_epoch(batch, number, record.writer_epoch)
    if record.stored_through < NO_SEQUENCE:
        raise batch.unfit("writers", number, f"it is to resume after sequence {record.stored_through}")


def _sequences_reset(batch: CurrentBatch, record: m.SequencesReset) -> None:
    writer = batch.state.writers.loaded(record.writer_number)
    if writer is not None:
        _begin_epoch(writer, record.writer_epoch, nonce=m.NO_NONCE)
        writer.on_stream(record.stream_id).durable.reset(record.stored_through)
        batch.state.touch_sequences(writer, record.stream_id)


def _begin_epoch(writer: Writer, epoch: int, *, nonce: bytes) -> None:
    if epoch > writer.epoch:
        writer.epoch = epoch
        writer.nonces = with_nonce(writer.nonces, nonce)


def _writers_expired(batch: CurrentBatch, record: m.WritersExpired) -> None:
    state = batch.state
    state.forget_progress([*record.marked, *record.forgotten])
    for number in record.marked:
        writer = state.writers.loaded(number)
        if writer is not None:
            writer.expired_us = record.expired_us
            writer.seen_uptime_us = state.scalars.uptime_us
            for stream_id in writer.streams:
                state.touch_sequences(writer, stream_id)
            writer.streams.clear()
            state.writers.changed(writer)
    for number in record.forgotten:
        state.writers.remove(number)
        state.quarantine.discard("writers", number)
    for number in (*record.marked, *record.forgotten):
        state.expiring_writers.pop(number, None)


def _check_uptime(batch: CurrentBatch, record: m.UptimeCounted) -> None:
    if record.uptime_us > UPTIME_US_MAX:
        raise batch.unfit(CONTAINER, 0, f"servers ran for {record.uptime_us} us, longer than {UPTIME_US_MAX}")


def _uptime_counted(batch: CurrentBatch, record: m.UptimeCounted) -> None:
    scalars = batch.state.scalars
    if record.uptime_us >= scalars.uptime_us:
        scalars.uptime_us = record.uptime_us
        scalars.clock_history.observe(ClockReading(record.uptime_us, record.unix_us, record.monotonic_us, record.boot))


RECORDS: Final[Mapping[type[m.Record], RecordStep]] = {
    m.WriterRecorded: RecordStep(_writer_recorded, check=_check_recorded),
    m.WritersExpired: RecordStep(_writers_expired, removes=True),
    m.UptimeCounted: RecordStep(_uptime_counted, check=_check_uptime),
    m.ExclusiveReleased: RecordStep(_exclusive_released, check=_check_released, removes=True),
    m.StoredTold: RecordStep(_changing_sequences(_stored_told)),
    m.SequencesRefused: RecordStep(_changing_sequences(_sequences_refused)),
    m.SequencesReset: RecordStep(_sequences_reset, check=_check_reset),
}
