"""Messages about transactions: events of one or several streams that become readable together, or never.

A client takes the numbers of its transactions, and of the segments that hold their events, from a range that the server
reserves for it. So it can name both before the server has answered.
"""

from dataclasses import field
from typing import ClassVar, NamedTuple

from .declaration import (
    I64,
    U8,
    U32,
    U64,
    FromServer,
    List16,
    List32,
    ProducerId,
    Query,
    Request,
    RequestFlag,
    StreamName,
    Text,
    TransactionName,
    TransactionNumber,
    message,
)
from .session import Done
from .stream import CutPosition, NamedStream, SavedPosition, SegmentRangeRecord, StreamTail


@message(81)
class IdRange(FromServer):
    """Numbers that are the client's until the server ends: `count` of them, from `first` on."""

    first: U64
    count: U32


@message(80)
class ReserveIds(Request[IdRange]):
    """Ask for numbers of transactions and of their parts; each can be used once."""

    count: U32


class TransactionStream(NamedTuple):
    """A stream of a transaction, with its open segments at the time when it began: all who write route by them."""

    stream_id: U64
    epoch: U32
    ranges: List16[SegmentRangeRecord]


class BranchCount(NamedTuple):
    """How many events a branch of a transaction has."""

    branch: U64  # 0 is the one that every transaction has
    event_count: U64


class TransactionCut(NamedTuple):
    """Where the events of a transaction end in a stream: after the last one, in each segment that got some."""

    stream_id: U64
    epoch: U32  # of the stream, after the commit
    positions: List32[CutPosition]


@message(83, kw_only=True)
class TransactionInfo(FromServer):
    """A transaction as it is now."""

    number: U64
    state: U8  # `TransactionState`; 0: not known (any more)
    lease_ms: U32
    begun_us: I64
    decided_us: I64  # when it was committed or aborted; 0 while it was not
    name: Text
    streams: List16[TransactionStream]  # while it is open
    branches: List32[BranchCount]  # while it is open: what is stored of each; of a prepared one, those it commits
    cuts: List16[TransactionCut]  # once it is committed
    size_bytes: U64  # while it is open: what is stored of it
    names: List16[NamedStream]  # of its streams, as far as they are known


@message(92, kw_only=True)
class TransactionReply(FromServer):
    """A transaction after a step: what the one who asked for it does not know."""

    number: U64  # where it was joined, another one than was asked for
    state: U8  # `TransactionState`
    changed: U8  # 1: by this request
    decided_us: I64  # when it was committed or aborted; 0 while it was not
    streams: List16[TransactionStream]  # to who begins it, or joins it, and does not say how it has routed
    # To who commits it: where its events end, and where its streams ended right after that, if it is known of all.
    cuts: List16[TransactionCut]
    tails: List16[StreamTail]


class ProducerClaim(NamedTuple):
    """As which producer a transaction is committed: each sequence of a holder once."""

    producer_id: ProducerId
    holder: Text
    run: Text
    sequence: I64


class RoutedStream(NamedTuple):
    """A stream of a transaction, and which of its segments the client has routed by."""

    name: StreamName
    stream_id: U64  # 0: it has not routed yet, and takes what the reply says
    epoch: U32  # of that stream


class NewPart(NamedTuple):
    """A segment for events of a transaction."""

    segment_id: U64  # from a reserved range
    routed_id: U64  # the segment of a stream that had these keys when the transaction began


@message(82, kw_only=True)
class BeginTransaction(Request[TransactionReply]):
    """Begin a transaction over streams; where one of that name is open, join it, and the reply has its number.

    What belongs to it may be sent right after it: it is carried out in that order, and refused if this is. Refused
    with TRANSACTION_COMMITTED if one of that name was committed, with EPOCH_CHANGED if a stream is another one than the
    client has routed by, or has another epoch. Sent again, it is the same request. The first one of a run of a producer
    lets that run take over, whatever the answer. It may ask for no answer (`RequestFlag`).
    """

    flags: ClassVar[int] = RequestFlag.UNANSWERED
    number: TransactionNumber  # from a reserved range
    name: TransactionName  # any text; empty: only its number names it
    lease_ms: U32  # it ends by itself when nothing names it for so long
    streams: List16[RoutedStream]
    producers: List16[ProducerClaim] = field(default_factory=list)  # one, or none
    parts: List16[NewPart] = field(default_factory=list)  # of its branch 0; none if it has a name


