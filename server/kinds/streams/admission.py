"""Checks of records about streams on the admitted view, before they are logged: see `decision_checks`."""

from collections.abc import Sequence

from millrace.model.key_range import KeyRange
from millrace.server.container.state.current_batch import EPOCH_MAX, CurrentBatch
from millrace.server.container.state.segment_admission import check_start, require
from millrace.server.errors import DecisionMisfitError
from millrace.wire import messages as m


def admit_truncation(batch: CurrentBatch, record: m.StreamTruncated | m.StreamStartMoved) -> None:
    """Check a truncation."""
    stream = batch.state.streams.pinned(record.stream_id)
    if stream is None:
        raise DecisionMisfitError(f"{record.type.name} was not logged, since stream {record.stream_id} does not exist")
    for segment_id, offset in (position[:2] for position in record.positions):
        segment = batch.state.segments.pinned(segment_id) if stream.part(segment_id) is not None else None
        if segment is None:
            raise DecisionMisfitError(
                f"{record.type.name} was not logged, since stream {stream.name} does not have segment {segment_id}"
            )
        check_start(record, segment, offset)


def admit_scale(batch: CurrentBatch, record: m.StreamScaled) -> None:
    """Check a scale."""
    epoch = m.CommitEpochRecord(record.stream_id, record.epoch, record.sealed_ids, record.created)
    check_epochs(batch, record, [epoch])


def check_epochs(batch: CurrentBatch, record: m.Record, epochs: Sequence[m.CommitEpochRecord]) -> None:
    """Check epochs that begin one after the other, of any streams."""
    latest: dict[int, int] = {}
    open_ranges: dict[int, dict[int, KeyRange]] = {}
    created_ids = [segment_id for epoch in epochs for segment_id, _, _ in epoch.created]
    for stream_id, number, sealed_ids, created in epochs:
        stream = batch.state.streams.pinned(stream_id)
        if stream is None:
            raise DecisionMisfitError(f"{record.type.name} was not logged, since stream {stream_id} does not exist")
        batch.check_new_segments("streams", stream_id, created_ids)
        require(not stream.sealed, record, f"stream {stream.name} is sealed")
        before = latest.get(stream_id, stream.admitted_epoch)
        require(
            number == before + 1 <= EPOCH_MAX,
            record,
            f"stream {stream.name} is in epoch {before}, and {number} is not the next",
        )
        latest[stream_id] = number
        ranges = open_ranges.setdefault(stream_id, {each.segment_id: each.key_range for each in stream.open_parts})
        sealed = set(sealed_ids)
        require(ranges.keys() >= sealed, record, f"not all segments to be sealed are open in stream {stream.name}")
        for segment_id in sealed:
            del ranges[segment_id]
        ranges.update(
            {segment_id: batch.key_range("streams", stream_id, low, last) for segment_id, low, last in created}
        )
        batch.check_ranges("streams", stream_id, ranges.values())
