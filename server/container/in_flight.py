"""The runs in flight in the log, and the replies that wait for them.

New requests are decided on the admitted view, which runs ahead of what is durable by what is in flight. So a refusal,
and the answer that something was stored before, may rest on an append or a decision that a crash or a failed sync can
still undo. Who heard such an answer would know of something that never was. Each of these answers therefore *follows*
what was submitted last: it is given when that is durable, and so everything that it can rest on. With nothing in flight
it is given at once. If the log fails first, what was refused is told that nothing was stored and that it may be sent
again (`DecisionLostError`); what was already on its way is of unknown outcome, like that.

What is in flight is one queue in the order of the log: there is no need to know which of it an answer rests on.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Protocol

from millrace.server.errors import DecisionLostError, LogFailedError
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun
from millrace.wire.limits import KIB

from .admission import PendingAppend, ReplyTarget
from .entity_cache import Pins

DecisionKey = tuple[type[m.Record] | int | str, ...]
"""The type of a record, and what its requester calls its subject."""


@dataclass(slots=True, eq=False)
class PendingDecision:
    """A record on its way through the log.

    Attributes:
        pins: keep what it is about in memory until it is settled: its admitted view is nowhere else.
    """

    record: Any
    key: DecisionKey
    pins: Pins
    # Of those who wait for it; what fills a transaction has followers instead.
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)
    _is_settled: bool = False
    _failure: LogFailedError | None = None

    def durable(self) -> asyncio.Future[None]:
        """Return a future that resolves when it is settled, or is done if it is. Cancelling it undoes nothing."""
        future = asyncio.get_running_loop().create_future()
        if self._is_settled:  # by the event loop itself, before the task of who waits began
            _resolve(future, self._failure)
        else:
            self._waiting.append(future)
        return future

    def settle(self, failure: LogFailedError | None = None) -> None:
        """End as durable and applied, or as failed."""
        self._is_settled = True
        self._failure = failure
        for future in self._waiting:
            _resolve(future, failure)
        self._waiting.clear()
        self.pins.release()


def _resolve(future: asyncio.Future[None], failure: Exception | None) -> None:
    """Resolve the future of a request, unless the request was cancelled."""
    if future.done():
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
        # A request that is cancelled before its task runs again never looks at it, which asyncio would log.
        future.exception()


class Follower(Protocol):
    """An answer that is given when what was in flight before it is durable."""

    def settle(self, failure: LogFailedError | None = None) -> None:
        """Called once, when everything before it is durable, or has failed."""
        ...


class FollowingReply:
    """A follower that is a reply, which its owner sends when it is told: it may be before the batch is applied.

    No abstract class: to ask whether something is one would cost a call, several times for each batch.
    """

    __slots__ = ("owner",)

    def __init__(self, owner: ReplyTarget) -> None:
        self.owner = owner

    def settle(self, failure: LogFailedError | None = None) -> None:
        """As of any follower."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class _Barrier:
    """The answer to a request that has a task of its own."""

    future: asyncio.Future[None]

    def settle(self, failure: LogFailedError | None = None) -> None:
        _resolve(self.future, None if failure is None else DecisionLostError())


PENDING_SIZE_BYTES: Final = 1 * KIB
"""What an append, a decision or an answer counts as while it waits: with its run, its pins, its place in the log."""


