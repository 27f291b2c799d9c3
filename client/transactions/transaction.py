"""A transaction: events of one or several streams that become readable together, or never.

    async with client.transaction(["bank/debits", "bank/credits"]) as transaction:
        transaction.write(b"-5", key="ada", stream="bank/debits")
        transaction.write(b"+5", key="bob", stream="bank/credits")

Nobody reads its events before the commit. The commit is one record of the server: it says how many events there must
be, and is refused if one is missing. Begin, prepare, commit and abort name the transaction by its number, so each may
be sent again after a lost connection, and is carried out once.

A transaction that nobody names for its lease is aborted by the server; while the client lives it renews the lease. Of
one that is *prepared* the server keeps what it has until somebody commits or aborts it, by its name and from any
process.
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

    Leaving the context commits. After an error in its body it aborts, and so it does if the commit is refused. One that
    was prepared in it is left as it is; and so is one that was joined, by an object that has written nothing to it
    itself and moves no cursor: what has been written to branches is committed by who has their tokens.

    Attributes:
        name: None if only its number names it.
        joined: it was open, or prepared, before: begun by another process, or an earlier life of this one.
        state: as far as this object knows: *unknown* before it is entered, and once it was left without an end.
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
            refusal=NotOpenError("the transaction has not begun yet: use `async with`"),
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
        # Of this handle: two that write to one transaction must not count each other's events as their own.
        self._branch = IMPLICIT_BRANCH
        # Under which further branches are written; set when it begins.
        self._identity = WriterIdentity(0, 0)
        # By number, in the order in which they were made: those that are not finished, and the tokens of the others.
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
        """Commit, or abort after an error. When the body was cancelled nothing is waited for."""
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
        """Begin the transaction, or join the one of its name. Cancelled, it may have begun: its lease ends it.

        One without a name and a producer begins with its first events. One that has begun is left as it is.
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
        """Begin where the answer says more than that it has begun: that another one has the name, or the producer."""
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
                continue  # it began, its answer was lost, and it ended before it was asked for again: nothing is in it
            break
        self._branch = new_branch() if self.joined else IMPLICIT_BRANCH
        found = [Route.of(stream) for stream in info.streams]
        if self.joined and len(found) > 1:
            routes = await self._routes_by_name(found)
        else:
            routes = dict(zip(self.streams, found, strict=True))
        if info.state == StoredState.PREPARED:
            self._refuse(TransactionState.PREPARED, TransactionPreparedError(f"{self.name}: it is prepared"))
        return Beginning(self._channel, self._identities, self._known, lease_ms, begun(info.number, routes))

    async def _routes_by_name(self, found: Sequence[Route]) -> dict[str, Route]:
        """Return the routes of one that was begun with its streams in an order of its own."""
        routes = {route.stream_id: route for route in found}
        return {stream: routes[(await fetch_open_segments(self._channel, stream)).stream_id] for stream in self.streams}

    # --- many processes ---

    def branch(self) -> Branch:
        """Return another branch, to be filled and finished on its own, by this process or for others. Sends nothing.

        Raises:
            TransactionAbortedError, MillraceError: the transaction takes nothing more.
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
        """Keep of a branch what its commit takes."""
        self._branches[token.branch] = token

    # --- what was read ---

    def advance(self, stream: str, cursor: str, cut: Place, *, expected: Place | None) -> None:
        """Let a cursor move with the commit, from where it is expected; if it is elsewhere then, nothing is committed.

        So positions that were read, and events that were written for them, are one step. Sends nothing. What was given
        cannot be changed: each cursor moves once, in one go. A transaction that moves a cursor cannot be prepared.

        Args:
            stream: where the cursor is; the transaction need not be over it.
            cut: everything before it has been read, such as `reader.position()`.
            expected: where the reading began, as `client.cursors(stream).get(cursor)` said; None: there is no such
                cursor yet. Both are places, as cuts or in words (see `Place`), but what was read is a cut: a word is
                looked up when the commit is first asked for. TAIL is then after what nobody may have read.

        Raises:
            InvalidArgumentError: a place is none of that stream, or the cursor moves with this transaction already.
            InvalidNameError: of the stream.
            TransactionAbortedError, MillraceError: it takes nothing more.
        """
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        self._moves.add(stream, cursor, cut, expected=expected)

    # --- the end ---

    async def prepare(self, *, branches: Iterable[BranchToken] | None = None, drop_others: bool = False) -> None:
        """Flush, and fix what the commit takes: from then on it can always be committed, and never ends by itself.

        Cancelling is safe: preparing again is the same.

        Args:
            branches, drop_others: see `commit`.

        Raises:
            InvalidArgumentError: a cursor moves with it, or it has a producer: what is prepared can always be
                committed, whatever has happened. Or it has no name, by which others could do so. The transaction stays
                open.
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
                "a transaction without a name cannot be prepared: if this client dies, nobody can commit or abort it;"
                " give it a name"
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
        """Flush, and let all events be part of their streams at once. Committing again returns the same.

        Cancelled, or when it fails because the server cannot be reached, it may be committed or not: commit again, or
        ask `client.transaction_outcome` for its name.

        Args:
            branches: tokens of the branches that are committed. All else is deleted: other branches, and what was
                written to the transaction itself. Events of a key are in the order of this list. Without it everything
                is committed that was written to this object and to the branches that it made, which must be finished.
            drop_others: delete what others have written to the transaction of this name, or an earlier life of this
                program. Without it the commit is refused if there is such. With a list it is deleted anyway.
            fingerprint: of the content of the producer's sequence: a text of at most 1,024 bytes, such as a digest of
                the input. `client.producer_info` returns that of the last commit, so a program that is refused with
                ProducerCommittedError can tell whether the same content was committed.

        Raises:
            TransactionAbortedError: it was aborted, by somebody or since its lease ran out.
            TransactionCommittedError: it was committed with other branches.
            ProducerCommittedError: its producer has committed this sequence, or a later one, by another transaction.
            ProducerFencedError, ProducerInUseError: its producer is that of another run or holder by now. After these
                three nothing of the transaction is left.
            BranchMismatchError: somebody else has written to it, or what a token says is not what is stored.
            BranchTokenError: a token is of a branch of another transaction.
            InvalidArgumentError: without a list, a branch is not finished. The transaction stays open.
            CursorMovedError: a cursor of `advance` is not where it is expected. The transaction stays open: abort it.
            CutInvalidError, CutTruncatedError, OffsetBeyondEndError: a cut of `advance` does not fit its stream.
            MillraceError: why events were lost. Nothing is committed without them.
        """
        listed = self._listed(branches)
        if self._committed is not None and listed is None:
            return self._committed
        if fingerprint is not None:
            if self._producer is None:
                raise InvalidArgumentError("a fingerprint is of a sequence: begin the transaction with a producer")
            self._fingerprint = checked_fingerprint(fingerprint)
        # Else it is prepared, or committed and not known to be: the server knows with which branches.
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
            # One that was committed before, or began epochs, is not told with the tails.
            cuts = cuts_of(info.tails) or await self._fetch_tails(self.streams)
            self._committed = CommitResult(cuts=cuts, at=moment_of(info.decided_us))
        return self._committed

    async def _commit_open(self, cursors: list[m.CursorMove], *, drop_others: bool) -> m.TransactionReply:
        """Commit what was written, right after the events that are on their way."""
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
            # What was sent before it was refused, or lost with its connection. Sent again, it is stored; or it is said
            # why it cannot be, or that it is committed by now.
            logger.debug("transaction not committed at once number=%d error=%s", self.number, error)
            self._send_again()
            # If it is over, the server says how, and why: by then its parts are gone, which says neither.
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
        """Wait until it has begun, with all that was written unless what is committed is listed."""
        assert self._beginning is not None
        if listed is None:
            await self.flush()
        await self._beginning.known_to_server()
        if listed is None:
            await self.flush()  # it may have begun again

    def _send_again(self) -> None:
        """Send what was held back while the commit was asked for."""
        for writer in self._each_writer:
            writer.send_again()

    async def _ask_for_commit(
        self, branches: Callable[[], list[m.BranchCount]], cursors: list[m.CursorMove], *, drop_others: bool
    ) -> m.TransactionReply:
        """Commit what was written; asked again it is the same, so an unknown outcome is asked for."""
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
        """Delete what the transaction has; also if it is prepared. Aborting again is fine. Cancelling is safe.

        Raises:
            TransactionCommittedError: it was committed.
            TransactionUnknownError: how it ended is not known any more.
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
        """Let the lease start over. The client does so by itself; this also says whether the transaction is open.

        Raises:
            TransactionAbortedError, TransactionCommittedError: it is not.
        """
        self._check_open()
        assert self._beginning is not None
        await self._beginning.known_to_server()
        if not (await self._channel.request(m.RenewTransactions([self.number]))).changed:
            raise await explained(
                self._channel, self.number, TransactionAbortedError(f"transaction {self.number} is not open")
            )

    def abandon(self) -> None:
        """Abort without waiting for it. Where the server cannot be reached, the lease does it."""
        connection = self._channel.live
        was_sent = self._beginning is not None and self._beginning.current.announcement.was_sent
        if self.state is TransactionState.OPEN and was_sent and connection is not None:
            with suppress(MillraceError):
                connection.send_request(m.AbortTransaction(self.number, "")).add_done_callback(_forget)
        self.release()

    def release(self) -> None:
        """Write and renew nothing any more; the transaction stays as it is on the server, until its lease ends.

        For one that others continue, or commit. What was not flushed is lost. Leaving the context does nothing then.
        """
        state = TransactionState.UNKNOWN if self.state is TransactionState.OPEN else self.state
        self._refuse(state, ClientClosedError("the transaction was left"))

    # --- inside ---

    @property
    def _is_of_others(self) -> bool:
        """Whether there is nothing to commit or to abort but what was begun by others and is ended by them."""
        has_written = any(writer.has_taken for writer in self._each_writer)
        return self.joined and not has_written and not self._moves

    def _listed(self, branches: Iterable[BranchToken] | None) -> list[m.BranchCount] | None:
        """Return the branches of a list, None if there is none. Raises like `commit`."""
        return None if branches is None else counts_of(branches, number=self.number)

    def _counts(self) -> list[m.BranchCount]:
        """Return the branches of this object, all flushed, with the one that is written to directly at the front."""
        tokens = [each for each in self._branches.values() if isinstance(each, BranchToken)]
        event_count = self._event_count
        own = [m.BranchCount(self._branch, event_count)] if event_count else []
        return own + counts_of(tokens, number=self.number)

    def _close_for_writing(self, listed: Sequence[m.BranchCount] | None) -> None:
        """Take nothing more: the commit names exactly what is there."""
        self._check_open()
        unfinished = sum(isinstance(each, Branch) for each in self._branches.values())
        if listed is None and unfinished:
            raise InvalidArgumentError(
                f"{unfinished} branches of the transaction are not finished: finish them, or list those to be committed"
            )
        self._refusal = ClientClosedError("the transaction is being committed: it takes no more")

    def _check_open(self) -> None:
        if self.state is not TransactionState.OPEN:
            assert self._refusal is not None
            raise self._refusal.with_traceback(None)

    def _refuse(self, state: TransactionState, error: MillraceError) -> None:
        """Take nothing more, and renew nothing."""
        if state is self.state and state is not TransactionState.OPEN:
            return  # all of it was done before
        self.state, self._refusal = state, error
        if self._beginning is not None:
            self._beginning.end(error)
        self._end_writers(error)
        for each in self._branches.values():
            if isinstance(each, Branch):
                each.end(error)
        self._leases.discard(self)

    async def _abort_after_error(self) -> None:
        """Abort; the error that is on its way is raised, not one of this."""
        try:
            await self.abort()
        except MillraceError as second:
            logger.warning("transaction not aborted number=%d error=%s", self.number, second)
            self.release()

    async def _renew(self) -> bool:
        """Renew its lease; return whether to do so again: it is not over. Cancelling is safe."""
        beginning = self._beginning
        assert beginning is not None
        attempt = beginning.current
        if not attempt.announcement.was_sent:
            return True  # it begins with its first events
        is_known = attempt.announcement.is_known
        try:
            renewed = await self._channel.request(m.RenewTransactions([attempt.number]))
        except MillraceError as error:
            if error.retriable:  # the server is away, starts again, or is busy: it may be there before the lease ends
                logger.debug("lease not renewed number=%d error=%s", self.number, error)
                return True
            logger.warning("lease not renewed any more number=%d error=%s", self.number, error)
            return False
        return bool(renewed.changed) or not is_known or attempt is not beginning.current


def _forget(reply: "asyncio.Future[Any]") -> None:
    if not reply.cancelled():
        reply.exception()
