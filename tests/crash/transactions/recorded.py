"""Transactions of the client, as a history records them."""

# Nobody needs to look at the future of a write: flush and commit raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import millrace
from millrace.client.client import Client
from millrace.client.transactions.transaction import Transaction
from tests.crash.recorded_reads import recorded_cut
from tests.crash.recorded_writes import record_outcome
from tests.support.history import Recorder

UNKNOWN: Final = "-"
"""The branch of a transaction that others have prepared."""
REFUSALS: Final[Mapping[type[Exception], str]] = {
    millrace.ProducerCommittedError: "repeated",
    millrace.ProducerFencedError: "fenced",
    millrace.ProducerInUseError: "held",
}
"""How a transaction is refused for its producer, and how a history says so."""


class Tag(NamedTuple):
    """Which transaction an event was written in: the how manieth of which life of whom, and of how many events."""

    client: str
    life: int
    number: int
    event_count: int

    def event(self, index: int, content: str = "") -> str:
        """Return the value of one of its events, which is its name in the history, too."""
        return f"{self.client}/{self.life}/{self.number}/{self.event_count}/{index}/{content}"

    def unique_number(self) -> int:
        """Return a number that no other tag has, and no transaction on a server."""
        return 1 << 80 | int.from_bytes(blake2b(str(self).encode(), digest_size=8).digest())

    @classmethod
    def parse(cls, event: str) -> "tuple[Tag, int, str] | None":
        """Return the tag of an event, its index and content; None if it was not written in a transaction."""
        parts = event.split("/", 5)
        if len(parts) < 6:
            return None
        client, life, number, count, index, content = parts
        return cls(client, int(life), int(number), int(count)), int(index), content


