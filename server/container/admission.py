"""Deciding on appends: admitted at an offset, known already, or refused.

Everything here works on the admitted view of a segment and waits for nothing. A run that straddles what a writer has
stored already is cut at that border, so that a writer may resend whatever it has no ack for.
"""

from collections.abc import Mapping
from typing import Protocol

from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.model.transaction import TransactionState
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import Segment, WriterProgress
from millrace.server.container.state.transaction import Transaction
from millrace.server.container.state.writer import Writer
from millrace.server.errors import (
    AppendTooLargeError,
    ConditionFailedError,
    DecisionLostError,
    EventNumberGapError,
    EventNumberOverlapError,
    InvalidArgumentError,
    LogFailedError,
    StreamHasExclusiveWriterError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionPreparedError,
    TransactionTooLargeError,
    WriterExpiredError,
    WriterFencedError,
    WriterUnknownError,
)
from millrace.wire.append_pipeline import TakenAppends
from millrace.wire.append_run import AppendRun
from millrace.wire.framing import decode_header
from millrace.wire.limits import EVENT_COUNT_MAX

from .entity_cache import Pins


class ReplyTarget(Protocol):
    """Who sent appends, and is told how they ended: a connection."""

    def settle(self) -> None:
        """Called in the event loop after outcomes of some of its appends were set, once per log batch."""
        ...


class PendingAppend(TakenAppends):
    """Appends of one owner on their way to one outcome.

    One that is refused has its error from the beginning, and so breaks its pipeline at once; it is told when settled.

    Attributes:
        pins: keep segment and writer in memory until it is settled.
    """

    __slots__ = ("owner", "pins")

    def __init__(self, owner: ReplyTarget, run: AppendRun) -> None:
        super().__init__(run)
        self.owner = owner
        self.pins: Pins | None = None

    def settle(self, failure: LogFailedError | None = None) -> None:
        """End as durable or as refused, or as failed."""
        if failure is not None:
            self.error = failure if self.error is None else DecisionLostError()
        self.settled = True
        if self.pins is not None:
            self.pins.release()


def owner_of_part(state: ContainerState, segment: Segment, run: AppendRun) -> Transaction:
    """Return the open transaction that an internal segment is a part of: to no other one may a client append.

    Its lease starts over.

    Raises:
        InvalidArgumentError: the segment is no part of a transaction, or the run does not number its events.
        TransactionAbortedError, TransactionCommittedError, TransactionPreparedError: the transaction takes no more.
    """
    transaction = state.open_transactions.owner(segment.segment_id)
    if transaction is None:
        raise segment.unchangeable()
    check_open(transaction)
    if not run.writer_number:
        # Only so it shows that an append is missing, and one that is sent again is not stored twice.
        raise InvalidArgumentError("appends to a part of a transaction must have event numbers")
    transaction.is_renewed = True
    return transaction


def take_room(state: ContainerState, transaction: Transaction, size: int, *, size_max: int) -> None:
    """Count the bytes of a run for a part of a transaction.

    The parts of a transaction are many, so its room is counted again only when there seems to be none left.

    Raises:
        TransactionTooLargeError: the transaction would have more bytes than it may.
    """
    if size > transaction.room_bytes:
        parts = map(state.admitted_segment, transaction.admitted_parts)
        transaction.room_bytes = size_max - sum(part.next_offset for part in parts if part is not None)
        if size > transaction.room_bytes:
            raise TransactionTooLargeError(
                f"a transaction may have at most {size_max} bytes of events",
                subject=transaction.subject,
            )
    transaction.room_bytes -= size


def check_open(transaction: Transaction, *, but: str = "") -> None:
    """Raise if a transaction takes nothing more.

    Args:
        but: how what was committed or prepared differs from what is asked for.

    Raises:
        TransactionAbortedError, TransactionCommittedError, TransactionPreparedError: it is so, or is about to be.
    """
    if transaction.admitted_state is TransactionState.OPEN:
        return
    subject = transaction.subject
    if transaction.admitted_state is TransactionState.COMMITTED:
        raise TransactionCommittedError(f"the transaction was committed{but}", subject=subject)
    if transaction.admitted_state is TransactionState.PREPARED:
        raise TransactionPreparedError(f"the transaction is prepared{but}: commit or abort it", subject=subject)
    if transaction.admitted_state is TransactionState.EXPIRED:
        raise TransactionAbortedError("the transaction's lease expired", subject=subject)
    if transaction.admitted_state is TransactionState.ABORTED:
        raise TransactionAbortedError("the transaction was aborted", subject=subject)


