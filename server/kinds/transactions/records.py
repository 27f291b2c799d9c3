"""Applies the records of decisions about transactions to the state."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from millrace.model.transaction import IMPLICIT_BRANCH, TransactionState
from millrace.server.container.kind import Applier, RecordStep
from millrace.server.container.state.apply_segments import check_merge, merge_segment, seal_segments
from millrace.server.container.state.container_state import LOST_NAME, ContainerState
from millrace.server.container.state.current_batch import CurrentBatch
from millrace.server.container.state.quarantine import CONTAINER, UnfitRecordError
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.transaction import (
    ENDED_STATES,
    Transaction,
    part_of,
    row_of_unknown,
    segment_of_part,
    step,
)
from millrace.server.container.views import move, move_all
from millrace.server.kinds.producers.row import released_of
from millrace.server.kinds.streams.records import begin_epoch, check_epoch, mark_empty, save_cut
from millrace.wire import messages as m

from .admission import (
    admit_begin,
    admit_commit,
    admit_ends,
    admit_parts,
    admit_prepare,
    check_parts,
)

_EPOCH_CAUSE: Final = "a transaction that began before the stream was scaled"


def _check_reserved(batch: CurrentBatch, record: m.IdsReserved) -> None:
    batch.check_number(CONTAINER, record.first + record.count - 1)


def _ids_reserved(batch: CurrentBatch, record: m.IdsReserved) -> None:
    batch.state.use_id(record.first + record.count - 1)


def _check_begun(batch: CurrentBatch, record: m.TransactionBegun) -> None:
    batch.check_new("transactions", record.number)
    for stream in record.streams:
        # The ranges that open transactions share were checked with the first of these.
        if stream is not batch.state.open_transactions.shared(stream.stream_id, stream.epoch):
            _check_routes(batch, record.number, stream)
    check_parts(batch, record.number, record.streams, record.parts)


def _begun(batch: CurrentBatch, record: m.TransactionBegun) -> None:
    state = batch.state
    transaction = state.transactions.loaded(record.number)
    assert transaction is not None, "the transition created it"
    state.use_id(transaction.number)
    state.open_transactions.add(transaction)
    _add_parts(state, transaction, record.parts, branch=IMPLICIT_BRANCH, created_us=record.begun_us)


def _check_routes(batch: CurrentBatch, number: int, stream: m.TransactionStream) -> None:
    """Raise unless the ranges by which a transaction routes to a stream cover each key once, in their order."""
    ranges = [batch.key_range("transactions", number, low, last) for _, low, last in stream.ranges]
    batch.check_ranges("transactions", number, ranges)
    if ranges != sorted(ranges):
        raise batch.unfit("transactions", number, f"its ranges of stream {stream.stream_id} do not ascend")


def _before_beginning(batch: CurrentBatch, record: m.TransactionBegun) -> None:
    _free_name(batch.state, record.name)


def _moved(batch: CurrentBatch, record: m.TransactionBegun | m.TransactionPrepared | m.TransactionCommitted) -> None:
    move(batch.view.transactions, record.number, step, record)


def _moved_all(batch: CurrentBatch, record: m.TransactionsEnded | m.OutcomesForgotten) -> None:
    move_all(batch.view.transactions, record.numbers, step, record)


def _free_name(state: ContainerState, name: str) -> None:
    """Let a name lead to the transaction that begins now; the numbers of those that had it may be higher."""
    before = state.transactions.find(name) if name else None
    if before is not None:
        before.name = ""
        state.transactions.renamed(before, old_name=name)


def _check_added(batch: CurrentBatch, record: m.PartsAdded) -> None:
    transaction = _checked_open(batch, record.number, "get parts")
    if transaction is not None:
        check_parts(batch, record.number, transaction.streams, record.parts)


def _checked_open(batch: CurrentBatch, number: int, action: str) -> Transaction | None:
    """Return a transaction, None if damage has taken its beginning; raise unless it is open."""
    transaction = batch.state.transactions.loaded(number)
    if transaction is not None and transaction.state is not TransactionState.OPEN:
        raise batch.unfit("transactions", number, f"it is {transaction.state.name}, but would {action}")
    return transaction


def _parts_added(batch: CurrentBatch, record: m.PartsAdded) -> None:
    state = batch.state
    transaction = state.transactions.loaded(record.number)
    if transaction is None:
        return  # damage has taken its beginning; what is appended to the parts is in lost segments, until the commit
    _add_parts(state, transaction, record.parts, branch=record.branch, created_us=record.added_us)


def _add_parts(
    state: ContainerState, transaction: Transaction, parts: Sequence[m.PartRecord], *, branch: int, created_us: int
) -> None:
    """Give an open transaction some parts, which were checked."""
    for part in parts:
        segment_id = part.segment_id
        # What was admitted is the very object, if it still is.
        transaction.parts[segment_id] = transaction.admitted_parts.get(segment_id) or part_of(part, branch=branch)
        segment = state.admitted_segments.pop(segment_id, None) or segment_of_part(segment_id, created_us=created_us)
        state.add_segment(segment)
        state.touch("parts", transaction.number, segment_id)
    state.open_transactions.add_parts(transaction, [part.segment_id for part in parts])
    state.transactions.changed(transaction)


def _check_prepared(batch: CurrentBatch, record: m.TransactionPrepared) -> None:
    transaction = _checked_open(batch, record.number, "be prepared")
    if transaction is not None:
        _check_dropped(batch, transaction, record.dropped)


def _prepared(batch: CurrentBatch, record: m.TransactionPrepared) -> None:
    state = batch.state
    transaction = state.transactions.loaded(record.number)
    if transaction is None:
        return  # damage has taken its beginning
    _delete_parts(state, record.dropped)
    state.open_transactions.drop_parts(transaction, record.dropped)
    for segment_id in record.dropped:
        if transaction.parts.pop(segment_id, None) is not None:
            state.touch("parts", transaction.number, segment_id)
    state.open_transactions.note_prepared(transaction)


def _check_committed(batch: CurrentBatch, record: m.TransactionCommitted) -> None:
    """Raise unless the transaction itself can be committed; each part is checked on its own, when it is merged."""
    transaction = batch.state.transactions.loaded(record.number)
    if transaction is None:
        batch.check_number("transactions", record.number)
    elif transaction.state.is_final:
        raise batch.unfit("transactions", record.number, f"it is {transaction.state.name}, but would be committed")


def _committed(batch: CurrentBatch, record: m.TransactionCommitted) -> None:
    state = batch.state
    transaction = state.transactions.loaded(record.number)
    if transaction is None:  # damage has taken its beginning
        _free_name(state, record.name)
        state.use_id(record.number)
        state.durable.transactions.put(record.number, row_of_unknown(record))
        transaction = state.transactions[record.number]
    for epoch in record.epochs:
        _begin_epoch(batch, epoch, started_us=record.committed_us)
    # A part may be all of a segment that this commit begins and replaces at once.
    sealed_ids = {segment_id for epoch in record.epochs for segment_id in epoch.sealed_ids}
    for part in record.parts:
        try:
            _merge_part(batch, transaction, part, sealed_ids=sealed_ids)
        except UnfitRecordError as error:
            _set_aside(batch, transaction, part.source_id, error)
    for epoch in record.epochs:
        changed = state.streams.loaded(epoch.stream_id)
        if changed is not None:
            mark_empty(batch, changed, epoch.sealed_ids)
    for cursor in record.cursors:
        stream = state.streams.loaded(cursor.stream_id)
        if stream is not None:
            kind = m.CutKind.CURSOR
            before = stream.cuts.get((kind, cursor.name))
            hold_s = 0 if before is None else before.hold_s
            saved = m.SavedCut(kind, cursor.name, record.committed_us, cursor.positions, hold_s)
            save_cut(state, stream, saved)
            state.streams.changed(stream)
            state.moved_cursors.add(stream.stream_id)
    try:
        _check_dropped(batch, transaction, record.dropped)
        _delete_parts(state, record.dropped)
    except UnfitRecordError as error:
        batch.refuse(error)
    _end(batch, transaction)


def _merge_part(
    batch: CurrentBatch, transaction: Transaction, part: m.CommittedPart, *, sealed_ids: Collection[int]
) -> None:
    """Merge a part into its segment.

    Args:
        sealed_ids: segments that the commit itself has sealed.

    Raises:
        UnfitRecordError: it cannot be merged; nothing was changed.
    """
    state = batch.state
    target, source = state.segments.loaded(part.target_id), state.segments.loaded(part.source_id)
    if target is None:
        raise batch.unfit(
            "transactions", transaction.number, f"segment {part.target_id}, which it fills, does not exist"
        )
    check_merge(
        batch,
        source,
        target,
        source_start=0,
        target_offset=part.target_offset,
        size=part.size,
        event_count=part.event_count,
    )
    if target.sealed and part.target_id not in sealed_ids:
        end = part.target_offset + part.size
        raise batch.unfit("segments", part.target_id, "it is sealed, and accepts no part", end=end)
    if source is not None:
        _check_part_of(batch, transaction, source)
    merge_segment(
        batch,
        source,
        target,
        source_id=part.source_id,
        source_start=0,
        target_offset=part.target_offset,
        size=part.size,
        event_count=part.event_count,
    )
    if part.target_id in sealed_ids:
        # It begins, and ends, with this very record: nobody has moved its admitted view.
        target.admit_as_durable()
    state.written_bytes[target.stream_id] += part.size
    state.written_events[target.stream_id] += part.event_count


def _set_aside(batch: CurrentBatch, transaction: Transaction, source_id: int, error: UnfitRecordError) -> None:
    """Quarantine what a part does not fit, the outcome, and the part itself: its bytes stay until that is accepted."""
    batch.refuse(error)
    reason = f"part {source_id} of it could not be merged: {error.damage.entity}: {error.damage.reason}"
    batch.refuse(batch.unfit("transactions", transaction.number, reason))
    source = batch.state.segments.loaded(source_id)
    if source is not None and source.link is None and _is_part_of(batch.state, transaction, source):
        batch.refuse(batch.unfit("segments", source_id, "it was committed, and could not be merged"))


def _is_part_of(state: ContainerState, transaction: Transaction, segment: Segment) -> bool:
    """Return whether a segment is a part of a transaction, or a segment of which the log has lost the creation."""
    owner = state.open_transactions.owner(segment.segment_id)
    return owner is transaction or (owner is None and segment.name.startswith(LOST_NAME))


def _check_part_of(batch: CurrentBatch, transaction: Transaction, segment: Segment) -> None:
    if not _is_part_of(batch.state, transaction, segment):
        raise batch.unfit("transactions", transaction.number, f"segment {segment.segment_id} is not a part of it")


def _check_dropped(batch: CurrentBatch, transaction: Transaction, segment_ids: Iterable[int]) -> None:
    """Raise unless segments that are to be dropped are parts of a transaction, as far as they exist."""
    for segment_id in segment_ids:
        segment = batch.state.segments.loaded(segment_id)
        if segment is not None:
            _check_part_of(batch, transaction, segment)


def _begin_epoch(batch: CurrentBatch, epoch: m.CommitEpochRecord, *, started_us: int) -> None:
    stream = batch.state.streams.loaded(epoch.stream_id)
    if stream is None:
        return  # damage has taken its creation
    begun = m.EpochRecord(
        number=epoch.epoch,
        started_us=started_us,
        cause=_EPOCH_CAUSE,
        sealed_ids=epoch.sealed_ids,
        created=epoch.created,
    )
    try:
        check_epoch(batch, stream, begun)
    except UnfitRecordError as error:
        batch.refuse(error)
        return
    begin_epoch(batch, stream, begun)
    seal_segments(batch, epoch.sealed_ids)
    batch.state.streams.changed(stream)


def _ended(batch: CurrentBatch, record: m.TransactionsEnded) -> None:
    for transaction in _loaded(batch.state, record.numbers):
        if record.state not in ENDED_STATES or transaction.state is TransactionState.COMMITTED:
            reason = f"it is {transaction.state.name}, and is to end in state {record.state}"
            batch.refuse(batch.unfit("transactions", transaction.number, reason))
        elif not transaction.state.is_final:
            batch.state.quarantine.discard("transactions", transaction.number)
            _delete_parts(batch.state, transaction.parts)
            _end(batch, transaction)
            if transaction.producer is not None:
                released_of(batch.state).add(transaction.producer.writer_id)


def _delete_parts(state: ContainerState, segment_ids: Iterable[int]) -> None:
    """Delete what is not committed."""
    for segment_id in list(segment_ids):
        segment = state.segments.loaded(segment_id)
        if segment is not None and segment.link is None:
            state.delete_segments([segment_id])


def _end(batch: CurrentBatch, transaction: Transaction) -> None:
    """Keep nothing of a transaction but its outcome, which the transition makes of its row."""
    state = batch.state
    # Before its pins end: with the last one, what differs from the checkpoint in nothing may be evicted at once.
    state.transactions.changed(transaction)
    state.open_transactions.end(transaction)
    for segment_id in transaction.parts:
        state.touch("parts", transaction.number, segment_id)
    transaction.forget_parts()
    transaction.decided_uptime_us = state.scalars.uptime_us


def _forget_damage(batch: CurrentBatch, record: m.OutcomesForgotten) -> None:
    state = batch.state
    for transaction in _loaded(state, record.numbers):
        if transaction.state.is_final:
            state.quarantine.discard("transactions", transaction.number)
            state.scalars.horizon = max(state.scalars.horizon, transaction.number + 1)


def _loaded(state: ContainerState, numbers: Iterable[int]) -> Iterable[Transaction]:
    """Yield those of some transactions that damage has not made unknown."""
    for number in numbers:
        transaction = state.transactions.loaded(number)
        if transaction is not None:
            yield transaction


RECORDS: Final[Mapping[type[m.Record], RecordStep]] = {
    m.IdsReserved: RecordStep(_ids_reserved, check=_check_reserved),
    m.TransactionBegun: RecordStep(_before_beginning, check=_check_begun, admission=admit_begin, after=_begun),
    m.PartsAdded: RecordStep(_parts_added, check=_check_added, admission=admit_parts),
    m.TransactionPrepared: RecordStep(_prepared, check=_check_prepared, admission=admit_prepare),
    m.TransactionCommitted: RecordStep(_committed, check=_check_committed, admission=admit_commit),
    m.TransactionsEnded: RecordStep(_ended, admission=admit_ends, removes=True),
    m.OutcomesForgotten: RecordStep(_forget_damage, removes=True),
}
TRANSITIONS: Final[Mapping[type[m.Record], Applier]] = {
    m.TransactionBegun: _moved,
    m.TransactionPrepared: _moved,
    m.TransactionCommitted: _moved,
    m.TransactionsEnded: _moved_all,
    m.OutcomesForgotten: _moved_all,
}
