"""Progress of writers in segments and on streams, as appends advance it."""

from typing import Final

from millrace.wire.append_run import AppendRun

from .current_batch import CurrentBatch
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
