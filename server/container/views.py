"""The two views of the rows of a kind, and the step that moves both.

A *row* is a frozen value: the state of one entity. New requests are decided on the *admitted* row, which is ahead of
the *durable* row by the records in flight. A kind has one pure `step(row, record) -> row`, and no other code makes a
row: admission runs it on the admitted view when a record is queued, the fold runs it on the durable view when the
record is durable. So the admitted view is the fold of the durable one and of all records in flight.

    admitted    durable
    row         None        the creation is queued: the entity is not in its cache yet
    row         row         the entity exists
    None        row         the deletion is queued
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from .dirty_set import DirtySet
from .entity_cache import EntityCache

Row = TypeVar("Row")
Entity = TypeVar("Entity", bound="EntityRows[Any]")
Step = Callable[[Row | None, Any], Row | None]
"""Returns the row after a record: None for no row, before and after it."""


class View(Protocol[Row]):
    """The rows of one kind in one view, by number."""

    def get(self, number: int, /) -> Row | None:
        """Return a row, None if the entity does not exist; it is pinned."""
        ...

    def put(self, number: int, row: Row | None, /) -> None:
        """Replace a row; None deletes the entity."""
        ...


class NamedView(View[Row], Protocol[Row]):
    """A view of a kind whose entities have names."""

    def __len__(self) -> int:
        """How many entities exist, or will; the admitted view counts those whose deletion is queued."""
        ...

    def find(self, name: str, /) -> Row | None:
        """Return a row by name, None if there is none. Blocks if the entity must be loaded."""
        ...


def move(view: View[Row], number: int, step: Step[Row], record: Any) -> None:
    """Replace a row by the row after a record, unless the step returns the very row."""
    before = view.get(number)
    after = step(before, record)
    if after is not before:
        view.put(number, after)


class EntityRows(Generic[Row]):
    """An entity in memory: its row in either view, equal unless a record about it is in flight."""

    __slots__ = ("admitted", "durable", "name", "number")

    def __init__(self, number: int, name: str, row: Row) -> None:
        self.number = number
        self.name = name
        self.durable: Row | None = row
        self.admitted: Row | None = row

    @property
    def row(self) -> Row:
        """The durable row, which each entity of a cache has."""
        assert self.durable is not None, "the creation is queued"
        return self.durable

    def admit_as_durable(self) -> None:
        """Make the durable row the admitted one: nothing is queued."""
        self.admitted = self.durable


class AdmittedView(Generic[Row, Entity]):
    """The admitted rows of one kind, and the entities whose creation is queued.

    Args:
        cache: the entities that have a durable row.
        make: returns the entity of a row.

    Attributes:
        queued: by number, the entities whose creation is queued.
    """

    def __init__(self, cache: EntityCache[Entity], make: Callable[[Row], Entity]) -> None:
        self._cache = cache
        self._make = make
        self.queued: dict[int, Entity] = {}
        self._queued_names: dict[str, Entity] = {}

    def __len__(self) -> int:
        """Implement `NamedView`."""
        return len(self._cache) + len(self.queued)

    def get(self, number: int) -> Row | None:
        """Implement `View`."""
        entity = self.entity(number)
        return None if entity is None else entity.admitted

    def find(self, name: str) -> Row | None:
        """Implement `NamedView`."""
        entity = self.find_entity(name)
        return None if entity is None else entity.admitted

    def put(self, number: int, row: Row | None) -> None:
        """Implement `View`."""
        entity = self.entity(number)
        if entity is not None:
            entity.admitted = row
        elif row is not None:
            entity = self._make(row)
            entity.durable = None
            self.queued[number] = entity
            if entity.name:
                self._queued_names[entity.name] = entity

    def durable(self) -> "DurableView[Row, Entity]":
        """Return the view of the durable rows."""
        return DurableView(self._cache, self._make, admitted=self)

    def entity(self, number: int) -> Entity | None:
        """Return a pinned entity, or one whose creation is queued; None if there is none."""
        return self.queued.get(number) or self._cache.pinned(number)

    def find_entity(self, name: str) -> Entity | None:
        """Return an entity by name, also one whose creation is queued. Blocks if it must be loaded."""
        return self._queued_names.get(name) or self._cache.find(name)

    def take_queued(self, number: int) -> Entity | None:
        """Remove and return an entity whose creation is durable now; None if its creation was not queued."""
        entity = self.queued.pop(number, None)
        if entity is not None and self._queued_names.get(entity.name) is entity:
            del self._queued_names[entity.name]
        return entity


class DurableView(Generic[Row, Entity]):
    """The durable rows of one kind, which its cache has."""

    def __init__(
        self, cache: EntityCache[Entity], make: Callable[[Row], Entity], *, admitted: AdmittedView[Row, Entity]
    ) -> None:
        self._cache = cache
        self._make = make
        self._admitted = admitted

    def __len__(self) -> int:
        """Implement `NamedView`."""
        return len(self._cache)

    def get(self, number: int) -> Row | None:
        """Implement `View`."""
        entity = self._cache.loaded(number)
        return None if entity is None else entity.durable

    def find(self, name: str) -> Row | None:
        """Implement `NamedView`."""
        entity = self._cache.find(name)
        return None if entity is None else entity.durable

    def put(self, number: int, row: Row | None) -> None:
        """Implement `View`."""
        entity = self._cache.loaded(number)
        if entity is None:
            if row is not None:
                entity = self._admitted.take_queued(number) or self._make(row)
                entity.durable = row
                self._cache.add(entity)
        elif row is None:
            self._cache.remove(number)
        else:
            entity.durable = row
            self._cache.changed(entity)


class MapView(dict[int, Row], Generic[Row]):
    """All rows of one kind in one view, by number: of a kind that is in memory as a whole, without a cache.

    Change it by `put` only.

    Args:
        changed: gets the number of each row that is replaced or deleted, for the next checkpoint.
    """

    def __init__(self, rows: Mapping[int, Row], *, changed: DirtySet[int] | None = None) -> None:
        super().__init__(rows)
        self._changed = changed

    def put(self, number: int, row: Row | None) -> None:
        """Implement `View`."""
        before = self.get(number)
        if row is None:
            self.pop(number, None)
        else:
            self[number] = row
        if self._changed is not None and row != before:
            self._changed.add(number)

    def become(self, rows: Mapping[int, Row]) -> None:
        """Have the rows of another view."""
        self.clear()
        self.update(rows)


def move_all(view: View[Row], numbers: Iterable[int], step: Step[Row], record: Any) -> None:
    """Replace each of some rows by the row after a record."""
    for number in numbers:
        move(view, number, step, record)
