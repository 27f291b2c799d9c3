"""The batch of the log that is being applied, and the checks that its records share.

Each record is checked against the state before it changes anything. What does not fit is an `UnfitRecordError`, which
`CurrentBatch.unfit` makes, so that every such error names batch and record.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.model.key_range import KeyRange, covers_once
from millrace.server.container.ids import CONTAINER_SHIFT, container_of
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun
from millrace.wire.limits import EVENT_COUNT_MAX

from .container_state import ContainerState, StateView
from .quarantine import CONTAINER, EntityDamage, UnfitRecordError
from .segment import Segment

OFFSET_MAX: Final = (1 << 63) - 1
"""Offsets, and all numbers but places of keys, are stored with a sign."""
IDS_COUNT_MAX: Final = 1 << (CONTAINER_SHIFT - 1)
"""No container comes to use half of its numbers: a higher one was never given."""
_NUMBER_FIELDS: Final = frozenset({"number", "segment_id", "stream_id", "writer_number", "source_id", "target_id"})
"""Of records and their parts, the fields that name an entity."""
EPOCH_MAX: Final = 1 << 31
"""No epoch of a stream or a writer comes to half of what a record can hold: the next ones can still be written."""


@dataclass(slots=True)
class CurrentBatch:
    """The batch that is being applied, and the state which it is applied to.

    Attributes:
        view: the view that transitions change, durable or admitted.
        sequence, wall_time_us: of the batch.
        may_block: whether the checkpoint is asked for entities that are not in memory, as in a recovery. A running
            server gives each number once, and its event loop never waits for the disk.
        index: of the item that is being applied, from 0.
        item: that item.
    """

    state: ContainerState
    view: StateView
    sequence: int
    wall_time_us: int
    may_block: bool = False
    index: int = field(default=0, init=False)
    item: Any = field(default=None, init=False)

    def unfit(self, kind: str, number: int, reason: str, *, end: int = 0) -> UnfitRecordError:
        """Return the error that the current item does not fit an entity; see `EntityDamage`."""
        if number <= 0 or kind == CONTAINER:  # no entity has such a number, and no request is to be refused for it
            kind, number = CONTAINER, 0
        item = self.item
        record = "APPEND" if isinstance(item, AppendRun) else item.type.name
        return UnfitRecordError(
            EntityDamage(kind, number, self.sequence, self.index, record, reason, min(end, OFFSET_MAX))
        )

    def refuse(self, error: UnfitRecordError) -> None:
        """Quarantine what the current item does not fit. The numbers that it gave are known: none is given again."""
        self.state.quarantine.add(error.damage)
        for number in _given_numbers(self.item):
            if self._may_give(number):
                self.state.use_id(number)

    def check_number(self, kind: str, number: int) -> None:
        """Raise unless this container may have given a number."""
        if not self._may_give(number):
            container = container_of(self.state.scalars.next_id)
            raise self.unfit(kind, number, f"{number} is not a number that container {container} gives")

    def _may_give(self, number: int) -> bool:
        container = container_of(self.state.scalars.next_id)
        return 0 < number - (container << CONTAINER_SHIFT) < IDS_COUNT_MAX

    def find(self, kind: str, number: int) -> Any:
        """Return an entity that need not be pinned; None if it does not exist, or need not be loaded to know that."""
        cache = self.state.caches[kind]
        return cache.get(number) if self.may_block else cache.peek(number)

    def check_new(self, kind: str, number: int) -> None:
        """Raise unless a number is free for a new entity."""
        self.check_number(kind, number)
        if self.find(kind, number) is not None:
            raise self.unfit(kind, number, "it would be created, but exists already")

    def check_new_segments(self, kind: str, number: int, segment_ids: Iterable[int]) -> None:
        """Raise, about the entity that gets them, unless segments can be created under these ids."""
        seen: set[int] = set()
        for segment_id in segment_ids:
            try:
                self.check_new("segments", segment_id)
            except UnfitRecordError as error:
                raise self.unfit(kind, number, f"segment {segment_id} of it: {error.damage.reason}") from None
            if segment_id in seen:
                raise self.unfit(kind, number, f"segment {segment_id} would be created twice")
            seen.add(segment_id)

    def check_ranges(self, kind: str, number: int, ranges: Iterable[KeyRange]) -> None:
        """Raise, about an entity, unless each key is in exactly one of some ranges."""
        if not covers_once(ranges):
            raise self.unfit(kind, number, "its open segments would not cover each key exactly once")

    def key_range(self, kind: str, number: int, low: int, last: int) -> KeyRange:
        """Return the range from `low` to `last`, both included; raise, about an entity, if it is empty."""
        if low > last:
            raise self.unfit(kind, number, f"the key range from {low} to {last} is empty")
        return KeyRange.inclusive(low, last)

    def check_room(self, segment: Segment, offset: int, *, size: int, event_count: int) -> None:
        """Raise unless bytes can be added to a segment at an offset. A gap before them is what damage took."""
        end = offset + size
        number = segment.segment_id
        if offset < segment.length:
            raise self.unfit(
                "segments", number, f"{size} bytes belong at offset {offset}, but it has {segment.length}", end=end
            )
        if segment.link is not None:
            raise self.unfit("segments", number, f"it was merged into segment {segment.link.target_id}", end=end)
        if end > OFFSET_MAX:
            raise self.unfit("segments", number, f"it would end at {end}, above {OFFSET_MAX}")
        if segment.event_count + event_count > EVENT_COUNT_MAX:
            raise self.unfit("segments", number, f"it would have more than {EVENT_COUNT_MAX} events", end=end)


def _given_numbers(item: Any) -> Iterator[int]:
    """Yield what may be numbers of entities in an item, or in a part of it."""
    if isinstance(item, UnstorableRecord):
        item = item.record
    if isinstance(item, AppendRun):
        yield item.segment_id
        return
    names: Iterable[str] = getattr(item, "_fields", ()) or item.__slots__
    for name in names:
        value = getattr(item, name)
        if isinstance(value, list):
            for each in value:
                if isinstance(each, tuple):
                    yield from _given_numbers(each)
        elif name in _NUMBER_FIELDS:
            yield value


@dataclass(frozen=True, slots=True)
class UnstorableRecord:
    """A record with a number that no server gives, since none could be stored with a sign.

    Attributes:
        field_name, value: that number.
    """

    record: m.Record
    field_name: str
    value: int

    @property
    def type(self) -> Any:
        """The type of the record."""
        return self.record.type


def checked_record(record: m.Record) -> m.Record | UnstorableRecord:
    """Return a record that was read back, or what stands for it if one of its numbers is too large."""
    too_large = number_above_max(record)
    return record if too_large is None else UnstorableRecord(record, *too_large)


def number_above_max(record: m.Record, *, but: Collection[str] = ()) -> tuple[str, int] | None:
    """Return the first field with a number that cannot be stored, and that number; None if all can be.

    Args:
        but: fields that are not looked at.
    """
    names: Iterable[str] = record.__slots__
    for name in names:
        if name not in but and (value := _too_large(getattr(record, name))) is not None:
            return name, value
    return None


def _too_large(value: Any) -> int | None:
    """Return a number in a field that is above the greatest one, None if there is none; of key ranges, all are good."""
    if isinstance(value, int):
        return value if value > OFFSET_MAX else None
    if isinstance(value, tuple):
        names: tuple[str, ...] = getattr(value, "_fields", ())
        value = [each for name, each in zip(names, value, strict=True) if name not in {"low", "last"}]
    if isinstance(value, list):
        return next((found for each in value if (found := _too_large(each)) is not None), None)
    return None
