"""The state of a container according to its log: segments, and the entities of the other kinds.

`apply.apply_batch` is the only code that changes it from records of the log; the flusher changes what is about chunks.

Only what is in use, and what the next checkpoint has to store, is in memory; the rest is in the last checkpoint. See
`entity_cache`.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Final

from millrace.model.event_times import EventTimeBounds
from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.server.container.archive import Archive
from millrace.server.container.dirty_set import DirtySet
from millrace.server.container.entity_cache import EntityCache, Pins
from millrace.server.container.idle_budget import IDLE_BYTES_MAX, IdleBudget
from millrace.server.container.kind import Kinds
from millrace.server.container.memtable import Extent, LinkedExtent
from millrace.server.container.views import AdmittedView, MapView, NamedView
from millrace.server.tier2 import ChunkRecord
from millrace.wire import messages as m

from .garbage import DeleteAfter, GarbageQueue
from .id_ranges import IdRanges
from .quarantine import EntityDamage, Quarantine
from .scalars import Scalars
from .segment import Segment, Watcher
from .sequences import SequenceView
from .stream import Stream
from .transaction import OpenTransactions, Transaction, TransactionRow
from .writer import Writer, WriterRow, admitted_sequences, durable_sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """What the last checkpoint has.

    Attributes:
        kinds: of entities.
        archives: by kind, where the entities are that are not in memory.
        counts: by kind, how many entities there are.
        internal_count: how many of the segments are internal.
        attribute_bytes: what the attributes of all segments count against their limit.
        scalars: what it knows once.
        exclusive_writers: by stream id.
        damages: of entities, which are refused.
    """

    kinds: Kinds
    archives: Mapping[str, Archive[Any]]
    counts: Mapping[str, int]
    internal_count: int
    attribute_bytes: int
    scalars: Scalars
    exclusive_writers: Mapping[int, ExclusiveWriter] = field(default_factory=dict)
    damages: Sequence[EntityDamage] = ()


LOST_NAME: Final = "lost/segment-"
"""The names of segments whose creation the log has lost begin so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """The rows of a container in one view: of the kinds whose records are applied to both views alike.

    Attributes:
        rows: by the name of the kind.
        sequences: returns how far a writer is on a stream, by their numbers; None if there is no such writer.
    """

    rows: Mapping[str, NamedView[Any]]
    exclusive_writers: MapView[ExclusiveWriter]
    sequences: Callable[[int, int], SequenceView | None]

    @property
    def transactions(self) -> NamedView[TransactionRow]:
        """The rows of transactions."""
        return self.rows["transactions"]

    @property
    def writers(self) -> NamedView[WriterRow]:
        """The rows of writers."""
        return self.rows["writers"]


