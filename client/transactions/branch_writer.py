"""Takes events of one branch of a transaction, for any of its streams.

A branch is a set of parts that is committed or dropped as a whole. Every transaction object writes to one, and makes
further ones for others to fill.
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
    """What takes the events of a branch; belongs to one event loop.

    Args:
        refusal: why nothing is taken yet; None if events are.

    Attributes:
        streams: of the transaction.
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
        # Of each stream, in their order.
        self._each_writer: list[PartsWriter] = []
        # The same by stream; under None that of the only one.
        self._writers: dict[str | None, PartsWriter] = {}
        # Why nothing is taken any more, or yet.
        self._refusal = refusal

    @property
    def append_size_max(self) -> int:
        """Most bytes of an append that the server takes; an event with its key and headers has to fit one."""
        return self._channel.append_size_max

    @property
    def number(self) -> int:
        """The server's own of the transaction; 0 before that was entered. Another one if it has to begin again."""
        return 0 if self._beginning is None else self._beginning.current.number

    def _open_writers(self, beginning: Beginning, identity: WriterIdentity, *, branch: int) -> None:
        """Write to the parts of a branch from now on."""
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
        """Take one event; the future is done when it is durable in the transaction. Never waits.

        A future may be ignored: `flush`, `finish` and `commit` raise what went wrong. `Writer.write` says more of the
        arguments.

        Args:
            stream: needed if the transaction is over several.

        Raises:
            InvalidArgumentError: it is not over that stream, or none is named of several.
            EventTooLargeError, TypeError, BufferFullError: see `Writer.write`; the event was not taken.
            TransactionAbortedError, MillraceError: it takes nothing more.
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
        """Take many events of one stream; the future is done when all are durable in the transaction. Never waits.

        See `Writer.write_many` and `write`.
        """
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        writer = self._writers.get(stream) or self._writer_of(stream)
        return writer.write_many(values, key=key, keys=keys, timestamps_us=timestamps_us, headers=headers)

    def write_arrow(
        self, data: "pa.RecordBatch | pa.Table", *, stream: str | None = None
    ) -> "asyncio.Future[WriteResult]":
        """Take the events of a record batch or a table; the future is done when all are durable in the transaction.

        Never waits. See `Writer.write_arrow` for the columns and the errors, and `write`.
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
        """Wait for room, then write; return the future of the write. Cancelling while it waits writes nothing."""
        await self.drain()
        return self.write(value, key=key, stream=stream, timestamp_us=timestamp_us, headers=headers)

    async def drain(self) -> None:
        """Wait while too much is not yet durable; see `Writer.drain`. Cancelling is safe.

        Raises:
            MillraceError: it takes nothing more.
        """
        for writer in self._each_writer:
            await writer.drain()

    async def flush(self) -> None:
        """Wait until everything written so far is durable in the transaction. Cancelling is safe.

        Raises:
            TransactionAbortedError: it was aborted, by somebody or since its lease ran out.
            MillraceError: why events were lost.
        """
        self._check_open()
        for writer in self._each_writer:
            try:
                await writer.flush()
                if writer.refusal is not None:  # that was told before
                    raise writer.refusal.with_traceback(None)
            except MillraceError as error:
                self._identities.forget()
                reason = await explained(self._channel, self.number, error)
                if reason is error:
                    raise
                raise reason from error

    @property
    def _event_count(self) -> int:
        """How many events the branch has, once all is flushed."""
        return sum(writer.event_count for writer in self._each_writer)

    @abstractmethod
    def _check_open(self) -> None:
        """Raise why what was written is not stored any more, if it is not."""

    def _end_writers(self, error: MillraceError) -> None:
        """Take nothing more; what has no outcome yet fails with `error`."""
        for writer in self._each_writer:
            writer.end(error)

    def _writer_of(self, stream: str | None) -> PartsWriter:
        """Raise that there is none."""
        shown = ", ".join(self.streams[:4])
        if stream is None:
            raise InvalidArgumentError(f"name the stream of an event: the transaction is over {shown}")
        raise InvalidArgumentError(f"the transaction is not over {stream}, but over {shown}")
