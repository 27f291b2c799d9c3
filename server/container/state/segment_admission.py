"""Checks of records about segments on the admitted view, before they are logged: see `decision_checks`."""

from millrace.server.errors import DecisionMisfitError
from millrace.wire import messages as m
from millrace.wire.limits import EVENT_COUNT_MAX

from .current_batch import CurrentBatch
from .segment import Segment


def require(fits: bool, record: m.Record, problem: str) -> None:
    """Raise DecisionMisfitError unless a record fits."""
    if not fits:
        raise DecisionMisfitError(f"{record.type.name} was not logged, since {problem}; nothing was changed")


def check_end(record: m.Record, target: Segment, offset: int) -> None:
    """Raise unless what a record appends begins at the admitted end of a segment that takes appends."""
    require(
        offset == target.next_offset,
        record,
        f"segment {target.segment_id} ends at {target.next_offset}, and not at {offset}",
    )
    require(
        not (target.sealed or target.closing or target.leaving or target.deleted),
        record,
        f"segment {target.segment_id} accepts no more appends",
    )


def check_event_count(record: m.Record, target: Segment, count: int) -> None:
    """Raise unless a segment can have so many events more."""
    require(
        target.next_event_count + count <= EVENT_COUNT_MAX,
        record,
        f"segment {target.segment_id} would have more than {EVENT_COUNT_MAX} events",
    )


def check_start(record: m.Record, segment: Segment, offset: int) -> None:
    """Raise if a record would truncate a segment beyond its admitted end."""
    require(
        offset <= segment.next_offset,
        record,
        f"segment {segment.segment_id} ends at {segment.next_offset}, before {offset}",
    )


def admit_merge(batch: CurrentBatch, record: m.SegmentMerged) -> None:
    """Check a merge."""
    segments = batch.state.segments
    target, source = segments.pinned(record.target_id), segments.pinned(record.source_id)
    if target is None or source is None:
        raise DecisionMisfitError(f"{record.type.name} was not logged, since one of the segments does not exist")
    check_end(record, target, record.target_offset)
    check_event_count(record, target, record.event_count)
    require(
        not source.leaving
        and source.next_offset - record.source_start == record.size
        and source.next_event_count <= record.event_count,
        record,
        f"segment {source.segment_id} does not have {record.size} bytes to be merged",
    )


def admit_truncation(batch: CurrentBatch, record: m.SegmentTruncated) -> None:
    """Check a truncation."""
    segment = batch.state.segments.pinned(record.segment_id)
    if segment is not None:
        check_start(record, segment, record.offset)
