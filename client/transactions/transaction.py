"""A transaction: events of one or several streams that become readable together, or not at all.

    async with client.transaction(["bank/debits", "bank/credits"]) as transaction:
        transaction.write(b"-5", key="ada", stream="bank/debits")
        transaction.write(b"+5", key="bob", stream="bank/credits")

Its events cannot be read before the commit. The commit is one record of the server. It names the number of events, and
is rejected if one is missing. Begin, prepare, commit and abort name the transaction by its number, so each is
idempotent and can be retried after a lost connection.

The server aborts a transaction when its lease expires; a running client renews the lease in the background. A
*prepared* transaction does not expire: the server keeps it until any process commits or aborts it by its name.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from millrace.client.errors import (
    ClientClosedError,
    NotOpenError,
    OutcomeUnknownError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionPreparedError,
    TransactionUnknownError,
)
from millrace.client.streams import fetch_open_segments
from millrace.client.transport.channel import Channel
from millrace.client.transport.retry import may_resend
from millrace.client.write.options import WriterOptions
from millrace.model.cut import Place, StreamCut
from millrace.model.errors import InvalidArgumentError, MillraceError, RequestError
from millrace.model.producer import Producer, checked_fingerprint
from millrace.model.shown import short
from millrace.model.transaction import IMPLICIT_BRANCH
from millrace.model.transaction import TransactionState as StoredState
from millrace.wire import messages as m
from millrace.wire.limits import EMPTY_LEASE_S_MAX

from .beginning import Beginning, begun
from .branch import Branch, BranchToken, counts_of, new_branch
from .branch_writer import BranchWriter
from .cursor_moves import CursorMoves, FindCut
from .identities import Identities, WriterIdentity
from .known_streams import KnownStreams, Route
from .leases import LeaseKeeper
from .outcome import CommitResult, TransactionState, cuts_of, explained, moment_of

logger = logging.getLogger(__name__)

_RENEWALS_PER_LEASE: Final = 3


class Transaction(BranchWriter):
    """A transaction of this client. Made by `client.transaction`; an async context manager of one event loop.

    Leaving the context commits. It aborts after an error in the body, or if the commit is rejected. Two kinds of
    transactions stay as they are: a prepared one, and a joined one to which this object has written no events and added
    no cursor moves. Events in branches are committed by the process that collects their tokens.

    Attributes:
        name: None for a transaction without a name.
        joined: another process, or an earlier run of this one, had begun the transaction before.
        state: the state that this object last saw: *unknown* before entering, and after leaving without commit or
            abort.
    """

    def __init__(
        self,
        channel: Channel,
        identities: Identities,
        streams: Iterable[str],
        *,
        name: str | None,
        lease_s: float,
        producer: Producer | None,
        options: WriterOptions,
        known: KnownStreams,
        fetch_tails: Callable[[Sequence[str]], Awaitable[dict[str, StreamCut]]],
        find_cut: FindCut,
        leases: LeaseKeeper,
    ) -> None:
        super().__init__(
            channel,
            identities,
            streams,
            options=options,
            refusal=NotOpenError("the transaction has not begun yet: enter it with `async with`"),
        )
        self.name = name
        self._lease_s = lease_s
        self._producer = producer
        self._fingerprint = ""
        self._known = known
        self._fetch_tails = fetch_tails
        self._leases = leases
        self.joined = False
        self.state = TransactionState.UNKNOWN
        # One per object: two that write to the same transaction must not count each other's events as their own.
        self._branch = IMPLICIT_BRANCH
        # The writer of further branches; set when the transaction begins.
        self._identity = WriterIdentity(0, 0)
        # By number, in the order in which they were made: unfinished branches, and the tokens of finished ones.
        self._branches: dict[int, Branch | BranchToken] = {}
        self._moves = CursorMoves(find_cut)
        self._committed: CommitResult | None = None

    def _facts(self) -> Iterator[str]:
        yield f"over {short(self.streams)} at {self._channel.address}"
        if self.name is not None:
            yield short(self.name)
        elif self._beginning is not None:
            yield f"number {self.number}"
        is_left = self.state is TransactionState.UNKNOWN and not isinstance(self._refusal, NotOpenError)
        yield "left" if is_left else "not begun" if self.state is TransactionState.UNKNOWN else self.state.value

    # --- life ---

    async def __aenter__(self) -> Self:
        """Begin the transaction. See `client.transaction` for the errors."""
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort after an error. If the body was cancelled, abort without waiting."""
        if self.state is not TransactionState.OPEN or self._is_of_others:
            self.release()
        elif kind is None:
            try:
                await self.commit()
            except RequestError:
                await self._abort_after_error()
                raise
            finally:
                self.release()
        elif issubclass(kind, Exception):
            await self._abort_after_error()
        else:
            self.abandon()

    async def begin(self) -> None:
        """Begin the transaction, or join the open one with its name. If cancelled, it may have begun.

        A transaction with neither name nor producer begins with its first events. Beginning again does nothing.
        """
        if self._beginning is not None:
            return
        lease_ms = round(self._lease_s * 1000)
        self._identity = self._identities.writer_now() or await self._identities.writer()
        if self.name is None and self._producer is None:
            self._beginning = await Beginning.of_unnamed(
                self._channel, self._identities, self._known, streams=self.streams, lease_ms=lease_ms
            )
        else:
            self._beginning = await self._begin_at_once(lease_ms)
            if self.state is TransactionState.PREPARED:
                return
        self._open_writers(self._beginning, self._identity, branch=self._branch)
        self.state, self._refusal = TransactionState.OPEN, None
        self._leases.add(self, self._renew, interval_s=min(self._lease_s, EMPTY_LEASE_S_MAX) / _RENEWALS_PER_LEASE)

    async def _begin_at_once(self, lease_ms: int) -> Beginning:
        """Begin with a round trip: the name may be taken, or the producer fenced or in use."""
        streams = [m.RoutedStream(stream, 0, 0) for stream in self.streams]
        producers = [] if self._producer is None else [m.ProducerClaim(*self._producer)]

        async def begin(ids: list[int]) -> m.TransactionReply:
            (number,) = ids
            request = m.BeginTransaction(
                number=number, name=self.name or "", lease_ms=lease_ms, streams=streams, producers=producers
            )
            info = await self._channel.request(request)
            self.joined = info.number != number
            return info

        while True:
            try:
                info = await self._identities.use(1, begin)
            except TransactionAbortedError:
                continue  # it began, its reply was lost, and it was aborted before the retry: it holds no events
            break
        self._branch = new_branch() if self.joined else IMPLICIT_BRANCH
        found = [Route.of(stream) for stream in info.streams]
        if self.joined and len(found) > 1:
            routes = await self._routes_by_name(found)
        else:
            routes = dict(zip(self.streams, found, strict=True))
        if info.state == StoredState.PREPARED:
            self._refuse(TransactionState.PREPARED, TransactionPreparedError(f"{self.name} is prepared already"))
        return Beginning(self._channel, self._identities, self._known, lease_ms, begun(info.number, routes))

    async def _routes_by_name(self, found: Sequence[Route]) -> dict[str, Route]:
        """Return the routes of a joined transaction, which may have been begun with its streams in another order."""
        routes = {route.stream_id: route for route in found}
        return {stream: routes[(await fetch_open_segments(self._channel, stream)).stream_id] for stream in self.streams}

    # --- many processes ---

    def branch(self) -> Branch:
        """Return a new branch, to be written and finished independently. Sends nothing.

        Raises:
            TransactionAbortedError, MillraceError: the transaction accepts no more events.
        """
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        assert self._beginning is not None
        made = Branch(
            self._channel,
            self._identities,
            self.streams,
            self._beginning,
            self._identity,
            options=self._options,
            on_finished=self._note_finished,
        )
        self._branches[made.branch] = made
        return made

    def _note_finished(self, token: BranchToken) -> None:
        """Replace a branch by its token, which is all that the commit needs."""
        self._branches[token.branch] = token

    # --- what was read ---

    def advance(self, stream: str, cursor: str, cut: Place, *, expected: Place | None) -> None:
        """Move a cursor with the commit, by compare-and-set: if it is not at `expected` then, the commit is rejected.

        This makes consuming events and writing their results one atomic step. Sends nothing. Each cursor can be moved
        once per transaction, and the move cannot be changed. A transaction that moves cursors cannot be prepared.

        Args:
            stream: the stream of the cursor; the transaction need not be over it.
            cut: the new position: all events before it have been processed, as in `reader.position()`.
            expected: the position from which reading began, as `client.cursors(stream).get(cursor)` returned it; None
                if the cursor does not exist yet. Both are places, cuts or words (see `Place`). Prefer cuts: words are
                resolved at the first attempt to commit, and TAIL is then after events that were not read.

        Raises:
            InvalidArgumentError: a place does not belong to the stream, or the transaction moves this cursor already.
            InvalidNameError: the name of the stream is invalid.
            TransactionAbortedError, MillraceError: the transaction is over, or being committed.
        """
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        self._moves.add(stream, cursor, cut, expected=expected)

    # --- the end ---

    async def prepare(self, *, branches: Iterable[BranchToken] | None = None, drop_others: bool = False) -> None:
        """Flush, and prepare (phase one of two-phase commit): the commit cannot fail, nor the lease expire.

        Idempotent, and safe to cancel.

        Args:
            branches, drop_others: see `commit`.

        Raises:
            InvalidArgumentError: the transaction moves a cursor or has a producer, so its commit could still be
                rejected; or it has no name, so no other process could commit it. The transaction stays open.
            MillraceError: as `commit`.
        """
        listed = self._listed(branches)
        if self.state is TransactionState.PREPARED and listed is None:
            return
        if self._moves:
            raise InvalidArgumentError("a transaction that moves cursors cannot be prepared: commit it")
        if self._producer is not None:
            raise InvalidArgumentError("a transaction of a producer cannot be prepared: commit it")
        if self.name is None and self.state is TransactionState.OPEN:
            raise InvalidArgumentError(
                "a transaction without a name cannot be prepared: no other process could commit or abort it; give it"
                " a name"
            )
        if self.state is not TransactionState.PREPARED:
            self._close_for_writing(listed)
            await self._complete(listed)
        request = m.PrepareTransaction(
            number=self.number,
            branches=self._counts() if listed is None else listed,
            drops_others=int(drop_others or listed is not None),
        )
        await self._channel.request(request)
        self._refuse(TransactionState.PREPARED, TransactionPreparedError("the transaction is prepared"))

    async def commit(
        self,
        *,
        branches: Iterable[BranchToken] | None = None,
        drop_others: bool = False,
        fingerprint: str | None = None,
    ) -> CommitResult:
        """Flush, and add all events to their streams atomically. Idempotent: committing again returns the same result.

        If it is cancelled, or fails because the server is unreachable, the outcome is unknown: commit again, or call
        `client.transaction_outcome` with the name.

        Args:
            branches: tokens of the branches to commit, in the order in which the events of a key are stored. All other
                events are deleted: those of other branches, and those written to this object. Without a list, the
                commit takes the events written to this object and to its branches, which must all be finished.
            drop_others: delete events that other processes, or an earlier run of this program, have written to the
                transaction. Without it, such events cause the commit to be rejected. A list of branches implies it.
            fingerprint: identifies the content of the producer's sequence: a text of at most 1,024 bytes, such as a
                digest of the input. `client.producer_info` returns the fingerprint of the last commit, so after
                ProducerCommittedError a program can check whether the same content was committed.

        Raises:
            TransactionAbortedError: a client aborted the transaction, or its lease expired.
            TransactionCommittedError: it was committed with other branches.
            ProducerCommittedError: another transaction of the producer has committed this sequence, or a later one.
            ProducerFencedError, ProducerInUseError: a newer run or another holder has taken the producer over. After
                these three errors the transaction is gone.
            BranchMismatchError: another process has written to the transaction, or the number of stored events differs
                from that of a token.
            BranchTokenError: a token belongs to another transaction.
            InvalidArgumentError: a branch is not finished, and no list is given. The transaction stays open.
            CursorMovedError: a cursor is not at the position that `advance` expects. The transaction stays open: abort
                it.
            CutInvalidError, CutTruncatedError, OffsetBeyondEndError: a cut of `advance` does not fit its stream.
            MillraceError: the reason why events were lost; nothing is committed.
        """
        listed = self._listed(branches)
        if self._committed is not None and listed is None:
            return self._committed
        if fingerprint is not None:
            if self._producer is None:
                raise InvalidArgumentError("a fingerprint needs a producer: begin the transaction with one")
            self._fingerprint = checked_fingerprint(fingerprint)
        # Otherwise it is prepared, or may be committed already: the server knows the branches.
        if self.state in {TransactionState.PREPARED, TransactionState.COMMITTED}:
            info = await self._channel.request(self._commit_request(listed or [], drop_others=drop_others))
        else:
            cursors = await self._moves.found()
            if listed is None:
                info = await self._commit_open(cursors, drop_others=drop_others)
            else:
                self._close_for_writing(listed)
                await self._complete(listed)
                info = await self._ask_for_commit(lambda: listed, cursors, drop_others=True)
        self._refuse(TransactionState.COMMITTED, ClientClosedError("the transaction is committed"))
        if self._committed is None:
            # The reply has no tails if the transaction was committed before, or began epochs.
            cuts = cuts_of(info.tails) or await self._fetch_tails(self.streams)
            self._committed = CommitResult(cuts=cuts, at=moment_of(info.decided_us))
        return self._committed

    async def _commit_open(self, cursors: list[m.CursorMove], *, drop_others: bool) -> m.TransactionReply:
        """Commit without waiting for the acks of the events in flight: the request follows them on the connection."""
        self._close_for_writing(None)
        beginning = self._beginning
        assert beginning is not None
        for writer in self._each_writer:
            await writer.sent()
        try:
            with beginning.held():
                if (connection := self._channel.live) is not None:
                    beginning.announce(connection)
                info = await self._ask_for_commit(self._counts, cursors, drop_others=drop_others)
        except RequestError as error:
            # Events sent before were rejected, or lost with the connection. Resending stores them, or fails with the
            # reason, such as that the transaction is committed by now.
            logger.debug("transaction not committed at once number=%d error=%s", self.number, error)
            self._send_again()
            # If it is over, the retried commit returns its outcome; its parts are gone, so they cannot.
            with suppress(TransactionCommittedError, TransactionAbortedError):
                await self._complete(None)
            return await self._ask_for_commit(self._counts, cursors, drop_others=drop_others)
        except BaseException:
            self._send_again()
            raise
        for writer in self._each_writer:
            writer.all_stored()
        return info

    async def _complete(self, listed: Sequence[m.BranchCount] | None) -> None:
        """Wait until the server knows the transaction and, unless branches are listed, all events are durable."""
        assert self._beginning is not None
        if listed is None:
            await self.flush()
        await self._beginning.known_to_server()
        if listed is None:
            await self.flush()  # a transaction that began again resends its events

    def _send_again(self) -> None:
        """Send the events that were held back during the commit."""
        for writer in self._each_writer:
            writer.send_again()

    async def _ask_for_commit(
        self, branches: Callable[[], list[m.BranchCount]], cursors: list[m.CursorMove], *, drop_others: bool
    ) -> m.TransactionReply:
        """Send the commit; it is idempotent, so it is retried while its outcome is unknown."""
        with self._channel.retry(is_transient=may_resend) as retry:
            while True:
                request = self._commit_request(branches(), drop_others=drop_others, cursors=cursors)
                try:
                    return await self._channel.request(request)
                except OutcomeUnknownError as error:
                    await retry.wait(error)

    def _commit_request(
        self, branches: list[m.BranchCount], *, drop_others: bool, cursors: list[m.CursorMove] | None = None
    ) -> m.CommitTransaction:
        return m.CommitTransaction(
            number=self.number,
            name="",
            branches=branches,
            drops_others=int(drop_others),
            cursors=cursors or [],
            fingerprint=self._fingerprint,
        )

    async def abort(self) -> None:
        """Abort the transaction, even if it is prepared, and delete its events. Idempotent, and safe to cancel.

        Raises:
            TransactionCommittedError: it was committed.
            TransactionUnknownError: the server no longer knows its outcome.
        """
        beginning = self._beginning
        if beginning is None:
            self._check_open()
        elif beginning.current.announcement.was_sent:
            beginning.end(TransactionAbortedError("the transaction is being aborted"))
            try:
                await self._channel.request(m.AbortTransaction(self.number, ""))
            except TransactionUnknownError:
                if beginning.current.announcement.is_known:
                    raise
        self._refuse(TransactionState.ABORTED, TransactionAbortedError("the transaction was aborted"))

    async def ping(self) -> None:
        """Renew the lease, and check that the transaction is open. The client renews leases in the background anyway.

        Raises:
            TransactionAbortedError, TransactionCommittedError: the transaction is over.
        """
        self._check_open()
        assert self._beginning is not None
        await self._beginning.known_to_server()
        if not (await self._channel.request(m.RenewTransactions([self.number]))).changed:
            raise await explained(
                self._channel, self.number, TransactionAbortedError(f"transaction {self.number} is not open")
            )

    def abandon(self) -> None:
        """Abort without waiting for the reply. If the server is unreachable, the transaction ends by lease expiry."""
        connection = self._channel.live
        was_sent = self._beginning is not None and self._beginning.current.announcement.was_sent
        if self.state is TransactionState.OPEN and was_sent and connection is not None:
            with suppress(MillraceError):
                connection.send_request(m.AbortTransaction(self.number, "")).add_done_callback(_forget)
        self.release()

    def release(self) -> None:
        """Stop writing and renewing; the transaction stays open on the server until its lease expires.

        For a transaction that another process continues or commits. Events that were not flushed are lost. Leaving the
        context then does nothing.
        """
        state = TransactionState.UNKNOWN if self.state is TransactionState.OPEN else self.state
        self._refuse(state, ClientClosedError("the transaction was released by this client"))

    # --- inside ---

    @property
    def _is_of_others(self) -> bool:
        """Whether other processes own the transaction: this object joined it, and added neither events nor moves."""
        has_written = any(writer.has_taken for writer in self._each_writer)
        return self.joined and not has_written and not self._moves

    def _listed(self, branches: Iterable[BranchToken] | None) -> list[m.BranchCount] | None:
        """Return the listed branches, None without a list. Raises like `commit`."""
        return None if branches is None else counts_of(branches, number=self.number)

    def _counts(self) -> list[m.BranchCount]:
        """Return the flushed branches of this object, its own branch first."""
        tokens = [each for each in self._branches.values() if isinstance(each, BranchToken)]
        event_count = self._event_count
        own = [m.BranchCount(self._branch, event_count)] if event_count else []
        return own + counts_of(tokens, number=self.number)

    def _close_for_writing(self, listed: Sequence[m.BranchCount] | None) -> None:
        """Accept no more events: the commit names exactly those written so far."""
        self._check_open()
        unfinished = sum(isinstance(each, Branch) for each in self._branches.values())
        if listed is None and unfinished:
            raise InvalidArgumentError(
                f"{unfinished} branches of the transaction are not finished: finish them, or list those to commit"
            )
        self._refusal = ClientClosedError("the transaction is being committed, and accepts no more events")

    def _check_open(self) -> None:
        if self.state is not TransactionState.OPEN:
            assert self._refusal is not None
            raise self._refusal.with_traceback(None)

    def _refuse(self, state: TransactionState, error: MillraceError) -> None:
        """Accept no more events, and stop renewing the lease."""
        if state is self.state and state is not TransactionState.OPEN:
            return  # done before
        self.state, self._refusal = state, error
        if self._beginning is not None:
            self._beginning.end(error)
        self._end_writers(error)
        for each in self._branches.values():
            if isinstance(each, Branch):
                each.end(error)
        self._leases.discard(self)

    async def _abort_after_error(self) -> None:
        """Abort while an error is propagating, and only log errors of the abort."""
        try:
            await self.abort()
        except MillraceError as second:
            logger.warning("transaction not aborted number=%d error=%s", self.number, second)
            self.release()

    async def _renew(self) -> bool:
        """Renew the lease; return False once the transaction is over. Safe to cancel."""
        beginning = self._beginning
        assert beginning is not None
        attempt = beginning.current
        if not attempt.announcement.was_sent:
            return True  # it begins with its first events
        is_known = attempt.announcement.is_known
        try:
            renewed = await self._channel.request(m.RenewTransactions([attempt.number]))
        except MillraceError as error:
            if error.retriable:  # the server is away, restarting or busy: it may return before the lease expires
                logger.debug("lease not renewed number=%d error=%s", self.number, error)
                return True
            logger.warning("lease renewal stopped number=%d error=%s", self.number, error)
            return False
        return bool(renewed.changed) or not is_known or attempt is not beginning.current


def _forget(reply: "asyncio.Future[Any]") -> None:
    if not reply.cancelled():
        reply.exception()
