"""Applies records about writers to either view of the state."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from millrace.model.sequence_row import NO_SEQUENCE
from millrace.server.container.kind import Applier, RecordStep
from millrace.server.container.state.clock_history import ClockReading
from millrace.server.container.state.current_batch import EPOCH_MAX, CurrentBatch
from millrace.server.container.state.exclusive_writers import held_by
from millrace.server.container.state.quarantine import CONTAINER
from millrace.server.container.state.segment_admission import require
from millrace.server.container.state.sequences import SequenceRefusal, SequenceView
from millrace.server.container.state.writer import WriterRow, fenced, marked, opened, reset
from millrace.server.container.views import NamedView, move, move_all
from millrace.wire import messages as m

UPTIME_US_MAX: Final = 1 << 62
"""No servers run for so long: what is added to it can still be stored."""


def _check_recorded(batch: CurrentBatch, record: m.WriterRecorded) -> None:
    number = record.writer_number
    _check_epoch(batch, number, record.writer_epoch)
    _check_epoch(batch, record.fenced_number, record.fenced_epoch)
    if record.is_exclusive and not record.stream_id:  # it would exclude all others from every raw segment
        raise batch.unfit("writers", number, "it is to be an exclusive writer without a stream")
    row = batch.view.writers.get(number)
    if row is None:
        batch.check_number("writers", number)
    elif row.writer_id != record.writer_id:
        raise batch.unfit("writers", number, f"it is {row.writer_id!r}, and not {record.writer_id!r}")


def _check_epoch(batch: CurrentBatch, writer_number: int, epoch: int) -> None:
    """Raise if a writer cannot have an epoch: the next one must fit a record, too."""
    if epoch > EPOCH_MAX:
        raise batch.unfit("writers", writer_number, f"it is to have epoch {epoch}, above {EPOCH_MAX}")


def _admit_epoch(batch: CurrentBatch, record: m.WriterRecorded | m.SequencesReset) -> None:
    row = batch.view.writers.get(record.writer_number)
    if row is not None:
        require(
            record.writer_epoch == row.epoch + 1,
            record,
            f"writer {row.number} has epoch {row.epoch}, and {record.writer_epoch} is not the next",
        )


def _end_before(batch: CurrentBatch, record: m.WriterRecorded) -> None:
    """Forget what is left of the writer whose id continues under another number."""
    state = batch.state
    state.use_id(record.writer_number)
    before = _replaced_by(state.durable.writers, record)
    if before is not None:
        if not before.expired_us:  # damage has taken the record that says so
            state.forget_progress([before.number])
        state.quarantine.discard("writers", before.number)


def _replaced_by(writers: NamedView[WriterRow], record: m.WriterRecorded) -> WriterRow | None:
    """Return the row with the same id that the row of a new number replaces, None if there is none."""
    return writers.find(record.writer_id) if writers.get(record.writer_number) is None else None


def _opened(batch: CurrentBatch, record: m.WriterRecorded) -> None:
    writers, exclusive = batch.view.writers, batch.view.exclusive_writers
    before = _replaced_by(writers, record)
    if before is not None:
        if not before.expired_us:
            for stream_id in held_by(exclusive, [before.number]):
                exclusive.put(stream_id, None)
        writers.put(before.number, None)
    move(writers, record.writer_number, opened, record)
    if record.is_exclusive:
        move(writers, record.fenced_number, fenced, record)
    if record.stream_id and record.writer_id:
        view = batch.view.sequences(record.writer_number, record.stream_id)
        if view is not None and record.is_plain:
            view.is_plain = True


def _note_opened(batch: CurrentBatch, record: m.WriterRecorded) -> None:
    state = batch.state
    writer = state.writers.loaded(record.writer_number)
    assert writer is not None, "the transition created it"
    writer.active_us = record.opened_us
    writer.seen_uptime_us = state.scalars.uptime_us
    state.writers.changed(writer)
    if record.stream_id and record.writer_id:
        state.touch_sequences(writer, record.stream_id)


def _check_released(batch: CurrentBatch, record: m.ExclusiveReleased) -> None:
    _check_epoch(batch, record.writer_number, record.fenced_epoch)


def _released(batch: CurrentBatch, record: m.ExclusiveReleased) -> None:
    move(batch.view.writers, record.writer_number, fenced, record)


def _note_sequences(batch: CurrentBatch, record: m.StoredTold | m.SequencesRefused | m.SequencesReset) -> None:
    writer = batch.state.writers.loaded(record.writer_number)
    if writer is not None:
        batch.state.touch_sequences(writer, record.stream_id)


def _changing_sequences(change: Callable[[SequenceView, Any], object]) -> Applier:
    """Return what applies a record about a writer on a stream; one that damage has made unknown is left aside."""

    def apply(batch: CurrentBatch, record: Any) -> None:
        view = batch.view.sequences(record.writer_number, record.stream_id)
        if view is not None:
            change(view, record)

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
    move(batch.view.writers, record.writer_number, reset, record)
    view = batch.view.sequences(record.writer_number, record.stream_id)
    if view is not None:
        view.reset(record.stored_through)


def _forget_expired(batch: CurrentBatch, record: m.WritersExpired) -> None:
    """Forget how far writers are that expire."""
    state = batch.state
    state.forget_progress([*record.marked, *record.forgotten])
    for number in record.marked:
        writer = state.writers.loaded(number)
        if writer is not None:
            writer.seen_uptime_us = state.scalars.uptime_us
            for stream_id in writer.streams:
                state.touch_sequences(writer, stream_id)
            writer.streams.clear()
    for number in record.forgotten:
        state.quarantine.discard("writers", number)


def _expired(batch: CurrentBatch, record: m.WritersExpired) -> None:
    move_all(batch.view.writers, record.marked, marked, record)
    for number in record.forgotten:
        batch.view.writers.put(number, None)


def _check_uptime(batch: CurrentBatch, record: m.UptimeCounted) -> None:
    if record.uptime_us > UPTIME_US_MAX:
        raise batch.unfit(CONTAINER, 0, f"servers ran for {record.uptime_us} us, longer than {UPTIME_US_MAX}")


def _uptime_counted(batch: CurrentBatch, record: m.UptimeCounted) -> None:
    scalars = batch.state.scalars
    if record.uptime_us >= scalars.uptime_us:
        scalars.uptime_us = record.uptime_us
        scalars.clock_history.observe(ClockReading(record.uptime_us, record.unix_us, record.monotonic_us, record.boot))


RECORDS: Final[Mapping[type[m.Record], RecordStep]] = {
    m.WriterRecorded: RecordStep(_end_before, check=_check_recorded, admission=_admit_epoch, after=_note_opened),
    m.WritersExpired: RecordStep(_forget_expired, removes=True),
    m.UptimeCounted: RecordStep(_uptime_counted, check=_check_uptime),
    m.ExclusiveReleased: RecordStep(None, check=_check_released, removes=True),
    m.StoredTold: RecordStep(_note_sequences),
    m.SequencesRefused: RecordStep(_note_sequences),
    m.SequencesReset: RecordStep(_note_sequences, check=_check_reset, admission=_admit_epoch),
}
TRANSITIONS: Final[Mapping[type[m.Record], Applier]] = {
    m.WriterRecorded: _opened,
    m.WritersExpired: _expired,
    m.ExclusiveReleased: _released,
    m.StoredTold: _changing_sequences(_stored_told),
    m.SequencesRefused: _changing_sequences(_sequences_refused),
    m.SequencesReset: _sequences_reset,
}
