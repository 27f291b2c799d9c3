"""Decisions about producers: which run uses a writer id, and which sequences are committed under it.

What became of a transaction is looked up first, by its number or name; then whether its run is fenced, then the holder,
then the sequence. All of it is judged on the admitted view, which `log_decision` moves when it queues a record.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from millrace.model.names import checked_holder, checked_writer_id
from millrace.model.producer import NO_HOLDER, Producer, ProducerRow, ProducerVerdict, checked_producer
from millrace.model.sequence_row import NO_SEQUENCE
from millrace.model.transaction import TransactionState
from millrace.server.container.container import SegmentContainer
from millrace.server.container.in_flight import PendingDecision
from millrace.server.container.state.transaction import Transaction
from millrace.server.errors import (
    InvalidArgumentError,
    ProducerCommittedError,
    ProducerFencedError,
    ProducerInUseError,
    ProducersFullError,
    ProducerUnknownError,
    TransactionError,
)
from millrace.server.kinds.aborts import abort_all_of
from millrace.server.shares import has_room
from millrace.wire import messages as m

from .row import rows_of


class ProducerCommands:
    """Lets runs take over, and says which transactions of producers may be committed.

    Args:
        count_max: so many producers may be known.
    """

    def __init__(self, container: SegmentContainer, *, count_max: int) -> None:
        self._container = container
        self._state = container.state
        self._admitted = rows_of(container.state.admitted)
        self._durable = rows_of(container.state.durable)
        self._count_max = count_max
        # Producers that are new since the start: by writer id, the address of the host that made them known, and how
        # many each address did.
        self._new: dict[str, str] = {}
        self._new_counts: Counter[str] = Counter()

    # --- transactions ---

    def begin(self, producer: Producer, found: Transaction | None, *, address: str = "") -> Transaction | None:
        """Let a run take over, and return the transaction that is joined; decided at once, and waited for by nobody.

        Args:
            producer: as whom a transaction is to begin; loaded.
            found: what there is under its number or name, settled.
            address: of the host; addresses share the number of producers.

        Returns:
            What was found, unless it is open for a run that was replaced: that can never be committed, so another one
            begins under the name.

        Raises:
            ProducerFencedError, ProducerInUseError, ProducersFullError: it is not taken over.
            ProducerCommittedError: the sequence is committed; the run has taken over all the same.
            NoSpaceError, ThrottledError: there is no room for a run that takes over.
            InvalidNameError, model.InvalidArgumentError: it is no producer.
        """
        checked_producer(producer)
        is_committed = found is not None and found.state is TransactionState.COMMITTED
        try:
            self._take_over(producer, address)
        except TransactionError:
            if not is_committed:  # else that is the answer
                raise
        if found is None or found.producer is None or found.state.is_final:
            return found
        is_replaced = found.producer.writer_id == producer.writer_id and found.producer.run != producer.run
        return None if is_replaced else found

    def refusal(self, producer: Producer) -> TransactionError | None:
        """Return why a transaction that has begun as a producer is not committed; None if it may be. It is loaded."""
        row = self._admitted.find(producer.writer_id)
        if row is None:
            return None  # damage has taken what was known of it
        return _refusal(row.at_commit(producer), row, producer)

    def committed(self, producer: Producer, fingerprint: str = "") -> m.CommittedProducer:
        """Return a producer's part of the record of a commit, which is logged in the same step; it is loaded.

        A fingerprint is a record of its own right before that of the commit: it counts once the commit is durable.
        """
        row = self._admitted.find(producer.writer_id)
        number = self._state.take_id() if row is None else row.number
        if fingerprint:
            record = m.SequenceDescribed(
                number=number, producer_id=producer.writer_id, sequence=producer.sequence, fingerprint=fingerprint
            )
            self._container.log_decision(record, number)
        return m.CommittedProducer(number, *producer)

    # --- forgetting ---

    def is_leaving(self, writer_id: str) -> bool:
        """Return whether a producer is about to be forgotten: what begins as it, begins after that. It is loaded."""
        return self._admitted.find(writer_id) is None and self._durable.find(writer_id) is not None

    def unused(self, writer_ids: Iterable[str]) -> list[ProducerRow]:
        """Return those of some loaded producers that have no open transaction, and with which nothing is lost."""
        state = self._state
        found = [row for each in writer_ids if (row := self._admitted.find(each)) is not None]
        return [
            row
            for row in found
            if row.is_unused
            and not state.open_transactions.count_as(row.writer_id)
            and state.quarantine.get("producers", row.number) is None
        ]

    def forget(self, producers: Sequence[ProducerRow]) -> PendingDecision:
        """Decide that producers are forgotten; they are durable, and no transaction of theirs is open."""
        numbers = [row.number for row in producers]
        decision = self._container.log_decision(m.ProducersForgotten(numbers), numbers[0])
        for row in producers:
            address = self._new.pop(row.writer_id, None)
            if address is not None:
                self._new_counts[address] -= 1
        return decision

    async def delete(self, writer_id: str, *, last_sequence: int) -> bool:
        """Forget a producer with all that it has committed, and abort its transactions; return False if there is none.

        Args:
            last_sequence: the highest that was committed, as the caller knows; `NO_SEQUENCE` for none.

        Raises:
            ProducerCommittedError: it is another one.
        """
        checked_writer_id(writer_id)
        while (self._admitted.find(writer_id) is None) != (self._durable.find(writer_id) is None):
            await self._container.in_flight.settled()  # its creation, or its deletion, is queued
        row = self._admitted.find(writer_id)
        if row is None:
            return False
        if row.last_sequence != last_sequence:
            raise _sequence_error(row, last_sequence)
        abort_all_of(self._container, writer_id)
        await self.forget([row]).durable()
        return True

    # --- requests ---

    def describe(self, writer_id: str) -> m.ProducerInfo:
        """Return what is durable of a producer.

        Raises:
            ProducerUnknownError: there is none.
        """
        row = self._durable.find(checked_writer_id(writer_id))
        if row is None:
            raise _unknown(writer_id)
        return m.ProducerInfo(
            producer_id=row.writer_id,
            holder=row.holder,
            run=row.run,
            last_sequence=row.last_sequence,
            fenced=[m.FencedRun(run) for run in row.fenced],
            fingerprint=row.fingerprint,
        )

    async def reset(self, writer_id: str, *, expected_holder: str, holder: str) -> bool:
        """Give the writer id of a producer to another holder; return False if that has it already.

        Args:
            expected_holder: who has it, as the caller knows.
            holder: empty for that of the next run.

        Raises:
            ProducerUnknownError: there is none.
            ProducerInUseError: yet another holder has it.
            InvalidNameError: the new holder can be none.
        """
        if holder != NO_HOLDER:
            checked_holder(holder)
        row = self._admitted.find(checked_writer_id(writer_id))
        if row is None:
            raise _unknown(writer_id)
        if row.holder == holder:
            await self._container.in_flight.settled()
            return False
        if row.holder != expected_holder:
            raise ProducerInUseError(
                f"the producer is held by {row.holder or 'nobody'} now, not by {expected_holder or 'nobody'}",
                subject=writer_id,
            )
        await self._container.decide(
            m.ProducerReset(number=row.number, producer_id=writer_id, holder=holder), row.number
        )
        return True

    # --- inside ---

    def _take_over(self, producer: Producer, address: str) -> None:
        """Let a run take over if it has not, and may; raise like `begin`."""
        known = self._admitted.find(producer.writer_id)
        row = known or ProducerRow()
        verdict = row.at_begin(producer)
        refusal = _refusal(verdict, row, producer)
        if refusal is not None and verdict is not ProducerVerdict.STORED:
            raise refusal
        if row.run != producer.run:
            if known is None:
                self._check_count(producer, address)
            self._container.check_room()
            number = self._state.take_id() if known is None else known.number
            record = m.ProducerTaken(
                number=number, producer_id=producer.writer_id, holder=producer.holder, run=producer.run
            )
            self._container.log_decision(record, number)  # what is answered follows it
            if known is None:
                self._new[producer.writer_id] = address
                self._new_counts[address] += 1
        if refusal is not None:
            raise refusal

    def _check_count(self, producer: Producer, address: str) -> None:
        count = len(self._admitted)
        held = self._new_counts[address]
        if not has_room(bound=self._count_max, taken=count, held=held):
            raise ProducersFullError(
                f"{count} producers are known, {held} of them new from your address; addresses share the limit of"
                f" {self._count_max}. A producer that has committed something never expires: use one that is known,"
                " delete one with `millrace txn delete-producer`, or raise MILLRACE_TRANSACTIONS_PRODUCERS_COUNT_MAX",
                subject=producer.writer_id,
            )


def check_producer(transaction: Transaction, producer: Producer | None) -> None:
    """Raise InvalidArgumentError if a transaction that is joined was begun as another producer; nobody is fine."""
    if producer is not None and transaction.producer != producer:
        raise InvalidArgumentError(
            f"the transaction was begun as {_shown(transaction.producer)}, not as {_shown(producer)}",
            subject=transaction.subject,
        )


def _refusal(verdict: ProducerVerdict, row: ProducerRow, producer: Producer) -> TransactionError | None:
    """Return why a producer is refused by what is known of it, None if it is not."""
    subject = producer.writer_id
    match verdict:
        case ProducerVerdict.FENCED:
            by = f"run {row.run} of {row.holder}" if row.run else "a reset"
            return ProducerFencedError(f"run {producer.run} of {producer.holder} was replaced by {by}", subject=subject)
        case ProducerVerdict.HELD:
            return ProducerInUseError(
                f"the producer is held by {row.holder}, not by {producer.holder}. Only if {row.holder} is gone for"
                f" good: `millrace txn reset {subject} --holder {producer.holder}`; sequences start over then",
                subject=subject,
            )
        case ProducerVerdict.STORED:
            return ProducerCommittedError(
                f"sequence {producer.sequence} is committed already: the last one is {row.last_sequence}",
                subject=subject,
            )
        case ProducerVerdict.NEW:
            return None


def _shown(producer: Producer | None) -> str:
    """Return a producer for people."""
    if producer is None:
        return "no producer"
    return f"producer {producer.writer_id} of {producer.holder}, run {producer.run}, sequence {producer.sequence}"


def _sequence_error(row: ProducerRow, last_sequence: int) -> ProducerCommittedError:
    """Return why a producer is not deleted by a request with another last sequence."""
    last = row.last_sequence
    found = "has committed nothing" if last == NO_SEQUENCE else f"has committed sequence {last}"
    if last_sequence == NO_SEQUENCE:
        reason = (
            "if a program sends that again after the producer is deleted, it is stored twice. To delete it all the"
            f" same: `millrace txn delete-producer {row.writer_id} --last-sequence {last}`"
        )
    else:
        reason = f"the request to delete it expects that {last_sequence} is the last one"
    return ProducerCommittedError(f"the producer {found}; {reason}", subject=row.writer_id)


def _unknown(writer_id: str) -> ProducerUnknownError:
    return ProducerUnknownError("the producer does not exist", subject=writer_id)
