"""Messages about transactions: events of one or several streams that become readable together, or never.

A client takes the numbers of its transactions, and of the segments with their events, from a range that the server
reserves for it. So it can use both before the server has answered.
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
    """Numbers reserved for a client until the server ends: `count` of them, from `first` on."""

    first: U64
    count: U32


@message(80)
class ReserveIds(Request[IdRange]):
    """Reserve numbers for transactions and their parts; each can be used once."""

    count: U32


class TransactionStream(NamedTuple):
    """A stream of a transaction, with its open segments when it began: all participants route by them."""

    stream_id: U64
    epoch: U32
    ranges: List16[SegmentRangeRecord]


class BranchCount(NamedTuple):
    """The number of events in a branch of a transaction."""

    branch: U64  # 0 is the branch that every transaction has
    event_count: U64


class TransactionCut(NamedTuple):
    """The end of a transaction's events in a stream: after the last one, in each segment that got some."""

    stream_id: U64
    epoch: U32  # of the stream, after the commit
    positions: List32[CutPosition]


@message(83, kw_only=True)
class TransactionInfo(FromServer):
    """A transaction as it is now."""

    number: U64
    state: U8  # `TransactionState`; 0: unknown (or forgotten)
    lease_ms: U32
    begun_us: I64
    decided_us: I64  # when it was committed or aborted; 0 while it was not
    name: Text
    streams: List16[TransactionStream]  # while it is open
    branches: List32[BranchCount]  # while it is open: the stored events of each; if prepared, the branches to commit
    cuts: List16[TransactionCut]  # once it is committed
    size_bytes: U64  # while it is open: stored bytes
    names: List16[NamedStream]  # of its streams, as far as they are known


@message(92, kw_only=True)
class TransactionReply(FromServer):
    """A transaction after a step: the part that the client does not know."""

    number: U64  # if it was joined, another number than the requested one
    state: U8  # `TransactionState`
    changed: U8  # 1: by this request
    decided_us: I64  # when it was committed or aborted; 0 while it was not
    streams: List16[TransactionStream]  # for a client that begins or joins it without its own routing
    # For the client that commits: where its events end, and where its streams ended right after, if known for all.
    cuts: List16[TransactionCut]
    tails: List16[StreamTail]


class ProducerClaim(NamedTuple):
    """The producer of a transaction: each sequence of a holder is committed at most once."""

    producer_id: ProducerId
    holder: Text
    run: Text
    sequence: I64


class RoutedStream(NamedTuple):
    """A stream of a transaction, and the segments by which the client has routed."""

    name: StreamName
    stream_id: U64  # 0: not routed yet; the client adopts the streams of the reply
    epoch: U32  # of that stream


class NewPart(NamedTuple):
    """A segment for events of a transaction."""

    segment_id: U64  # from a reserved range
    routed_id: U64  # the segment of a stream that had these keys when the transaction began


@message(82, kw_only=True)
class BeginTransaction(Request[TransactionReply]):
    """Begin a transaction over streams; if a transaction of that name is open, join it: the reply has its number.

    Frames that belong to it may be sent right after it: they are carried out in order, and refused if this request is.
    Refused with TRANSACTION_COMMITTED if a transaction of that name was committed, with EPOCH_CHANGED if a stream was
    recreated or scaled since the client routed. Idempotent when resent. The first one of a run of a producer fences
    older runs, whatever the answer. It may request no answer (`RequestFlag`).
    """

    flags: ClassVar[int] = RequestFlag.UNANSWERED
    number: TransactionNumber  # from a reserved range
    name: TransactionName  # any text; empty: only its number names it
    lease_ms: U32  # its lease: it is aborted if no request names it for this long
    streams: List16[RoutedStream]
    producers: List16[ProducerClaim] = field(default_factory=list)  # at most one
    parts: List16[NewPart] = field(default_factory=list)  # of its branch 0; none if it has a name


