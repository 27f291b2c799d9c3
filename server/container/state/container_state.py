"""What a container knows: its segments, writers and streams, as its log says.

`apply.apply_batch` is the only code that changes it from records of the log; the flusher changes what is about chunks.

Only what is in use, and what the next checkpoint has to store, is in memory; the rest is in the last checkpoint. See
`residency.entity_cache`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.server.container.memtable import Extent, LinkedExtent
from millrace.server.container.residency.entity_cache import RESIDENT_COUNT_MAX, Archive, CacheChanges, EntityCache

from .garbage import DeleteAfter, GarbageQueue
from .segment import ChunkRecord, Segment
from .stream import Stream
from .writer import Writer


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
        self.changed_progress: set[tuple[int, int]] = set()
        self.changed_attributes: set[tuple[int, str]] = set()
        self._forgotten_writers: set[int] = set()
        self._taken: Changes | None = None
        # Of the last batch of the log that is applied.
        self.sequence = 0
        # Segments whose watchers have to be told; `take_woken` empties it.
        self._woken: set[Segment] = set()
        # Bytes of all tails: durable, not yet in tier 2, held in memory.
        self.tail_bytes = 0
        # Segments with a tail.
        self.unflushed: dict[int, Segment] = {}
        # Segments whose bytes stand in the tail of another, which they were merged into.
        self.merged: dict[int, Segment] = {}
        # Chunks that nothing refers to any more.
        self.garbage = GarbageQueue()

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
            progress=self.changed_progress,
            attributes=self.changed_attributes,
            forgotten_writers=self._forgotten_writers,
            chunks={
                number: (segment.stored_chunks, list(segment.chunks)) for number, segment in segments.changed.items()
            },
            next_id=self.next_id,
        )
        self.changed_progress, self.changed_attributes, self._forgotten_writers = set(), set(), set()
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
        self.changed_progress |= {pair for pair in changes.progress if pair[1] not in self._forgotten_writers}
        self.changed_attributes |= changes.attributes
        self._forgotten_writers |= changes.forgotten_writers

    def wake(self, segment: Segment) -> None:
        """Take note that the watchers of a segment have to be told of a change, if it has any."""
        if segment.watchers:
            self._woken.add(segment)

    def take_woken(self) -> set[Segment]:
        """Return the segments whose watchers have to be told, which is now up to the caller."""
        woken, self._woken = self._woken, set()
        return woken

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
                self.delete_segments([extent.source_id], delete_after=delete_after)
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
        self.use_id(segment_id)
        self.segments.add(segment)
        return segment

    def add_damage(self, segment: Segment, start: int, end: int, source: str) -> None:
        """Refuse reads of [start, end) of a segment from now on, as far as they are not refused already."""
        segment.add_damage(start, end, source)
        self.segments.changed(segment)

    def use_id(self, number: int) -> None:
        """Take note that a number was given: none up to it will be given again."""
        self.next_id = max(self.next_id, number + 1)

    def delete_segments(
        self, segment_ids: Iterable[int], *, delete_after: DeleteAfter = DeleteAfter.CHECKPOINT
    ) -> None:
        """Delete segments with everything in them; their chunks become garbage."""
        for segment_id in segment_ids:
            segment = self.segments.remove(segment_id)
            if segment is None:
                continue
            self.merged.pop(segment_id, None)
            segment.deleted = True
            self.garbage.add((chunk.name for chunk in segment.chunks), delete_after=delete_after)
            self.release(segment, segment.length, delete_after=delete_after)
            self.wake(segment)

    def forget_progress(self, writer_numbers: Iterable[int]) -> None:
        """Forget how far these writers have come, in every segment; of idle segments the next checkpoint does it.

        A segment that is loaded before that still has it, which does no harm: the numbers are never used again.
        """
        numbers = set(writer_numbers)
        self._forgotten_writers |= numbers
        self.changed_progress = {pair for pair in self.changed_progress if pair[1] not in numbers}
        for segment in self.segments.present():
            for number in segment.writers.keys() & numbers:
                del segment.writers[number]
