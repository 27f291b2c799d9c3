"""Entities that the log contradicts: damaged, and refused until an operator accepts that or they are deleted.

A record of the log may be whole and still not fit the state: two appends at one offset, a second creation of a segment,
an epoch that begins twice. Only a fault of a server writes such a record. It is damage as a flipped bit is: the record
is not applied, and the entity that it contradicts is *quarantined*:

    reads of a segment           are served up to its length, and refused there
    requests that change it      are refused; but for those which truncate, delete, abort or forget
    the outcome of a commit      is refused as damaged, if a part of it could not be applied
    everything else              is served

The first record that did not fit is named in each refusal, by `verify` and by `repair`. A checkpoint stores what is
quarantined, since the log before it is recycled.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from millrace.server.container.kind import Kinds
from millrace.server.errors import ContentLostError, SegmentDamagedError
from millrace.wire import messages as m

from .segment import Segment

CONTAINER: Final = "container"
"""The kind of damage that no single entity has: it is named, and nothing is refused for it."""


class EntityDamage(NamedTuple):
    """A record of the log that did not fit an entity, as a checkpoint stores it.

    Attributes:
        kind, number: of the entity; of the container itself, `CONTAINER` and 0.
        sequence: of the batch.
        place: of the record in its batch, from 0.
        record: the type of the record, or APPEND.
        reason: what did not fit.
        end: of a segment, no record that did not fit has given out an offset from this on; 0 if none gave out any.
        accepted: 1 once an operator has accepted it: only the outcome of a transaction is still refused then.
    """

    kind: str
    number: int
    sequence: int
    place: int
    record: str
    reason: str
    end: int = 0
    accepted: int = 0

    @property
    def entity(self) -> str:
        """The entity, for people."""
        noun = self.kind.removesuffix("s")
        return f"{noun} {self.number}" if self.number else noun

    def __str__(self) -> str:
        return (
            f"{self.entity} is damaged: record {self.place} of batch {self.sequence} of the log, {self.record}, cannot "
            f"be applied to it: {self.reason}"
        )

    def error(self) -> ContentLostError:
        """Return the refusal of a request about the entity."""
        hint = (
            ""
            if self.accepted
            else "; delete it, or stop the server and accept that with `millrace repair --accept-loss`"
        )
        return ContentLostError(f"{self}{hint}")


class UnfitRecordError(Exception):
    """A record cannot be applied: raised by what applies it, before anything is changed, and caught by the fold alone.

    Attributes:
        damage: what does not fit which entity.
    """

    def __init__(self, damage: EntityDamage) -> None:
        super().__init__(str(damage))
        self.damage = damage


class Quarantine:
    """The damaged entities of a container.

    Args:
        kinds: of the entities.
        stored: those that the last checkpoint has.
    """

    __slots__ = ("_by_entity", "_kinds", "_news")

    def __init__(self, kinds: Kinds, stored: Iterable[EntityDamage] = ()) -> None:
        self._kinds = kinds
        self._by_entity = {(damage.kind, damage.number): damage for damage in stored}
        self._news: list[EntityDamage] = []

    def __bool__(self) -> bool:
        return bool(self._by_entity)

    def __len__(self) -> int:
        return len(self._by_entity)

    def __iter__(self) -> Iterator[EntityDamage]:
        return iter(self._by_entity.values())

    def get(self, kind: str, number: int) -> EntityDamage | None:
        """Return the damage of an entity, None if it has none."""
        return self._by_entity.get((kind, number))

    def add(self, damage: EntityDamage) -> None:
        """Quarantine an entity; of one that is so already, the first damage is the one that is named."""
        key = (damage.kind, damage.number)
        known = self._by_entity.get(key)
        if known is None or known.accepted:
            self._by_entity[key] = damage
            self._news.append(damage)
        else:
            self._by_entity[key] = known._replace(end=max(known.end, damage.end))

    def discard(self, kind: str, number: int) -> None:
        """Forget the damage of an entity: it was deleted, or an operator has accepted the damage."""
        self._by_entity.pop((kind, number), None)

    def take_news(self) -> list[EntityDamage]:
        """Return what was quarantined since this was asked last."""
        news, self._news = self._news, []
        return news

    def check_changeable(self, record: m.Record) -> None:
        """Raise ContentLostError if a decision would change a damaged entity."""
        if self._kinds.records[type(record)].removes:
            return
        named = m.required_entities(record)
        for kind in {kind for kind, _ in self._by_entity} - {CONTAINER}:
            for number in self._kinds.named(kind, named):
                damage = self._by_entity.get((kind, number)) if isinstance(number, int) else None
                if damage is not None and not damage.accepted:
                    raise damage.error()

    def check_appendable(self, segment_id: int, writer_number: int) -> None:
        """Raise ContentLostError if a segment, or a writer, is damaged."""
        damage = self._by_entity.get(("segments", segment_id)) or self._by_entity.get(("writers", writer_number))
        if damage is not None:
            raise damage.error()

    def check_readable(self, segment: Segment, offset: int) -> None:
        """Raise SegmentDamagedError if a segment is damaged and a read begins where it ends."""
        damage = self._by_entity.get(("segments", segment.segment_id))
        if damage is not None and offset >= segment.length:
            raise segment.error(SegmentDamagedError, f"{damage}; what the log says of it ends at {segment.length}")
