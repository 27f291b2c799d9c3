"""States and outcomes of transactions, and the result of a commit."""

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
    """State of a transaction."""

    UNKNOWN = "unknown"
    """The transaction never existed, or the server no longer knows its outcome."""
    OPEN = "open"
    PREPARED = "prepared"
    """It accepts no more events, cannot expire, and can be committed by its name."""
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
        number: the server's number; 0 if the transaction is unknown. After an abort, a new transaction with the same
            name has another number.
        has_expired: it was aborted by lease expiry.
        event_count, size_bytes: stored in it while it is open or prepared; 0 when it is over.
        branch_counts: events of each branch, by its number; 0 is the branch that every transaction has.
        streams: the streams of the transaction; once committed, only those that received events. Deleted streams are
            left out.
        lease_s: an open transaction is aborted when its lease was not renewed for this long.
        begun_at: by the server's clock, in UTC; None if it is unknown.
        decided_at: when it was committed or aborted; None before.
        cuts: once committed: the current tail of each stream that received events and still exists, all at one moment.
            All events of the transaction are before these cuts. See `CommitResult`.
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
    """An open or prepared transaction in a listing.

    Attributes:
        name: empty for a transaction without a name.
        lease_s: an open transaction is aborted when its lease was not renewed for this long; a prepared one is not.
        begun_at: by the server's clock, in UTC.
        part_count: its parts: one for each key range that each branch has written to.
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
    """The result of a commit.

    Attributes:
        cuts: the tail of each stream of the transaction, all at one moment after the commit. All events of the
            transaction are before these cuts, and the cuts divide no other transaction over these streams. A stream
            that was deleted since is left out.
        at: time of the commit by the server's clock, in UTC.
    """

    cuts: dict[str, StreamCut]
    at: datetime


def outcome_of(info: m.TransactionInfo, cuts: dict[str, StreamCut]) -> TransactionOutcome:
    """Return the outcome in a reply, with the tails of the streams."""
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
    """Return one item of a listing."""
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
    """Return the error that explains a failure: that the transaction is over, else `error` itself."""
    try:
        info = await channel.request(m.GetTransaction(number, ""))
    except MillraceError:
        return error
    shown = info.name or str(number)
    reason: MillraceError
    match StoredState(info.state):
        case StoredState.EXPIRED:
            reason = TransactionAbortedError(f"{shown}: the transaction's lease expired")
        case StoredState.ABORTED:
            reason = TransactionAbortedError(f"{shown}: the transaction was aborted")
        case StoredState.COMMITTED:
            reason = TransactionCommittedError(f"{shown}: the transaction was committed")
        case _:
            return error
    reason.__cause__ = error
    return reason


def cuts_of(tails: Sequence[m.StreamTail]) -> dict[str, StreamCut]:
    """Return the cuts at the tails of streams, by name."""
    return {
        tail.name: StreamCut.of(tail.name, {segment_id: (offset, 0) for segment_id, offset in tail.positions})
        for tail in tails
    }


def moment_of(unix_us: int) -> datetime:
    """Return a time in UTC."""
    return UNIX_EPOCH + timedelta(microseconds=unix_us)