class InFlight:
    """Appends and decisions in the order of the log, and their followers."""

    def __init__(self) -> None:
        self._pending: deque[PendingAppend | PendingDecision] = deque()
        # Of the decisions among these, the last one of each type about a subject.
        self._queued: dict[DecisionKey, PendingDecision] = {}
        # How many were added and settled so far: each is known by its number, the first one is 1.
        self._added = 0
        self._settled = 0
        # By the number of what they follow.
        self._followers: dict[int, list[Follower]] = {}
        self._followers_count = 0
        # How many of the followers are replies.
        self.replies_count = 0
        # Set once the log has failed: the admitted view then holds what may never have been.
        self._failure: LogFailedError | None = None

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def held_bytes(self) -> int:
        """What the objects of all that waits here take, about; the frames of appends are not among them."""
        return PENDING_SIZE_BYTES * (len(self._pending) + self._followers_count)

    def add(self, pending: PendingAppend | PendingDecision) -> None:
        """Add what the log was given last."""
        self._pending.append(pending)
        self._added += 1
        if isinstance(pending, PendingDecision):
            self._queued[pending.key] = pending

    def follow(self, follower: Follower) -> None:
        """Settle a follower when all that is in flight now is durable: at once if nothing is, or the log has failed."""
        if self._pending:
            self._followers.setdefault(self._added, []).append(follower)
            self._followers_count += 1
            self.replies_count += isinstance(follower, FollowingReply)
        else:
            follower.settle(self._failure)

    async def settled(self) -> None:
        """Wait until everything that is in flight now is durable. Safe to cancel.

        Raises:
            DecisionLostError: the log failed first.
        """
        if self._pending or self._failure is not None:
            barrier = _Barrier(asyncio.get_running_loop().create_future())
            self.follow(barrier)
            await barrier.future

    def queued(self, key: DecisionKey) -> PendingDecision | None:
        """Return the last decision of a type about a subject, if it is in flight."""
        return self._queued.get(key)

    def is_any_queued(self, kinds: Iterable[type[m.Record]], subject: int | str) -> bool:
        """Return whether a decision of one of these types about a subject is in flight."""
        queued = self._queued
        if queued:
            for kind in kinds:
                if (kind, subject) in queued:
                    return True
        return False

    def records(self) -> list[m.Record]:
        """Return the records of the decisions, in order."""
        return [pending.record for pending in self._pending if isinstance(pending, PendingDecision)]

    def writers(self) -> set[int]:
        """Return the numbers of the writers of the appends."""
        return {pending.writer_number for pending in self._pending if isinstance(pending, PendingAppend)}

    def items(self, runs: Iterable[AppendRun]) -> list[Any]:
        """Return what the runs at the front are to the fold: decisions as their records, appends as they are."""
        return [
            pending.record if isinstance(pending, PendingDecision) else run
            for run, pending in zip(runs, self._pending, strict=False)
        ]

    def tell_lone(self) -> None:
        """Tell the owner of what is at the front that it is durable, before it is settled; of a decision, nobody."""
        pending = self._pending[0]
        assert self._settled + 1 not in self._followers or not self.replies_count, (
            "a lone append has no replies after it"
        )
        if isinstance(pending, PendingAppend):
            pending.settled = True
            pending.owner.settle()

    def tell(self, count: int) -> set[ReplyTarget]:
        """Say of so many at the front that they are durable, before they are settled; return who is to be told.

        Of appends, and of replies that follow these or decisions; all others wait until they are settled.
        """
        owners: set[ReplyTarget] = set()
        for number, pending in enumerate(islice(self._pending, count), self._settled + 1):
            if isinstance(pending, PendingAppend):
                pending.settled = True
                owners.add(pending.owner)
            if number in self._followers:
                owners.update(self._told(number))
        return owners

    def _told(self, number: int) -> list[ReplyTarget]:
        """Settle the replies among the followers of what has that number; return their owners."""
        followers = self._followers[number]
        replies = [each for each in followers if isinstance(each, FollowingReply)]
        self._followers[number] = [each for each in followers if not isinstance(each, FollowingReply)]
        self._followers_count -= len(replies)
        self.replies_count -= len(replies)
        for reply in replies:
            reply.settle()
        return [reply.owner for reply in replies]

    def durable(self, runs: Iterable[AppendRun]) -> set[ReplyTarget]:
        """Settle what is at the front, in its order, and its followers; return the owners that are to be told."""
        owners: set[ReplyTarget] = set()
        for run in runs:
            pending = self._pending.popleft()
            assert isinstance(pending, PendingDecision) or pending.offset == run.offset
            self._settle(pending, owners)
        return owners

    def fail(self, failure: LogFailedError) -> set[ReplyTarget]:
        """Settle everything as failed, and what comes from now on; return the owners of appends."""
        self._failure = failure
        owners: set[ReplyTarget] = set()
        while self._pending:
            self._settle(self._pending.popleft(), owners, failure)
        return owners

    def _settle(
        self, pending: PendingAppend | PendingDecision, owners: set[ReplyTarget], failure: LogFailedError | None = None
    ) -> None:
        self._settled += 1
        if isinstance(pending, PendingAppend):
            if not pending.settled:
                owners.add(pending.owner)
        elif self._queued[pending.key] is pending:
            del self._queued[pending.key]
        pending.settle(failure)
        followers = self._followers.pop(self._settled, None)
        if not followers:
            return
        self._followers_count -= len(followers)
        for follower in followers:
            if isinstance(follower, PendingAppend):  # one that is refused, or was stored before
                owners.add(follower.owner)
            elif isinstance(follower, FollowingReply):
                owners.add(follower.owner)
                self.replies_count -= 1
            follower.settle(failure)
