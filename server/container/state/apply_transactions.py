"""What the records of decisions about transactions do to the state."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from millrace.model.transaction import IMPLICIT_BRANCH, TransactionState
from millrace.wire import messages as m

from .apply_producers import commit_producer
from .apply_segments import CurrentBatch, merge_segment, seal_segments
from .apply_streams import begin_epoch
from .container_state import ContainerState
from .transaction import Transaction, part_of, segment_of_part, transaction_of

_EPOCH_CAUSE: Final = "a transaction that began before the stream was scaled"


def _ids_reserved(batch: CurrentBatch, record: m.IdsReserved) -> None:
    batch.state.use_id(record.first + record.count - 1)


def _begun(batch: CurrentBatch, record: m.TransactionBegun) -> None:
    state = batch.state
    if state.transactions.loaded(record.number) is not None:
        return
    _free_name(state, record.name)
    transaction = state.admitted_transactions.pop(record.number, None) or transaction_of(record)
    state.use_id(transaction.number)
    state.transactions.add(transaction)
    state.open_transactions.add(transaction)
    _add_parts(state, transaction, record.parts, branch=IMPLICIT_BRANCH, created_us=record.begun_us)


def _free_name(state: ContainerState, name: str) -> None:
    """Let a name lead to the transaction that begins now; the numbers of those that had it may be higher."""
    before = state.transactions.find(name) if name else None
    if before is not None:
        before.name = ""
        state.transactions.renamed(before, old_name=name)


def _parts_added(batch: CurrentBatch, record: m.PartsAdded) -> None:
    state = batch.state
    transaction = state.transactions.loaded(record.number)
    if transaction is None or transaction.state.is_final:
        return  # damage has taken its beginning; what is appended to the parts is in lost segments, until the commit
    _add_parts(state, transaction, record.parts, branch=record.branch, created_us=record.added_us)


def _add_parts(
    state: ContainerState, transaction: Transaction, parts: Sequence[m.PartRecord], *, branch: int, created_us: int
) -> None:
    """Give an open transaction those of some parts that it does not have."""
    for part in parts:
        segment_id = part.segment_id
        if segment_id in transaction.parts:
            continue
        # What was admitted is the very object, if it still is.
        transaction.parts[segment_id] = transaction.admitted_parts.get(segment_id) or part_of(part, branch=branch)
        segment = state.admitted_segments.pop(segment_id, None) or segment_of_part(segment_id, created_us=created_us)
        if state.segments.peek(segment_id) is None:
            state.add_segment(segment)
        state.touch("parts", transaction.number, segment_id)
    state.open_transactions.add_parts(transaction, [part.segment_id for part in parts])
    state.transactions.changed(transaction)


def _prepared(batch: CurrentBatch, record: m.TransactionPrepared) -> None:
    state = batch.state
    transaction = state.transactions.loaded(record.number)
    if transaction is None or transaction.state is not TransactionState.OPEN:
        return  # damage has taken its beginning
    _delete_parts(state, record.dropped)
    state.open_transactions.drop_parts(transaction, record.dropped)
    for segment_id in record.dropped:
        if transaction.parts.pop(segment_id, None) is not None:
            state.touch("parts", transaction.number, segment_id)
    transaction.state = TransactionState.PREPARED
    state.open_transactions.note_prepared(transaction)
    transaction.digest, transaction.branches = record.digest, record.branches
    state.transactions.changed(transaction)


def _committed(batch: CurrentBatch, record: m.TransactionCommitted) -> None:
    state = batch.state
    transaction = state.transactions.loaded(record.number)
    if transaction is None:  # damage has taken its beginning
        transaction = Transaction(number=record.number, name=record.name, begun_us=record.committed_us, lease_ms=0)
        _free_name(state, record.name)
        state.transactions.add(transaction)
    if transaction.state.is_final:
        return
    for epoch in record.epochs:
        _begin_epoch(batch, epoch, started_us=record.committed_us)
    for part in record.parts:
        target = state.segments.loaded(part.target_id)
        if target is None:
            continue  # damage has taken its creation
        merge_segment(
            batch,
            state.segments.loaded(part.source_id),
            target,
            source_id=part.source_id,
            source_start=0,
            target_offset=part.target_offset,
            size=part.size,
            event_count=part.event_count,
        )
        state.written_bytes[target.stream_id] += part.size
        state.written_events[target.stream_id] += part.event_count
    for cursor in record.cursors:
        stream = state.streams.loaded(cursor.stream_id)
        if stream is not None:
            kind = m.CutKind.CURSOR
            before = stream.cuts.get((kind, cursor.name))
            hold_s = 0 if before is None else before.hold_s
            stream.cuts[kind, cursor.name] = m.SavedCut(
                kind, cursor.name, record.committed_us, cursor.positions, hold_s
            )
            state.streams.changed(stream)
            state.moved_cursors.add(stream.stream_id)
    for producer in record.producers:
        commit_producer(state, producer)
    _delete_parts(state, record.dropped)
    transaction.digest = record.digest
    transaction.cuts = record.cuts
    _end(batch, transaction, TransactionState.COMMITTED, decided_us=record.committed_us)


def _begin_epoch(batch: CurrentBatch, epoch: m.CommitEpochRecord, *, started_us: int) -> None:
    stream = batch.state.streams.loaded(epoch.stream_id)
    if stream is None or epoch.epoch <= stream.epoch:
        return  # damage has taken its creation
    begin_epoch(
        batch,
        stream,
        m.EpochRecord(
            number=epoch.epoch,
            started_us=started_us,
            cause=_EPOCH_CAUSE,
            sealed_ids=epoch.sealed_ids,
            created=epoch.created,
        ),
    )
    seal_segments(batch, epoch.sealed_ids)
    batch.state.streams.changed(stream)


def _ended(batch: CurrentBatch, record: m.TransactionsEnded) -> None:
    for transaction in _loaded(batch.state, record.numbers):
        if transaction.state.is_final:
            continue
        _delete_parts(batch.state, transaction.parts)
        _end(batch, transaction, TransactionState(record.state), decided_us=record.ended_us)


def _delete_parts(state: ContainerState, segment_ids: Iterable[int]) -> None:
    """Delete what is not committed."""
    for segment_id in list(segment_ids):
        segment = state.segments.loaded(segment_id)
        if segment is not None and segment.link is None:
            state.delete_segments([segment_id])


def _end(batch: CurrentBatch, transaction: Transaction, outcome: TransactionState, *, decided_us: int) -> None:
    """Keep nothing of a transaction but its outcome."""
    state = batch.state
    # Before its pins end: with the last one, what differs from the checkpoint in nothing may be evicted at once.
    state.transactions.changed(transaction)
    state.open_transactions.end(transaction)
    for segment_id in transaction.parts:
        state.touch("parts", transaction.number, segment_id)
    transaction.forget_parts()
    transaction.streams = []
    if outcome is TransactionState.COMMITTED:
        transaction.producer = None  # else it says why it is never committed, whenever that is asked for again
    transaction.state = transaction.admitted_state = outcome
    transaction.admitted_digest = transaction.digest
    transaction.branches = transaction.admitted_branches = []
    transaction.decided_us = decided_us
    transaction.decided_uptime_us = state.uptime_us


def _outcomes_forgotten(batch: CurrentBatch, record: m.OutcomesForgotten) -> None:
    state = batch.state
    for transaction in _loaded(state, record.numbers):
        if transaction.state.is_final:
            state.transactions.remove(transaction.number)
            state.horizon = max(state.horizon, transaction.number + 1)


def _loaded(state: ContainerState, numbers: Iterable[int]) -> Iterable[Transaction]:
    """Yield those of some transactions that damage has not made unknown."""
    for number in numbers:
        transaction = state.transactions.loaded(number)
        if transaction is not None:
            yield transaction


APPLIERS: Final[Mapping[type, Callable[[CurrentBatch, Any], None]]] = {
    m.IdsReserved: _ids_reserved,
    m.TransactionBegun: _begun,
    m.PartsAdded: _parts_added,
    m.TransactionPrepared: _prepared,
    m.TransactionCommitted: _committed,
    m.TransactionsEnded: _ended,
    m.OutcomesForgotten: _outcomes_forgotten,
}
