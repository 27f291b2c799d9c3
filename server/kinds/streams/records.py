"""Applies the records of decisions about streams to the state.

A stream's record creates, seals, truncates and deletes its segments too, so that all of them change together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from millrace.model.key_range import KeyRange
from millrace.model.names import segment_of_stream
from millrace.server.container.kind import RecordStep
from millrace.server.container.state.apply_segments import create_segment, seal_segments, truncate_segments
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.current_batch import EPOCH_MAX, CurrentBatch
from millrace.server.container.state.labels import config_of
from millrace.server.container.state.stream import Stream, epoch_key, part_key
from millrace.wire import messages as m

from .admission import admit_scale, admit_truncation

_CUT_KINDS: Final = frozenset(m.CutKind)


def _check_stream(batch: CurrentBatch, record: m.StreamCreated) -> None:
    batch.check_new("streams", record.stream_id)
    _check_created(batch, record.stream_id, record.segments, kept=())


def _stream_created(batch: CurrentBatch, record: m.StreamCreated) -> None:
    state = batch.state
    stream = Stream(
        stream_id=record.stream_id,
        name=record.name,
        configuration=record.configuration,
        created_us=record.created_us,
    )
    state.use_id(stream.stream_id)
    state.streams.add(stream)
    _configure(batch, stream)
    at_start = [m.SavedPosition(segment_id, 0, 0) for segment_id, _, _ in record.segments]
    if record.cursors:
        state.moved_cursors.add(stream.stream_id)
    for (name,) in record.cursors:
        save_cut(state, stream, m.SavedCut(m.CutKind.CURSOR, name, record.created_us, at_start))
    begin_epoch(
        batch,
        stream,
        m.EpochRecord(number=0, started_us=record.created_us, cause="created", sealed_ids=[], created=record.segments),
    )


def _check_scaled(batch: CurrentBatch, stream: Stream, record: m.StreamScaled) -> None:
    check_epoch(batch, stream, _epoch_of(record))


def _epoch_of(record: m.StreamScaled) -> m.EpochRecord:
    return m.EpochRecord(
        number=record.epoch,
        started_us=record.scaled_us,
        cause=record.cause,
        sealed_ids=record.sealed_ids,
        created=record.created,
    )


def _stream_scaled(batch: CurrentBatch, stream: Stream, record: m.StreamScaled) -> None:
    begin_epoch(batch, stream, _epoch_of(record))
    seal_segments(batch, record.sealed_ids)
    mark_empty(batch, stream, record.sealed_ids)


def mark_empty(batch: CurrentBatch, stream: Stream, segment_ids: Iterable[int]) -> None:
    """Record which segments hold nothing, of those that a batch has replaced, once it has filled them."""
    for segment_id in segment_ids:
        segment = batch.state.segments.loaded(segment_id)
        if segment is not None and segment.start_offset == segment.length:
            stream.mark_empty(segment_id)  # `begin_epoch` has touched its row


def check_epoch(batch: CurrentBatch, stream: Stream, epoch: m.EpochRecord) -> None:
    """Raise unless a stream can begin an epoch: afterwards its open segments cover each key once, as they do now."""
    number = stream.stream_id
    if stream.sealed:
        raise batch.unfit("streams", number, f"it is sealed, but would begin epoch {epoch.number}")
    if not stream.epoch < epoch.number <= EPOCH_MAX:
        raise batch.unfit("streams", number, f"epoch {epoch.number} cannot follow epoch {stream.epoch}")
    sealed_ids = set(epoch.sealed_ids)
    kept = [part.key_range for part in stream.open_parts if part.segment_id not in sealed_ids]
    if len(kept) + len(sealed_ids) != len(stream.open_parts):
        raise batch.unfit("streams", number, f"not all of {sorted(sealed_ids)}, which are to be sealed, are open")
    _check_created(batch, number, epoch.created, kept=kept)


def _check_created(
    batch: CurrentBatch, stream_id: int, created: Sequence[m.SegmentRangeRecord], *, kept: Sequence[KeyRange]
) -> None:
    """Raise unless segments can be created that cover each key once, together with those which stay open."""
    batch.check_new_segments("streams", stream_id, [segment_id for segment_id, _, _ in created])
    ranges = [batch.key_range("streams", stream_id, low, last) for _, low, last in created]
    batch.check_ranges("streams", stream_id, [*kept, *ranges])


def begin_epoch(batch: CurrentBatch, stream: Stream, epoch: m.EpochRecord) -> None:
    """Create the segments of an epoch, which was checked, before those which they replace are sealed.

    So readers find both.
    """
    for index, (segment_id, low, last) in enumerate(epoch.created):
        create_segment(
            batch,
            segment_id,
            name=segment_of_stream(stream.name, epoch=epoch.number, index=index),
            created_us=epoch.started_us,
            stream_id=stream.stream_id,
            keys=KeyRange.inclusive(low, last),
        )
    stream.begin_epoch(epoch)
    batch.state.touch("cuts", stream.stream_id, epoch_key(epoch.number))
    _touch_parts(batch.state, stream, [*epoch.sealed_ids, *(segment_id for segment_id, _, _ in epoch.created)])


def _touch_parts(state: ContainerState, stream: Stream, segment_ids: Iterable[int]) -> None:
    for segment_id in segment_ids:
        state.touch("cuts", stream.stream_id, part_key(segment_id))


def save_cut(state: ContainerState, stream: Stream, cut: m.SavedCut) -> None:
    """Keep a cut of a stream under its name, in place of the one before."""
    stream.cuts[cut.kind, cut.name] = cut
    state.touch("cuts", stream.stream_id, (cut.kind, cut.name))


def _stream_updated(batch: CurrentBatch, stream: Stream, record: m.StreamUpdated) -> None:
    stream.configuration = record.configuration
    _configure(batch, stream)


def _configure(batch: CurrentBatch, stream: Stream) -> None:
    state, stream_id = batch.state, stream.stream_id
    state.reconfigured_streams[stream_id] = stream.configuration
    bounds = config_of(stream.configuration).event_times
    if bounds is not None:
        state.event_times[stream_id] = bounds
    else:
        state.event_times.pop(stream_id, None)


def _stream_sealed(batch: CurrentBatch, stream: Stream, _: m.StreamSealed) -> None:
    stream.sealed = True
    seal_segments(batch, stream.segment_ids)


def _check_cut(batch: CurrentBatch, record: m.StreamTruncated | m.StreamStartMoved) -> None:
    for segment_id in (position[0] for position in record.positions):
        segment = batch.find("segments", segment_id)
        if segment is not None and segment.stream_id != record.stream_id:
            reason = f"segment {segment_id} of its cut does not belong to it"
            raise batch.unfit("streams", record.stream_id, reason)


def _stream_truncated(batch: CurrentBatch, record: m.StreamTruncated) -> None:
    _move_start(batch, record.stream_id, [m.SavedPosition(*position) for position in record.positions])


def _stream_start_moved(batch: CurrentBatch, record: m.StreamStartMoved) -> None:
    _move_start(batch, record.stream_id, record.positions)


def _move_start(batch: CurrentBatch, stream_id: int, positions: Sequence[m.SavedPosition]) -> None:
    state = batch.state
    truncate_segments(batch, positions)
    stream = state.streams.loaded(stream_id)
    if stream is None:
        return
    if stream.cuts:
        state.moved_cursors.add(stream_id)  # what is truncated is not unread any more
    # What is wholly before the cut is deleted; a reader at its end continues with the successors. The members of the
    # cut stay, also those at their end: so HEAD is the cut itself, which covers every key once.
    members = [part for position in positions if (part := stream.part(position.segment_id)) is not None]
    # The newest first: with thousands of members, each finds its successor there without visiting all of them.
    successors = sorted((part for part in members if part.epoch), key=lambda part: -part.epoch)
    deleted = {
        part.segment_id for part in members if part.sealed_epoch and any(part.precedes(other) for other in successors)
    }
    if deleted:
        stream.drop_parts(deleted)
        _touch_parts(state, stream, deleted)
        state.delete_segments(deleted)
        state.streams.changed(stream)


def _stream_deleted(batch: CurrentBatch, record: m.StreamDeleted) -> None:
    stream = batch.state.streams.remove(record.stream_id)
    if stream is None:
        return
    batch.state.quarantine.discard("streams", record.stream_id)
    batch.state.delete_segments(stream.segment_ids)
    batch.state.forget_sequences(record.stream_id)
    batch.state.reconfigured_streams[record.stream_id] = None
    batch.state.event_times.pop(record.stream_id, None)
    batch.state.moved_cursors.add(record.stream_id)


def _check_cuts(batch: CurrentBatch, _: Stream, record: m.CutsSaved) -> None:
    for cut in record.cuts:
        if cut.kind not in _CUT_KINDS:
            raise batch.unfit("streams", record.stream_id, f"cut {cut.name} of it is of kind {cut.kind}")


def _cuts_saved(batch: CurrentBatch, stream: Stream, record: m.CutsSaved) -> None:
    for kind, name, positions, hold_s in record.cuts:
        save_cut(batch.state, stream, m.SavedCut(kind, name, record.saved_us, positions, hold_s))
    batch.state.moved_cursors.add(record.stream_id)


def _cut_forgotten(batch: CurrentBatch, stream: Stream, record: m.CutForgotten) -> None:
    stream.cuts.pop((record.kind, record.name), None)
    batch.state.touch("cuts", record.stream_id, (record.kind, record.name))
    batch.state.moved_cursors.add(record.stream_id)


def _changing(change: Callable[[CurrentBatch, Stream, Any], None]) -> Callable[[CurrentBatch, Any], None]:
    """Return what applies a record that changes a stream; one that damage has made unknown is left aside."""

    def apply(batch: CurrentBatch, record: Any) -> None:
        stream = batch.state.streams.loaded(record.stream_id)
        if stream is not None:
            change(batch, stream, record)
            batch.state.streams.changed(stream)

    return apply


def _of_stream(check: Callable[[CurrentBatch, Stream, Any], None]) -> Callable[[CurrentBatch, Any], None]:
    """Return the check of a record that changes a stream; nothing is checked of one that damage has made unknown."""

    def check_known(batch: CurrentBatch, record: Any) -> None:
        stream = batch.state.streams.loaded(record.stream_id)
        if stream is not None:
            check(batch, stream, record)

    return check_known


RECORDS: Final[Mapping[type[m.Record], RecordStep]] = {
    m.StreamCreated: RecordStep(_stream_created, check=_check_stream),
    m.StreamScaled: RecordStep(_changing(_stream_scaled), check=_of_stream(_check_scaled), admission=admit_scale),
    m.StreamUpdated: RecordStep(_changing(_stream_updated)),
    m.CutsSaved: RecordStep(_changing(_cuts_saved), check=_of_stream(_check_cuts)),
    m.CutForgotten: RecordStep(_changing(_cut_forgotten)),
    m.StreamSealed: RecordStep(_changing(_stream_sealed)),
    m.StreamTruncated: RecordStep(_stream_truncated, check=_check_cut, admission=admit_truncation, removes=True),
    m.StreamStartMoved: RecordStep(_stream_start_moved, check=_check_cut, admission=admit_truncation, removes=True),
    m.StreamDeleted: RecordStep(_stream_deleted, removes=True),
}
