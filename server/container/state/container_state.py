"""What a container knows, as the fold of its log: segments, writers, streams.

`ContainerState.apply` is the only place that turns a record of a decision into a change, both right after the log
synced it and when the log is read again after a restart; `apply_run` does the same for appends. So the state is a
function of the log, and a checkpoint of it is only a shortcut. Applying never fails: what a record says was decided and
checked before it was written. A record about something that damage has made unknown is left aside.

Only what is in use, and what the next checkpoint has to store, is in memory; the rest lies in the last checkpoint. See
`shelf`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.server.container.memtable import Extent, LinkedExtent
from millrace.server.container.residency.entity_cache import RESIDENT_COUNT_MAX, Archive, CacheChanges, EntityCache
from millrace.wire import frames as f
from millrace.wire.names import segment_of_stream

from .garbage import DeleteAfter, GarbageQueue
from .segment import ChunkRecord, DamagedRange, Segment, WriterProgress
from .stream import Stream


class Writer:
    """A writer: its number for ever, its epoch now; or the mark that is left of a named one that has expired.

    A number stands for what was stored under it: after the expiry its name goes on under another number, and under
    epochs above those before.

    Attributes:
        writer_id: empty for an unnamed one.
        active_us: its last durable append or open, by the wall clock; moved only once in `ACTIVITY_STEP_US`.
        expired_us: when its state expired, by the wall clock; 0 while it has not.
        seen_uptime_us: the uptime that was counted when it was active or expired last: its age, which no clock changes.
    """

    __slots__ = (
        "__weakref__", "active_us", "admitted_epoch", "epoch", "expired_us", "opened_us", "seen_uptime_us", "writer_id",
        "writer_number",
    )  # fmt: skip

    def __init__(
        self,
        *,
        writer_number: int,
        writer_id: str,
        epoch: int,
        opened_us: int,
        active_us: int = 0,
        expired_us: int = 0,
        seen_uptime_us: int = 0,
    ) -> None:
        self.writer_number = writer_number
        self.writer_id = writer_id
        self.epoch = epoch
        self.admitted_epoch = epoch
        self.opened_us = opened_us
        self.active_us = active_us or opened_us
        self.expired_us = expired_us
        self.seen_uptime_us = seen_uptime_us


@dataclass(slots=True)
class Changes:
    """What changed since the last checkpoint took it."""

    segments: CacheChanges[Segment]
    writers: CacheChanges[Writer]
    streams: CacheChanges[Stream]
    # Of which writers the progress changed, and which attributes, each with its segment: a segment may have very many.
    progress: set[tuple[int, int]]
    attributes: set[tuple[int, str]]
    # Writers whose progress is forgotten in every segment.
    forgotten_writers: set[int]
    # By changed segment: its chunks as stored, and as they are now.
    chunks: dict[int, tuple[Sequence[ChunkRecord] | None, Sequence[ChunkRecord]]]
    # Numbers of everything stored lie below it.
    next_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the last checkpoint has of everything.

    Attributes:
        segments, writers, streams: where those lie that are not in memory.
        segment_count, writer_count, stream_count: how many there are.
        next_id: no number from this on was given.
        uptime_us: as counted last.
    """

    segments: Archive[Segment]
    writers: Archive[Writer]
    streams: Archive[Stream]
    segment_count: int
    writer_count: int
    stream_count: int
    next_id: int
    uptime_us: int


FIRST_ID: Final = 1
ACTIVITY_STEP_US: Final = 60_000_000
"""A busy writer is stored anew this often, not with every checkpoint; `active_us` may be that much too early."""


def merge_marker(source_id: int) -> str:
    """Return the attribute that says, on the target, that a segment was merged into it. Clients cannot set it."""
    return f"#merged/{source_id}"