def check_condition(segment: Segment, run: AppendRun) -> None:
    """Raise ConditionFailedError if the run expects another offset than the next one."""
    if run.expected_offset not in (-1, segment.next_offset):
        raise ConditionFailedError(
            f"expected offset {run.expected_offset}, the segment ends at {segment.next_offset}",
            subject=segment.name,
            start_offset=segment.start_offset,
            length=segment.next_offset,
        )


def check_size(segment: Segment, size: int, *, size_max: int) -> None:
    """Raise AppendTooLargeError if a run is above the limit, which only a run of a single append can be."""
    if size > size_max:
        raise AppendTooLargeError(f"an append may have at most {size_max} bytes, not {size}", subject=segment.name)


def check_event_count(segment: Segment, event_count: int) -> None:
    """Raise InvalidArgumentError if the segment cannot count so many events more."""
    if event_count > EVENT_COUNT_MAX - segment.next_event_count:
        raise InvalidArgumentError(
            f"a segment may have at most {EVENT_COUNT_MAX} events; it has {segment.next_event_count}, and {event_count}"
            " more do not fit: continue in another segment",
            subject=segment.name,
        )


def check_writer(state: ContainerState, number: int, epoch: int) -> Writer:
    """Return the writer of an append or a request; raise if it is unknown, has expired, or was opened again since."""
    writer = state.writers.get(number)
    row = None if writer is None else writer.admitted
    if row.expired_us if row is not None else number < state.scalars.next_id:
        raise WriterExpiredError(
            f"writer {number} was idle for too long: its event numbers are unknown now, open it again",
            subject=writer.writer_id if writer is not None else "",
        )
    if writer is None or row is None or epoch > row.epoch:
        raise WriterUnknownError(f"writer {number} was never opened under epoch {epoch}")
    if epoch < row.epoch:
        raise WriterFencedError(
            f"epoch {epoch} is fenced by epoch {row.epoch}: the writer was opened again, or has lost the"
            " stream that it had alone",
            subject=writer.writer_id,
        )
    return writer


def check_exclusive(segment: Segment, run: AppendRun, writers: Mapping[int, ExclusiveWriter]) -> None:
    """Raise StreamHasExclusiveWriterError unless a run comes from the exclusive writer of the segment's stream, if any.

    Args:
        writers: the exclusive writers by stream id, as admitted.
    """
    holder = writers.get(segment.stream_id)
    if holder is not None and (run.writer_number, run.writer_epoch) != (holder.number, holder.epoch):
        raise StreamHasExclusiveWriterError.of(holder, subject=segment.name)


def check_event_number(segment: Segment, progress: WriterProgress, run: AppendRun) -> None:
    """Raise EventNumberGapError if a run of a writer starts above the number that must come next."""
    if run.event_number != progress.admitted + 1:
        raise EventNumberGapError(
            f"event number {run.event_number} leaves a gap: {progress.admitted} was the last one stored, "
            f"{progress.admitted + 1} must follow",
            subject=segment.name,
        )


def deduplicate(segment: Segment, run: AppendRun, *, stored: int) -> tuple[AppendRun, AppendRun | None]:
    """Return the part of a run that its writer has stored (or sent) already, and the part after that event.

    Raises:
        EventNumberOverlapError: one append holds both stored and new events.
    """
    number = run.event_number
    assert number <= stored, "it starts with what was sent before"
    if run.last_event_number <= stored:
        return run, None
    size, count = 0, 0
    while number <= stored:
        header = decode_header(run.frames, size)
        size += header.length
        number += header.event_count
        count += 1
    if number != stored + 1:
        raise EventNumberOverlapError(
            f"an append holds events up to {number - 1}, of which those up to {stored} are stored already",
            subject=segment.name,
        )
    return run.split(size, frame_count=count, event_count=number - run.event_number)
