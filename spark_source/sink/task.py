"""A task of the sink: writes its rows into a branch of the batch's transaction.

The task begins or joins the transaction when its first rows come; without rows it sends nothing. The event loop runs
only during a call; what it has sent travels while Spark makes the next rows.

If the server says that the batch is already committed, Spark has repeated the task or started it twice: the task
succeeds without writing. If it says that the query was replaced, the task succeeds too, with the refusal in its
message: if it failed, Spark would try it again.

A row that cannot be an event fails the task or, by option, becomes an event of the dead-letter stream, in the same
branch as the others, so that it is there once, too.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from millrace.client.client import Client
from millrace.client.errors import (
    ProducerFencedError,
    ProducerInUseError,
    TransactionAbortedError,
    TransactionCommittedError,
)
from millrace.client.transactions.branch import Branch, BranchToken
from millrace.client.transactions.transaction import Transaction
from millrace.client.write.options import WriterOptions
from millrace.model.errors import InvalidArgumentError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.spark_source.errors import RowError, TransactionLostError
from millrace.spark_source.link import Link
from millrace.spark_source.values.dead_letters import RefusedRows, dead_letters, split_refused

from .columns import EventMaker, RowEvents, batches_by_stream
from .identity import BatchIdentity
from .message import TaskMessage
from .options import SinkOptions
from .refusing import check_events, split_streams

logger = logging.getLogger(__name__)

PART_SIZE_BYTES: Final = 32 << 20
"""A larger batch is written in parts: the buffer of a writer holds some of these."""


@dataclass(frozen=True, slots=True)
class OpenBranch:
    """A branch that a task fills, and the transaction it belongs to."""

    transaction: Transaction
    branch: Branch


class SinkTask:
    """The work of one task.

    Args:
        link: lent to this task for as long as it runs: its branch belongs to one client.
        partition: which one it writes, for errors.
    """

    def __init__(
        self, options: SinkOptions, identity: BatchIdentity, make: EventMaker, *, link: Link, partition: int
    ) -> None:
        self._options = options
        self._identity = identity
        self._make = make
        self._partition = partition
        self._link = link
        self._open: OpenBranch | None = None
        # Rows of the batches before this one.
        self._row_count = 0
        self._letter_count = 0

    def run(self, batches: Iterable[pa.RecordBatch]) -> TaskMessage:
        """Write all rows, and return what the driver has to know of them.

        Raises:
            RowError: a row can be no event, and there is no stream for dead letters.
            TransactionLostError: the transaction was aborted; Spark may try again.
            MillraceError: the server refuses to store, or `outageTimeout` is over.
        """
        left = iter(batches)
        try:
            for batch in left:
                self._write(batch)
            token = self._finish()
            return TaskMessage(identity=self._identity, token=token, dead_letters=self._letter_count)
        except TransactionCommittedError as error:
            logger.info("batch already committed transaction=%s reason=%s", self._identity.name, error)
            _exhaust(left)
            return TaskMessage(identity=self._identity, was_committed=True)
        except (ProducerFencedError, ProducerInUseError) as error:
            _exhaust(left)
            return TaskMessage(identity=self._identity, refusal=str(error))
        except TransactionAbortedError as error:
            raise TransactionLostError(lost_text(self._identity, self._options, str(error))) from error
        finally:
            self._release()

    def _write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        for made in self._make(batch):
            self._write_made(made)
        self._row_count += batch.num_rows

    def _write_made(self, made: RowEvents) -> None:
        if made.refused is not None:
            self._refuse(made.refused, [row.number for row in made.refused.reasons])
        events, unknown = split_streams(made.events, self._options)
        if unknown.reasons:
            self._refuse(unknown, [made.rows[row.number] for row in unknown.reasons])
        if not events.num_rows:
            return
        for stream, part in batches_by_stream(events, default=self._options.default_stream):
            for piece in _pieces(part):
                try:
                    self._write_events(stream, piece)
                except InvalidArgumentError as error:
                    self._write_without_refused(stream, piece, made, error)

    def _write_without_refused(
        self, stream: str, events: pa.RecordBatch, made: RowEvents, error: InvalidArgumentError
    ) -> None:
        """Write the events that can be written. None of them was taken: they are checked before the first one is."""
        check = partial(check_events, append_size_max=self._append_size_max)
        if self._options.dead_letter_stream is None:
            _, refused = split_refused(made.events, check, ends_at_first=True)
            if refused.reasons:
                self._refuse(refused, [made.rows[row.number] for row in refused.reasons], stream=stream, cause=error)
            raise error
        good, refused = split_refused(events, check)
        if not refused.reasons:
            raise error  # about no row
        for piece in good:
            self._write_events(stream, piece)
        self._refuse(refused, (), stream=stream)

    def _refuse(
        self, refused: RefusedRows, rows: Sequence[int], *, stream: str | None = None, cause: Exception | None = None
    ) -> None:
        """Write rows as dead letters; raise RowError if there is no stream for these.

        Args:
            rows: their numbers in the batch; not needed where there is a stream for them.
            stream: that the events were for; None: the one that their column says, or the only one.
        """
        letters_to = self._options.dead_letter_stream
        if letters_to is None:
            first = refused.reasons[0]
            row = self._row_count + rows[0]
            raise RowError(first.column or "value", row=row, partition=self._partition, reason=first.reason) from cause
        letters = dead_letters(
            refused,
            stream=stream or self._options.default_stream,
            batch=self._identity.name,
            append_size_max=self._append_size_max,
        )
        for piece in _pieces(letters):
            self._write_events(letters_to, piece)
        self._letter_count += letters.num_rows

    @property
    def _append_size_max(self) -> int:
        """As the server says, once it was asked."""
        return APPEND_SIZE_BYTES_MAX if self._open is None else self._open.branch.append_size_max

    def _write_events(self, stream: str, events: pa.RecordBatch) -> None:
        if self._open is None:
            self._open = self._link.turn(self._begin(self._link.client()))
        self._link.turn(_write(self._open.branch, stream, events))

    async def _begin(self, client: Client) -> OpenBranch:
        """Begin the transaction, or join it."""
        transaction = await begin(client, self._options, self._identity)
        return OpenBranch(transaction, transaction.branch())

    def _finish(self) -> BranchToken | None:
        """Return the token, once all is durable; None if there were no rows."""
        if self._open is None:
            return None
        return self._link.turn(self._open.branch.finish())

    def _release(self) -> None:
        """Leave the transaction to the others; its lease ends what nobody commits."""
        opened, self._open = self._open, None
        if opened is not None:
            self._link.turn(_release(opened.transaction))


async def begin(client: Client, options: SinkOptions, identity: BatchIdentity) -> Transaction:
    """Begin the transaction of a batch, or join it. Raises like `Client.transaction`."""
    return await client.begin_transaction(
        options.all_streams,
        name=identity.name,
        lease_s=options.lease_s,
        producer=identity.producer,
        options=WriterOptions(delivery_timeout_s=options.outage_timeout_s),
    )


def lost_text(identity: BatchIdentity, options: SinkOptions, reason: str) -> str:
    """Return what to do about a transaction that is gone before its commit."""
    return (
        f"{reason}. Nothing of {identity.name} is in the streams; the batch can be run again. If no task names its"
        f" transaction for {options.lease_s:g} s, the option transactionLease has to be longer"
    )


async def _write(branch: Branch, stream: str, events: pa.RecordBatch) -> None:
    _ = branch.write_arrow(events, stream=stream)  # `drain` and `finish` say what went wrong
    await branch.drain()


async def _release(transaction: Transaction) -> None:
    transaction.release()


def _pieces(events: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the events in parts that fit the buffer of a writer."""
    if events.nbytes <= PART_SIZE_BYTES or events.num_rows == 1:
        yield events
        return
    half = events.num_rows // 2
    yield from _pieces(events.slice(0, half))
    yield from _pieces(events.slice(half))


def _exhaust(batches: Iterator[pa.RecordBatch]) -> None:
    """Take the rows that are left: a worker of Spark that leaves some is not used again."""
    for _ in batches:
        pass
