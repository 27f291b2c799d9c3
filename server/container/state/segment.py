"""The state of one segment in memory.

There are two views of a segment. The *durable* one (`length`, `sealed`, `event_count`, ...) is what readers see and
what a checkpoint stores; it changes only when the log has synced. The *admitted* one (`next_offset`, `closing`,
`leaving`, the admitted numbers of its writers) runs ahead of it by what is queued for the log; decisions about new
requests are made on it. Both change in the same order, the order of the log.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Protocol

from millrace.model.key_range import KeyRange
from millrace.model.names import is_internal
from millrace.model.position import Position
from millrace.server.container.memtable import Extent, LinkedExtent, Memtable
from millrace.server.errors import (
    InvalidArgumentError,
    OffsetBeyondEndError,
    SegmentDamagedError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
    ServerError,
)
from millrace.server.tier2 import ChunkRecord

from .sparse_index import SparseIndex

ATTRIBUTE_OVERHEAD_BYTES: Final = 256
"""Counted for each attribute beside its key and its value: the objects that hold it in memory."""
SEGMENT_SIZE_BYTES: Final = 2200
CHUNK_SIZE_BYTES: Final = 400
PROGRESS_SIZE_BYTES: Final = 180
INDEX_ENTRY_SIZE_BYTES: Final = 24
"""Memory of a segment, and of one of what it has many of (measured, rounded up)."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [start, end) of a segment that were lost to damage, and where."""

    start: int
    end: int
    source: str


def attribute_size(key: str, value: bytes) -> int:
    """Return what an attribute counts against the limits of attributes: 0 for a mark that the server made."""
    return 0 if key.startswith("#") else ATTRIBUTE_OVERHEAD_BYTES + len(key.encode()) + len(value)


