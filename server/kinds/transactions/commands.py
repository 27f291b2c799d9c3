"""Decisions about transactions: each is one record in the log of their home container.

A transaction may begin, get parts, be written to and end in one batch of the log: each step is decided on the admitted
view, which includes all earlier steps. So `begin`, `add_parts`, `prepare` and `commit` have two halves. The first one
(`..._now`) decides in one step, without a wait, or returns None if something in flight could change the decision. The
second one waits until that is durable.

A commit waits for decisions in flight about its streams, and for nothing else. Then it is planned on the admitted view
(`commits`), decided, and that view moved, in one step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from millrace.model.names import checked_transaction_name
from millrace.model.producer import Producer, checked_fingerprint
from millrace.model.transaction import IMPLICIT_BRANCH, TransactionPart, TransactionState, digest_of_branches
from millrace.server.container.admission import check_open
from millrace.server.container.container import SegmentContainer
from millrace.server.container.in_flight import PendingDecision
from millrace.server.container.state.transaction import (
    NO_SESSION,
    OPEN_PART_SIZE_BYTES,
    Transaction,
    TransactionRow,
    parts_of,
    row_of,
    segment_of_part,
)
from millrace.server.errors import (
    EpochChangedError,
    InvalidArgumentError,
    StreamHasExclusiveWriterError,
    StreamSealedError,
    TransactionUnknownError,
)
from millrace.server.kinds.aborts import end_transactions
from millrace.server.kinds.producers.commands import ProducerCommands, check_producer
from millrace.server.kinds.producers.row import producers_of
from millrace.server.kinds.streams.commands import StreamCommands
from millrace.server.kinds.streams.cursor_moves import are_moving, check_none, check_places, plan_moves
from millrace.wire import messages as m

from .answers import TransactionAnswers, commit_reply, step_reply
from .commits import admit_commit, chosen_parts, plan_transaction
from .limits import TransactionLimits
from .options import TransactionsOptions
from .part_validation import has_parts, part_records

IDS_COUNT_MAX: Final = 65_536
"""In one range."""
_TAKEN: Final = (TransactionState.OPEN, TransactionState.PREPARED, TransactionState.COMMITTED)
"""States in which another transaction cannot have the name."""


class AdmittedStep(NamedTuple):
    """A step of a transaction, decided now or before.

    Attributes:
        decision: None if it was decided before.
        reply: the reply when the step is durable, if it is known now.
    """

    transaction: Transaction
    decision: PendingDecision | None
    reply: m.TransactionReply | None = None


class TransactionCommands:
    """Begins, fills, commits and aborts transactions.

    Attributes:
        answers: reports the state of transactions.
        producers: of the transactions.
    """

    def __init__(self, container: SegmentContainer, streams: StreamCommands, *, options: TransactionsOptions) -> None:
        self._container = container
        self._state = container.state
        self._streams = streams
        self._limits = TransactionLimits(container.state, options)
        self._ids = container.state.reserved_ids
        self.answers = TransactionAnswers(container)
        self.producers = ProducerCommands(container, count_max=options.producers_count_max)

    async def reserve_ids(self, count: int) -> int:
        """Reserve numbers for a client, and return the first of them; they are void when the server ends.

        Raises:
            InvalidArgumentError: so many cannot be asked for at once.
            NoSpaceError, ThrottledError: there is no room for what is new.
        """
        if not 1 <= count <= IDS_COUNT_MAX:
            raise InvalidArgumentError(f"1 to {IDS_COUNT_MAX} numbers are reserved at once, not {count}")
        self._container.check_room()
        first = self._state.take_ids(count)
        self._ids.add(first, count)
        await self._container.decide(m.IdsReserved(first, count), first)
        return first

    async def settled(self, admitted: AdmittedStep) -> bool:
        """Wait until a step, or its earlier decision, is durable; return whether this request decided it.

        Raises:
            ServerError: the log failed first.
        """
        if admitted.decision is None:
            await self._container.in_flight.settled()
            return False
        await admitted.decision.durable()
        return True

    async def begin(
        self,
        number: int,
        name: str,
        *,
        lease_ms: int,
        streams: Sequence[m.RoutedStream],
        session_id: bytes,
        address: str = "",
        producer: Producer | None = None,
        parts: Sequence[m.NewPart] = (),
    ) -> AdmittedStep:
        """Begin a transaction when that can be decided. See `begin_now`; cancelling is safe."""
        return await self._when_possible(
            m.Required(streams=[each.name for each in streams], transactions=[number, name]),
            lambda: self.begin_now(
                number,
                name,
                lease_ms=lease_ms,
                streams=streams,
                session_id=session_id,
                address=address,
                producer=producer,
                parts=parts,
            ),
        )

    def begin_now(
        self,
        number: int,
        name: str,
        *,
        lease_ms: int,
        streams: Sequence[m.RoutedStream],
        session_id: bytes = NO_SESSION,
        address: str = "",
        producer: Producer | None = None,
        parts: Sequence[m.NewPart] = (),
    ) -> AdmittedStep | None:
        """Begin a transaction, or join the open one of that name; None: something has to become durable before.

        Args:
            number: reserved; not used if one is joined. With the number of one that is open it is the same request.
            name: empty for none.
            lease_ms: it ends by itself when nothing names it for so long.
            streams: each with what the client has routed by, if it has.
            session_id: of the client, of which no more than so many may be open.
            address: of the host, which shares the bounds of all with others.
            producer: as whom it is committed; its run takes over. Who joins may leave it out.
            parts: of its branch 0, see `add_parts_now`; none if it has a name.

        Raises:
            InvalidNameError: the name is too long, or is not printable.
            InvalidArgumentError: a number was not reserved or is used, the lease or the number of streams is out of
                bounds, one of that name is open over other streams, or for another producer; or as `add_parts_now`.
            ProducerError: see `ProducerCommands.begin`.
            StreamNotFoundError, StreamSealedError: of one of the streams.
            EpochChangedError: the client has routed by other segments than are open now.
            StreamHasExclusiveWriterError: one of the streams has an exclusive writer.
            TransactionCommittedError: one of that name was committed.
            TransactionAbortedError: the one of that number was aborted.
            TransactionsFullError: too many are open, over one of the streams, by the client, or in all; or they would
                take too much memory.
            NoSpaceError, ThrottledError: there is no room for what is new.
        """
        checked_transaction_name(name)
        if name and parts:
            raise InvalidArgumentError("parts begin with a transaction that has no name", subject=name)
        stream_names = [each.name for each in streams]
        self._limits.check_request(lease_ms, stream_names)
        found = self._state.transactions.get(number) or (self._state.transactions.find(name) if name else None)
        is_ending = found is not None and (found.admitted is None or found.admitted_state is not found.state)
        is_decided = any(map(self._streams.is_being_decided, stream_names))
        is_leaving = producer is not None and self.producers.is_leaving(producer.writer_id)
        if is_ending or is_decided or is_leaving or self._container.queued(m.TransactionBegun, name or number):
            return None
        if producer is not None:
            found = self.producers.begin(producer, found, address=address)
        over = [self._streams.find(stream_name) for stream_name in stream_names]
        if found is not None and (found.number == number or found.state in _TAKEN):
            if found.state is not TransactionState.PREPARED:
                check_open(found)
            if {stream.stream_id for stream in found.streams} != {stream.stream_id for stream in over}:
                raise InvalidArgumentError("the transaction was begun over other streams", subject=name)
            check_producer(found, producer)
            if parts:
                records = part_records(found.streams, parts, subject=found.subject)
                if not has_parts(found, parts_of(records, branch=IMPLICIT_BRANCH)):
                    raise InvalidArgumentError("the transaction began with other parts", subject=found.subject)
            found.is_renewed = True
            # As it is joined, with its routes: it may have ended when the reply is sent.
            return AdmittedStep(found, None, step_reply(found, changed=False, streams=found.streams))
        for stream, routed in zip(over, streams, strict=True):
            if stream.sealed:
                raise StreamSealedError("the stream is sealed", subject=stream.name)
            if routed.stream_id and (routed.stream_id, routed.epoch) != (stream.stream_id, stream.epoch):
                raise EpochChangedError(
                    f"routed by epoch {routed.epoch} of stream {routed.stream_id}; it is epoch {stream.epoch} of stream"
                    f" {stream.stream_id} now: fetch it and begin again",
                    subject=stream.name,
                )
            holder = self._state.admitted.exclusive_writers.get(stream.stream_id)
            if holder is not None:
                raise StreamHasExclusiveWriterError.of(holder, subject=stream.name)
        self._limits.check_open_count(over, session_id, address)
        opened = self._state.open_transactions
        routes = [opened.shared(stream.stream_id, stream.epoch) or stream.routes for stream in over]
        self._limits.check_ranges(routes)
        record = m.TransactionBegun(
            number=number,
            begun_us=self._container.clock.unix_us(),
            lease_ms=lease_ms,
            name=name,
            streams=routes,
            producers=[] if producer is None else [m.ProducerClaim(*producer)],
            parts=part_records(routes, parts, subject=name or str(number)) if parts else [],
        )
        self._limits.check_memory(opened.growth_bytes(routes) + OPEN_PART_SIZE_BYTES * len(parts), address)
        wanted = parts_of(record.parts, branch=IMPLICIT_BRANCH)
        if parts:
            planned = Transaction(row_of(record))
            planned.address = address
            self._limits.check_new_parts(planned, IMPLICIT_BRANCH, wanted)
        self._container.check_room()
        unused = self._ids.checked([number, *[segment_id for segment_id, _ in parts]])
        decision = self._container.log_decision(record, name or number, is_followed=True)
        self._ids.use(unused)
        begun = self._state.admitted_transactions.queued[number]
        begun.address = address
        begun.room_bytes = self._container.options.transaction_size_bytes_max
        opened.admit(begun, session_id=session_id)
        self._admit_parts(begun, wanted, created_us=record.begun_us)
        # As it begins: when that is durable, it may be over already. Who has routed knows the routes.
        has_routed = all(routed.stream_id for routed in streams)
        return AdmittedStep(
            begun, decision, step_reply(begun, changed=True, streams=() if has_routed else begun.streams)
        )

    def add_parts_now(self, number: int, branch: int, parts: Sequence[m.NewPart]) -> AdmittedStep:
        """Create segments for events of a branch, one for each range of keys, unless it has just these.

        Raises:
            TransactionUnknownError, TransactionAbortedError, TransactionCommittedError: it is not open.
            InvalidArgumentError: a number was not reserved or is used, a range is none of the transaction or has a part
                in the branch already, or there would be too many parts.
            TransactionsFullError: all open transactions together would have too many parts, or take too much memory.
            NoSpaceError, ThrottledError: there is no room for what is new.
        """
        transaction = self._found(number)
        check_open(transaction)
        record = m.PartsAdded(
            number=number,
            branch=branch,
            added_us=self._container.clock.unix_us(),
            parts=part_records(transaction.streams, parts, subject=transaction.subject),
        )
        wanted = parts_of(record.parts, branch=branch)
        if has_parts(transaction, wanted):
            return AdmittedStep(transaction, None)
        self._limits.check_new_parts(transaction, branch, wanted)
        self._limits.check_memory(OPEN_PART_SIZE_BYTES * len(parts), transaction.address)
        self._container.check_room()
        unused = self._ids.checked([segment_id for segment_id, _ in parts])
        decision = self._container.log_decision(record, number, is_followed=True)
        self._ids.use(unused)
        self._admit_parts(transaction, wanted, created_us=record.added_us)
        return AdmittedStep(transaction, decision)

    def _admit_parts(self, transaction: Transaction, parts: Mapping[int, TransactionPart], *, created_us: int) -> None:
        """Move the admitted view to after the record of these parts, which was queued."""
        transaction.admit_parts(parts)
        for segment_id in parts:
            self._state.admitted_segments[segment_id] = segment_of_part(segment_id, created_us=created_us)
        self._state.open_transactions.admit_parts(transaction, parts)

    def prepare_now(self, number: int, branches: Sequence[m.BranchCount], *, drops_others: bool) -> AdmittedStep:
        """Let a transaction take no more, and never end by itself, unless it was prepared so before.

        Raises:
            BranchMismatchError: a branch has another number of events, or one is left out that is not to be dropped.
            TransactionUnknownError, TransactionAbortedError, TransactionCommittedError: it is not open.
            TransactionPreparedError: it was prepared with other branches.
            InvalidArgumentError: a branch is given twice; it has a producer, which may keep it from its commit; or it
                has no name, so that nobody else could end it.
        """
        named = _checked_branches(branches)
        digest = digest_of_branches(named)
        transaction = self._found(number)
        row = _admitted(transaction)
        if row.state is TransactionState.PREPARED and row.digest == digest:
            return AdmittedStep(transaction, None)
        check_open(transaction, but=", with other branches")
        if transaction.producer is not None:
            raise InvalidArgumentError("a transaction of a producer cannot be prepared", subject=transaction.name)
        if not transaction.name:
            raise InvalidArgumentError(
                "a transaction without a name cannot be prepared: if its client dies, nobody can commit or abort it;"
                " give it a name when it begins",
                subject=transaction.subject,
            )
        chosen = chosen_parts(self._state, transaction, named, drops_others=drops_others)
        dropped = sorted(transaction.admitted_parts.keys() - {part.segment_id for part, _ in chosen})
        decision = self._container.log_decision(
            m.TransactionPrepared(number=number, branches=list(branches), digest=digest, dropped=dropped),
            number,
            is_followed=True,
        )
        for segment_id in dropped:
            segment = self._state.admitted_segment(segment_id)
            if segment is not None:
                segment.leaving = True
            del transaction.admitted_parts[segment_id]
        return AdmittedStep(transaction, decision)

    async def commit(
        self,
        number: int,
        branches: Sequence[m.BranchCount],
        *,
        drops_others: bool,
        name: str = "",
        cursors: Sequence[m.CursorMove] = (),
        fingerprint: str = "",
    ) -> AdmittedStep:
        """Let the events of branches be part of their streams, when that can be decided; cancelling is safe.

        Args:
            number: 0: the transaction is the prepared one with the name.
            branches: of a prepared one those with which it was prepared, or none.
            cursors: move with the commit; none of one that is prepared.
            fingerprint: of the content of its producer's sequence; ignored without a producer.

        Raises:
            BranchMismatchError: a branch has another number of events, or one is left out that is not to be dropped.
            TransactionUnknownError, TransactionAbortedError: it is not open.
            TransactionCommittedError: it was committed with other branches.
            TransactionPreparedError: it was prepared with other branches.
            CursorMovedError: a cursor is not where it is expected.
            ProducerFencedError, ProducerInUseError, ProducerCommittedError: its producer keeps it from being committed,
                forever: nothing of it is left.
            InvalidArgumentError: a segment would have too many events, a stream too many segments, a branch is given
                twice, or one that is not prepared is meant by its name alone.
            StreamNotFoundError, SegmentError: damage has taken what it would be merged into.
            CutInvalidError, CutTruncatedError, OffsetBeyondEndError: a cursor cannot be where it is to be moved.
        """
        transaction = self._found(number, name)
        with _held(transaction):
            required = m.Required(
                streams=[stream.stream_id for stream in transaction.streams],
                producers=[] if transaction.producer is None else [transaction.producer.writer_id],
            )
            if transaction.admitted_state is TransactionState.OPEN:
                with await self._container.loader.pin(required):
                    await check_places(self._container, self._streams, cursors)
            return await self._when_possible(
                required,
                lambda: self._commit_now(
                    transaction,
                    branches,
                    drops_others=drops_others,
                    is_by_name=not number,
                    cursors=cursors,
                    fingerprint=fingerprint,
                ),
            )

    def commit_now(
        self,
        number: int,
        branches: Sequence[m.BranchCount],
        *,
        drops_others: bool,
        fingerprint: str = "",
    ) -> AdmittedStep | None:
        """Commit a transaction by its number, without cursors; None: something has to become durable before.

        Its streams are in memory, with their open segments. Arguments and errors are those of `commit`.
        """
        return self._commit_now(
            self._found(number),
            branches,
            drops_others=drops_others,
            is_by_name=False,
            cursors=(),
            fingerprint=fingerprint,
        )

    def _commit_now(
        self,
        transaction: Transaction,
        branches: Sequence[m.BranchCount],
        *,
        drops_others: bool,
        is_by_name: bool,
        cursors: Sequence[m.CursorMove],
        fingerprint: str,
    ) -> AdmittedStep | None:
        checked_fingerprint(fingerprint)
        named = _checked_branches(branches)
        digest = digest_of_branches(named)
        row = _admitted(transaction)
        if not row.state.is_final and (
            self._is_moving(transaction) or are_moving(self._container, self._streams, cursors)
        ):
            return None
        is_as_prepared = not branches and (is_by_name or row.state is not TransactionState.OPEN)
        is_same = is_as_prepared or row.digest == digest
        if row.state is TransactionState.COMMITTED and is_same:
            self.answers.check_whole(transaction)
            return AdmittedStep(transaction, None)
        producer = transaction.producer
        if row.state is not TransactionState.PREPARED or not is_same:
            if producer is not None and not is_by_name:
                self._check_producer(transaction, producer)
            check_open(transaction, but="" if is_same else ", with other branches")
            if is_by_name:
                raise InvalidArgumentError(
                    "only a prepared transaction is committed by its name", subject=transaction.name
                )
        else:
            check_none(cursors, subject=transaction.subject)
            # What it has beside these was dropped when it was prepared.
            named, digest, drops_others = dict(row.branches), row.digest, True
        commit = plan_transaction(self._container, transaction, named, drops_others=drops_others)
        commit.cursors = plan_moves(self._container, self._streams, cursors)
        commit.producers = [] if producer is None else [self.producers.committed(producer, fingerprint)]
        record = commit.record(transaction, digest=digest, committed_us=self._container.clock.unix_us())
        decision = self._container.log_decision(record, transaction.number, is_followed=True, required=commit.required)
        admit_commit(self._state, commit)
        return AdmittedStep(transaction, decision, commit_reply(self._state, row, commit, record))

    def can_commit_now(self, number: int) -> bool:
        """Return whether all entities that `commit_now` needs are in memory."""
        transaction = self._state.admitted_transaction(number)
        if transaction is None:
            return True
        producer = transaction.producer
        if producer is not None and not producers_of(self._state).is_resident(producer.writer_id):
            return False
        streams, segments = self._state.streams, self._state.segments
        for routed in transaction.streams:
            if not streams.is_resident(routed.stream_id):
                return False
            stream = streams.get(routed.stream_id)
            if stream is None:
                continue
            # A commit that may begin epochs keeps all segments of the stream in memory until it is durable.
            needed = stream.parts if stream.epoch != routed.epoch else stream.open_parts
            for part in needed:
                if not segments.is_resident(part.segment_id):
                    return False
        return True

    def _check_producer(self, transaction: Transaction, producer: Producer) -> None:
        """Raise if its producer keeps a transaction from its commit; if it is open, it ends by that.

        Of one that is aborted too: so the request that is sent again gets the same answer.
        """
        if transaction.admitted_state is TransactionState.COMMITTED:
            return
        refusal = self.producers.refusal(producer)
        if refusal is not None:
            if transaction.admitted_state is TransactionState.OPEN:
                end_transactions(self._container, [transaction], TransactionState.ABORTED)  # the refusal follows it
            raise refusal

    def _is_moving(self, transaction: Transaction) -> bool:
        """Return whether something in flight could change the commit."""
        for routed in transaction.streams:
            stream = self._state.streams.get(routed.stream_id)
            if stream is not None and self._streams.is_moving(stream):
                return True
        return False

    async def _when_possible(self, required: m.Required, decide: Callable[[], AdmittedStep | None]) -> AdmittedStep:
        """Decide once nothing in flight could change the decision.

        Its entities are pinned anew after each wait: meanwhile a scaling or another commit may have given a stream
        other segments, and a checkpoint may have made these evictable.
        """
        while True:
            with await self._container.loader.pin(required):
                if (admitted := decide()) is not None:
                    return admitted
            await self._container.in_flight.settled()

    async def abort(self, number: int, name: str = "") -> tuple[Transaction, bool]:
        """Delete what a transaction has; return it, and False if it was aborted before.

        A number that was reserved and not used is void from then on: what its client has sent for it on a connection
        that it lost, and that arrives only now, begins nothing.

        Args:
            number: 0: the transaction is that with the name.

        Raises:
            TransactionCommittedError: it was committed.
            TransactionUnknownError: there is none, or its outcome was forgotten.
        """
        if self._ids.is_unused(number):
            self._ids.use(self._ids.checked([number]))
        transaction = self._found(number, name)
        if transaction.admitted_state is TransactionState.COMMITTED:
            check_open(transaction)
        if transaction.admitted_state.is_final:
            await self._container.in_flight.settled()
            return transaction, False
        await end_transactions(self._container, [transaction], TransactionState.ABORTED).durable()
        return transaction, True

    def renew(self, numbers: Sequence[int]) -> bool:
        """Renew the leases of the given transactions that are open; return whether all are, or are about to be."""
        opened, begun = self._state.open_transactions.by_number, self._state.admitted_transactions.queued
        found = [opened.get(number) or begun.get(number) for number in numbers]
        for transaction in found:
            if transaction is not None:
                transaction.is_renewed = True
        return None not in found

    def _found(self, number: int, name: str = "") -> Transaction:
        """Return a transaction by its number, or by its name if that is 0; also one that is about to begin.

        Its lease starts over, whatever becomes of the request.
        """
        transaction = self._state.admitted_transaction(number, name)
        if transaction is None:
            raise _unknown(name or str(number))
        transaction.is_renewed = True
        return transaction


def _admitted(transaction: Transaction) -> TransactionRow:
    """Return the admitted row of a transaction that was found before; raise if it was forgotten since."""
    if transaction.admitted is None:
        raise _unknown(transaction.subject)
    return transaction.admitted


def _unknown(subject: str) -> TransactionUnknownError:
    return TransactionUnknownError("the transaction does not exist", subject=subject)


def _checked_branches(branches: Sequence[m.BranchCount]) -> dict[int, int]:
    named = dict(branches)
    if len(named) < len(branches):
        raise InvalidArgumentError("a branch is given twice")
    return named


@contextmanager
def _held(transaction: Transaction) -> Iterator[None]:
    """Keep the lease of a transaction from expiring while a request waits."""
    transaction.holders_count += 1
    try:
        yield
    finally:
        transaction.holders_count -= 1
        transaction.is_renewed = True
