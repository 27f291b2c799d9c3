"""What records about producers do to the state."""

from collections.abc import Callable, Mapping
from typing import Final

from millrace.model.producer import ProducerRow
from millrace.server.container.kind import RecordStep
from millrace.wire import messages as m

from .current_batch import CurrentBatch
from .producer import KnownProducer

ProducerRecord = m.ProducerTaken | m.ProducerReset | m.SequenceDescribed | m.CommittedProducer


def commit_producer(batch: CurrentBatch, committed: m.CommittedProducer) -> None:
    """Record that a sequence is committed; a run of which damage has taken the record takes over."""
    check_producer(batch, committed)
    _change(batch, committed, lambda row: row.taken(committed.holder, committed.run).committed(committed.sequence))


def _taken(batch: CurrentBatch, record: m.ProducerTaken) -> None:
    _change(batch, record, lambda row: row.taken(record.holder, record.run))


def _reset(batch: CurrentBatch, record: m.ProducerReset) -> None:
    _change(batch, record, lambda row: row.reset(record.holder))


def _described(batch: CurrentBatch, record: m.SequenceDescribed) -> None:
    _change(batch, record, lambda row: row.with_fingerprint(record.sequence, record.fingerprint))


def check_producer(batch: CurrentBatch, record: ProducerRecord) -> None:
    """Raise unless the number and the id of a record belong to one producer, or both are free."""
    producers, number = batch.state.producers, record.number
    producer = producers.loaded(number)
    if producer is not None:
        if producer.writer_id != record.producer_id:
            raise batch.unfit("producers", number, f"it is {producer.writer_id}, and not {record.producer_id}")
        return
    batch.check_number("producers", number)
    before = producers.find(record.producer_id)
    if before is not None:
        raise batch.unfit("producers", before.number, f"{record.producer_id} is to be producer {number}, too")


def _forgotten(batch: CurrentBatch, record: m.ProducersForgotten) -> None:
    state = batch.state
    for number in record.numbers:
        if state.producers.loaded(number) is not None:  # else damage has taken its creation
            state.producers.remove(number)
            state.quarantine.discard("producers", number)


def _change(batch: CurrentBatch, record: ProducerRecord, change: Callable[[ProducerRow], ProducerRow]) -> None:
    """Change the durable row of the producer of a record, which is new if there is none."""
    state = batch.state
    producer = state.producers.loaded(record.number)
    if producer is None:
        producer = state.admitted_producers.pop(record.producer_id, None) or KnownProducer(
            number=record.number, writer_id=record.producer_id
        )
        state.use_id(producer.number)
        state.producers.add(producer)
        state.released_producers.add(producer.writer_id)
    producer.row = change(producer.row)
    state.producers.changed(producer)


RECORDS: Final[Mapping[type[m.Record], RecordStep]] = {
    m.ProducerTaken: RecordStep(_taken, check=check_producer),
    m.ProducerReset: RecordStep(_reset, check=check_producer),
    m.SequenceDescribed: RecordStep(_described, check=check_producer),
    m.ProducersForgotten: RecordStep(_forgotten, removes=True),
}
