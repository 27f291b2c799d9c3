"""What records about writers, and their appends, do to the state."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun

from .apply_segments import CurrentBatch
from .clock_history import ClockReading
from .segment import Segment, WriterProgress
from .writer import Writer

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
    # Seldom, as its row is stored again each time.
    if writer is not None and (
        writer.seen_uptime_us != state.uptime_us or abs(batch.wall_time_us - writer.active_us) >= ACTIVITY_STEP_US
    ):
        writer.active_us = batch.wall_time_us
        writer.seen_uptime_us = state.uptime_us
        state.writers.changed(writer)


def _writer_recorded(batch: CurrentBatch, record: m.WriterRecorded) -> None:
    state = batch.state
    writer = state.writers.loaded(record.writer_number)
    if writer is None:
        before = state.writers.find(record.writer_id)
        if before is not None:
            if not before.expired_us:  # damage has taken the record that says so
                state.forget_progress([before.writer_number])
            state.writers.remove(before.writer_number)
        writer = state.admitted_writers.pop(record.writer_id, None) or Writer(
            writer_number=record.writer_number, writer_id=record.writer_id, epoch=0, opened_us=record.opened_us
        )
        state.use_id(writer.writer_number)
        state.writers.add(writer)
    writer.epoch = max(writer.epoch, record.writer_epoch)
    writer.admitted_epoch = max(writer.admitted_epoch, writer.epoch)
    writer.opened_us = writer.active_us = record.opened_us
    writer.seen_uptime_us = state.uptime_us
    state.writers.changed(writer)


def _writers_expired(batch: CurrentBatch, record: m.WritersExpired) -> None:
    state = batch.state
    state.forget_progress([*record.marked, *record.forgotten])
    for number in record.marked:
        writer = state.writers.loaded(number)
        if writer is not None:
            writer.expired_us = record.expired_us
            writer.seen_uptime_us = state.uptime_us
            state.writers.changed(writer)
    for number in record.forgotten:
        state.writers.remove(number)
    for number in (*record.marked, *record.forgotten):
        state.expiring_writers.pop(number, None)


def _uptime_counted(batch: CurrentBatch, record: m.UptimeCounted) -> None:
    state = batch.state
    if record.uptime_us >= state.uptime_us:
        state.uptime_us = record.uptime_us
        state.clock_history.observe(ClockReading(record.uptime_us, record.unix_us, record.monotonic_us, record.boot))


APPLIERS: Final[Mapping[type, Callable[[CurrentBatch, Any], None]]] = {
    m.WriterRecorded: _writer_recorded,
    m.WritersExpired: _writers_expired,
    m.UptimeCounted: _uptime_counted,
}
