"""Decisions about segments: checked against the admitted view, logged, then true.

Each method checks, queues its record and moves the admitted view in one step, without waiting, and then waits for the
log. A log that refuses the record has changed nothing. Cancelling the wait does not undo the decision, and what is
queued stays in the admitted view until it is applied, also when its requester was cancelled. Repeating one is harmless.
A refusal may rest on what is queued: who passes it on waits first until that is durable (`in_flight`).
"""

from typing import Final

from millrace.model.names import checked_name, internal_name
from millrace.server.container.admission import check_event_count
from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.apply_segments import has_merged, merge_marker
from millrace.server.container.state.segment import ATTRIBUTE_OVERHEAD_BYTES, Segment, attribute_size
from millrace.server.errors import (
    AttributeConditionFailedError,
    AttributesFullError,
    InvalidArgumentError,
    OffsetBeyondEndError,
    SegmentExistsError,
    SegmentNotFoundError,
)
from millrace.wire import messages as m
from millrace.wire.limits import KIB, NAME_SIZE_BYTES_MAX

ATTRIBUTE_VALUE_SIZE_BYTES_MAX: Final = 64 * KIB


class SegmentCommands:
    """Creates, seals, truncates and deletes segments; sets attributes."""

    def __init__(self, container: SegmentContainer) -> None:
        self._container = container
        self._state = container.state

    def find(self, *, segment_id: int, name: str) -> Segment:
        """Return a segment by id, or by name where the id is 0.

        Raises:
            SegmentNotFoundError: there is none.
        """
        if segment_id:
            return self._container.segment(segment_id)
        segment = self._state.segments.find(name)
        if segment is None or segment.link is not None:
            raise self._container.absent(SegmentNotFoundError("the segment does not exist", subject=name))
        return segment

    async def create(self, name: str) -> Segment:
        """Create a raw segment.

        Raises:
            InvalidNameError: the name is not of the form scope/name.
            SegmentExistsError: there is one of that name.
        """
        return await self._create(checked_name(name, kind="segment name"))

    async def create_internal(self, kind: str, name: str) -> Segment:
        """Create a segment for the server itself, `#kind/name`: requests cannot change it, lists do not show it.

        The caller has loaded the name, so that looking it up blocks nothing.

        Raises:
            InvalidNameError: one of the two is no valid part of a name.
            SegmentExistsError: there is one of that name.
        """
        return await self._create(internal_name(kind, name))

    async def _create(self, name: str) -> Segment:
        find = self._state.segments.find
        while (found := find(name)) is not None and found.leaving:
            await self._container.in_flight.settled()  # then the name is free
        if found is not None or self._container.queued(m.SegmentCreated, name):
            raise SegmentExistsError("the segment exists", subject=name)
        segment_id = self._state.take_id()
        await self._container.decide(m.SegmentCreated(segment_id, self._container.clock.unix_us(), name), name)
        return self._container.segment(segment_id)

    async def seal(self, segment: Segment) -> None:
        """Let the segment take no more appends, forever. Appends admitted before are stored."""
        self._check_raw(segment)
        if not segment.sealed:
            decided = self._container.decide(m.SegmentSealed(segment.segment_id), segment.segment_id)
            segment.closing = True
            await decided

    async def truncate(self, segment: Segment, offset: int) -> None:
        """Move the start of the segment to `offset`; the offsets of the rest stay.

        Raises:
            OffsetBeyondEndError: the segment is not that long.
        """
        self._check_raw(segment)
        if offset > segment.length:
            raise segment.error(
                OffsetBeyondEndError,
                f"cannot truncate at {offset}; the segment holds [{segment.start_offset}, {segment.length})",
            )
        if offset > segment.start_offset:
            await self._container.decide(m.SegmentTruncated(segment.segment_id, offset), segment.segment_id)

    async def merge(self, target: Segment, *, source_id: int, source: str = "") -> None:
        """Move all bytes of a sealed segment to the end of another, in one step that is seen whole or not at all.

        Nothing is copied here: the bytes stay where they are until the flusher copies them. The source is deleted
        afterwards. Merging it into the same target again is a success without effect.

        Args:
            source_id: of the source; 0: it is named `source`, or was when it was merged.

        Raises:
            InvalidArgumentError: the source is not sealed, or is the target, or has too many events for it.
            SegmentError: the target takes no appends, or there is no such source.
        """
        self._check_raw(target)
        if not source_id:
            named = self._state.segments.find(source)
            if named is None:
                if has_merged(target, source):
                    return
                raise SegmentNotFoundError("the segment does not exist", subject=source)
            source_id = named.segment_id
        queued = self._container.queued
        # How much there is to merge is known when it is truncated.
        while queued(m.SegmentTruncated, source_id) or queued(m.SegmentMerged, source_id):
            await self._container.in_flight.settled()
        if merge_marker(source_id) in target.attributes:
            return
        merged = self._container.segment(source_id)
        self._check_raw(merged)
        if merged is target:
            raise InvalidArgumentError("a segment cannot be merged into itself", subject=merged.name)
        if not merged.sealed:
            raise InvalidArgumentError("only a sealed segment can be merged; seal it first", subject=merged.name)
        target.check_appendable()
        check_event_count(target, merged.event_count)
        size = merged.length - merged.start_offset
        record = m.SegmentMerged(
            target_id=target.segment_id,
            source_id=source_id,
            target_offset=target.next_offset,
            source_start=merged.start_offset,
            size=size,
            event_count=merged.event_count,
        )
        decided = self._container.decide(record, source_id)
        target.next_offset += size
        target.next_event_count += merged.event_count
        merged.leaving = True
        await decided

    async def delete(self, segment: Segment) -> None:
        """Delete the segment with everything in it."""
        self._check_raw(segment)
        decided = self._container.decide(m.SegmentDeleted(segment.segment_id), segment.segment_id)
        segment.leaving = True
        await decided

    async def set_attribute(self, segment: Segment, key: str, *, expected: bytes | None, value: bytes | None) -> None:
        """Set an attribute if it has the expected value; None means absent, both ways.

        Raises:
            AttributeConditionFailedError: it has another value.
            AttributesFullError: the attributes of the segment, or of all, would get too large.
        """
        segment.check_changeable()
        segment.check_present()
        if key.startswith("#") or not 1 <= len(key.encode()) <= NAME_SIZE_BYTES_MAX:
            raise InvalidArgumentError(
                f"the key of an attribute must have 1 to {NAME_SIZE_BYTES_MAX} bytes and does not start with #"
            )
        if value is not None and len(value) > ATTRIBUTE_VALUE_SIZE_BYTES_MAX:
            raise InvalidArgumentError(f"the value of an attribute has at most {ATTRIBUTE_VALUE_SIZE_BYTES_MAX} bytes")
        current = segment.attributes.get(key)
        if (queued := self._container.queued(m.AttributeSet, segment.segment_id, key)) is not None:
            current = queued.record.value if queued.record.present else None
        if current != expected:
            raise AttributeConditionFailedError(f"attribute {key!r} has another value", subject=segment.name)
        growth = sum(attribute_size(key, each) * sign for each, sign in ((value, 1), (current, -1)) if each is not None)
        self._check_attribute_room(segment, growth)
        record = m.AttributeSet(
            segment_id=segment.segment_id, present=int(value is not None), key=key, value=value or b""
        )
        decided = self._container.decide(record, segment.segment_id, key)
        segment.admitted_attribute_bytes += growth
        self._state.admitted_attribute_bytes += growth
        await decided

    def _check_attribute_room(self, segment: Segment, growth: int) -> None:
        """Raise AttributesFullError if the attributes would get too large; they may always get smaller."""
        options = self._container.options
        for subject, size, limit, setting in (
            (
                "of a segment",
                segment.admitted_attribute_bytes,
                options.attributes_segment_bytes_max,
                "SEGMENT_BYTES_MAX",
            ),
            ("of all segments", self._state.admitted_attribute_bytes, options.attributes_bytes_max, "BYTES_MAX"),
        ):
            if growth > 0 and size + growth > limit:
                raise AttributesFullError(
                    f"the attributes {subject} may have {limit} bytes, and would have {size + growth}, with "
                    f"{ATTRIBUTE_OVERHEAD_BYTES} for each beside key and value: remove some, or raise "
                    f"MILLRACE_CONTAINER_ATTRIBUTES_{setting}",
                    subject=segment.name,
                )

    def _check_raw(self, segment: Segment) -> None:
        segment.check_changeable()
        segment.check_present()
        if segment.stream_id:
            raise InvalidArgumentError("the segment belongs to a stream; ask for the stream", subject=segment.name)
