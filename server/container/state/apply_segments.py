"""Applies the records of decisions about segments to the state."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final

from millrace.model.key_range import KeyRange
from millrace.server.container.kind import RecordStep
from millrace.server.container.memtable import LinkedExtent
from millrace.wire import messages as m

from .container_state import ContainerState
from .current_batch import CurrentBatch
from .garbage import DeleteAfter
from .segment import START_INDEX_ROW, DamagedRange, Segment
from .segment_admission import admit_merge, admit_truncation

_MERGED: Final = "#merged/"


def merge_marker(source_id: int) -> str:
    """Return the attribute of a target that records the merge of a segment into it. Clients cannot set it.

    Its value is the name that the segment had.
    """
    return f"{_MERGED}{source_id}"


def has_merged(target: Segment, name: str) -> bool:
    """Return whether a segment of that name was merged into the target."""
    return any(key.startswith(_MERGED) and value == name.encode() for key, value in target.attributes.items())


def create_segment(
    batch: CurrentBatch,
    segment_id: int,
    *,
    name: str,
    created_us: int,
    stream_id: int = 0,
    keys: KeyRange | None = None,
) -> None:
    """Create a segment of a stream, or a raw one, which has neither `stream_id` nor `keys`; its id was checked."""
    batch.state.add_segment(
        Segment(segment_id=segment_id, name=name, created_us=created_us, stream_id=stream_id, keys=keys)
    )


def seal_segments(batch: CurrentBatch, segment_ids: Iterable[int]) -> None:
    """Seal segments against appends."""
    state = batch.state
    for segment_id in segment_ids:
        segment = state.segments.loaded(segment_id)
        if segment is not None:
            segment.sealed = True
            segment.check()
            state.segments.changed(segment)
            state.wake(segment)


def truncate_segments(batch: CurrentBatch, positions: Iterable[m.SavedPosition]) -> None:
    """Move the starts of segments to these positions, never backwards."""
    state = batch.state
    for segment_id, offset, event_index in positions:
        segment = batch.find("segments", segment_id)
        if segment is None or segment.link is not None:
            continue  # one that was merged belongs to its target now
        if (offset, event_index) <= (segment.start_offset, segment.start_index):
            continue
        segment.start_offset = min(offset, segment.length)
        # Damage may have taken the block.
        segment.start_index = event_index if offset < segment.length else 0
        state.touch("attributes", segment_id, START_INDEX_ROW)
        state.release(segment, segment.start_offset)
        before = segment.chunks[: bisect_right(segment.chunks, segment.start_offset, key=attrgetter("end_offset"))]
        state.garbage.add((chunk.name for chunk in before), delete_after=DeleteAfter.CHECKPOINT)
        state.replace_chunks(segment, before, ())
        segment.index.truncate(segment.start_offset)
        segment.damages = [damage for damage in segment.damages if damage.end > segment.start_offset]
        segment.check()
        state.segments.changed(segment)
        state.wake(segment)


def _check_created(batch: CurrentBatch, record: m.SegmentCreated) -> None:
    batch.check_new("segments", record.segment_id)


def _segment_created(batch: CurrentBatch, record: m.SegmentCreated) -> None:
    create_segment(batch, record.segment_id, name=record.name, created_us=record.created_us)


def _check_sealed(batch: CurrentBatch, record: m.SegmentSealed) -> None:
    _check_raw(batch, batch.state.segments.loaded(record.segment_id), "sealed")


def _segment_sealed(batch: CurrentBatch, record: m.SegmentSealed) -> None:
    seal_segments(batch, [record.segment_id])


def _segment_truncated(batch: CurrentBatch, record: m.SegmentTruncated) -> None:
    truncate_segments(batch, [m.SavedPosition(record.segment_id, record.offset)])


def _check_deleted(batch: CurrentBatch, record: m.SegmentDeleted) -> None:
    _check_raw(batch, batch.state.segments.loaded(record.segment_id), "deleted")


def _segment_deleted(batch: CurrentBatch, record: m.SegmentDeleted) -> None:
    segment = batch.state.segments.loaded(record.segment_id)
    if segment is not None and segment.link is None:  # one that was merged belongs to its target now
        batch.state.delete_segments([record.segment_id])


def _check_raw(batch: CurrentBatch, segment: Segment | None, change: str) -> None:
    """Raise if a segment is part of a stream, or of an open transaction, which decide about their segments."""
    if segment is None:
        return
    if segment.stream_id:
        raise batch.unfit("segments", segment.segment_id, f"it belongs to stream {segment.stream_id}, and is {change}")
    owner = batch.state.open_transactions.owner(segment.segment_id)
    if owner is not None:
        raise batch.unfit("segments", segment.segment_id, f"it belongs to transaction {owner.number}, and is {change}")


def check_merge(
    batch: CurrentBatch,
    source: Segment | None,
    target: Segment,
    *,
    source_start: int,
    target_offset: int,
    size: int,
    event_count: int,
) -> None:
    """Raise unless a segment can be merged into another; the arguments are those of `merge_segment`."""
    batch.check_room(target, target_offset, size=size, event_count=event_count)
    if source is None:
        return  # the log has lost all of it
    number = source.segment_id
    if source is target:
        raise batch.unfit("segments", number, "it would be merged into itself")
    if source.link is not None:
        raise batch.unfit("segments", number, f"it was already merged into segment {source.link.target_id}")
    if source_start < source.start_offset:
        raise batch.unfit(
            "segments", number, f"its bytes from {source_start} on are merged, and it starts at {source.start_offset}"
        )
    if event_count < source.event_count:
        raise batch.unfit("segments", number, f"{event_count} events of it are merged, and it has {source.event_count}")


def merge_segment(
    batch: CurrentBatch,
    source: Segment | None,
    target: Segment,
    *,
    source_id: int,
    source_start: int,
    target_offset: int,
    size: int,
    event_count: int,
) -> None:
    """Merge the bytes of a segment into another, as `check_merge` permits, without a copy.

    What the log has lost of the source is damaged.

    Args:
        source: None if the log has lost all of it.
        source_start: the first of its bytes.
        target_offset: where they are in the target.
    """
    state = batch.state
    if size:
        target.index.add(target_offset, events=target.event_count, wall_time_us=batch.wall_time_us)
    if target_offset > target.length:
        # Damage took the bytes between.
        target.damages.append(DamagedRange(target.length, target_offset, "the log"))
    target.length = max(target.length, target_offset + size)
    target.event_count += event_count
    # The log may have lost the end of the source, or all of it.
    held = 0 if source is None else max(0, min(size, source.length - source_start))
    if held < size:
        target.damages.append(DamagedRange(target_offset + held, target_offset + size, "the log"))
    if source is None or not held:
        state.delete_segments([source_id])
    else:
        state.link(
            LinkedExtent(
                target_id=target.segment_id,
                offset=target_offset,
                size=held,
                source_id=source_id,
                source_offset=source_start,
                event_count=event_count,
                sequence=batch.sequence,
                end_events=target.event_count,
                wall_time_us=batch.wall_time_us,
            ),
        )
        state.segments.changed(source)
    target.check()
    state.segments.changed(target)
    state.wake(target)


def _check_merged(batch: CurrentBatch, record: m.SegmentMerged) -> None:
    segments = batch.state.segments
    target, source = segments.loaded(record.target_id), segments.loaded(record.source_id)
    if target is None:
        return
    check_merge(
        batch,
        source,
        target,
        source_start=record.source_start,
        target_offset=record.target_offset,
        size=record.size,
        event_count=record.event_count,
    )
    if target.sealed:
        raise batch.unfit("segments", target.segment_id, "it is sealed, and accepts no merge")
    _check_raw(batch, source, "merged")


def _segment_merged(batch: CurrentBatch, record: m.SegmentMerged) -> None:
    state = batch.state
    target, source = state.segments.loaded(record.target_id), state.segments.loaded(record.source_id)
    if target is None:
        return
    marker = merge_marker(record.source_id)
    if marker not in target.attributes:  # applied again, the source is gone or has another name
        _set_attribute(state, target, marker, b"" if source is None else source.name.encode())
    merge_segment(
        batch,
        source,
        target,
        source_id=record.source_id,
        source_start=record.source_start,
        target_offset=record.target_offset,
        size=record.size,
        event_count=record.event_count,
    )
    if source is not None and source.link is not None:
        # Its name is free again; clients cannot request its new name.
        old_name, source.name = source.name, f"{source.name}#merged-{source.segment_id}"
        state.segments.renamed(source, old_name=old_name)


def _check_attribute(batch: CurrentBatch, record: m.AttributeSet) -> None:
    if record.key.startswith("#") and batch.state.segments.loaded(record.segment_id) is not None:
        raise batch.unfit("segments", record.segment_id, f"{record.key} is a mark of the server, not an attribute")


def _attribute_set(batch: CurrentBatch, record: m.AttributeSet) -> None:
    segment = batch.state.segments.loaded(record.segment_id)
    if segment is not None:
        _set_attribute(batch.state, segment, record.key, record.value if record.present else None)


def _set_attribute(state: ContainerState, segment: Segment, key: str, value: bytes | None) -> None:
    state.attribute_bytes -= segment.attribute_bytes
    segment.set_attribute(key, value)
    state.attribute_bytes += segment.attribute_bytes
    state.touch("attributes", segment.segment_id, key)
    state.segments.changed(segment)


RECORDS: Final[Mapping[type[m.Record], RecordStep]] = {
    m.SegmentCreated: RecordStep(_segment_created, check=_check_created),
    m.SegmentSealed: RecordStep(_segment_sealed, check=_check_sealed),
    m.SegmentTruncated: RecordStep(_segment_truncated, admission=admit_truncation, removes=True),
    m.SegmentDeleted: RecordStep(_segment_deleted, check=_check_deleted, removes=True),
    m.SegmentMerged: RecordStep(_segment_merged, check=_check_merged, admission=admit_merge),
    m.AttributeSet: RecordStep(_attribute_set, check=_check_attribute),
}