class ContainerState:
    """Segments, writers and streams of one container, by id and by name.

    Args:
        stored: what the last checkpoint has; None where there is none.
        resident_count_max: so many idle segments, streams and writers each are held in memory.
    """

    def __init__(self, stored: Stored | None = None, *, resident_count_max: int = RESIDENT_COUNT_MAX) -> None:
        next_id = stored.next_id if stored else FIRST_ID
        bounds = {"stored_below": next_id, "resident_count_max": resident_count_max}
        self.segments: EntityCache[Segment] = EntityCache(
            number_of=lambda segment: segment.segment_id,
            name_of=lambda segment: segment.name,
            archive=stored.segments if stored else None,
            count=stored.segment_count if stored else 0,
            **bounds,
        )
        self.writers: EntityCache[Writer] = EntityCache(
            number_of=lambda writer: writer.writer_number,
            name_of=lambda writer: writer.writer_id,
            archive=stored.writers if stored else None,
            count=stored.writer_count if stored else 0,
            **bounds,
        )
        self.streams: EntityCache[Stream] = EntityCache(
            number_of=lambda stream: stream.stream_id,
            name_of=lambda stream: stream.name,
            archive=stored.streams if stored else None,
            count=stored.stream_count if stored else 0,
            **bounds,
        )
        # Writers whose first record is queued, by id.
        self.admitted_writers: dict[str, Writer] = {}
        # Writers whose expiry is queued, by number, and when it was decided.
        self.expiring_writers: dict[int, int] = {}
        # By stream that was created, configured anew or deleted since somebody looked, its configuration, None for one
        # that was deleted; and streams that were written to. Whoever looks clears them.
        self.reconfigured_streams: dict[int, str | None] = {}
        self.touched_streams: set[int] = set()
        self.next_id = next_id
        # For how long servers ran, as counted last: the age of writers.
        self.uptime_us = stored.uptime_us if stored else 0
        self._progress: set[tuple[int, int]] = set()
        self._attributes: set[tuple[int, str]] = set()
        self._forgotten_writers: set[int] = set()
        self._taken: Changes | None = None
        self._sequence = 0
        self._wall_time_us = 0
        # Bytes of all tails: durable, not yet in tier 2, held in memory.
        self.tail_bytes = 0
        # Segments with a tail.
        self.unflushed: dict[int, Segment] = {}
        # Segments whose bytes stand in the tail of another, which they were merged into.
        self.merged: dict[int, Segment] = {}
        # Chunks that nothing refers to any more.
        self.garbage = GarbageQueue()
        self._appliers: dict[type[f.Message], Callable[[Any], None]] = {
            f.SegmentCreated: self._segment_created,
            f.SegmentSealed: self._segment_sealed,
            f.SegmentTruncated: self._segment_truncated,
            f.SegmentDeleted: self._segment_deleted,
            f.SegmentMerged: self._segment_merged,
            f.AttributeSet: self._attribute_set,
            f.WriterRecorded: self._writer_recorded,
            f.WritersExpired: self._writers_expired,
            f.UptimeCounted: self._uptime_counted,
            f.StreamCreated: self._stream_created,
            f.StreamScaled: self._stream_scaled,
            f.StreamUpdated: self._stream_updated,
            f.CutSaved: self._cut_saved,
            f.CutForgotten: self._cut_forgotten,
            f.StreamSealed: self._stream_sealed,
            f.StreamTruncated: self._stream_truncated,
            f.StreamDeleted: self._stream_deleted,
        }

    def take_id(self) -> int:
        """Return a fresh id for a segment, a writer or a stream; never given twice."""
        number = self.next_id
        self.next_id += 1
        # Nobody has to look for it in the checkpoint.
        self.segments.expect_new(number)
        self.writers.expect_new(number)
        self.streams.expect_new(number)
        return number

    @property
    def changes(self) -> list[CacheChanges[Any]]:
        """What the next checkpoint has to store, by kind."""
        return [self.segments.changes, self.writers.changes, self.streams.changes]

    def take_changes(self) -> Changes:
        """Return what changed, for a checkpoint, and start to collect anew; `stored` or `give_back` comes next."""
        assert self._taken is None, "one checkpoint after the other"
        segments = self.segments.take()
        self._taken = Changes(
            segments=segments,
            writers=self.writers.take(),
            streams=self.streams.take(),
            progress=self._progress,
            attributes=self._attributes,
            forgotten_writers=self._forgotten_writers,
            chunks={
                number: (segment.stored_chunks, list(segment.chunks)) for number, segment in segments.changed.items()
            },
            next_id=self.next_id,
        )
        self._progress, self._attributes, self._forgotten_writers = set(), set(), set()
        return self._taken

    def stored(self) -> None:
        """Say that the changes taken last are durable."""
        changes, self._taken = self._taken, None
        assert changes is not None, "nothing was taken"
        for number, segment in changes.segments.changed.items():
            segment.stored_chunks = changes.chunks[number][1]
        self.segments.stored(stored_below=changes.next_id)
        self.writers.stored(stored_below=changes.next_id)
        self.streams.stored(stored_below=changes.next_id)

    def give_back(self) -> None:
        """Say that the checkpoint of the changes taken last failed: they go into the next one."""
        changes, self._taken = self._taken, None
        assert changes is not None, "nothing was taken"
        for segment in changes.segments.changed.values():
            segment.stored_chunks = None  # it may have been stored all the same
        self.segments.give_back()
        self.writers.give_back()
        self.streams.give_back()
        self._progress |= {pair for pair in changes.progress if pair[1] not in self._forgotten_writers}
        self._attributes |= changes.attributes
        self._forgotten_writers |= changes.forgotten_writers

    def begin_batch(self, sequence: int, wall_time_us: int) -> None:
        """Say to which log batch the records belong that are applied next."""
        self._sequence = sequence
        self._wall_time_us = wall_time_us

    def apply(self, record: f.Message) -> None:
        """Carry out a decision that is durable."""
        self._appliers[type(record)](record)

    def apply_run(
        self,
        segment: Segment,
        *,
        offset: int,
        size: int,
        event_count: int,
        writer_number: int,
        last_event_number: int,
        last_offset: int = -1,
    ) -> None:
        """Carry out the durable state of a run of appends; its bytes are the caller's business.

        `last_offset` is where its last append starts, -1 if nobody knows. A run that starts behind the length shows
        that damage took the bytes between; they become a damaged range.
        """
        if offset > segment.length:
            segment.damages.append(DamagedRange(segment.length, offset, "the log"))
        segment.length = max(segment.length, offset + size)
        segment.event_count += event_count
        if writer_number:
            progress = segment.writers.get(writer_number)
            if progress is None:
                progress = segment.writers[writer_number] = WriterProgress(last_event_number=0, last_offset=-1)
            progress.durable = max(progress.durable, last_event_number)
            progress.last_offset = last_offset
            self._progress.add((segment.segment_id, writer_number))
            self._see_writer(writer_number)
        self.segments.changed(segment)
        if segment.stream_id:
            self.touched_streams.add(segment.stream_id)

    def hold(self, segment: Segment, extent: Extent | LinkedExtent) -> None:
        """Keep the bytes of a run in the tail of its segment until `release`."""
        segment.tail.add(extent)
        if isinstance(extent, Extent):
            self.tail_bytes += extent.size
        self.unflushed[segment.segment_id] = segment

    def release(self, segment: Segment, offset: int, *, delete_after: DeleteAfter = DeleteAfter.CHECKPOINT) -> None:
        """Drop the tail of a segment up to `offset`: its bytes are in tier 2, or were truncated or deleted.

        `delete_after` is of the chunks of merged segments that stood in it: COPY if their bytes were flushed, since no
        record of the log tells that.
        """
        for extent in segment.tail.release(offset):
            if isinstance(extent, Extent):
                self.tail_bytes -= extent.size
            else:
                self._delete_segments([extent.source_id], delete_after=delete_after)
        first_needed = segment.tail.first.offset if segment.tail else offset
        segment.flushed_offset = max(segment.flushed_offset, min(first_needed, segment.length))
        if not segment.tail:
            self.unflushed.pop(segment.segment_id, None)

    def admit_as_durable(self) -> None:
        """Let the admitted view of everything be the durable one: nothing is queued. Called once, after recovery.

        What is not in memory is so anyway.
        """
        for segment in self.segments.present():
            segment.next_offset = segment.length
            for progress in segment.writers.values():
                progress.admitted = progress.durable
        for writer in self.writers.present():
            writer.admitted_epoch = writer.epoch

    def link(self, source: Segment, link: LinkedExtent) -> None:
        """Let the bytes of a merged segment stand in the tail of its target."""
        source.link = link
        self.merged[source.segment_id] = source
        self.hold(self.segments[link.target_id], link)

    def orphan(self, segment_id: int) -> Segment:
        """Add a segment whose creation was lost to damage, under a name that says so."""
        segment = Segment(segment_id=segment_id, name=f"lost/segment-{segment_id}", created_us=0)
        self._used(segment_id)
        self.segments.add(segment)
        return segment

    def _used(self, number: int) -> None:
        self.next_id = max(self.next_id, number + 1)

    def _segment_created(self, record: f.SegmentCreated) -> None:
        self._create_segment(record.segment_id, name=record.name, created_us=record.created_us, stream_id=0)

    def _create_segment(self, segment_id: int, *, name: str, created_us: int, stream_id: int) -> None:
        if self.segments.peek(segment_id) is not None:
            return
        self._used(segment_id)
        self.segments.add(Segment(segment_id=segment_id, name=name, created_us=created_us, stream_id=stream_id))

    def _segment_sealed(self, record: f.SegmentSealed) -> None:
        self._seal_segments([record.segment_id])

    def _seal_segments(self, segment_ids: Iterable[int]) -> None:
        for segment_id in segment_ids:
            segment = self.segments.get(segment_id)
            if segment is not None:
                segment.sealed = True
                self.segments.changed(segment)
                segment.notify()

    def _segment_truncated(self, record: f.SegmentTruncated) -> None:
        self._truncate_segments([f.CutPosition(record.segment_id, record.offset)])

    def _truncate_segments(self, positions: Iterable[f.CutPosition]) -> None:
        for segment_id, offset in positions:
            segment = self.segments.get(segment_id)
            if segment is None or segment.link is not None or offset <= segment.start_offset:
                continue  # one that was merged belongs to its target now
            segment.start_offset = min(offset, segment.length)
            self.release(segment, segment.start_offset)
            kept = [chunk for chunk in segment.chunks if chunk.end_offset > segment.start_offset]
            gone = segment.chunks[: len(segment.chunks) - len(kept)]
            self.garbage.add((chunk.name for chunk in gone), delete_after=DeleteAfter.CHECKPOINT)
            segment.chunks = kept
            segment.index.truncate(segment.start_offset)
            segment.damages = [damage for damage in segment.damages if damage.end > segment.start_offset]
            self.segments.changed(segment)
            segment.notify()

    def _segment_deleted(self, record: f.SegmentDeleted) -> None:
        segment = self.segments.get(record.segment_id)
        if segment is not None and segment.link is None:  # one that was merged belongs to its target now
            self._delete_segments([record.segment_id])

    def _delete_segments(
        self, segment_ids: Iterable[int], *, delete_after: DeleteAfter = DeleteAfter.CHECKPOINT
    ) -> None:
        for segment_id in segment_ids:
            segment = self.segments.remove(segment_id)
            if segment is None:
                continue
            self.merged.pop(segment_id, None)
            segment.deleted = True
            self.garbage.add((chunk.name for chunk in segment.chunks), delete_after=delete_after)
            self.release(segment, segment.length, delete_after=delete_after)
            segment.notify()

    def _segment_merged(self, record: f.SegmentMerged) -> None:
        target, source = self.segments.get(record.target_id), self.segments.get(record.source_id)
        if target is None:
            return
        self._set_attribute(target, merge_marker(record.source_id), b"")
        if record.size:
            target.index.add(record.target_offset, events=target.event_count, wall_time_us=self._wall_time_us)
        target.length = max(target.length, record.target_offset + record.size)
        target.event_count += record.event_count
        if source is None or not record.size:
            if record.size:
                target.damages.append(DamagedRange(record.target_offset, target.length, "the log"))
            self._delete_segments([record.source_id])
        else:
            # Its name is free again; the one it has now cannot be asked for.
            old_name, source.name = source.name, f"{source.name}#merged-{source.segment_id}"
            self.segments.renamed(source, old_name=old_name)
            self.link(
                source,
                LinkedExtent(
                    target_id=target.segment_id,
                    offset=record.target_offset,
                    size=record.size,
                    source_id=source.segment_id,
                    source_offset=record.source_start,
                    event_count=record.event_count,
                    sequence=self._sequence,
                    end_events=target.event_count,
                    wall_time_us=self._wall_time_us,
                ),
            )
        target.notify()

    def _attribute_set(self, record: f.AttributeSet) -> None:
        segment = self.segments.get(record.segment_id)
        if segment is None:
            return
        self._set_attribute(segment, record.key, record.value if record.present else None)

    def _set_attribute(self, segment: Segment, key: str, value: bytes | None) -> None:
        if value is None:
            segment.attributes.pop(key, None)
        else:
            segment.attributes[key] = value
        self._attributes.add((segment.segment_id, key))
        self.segments.changed(segment)

    def _writer_recorded(self, record: f.WriterRecorded) -> None:
        writer = self.writers.get(record.writer_number)
        if writer is None:
            before = self.writers.find(record.writer_id)
            if before is not None:
                if not before.expired_us:  # damage has taken the record that says so
                    self._forget_progress([before.writer_number])
                self.writers.remove(before.writer_number)
            writer = self.admitted_writers.pop(record.writer_id, None) or Writer(
                writer_number=record.writer_number, writer_id=record.writer_id, epoch=0, opened_us=record.opened_us
            )
            self._used(writer.writer_number)
            self.writers.add(writer)
        writer.epoch = max(writer.epoch, record.writer_epoch)
        writer.admitted_epoch = max(writer.admitted_epoch, writer.epoch)
        writer.opened_us = writer.active_us = record.opened_us
        writer.seen_uptime_us = self.uptime_us
        self.writers.changed(writer)

    def _see_writer(self, writer_number: int) -> None:
        """Take note that a writer stored something; seldom, as its row is stored anew each time."""
        writer = self.writers.get(writer_number)
        if writer is None:
            return
        if writer.seen_uptime_us != self.uptime_us or abs(self._wall_time_us - writer.active_us) >= ACTIVITY_STEP_US:
            writer.active_us = self._wall_time_us
            writer.seen_uptime_us = self.uptime_us
            self.writers.changed(writer)

    def _uptime_counted(self, record: f.UptimeCounted) -> None:
        self.uptime_us = max(self.uptime_us, record.uptime_us)

    def _writers_expired(self, record: f.WritersExpired) -> None:
        self._forget_progress([*record.marked, *record.forgotten])
        for number in record.marked:
            writer = self.writers.get(number)
            if writer is not None:
                writer.expired_us = record.expired_us
                writer.seen_uptime_us = self.uptime_us
                self.writers.changed(writer)
        for number in record.forgotten:
            self.writers.remove(number)
        for number in (*record.marked, *record.forgotten):
            self.expiring_writers.pop(number, None)

    def _forget_progress(self, writer_numbers: Iterable[int]) -> None:
        """Forget how far these writers have come, in every segment; of idle segments the next checkpoint does it.

        A segment that is loaded before that still has it, which does no harm: the numbers are never used again.
        """
        numbers = set(writer_numbers)
        self._forgotten_writers |= numbers
        self._progress = {pair for pair in self._progress if pair[1] not in numbers}
        for segment in self.segments.present():
            for number in segment.writers.keys() & numbers:
                del segment.writers[number]

    def _stream_created(self, record: f.StreamCreated) -> None:
        if self.streams.peek(record.stream_id) is not None:
            return
        stream = Stream(
            stream_id=record.stream_id,
            name=record.name,
            configuration=record.configuration,
            created_us=record.created_us,
        )
        self._used(stream.stream_id)
        self.streams.add(stream)
        self.reconfigured_streams[stream.stream_id] = stream.configuration
        self._begin_epoch(
            stream,
            f.EpochRecord(
                number=0, started_us=record.created_us, cause="created", sealed_ids=[], created=record.segments
            ),
        )

    def _stream_scaled(self, record: f.StreamScaled) -> None:
        stream = self.streams.get(record.stream_id)
        if stream is None or record.epoch <= stream.epoch:
            return
        self._begin_epoch(
            stream,
            f.EpochRecord(
                number=record.epoch,
                started_us=record.scaled_us,
                cause=record.cause,
                sealed_ids=record.sealed_ids,
                created=record.created,
            ),
        )
        self._seal_segments(record.sealed_ids)

    def _begin_epoch(self, stream: Stream, epoch: f.EpochRecord) -> None:
        """Create the segments of an epoch before those which they replace are sealed: readers find both."""
        for index, (segment_id, _, _) in enumerate(epoch.created):
            self._create_segment(
                segment_id,
                name=segment_of_stream(stream.name, epoch=epoch.number, index=index),
                created_us=epoch.started_us,
                stream_id=stream.stream_id,
            )
        stream.begin_epoch(epoch)
        self.streams.changed(stream)

    def _stream_updated(self, record: f.StreamUpdated) -> None:
        stream = self.streams.get(record.stream_id)
        if stream is not None:
            stream.configuration = record.configuration
            self.reconfigured_streams[record.stream_id] = record.configuration
            self.streams.changed(stream)

    def _stream_sealed(self, record: f.StreamSealed) -> None:
        stream = self.streams.get(record.stream_id)
        if stream is None:
            return
        stream.sealed = True
        self._seal_segments(stream.segment_ids)
        self.streams.changed(stream)

    def _stream_truncated(self, record: f.StreamTruncated) -> None:
        self._truncate_segments(record.positions)
        stream = self.streams.get(record.stream_id)
        if stream is None:
            return
        # What lies wholly before the cut is gone; who read it to its end goes on with the successors. The members of
        # the cut stay, also those at their end: so HEAD is the cut itself, which covers every key once.
        named = {segment_id for segment_id, _ in record.positions}
        members = [part for part in stream.parts if part.segment_id in named]
        # The newest first: with thousands of members, each finds its successor there without a look at all of them.
        successors = sorted((part for part in members if part.epoch), key=lambda part: -part.epoch)
        gone = {
            part.segment_id
            for part in members
            if part.sealed_epoch and any(part.precedes(other) for other in successors)
        }
        if gone:
            stream.parts = [part for part in stream.parts if part.segment_id not in gone]
            self._delete_segments(gone)
            self.streams.changed(stream)

    def _stream_deleted(self, record: f.StreamDeleted) -> None:
        stream = self.streams.remove(record.stream_id)
        if stream is None:
            return
        self._delete_segments(stream.segment_ids)
        self.reconfigured_streams[record.stream_id] = None

    def _cut_saved(self, record: f.CutSaved) -> None:
        stream = self.streams.get(record.stream_id)
        if stream is not None:
            stream.cuts[record.kind, record.name] = f.SavedCut(
                record.kind, record.name, record.saved_us, record.positions
            )
            self.streams.changed(stream)

    def _cut_forgotten(self, record: f.CutForgotten) -> None:
        stream = self.streams.get(record.stream_id)
        if stream is not None:
            stream.cuts.pop((record.kind, record.name), None)
            self.streams.changed(stream)
