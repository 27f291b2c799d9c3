"""The bytes of a segment that are durable in the log and not yet in tier 2, in memory.

They are kept as they came: runs of append frames, each after its header. The headers are stripped when a
run is first read or flushed, which most runs are just once; a run of one append needs no copy even then, and a run of
appends of one size is stripped by a single strided copy. So an append of 100 bytes costs nothing here when it arrives.

The bytes of a segment that was merged into this one are not moved either: a `LinkedExtent` refers to them until the
flusher has copied them to tier 2 as chunks of this segment.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from millrace.model.checksum import Buffer
from millrace.server.tier2 import EventTimes, event_times
from millrace.wire.append_run import AppendRun
from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES

EXTENT_SIZE_BYTES: Final = 768
"""What an extent takes besides its bytes: a byte that is appended alone takes hundreds."""


class _Range:
    """The segment bytes [offset, offset + size), with the events up to and including them."""

    __slots__ = ()

    offset: int
    size: int
    event_count: int
    end_events: int

    @property
    def end(self) -> int:
        """The segment offset after the last byte."""
        return self.offset + self.size

    @property
    def start_events(self) -> int:
        """Events of the segment before these bytes."""
        return self.end_events - self.event_count


class Extent(_Range):
    """One run of appends: the segment bytes [offset, offset + size).

    Attributes:
        sequence: of the log batch that holds it; the log up to there is needed until this is in tier 2.
        end_events: events of the segment up to and including this run.
        wall_time_us: when the log wrote it.
        held_bytes: of memory that it counts as: its frames when it came, and the objects around them.
    """

    __slots__ = (
        "_event_times",
        "_payload",
        "_run",
        "end_events",
        "event_count",
        "held_bytes",
        "offset",
        "sequence",
        "size",
        "wall_time_us",
    )

    def __init__(self, run: AppendRun, *, sequence: int, end_events: int, wall_time_us: int) -> None:
        self.offset = run.offset
        self.size = run.payload_size
        self.held_bytes = len(run.frames) + EXTENT_SIZE_BYTES
        self.event_count = run.event_count
        # Until its headers are stripped; then `_payload` takes its place.
        self._run: AppendRun | None = run
        self._payload: memoryview | None = None
        self._event_times: EventTimes | None = None
        self.sequence = sequence
        self.end_events = end_events
        self.wall_time_us = wall_time_us

    def copy_frames(self) -> None:
        """Hold the frames in memory of their own: recovered ones are views of a whole log file."""
        assert self._run is not None, "stripped already"
        self._run.frames = bytes(self._run.frames)

    def drop_frames(self) -> None:
        """Keep only where the bytes are; `payload` must not be called any more."""
        self._run = None

    def payload(self) -> memoryview:
        """Return the bytes of the segment, without headers; valid for as long as the caller holds it.

        May be called in the event loop and in the thread of the flusher at once: what is replaced is replaced whole,
        and stripping twice gives the same bytes.
        """
        run = self._run
        if run is not None:
            if run.frame_count == 1:
                payload = memoryview(run.frames)[run.header_size :]
            else:
                payload = memoryview(_stripped(run.frames, count=run.frame_count, size=run.frame_size))
            self._payload = payload
            self._run = None
        assert self._payload is not None
        return self._payload

    def event_times(self) -> EventTimes:
        """Return the least and the greatest event time; in any thread, and only once is the run scanned for it."""
        if self._event_times is None:
            self._event_times = event_times(self.payload())
        return self._event_times


@dataclass(slots=True, kw_only=True, eq=False)
class LinkedExtent(_Range):
    """Bytes of the segment `target_id` that are those of another segment from `source_offset` on.

    Attributes:
        source_id: the segment that was merged; nothing else refers to it any more.
        is_unreadable: whether the flusher could not copy the bytes; see `Segment.unreadable`.
        others: as of `Extent`.
    """

    target_id: int
    offset: int
    size: int
    source_id: int
    source_offset: int
    event_count: int
    sequence: int
    end_events: int
    wall_time_us: int
    is_unreadable: bool = False

    def __post_init__(self) -> None:
        """Check it: an empty segment is merged without a link."""
        assert self.size > 0


def _stripped(frames: Buffer, *, count: int, size: int) -> bytes:
    """Return the payloads of `count` append frames, of `size` bytes each if that is not 0."""
    if size:
        return np.frombuffer(frames, np.uint8).reshape(count, size)[:, APPEND_HEADER_SIZE_BYTES:].tobytes()
    view = memoryview(frames)
    pieces = []
    position = 0
    while position < len(view):
        end = position + int.from_bytes(view[position : position + 4], "little")
        pieces.append(view[position + APPEND_HEADER_SIZE_BYTES : end])
        position = end
    return b"".join(pieces)


class Memtable:
    """The extents of one segment, in order; gaps between them are ranges lost to damage.

    Attributes:
        size: bytes held in memory; linked extents hold none.
        held_bytes: of memory that these count as; see `Extent.held_bytes`.
    """

    __slots__ = ("_extents", "_offsets", "held_bytes", "size")

    def __init__(self) -> None:
        self._extents: list[Extent | LinkedExtent] = []
        self._offsets: list[int] = []
        self.size = 0
        self.held_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._extents)

    @property
    def first(self) -> Extent | LinkedExtent:
        """The oldest extent; there must be one."""
        return self._extents[0]

    @property
    def extents(self) -> Sequence[Extent | LinkedExtent]:
        """All extents, the oldest first."""
        return self._extents

    def add(self, extent: Extent | LinkedExtent) -> None:
        """Add an extent where it belongs: the newest, or while a log is replayed, one before a linked one."""
        extents, offset = self._extents, extent.offset
        if not extents or extents[-1].end <= offset:
            extents.append(extent)
            self._offsets.append(offset)
        else:
            place = bisect_right(self._offsets, offset)
            assert place == 0 or extents[place - 1].end <= offset
            assert extent.end <= extents[place].offset
            extents.insert(place, extent)
            self._offsets.insert(place, offset)
        if isinstance(extent, Extent):
            self.size += extent.size
            self.held_bytes += extent.held_bytes

    def has_room(self, extent: Extent | LinkedExtent) -> bool:
        """Return whether no extent overlaps another one, which `add` takes then."""
        place = bisect_right(self._offsets, extent.offset)
        return (place == 0 or self._extents[place - 1].end <= extent.offset) and (
            place == len(self._extents) or extent.end <= self._extents[place].offset
        )

    def at(self, offset: int) -> Extent | LinkedExtent | None:
        """Return the extent that holds the byte at `offset`, None if it is not here."""
        place = bisect_right(self._offsets, offset) - 1
        if place >= 0 and offset < self._extents[place].end:
            return self._extents[place]
        return None

    def read(self, offset: int, size_max: int) -> list[memoryview]:
        """Return up to `size_max` bytes from `offset` on as views; fewer where memory or a contiguous part ends."""
        place = bisect_right(self._offsets, offset) - 1
        assert place >= 0
        pieces = []
        while size_max > 0 and place < len(self._extents):
            extent = self._extents[place]
            if isinstance(extent, LinkedExtent) or not extent.offset <= offset < extent.end:
                break
            piece = extent.payload()[offset - extent.offset :][:size_max]
            pieces.append(piece)
            offset += len(piece)
            size_max -= len(piece)
            place += 1
        return pieces

    def exactly(self, start: int, end: int) -> list[Extent] | None:
        """Return all extents if they are just the bytes [start, end), each of them in memory; else None."""
        extents: list[Extent] = []
        place = start
        for extent in self._extents:
            if extent.offset != place or not isinstance(extent, Extent):
                return None
            extents.append(extent)
            place = extent.end
        return extents if place == end else None

    def head(
        self, size_max: int, *, joins: Callable[[LinkedExtent], bool], links_count_max: int
    ) -> list[Extent | LinkedExtent]:
        """Return the oldest extents that are contiguous, at least one and about `size_max` bytes.

        Args:
            size_max: bytes; only a single larger extent has more.
            joins: whether a linked extent may be among them; the first one is taken to be.
            links_count_max: not more linked extents than that, at least 1.
        """
        chosen: list[Extent | LinkedExtent] = []
        size = 0
        for extent in self._extents:
            if isinstance(extent, LinkedExtent):
                if chosen and (links_count_max <= 0 or not joins(extent)):
                    break
                links_count_max -= 1
            if chosen and (extent.offset != chosen[-1].end or size + extent.size > size_max):
                break
            chosen.append(extent)
            size += extent.size
        return chosen

    def release(self, offset: int) -> list[Extent | LinkedExtent]:
        """Drop the extents that end at or before `offset`, and return them."""
        count = 0
        while count < len(self._extents) and self._extents[count].end <= offset:
            count += 1
        released = self._extents[:count]
        del self._extents[:count]
        del self._offsets[:count]
        for extent in released:
            if isinstance(extent, Extent):
                self.size -= extent.size
                self.held_bytes -= extent.held_bytes
        return released
