"""A branch of a transaction: events that are committed together with those of others, or not at all.

    branch = transaction.branch()                       in any process that has begun or joined the transaction
    branch.write(b"event", key="ada")
    token = await branch.finish()                       flushed; the token is sent to who commits

    await transaction.commit(branches=[token, ...])     in one process: exactly these, and nothing else

So many processes fill one transaction. What a branch has is durable when it is finished, and is part of the streams
only if the commit lists its token. Who fails starts over with another branch: of one that is not listed nothing stays.
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
    """What a commit has to know of a branch that is finished. It can be pickled, and sent to another process.

    Attributes:
        transaction: the number of the transaction.
        branch: which one of it.
        event_count: how many events it has; the commit is refused if another number is stored.
    """

    transaction: int
    branch: int
    event_count: int


class Branch(BranchWriter):
    """A branch of a transaction. Made by `transaction.branch`; belongs to one event loop.

    It ends with `finish`, or with its transaction object: what was not finished then is not committed by anybody.

    Args:
        on_finished: told of the token: after that this is not needed any more.

    Attributes:
        branch: the number of it in the transaction.
        token: None until it is finished.
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
        # Why what was written is lost, unless it was finished.
        self._end_error: MillraceError | None = None
        self._open_writers(beginning, identity, branch=self.branch)

    _unlisted = frozenset({"end"})

    def _facts(self) -> Iterator[str]:
        yield f"{self.branch} of transaction {self.number} over {short(self.streams)} at {self._channel.address}"
        yield "finished" if self.token is not None else "ended" if self._refusal else "open"

    async def finish(self) -> BranchToken:
        """Flush, and return the token that a commit takes; nothing is written after it. Finishing again is the same.

        The transaction may continue elsewhere: this process is not needed for it any more. Cancelling is safe.

        Raises:
            TransactionAbortedError: the transaction was aborted, by somebody or since its lease ran out.
            MillraceError: why events were lost.
        """
        async with self._turn:
            if self.token is None:
                self._refusal = self._refusal or ClientClosedError("the branch is finished: it takes no more")
                await self.flush()
                assert self._beginning is not None
                await self._beginning.known_to_server()
                await self.flush()  # it may have begun again
                self.token = BranchToken(transaction=self.number, branch=self.branch, event_count=self._event_count)
                self._end_writers(self._refusal)
                self._on_finished(self.token)
            return self.token

    def end(self, error: MillraceError) -> None:
        """Take nothing more; unless it is finished, what was written is lost. The transaction calls this."""
        if self.token is None:
            self._refusal = self._end_error = error
            self._end_writers(error)

    def _check_open(self) -> None:
        if self._end_error is not None:
            raise self._end_error.with_traceback(None)


def new_branch() -> int:
    """Return the number of a branch that nobody else has."""
    return randbits(63) + 1


def counts_of(tokens: Iterable[BranchToken], *, number: int) -> list[m.BranchCount]:
    """Return the branches of tokens as a commit lists them; those without events are none.

    Args:
        number: of the transaction that they must be of.

    Raises:
        BranchTokenError: one is of another transaction.
        InvalidArgumentError: one is no token.
    """
    counts = []
    for token in tokens:
        if not isinstance(token, BranchToken):
            raise InvalidArgumentError(f"{token!r} is no token of a branch: `finish` returns them")
        if token.transaction != number:
            raise BranchTokenError(
                f"a token is of transaction {token.transaction}, and not of {number}, which is to be committed"
            )
        if token.event_count:
            counts.append(m.BranchCount(token.branch, token.event_count))
    return counts
