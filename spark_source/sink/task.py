"""What a task of the sink does: write its rows into a branch of the transaction of its batch.

The transaction is begun, or joined, when the first rows come; a task without rows asks the server nothing. The event
loop turns only during a call, so what was written is on its way while Spark makes the next rows.

A task that is told that its batch is committed is one that Spark has repeated, or started twice: it ends well, and has
written nothing. One that is told that its query was replaced ends well, too: failed, it would be tried again.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.client.client import Client
from millrace.client.errors import (
    ProducerFencedError,
    ProducerHeldError,
    TransactionAbortedError,
    TransactionCommittedError,
)
from millrace.client.transactions.branch import Branch, BranchToken
from millrace.client.transactions.transaction import Transaction
from millrace.client.write.arrow import events_of
from millrace.client.write.options import WriterOptions
from millrace.model.errors import InvalidArgumentError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.spark_source.client_link import ClientLink, shared_link
from millrace.spark_source.errors import RowError, TransactionLostError

from .columns import EventMaker, batches_by_stream
from .identity import BatchIdentity
from .message import TaskMessage
from .options import SinkOptions

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
        partition: which one it writes, for errors.
    """

    def __init__(self, options: SinkOptions, identity: BatchIdentity, make: EventMaker, *, partition: int) -> None:
        self._options = options
        self._identity = identity
        self._make = make
        self._partition = partition
        self._link: ClientLink = shared_link(options)
        self._open: OpenBranch | None = None
        # Rows of the batches before this one.
        self._row_count = 0

    def run(self, batches: Iterable[pa.RecordBatch]) -> TaskMessage:
        """Write all rows, and return what the driver has to know of them.

        Raises:
            RowError: a row can be no event.
            TransactionLostError: the transaction was aborted; Spark may try again.
            MillraceError: the server refuses to store, or `outageTimeout` is over.
        """
        left = iter(batches)
        try:
            for batch in left:
                self._write(batch)
            return TaskMessage(identity=self._identity, token=self._finish())
        except TransactionCommittedError as error:
            logger.info("batch committed before transaction=%s reason=%s", self._identity.name, error)
            _exhaust(left)
            return TaskMessage(identity=self._identity, was_committed=True)
        except (ProducerFencedError, ProducerHeldError) as error:
            _exhaust(left)
            return TaskMessage(identity=self._identity, refusal=str(error))
        except TransactionAbortedError as error:
            raise TransactionLostError(lost_text(self._identity, self._options, str(error))) from error
        finally:
            self._release()

    def _write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        for events in self._make(batch):
            try:
                self._check_streams(events)
                for stream, part in batches_by_stream(events, default=self._default_stream):
                    for piece in _pieces(part):
                        self._write_events(stream, piece)
            except InvalidArgumentError as error:
                raise self._row_error(events, error) from error
            self._row_count += events.num_rows

    def _write_events(self, stream: str, events: pa.RecordBatch) -> None:
        if self._open is None:
            self._open = self._link.call(self._begin)
        branch = self._open.branch

        async def write(client: Client) -> None:
            _ = branch.write_arrow(events, stream=stream)  # `drain` and `finish` say what went wrong
            await branch.drain()

        self._link.call(write, is_continued=True)

    async def _begin(self, client: Client) -> OpenBranch:
        """Begin the transaction, or join it."""
        transaction = await begin(client, self._options, self._identity)
        return OpenBranch(transaction, transaction.branch())

    def _finish(self) -> BranchToken | None:
        """Return the token, once all is durable; None if there were no rows."""
        if self._open is None:
            return None
        branch = self._open.branch

        async def finish(_: Client) -> BranchToken:
            return await branch.finish()

        return self._link.call(finish, is_continued=True)

    def _release(self) -> None:
        """Leave the transaction to the others; its lease ends what nobody commits."""
        opened, self._open = self._open, None
        if opened is None:
            return

        async def release(_: Client) -> None:
            opened.transaction.release()

        self._link.call(release, is_continued=True)

    # --- what is wrong with rows ---

    @property
    def _default_stream(self) -> str | None:
        """The stream of rows that name none."""
        return self._options.streams[0] if len(self._options.streams) == 1 else None

    def _check_streams(self, events: pa.RecordBatch) -> None:
        """Raise RowError if a row names no stream of the option."""
        if "stream" not in events.schema.names:
            return
        named = events.column("stream")
        known = ", ".join(self._options.streams)
        for name in named.unique().to_pylist():
            if name is None and self._default_stream is None:
                reason = f"is null, and the option stream names {known}"
            elif name is not None and name not in self._options.streams:
                reason = f"is {name}, and the option stream names {known}"
            else:
                continue
            row = named.to_pylist().index(name)
            raise self._error("stream", row, reason)

    def _row_error(self, events: pa.RecordBatch, error: InvalidArgumentError) -> Exception:
        """Return which row is refused, and why; the error itself if it is about none of them."""
        for row in range(events.num_rows):
            for column in ("value", "key", "timestamp", "headers"):
                if column not in events.schema.names:
                    continue
                single = events.slice(row, 1).select(list(dict.fromkeys(["value", column])))
                try:
                    events_of(
                        single, now_us=0, append_size_max=APPEND_SIZE_BYTES_MAX, size_bytes_max=APPEND_SIZE_BYTES_MAX
                    )
                except InvalidArgumentError as found:
                    return self._error(column, row, _reason(found, column))
        return error

    def _error(self, column: str, row: int, reason: str) -> RowError:
        return RowError(column, row=self._row_count + row, partition=self._partition, reason=reason)


async def begin(client: Client, options: SinkOptions, identity: BatchIdentity) -> Transaction:
    """Begin the transaction of a batch, or join it. Raises like `Client.transaction`."""
    return await client.begin_transaction(
        options.streams,
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


def _reason(error: InvalidArgumentError, column: str) -> str:
    """Return what is wrong with one row, of which the text need not speak again."""
    return str(error).removeprefix(f"column {column!r} ").removesuffix(" (row 0)")
