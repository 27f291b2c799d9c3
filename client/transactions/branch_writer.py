"""Writes the events of one branch of a transaction to any of its streams.

A branch is a set of parts that is committed or dropped as a whole. Every transaction object writes to a branch of its
own, and can make further ones.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from millrace.client.transport.channel import Channel
from millrace.client.write.events import WriteResult
from millrace.client.write.options import WriterOptions
from millrace.model.block_packing import Headers, Timestamps
from millrace.model.errors import InvalidArgumentError, MillraceError
from millrace.model.shown import Handle

from .beginning import Beginning
from .identities import Identities, WriterIdentity
from .outcome import explained
from .parts_writer import PartsWriter

if TYPE_CHECKING:
    import pyarrow as pa


class BranchWriter(Handle, ABC):
    """Accepts the events of a branch; belongs to one event loop.

    Args:
        refusal: the reason why no events are accepted yet, if any.

    Attributes:
        streams: the streams of the transaction.
    """

    def __init__(
        self,
        channel: Channel,
        identities: Identities,
        streams: Iterable[str],
        *,
        options: WriterOptions,
        refusal: MillraceError | None = None,
    ) -> None:
        self._channel = channel
        self._identities = identities
        self.streams = tuple(streams)
        self._options = options
        self._beginning: Beginning | None = None
        # One per stream, in their order.
        self._each_writer: list[PartsWriter] = []
        # The same by stream; under None the writer of a single stream.
        self._writers: dict[str | None, PartsWriter] = {}
        # The reason why no events are accepted, yet or any more.
        self._refusal = refusal

    @property
    def append_size_max(self) -> int:
        """The largest append that the server accepts, in bytes; an event with key and headers must fit."""
        return self._channel.append_size_max

    @property
    def number(self) -> int:
        """The server's number of the transaction; 0 before it is entered. Changes if the transaction begins again."""
        return 0 if self._beginning is None else self._beginning.current.number

    def _open_writers(self, beginning: Beginning, identity: WriterIdentity, *, branch: int) -> None:
        """Begin to accept events for a branch."""
        self._beginning = beginning
        for stream in self.streams:
            writer = PartsWriter(self._channel, stream, beginning=beginning, branch=branch, options=self._options)
            writer.start(identity)
            self._writers[stream] = writer
            self._each_writer.append(writer)
        if len(self.streams) == 1:
            self._writers[None] = self._writers[self.streams[0]]

    def write(
        self,
        value: bytes,
        *,
        key: str | None = None,
        stream: str | None = None,
        timestamp_us: int | None = None,
        headers: Headers | None = None,
    ) -> "asyncio.Future[WriteResult]":
        """Append one event; the future resolves when the event is durable in the transaction. Never waits.

        The future may be ignored: `flush`, `finish` and `commit` raise the error of a failed event. See `Writer.write`
        for the other arguments.

        Args:
            stream: required if the transaction is over several streams.

        Raises:
            InvalidArgumentError: the transaction is not over `stream`, or `stream` is missing.
            EventTooLargeError, TypeError, BufferFullError: see `Writer.write`; the event was not accepted.
            TransactionAbortedError, MillraceError: the transaction accepts no more events.
        """
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        writer = self._writers.get(stream) or self._writer_of(stream)
        return writer.write(value, key=key, timestamp_us=timestamp_us, headers=headers)

    def write_many(
        self,
        values: Sequence[bytes],
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        stream: str | None = None,
        timestamps_us: Timestamps = None,
        headers: Headers | Sequence[Headers | None] | None = None,
    ) -> "asyncio.Future[WriteResult]":
        """Append many events to one stream; the future resolves when all are durable in the transaction. Never waits.

        See `Writer.write_many` and `write`.
        """
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        writer = self._writers.get(stream) or self._writer_of(stream)
        return writer.write_many(values, key=key, keys=keys, timestamps_us=timestamps_us, headers=headers)

    def write_arrow(
        self, data: "pa.RecordBatch | pa.Table", *, stream: str | None = None
    ) -> "asyncio.Future[WriteResult]":
        """Append the events of a record batch or a table; the future resolves when all are durable in the transaction.

        Never waits. See `write`, and `Writer.write_arrow` for the columns and errors.
        """
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        writer = self._writers.get(stream) or self._writer_of(stream)
        return writer.write_arrow(data)

    async def send(
        self,
        value: bytes,
        *,
        key: str | None = None,
        stream: str | None = None,
        timestamp_us: int | None = None,
        headers: Headers | None = None,
    ) -> "asyncio.Future[WriteResult]":
        """Wait for room in the buffer, then write; return the future of the write. If cancelled, nothing is written."""
        await self.drain()
        return self.write(value, key=key, stream=stream, timestamp_us=timestamp_us, headers=headers)

    async def drain(self) -> None:
        """Wait while too many bytes are pending; see `Writer.drain`. Safe to cancel.

        Raises:
            MillraceError: the transaction accepts no more events.
        """
        for writer in self._each_writer:
            await writer.drain()

    async def flush(self) -> None:
        """Wait until all events written so far are durable in the transaction. Safe to cancel.

        Raises:
            TransactionAbortedError: a client aborted the transaction, or its lease expired.
            MillraceError: the reason why events were lost.
        """
        self._check_open()
        for writer in self._each_writer:
            try:
                await writer.flush()
                if writer.refusal is not None:  # an earlier call raised its error
                    raise writer.refusal.with_traceback(None)
            except MillraceError as error:
                self._identities.forget()
                reason = await explained(self._channel, self.number, error)
                if reason is error:
                    raise
                raise reason from error

    @property
    def _event_count(self) -> int:
        """Events in the branch, once all are flushed."""
        return sum(writer.event_count for writer in self._each_writer)

    @abstractmethod
    def _check_open(self) -> None:
        """Raise the reason why the events of the branch are lost, if they are."""

    def _end_writers(self, error: MillraceError) -> None:
        """Accept no more events; pending ones fail with `error`."""
        for writer in self._each_writer:
            writer.end(error)

    def _writer_of(self, stream: str | None) -> PartsWriter:
        """Raise InvalidArgumentError: the branch has no such stream."""
        shown = ", ".join(self.streams[:4])
        if stream is None:
            raise InvalidArgumentError(f"name the stream of the event: the transaction is over {shown}")
        raise InvalidArgumentError(f"the transaction is not over {stream}, but over {shown}")