class RecordedTransaction:
    """A transaction, all of whose requests are recorded. What others have written to it is dropped by its commit.

    Args:
        number: by which the history knows it; that of the server, if it has a name.
        branch: by which the history knows what is written here.
    """

    def __init__(self, recorder: Recorder, transaction: Transaction, tag: Tag, *, number: int, branch: str) -> None:
        self._recorder = recorder
        self._transaction = transaction
        self._tag = tag
        self.number = number
        self._branch = branch
        self._joined_prepared = self.is_prepared

    @classmethod
    async def begin(
        cls,
        recorder: Recorder,
        client: Client,
        streams: Sequence[str],
        tag: Tag,
        *,
        name: str | None = None,
        lease_s: float = 30.0,
        producer: millrace.Producer | None = None,
    ) -> "RecordedTransaction":
        """Begin it, or join the one of its name. Raises like `Client.begin_transaction`."""
        fields: dict[str, Any] = {} if name is None else {"name": name}
        if producer is not None:
            fields["producer"] = producer
        call = recorder.call(tag.client, "begin", **fields)
        try:
            transaction = await client.begin_transaction(streams, name=name, lease_s=lease_s, producer=producer)
        except tuple(REFUSALS) as error:
            recorder.answer(call, REFUSALS[type(error)])
            raise
        is_prepared = transaction.state is millrace.TransactionState.PREPARED
        answer = "prepared" if is_prepared else "joined" if transaction.joined else "begun"
        # The number of one without a name is its own affair: nobody else knows it, and it may begin again with another.
        number = tag.unique_number() if name is None and producer is None else transaction.number
        recorder.answer(call, answer, txn=number)
        # A run of a producer joins what it has begun itself, as if it had forgotten that.
        branch = f"{tag.client}/{tag.life}" if producer is None else f"{tag.client}/{tag.life}/{tag.number}"
        return cls(recorder, transaction, tag, number=number, branch=branch)

    @property
    def branch(self) -> str:
        """By which the history knows what it was prepared with, if that was here."""
        return UNKNOWN if self._joined_prepared else self._branch

    @property
    def is_prepared(self) -> bool:
        """Whether it takes nothing more."""
        return self._transaction.state is millrace.TransactionState.PREPARED

    def write(self, stream: str, events: Sequence[tuple[str, str]]) -> None:
        """Write events, each with its key, in one go."""
        keys = [key for key, _ in events]
        values = [value for _, value in events]
        call = self._recorder.call(
            self._tag.client, "write", stream=stream, txn=self.number, branch=self._branch,
            writer="/".join(map(str, self._tag)), events=values, keys=keys,
        )  # fmt: skip
        if len(events) == 1:
            future = self._transaction.write(values[0].encode(), key=keys[0], stream=stream)
        else:
            future = self._transaction.write_many([value.encode() for value in values], keys=keys, stream=stream)
        record_outcome(self._recorder, call, future)

    async def flush(self) -> None:
        """Wait until everything written is durable."""
        await self._transaction.flush()

    def advance(
        self, stream: str, cursor: str, cut: millrace.StreamCut, *, expected: millrace.StreamCut | None
    ) -> None:
        """Let a cursor move with the commit."""
        call = self._call(
            "advance",
            register=f"{stream} {cursor}",
            value=str(cut),
            expected=None if expected is None else str(expected),
        )
        self._transaction.advance(stream, cursor, cut, expected=expected)
        self._recorder.answer(call, "done")

    async def prepare(self) -> None:
        """Prepare it, if it is not."""
        if self.is_prepared:
            return
        call = self._call("prepare", branches=[self._branch])
        with self._ends(call):
            await self._transaction.prepare(drop_others=True)
            self._recorder.answer(call, "prepared", txn=self.number)

    async def commit(self) -> None:
        """Commit it, and record the cuts of its streams, too.

        Raises:
            CursorMovedError, ProducerCommittedError, ProducerFencedError, ProducerInUseError: it was refused.
        """
        streams = list(self._transaction.streams)
        seeing = self._recorder.call(self._tag.client, "cut", streams=streams)
        # Of one that was prepared its preparation says which branches.
        branches = {} if self.is_prepared else {"branches": [self._branch]}
        call = self._call("commit", **branches)
        try:
            with self._ends(call, committed="already"):
                committed = await self._transaction.commit(drop_others=True)
        except millrace.CursorMovedError:
            self._recorder.answer(call, "refused")
            raise
        self._recorder.answer(call, "committed", txn=self.number)
        if committed.cuts.keys() == set(streams):
            cuts = {stream: recorded_cut(cut) for stream, cut in committed.cuts.items()}
            self._recorder.answer(seeing, "cut", cuts=cuts)

    async def abort(self) -> None:
        """Abort it."""
        call = self._call("abort")
        with self._ends(call):
            await self._transaction.abort()
            self._recorder.answer(call, "aborted", txn=self.number)

    def leave(self) -> None:
        """Leave it as it is on the server."""
        self._transaction.release()

    def _call(self, call: str, **fields: Any) -> str:
        return self._recorder.call(self._tag.client, call, txn=self.number, **fields)

    @contextmanager
    def _ends(self, call: str, *, committed: str = "committed") -> Iterator[None]:
        """Record that it turns out to be over; that is raised on.

        Args:
            committed: the answer that it was committed before, perhaps with other branches.
        """
        try:
            yield
        except tuple(REFUSALS) as error:
            self._recorder.answer(call, REFUSALS[type(error)], txn=self.number)
            raise
        except millrace.TransactionAbortedError:
            self._recorder.answer(call, "aborted", txn=self.number)
            raise
        except millrace.TransactionCommittedError:
            self._recorder.answer(call, committed, txn=self.number)
            raise


async def recorded_outcome(recorder: Recorder, client: Client, who: str, name: str) -> millrace.TransactionOutcome:
    """Ask for the outcome of a name."""
    call = recorder.call(who, "outcome", name=name)
    outcome = await client.transaction_outcome(name)
    fields = {"txn": outcome.number} if outcome.number else {}
    recorder.answer(call, str(outcome.state), **fields)
    return outcome
