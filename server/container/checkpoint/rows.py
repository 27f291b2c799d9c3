"""Changes of a container's state as rows to remove and to add.

A checkpoint writes the rows of what changed since the one before, so that a container of very many segments pays for
the busy ones only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.server.container.entity_cache import EntityCache
from millrace.server.container.kind import Detail
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.table import Key, Row, Table

from .exclusive_table import EXCLUSIVE_WRITERS, exclusive_writer_row


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRows:
    """What one checkpoint changes in the stored tables. Removals come first, then additions."""

    # Keys, or leading parts of keys: then all rows that begin so are removed.
    removed: Mapping[Table, Sequence[Key]]
    # The numbers in the `forget_column` of a detail of which all rows are removed.
    forgotten: Mapping[tuple[Table, str], Sequence[int]]
    added: Mapping[Table, Sequence[Row]]
    # How many rows there must be afterwards, of the tables where the state knows it.
    counts: Mapping[Table, int]
    # Columns of `meta`.
    scalars: Mapping[str, int | str]

    @property
    def next_id(self) -> int:
        """No number from this on was given."""
        return int(self.scalars["next_id"])


def take_rows(state: ContainerState) -> CheckpointRows:
    """Return copies of what is not stored yet, as it is now and durable; if they are stored, `state.stored` comes next.

    Called in the event loop, in the same step that chooses the sequence number of the checkpoint. Takes time for what
    changed only.
    """
    removed: dict[Table, list[Key]] = {}
    added: dict[Table, list[Row]] = {}
    counts: dict[Table, int] = {}
    for kind in state.kinds:
        cache = state.caches[kind.name]
        changed: list[Key] = [(number,) for number in cache.take()]
        entities = {number: entity for (number,) in changed if (entity := cache.peek(number)) is not None}
        removed[kind.table] = changed
        added[kind.table] = [kind.row(entity) for entity in entities.values()]
        counts[kind.table] = len(cache)
        for detail in kind.details:
            if detail.rows is not None:
                removed[detail.table] = changed
                added[detail.table] = [
                    (number, *row) for number, entity in entities.items() for row in detail.rows(entity)
                ]
            else:
                if detail.take_unwritten is not None:
                    for number, entity in entities.items():
                        for key in detail.take_unwritten(entity):
                            state.touch(detail.table.name, number, key)  # stays touched if this checkpoint fails
                touched = state.touched[detail.table.name].take()
                deleted = [key for key in changed if key[0] not in entities]
                removed[detail.table] = [*deleted, *map(_row_key, touched)]
                added[detail.table] = _touched_rows(detail, cache, touched)
    exclusive = state.durable.exclusive_writers
    streams = state.changed_exclusive.take()
    removed[EXCLUSIVE_WRITERS] = [(stream_id,) for stream_id in streams]
    added[EXCLUSIVE_WRITERS] = [
        exclusive_writer_row(stream_id, exclusive[stream_id]) for stream_id in streams if stream_id in exclusive
    ]
    counts[EXCLUSIVE_WRITERS] = len(exclusive)
    return CheckpointRows(
        removed=removed,
        forgotten={
            (detail.table, detail.forget_column): state.forgotten[detail.table.name].take()
            for kind in state.kinds
            for detail in kind.details
            if detail.forget_column
        },
        added=added,
        counts=counts,
        scalars=state.scalars.columns(state.quarantine),
    )


def _row_key(touched: tuple[int, Any]) -> Key:
    """Return the primary key of a touched row; a detail of several key columns is touched by a tuple of them."""
    number, key = touched
    return (number, *key) if isinstance(key, tuple) else touched


def _touched_rows(detail: Detail[Any], cache: EntityCache[Any], touched: Iterable[tuple[int, Any]]) -> list[Row]:
    """Return those of the touched rows that there are."""
    assert detail.row is not None, "a detail is stored as a whole or row by row"
    return [
        (number, *row)
        for number, key in touched
        if (entity := cache.peek(number)) is not None and (row := detail.row(entity, key)) is not None
    ]
