"""The state of one stream in memory: its segments over all epochs, and the cuts kept for it.

At any time the open segments of a stream partition the key space. Scaling replaces some of them by successors, which is
a new epoch; which segment precedes which is told by `millrace.model.lineage`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.lineage import StreamPart, parts_of_history
from millrace.wire import messages as m

STREAM_SIZE_BYTES: Final = 1500
PART_SIZE_BYTES: Final = 300
EPOCH_SIZE_BYTES: Final = 450
EPOCH_SEGMENT_SIZE_BYTES: Final = 150
CUT_SIZE_BYTES: Final = 500
CUT_POSITION_SIZE_BYTES: Final = 200
"""Memory of a stream, and of one of what it has many of (measured, rounded up)."""
PART_ROW: Final = 101
EPOCH_ROW: Final = 102
"""The kinds under which the checkpoint stores parts and epochs, beside the kinds of saved cuts (`m.CutKind`)."""


def part_key(segment_id: int) -> tuple[int, str]:
    """Return the key of the row of a part, for `ContainerState.touch`."""
    return PART_ROW, f"{segment_id:020}"


def epoch_key(number: int) -> tuple[int, str]:
    """Return the key of the row of an epoch, for `ContainerState.touch`. Its order is that of the epochs."""
    return EPOCH_ROW, f"{number:010}"


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """A stream and its parts: every segment that still has something to read.

    What a scaling does to it costs what it replaces and creates, whatever the number of older parts.
    """

    stream_id: int
    name: str
    configuration: str
    created_us: int
    epoch: int = 0
    epochs: list[m.EpochRecord] = field(default_factory=list)
    # By kind and name.
    cuts: dict[tuple[int, str], m.SavedCut] = field(default_factory=dict)
    sealed: bool = False
    # False if an earlier version stored the parts and the epochs: the next checkpoint stores a row for each of them.
    has_rows: bool = True
    # Admitted: the epoch after the commits that are queued.
    admitted_epoch: int = field(init=False)
    # All parts by id, in the order of creation; the ids of those that nothing has replaced.
    _parts: dict[int, StreamPart] = field(default_factory=dict, init=False, repr=False)
    _open_ids: dict[int, None] = field(default_factory=dict, init=False, repr=False)
    # The ids of parts that held nothing when they were replaced.
    _empty_ids: set[int] = field(default_factory=set, init=False, repr=False)
    # The ids of the parts without the first replaced ones, as many as `head` has found empty.
    _from_head: dict[int, None] = field(default_factory=dict, init=False, repr=False)
    _passed_count: int = field(default=0, init=False, repr=False)
    # The ids of the other parts and the epochs that replaced them, in the order of these epochs.
    _replaced_ids: list[int] = field(default_factory=list, init=False, repr=False)
    _replaced_in: list[int] = field(default_factory=list, init=False, repr=False)
    # The open parts in the order of their keys, None until they are asked for: every commit does it several times.
    _open_parts: tuple[StreamPart, ...] | None = field(default=None, init=False, repr=False)
    # The same in the form in which transactions have them; None until one begins.
    _routes: m.TransactionStream | None = field(default=None, init=False, repr=False)
    # The segments that the first epochs name, and the number of these epochs: epochs are only added.
    _counted: tuple[int, int] = field(default=(0, 0), init=False, repr=False)

    def __post_init__(self) -> None:
        """Begin with the admitted view of the durable one."""
        self.admit_as_durable()

    def admit_as_durable(self) -> None:
        """Let the admitted view be the durable one: nothing is queued."""
        self.admitted_epoch = self.epoch

    @property
    def memory_bytes(self) -> int:
        """About how much memory this takes, without its segments."""
        known, segment_count = self._counted
        segment_count += sum(len(epoch.sealed_ids) + len(epoch.created) for epoch in self.epochs[known:])
        self._counted = len(self.epochs), segment_count
        return (
            STREAM_SIZE_BYTES
            + len(self.configuration)
            + PART_SIZE_BYTES * len(self._parts)
            + EPOCH_SIZE_BYTES * len(self.epochs)
            + EPOCH_SEGMENT_SIZE_BYTES * segment_count
            + CUT_SIZE_BYTES * len(self.cuts)
            + CUT_POSITION_SIZE_BYTES * sum(len(cut.positions) for cut in self.cuts.values())
        )

    @property
    def parts(self) -> list[StreamPart]:
        """All parts, in the order of creation."""
        return list(self._parts.values())

    @parts.setter
    def parts(self, parts: Iterable[StreamPart]) -> None:
        self._parts = {part.segment_id: part for part in parts}
        self._arrange()

    @property
    def part_count(self) -> int:
        """The number of parts."""
        return len(self._parts)

    @property
    def empty_count(self) -> int:
        """The number of parts that held nothing when they were replaced."""
        return len(self._empty_ids)

    def is_empty(self, segment_id: int) -> bool:
        """Return whether a part held nothing when it was replaced."""
        return segment_id in self._empty_ids

    def mark_empty(self, segment_id: int) -> None:
        """Record that a part held nothing when it was replaced."""
        if segment_id in self._parts:
            self._empty_ids.add(segment_id)

    def head(self) -> tuple[int, list[StreamPart]]:
        """Return the first parts with anything to read, and the epoch before the first of them was replaced.

        What was replaced up to that epoch held nothing. So the starts of these parts are a cut, before everything that
        the stream has.
        """
        ids, epochs = self._replaced_ids, self._replaced_in
        # Each empty segment is passed once, however often this is called.
        while self._passed_count < len(ids):
            together = ids[self._passed_count : bisect_right(epochs, epochs[self._passed_count])]
            if not self._empty_ids.issuperset(together):
                break
            for segment_id in together:
                del self._from_head[segment_id]
            self._passed_count += len(together)
        border = epochs[self._passed_count] if self._passed_count < len(ids) else self.epoch + 1
        lows: list[int] = []
        found: dict[int, StreamPart] = {}
        left = KEY_SPACE
        # In the order of creation: a part that shares keys with an earlier one comes after it.
        for segment_id in self._from_head:
            part = self._parts[segment_id]
            place = bisect_right(lows, part.key_range.last)
            if place and part.overlaps(found[lows[place - 1]]):
                continue
            lows.insert(place, part.key_range.low)
            found[part.key_range.low] = part
            left -= part.key_range.width
            if not left:
                break
        return border - 1, [found[low] for low in lows]

    @property
    def segment_ids(self) -> list[int]:
        """The ids of all parts."""
        return list(self._parts)

    @property
    def open_ids(self) -> list[int]:
        """The ids of the parts that nothing has replaced."""
        return list(self._open_ids)

    @property
    def open_parts(self) -> tuple[StreamPart, ...]:
        """The parts of the current epoch, in the order of their keys."""
        if self._open_parts is None:
            found = (self._parts[segment_id] for segment_id in self._open_ids)
            self._open_parts = tuple(sorted(found, key=lambda part: part.key_range.low))
        return self._open_parts

    def replaced_parts(self, first: int, last: int | None = None) -> list[StreamPart]:
        """Return the parts that were replaced from one epoch on up to another, in the order of these epochs."""
        end = None if last is None else bisect_right(self._replaced_in, last)
        return [self._parts[each] for each in self._replaced_ids[bisect_left(self._replaced_in, first) : end]]

    def replaced_count(self, last: int) -> int:
        """Return how many parts were replaced up to an epoch."""
        return bisect_right(self._replaced_in, last)

    def parts_around(self, segment_ids: Iterable[int]) -> list[StreamPart]:
        """Return parts among which are those of a cut, all after them, and all that can be on both sides of it.

        A part that was replaced before every part of the cut precedes those with which it shares keys. So the others
        are enough to check the cut, and to continue after it.
        """
        members = [self._parts[segment_id] for segment_id in segment_ids if segment_id in self._parts]
        first = min((part.sealed_epoch for part in members if part.sealed_epoch), default=self.epoch + 1)
        return [*self.replaced_parts(first), *self.open_parts]

    @property
    def routes(self) -> m.TransactionStream:
        """The parts of the current epoch, by which all route who write to a transaction that begins now."""
        parts = self.open_parts
        if self._routes is None or self._routes.epoch != self.epoch:
            ranges = [m.SegmentRangeRecord(part.segment_id, part.key_range.low, part.key_range.last) for part in parts]
            self._routes = m.TransactionStream(self.stream_id, self.epoch, ranges)
        return self._routes

    def part(self, segment_id: int) -> StreamPart | None:
        """Return the part of a segment, None if it has none (any more)."""
        return self._parts.get(segment_id)

    def epoch_record(self, number: int) -> m.EpochRecord | None:
        """Return the record of an epoch, None if damage has taken it."""
        place = bisect_left(self.epochs, number, key=lambda epoch: epoch.number)
        return self.epochs[place] if place < len(self.epochs) and self.epochs[place].number == number else None

    def history(self) -> list[StreamPart]:
        """Return every segment that the stream ever had."""
        return parts_of_history(epoch.epoch() for epoch in self.epochs)

    def drop_parts(self, segment_ids: Iterable[int]) -> None:
        """Forget parts that have nothing to read any more."""
        for segment_id in segment_ids:
            del self._parts[segment_id]
            self._empty_ids.discard(segment_id)
        self._arrange()

    def begin_epoch(self, record: m.EpochRecord) -> None:
        """Replace parts by their successors."""
        for segment_id in record.sealed_ids:
            if segment_id in self._open_ids:
                del self._open_ids[segment_id]
                self._parts[segment_id] = replace(self._parts[segment_id], sealed_epoch=record.number)
                self._replaced_ids.append(segment_id)
                self._replaced_in.append(record.number)
        for segment_id, low, last in record.created:
            self._parts[segment_id] = StreamPart(
                segment_id=segment_id, key_range=KeyRange.inclusive(low, last), epoch=record.number
            )
            self._open_ids[segment_id] = self._from_head[segment_id] = None
        self._open_parts = self._routes = None
        self.epoch = record.number
        self.admitted_epoch = max(self.admitted_epoch, record.number)
        self.epochs.append(record)

    def _arrange(self) -> None:
        """Find the open and the replaced ones among the parts."""
        parts = self._parts.values()
        self._open_ids = {part.segment_id: None for part in parts if not part.sealed_epoch}
        replaced = sorted((part for part in parts if part.sealed_epoch), key=lambda part: part.sealed_epoch)
        self._replaced_ids = [part.segment_id for part in replaced]
        self._replaced_in = [part.sealed_epoch for part in replaced]
        self._from_head, self._passed_count = dict.fromkeys(self._parts), 0
        self._open_parts = self._routes = None
