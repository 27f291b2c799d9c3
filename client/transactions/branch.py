"""A branch of a transaction: one process's share of its events, committed or dropped as a whole.

    branch = transaction.branch()                       in any process that has begun or joined the transaction
    branch.write(b"event", key="ada")
    token = await branch.finish()                       flushes; send the token to the committing process

    await transaction.commit(branches=[token, ...])     in one process: commits exactly these branches

So many processes can write to one transaction. A finished branch is durable, and is added to the streams only if the
commit lists its token. A process that fails is restarted with a new branch; branches that are not listed are deleted.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from secrets import randbits

from millrace.client.errors import BranchTokenError, ClientClosedError
from millrace.client.transport.channel import Channel
from millrace.client.write.options import WriterOptions
from millrace.model.errors import InvalidArgumentError, MillraceError
from millrace.model.shown import short
from millrace.wire import messages as m

from .beginning import Beginning
from .branch_writer import BranchWriter
from .identities import Identities, WriterIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchToken:
    """Identifies a finished branch for the commit. It can be pickled, and sent to another process.

    Attributes:
        transaction: the number of the transaction.
        branch: the number of the branch in it.
        event_count: events in the branch; the commit is rejected if a different number is stored.
    """

    transaction: int
    branch: int
    event_count: int


class Branch(BranchWriter):
    """A branch of a transaction. Made by `transaction.branch`; belongs to one event loop.

    It ends with `finish`, or with its transaction object; an unfinished branch is never committed.

    Args:
        on_finished: called with the token, which replaces this object.

    Attributes:
        branch: its number in the transaction.
        token: None until the branch is finished.
    """

    def __init__(
        self,
        channel: Channel,
        identities: Identities,
        streams: Iterable[str],
        beginning: Beginning,
        identity: WriterIdentity,
        *,
        options: WriterOptions,
        on_finished: Callable[[BranchToken], None],
    ) -> None:
        super().__init__(channel, identities, streams, options=options)
        self._on_finished = on_finished
        self._turn = asyncio.Lock()
        self.branch = new_branch()
        self.token: BranchToken | None = None
        # The reason why its events are lost; None if it is open or finished.
        self._end_error: MillraceError | None = None
        self._open_writers(beginning, identity, branch=self.branch)

    _unlisted = frozenset({"end"})

    def _facts(self) -> Iterator[str]:
        yield f"{self.branch} of transaction {self.number} over {short(self.streams)} at {self._channel.address}"
        yield "finished" if self.token is not None else "ended" if self._refusal else "open"

    async def finish(self) -> BranchToken:
        """Flush, and return the token for the commit. The branch accepts no more events. Idempotent, safe to cancel.

        The transaction does not depend on this process afterwards.

        Raises:
            TransactionAbortedError: a client aborted the transaction, or its lease expired.
            MillraceError: the reason why events were lost.
        """
        async with self._turn:
            if self.token is None:
                self._refusal = self._refusal or ClientClosedError("the branch is finished, and accepts no more events")
                await self.flush()
                assert self._beginning is not None
                await self._beginning.known_to_server()
                await self.flush()  # a transaction that began again resends its events
                self.token = BranchToken(transaction=self.number, branch=self.branch, event_count=self._event_count)
                self._end_writers(self._refusal)
                self._on_finished(self.token)
            return self.token

    def end(self, error: MillraceError) -> None:
        """Accept no more events; those of an unfinished branch are lost. Called by the transaction."""
        if self.token is None:
            self._refusal = self._end_error = error
            self._end_writers(error)

    def _check_open(self) -> None:
        if self._end_error is not None:
            raise self._end_error.with_traceback(None)


def new_branch() -> int:
    """Return a random number for a branch, unique in practice."""
    return randbits(63) + 1


def counts_of(tokens: Iterable[BranchToken], *, number: int) -> list[m.BranchCount]:
    """Return the branches of tokens as a commit lists them, without empty ones.

    Args:
        number: of the transaction to commit.

    Raises:
        BranchTokenError: a token belongs to another transaction.
        InvalidArgumentError: an item is not a token.
    """
    counts = []
    for token in tokens:
        if not isinstance(token, BranchToken):
            raise InvalidArgumentError(f"a branch must be a BranchToken, as `finish` returns it, not {token!r}")
        if token.transaction != number:
            raise BranchTokenError(
                f"the token belongs to transaction {token.transaction}, not to {number}, which is to be committed"
            )
        if token.event_count:
            counts.append(m.BranchCount(token.branch, token.event_count))
    return counts
