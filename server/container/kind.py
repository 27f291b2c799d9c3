"""A kind of entity, as the one declaration from which the container derives all else about it.

From a `Kind` follow its cache, what requests and records can name of it, the records of the log that change it, its
tables in the checkpoint, how it is read back, its verification, what `inspect` shows, the requests that it answers, its
loops and its metrics. All kinds of a container are
one `Kinds`; the list is in `kinds`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from millrace.server.host.metric_help import Figures
from millrace.wire import messages as m

from .archive import Archive
from .service import Service
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
        forget_column: a column of numbers, with an index, by which rows of all entities are removed at once
            (`ContainerState.forgotten`, by the name of the table); empty if there is none.
        take_unwritten: returns the keys of rows that an entity has and that were never stored as rows, once.
    """

    table: Table
    load: Callable[[Entity, list[Row]], None] | None = None
    rows: Callable[[Entity], Iterable[Row]] | None = None
    row: Callable[[Entity, Any], Row | None] | None = None
    forget_column: str = ""
    take_unwritten: Callable[[Entity], Iterable[Any]] | None = None


Applier = Callable[[Any, Any], None]
"""Changes the state; called with the `CurrentBatch` and a record."""


class RecordStep(NamedTuple):
    """What the fold does with a record of the log, beside its transitions.

    Attributes:
        apply: changes the durable state, before the transitions; None if the transitions are all.
        check: called in the same way; raises UnfitRecordError if it does not fit the state, and changes nothing.
        admission: called after `check` before the record is logged, with the admitted view; raises DecisionMisfitError
            if the record does not fit what is in flight, and changes nothing.
        removes: whether the record only removes something, so that it is allowed for a damaged entity.
        after: changes the durable state too, after the transitions.
    """

    apply: Applier | None
    check: Callable[[Any, Any], None] | None = None
    admission: Callable[[Any, Any], None] | None = None
    removes: bool = False
    after: Applier | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[Entity]):
    """A kind of entity with a number and a name.

    Attributes:
        table: with one row for each entity; its key is the number. The kind is called as its table.
        name_column: the column, and the attribute of an entity, with its name.
        row: returns the row of an entity.
        load: makes an entity of its row; its admitted view is the durable one.
        details: what else is stored of it.
        make: returns an entity of a row, for a kind whose transitions move rows in two views.
        restore_state: called once with the `ContainerState` and the archive after a checkpoint was loaded: puts into
            memory what the container needs of entities that are not loaded. Blocks.
        archive: makes what reads the stored entities, with the queries of this kind, of a `CheckpointReader`.
        records: what each of its records does.
        transitions: what records do to the rows of this kind in either view (see `views`), also records of other kinds.
        problems: yields what is wrong with the entities of a stored `ContainerState`, for `millrace verify`; loads them
            all, and blocks. None if nothing is checked but the rows.
        service: what works on its entities in an open container; None if nothing does.
        scopes: further names under which a message can name entities (see `m.Names`), each with what returns the
            segments that are meant with an entity.
    """

    table: Table
    name_column: str
    row: Callable[[Entity], Row]
    load: Callable[..., Entity]
    details: tuple[Detail[Entity], ...] = ()
    make: Callable[[Any], Entity] | None = None
    restore_state: Callable[[Any, Any], None] | None = None
    archive: "Callable[[Any, Kind[Entity]], Archive[Entity]]"
    records: Mapping[type[m.Record], RecordStep] = field(default_factory=dict)
    transitions: Mapping[type[m.Record], Applier] = field(default_factory=dict)
    problems: Callable[[Any], Iterable[str]] | None = None
    service: Service | None = None
    scopes: Mapping[str, Callable[[Entity], Sequence[int]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the kind: a plural."""
        return self.table.name

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables of the kind."""
        return (self.table, *(detail.table for detail in self.details))

    @property
    def figures(self) -> Figures:
        """The metrics of its service."""
        return {} if self.service is None else self.service.figures

    def restore(self, row: Row, rows_of: Callable[[Table], list[Row]]) -> Entity:
        """Return an entity from its row; `rows_of` returns its rows in another table, in the order of their keys."""
        entity = self.load(**dict(zip(self.table.columns[:-1], row, strict=True)))
        for detail in self.details:
            if detail.load is not None:
                detail.load(entity, [each[1:] for each in rows_of(detail.table)])
        return entity


class Kinds:
    """The kinds of a container, in the order of their tables.

    Attributes:
        tables: of all kinds.
        records: what each record does, of all kinds.
        transitions: what each record does to the rows of kinds that have two views.
        touched: the names of the details that are stored row by row.
        forgettable: the names of the details that have a `forget_column`.
        scopes: of all kinds: the kind of the entities, and what returns the segments that are meant with one.
    """

    def __init__(self, *kinds: Kind[Any]) -> None:
        self._by_name: Final = {kind.name: kind for kind in kinds}
        self.tables: Final = tuple(table for kind in kinds for table in kind.tables)
        self.records: Final = {record: step for kind in kinds for record, step in kind.records.items()}
        self.transitions: Final = {
            record: tuple(kind.transitions[record] for kind in kinds if record in kind.transitions)
            for record in self.records
        }
        self.touched: Final = tuple(
            detail.table.name for kind in kinds for detail in kind.details if detail.row is not None
        )
        self.forgettable: Final = tuple(
            detail.table.name for kind in kinds for detail in kind.details if detail.forget_column
        )
        self.scopes: Final[Mapping[str, tuple[str, Callable[[Any], Sequence[int]] | None]]] = {
            **{kind.name: (kind.name, None) for kind in kinds},
            **{scope: (kind.name, segments) for kind in kinds for scope, segments in kind.scopes.items()},
        }

    def __iter__(self) -> Iterator[Kind[Any]]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Kind[Any]:
        return self._by_name[name]

    def named(self, kind: str, required: m.Required) -> Iterator[int | str]:
        """Yield the keys of all entities of a kind that a message names."""
        for scope, keys in required.items():
            if self.scopes[scope][0] == kind:
                yield from keys