class ContainerState:
    """The entities of one container, by kind, by number and by name.

    Args:
        stored: what the last checkpoint has.
        idle_bytes_max: idle segments, streams and writers take so much memory together.
        is_shared: whether another server may take the container over, see `Ownership`.
    """

    def __init__(self, stored: StoredState, *, idle_bytes_max: int = IDLE_BYTES_MAX, is_shared: bool = False) -> None:
        self.scalars = stored.scalars
        # Those of clients. Nothing has such a number before it is used, so none is looked for in the archive.
        self.reserved_ids = IdRanges()
        self.idle = IdleBudget(idle_bytes_max)
        self.kinds = stored.kinds
        # By the name of the kind.
        self.caches: dict[str, EntityCache[Any]] = {
            kind.name: EntityCache(
                number_of=attrgetter(kind.table.key[0]),
                name_of=attrgetter(kind.name_column),
                archive=stored.archives[kind.name],
                count=stored.counts[kind.name],
                stored_below=stored.scalars.next_id,
                size_of=attrgetter("memory_bytes"),
                idle=self.idle,
                is_unused=self.reserved_ids.is_unused,
            )
            for kind in stored.kinds
        }
        self.segments: EntityCache[Segment] = self.caches["segments"]
        self.writers: EntityCache[Writer] = self.caches["writers"]
        self.streams: EntityCache[Stream] = self.caches["streams"]
        self.transactions: EntityCache[Transaction] = self.caches["transactions"]
        self.open_transactions = OpenTransactions(self.transactions, self.segments)
        self._internal_count = stored.internal_count
        # What the attributes of all segments count against their limit, durable and admitted.
        self.attribute_bytes = self.admitted_attribute_bytes = stored.attribute_bytes
        # Parts of transactions whose creation is queued, by number. The record that creates one takes it from here,
        # with all that was admitted of it meanwhile.
        self.admitted_segments: dict[int, Segment] = {}
        # Streams whose exclusive writer differs from the last checkpoint.
        self.changed_exclusive: DirtySet[int] = DirtySet()
        # In memory for all streams that have some, so that an append is checked without loading its stream.
        self.event_times: dict[int, EventTimeBounds] = {}
        # Entities that the log contradicts.
        self.quarantine = Quarantine(stored.kinds, stored.damages)
        # Change feeds for the policy loop: stream -> new configuration (None: deleted), what was written to which
        # stream, and streams whose cursors changed. The consumer clears them.
        self.reconfigured_streams: dict[int, str | None] = {}
        self.written_bytes: defaultdict[int, int] = defaultdict(int)
        self.written_events: defaultdict[int, int] = defaultdict(int)
        self.moved_cursors: set[int] = set()
        admitted_rows = {
            kind.name: AdmittedView(self.caches[kind.name], kind.make) for kind in self.kinds if kind.make is not None
        }
        self.admitted_writers: AdmittedView[WriterRow, Writer] = admitted_rows["writers"]
        self.admitted_transactions: AdmittedView[TransactionRow, Transaction] = admitted_rows["transactions"]
        self.admitted = StateView(
            rows=admitted_rows,
            exclusive_writers=MapView(stored.exclusive_writers),
            sequences=partial(admitted_sequences, self.admitted_writers),
        )
        self.durable = StateView(
            rows={name: admitted.durable() for name, admitted in admitted_rows.items()},
            exclusive_writers=MapView(stored.exclusive_writers, changed=self.changed_exclusive),
            sequences=partial(durable_sequences, self.writers),
        )
        # By kind, names of entities that may be unused from now on. The loop of the kind that forgets them clears it.
        self.released: defaultdict[str, set[str]] = defaultdict(set)
        # By detail, the rows that changed, or are deleted: the number of the entity, and the rest of the key.
        self.touched: dict[str, DirtySet[tuple[int, Any]]] = {detail: DirtySet() for detail in self.kinds.touched}
        # By detail, the numbers in its `forget_column` of which all rows are removed: writers whose progress is
        # forgotten in every segment, and streams on which that of every writer is.
        self.forgotten: dict[str, DirtySet[int]] = {detail: DirtySet() for detail in self.kinds.forgettable}
        # Of the last batch of the log that is applied.
        self.sequence = 0
        # Segments with watchers, and those whose watchers have to be told; `take_woken` empties that.
        self.watched: set[Segment] = set()
        self._woken: set[Segment] = set()
        # Bytes of all tails: durable, not yet in tier 2, held in memory.
        self.tail_bytes = 0
        # Segments with a tail, and segments whose bytes are in the tail of another, which they were merged into. Either
        # is pinned by the state itself, once: tails and links are nowhere else. So are targets with unreadable links.
        self.unflushed: dict[int, Segment] = {}
        self.merged: dict[int, Segment] = {}
        # Of those with a tail the ones that are flushed for themselves: merged segments, of which there may be many
        # more, are flushed with their target, unless that could not read them.
        self.unmerged: dict[int, Segment] = {}
        self._held: dict[int, Pins] = {}
        # Chunks that nothing refers to any more.
        self.garbage = GarbageQueue(is_shared=is_shared)

    def required(self, required: m.Required) -> Iterator[tuple[EntityCache[Any], Sequence[int | str]]]:
        """Yield the keys of what a message names, with a stream its segments, and the cache of each.

        What is yielded is to be pinned before the next is asked for: which segments a stream has, it says itself.
        """
        for cache, keys, segments_of in self.named(required):
            yield cache, keys
            if segments_of is not None:
                for key in keys:
                    if (entity := cache.lookup(key)) is not None:
                        yield self.segments, segments_of(entity)

    def named(
        self, required: m.Required
    ) -> Iterator[tuple[EntityCache[Any], Sequence[int | str], Callable[[Any], Sequence[int]] | None]]:
        """Yield the keys that a message names, with their cache and what returns the segments that are meant too."""
        for scope, keys in required.items():
            kind, segments_of = self.kinds.scopes[scope]
            yield self.caches[kind], keys, segments_of

    def admitted_segment(self, segment_id: int) -> Segment | None:
        """Return a segment, also one whose creation is queued; None if there is none. Blocks if it must be loaded."""
        admitted = self.admitted_segments  # empty, unless a transaction is beginning
        return (admitted.get(segment_id) if admitted else None) or self.segments.get(segment_id)

    def admitted_transaction(self, number: int, name: str = "") -> Transaction | None:
        """Return a transaction by its number, or by its name if that is 0, also one whose beginning is queued.

        Blocks if it must be loaded.
        """
        if number:
            found = self.admitted_transactions.queued.get(number) or self.transactions.get(number)
        else:
            found = self.admitted_transactions.find_entity(name)
        return None if found is None or found.admitted is None else found

    def pin_required(self, required: m.Required, *, into: Pins) -> None:
        """Keep in memory what a message names, with a stream its segments. Blocks if something must be loaded."""
        for cache, keys in self.required(required):
            cache.pin(keys, into=into)

    def take_written(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Return the bytes and the events that were written since this was asked last, by stream; 0 of some, too."""
        written = self.written_bytes, self.written_events
        self.written_bytes, self.written_events = defaultdict(int), defaultdict(int)
        return written

    @property
    def user_segment_count(self) -> int:
        """How many segments there are that are not internal."""
        return len(self.segments) - self._internal_count

    def add_segment(self, segment: Segment) -> None:
        """Take in a new segment."""
        self.use_id(segment.segment_id)
        self.segments.add(segment)
        self._internal_count += segment.is_internal

    def take_id(self) -> int:
        """Return a fresh id, whatever it is for; never given twice."""
        number = self.scalars.next_id
        self.scalars.next_id += 1
        return number

    def take_ids(self, count: int) -> int:
        """Take so many fresh ids that follow one another, and return the first."""
        first = self.scalars.next_id
        self.scalars.next_id += count
        return first

    @property
    def added_count(self) -> int:
        """How many more entities there are than the last checkpoint has."""
        return sum(cache.added_count for cache in self.caches.values())

    @property
    def changed_count(self) -> int:
        """How many entities, and exclusive writers of streams, the next checkpoint has to store or to delete."""
        return sum([cache.changed_count for cache in self.caches.values()]) + len(self.changed_exclusive)

    def stored(self, *, stored_below: int) -> None:
        """Say that a checkpoint has what was taken of caches and details last, and every number below that."""
        for cache in self.caches.values():
            cache.stored(stored_below=stored_below)
        for rows in self.touched.values():
            rows.stored()
        for numbers in self.forgotten.values():
            numbers.stored()
        self.changed_exclusive.stored()

    def touch(self, detail: str, number: int, key: Any) -> None:
        """Record that one row of a detail of an entity changed, or is deleted."""
        self.touched[detail].add((number, key))

    def replace_chunks(self, segment: Segment, old: Sequence[ChunkRecord], new: Sequence[ChunkRecord]) -> None:
        """Put chunks of a segment in the place of others that follow one another; without those, at the end."""
        place = len(segment.chunks)
        if old:
            place = bisect_left(segment.chunks, old[0].start_offset, key=attrgetter("start_offset"))
        assert segment.chunks[place : place + len(old)] == list(old), "what is replaced is there"
        assert old or not new or not place or segment.chunks[-1].end_offset <= new[0].start_offset, "in their order"
        segment.chunks[place : place + len(old)] = new
        for chunk in (*old, *new):
            self.touch("chunks", segment.segment_id, chunk.start_offset)
        segment.check()
        self.segments.changed(segment)

    def watch(self, segment: Segment, watcher: Watcher) -> None:
        """Tell a watcher of each change of a segment, until `unwatch`."""
        segment.watchers.add(watcher)
        self.watched.add(segment)

    def unwatch(self, segment: Segment, watcher: Watcher) -> None:
        """Tell a watcher nothing more; one that is told nothing is fine."""
        segment.watchers.discard(watcher)
        if not segment.watchers:
            self.watched.discard(segment)

    def wake(self, segment: Segment) -> None:
        """Record that the watchers of a segment have to be notified of a change, if it has any."""
        if segment.watchers:
            self._woken.add(segment)

    def take_woken(self) -> set[Segment]:
        """Return the segments whose watchers have to be told, which is now up to the caller."""
        woken, self._woken = self._woken, set()
        return woken

    def hold(self, segment: Segment, extent: Extent | LinkedExtent) -> None:
        """Keep the bytes of a run in the tail of its segment until `release`."""
        number = segment.segment_id
        if number not in self.unflushed:
            self.unflushed[number] = segment
            if segment.link is None or segment.link.is_unreadable:
                self.unmerged[number] = segment
            self._hold_resident(segment)
        segment.tail.add(extent)
        if isinstance(extent, Extent):
            self.tail_bytes += extent.held_bytes

    @property
    def replay_from(self) -> int:
        """Sequence of the first batch of the log whose bytes are not all in tier 2. Looks at every tail."""
        return min((each.tail.first.sequence for each in self.unflushed.values()), default=self.sequence + 1)

    def _hold_resident(self, segment: Segment) -> None:
        """Keep a segment in memory that has a tail, a link, or something unreadable, from now on."""
        number = segment.segment_id
        if number not in self._held:
            assert self.segments.peek(number) is segment, "the tail of what was evicted is lost"
            self._held[number] = self.segments.pin((number,))

    def _let_go(self, segment: Segment) -> None:
        """Allow the eviction of a segment that has none of what keeps it in memory any more."""
        number = segment.segment_id
        if number in self._held and not (number in self.unflushed or number in self.merged or segment.unreadable):
            self._held.pop(number).release()

    def release(self, segment: Segment, offset: int, *, delete_after: DeleteAfter = DeleteAfter.CHECKPOINT) -> None:
        """Drop the tail of a segment up to `offset`: its bytes are in tier 2, or were truncated or deleted.

        `delete_after` is for the chunks of merged segments that the tail linked to: COPY if their bytes were flushed,
        since no record of the log says that.
        """
        for extent in segment.tail.release(offset):
            if isinstance(extent, Extent):
                self.tail_bytes -= extent.held_bytes
            else:
                self.delete_segments([extent.source_id], delete_after=delete_after)
        for link in [each for each in segment.unreadable if segment.deleted or each.end <= segment.start_offset]:
            segment.unreadable.remove(link)
            self.delete_segments([link.source_id], delete_after=delete_after)
        self._move_flushed(segment, offset)

    def set_aside(self, segment: Segment, link: LinkedExtent) -> None:
        """Move the first extent of a tail, a merged segment that cannot be read, out of the way of what follows.

        The merged segment is flushed for itself from then on, so that neither holds the log.
        """
        released = segment.tail.release(link.end)
        assert released == [link]
        self._set_unreadable(segment, link)
        self._move_flushed(segment, link.end)
        self.segments.changed(segment)

    def _set_unreadable(self, target: Segment, link: LinkedExtent) -> None:
        link.is_unreadable = True
        target.unreadable.append(link)
        self._hold_resident(target)
        source = self.merged[link.source_id]
        if source.tail:
            self.unmerged[link.source_id] = source

    def _move_flushed(self, segment: Segment, offset: int) -> None:
        """Move the end of what is flushed after the tail was released up to `offset`."""
        first_needed = segment.tail.first.offset if segment.tail else offset
        segment.flushed_offset = max(segment.flushed_offset, min(first_needed, segment.length))
        if not segment.tail:
            self.unflushed.pop(segment.segment_id, None)
            self.unmerged.pop(segment.segment_id, None)
            self._let_go(segment)

    def admit_as_durable(self) -> None:
        """Let the admitted view of everything be the durable one: nothing is queued. Called once, after recovery.

        What is not in memory is so anyway.
        """
        self.admitted_attribute_bytes = self.attribute_bytes
        self.admitted.exclusive_writers.become(self.durable.exclusive_writers)
        for cache in self.caches.values():
            for entity in cache.present():
                entity.admit_as_durable()

    def link(self, link: LinkedExtent) -> None:
        """Put the bytes of a merged segment into the tail of its target; both are pinned.

        A link of a checkpoint that is below what is flushed of its target was set aside.
        """
        source, target = self.segments.peek(link.source_id), self.segments.peek(link.target_id)
        assert source is not None
        assert target is not None
        self.merged[link.source_id] = source
        self._hold_resident(source)
        source.link = link
        self.unmerged.pop(link.source_id, None)
        if link.end <= target.flushed_offset:
            self._set_unreadable(target, link)
        else:
            self.hold(target, link)

    def add_lost_segment(self, segment_id: int) -> Segment:
        """Add a segment whose creation was lost to damage, under a name that says so."""
        segment = Segment(segment_id=segment_id, name=f"{LOST_NAME}{segment_id}", created_us=0)
        self.add_segment(segment)
        return segment

    def add_damage(self, segment: Segment, start: int, end: int, source: str) -> None:
        """Refuse reads of [start, end) of a segment from now on, as far as they are not refused already."""
        segment.add_damage(start, end, source)
        segment.check()
        self.segments.changed(segment)

    def use_id(self, number: int) -> None:
        """Record that a number was given: none up to it will be given again."""
        self.scalars.next_id = max(self.scalars.next_id, number + 1)

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
            if segment.link is None:  # else nobody asked for that: the damage is to be named on
                self.quarantine.discard("segments", segment_id)
            self._internal_count -= segment.is_internal
            self.attribute_bytes -= segment.attribute_bytes
            self.admitted_attribute_bytes -= segment.admitted_attribute_bytes
            self.garbage.add((chunk.name for chunk in segment.chunks), delete_after=delete_after)
            self.release(segment, segment.length, delete_after=delete_after)
            self.wake(segment)

    def forget_progress(self, writer_numbers: Iterable[int]) -> None:
        """Forget how far these writers have come, in every segment; of idle segments the next checkpoint does it.

        A segment that is loaded before that still has it, which does no harm: the numbers are never used again.
        """
        numbers = set(writer_numbers)
        for number in numbers:
            self.forgotten["progress"].add(number)
        progress = self.touched["progress"]
        for row in [row for row in progress if row[1] in numbers]:
            del progress[row]
        for segment in self.segments.present():
            for number in segment.writers.keys() & numbers:
                del segment.writers[number]

    def touch_sequences(self, writer: Writer, stream_id: int) -> None:
        """Record that how far a writer is on a stream has changed, or is forgotten."""
        self.touch("sequences", writer.number, stream_id)
        self.writers.changed(writer)

    def forget_sequences(self, stream_id: int) -> None:
        """Forget how far each writer is on a stream that is deleted; the next checkpoint does it.

        A writer that is in memory still has it, which does no harm: the id is never used again.
        """
        self.forgotten["sequences"].add(stream_id)
        sequences = self.touched["sequences"]
        for row in [row for row in sequences if row[1] == stream_id]:
            del sequences[row]
