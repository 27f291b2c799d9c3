"""Ending transactions without a commit: by request, by their lease, or because a stream is sealed."""

from collections.abc import Iterator, Sequence
from typing import Final

from millrace.model.transaction import TransactionState
from millrace.server.container.container import SegmentContainer
from millrace.server.container.in_flight import PendingDecision
from millrace.server.container.state.stream import Stream
from millrace.server.container.state.transaction import Transaction
from millrace.server.errors import TransactionPreparedError
from millrace.wire import messages as m

ENDED_COUNT_MAX: Final = 1000
"""In one record: applying it deletes all their parts."""


def end_transactions(
    container: SegmentContainer, transactions: Sequence[Transaction], outcome: TransactionState
) -> PendingDecision:
    """Decide that open transactions end with nothing of them left.

    Args:
        transactions: open in the admitted view; at most `ENDED_COUNT_MAX`.
        outcome: ABORTED or EXPIRED.
    """
    assert 0 < len(transactions) <= ENDED_COUNT_MAX
    numbers = [transaction.number for transaction in transactions]
    decision = container.log_decision(
        m.TransactionsEnded(ended_us=container.clock.unix_us(), state=outcome, numbers=numbers), numbers[0]
    )
    container.state.open_transactions.decided_totals[outcome] += len(transactions)
    for transaction in transactions:
        for segment_id in transaction.admitted_parts:
            segment = container.state.admitted_segment(segment_id)
            if segment is not None:
                segment.leaving = True
    return decision


def abort_all_on(container: SegmentContainer, stream: Stream, *, force: bool) -> None:
    """Decide that the transactions over a stream are aborted, those included whose beginning is queued.

    What is decided next is so after them.

    Args:
        force: whether prepared ones are, too.

    Raises:
        TransactionPreparedError: one is prepared, and nothing is aborted.
    """
    aborted = [
        transaction
        for transaction in _admitted_open(container)
        if any(each.stream_id == stream.stream_id for each in transaction.streams)
    ]
    if not force:
        for transaction in aborted:
            if transaction.admitted_state is TransactionState.PREPARED:
                name = transaction.subject
                raise TransactionPreparedError(
                    f"transaction {name} is prepared over the stream: commit or abort it first", subject=stream.name
                )
    _abort(container, aborted)


def abort_all_of(container: SegmentContainer, writer_id: str) -> None:
    """Decide that the transactions of a producer are aborted, those included whose beginning is queued."""
    _abort(
        container,
        [
            each
            for each in _admitted_open(container)
            if each.producer is not None and each.producer.writer_id == writer_id
        ],
    )


def _admitted_open(container: SegmentContainer) -> Iterator[Transaction]:
    """Yield the transactions that are not over in the admitted view."""
    state = container.state
    for transaction in (*state.open_transactions.by_number.values(), *state.admitted_transactions.queued.values()):
        if not transaction.admitted_state.is_final:
            yield transaction


def _abort(container: SegmentContainer, transactions: Sequence[Transaction]) -> None:
    for start in range(0, len(transactions), ENDED_COUNT_MAX):
        end_transactions(container, transactions[start : start + ENDED_COUNT_MAX], TransactionState.ABORTED)
