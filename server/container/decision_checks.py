"""Checks a decision against the admitted view before it is logged: what the fold would refuse is not written.

Whoever makes a decision checks the request. This module checks the record that results, so a fault of the decider costs
one request and not the log. What the record names is pinned.

    record of                   fits if, after all that is in flight,
    merge, commit               each source has that many bytes, and goes to the end of a segment that takes appends
    truncation                  no segment starts beyond its end
    scale, epochs of a commit   the epoch is the next one, and replaces open segments by others with the same keys
    transaction                 the number is new, or the state is the one which the step starts from
    writer                      the epoch is the next one
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from millrace.model.key_range import KeyRange, covers_once
from millrace.model.transaction import TransactionState
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.transaction import Transaction
from millrace.server.errors import DecisionMisfitError
from millrace.wire import messages as m

logger = logging.getLogger(__name__)


def check_decision(state: ContainerState, record: m.Record) -> None:
    """Raise DecisionMisfitError unless a record fits the admitted view; nothing is changed."""
    check = _CHECKS.get(type(record))
    if check is None:
        return
    try:
        check(state, record)
    except DecisionMisfitError as error:
        logger.critical("decision misfit error=%s", error)
        raise


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


def _merge(state: ContainerState, record: m.SegmentMerged) -> None:
    target, source = state.segments.pinned(record.target_id), state.segments.pinned(record.source_id)
    if target is None or source is None:
        raise DecisionMisfitError(f"{record.type.name} was not logged, since one of the segments does not exist")
    _check_end(record, target, record.target_offset)
    _require(
        not source.leaving and source.next_offset - record.source_start == record.size,
        record,
        f"segment {source.segment_id} does not have {record.size} bytes to be merged",
    )


def _truncation(state: ContainerState, record: m.SegmentTruncated) -> None:
    _check_starts(state, record, [(record.segment_id, record.offset)])


def _stream_truncation(state: ContainerState, record: m.StreamStartMoved) -> None:
    _check_starts(state, record, [(segment_id, offset) for segment_id, offset, _ in record.positions])


def _check_starts(state: ContainerState, record: m.Record, starts: Iterable[tuple[int, int]]) -> None:
    for segment_id, offset in starts:
        segment = state.segments.peek(segment_id)
        if segment is not None:
            _require(
                offset <= segment.next_offset,
                record,
                f"segment {segment_id} ends at {segment.next_offset}, before {offset}",
            )


def _scale(state: ContainerState, record: m.StreamScaled) -> None:
    _check_epochs(
        state, record, [m.CommitEpochRecord(record.stream_id, record.epoch, record.sealed_ids, record.created)]
    )


def _check_epochs(state: ContainerState, record: m.Record, epochs: Sequence[m.CommitEpochRecord]) -> None:
    """Check epochs that begin one after the other, of any streams."""
    latest: dict[int, int] = {}
    open_ranges: dict[int, dict[int, KeyRange]] = {}
    for stream_id, number, sealed_ids, created in epochs:
        stream = state.streams.pinned(stream_id)
        if stream is None:
            raise DecisionMisfitError(f"{record.type.name} was not logged, since stream {stream_id} does not exist")
        before = latest.get(stream_id, stream.admitted_epoch)
        _require(
            number == before + 1, record, f"stream {stream.name} is in epoch {before}, and {number} is not the next"
        )
        latest[stream_id] = number
        ranges = open_ranges.setdefault(stream_id, {each.segment_id: each.key_range for each in stream.open_parts})
        _require(
            ranges.keys() >= set(sealed_ids), record, f"not all segments to be sealed are open in stream {stream.name}"
        )
        for segment_id in sealed_ids:
            del ranges[segment_id]
        ranges.update({segment_id: KeyRange.inclusive(low, last) for segment_id, low, last in created})
        _require(covers_once(ranges.values()), record, f"stream {stream.name} would not have each key exactly once")


def _transaction_begun(state: ContainerState, record: m.TransactionBegun) -> None:
    known = state.admitted_transaction(record.number)
    _require(known is None, record, f"transaction {record.number} exists")


def _transaction_open(state: ContainerState, record: m.PartsAdded | m.TransactionPrepared) -> None:
    _transaction(state, record, record.number, (TransactionState.OPEN,))


def _transaction(
    state: ContainerState, record: m.Record, number: int, states: tuple[TransactionState, ...]
) -> Transaction:
    transaction = state.admitted_transaction(number)
    if transaction is None:
        raise DecisionMisfitError(f"{record.type.name} was not logged, since transaction {number} does not exist")
    found = transaction.admitted_state
    _require(found in states, record, f"transaction {number} is {found.name}")
    return transaction


def _transactions_ended(state: ContainerState, record: m.TransactionsEnded) -> None:
    for number in record.numbers:
        _transaction(state, record, number, (TransactionState.OPEN, TransactionState.PREPARED))


def _commit(state: ContainerState, record: m.TransactionCommitted) -> None:
    transaction = _transaction(state, record, record.number, (TransactionState.OPEN, TransactionState.PREPARED))
    if record.epochs:
        _check_epochs(state, record, record.epochs)
    # By target: where the next part has to begin. What the commit itself creates is empty.
    created = {segment_id for epoch in record.epochs for segment_id, _, _ in epoch.created}
    ends: dict[int, int] = dict.fromkeys(created, 0)
    for source_id, target_id, offset, size, _ in record.parts:
        source = state.admitted_segment(source_id) if source_id in transaction.admitted_parts else None
        _require(
            source is not None and not source.leaving and source.next_offset == size,
            record,
            f"segment {source_id} is not a part of the transaction with {size} bytes",
        )
        end = ends.get(target_id)
        if end is None:
            target = state.segments.pinned(target_id)
            if target is None:
                raise DecisionMisfitError(
                    f"{record.type.name} was not logged, since segment {target_id} does not exist"
                )
            _check_end(record, target, offset)
            end = offset
        _require(offset == end, record, f"a part would be at {offset} of segment {target_id}, and not at {end}")
        ends[target_id] = end + size


def _writer_opened(state: ContainerState, record: m.WriterRecorded) -> None:
    writer = state.admitted_writers.get(record.writer_id) or state.writers.peek(record.writer_number)
    if writer is not None and writer.writer_number == record.writer_number:
        _check_writer_epoch(record, writer.admitted_epoch)


def _sequences_reset(state: ContainerState, record: m.SequencesReset) -> None:
    writer = state.writers.pinned(record.writer_number)
    if writer is not None:
        _check_writer_epoch(record, writer.admitted_epoch)


def _check_writer_epoch(record: m.WriterRecorded | m.SequencesReset, before: int) -> None:
    _require(
        record.writer_epoch == before + 1,
        record,
        f"writer {record.writer_number} has epoch {before}, and {record.writer_epoch} is not the next",
    )


_CHECKS: Final[Mapping[type[m.Record], Callable[[ContainerState, Any], object]]] = {
    m.SegmentMerged: _merge,
    m.SegmentTruncated: _truncation,
    m.StreamStartMoved: _stream_truncation,
    m.StreamScaled: _scale,
    m.TransactionBegun: _transaction_begun,
    m.PartsAdded: _transaction_open,
    m.TransactionPrepared: _transaction_open,
    m.TransactionsEnded: _transactions_ended,
    m.TransactionCommitted: _commit,
    m.WriterRecorded: _writer_opened,
    m.SequencesReset: _sequences_reset,
}
