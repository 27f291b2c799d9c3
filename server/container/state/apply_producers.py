"""What records about producers do to the state."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from millrace.model.producer import ProducerRow
from millrace.wire import messages as m

from .apply_segments import CurrentBatch
from .container_state import ContainerState
from .producer import KnownProducer


def commit_producer(state: ContainerState, committed: m.CommittedProducer) -> None:
    """Record that a sequence is committed; a run of which damage has taken the record takes over."""
    _change(state, committed, lambda row: row.taken(committed.holder, committed.run).committed(committed.sequence))


def _taken(batch: CurrentBatch, record: m.ProducerTaken) -> None:
    _change(batch.state, record, lambda row: row.taken(record.holder, record.run))


def _reset(batch: CurrentBatch, record: m.ProducerReset) -> None:
    _change(batch.state, record, lambda row: row.reset(record.holder))


def _described(batch: CurrentBatch, record: m.SequenceDescribed) -> None:
    _change(batch.state, record, lambda row: row.with_fingerprint(record.sequence, record.fingerprint))


def _change(
    state: ContainerState,
    record: m.ProducerTaken | m.ProducerReset | m.SequenceDescribed | m.CommittedProducer,
    change: Callable[[ProducerRow], ProducerRow],
) -> None:
    """Change the durable row of the producer of a record, which is new if there is none."""
    producer = state.producers.loaded(record.number)
    if producer is None:
        producer = state.admitted_producers.pop(record.producer_id, None) or KnownProducer(
            number=record.number, writer_id=record.producer_id
        )
        state.use_id(producer.number)
        state.producers.add(producer)
    producer.row = change(producer.row)
    state.producers.changed(producer)


APPLIERS: Final[Mapping[type, Callable[[CurrentBatch, Any], None]]] = {
    m.ProducerTaken: _taken,
    m.ProducerReset: _reset,
    m.SequenceDescribed: _described,
}
