"""Checks of records about transactions on the admitted view, before they are logged: see `decision_checks`."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from millrace.model.transaction import TransactionState
from millrace.server.container.state.current_batch import CurrentBatch
from millrace.server.container.state.segment_admission import check_end, require
from millrace.server.container.state.transaction import ENDED_STATES, Transaction
from millrace.server.errors import DecisionMisfitError
from millrace.server.kinds.producers.records import check_producer
from millrace.server.kinds.streams.admission import check_epochs
from millrace.wire import messages as m
from millrace.wire.limits import EVENT_COUNT_MAX

_low: Final = attrgetter("low")


def check_parts(
    batch: CurrentBatch, number: int, streams: Sequence[m.TransactionStream], parts: Sequence[m.PartRecord]
) -> None:
    """Raise unless parts can be created: each holds a range by which the transaction routes to one of its streams."""
    batch.check_new_segments("transactions", number, [part.segment_id for part in parts])
    routes = {stream.stream_id: stream.ranges for stream in streams} if parts else {}
    for part in parts:
        ranges = routes.get(part.stream_id, ())
        place = bisect_right(ranges, part.low, key=_low) - 1
        if place < 0 or (ranges[place].low, ranges[place].last) != (part.low, part.last):
            raise batch.unfit(
                "transactions", number, f"part {part.segment_id} of it has keys by which it does not route"
            )


def admit_begin(batch: CurrentBatch, record: m.TransactionBegun) -> None:
    """Check the beginning of a transaction."""
    known = batch.state.admitted_transaction(record.number)
    require(known is None, record, f"transaction {record.number} exists")
    _check_unused(batch, record, record.parts)


def admit_parts(batch: CurrentBatch, record: m.PartsAdded) -> None:
    """Check new parts."""
    transaction = _transaction(batch, record, record.number, (TransactionState.OPEN,))
    check_parts(batch, record.number, transaction.streams, record.parts)
    _check_unused(batch, record, record.parts)


def _check_unused(batch: CurrentBatch, record: m.Record, parts: Iterable[m.PartRecord]) -> None:
    """Check that no record in flight creates one of these parts."""
    for part in parts:
        require(part.segment_id not in batch.state.admitted_segments, record, f"segment {part.segment_id} exists")


def admit_prepare(batch: CurrentBatch, record: m.TransactionPrepared) -> None:
    """Check a preparation."""
    transaction = _transaction(batch, record, record.number, (TransactionState.OPEN,))
    _check_dropped(record, transaction, record.dropped)


def _check_dropped(record: m.Record, transaction: Transaction, segment_ids: Iterable[int]) -> None:
    require(
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
    require(found in states, record, f"transaction {number} is {found.name}")
    return transaction


def admit_ends(batch: CurrentBatch, record: m.TransactionsEnded) -> None:
    """Check the ends of transactions without a commit."""
    require(record.state in ENDED_STATES, record, f"transactions do not end in state {record.state}")
    for number in record.numbers:
        _transaction(batch, record, number, (TransactionState.OPEN, TransactionState.PREPARED))


def admit_commit(batch: CurrentBatch, record: m.TransactionCommitted) -> None:
    """Check a commit."""
    transaction = _transaction(batch, record, record.number, (TransactionState.OPEN, TransactionState.PREPARED))
    if record.epochs:
        check_epochs(batch, record, record.epochs)
    _check_committed_parts(batch, record, transaction)
    _check_dropped(record, transaction, record.dropped)
    require(len(record.producers) <= 1, record, f"transaction {record.number} has more than one producer")
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
        require(
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
            check_end(record, target, offset)
            end, event_counts[target_id] = offset, target.next_event_count
        require(offset == end, record, f"a part would be at {offset} of segment {target_id}, and not at {end}")
        ends[target_id] = end + size
        event_counts[target_id] += event_count
        require(
            event_counts[target_id] <= EVENT_COUNT_MAX,
            record,
            f"segment {target_id} would have more than {EVENT_COUNT_MAX} events",
        )
