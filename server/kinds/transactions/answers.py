"""Replies about transactions: step results, listings and outcomes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from millrace.model.transaction import TransactionPart, TransactionState
from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.transaction import Transaction, TransactionRow
from millrace.wire import messages as m

from .commits import Commit, tails_after


def step_reply(
    transaction: Transaction, *, changed: bool, streams: Sequence[m.TransactionStream] = ()
) -> m.TransactionReply:
    """Return the reply to a step of a transaction that is durable, or that precedes its beginning.

    Args:
        streams: for a client that begins or joins it.
    """
    return m.TransactionReply(
        number=transaction.number,
        state=transaction.state,
        changed=int(changed),
        decided_us=transaction.row.decided_us,
        streams=list(streams),
        cuts=list(transaction.row.cuts),
        tails=[],
    )


def commit_reply(
    state: ContainerState, transaction: TransactionRow, commit: Commit, record: m.TransactionCommitted
) -> m.TransactionReply:
    """Return the reply to a commit that was just admitted; the row is that before the commit."""
    return m.TransactionReply(
        number=transaction.number,
        state=TransactionState.COMMITTED,
        changed=1,
        decided_us=record.committed_us,
        streams=[],
        cuts=record.cuts,
        tails=tails_after(state, transaction, commit),
    )


class TransactionAnswers:
    """Reports the durable state of the transactions of one container."""

    def __init__(self, container: SegmentContainer) -> None:
        self._container = container
        self._state = container.state

    def list_open(self, *, after: int, count_max: int) -> m.TransactionList:
        """Return the open and prepared transactions with the lowest numbers above one, as a message."""
        page, more = self._state.open_transactions.page(after=after, count_max=count_max)
        listed = [
            m.ListedTransaction(
                each.number,
                each.state,
                each.row.lease_ms,
                each.row.begun_us,
                len(each.parts),
                sum(segment.length for _, segment in self._stored_parts(each)),
                each.name,
            )
            for each in page
        ]
        return m.TransactionList(listed, int(more))

    async def outcome_with_names(self, number: int, name: str = "") -> m.TransactionInfo:
        """Return the `outcome`, with the names of the streams that still exist. Cancelling is safe."""
        info = self.outcome(number, name)
        stream_ids = [each.stream_id for each in info.streams or info.cuts]
        with await self._container.loader.pin(m.Required(streams=stream_ids)):
            found = [self._state.streams.get(stream_id) for stream_id in stream_ids]
            names = [m.NamedStream(stream.name) for stream in found if stream is not None]
        return replace(info, names=names)

    def outcome(self, number: int, name: str = "") -> m.TransactionInfo:
        """Return the state of a transaction by its number, or by its name if that is 0; state 0: unknown.

        A transaction that never began, and can no longer begin, counts as aborted. By name alone that is unknown.

        Raises:
            ContentLostError: it may have begun, or ended, in the lost part of the log; or the log contradicts it, such
                as when a part of its commit could not be applied.
        """
        transaction = self._state.transactions.get(number) if number else self._state.transactions.find(name)
        if self._container.loss is not None and not _is_over_for_good(transaction, by_name=not number):
            raise self._container.loss.error()
        if transaction is not None:
            self.check_whole(transaction)
            return self._describe(transaction)
        is_over = (
            self._state.scalars.horizon <= number < self._state.scalars.next_id
            and not self._state.reserved_ids.is_unused(number)
            and number not in self._state.admitted_transactions.queued
        )
        return m.TransactionInfo(
            number=number,
            state=TransactionState.ABORTED if number and is_over else TransactionState.UNKNOWN,
            lease_ms=0,
            begun_us=0,
            decided_us=0,
            name=name,
            streams=[],
            branches=[],
            cuts=[],
            size_bytes=0,
            names=[],
        )

    def check_whole(self, transaction: Transaction) -> None:
        """Raise ContentLostError if the log contradicts a transaction: a part of its commit could not be applied."""
        damage = self._state.quarantine.get("transactions", transaction.number)
        if damage is not None:
            raise damage.error()

    def _describe(self, transaction: Transaction) -> m.TransactionInfo:
        """Return the durable state of a transaction, as a message without the names of its streams."""
        counts = {part.branch: 0 for part in transaction.parts.values()}
        size_bytes = 0
        for part, segment in self._stored_parts(transaction):
            counts[part.branch] += segment.event_count
            size_bytes += segment.length
        return m.TransactionInfo(
            number=transaction.number,
            state=transaction.state,
            lease_ms=transaction.row.lease_ms,
            begun_us=transaction.row.begun_us,
            decided_us=transaction.row.decided_us,
            name=transaction.name,
            streams=list(transaction.streams),
            branches=list(transaction.row.branches) or [m.BranchCount(*each) for each in sorted(counts.items())],
            cuts=list(transaction.row.cuts),
            size_bytes=size_bytes,
            names=[],
        )

    def _stored_parts(self, transaction: Transaction) -> Iterator[tuple[TransactionPart, Segment]]:
        """Yield the parts that damage has left, with their segments."""
        for part in transaction.parts.values():
            segment = self._state.segments.get(part.segment_id)
            if segment is not None:
                yield part, segment


def _is_over_for_good(transaction: Transaction | None, *, by_name: bool) -> bool:
    """Return whether the reply about a transaction is final. An aborted transaction releases its name."""
    if transaction is None or not transaction.state.is_final:
        return False
    return transaction.state is TransactionState.COMMITTED or not by_name
