"""The state of one producer in memory, and the step by which records change it."""

from typing import Final

from millrace.model.producer import ProducerRow
from millrace.server.container.entity_cache import EntityCache
from millrace.server.container.state.container_state import ContainerState, StateView
from millrace.server.container.views import EntityRows, NamedView
from millrace.wire import messages as m

PRODUCER_SIZE_BYTES: Final = 700
RUN_SIZE_BYTES: Final = 110
"""Memory of a producer, and of a run that was replaced (measured with 36 letters each, rounded up)."""

ProducerRecord = m.ProducerTaken | m.ProducerReset | m.SequenceDescribed | m.CommittedProducer
"""A record, or the part of a commit, that names a producer by number and writer id: the first one creates it."""


class KnownProducer(EntityRows[ProducerRow]):
    """A producer of which a run has taken over; an idle one is in the checkpoint only."""

    __slots__ = ()

    def __init__(self, row: ProducerRow) -> None:
        super().__init__(row.number, row.writer_id, row)

    @property
    def writer_id(self) -> str:
        """The name of the producer."""
        return self.name

    @property
    def memory_bytes(self) -> int:
        """About how much memory this takes."""
        return PRODUCER_SIZE_BYTES + RUN_SIZE_BYTES * len(self.row.fenced) + len(self.row.described)


def step(row: ProducerRow | None, record: ProducerRecord | m.ProducersForgotten) -> ProducerRow | None:
    """Return the row of a producer after a record."""
    if isinstance(record, m.ProducersForgotten):
        return None
    row = row or ProducerRow(number=record.number, writer_id=record.producer_id)
    match record:
        case m.ProducerTaken():
            return row.taken(record.holder, record.run)
        case m.ProducerReset():
            return row.reset(record.holder)
        case m.SequenceDescribed():
            return row.with_fingerprint(record.sequence, record.fingerprint)
        case m.CommittedProducer():  # a run whose record damage has taken takes over
            return row.taken(record.holder, record.run).committed(record.sequence)


def producers_of(state: ContainerState) -> EntityCache[KnownProducer]:
    """Return the producers of a container."""
    return state.caches["producers"]


def rows_of(view: StateView) -> NamedView[ProducerRow]:
    """Return the rows of producers in a view."""
    return view.rows["producers"]


def released_of(state: ContainerState) -> set[str]:
    """Return the writer ids of producers that are new, or whose transaction ended without a commit.

    They may have committed nothing; `UnusedProducers` forgets these and clears the set.
    """
    return state.released["producers"]