@dataclass(slots=True, eq=False)
class WriterProgress:
    """How far one writer is in one segment: the number of its last event, durable and admitted."""

    durable: int = 0
    last_offset: int = -1  # of the first byte of the last run; -1 if not known
    admitted: int = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the admitted view of the durable one."""
        self.admitted = self.durable


START_INDEX_ROW: Final = "#start_index"
"""The name under which the checkpoint stores `Segment.start_index`, beside the attributes. Clients cannot set it."""


class Watcher(Protocol):
    """Someone who waits at the tail: a parked read or a subscription."""

    def segment_changed(self) -> None:
        """Called in the event loop after bytes became durable, or the segment was sealed, truncated or deleted."""
        ...


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Segment:
    """One segment; see the module docstring for its two views."""

    segment_id: int
    name: str
    created_us: int
    stream_id: int = 0  # 0 for a raw segment
    keys: KeyRange | None = None  # of a segment of a stream
    start_offset: int = 0
    # Events of the block at `start_offset` that are truncated; 0 if the bytes there are not a block.
    start_index: int = 0
    length: int = 0
    event_count: int = 0
    sealed: bool = False
    deleted: bool = False
    # Everything below this offset is in tier 2, lost, or in `unreadable`; everything from it on is in `tail`.
    flushed_offset: int = 0
    # These begin empty; no arguments, for each default of one is asked for, and every transaction makes segments.
    chunks: list[ChunkRecord] = field(init=False)
    damages: list[DamagedRange] = field(init=False)
    attributes: dict[str, bytes] = field(init=False)
    writers: dict[int, WriterProgress] = field(init=False)
    tail: Memtable = field(init=False)
    # Merged segments below `flushed_offset` that could not be copied because of damage. They hold no part of the log.
    # Reads go through the link, so all bytes are served again if missing chunks are put back.
    unreadable: list[LinkedExtent] = field(init=False)
    index: SparseIndex = field(init=False)
    watchers: set[Watcher] = field(init=False)
    # Where the bytes are now, if this segment was merged into another. It stays until they are copied there.
    link: LinkedExtent | None = None
    # What the attributes count against their limits, durable and admitted.
    attribute_bytes: int = field(init=False)
    admitted_attribute_bytes: int = field(init=False)
    # Admitted: where the next append goes, the events before it; whether a seal is queued; whether something is queued
    # that ends the segment: its own delete, that of its stream, a merge into another.
    next_offset: int = field(init=False)
    next_event_count: int = field(init=False)
    closing: bool = False
    leaving: bool = False
    # Whether it is the server's own: requests do not change it, and no list or count for users has it.
    is_internal: bool = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the admitted view of the durable one."""
        self.chunks, self.damages, self.attributes, self.writers = [], [], {}, {}
        self.tail, self.unreadable, self.index, self.watchers = Memtable(), [], SparseIndex(), set()
        self.attribute_bytes = self.admitted_attribute_bytes = 0
        self.next_offset = self.length
        self.next_event_count = self.event_count
        self.is_internal = is_internal(self.name)

    def admit_as_durable(self) -> None:
        """Let the admitted view be the durable one: nothing is queued."""
        self.next_offset = self.length
        self.next_event_count = self.event_count
        self.admitted_attribute_bytes = self.attribute_bytes
        for progress in self.writers.values():
            progress.admitted = progress.durable

    @property
    def start(self) -> Position:
        """The position of the first event that is left, or the end."""
        return Position(self.start_offset, self.start_index)

    def check_present(self) -> None:
        """Raise if the segment is not there any more once everything is durable that is queued."""
        if self.deleted or self.leaving:
            raise SegmentNotFoundError("the segment was deleted", subject=self.name)

    def check_appendable(self) -> None:
        """Raise if the segment takes no more appends."""
        self.check_present()
        if self.sealed or self.closing:
            raise SegmentSealedError(
                "the segment is sealed", subject=self.name, start_offset=self.start_offset, length=self.next_offset
            )

    def check_readable(self, offset: int) -> None:
        """Raise if a read may not start at `offset`."""
        if self.deleted:
            raise SegmentNotFoundError("the segment was deleted", subject=self.name)
        if offset < self.start_offset:
            raise self.error(
                SegmentTruncatedError,
                f"offset {offset} was truncated; the segment now holds [{self.start_offset}, {self.length})",
            )
        if offset > self.length:
            raise self.error(
                OffsetBeyondEndError,
                f"offset {offset} is beyond the end; the segment holds [{self.start_offset}, {self.length})",
            )
        for damage in self.damages:
            if damage.start <= offset < damage.end:
                raise self.error(
                    SegmentDamagedError, f"bytes [{damage.start}, {damage.end}) are damaged in {damage.source}"
                )

    def check_event_readable(self, offset: int, event_index: int) -> None:
        """Raise SegmentTruncatedError if this event is truncated and its block is not.

        A cut may go through a block. The bytes of the block stay until all its events are truncated.
        """
        if offset == self.start_offset and event_index < self.start_index:
            raise self.error(
                SegmentTruncatedError,
                f"event {event_index} of the block at {offset} was truncated; the segment now starts at event"
                f" {self.start_index} of that block",
            )

    def check_changeable(self) -> None:
        """Raise InvalidArgumentError if no request of a user may change the segment."""
        if self.is_internal:
            raise self.unchangeable()

    def unchangeable(self) -> InvalidArgumentError:
        """Return the refusal of a request that would change an internal segment."""
        return InvalidArgumentError("the segment is internal; only the server changes it", subject=self.name)

    def error(self, kind: type[ServerError], message: str) -> ServerError:
        """Return an error that tells which bytes the segment holds."""
        return kind(
            message,
            subject=self.name,
            start_offset=self.start_offset,
            start_index=self.start_index,
            length=self.length,
        )

    def extent_at(self, offset: int) -> Extent | LinkedExtent | None:
        """Return the extent that holds the byte at `offset`, None if it is in a chunk, or lost."""
        extent = self.tail.at(offset)
        if extent is None and self.unreadable:
            return next((link for link in self.unreadable if link.offset <= offset < link.end), None)
        return extent

    def chunk_from(self, start_offset: int) -> ChunkRecord | None:
        """Return the chunk that starts there, None if there is none."""
        place = bisect_left(self.chunks, start_offset, key=attrgetter("start_offset"))
        if place < len(self.chunks) and self.chunks[place].start_offset == start_offset:
            return self.chunks[place]
        return None

    def add_damage(self, start: int, end: int, source: str) -> None:
        """Refuse reads of [start, end) from now on, as far as they are not refused already."""
        for known in sorted(self.damages, key=lambda damage: damage.start):
            if known.start <= start < known.end:
                start = known.end
            elif start < known.start < end:
                self.damages.append(DamagedRange(start, known.start, source))
                start = known.end
        if start < end:
            self.damages.append(DamagedRange(start, end, source))

    def has_lost(self, extent: Extent) -> bool:
        """Return whether bytes were given up before: what a log had lost, and what was put back later."""
        return extent.end > self.length or any(
            damage.start < extent.end and extent.offset < damage.end for damage in self.damages
        )

    def limit_before_damage(self, offset: int, end: int) -> int:
        """Return the end of the bytes from `offset` on that can be in chunks, at most `end`."""
        starts = [damage.start for damage in self.damages] + [link.offset for link in self.unreadable]
        return min((start for start in starts if offset < start < end), default=end)

    def replace_attributes(self, attributes: dict[str, bytes]) -> None:
        """Take other attributes as the durable and the admitted ones."""
        self.attributes = attributes
        self.attribute_bytes = sum(attribute_size(*each) for each in attributes.items()) if attributes else 0
        self.admitted_attribute_bytes = self.attribute_bytes

    def set_attribute(self, key: str, value: bytes | None) -> None:
        """Set an attribute in the durable view; None removes it."""
        old = self.attributes.pop(key, None)
        if old is not None:
            self.attribute_bytes -= attribute_size(key, old)
        if value is not None:
            self.attributes[key] = value
            self.attribute_bytes += attribute_size(key, value)

    @property
    def memory_bytes(self) -> int:
        """About how much memory this takes, its unflushed bytes aside."""
        return (
            SEGMENT_SIZE_BYTES
            + CHUNK_SIZE_BYTES * len(self.chunks)
            + PROGRESS_SIZE_BYTES * len(self.writers)
            + INDEX_ENTRY_SIZE_BYTES * len(self.index)
            + ATTRIBUTE_OVERHEAD_BYTES * len(self.attributes)
            + self.attribute_bytes
        )

    def notify(self) -> None:
        """Tell everyone who waits at the tail that something changed."""
        for watcher in list(self.watchers):
            watcher.segment_changed()

    def check(self) -> None:
        """Assert the invariants of the durable view; called by all that changes it, but for appends, which only add."""
        assert 0 <= self.start_offset <= self.length
        assert self.start_index >= 0
        assert self.start_offset < self.length or not self.start_index
        assert self.flushed_offset <= self.length
        assert not self.tail or self.tail.first.offset >= self.flushed_offset
        assert not self.chunks or self.start_offset < self.chunks[0].end_offset
        assert not self.chunks or self.chunks[-1].end_offset <= self.length
