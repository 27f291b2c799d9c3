"""What a checkpoint has to know of one kind of thing, as a declaration from which everything else about it is derived.

From a `Kind` follow the statements that make its tables, what a checkpoint stores of what changed, how an entity is
read back, verification, and what `inspect` shows. What a cache of entities needs besides is in `ContainerState`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .table import Row, Table

Entity = TypeVar("Entity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail(Generic[Entity]):
    """A table with any number of rows for each entity of a kind; its first column is the number of the entity.

    Attributes:
        table: where they are.
        load: puts the rows of an entity, in the order of their keys, into it. Its number is left out of them. None if
            they are not loaded with it.
        rows: returns all rows of an entity, without its number: they are replaced whenever the entity has changed.
        row: returns the row of one key of an entity, None if it has none: for tables of which the state says what
            changed row by row (`ContainerState.touch`, by the name of the table), since an entity may have very many.
        take_unwritten: returns the keys of rows that an entity has and that were never stored as rows, once.
    """

    table: Table
    load: Callable[[Entity, list[Row]], None] | None = None
    rows: Callable[[Entity], Iterable[Row]] | None = None
    row: Callable[[Entity, Any], Row | None] | None = None
    take_unwritten: Callable[[Entity], Iterable[Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[Entity]):
    """A kind of things with a number and a name.

    Attributes:
        table: with one row for each entity; its key is the number.
        name: the column with the name.
        row: returns the row of an entity.
        load: makes an entity of its row; its admitted view is the durable one.
        details: what else is stored of it.
    """

    table: Table
    name: str
    row: Callable[[Entity], Row]
    load: Callable[..., Entity]
    details: tuple[Detail[Entity], ...] = ()

    def restore(self, row: Row, rows_of: Callable[[Table], list[Row]]) -> Entity:
        """Return an entity from its row; `rows_of` returns its rows in another table, in the order of their keys."""
        entity = self.load(**dict(zip(self.table.columns[:-1], row, strict=True)))
        for detail in self.details:
            if detail.load is not None:
                detail.load(entity, [each[1:] for each in rows_of(detail.table)])
        return entity
