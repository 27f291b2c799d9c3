"""Decisions about segments and writers: checked against the admitted view, logged, then true.

Each method checks, queues its record and moves the admitted view in one step, without waiting, and then waits for the
log. A log that refuses the record has changed nothing. Cancelling the wait does not undo the decision, and what is
queued stays in the admitted view until it is applied, also when its requester was cancelled. Repeating one is harmless.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from millrace.model.names import checked_name, checked_writer_id
from millrace.server.container.state.apply_segments import merge_marker
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.writer import Writer
from millrace.server.errors import (
    AttributeConditionFailedError,
    InvalidArgumentError,
    OffsetBeyondEndError,
    SegmentExistsError,
    SegmentNotFoundError,
    WriterExpiredError,
)
from millrace.wire import messages as m
from millrace.wire.limits import MIB, NAME_SIZE_BYTES_MAX

from .container import SegmentContainer

ATTRIBUTE_VALUE_SIZE_BYTES_MAX = MIB // 16
ATTRIBUTES_PER_SEGMENT_COUNT_MAX = 1000


class OpenedWriter(NamedTuple):
    """A writer under its new epoch.

    Attributes:
        known: whether it was there before, and its state is kept.
        active_us: when it was last seen, now if it is new.
        expired_us: when the state before it expired, 0 if none did.
    """

    writer_number: int
    epoch: int
    known: bool
    active_us: int
    expired_us: int


class SegmentControl:
    """Creates, seals, truncates and deletes segments; sets attributes; opens writers."""

    def __init__(self, container: SegmentContainer) -> None:
        self._container = container
        self._state = container.state
        self._creating: set[str] = set()
        # Attributes whose record is queued: the admitted view of what `state` holds durably.
        self._attributes: dict[tuple[int, str], tuple[bytes | None, int]] = {}
        self._attribute_version = 0
        # Segments with a truncation queued, and with a delete queued.
        self._truncating: dict[int, asyncio.Future[None]] = {}
        self._deleting: set[int] = set()
        # (target, source) of the merges that are queued.
        self._merging: dict[tuple[int, int], asyncio.Future[None]] = {}

    def find(self, *, segment_id: int, name: str) -> Segment:
        """Return a segment by id, or by name where the id is 0.

        Raises:
            SegmentNotFoundError: there is none.
        """
        if segment_id:
            return self._container.segment(segment_id)
        segment = self._state.segments.find(name)
        if segment is None or segment.link is not None:
            raise SegmentNotFoundError("there is no such segment", subject=name)
        return segment

    async def create(self, name: str) -> Segment:
        """Create a raw segment.

        Raises:
            InvalidNameError: the name is not of the form scope/name.
            SegmentExistsError: there is one of that name.
        """
        checked_name(name, kind="segment name")
        if name in self._creating or self._state.segments.find(name) is not None:
            raise SegmentExistsError("the segment exists", subject=name)
        segment_id = self._state.take_id()
        decided = self._container.decide(m.SegmentCreated(segment_id, self._container.clock.unix_us(), name))
        self._creating.add(name)
        decided.add_done_callback(lambda _: self._creating.discard(name))
        await asyncio.shield(decided)
        return self._container.segment(segment_id)

    async def seal(self, segment: Segment) -> None:
        """Let the segment take no more appends, forever. Appends admitted before are stored."""
        self._refuse_part_of_stream(segment)
        if not segment.sealed:
            decided = self._container.decide(m.SegmentSealed(segment.segment_id))
            segment.closing = True
            await decided

    async def truncate(self, segment: Segment, offset: int) -> None:
        """Move the start of the segment to `offset`; the offsets of the rest stay.

        Raises:
            OffsetBeyondEndError: the segment is not that long.
        """
        self._refuse_part_of_stream(segment)
        if offset > segment.length:
            raise OffsetBeyondEndError(
                f"cannot truncate at {offset}; the segment holds [{segment.start_offset}, {segment.length})",
                subject=segment.name,
                start_offset=segment.start_offset,
                length=segment.length,
            )
        if offset > segment.start_offset:
            self._refuse_merging(segment)
            decided = self._container.decide(m.SegmentTruncated(segment.segment_id, offset))
            self._truncating[segment.segment_id] = decided
            decided.add_done_callback(lambda _: self._truncated(segment.segment_id, decided))
            await asyncio.shield(decided)

    async def merge(self, target: Segment, source_id: int) -> None:
        """Move all bytes of a sealed segment to the end of another, in one step that is seen whole or not at all.

        Nothing is copied here: the bytes stay where they are until the flusher copies them. The source is deleted
        afterwards. Merging it into the same target again is a success without effect.

        Raises:
            InvalidArgumentError: the source is not sealed, or is the target.
            SegmentError: the target takes no appends, or there is no such source.
        """
        self._refuse_part_of_stream(target)
        # How much there is to merge is known when it is truncated.
        while (truncating := self._truncating.get(source_id)) is not None and not truncating.done():
            await asyncio.shield(truncating)
        if merge_marker(source_id) in target.attributes:
            return
        if (under_way := self._merging.get((target.segment_id, source_id))) is not None:
            await asyncio.shield(under_way)
            return
        source = self._container.segment(source_id)
        self._refuse_part_of_stream(source)
        if source is target:
            raise InvalidArgumentError("a segment cannot be merged into itself", subject=source.name)
        if not source.sealed:
            raise InvalidArgumentError("only a sealed segment can be merged; seal it first", subject=source.name)
        self._refuse_merging(source)
        if source_id in self._deleting:
            raise SegmentNotFoundError("the segment is being deleted", subject=source.name)
        target.check_appendable()
        size = source.length - source.start_offset
        record = m.SegmentMerged(
            target_id=target.segment_id,
            source_id=source_id,
            target_offset=target.next_offset,
            source_start=source.start_offset,
            size=size,
            event_count=source.event_count,
        )
        decided = self._container.decide(record)
        target.next_offset += size
        pair = target.segment_id, source_id
        self._merging[pair] = decided
        decided.add_done_callback(lambda _: self._merging.pop(pair))
        await asyncio.shield(decided)

    async def delete(self, segment: Segment) -> None:
        """Delete the segment with everything in it."""
        self._refuse_part_of_stream(segment)
        self._refuse_merging(segment)
        decided = self._container.decide(m.SegmentDeleted(segment.segment_id))
        segment.closing = True
        self._deleting.add(segment.segment_id)
        decided.add_done_callback(lambda _: self._deleting.discard(segment.segment_id))
        await asyncio.shield(decided)

    async def set_attribute(self, segment: Segment, key: str, *, expected: bytes | None, value: bytes | None) -> None:
        """Set an attribute if it has the expected value; None means absent, both ways.

        Raises:
            AttributeConditionFailedError: it has another value.
        """
        if key.startswith("#") or not 1 <= len(key.encode()) <= NAME_SIZE_BYTES_MAX:
            raise InvalidArgumentError(
                f"the key of an attribute has 1 to {NAME_SIZE_BYTES_MAX} bytes and does not start with #"
            )
        if value is not None and len(value) > ATTRIBUTE_VALUE_SIZE_BYTES_MAX:
            raise InvalidArgumentError(f"the value of an attribute has at most {ATTRIBUTE_VALUE_SIZE_BYTES_MAX} bytes")
        place = (segment.segment_id, key)
        current = self._attributes[place][0] if place in self._attributes else segment.attributes.get(key)
        if current != expected:
            raise AttributeConditionFailedError(f"attribute {key!r} has another value", subject=segment.name)
        if current is None and value is not None and len(segment.attributes) >= ATTRIBUTES_PER_SEGMENT_COUNT_MAX:
            raise InvalidArgumentError(f"a segment has at most {ATTRIBUTES_PER_SEGMENT_COUNT_MAX} attributes")
        self._attribute_version += 1
        version = self._attribute_version
        decided = self._container.decide(
            m.AttributeSet(segment_id=segment.segment_id, present=int(value is not None), key=key, value=value or b""),
        )
        self._attributes[place] = (value, version)
        decided.add_done_callback(lambda _: self._attribute_decided(place, version))
        await asyncio.shield(decided)

    async def open_writer(self, writer_id: str, *, start_over: bool) -> OpenedWriter:
        """Open a writer under a new epoch; from now on appends of older epochs are refused.

        An empty id makes a writer of its own that can be opened only this once.

        Args:
            start_over: whether to start from nothing where the state that was kept under the id has expired.

        Raises:
            WriterExpiredError: it has expired, and starting over was not asked for.
        """
        state = self._state
        writer = None
        if writer_id:
            checked_writer_id(writer_id)
            # One that starts over is admitted while what it replaces is still there.
            writer = state.admitted_writers.get(writer_id) or state.writers.find(writer_id)
        now_us = self._container.clock.unix_us()
        epoch = 1 if writer is None else writer.admitted_epoch + 1
        active_us = now_us if writer is None else writer.active_us
        expired_us = 0 if writer is None else self._expired_us(writer)
        if expired_us and not start_over:
            raise WriterExpiredError(
                f"the writer was idle for too long: its state expired at {_utc_text(expired_us)}, and which of its "
                "events are stored is not known any more",
                subject=writer_id,
            )
        known = writer is not None and not expired_us
        if writer is None or expired_us:
            # A number of its own: what was sent under the one before is never taken for events of this one.
            writer = Writer(writer_number=state.take_id(), writer_id=writer_id, epoch=0, opened_us=now_us)
        decided = self._container.decide(
            m.WriterRecorded(
                writer_number=writer.writer_number, writer_epoch=epoch, opened_us=now_us, writer_id=writer_id
            ),
        )
        writer.admitted_epoch = epoch
        if writer_id and not known:
            state.admitted_writers[writer_id] = writer
        await decided
        return OpenedWriter(writer.writer_number, epoch, known, active_us, expired_us)

    def expire_writers(self, *, marked: Sequence[int], forgotten: Sequence[int]) -> asyncio.Future[None]:
        """Forget what writers wrote, or that they were ever there; done when that is durable.

        From now on their appends are refused. The caller has checked, in this step, that none of them is busy.

        Args:
            marked: numbers of named writers of which a mark stays, which tells that to the next that opens them.
            forgotten: numbers of unnamed writers, and of marks.
        """
        expired_us = self._container.clock.unix_us()
        decided = self._container.decide(
            m.WritersExpired(expired_us=expired_us, marked=list(marked), forgotten=list(forgotten)),
        )
        self._state.expiring_writers.update(dict.fromkeys((*marked, *forgotten), expired_us))
        return decided

    def writer_states(self, writer_number: int, segment_ids: Iterable[int]) -> list[m.WriterState]:
        """Return the last durable event number of a writer in each segment; 0 where it never wrote."""
        states = []
        for segment_id in segment_ids:
            progress = self._container.segment(segment_id).writers.get(writer_number)
            states.append(m.WriterState(segment_id, progress.durable if progress else 0))
        return states

    def _expired_us(self, writer: Writer) -> int:
        """Return when the state of a writer expired, in the admitted view; 0 if it did not."""
        return writer.expired_us or self._state.expiring_writers.get(writer.writer_number, 0)

    def _truncated(self, segment_id: int, decided: asyncio.Future[None]) -> None:
        if self._truncating.get(segment_id) is decided:
            del self._truncating[segment_id]

    def _attribute_decided(self, place: tuple[int, str], version: int) -> None:
        if self._attributes.get(place, (None, 0))[1] == version:
            del self._attributes[place]

    def _refuse_merging(self, segment: Segment) -> None:
        if any(source_id == segment.segment_id for _, source_id in self._merging):
            raise SegmentNotFoundError("the segment is being merged into another", subject=segment.name)

    def _refuse_part_of_stream(self, segment: Segment) -> None:
        if segment.stream_id:
            raise InvalidArgumentError("the segment belongs to a stream; ask for the stream", subject=segment.name)


def _utc_text(unix_us: int) -> str:
    return datetime.fromtimestamp(unix_us // 1_000_000, UTC).isoformat()
