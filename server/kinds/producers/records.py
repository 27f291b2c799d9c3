"""Applies records about producers to either view of the state."""

from collections.abc import Mapping
from typing import Final

from millrace.server.container.kind import Applier, RecordStep
from millrace.server.container.state.current_batch import CurrentBatch
from millrace.server.container.state.quarantine import UnfitRecordError
from millrace.server.container.views import move
from millrace.wire import messages as m

from .row import ProducerRecord, producers_of, released_of, rows_of, step


def check_producer(batch: CurrentBatch, record: ProducerRecord) -> None:
    """Raise unless the number and the id of a record belong to one producer, or both are free."""
    producers, number = rows_of(batch.view), record.number
    row = producers.get(number)
    if row is not None:
        if row.writer_id != record.producer_id:
            raise batch.unfit("producers", number, f"it is {row.writer_id}, not {record.producer_id}")
        return
    batch.check_number("producers", number)
    before = producers.find(record.producer_id)
    if before is not None:
        raise batch.unfit("producers", before.number, f"{record.producer_id} is to be producer {number}, too")


def _note_new(batch: CurrentBatch, record: ProducerRecord) -> None:
    """Note a producer that is about to be created: it may never commit anything."""
    if producers_of(batch.state).loaded(record.number) is None:
        released_of(batch.state).add(record.producer_id)


def _end_damage(batch: CurrentBatch, record: m.ProducersForgotten) -> None:
    for number in record.numbers:
        if producers_of(batch.state).loaded(number) is not None:  # else damage has taken its creation
            batch.state.quarantine.discard("producers", number)


def _changed(batch: CurrentBatch, record: ProducerRecord) -> None:
    batch.state.use_id(record.number)
    move(rows_of(batch.view), record.number, step, record)


def _committed(batch: CurrentBatch, record: m.TransactionCommitted) -> None:
    for producer in record.producers:
        try:
            check_producer(batch, producer)
            _changed(batch, producer)
        except UnfitRecordError as error:
            batch.refuse(error)


def _forgotten(batch: CurrentBatch, record: m.ProducersForgotten) -> None:
    for number in record.numbers:
        move(rows_of(batch.view), number, step, record)


RECORDS: Final[Mapping[type[m.Record], RecordStep]] = {
    m.ProducerTaken: RecordStep(_note_new, check=check_producer),
    m.ProducerReset: RecordStep(_note_new, check=check_producer),
    m.SequenceDescribed: RecordStep(_note_new, check=check_producer),
    m.ProducersForgotten: RecordStep(_end_damage, removes=True),
}
TRANSITIONS: Final[Mapping[type[m.Record], Applier]] = {
    m.ProducerTaken: _changed,
    m.ProducerReset: _changed,
    m.SequenceDescribed: _changed,
    m.ProducersForgotten: _forgotten,
    m.TransactionCommitted: _committed,
}