@message(84, kw_only=True)
class AddParts(Request[Done]):
    """Create further parts of a transaction: all of them, or none. `changed` = 0 if it has them already.

    It may request no answer (`RequestFlag`).
    """

    flags: ClassVar[int] = RequestFlag.UNANSWERED
    number: TransactionNumber
    branch: U64
    parts: List16[NewPart]


class CursorMove(NamedTuple):
    """A cursor that moves with a commit."""

    stream: StreamName
    name: Text
    expected: List16[SavedPosition]  # its expected place; empty: there must be no cursor of that name
    positions: List16[SavedPosition]


@message(85, kw_only=True)
class CommitTransaction(Request[TransactionReply]):
    """Commit a transaction: the events of branches become part of their streams, all at once, if their counts match.

    Sent again with the same branches, it returns the outcome and `changed` = 0. A prepared transaction is committed as
    it was prepared: it may be named by its name alone, then with no branches.
    """

    number: TransactionNumber  # 0: the prepared transaction with the name
    name: TransactionName
    branches: List32[BranchCount]  # parts with keys in common are merged in this order
    drops_others: U8  # 1: other branches are deleted; 0: there must be no others
    cursors: List16[CursorMove]  # refused with CURSOR_MOVED if one has moved; none if it is prepared
    fingerprint: Text = ""  # of the content of the producer's sequence; empty for none


@message(89, kw_only=True)
class PrepareTransaction(Request[TransactionReply]):
    """Prepare a transaction: it accepts no more events, never expires, and only an abort can prevent its commit.

    Refused unless the counts of the branches match, and it has a name. Idempotent with the same branches.
    """

    number: TransactionNumber
    branches: List32[BranchCount]  # the branches to commit, in this order
    drops_others: U8  # 1: other branches are deleted; 0: there must be no others


@message(86)
class AbortTransaction(Request[TransactionReply]):
    """Abort a transaction and delete its events, by its number or, if that is 0, its name. Idempotent."""

    number: TransactionNumber
    name: TransactionName


@message(87)
class GetTransaction(Query[TransactionInfo]):
    """Fetch a transaction, by its number or, if that is 0, its name; `state` = 0 if it is unknown."""

    number: TransactionNumber
    name: TransactionName


@message(88)
class RenewTransactions(Request[Done]):
    """Renew the leases of open transactions; other transactions are skipped."""

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
    more: U8  # 1: further ones follow after the last


@message(90)
class ListTransactions(Query[TransactionList]):
    """List the open and prepared transactions by number: those after `after`."""

    after: U64
    count_max: U32


class FencedRun(NamedTuple):
    """A run of a producer that was replaced."""

    run: Text


@message(97, kw_only=True)
class ProducerInfo(FromServer):
    """The state of a producer."""

    producer_id: Text
    holder: Text  # empty: the next run of any holder takes over
    run: Text  # the newest run; empty: none since the reset
    last_sequence: I64  # the highest sequence that the holder has committed; -1: none
    fenced: List16[FencedRun]  # replaced runs, oldest first
    fingerprint: Text  # of the content of the last sequence, as given by its commit; empty: none


@message(96)
class GetProducer(Query[ProducerInfo]):
    """Fetch a producer; refused with PRODUCER_UNKNOWN if the server does not know it."""

    producer_id: ProducerId


@message(98, kw_only=True)
class ResetProducer(Request[Done]):
    """Assign the writer id of a producer to another holder, whose sequences start over; its earlier runs stay fenced.

    `changed` = 0 if that holder has it already: its sequences keep their meaning.
    """

    producer_id: ProducerId
    expected_holder: Text  # the current holder; refused with PRODUCER_HELD if another one has it by now
    holder: Text  # empty: the next run of any holder takes over


@message(99, kw_only=True)
class DeleteProducer(Request[Done]):
    """Forget a producer, and abort its open transactions; `changed` = 0 if it does not exist.

    Refused with PRODUCER_COMMITTED if its last sequence differs: its commits are not recognised any more afterwards.
    """

    producer_id: ProducerId
    last_sequence: I64  # the highest sequence that the holder has committed, as the client knows; -1: none
