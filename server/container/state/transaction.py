"""The state of one transaction in memory, the step by which records change it, and which are open.

While it is open, or prepared, a transaction is in memory with its parts: it is pinned by the state, so that any frame
that names a part finds whose it is. When it is over, what is left is its outcome: a row of the checkpoint, found by
number and by name, until it is forgotten.

A transaction and its parts are there in the admitted view before their records are durable, so that all of it can be
one batch of the log, up to its commit. The record that creates either makes the object of the admitted view durable.

The ranges of keys that a stream has in one epoch are the same to all that begin in it: those that are open share them.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from millrace.model.key_range import KeyRange
from millrace.model.names import internal_name
from millrace.model.producer import Producer
from millrace.model.transaction import TransactionPart, TransactionState
from millrace.server.container.entity_cache import EntityCache, Pins
from millrace.server.container.views import EntityRows
from millrace.wire import messages as m

from .segment import SEGMENT_SIZE_BYTES, Segment

TRANSACTION_SIZE_BYTES: Final = 1200
PART_SIZE_BYTES: Final = 500
RANGE_SIZE_BYTES: Final = 150
POSITION_SIZE_BYTES: Final = 120
"""Memory of a transaction, and of one of what it has many of (measured, rounded up)."""
OPEN_PART_SIZE_BYTES: Final = PART_SIZE_BYTES + SEGMENT_SIZE_BYTES
"""Of a part that is open, with its segment."""
ENDED_STATES: Final = (TransactionState.ABORTED, TransactionState.EXPIRED)
"""How a transaction ends without a commit."""
PART_NAME: Final = internal_name("part", "0")[:-1]
"""The names of the internal segments that are parts begin so."""
NO_SESSION: Final = b""
"""Of a transaction that was begun before the server started."""


class TransactionRow(NamedTuple):
    """A transaction, or its outcome. Its parts are not in the row: they are segments.

    Attributes:
        number: forever; what its clients send carries it.
        name: with which it began, empty for none.
        decided_us: when it ended, by the wall clock; 0 while it has not.
        digest: of the branches that were prepared or committed, and their counts.
        branches: those that are committed if it is prepared, with their counts.
        streams: with the segments by which all who write to it route; none of an outcome.
        cuts: where its events end, once it is committed.
        producer: as whom it is committed, while it is not; None for nobody.
    """

    number: int
    name: str
    begun_us: int
    lease_ms: int
    state: TransactionState = TransactionState.OPEN
    decided_us: int = 0
    digest: bytes = b""
    branches: Sequence[m.BranchCount] = ()
    streams: Sequence[m.TransactionStream] = ()
    cuts: Sequence[m.TransactionCut] = ()
    producer: Producer | None = None


TransactionRecord = (
    m.TransactionBegun | m.TransactionPrepared | m.TransactionCommitted | m.TransactionsEnded | m.OutcomesForgotten
)
"""A record that changes the row of a transaction."""


def step(row: TransactionRow | None, record: TransactionRecord) -> TransactionRow | None:
    """Return the row of a transaction after a record. Damage may have taken its beginning, but for a commit."""
    match record:
        case m.TransactionBegun():
            return row_of(record)
        case m.TransactionCommitted():
            return (row or row_of_unknown(record))._replace(
                state=TransactionState.COMMITTED,
                decided_us=record.committed_us,
                digest=record.digest,
                branches=(),
                streams=(),
                cuts=record.cuts,
                producer=None,  # else it says why it is never committed, whenever that is asked for again
            )
        case _ if row is None:
            return None
        case m.TransactionPrepared():
            return row._replace(state=TransactionState.PREPARED, digest=record.digest, branches=record.branches)
        case m.TransactionsEnded():
            if row.state.is_final or record.state not in ENDED_STATES:
                return row
            outcome = TransactionState(record.state)
            return row._replace(state=outcome, decided_us=record.ended_us, branches=(), streams=())
        case m.OutcomesForgotten():
            return None if row.state.is_final else row


def row_of(record: m.TransactionBegun) -> TransactionRow:
    """Return the row of a transaction that begins."""
    return TransactionRow(
        number=record.number,
        name=record.name,
        begun_us=record.begun_us,
        lease_ms=record.lease_ms,
        streams=record.streams,
        producer=Producer(*record.producers[0]) if record.producers else None,
    )


def row_of_unknown(record: m.TransactionCommitted) -> TransactionRow:
    """Return the row, before its commit, of a transaction of which damage has taken the beginning."""
    return TransactionRow(number=record.number, name=record.name, begun_us=record.committed_us, lease_ms=0)


class Transaction(EntityRows[TransactionRow]):
    """A transaction in memory. Its name is empty, too, of an outcome whose name a later transaction has.

    Attributes:
        decided_uptime_us: the uptime that was counted when it ended: its age, which no clock changes; -1 while it has
            not.
        parts: by the id of their segment, in the order in which they were added.
        admitted_parts: the same, ahead by what is queued.
        address: of the host that began it; empty if that was before the server started.
        is_renewed: whether a frame named it since its lease was looked at.
        holders_count: how many requests that wait hold it.
        room_bytes: at least so many bytes may be appended yet, as far as that was counted.
    """

    __slots__ = (
        "_places",
        "_unplaced",
        "address",
        "admitted_parts",
        "decided_uptime_us",
        "holders_count",
        "is_renewed",
        "parts",
        "room_bytes",
    )

    def __init__(self, row: TransactionRow, *, decided_uptime_us: int = -1) -> None:
        super().__init__(row.number, row.name, row)
        self.decided_uptime_us = decided_uptime_us
        self.parts: dict[int, TransactionPart] = {}
        self.admitted_parts: dict[int, TransactionPart] = {}
        self.address = ""
        self.is_renewed = True
        self.holders_count = 0
        self.room_bytes = 0
        # By branch, streams and lowest keys of the admitted parts, without those that were not looked at yet.
        self._places: dict[int, set[tuple[int, int]]] = {}
        self._unplaced: list[TransactionPart] = []

    @property
    def subject(self) -> str:
        """What errors call it: its name, or else its number."""
        return self.name or str(self.number)

    @property
    def row(self) -> TransactionRow:
        """The durable row; the admitted one while its beginning is queued."""
        row = self.durable or self.admitted
        assert row is not None, "it exists in one of the views"
        return row

    @property
    def state(self) -> TransactionState:
        """The durable state."""
        return self.row.state

    @property
    def streams(self) -> Sequence[m.TransactionStream]:
        """Its streams, with the segments by which all who write to it route."""
        return self.row.streams

    @property
    def producer(self) -> Producer | None:
        """As whom it is committed, while it is not."""
        return self.row.producer

    @property
    def admitted_state(self) -> TransactionState:
        """The state with all that is in flight."""
        assert self.admitted is not None, "its outcome is about to be forgotten"
        return self.admitted.state

    def share_streams(self, streams: Sequence[m.TransactionStream]) -> None:
        """Have the streams that others have too, which are equal in any whole log: their ranges take much memory."""
        mine = self.streams
        if any(one is not shared for one, shared in zip(mine, streams, strict=True)):
            self.durable, self.admitted = (
                row if row is None or row.streams != mine else row._replace(streams=streams)
                for row in (self.durable, self.admitted)
            )

    def admit_as_durable(self) -> None:
        """Implement `EntityRows`."""
        super().admit_as_durable()
        self.admitted_parts = dict(self.parts)
        self._places, self._unplaced = {}, list(self.parts.values())

    def admit_parts(self, parts: Mapping[int, TransactionPart]) -> None:
        """Have these parts, too, in the admitted view; none of them was there."""
        self.admitted_parts.update(parts)
        self._unplaced += parts.values()

    def places(self) -> dict[int, set[tuple[int, int]]]:
        """Return for each branch the streams and lowest keys of its admitted parts, which say what range is theirs.

        One has many, and gets them one by one: each is looked at once.
        """
        for part in self._unplaced:
            self._places.setdefault(part.branch, set()).add((part.stream_id, part.key_range.low))
        self._unplaced.clear()
        return self._places

    def forget_parts(self) -> None:
        """Have none any more: it is over."""
        self.parts, self.admitted_parts, self._places, self._unplaced = {}, {}, {}, []

    @property
    def memory_bytes(self) -> int:
        """About how much memory this takes, without its segments, and the ranges that it shares while it is open."""
        return (
            TRANSACTION_SIZE_BYTES
            + PART_SIZE_BYTES * len(self.parts)
            + POSITION_SIZE_BYTES * sum(len(cut.positions) for cut in self.row.cuts)
        )


def part_of(record: m.PartRecord, *, branch: int) -> TransactionPart:
    """Return the part that a record gives a branch."""
    segment_id, stream_id, low, last = record
    return TransactionPart(segment_id, branch, stream_id, KeyRange.inclusive(low, last))


def parts_of(parts: Iterable[m.PartRecord], *, branch: int) -> dict[int, TransactionPart]:
    """Return the parts that a record gives a branch, by the ids of their segments."""
    return {part.segment_id: part_of(part, branch=branch) for part in parts}


def segment_of_part(segment_id: int, *, created_us: int) -> Segment:
    """Return the segment of a part that is new."""
    return Segment(segment_id=segment_id, name=f"{PART_NAME}{segment_id}", created_us=created_us)


@dataclass(slots=True)
class _Shared:
    """The ranges of a stream in one epoch, and how many open transactions have them."""

    stream: m.TransactionStream
    users_count: int = 0

    @property
    def size_bytes(self) -> int:
        return RANGE_SIZE_BYTES * len(self.stream.ranges)


def _change(counts: Counter[Any], key: Hashable, difference: int) -> None:
    """Add to a count; one that is 0 is not kept."""
    counts[key] += difference
    if not counts[key]:
        del counts[key]


class OpenTransactions:
    """The transactions that are not over, and whose each of their parts is; keeps both in memory.

    Args:
        transactions, segments: where they are pinned.
    """

    def __init__(self, transactions: EntityCache[Transaction], segments: EntityCache[Segment]) -> None:
        self._transactions = transactions
        self._segments = segments
        self._by_number: dict[int, Transaction] = {}
        self._of_part: dict[int, Transaction] = {}
        self._pins: dict[int, Pins] = {}
        # Admitted: by number, over which streams it is, which session began it and the writer id of its producer, and
        # how many there are of each.
        self._begun: dict[int, list[int | bytes | str]] = {}
        self._counts: Counter[int | bytes | str] = Counter()
        # Admitted, by address: how many there are, over each stream, and how many parts they have.
        self._address_counts: Counter[str] = Counter()
        self._address_stream_counts: Counter[tuple[str, int]] = Counter()
        self._address_part_counts: Counter[str] = Counter()
        self._prepared: set[int] = set()
        # Admitted: by number what it shares, by stream and epoch that itself, and its memory.
        self._shares: dict[int, list[tuple[int, int]]] = {}
        self._shared: dict[tuple[int, int], _Shared] = {}
        self._shared_bytes = 0
        # How many were decided to end in each way since the server started.
        self.decided_totals: dict[TransactionState, int] = dict.fromkeys(TransactionState, 0)

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def by_number(self) -> dict[int, Transaction]:
        """All of them."""
        return self._by_number

    def page(self, *, after: int, count_max: int) -> tuple[list[Transaction], bool]:
        """Return those with the lowest numbers above one, and whether there are further ones."""
        numbers = nsmallest(count_max + 1, (number for number in self._by_number if number > after))
        return [self._by_number[number] for number in numbers[:count_max]], len(numbers) > count_max

    @property
    def parts_count(self) -> int:
        """How many parts they have together, those included whose creation is queued."""
        return len(self._of_part)

    @property
    def begun_count(self) -> int:
        """How many there are with those whose beginning is queued."""
        return len(self._begun)

    def count_over(self, stream_id: int) -> int:
        """Return how many of these are over a stream."""
        return self._counts[stream_id]

    def count_by(self, session_id: bytes) -> int:
        """Return how many of these were begun by a session."""
        return self._counts[session_id]

    def count_as(self, writer_id: str) -> int:
        """Return how many of these were begun as a producer."""
        return self._counts[writer_id]

    def address_count(self, address: str) -> int:
        """Return how many of these were begun from an address."""
        return self._address_counts[address]

    def address_count_over(self, address: str, stream_id: int) -> int:
        """Return how many of these were begun from an address over a stream."""
        return self._address_stream_counts[address, stream_id]

    def address_parts_count(self, address: str) -> int:
        """Return how many parts the transactions have that were begun from an address."""
        return self._address_part_counts[address]

    def address_size_bytes(self, address: str) -> int:
        """About how much memory these take, without the ranges that they share."""
        parts_bytes = OPEN_PART_SIZE_BYTES * self._address_part_counts[address]
        return TRANSACTION_SIZE_BYTES * self._address_counts[address] + parts_bytes

    @property
    def prepared_count(self) -> int:
        """How many of these are prepared: no lease ends them."""
        return len(self._prepared)

    def note_prepared(self, transaction: Transaction) -> None:
        """Count one as prepared from now on."""
        self._prepared.add(transaction.number)

    @property
    def size_bytes(self) -> int:
        """About how much memory these take, with their parts and the segments of these, what is queued included."""
        parts_bytes = OPEN_PART_SIZE_BYTES * len(self._of_part)
        return TRANSACTION_SIZE_BYTES * len(self._begun) + parts_bytes + self._shared_bytes

    def shared(self, stream_id: int, epoch: int) -> m.TransactionStream | None:
        """Return the ranges of a stream in an epoch, if one of these has them."""
        shared = self._shared.get((stream_id, epoch))
        return None if shared is None else shared.stream

    def growth_bytes(self, streams: Iterable[m.TransactionStream]) -> int:
        """Return how much more memory these would take with another one over streams."""
        return TRANSACTION_SIZE_BYTES + sum(
            _Shared(stream).size_bytes for stream in streams if self.shared(stream.stream_id, stream.epoch) is None
        )

    def admit(self, transaction: Transaction, *, session_id: bytes = NO_SESSION) -> None:
        """Count one from now on, whose beginning is queued; nothing happens if it is counted."""
        number = transaction.number
        if number not in self._begun:
            self._pins[number] = self._transactions.pin((number,))
            counted = self._begun[number] = [*(stream.stream_id for stream in transaction.streams), session_id]
            if transaction.producer is not None:
                counted.append(transaction.producer.writer_id)
            for key in counted:
                self._counts[key] += 1
            self._count_address(transaction, 1)
            self._shares[number] = []
            transaction.share_streams([self._share(number, stream) for stream in transaction.streams])

    def _count_address(self, transaction: Transaction, difference: int) -> None:
        _change(self._address_counts, transaction.address, difference)
        for stream in transaction.streams:
            _change(self._address_stream_counts, (transaction.address, stream.stream_id), difference)

    def _share(self, number: int, stream: m.TransactionStream) -> m.TransactionStream:
        """Return the one of these that all have who began in its epoch, and count that this one has it, too."""
        key = (stream.stream_id, stream.epoch)
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(stream)
            self._shared_bytes += shared.size_bytes
        shared.users_count += 1
        self._shares[number].append(key)
        return shared.stream

    def _release(self, number: int) -> None:
        """Give back what one shares that is over."""
        for key in self._shares.pop(number):
            shared = self._shared[key]
            shared.users_count -= 1
            if not shared.users_count:
                self._shared_bytes -= shared.size_bytes
                del self._shared[key]

    @property
    def pins_count(self) -> int:
        """How many pins of transactions and of segments these are."""
        return sum(map(len, self._pins.values()))

    def owner(self, segment_id: int) -> Transaction | None:
        """Return the transaction that a segment is a part of, None if it is a part of none."""
        return self._of_part.get(segment_id)

    def add(self, transaction: Transaction) -> None:
        """Add one that is in the cache, with the parts that it has; blocks if they must be loaded."""
        self._by_number[transaction.number] = transaction
        self.admit(transaction)
        if transaction.state is TransactionState.PREPARED:
            self.note_prepared(transaction)
        assert self._transactions.peek(transaction.number) is transaction, "one object for a transaction"
        self.add_parts(transaction, transaction.parts)

    def admit_parts(self, transaction: Transaction, segment_ids: Collection[int]) -> None:
        """Know of segments that are about to be created whose parts they are, and keep them in memory from then on."""
        self._of_part.update(dict.fromkeys(segment_ids, transaction))
        _change(self._address_part_counts, transaction.address, len(segment_ids))
        self._segments.pin_new(segment_ids, into=self._pins[transaction.number])

    def add_parts(self, transaction: Transaction, segment_ids: Iterable[int]) -> None:
        """Add segments that are parts of one from now on; blocks if they must be loaded. What it has is left aside."""
        for segment_id in segment_ids:
            if segment_id not in self._of_part:
                self._of_part[segment_id] = transaction
                _change(self._address_part_counts, transaction.address, 1)
                self._segments.pin((segment_id,), into=self._pins[transaction.number])

    def drop_parts(self, transaction: Transaction, segment_ids: Iterable[int]) -> None:
        """Remove parts that are deleted; their pins end with the transaction."""
        for segment_id in segment_ids:
            if self._of_part.get(segment_id) is transaction:
                del self._of_part[segment_id]
                _change(self._address_part_counts, transaction.address, -1)

    def end(self, transaction: Transaction) -> None:
        """Remove one that is over; nothing happens if it was not there."""
        if self._by_number.pop(transaction.number, None) is not None:
            for segment_id in transaction.parts:
                del self._of_part[segment_id]
            _change(self._address_part_counts, transaction.address, -len(transaction.parts))
            self._count_address(transaction, -1)
            self._prepared.discard(transaction.number)
            self._pins.pop(transaction.number).release()
            self._release(transaction.number)
            for key in self._begun.pop(transaction.number):
                _change(self._counts, key, -1)
