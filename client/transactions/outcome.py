"""What is known of a transaction: how it ended, or that it has not."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from millrace.client.errors import TransactionAbortedError, TransactionCommittedError
from millrace.client.transport.channel import Channel
from millrace.model.cut import StreamCut
from millrace.model.errors import MillraceError
from millrace.model.quantities import UNIX_EPOCH
from millrace.model.shown import ShortRepr
from millrace.model.transaction import TransactionState as StoredState
from millrace.wire import messages as m


class TransactionState(StrEnum):
    """Where a transaction is."""

    UNKNOWN = "unknown"
    """There never was one, or how it ended was forgotten."""
    OPEN = "open"
    PREPARED = "prepared"
    """It takes no more, never ends by itself, and can be committed by its name."""
    COMMITTED = "committed"
    ABORTED = "aborted"


_STATES: Final = {
    StoredState.UNKNOWN: TransactionState.UNKNOWN,
    StoredState.OPEN: TransactionState.OPEN,
    StoredState.PREPARED: TransactionState.PREPARED,
    StoredState.COMMITTED: TransactionState.COMMITTED,
    StoredState.ABORTED: TransactionState.ABORTED,
    StoredState.EXPIRED: TransactionState.ABORTED,
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TransactionOutcome(ShortRepr):
    """A transaction as the server knows it.

    Attributes:
        number: the server's own, of this one; 0 if it is unknown. Another transaction may get the name of one that was
            aborted, and has another number.
        has_expired: it was aborted because nothing named it for longer than its lease.
        event_count, size_bytes: stored in it, while it is open or prepared; 0 when it is over.
        branch_counts: how many of the events are of each branch, by its number; 0 is that which every transaction has.
        streams: that it is over, and when it is committed, those that got events; without those that were deleted.
        lease_s: an open one is aborted when nothing has named it for so long.
        begun_at: by the server's clock, in UTC; None if it is unknown.
        decided_at: when it was committed or aborted; None while it was not.
        cuts: once it is committed: of each stream that it has added events to, and that was not deleted since, its tail
            at one moment, now. All of its events are before them. See `CommitResult`.
    """

    name: str
    number: int
    state: TransactionState
    has_expired: bool
    event_count: int
    size_bytes: int
    branch_counts: dict[int, int]
    streams: tuple[str, ...]
    lease_s: float
    begun_at: datetime | None
    decided_at: datetime | None
    cuts: dict[str, StreamCut]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    """A transaction that is open or prepared.

    Attributes:
        name: empty if only its number names it.
        lease_s: an open one is aborted when nothing has named it for so long; one that is prepared is not.
        begun_at: by the server's clock, in UTC.
        part_count: how many parts it has: one for each range of keys that was written to, of each who writes.
        size_bytes: stored in it.
    """

    name: str
    number: int
    state: TransactionState
    lease_s: float
    begun_at: datetime
    part_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CommitResult(ShortRepr):
    """What a commit did.

    Attributes:
        cuts: of each stream of the transaction, its tail at one moment after the commit. All of its events are before
            them, and so is each other transaction over these streams as a whole, or not at all. A stream that was
            deleted since is left out.
        at: when, by the server's clock, in UTC.
    """

    cuts: dict[str, StreamCut]
    at: datetime


def outcome_of(info: m.TransactionInfo, cuts: dict[str, StreamCut]) -> TransactionOutcome:
    """Return what a reply says of a transaction, with the tails of the streams that it was committed to."""
    return TransactionOutcome(
        name=info.name,
        number=info.number,
        state=_STATES[StoredState(info.state)],
        has_expired=info.state == StoredState.EXPIRED,
        event_count=sum(branch.event_count for branch in info.branches),
        size_bytes=info.size_bytes,
        branch_counts=dict(info.branches),
        streams=tuple(each.name for each in info.names),
        lease_s=info.lease_ms / 1000,
        begun_at=moment_of(info.begun_us) if info.begun_us else None,
        decided_at=moment_of(info.decided_us) if info.decided_us else None,
        cuts=cuts,
    )


def listed_transaction(listed: m.ListedTransaction) -> ListedTransaction:
    """Return what a list says of a transaction."""
    return ListedTransaction(
        name=listed.name,
        number=listed.number,
        state=_STATES[StoredState(listed.state)],
        lease_s=listed.lease_ms / 1000,
        begun_at=moment_of(listed.begun_us),
        part_count=listed.part_count,
        size_bytes=listed.size_bytes,
    )


async def explained(channel: Channel, number: int, error: MillraceError) -> MillraceError:
    """Return why something about a transaction failed: that it is over, if it is, else `error` itself."""
    try:
        info = await channel.request(m.GetTransaction(number, ""))
    except MillraceError:
        return error
    shown = info.name or str(number)
    reason: MillraceError
    match StoredState(info.state):
        case StoredState.EXPIRED:
            reason = TransactionAbortedError(f"{shown}: nothing named the transaction for longer than its lease")
        case StoredState.ABORTED:
            reason = TransactionAbortedError(f"{shown}: the transaction was aborted")
        case StoredState.COMMITTED:
            reason = TransactionCommittedError(f"{shown}: the transaction was committed")
        case _:
            return error
    reason.__cause__ = error
    return reason


def cuts_of(tails: Sequence[m.StreamTail]) -> dict[str, StreamCut]:
    """Return the cuts at the tails of streams, by their names."""
    return {
        tail.name: StreamCut.of(tail.name, {segment_id: (offset, 0) for segment_id, offset in tail.positions})
        for tail in tails
    }


def moment_of(unix_us: int) -> datetime:
    """Return a moment in UTC."""
    return UNIX_EPOCH + timedelta(microseconds=unix_us)