@message(84, kw_only=True)
class AddParts(Request[Done]):
    """Create further parts of a transaction: all of them, or none. `changed` = 0 if it has them already.

    It may ask for no answer (`RequestFlag`).
    """

    flags: ClassVar[int] = RequestFlag.UNANSWERED
    number: TransactionNumber
    branch: U64
    parts: List16[NewPart]


class CursorMove(NamedTuple):
    """A cursor that moves with a commit."""

    stream: StreamName
    name: Text
    expected: List16[SavedPosition]  # where it must be; empty: there must be no cursor of that name
    positions: List16[SavedPosition]


@message(85, kw_only=True)
class CommitTransaction(Request[TransactionReply]):
    """Let the events of branches be part of their streams, all at once; refused unless they have so many events.

    Sent again with the same branches, it answers with the outcome and `changed` = 0. A prepared one is committed as it
    was prepared: it may be named by its name alone, then with no branches.
    """

    number: TransactionNumber  # 0: the prepared one with the name
    name: TransactionName
    branches: List32[BranchCount]  # parts with keys in common are merged in this order
    drops_others: U8  # 1: what other branches have is deleted; 0: there must be no others
    cursors: List16[CursorMove]  # refused with CURSOR_MOVED if one is not where it must be; none if it is prepared
    fingerprint: Text = ""  # of the content of the producer's sequence; empty for none


@message(89, kw_only=True)
class PrepareTransaction(Request[TransactionReply]):
    """Let a transaction take no more, and never end by itself: from now on nothing but an abort keeps it from a commit.

    Refused unless the branches have so many events, and it has a name. Sent again with the same branches, it changes
    nothing.
    """

    number: TransactionNumber
    branches: List32[BranchCount]  # those that are committed, in this order
    drops_others: U8  # 1: what other branches have is deleted; 0: there must be no others


@message(86)
class AbortTransaction(Request[TransactionReply]):
    """Delete what a transaction has, by its number or, where that is 0, its name. Aborting it again is fine."""

    number: TransactionNumber
    name: TransactionName


@message(87)
class GetTransaction(Query[TransactionInfo]):
    """Ask for a transaction, by its number or, where that is 0, its name; `state` = 0 if it is not known."""

    number: TransactionNumber
    name: TransactionName


@message(88)
class RenewTransactions(Request[Done]):
    """Let the leases of open transactions start over; those that are not open are left aside."""

    numbers: List16[TransactionNumber]


class ListedTransaction(NamedTuple):
    """A transaction that is not over."""

    number: U64
    state: U8  # open or prepared
    lease_ms: U32
    begun_us: I64
    part_count: U32
    size_bytes: U64
    name: Text  # empty for none


@message(91)
class TransactionList(FromServer):
    """Transactions, by their numbers."""

    transactions: List16[ListedTransaction]
    more: U8  # 1: there are further ones after the last


@message(90)
class ListTransactions(Query[TransactionList]):
    """List the transactions that are open or prepared, by their numbers: those after `after`."""

    after: U64
    count_max: U32


class FencedRun(NamedTuple):
    """A run of a producer that was replaced."""

    run: Text


@message(97, kw_only=True)
class ProducerInfo(FromServer):
    """What is known of a producer."""

    producer_id: Text
    holder: Text  # empty: the next run of any holder takes over
    run: Text  # that took over last; empty: none since the reset
    last_sequence: I64  # the highest that the holder has committed; -1: none
    fenced: List16[FencedRun]  # runs that were replaced, the newest at the end
    fingerprint: Text  # of the content of the last sequence, as its commit gave it; empty: none


@message(96)
class GetProducer(Query[ProducerInfo]):
    """Ask for a producer; refused with PRODUCER_UNKNOWN if the server does not know it."""

    producer_id: ProducerId


@message(98, kw_only=True)
class ResetProducer(Request[Done]):
    """Give the writer id of a producer to another holder, whose sequences start over; its runs so far stay fenced.

    `changed` = 0 if that holder has it already: its sequences mean what they meant.
    """

    producer_id: ProducerId
    expected_holder: Text  # who has it; refused with PRODUCER_HELD if that is another one by now
    holder: Text  # empty: the next run of any holder takes over


@message(99, kw_only=True)
class DeleteProducer(Request[Done]):
    """Forget a producer, and abort its open transactions; `changed` = 0 if there was none.

    Refused with PRODUCER_COMMITTED if its last sequence is another one: what was committed is not recognised any more.
    """

    producer_id: ProducerId
    last_sequence: I64  # the highest that the holder has committed, as the client knows; -1: none
