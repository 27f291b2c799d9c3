"""Checks of a decision before it is logged: a record that the fold would refuse does not become durable.

The code that decides checks the request. This module checks the record that results, so a fault of that code costs one
request and not the log. What the record names is pinned. There are two steps:

1. The fold's own checks (`state.apply.check_item`) compare the record with the admitted rows of the kinds that have
   them (`container.views`), and else with the durable state: numbers, ids of new entities, key ranges, kinds of cuts,
   owners of segments.
2. The checks below, for records that depend on decisions in flight. They compare it with the admitted view:

    record of                   fits if, after all that is in flight,
    merge, commit               each source has that many bytes, and goes to the end of a segment that takes appends
    truncation                  no segment starts beyond its end, and each belongs to the stream
    scale, epochs of a commit   the epoch is the next one, and replaces open segments by others with the same keys
    transaction                 the number is new, or the state is the one which the step starts from
    writer                      the epoch is the next one
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from millrace.model.key_range import KeyRange
from millrace.model.transaction import TransactionState
from millrace.server.container.state.apply import check_item
from millrace.server.container.state.apply_producers import check_producer
from millrace.server.container.state.apply_transactions import ENDED_STATES, check_parts
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.current_batch import EPOCH_MAX, CurrentBatch, number_above_max
from millrace.server.container.state.quarantine import UnfitRecordError
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.transaction import Transaction
from millrace.server.errors import DecisionMisfitError
from millrace.wire import messages as m
from millrace.wire.limits import EVENT_COUNT_MAX

logger = logging.getLogger(__name__)


def check_decision(state: ContainerState, record: m.Record) -> CurrentBatch:
    """Raise DecisionMisfitError unless a record fits the state, durable and admitted; nothing is changed.

    Returns:
        The batch for `move_rows`, once the record is queued.
    """
    try:
        return _check(state, record)
    except DecisionMisfitError as error:
        logger.critical("decision misfit error=%s", error)
        raise


def _check(state: ContainerState, record: m.Record) -> CurrentBatch:
    # The ranges of transactions are those of streams, which are stored, and there may be thousands.
    too_large = number_above_max(record, but=("streams",))
    if too_large is not None:
        raise DecisionMisfitError(f"{record.type.name} was not logged, since {too_large} cannot be stored")
    batch = CurrentBatch(state, state.admitted, sequence=state.sequence + 1, wall_time_us=0)
    batch.item = record
    check = _CHECKS.get(type(record))
    try:
        check_item(batch, record)
        if check is not None:
            check(batch, record)
    except UnfitRecordError as error:
        damage = error.damage
        raise DecisionMisfitError(
            f"{record.type.name} was not logged, since it does not fit {damage.entity}: {damage.reason}"
        ) from None
    return batch


def _require(fits: bool, record: m.Record, problem: str) -> None:
    if not fits:
        raise DecisionMisfitError(f"{record.type.name} was not logged, since {problem}; nothing was changed")


def _check_end(record: m.Record, target: Segment, offset: int) -> None:
    _require(
        offset == target.next_offset,
        record,
        f"segment {target.segment_id} ends at {target.next_offset}, and not at {offset}",
    )
    _require(
        not (target.sealed or target.closing or target.leaving or target.deleted),
        record,
        f"segment {target.segment_id} takes no more appends",
    )


def _check_event_count(record: m.Record, target: Segment, count: int) -> None:
    _require(
        target.next_event_count + count <= EVENT_COUNT_MAX,
        record,
        f"segment {target.segment_id} would have more than {EVENT_COUNT_MAX} events",
    )


def _merge(batch: CurrentBatch, record: m.SegmentMerged) -> None:
    segments = batch.state.segments
    target, source = segments.pinned(record.target_id), segments.pinned(record.source_id)
    if target is None or source is None:
        raise DecisionMisfitError(f"{record.type.name} was not logged, since one of the segments does not exist")
    _check_end(record, target, record.target_offset)
    _check_event_count(record, target, record.event_count)
    _require(
        not source.leaving
        and source.next_offset - record.source_start == record.size
        and source.next_event_count <= record.event_count,
        record,
        f"segment {source.segment_id} does not have {record.size} bytes to be merged",
    )


def _truncation(batch: CurrentBatch, record: m.SegmentTruncated) -> None:
    segment = batch.state.segments.pinned(record.segment_id)
    if segment is not None:
        _check_start(record, segment, record.offset)


def _stream_truncation(batch: CurrentBatch, record: m.StreamTruncated | m.StreamStartMoved) -> None:
    stream = batch.state.streams.pinned(record.stream_id)
    if stream is None:
        raise DecisionMisfitError(f"{record.type.name} was not logged, since stream {record.stream_id} does not exist")
    for segment_id, offset in (position[:2] for position in record.positions):
        segment = batch.state.segments.pinned(segment_id) if stream.part(segment_id) is not None else None
        if segment is None:
            raise DecisionMisfitError(
                f"{record.type.name} was not logged, since stream {stream.name} does not have segment {segment_id}"
            )
        _check_start(record, segment, offset)


def _check_start(record: m.Record, segment: Segment, offset: int) -> None:
    _require(
        offset <= segment.next_offset,
        record,
        f"segment {segment.segment_id} ends at {segment.next_offset}, before {offset}",
    )


def _scale(batch: CurrentBatch, record: m.StreamScaled) -> None:
    epoch = m.CommitEpochRecord(record.stream_id, record.epoch, record.sealed_ids, record.created)
    _check_epochs(batch, record, [epoch])


def _check_epochs(batch: CurrentBatch, record: m.Record, epochs: Sequence[m.CommitEpochRecord]) -> None:
    """Check epochs that begin one after the other, of any streams."""
    latest: dict[int, int] = {}
    open_ranges: dict[int, dict[int, KeyRange]] = {}
    created_ids = [segment_id for epoch in epochs for segment_id, _, _ in epoch.created]
    for stream_id, number, sealed_ids, created in epochs:
        stream = batch.state.streams.pinned(stream_id)
        if stream is None:
            raise DecisionMisfitError(f"{record.type.name} was not logged, since stream {stream_id} does not exist")
        batch.check_new_segments("streams", stream_id, created_ids)
        _require(not stream.sealed, record, f"stream {stream.name} is sealed")
        before = latest.get(stream_id, stream.admitted_epoch)
        _require(
            number == before + 1 <= EPOCH_MAX,
            record,
            f"stream {stream.name} is in epoch {before}, and {number} is not the next",
        )
        latest[stream_id] = number
        ranges = open_ranges.setdefault(stream_id, {each.segment_id: each.key_range for each in stream.open_parts})
        sealed = set(sealed_ids)
        _require(ranges.keys() >= sealed, record, f"not all segments to be sealed are open in stream {stream.name}")
        for segment_id in sealed:
            del ranges[segment_id]
        ranges.update(
            {segment_id: batch.key_range("streams", stream_id, low, last) for segment_id, low, last in created}
        )
        batch.check_ranges("streams", stream_id, ranges.values())


def _transaction_begun(batch: CurrentBatch, record: m.TransactionBegun) -> None:
    known = batch.state.admitted_transaction(record.number)
    _require(known is None, record, f"transaction {record.number} exists")
    _check_unused(batch, record, record.parts)


def _parts_added(batch: CurrentBatch, record: m.PartsAdded) -> None:
    transaction = _transaction(batch, record, record.number, (TransactionState.OPEN,))
    check_parts(batch, record.number, transaction.streams, record.parts)
    _check_unused(batch, record, record.parts)


def _check_unused(batch: CurrentBatch, record: m.Record, parts: Iterable[m.PartRecord]) -> None:
    """Check that no record in flight creates one of these parts."""
    for part in parts:
        _require(part.segment_id not in batch.state.admitted_segments, record, f"segment {part.segment_id} exists")


def _transaction_prepared(batch: CurrentBatch, record: m.TransactionPrepared) -> None:
    transaction = _transaction(batch, record, record.number, (TransactionState.OPEN,))
    _check_dropped(record, transaction, record.dropped)


def _check_dropped(record: m.Record, transaction: Transaction, segment_ids: Iterable[int]) -> None:
    _require(
        transaction.admitted_parts.keys() >= set(segment_ids),
        record,
        f"not all segments to be dropped are parts of transaction {transaction.number}",
    )


def _transaction(
    batch: CurrentBatch, record: m.Record, number: int, states: tuple[TransactionState, ...]
) -> Transaction:
    transaction = batch.state.admitted_transaction(number)
    if transaction is None:
        raise DecisionMisfitError(f"{record.type.name} was not logged, since transaction {number} does not exist")
    found = transaction.admitted_state
    _require(found in states, record, f"transaction {number} is {found.name}")
    return transaction


def _transactions_ended(batch: CurrentBatch, record: m.TransactionsEnded) -> None:
    _require(record.state in ENDED_STATES, record, f"transactions do not end in state {record.state}")
    for number in record.numbers:
        _transaction(batch, record, number, (TransactionState.OPEN, TransactionState.PREPARED))


def _commit(batch: CurrentBatch, record: m.TransactionCommitted) -> None:
    transaction = _transaction(batch, record, record.number, (TransactionState.OPEN, TransactionState.PREPARED))
    if record.epochs:
        _check_epochs(batch, record, record.epochs)
    _check_committed_parts(batch, record, transaction)
    _check_dropped(record, transaction, record.dropped)
    _require(len(record.producers) <= 1, record, f"transaction {record.number} has more than one producer")
    for producer in record.producers:
        check_producer(batch, producer)


def _check_committed_parts(batch: CurrentBatch, record: m.TransactionCommitted, transaction: Transaction) -> None:
    state = batch.state
    # By target: where the next part has to begin, and how many events come before it. What the commit itself creates is
    # empty.
    created = {segment_id for epoch in record.epochs for segment_id, _, _ in epoch.created}
    ends: dict[int, int] = dict.fromkeys(created, 0)
    event_counts: dict[int, int] = dict.fromkeys(created, 0)
    unmerged = set(transaction.admitted_parts)
    for source_id, target_id, offset, size, event_count in record.parts:
        source = state.admitted_segment(source_id) if source_id in unmerged else None
        _require(
            source is not None
            and not source.leaving
            and not source.start_offset
            and source.next_offset == size
            and source.next_event_count <= event_count,
            record,
            f"segment {source_id} is not a part of the transaction with {size} bytes",
        )
        unmerged.discard(source_id)
        end = ends.get(target_id)
        if end is None:
            target = state.segments.pinned(target_id)
            if target is None or not target.stream_id:
                raise DecisionMisfitError(
                    f"{record.type.name} was not logged, since segment {target_id} does not belong to a stream"
                )
            _check_end(record, target, offset)
            end, event_counts[target_id] = offset, target.next_event_count
        _require(offset == end, record, f"a part would be at {offset} of segment {target_id}, and not at {end}")
        ends[target_id] = end + size
        event_counts[target_id] += event_count
        _require(
            event_counts[target_id] <= EVENT_COUNT_MAX,
            record,
            f"segment {target_id} would have more than {EVENT_COUNT_MAX} events",
        )


def _writer_opened(batch: CurrentBatch, record: m.WriterRecorded) -> None:
    state = batch.state
    writer = state.admitted_writers.get(record.writer_id) or state.writers.peek(record.writer_number)
    if writer is not None and writer.writer_number == record.writer_number:
        _check_writer_epoch(record, writer.admitted_epoch)


def _sequences_reset(batch: CurrentBatch, record: m.SequencesReset) -> None:
    writer = batch.state.writers.pinned(record.writer_number)
    if writer is not None:
        _check_writer_epoch(record, writer.admitted_epoch)


def _check_writer_epoch(record: m.WriterRecorded | m.SequencesReset, before: int) -> None:
    _require(
        record.writer_epoch == before + 1,
        record,
        f"writer {record.writer_number} has epoch {before}, and {record.writer_epoch} is not the next",
    )


_CHECKS: Final[Mapping[type[m.Record], Callable[[CurrentBatch, Any], object]]] = {
    m.SegmentMerged: _merge,
    m.SegmentTruncated: _truncation,
    m.StreamTruncated: _stream_truncation,
    m.StreamStartMoved: _stream_truncation,
    m.StreamScaled: _scale,
    m.TransactionBegun: _transaction_begun,
    m.PartsAdded: _parts_added,
    m.TransactionPrepared: _transaction_prepared,
    m.TransactionsEnded: _transactions_ended,
    m.TransactionCommitted: _commit,
    m.WriterRecorded: _writer_opened,
    m.SequencesReset: _sequences_reset,
}
