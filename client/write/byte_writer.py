"""Writes bytes at the end of a byte stream: a stream of one segment as a file that grows at its end, durably.

    async with client.byte_writer("logs/raw") as writer:
        await writer.write(b"...")                     # waits only while much is in flight
        await writer.flush()                           # durable

There are no events and no blocks in it. A writer expects to be the only one; bytes of another fail it with
`ConditionFailedError`, and nothing of its own is stored after them. What has no ack is sent again after a lost
connection, and stored once, however long the server was away; an end to that is the argument `delivery_timeout_s`.
"""

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from millrace.client.errors import (
    ClientClosedError,
    ConnectionLostError,
    DeliveryTimeoutError,
    NotOpenError,
    OutcomeUnknownError,
    SegmentSealedError,
    StreamSealedError,
    WriterExpiredError,
)
from millrace.client.exit_flush import UnclosedWriter, WriterBacklog
from millrace.client.streams import fetch_byte_stream
from millrace.client.transport.answers import FutureAppend
from millrace.client.transport.channel import Channel
from millrace.client.transport.retry import may_resend
from millrace.model.checksum import Buffer
from millrace.model.errors import MillraceError
from millrace.model.shown import Handle, short
from millrace.wire import messages as m
from millrace.wire.limits import MIB

from .leaving import leave, log_abandoned
from .life import check_new, state_of
from .options import delivery_limit_s

APPEND_SIZE_BYTES: Final = 4 * MIB
BUFFER_BYTES_HIGH: Final = 16 * MIB


class ByteWriter(Handle):
    """Writes bytes at the end of a byte stream. Made by `client.byte_writer`; an async context manager."""

    def __init__(
        self,
        channel: Channel,
        stream: str,
        *,
        writer_id: str | None,
        start_over_if_expired: bool = False,
        delivery_timeout_s: float | None = None,
        buffer_bytes_high: int = BUFFER_BYTES_HIGH,
    ) -> None:
        self._channel = channel
        self.stream = stream
        self._writer_id = writer_id or ""
        self._start_over = int(start_over_if_expired)
        self._delivery_limit_s = delivery_limit_s(delivery_timeout_s, is_named=writer_id is not None)
        self._buffer_bytes_high = buffer_bytes_high
        self._segment_id = 0
        self._number = 0
        self._epoch = 0
        self._last_event_number = 0
        self._acked_offset = 0
        # What is not durable yet; of its start a copy is in flight.
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        # Set when there is more in the buffer, or more is durable, or the writer has failed.
        self._changed = asyncio.Event()
        self._failure: MillraceError | None = NotOpenError("the writer was not opened yet: use `async with`")
        self._at_exit: UnclosedWriter | None = None

    def _facts(self) -> Iterator[str]:
        yield f"of {self.stream} at {self._channel.address}"
        if self._writer_id:
            yield f"id {short(self._writer_id)}"
        yield state_of(self._failure)
        yield f"at {self.tell():,}"

    async def __aenter__(self) -> Self:
        """Open the writer at the end of the stream; an older one of the same id is fenced from now on.

        Raises:
            StreamNotFoundError, StreamSealedError: nothing can be written.
            WriterExpiredError: what this id stored is not known any more, since it was idle for too long.
            InvalidArgumentError: the stream has, or had, more than one segment; or the writer is open already.
            ClientClosedError, MillraceError: it was opened before, and closed, or has failed.
        """
        check_new(self._failure)
        info = await fetch_byte_stream(self._channel, self.stream)
        if info.sealed:
            raise StreamSealedError(f"{self.stream} is sealed")
        self._segment_id = info.segments[0].segment_id
        request = m.OpenWriter(self._writer_id, [self._segment_id], self._start_over)
        opened = await self._channel.request(request)
        self._number, self._epoch = opened.writer_number, opened.writer_epoch
        self._last_event_number = opened.states[0].last_event_number
        # Asked only now: a writer that had the id has stored all that it ever will.
        self._acked_offset = (await fetch_byte_stream(self._channel, self.stream)).segments[0].length
        self._failure = None
        self._task = asyncio.create_task(self._send(), name=f"byte writer of {self.stream}")
        guard = self._channel.guard
        self._at_exit = UnclosedWriter(self.stream, guard, unstored=self._unstored, settle=self._settle)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close. When the body was cancelled nothing is waited for."""
        await leave(kind, close=self.close, abandon=self._abandon, stream=self.stream)

    def tell(self) -> int:
        """Return the offset of the next byte to be written."""
        return self._acked_offset + len(self._buffer)

    @property
    def durable_offset(self) -> int:
        """Everything below this offset is durable."""
        return self._acked_offset

    async def write(self, data: Buffer) -> int:
        """Take bytes, and return how many: all of them. Waits while much is in flight. Cancelling takes nothing.

        Raises:
            StreamSealedError, WriterFencedError, WriterExpiredError, StreamHasExclusiveWriterError,
                ConditionFailedError: nothing can be written any more.
            DeliveryTimeoutError: nothing could be stored for `delivery_timeout_s`; `durable_offset` says what is.
        """
        self._channel.guard.check()
        while len(self._buffer) >= self._buffer_bytes_high and self._failure is None:
            await self._next_change()
        self._check()
        before = len(self._buffer)
        self._buffer += data
        self._changed.set()
        return len(self._buffer) - before

    async def flush(self) -> None:
        """Wait until everything that was written is durable. Cancelling is safe. Raises like `write`."""
        self._channel.guard.check()
        await self._settle()
        self._check()

    async def truncate(self, offset: int) -> None:
        """Drop all bytes below an offset that is durable; the offsets of the rest do not change.

        Raises:
            OffsetBeyondEndError: beyond what is durable.
        """
        self._check()
        request = m.TruncateStream(self.stream, [m.SavedPosition(self._segment_id, offset)])
        await self._channel.request(request)

    async def seal(self) -> None:
        """Flush, seal the stream forever, and close."""
        await self.flush()
        await self._channel.request(m.SealStream(self.stream))
        self._stop()

    async def close(self) -> None:
        """Flush and close; closing again does nothing. Cancelling abandons what is not durable. Raises like `write`."""
        if isinstance(self._failure, ClientClosedError | NotOpenError):
            return
        try:
            await self.flush()
        except asyncio.CancelledError as error:
            log_abandoned(self._unstored(), stream=self.stream, cause=type(error))
            raise
        finally:
            self._stop()

    # --- inside ---

    async def _settle(self) -> None:
        """Wait until everything that was written is durable, or the writer has failed."""
        end = self.tell()
        while self._acked_offset < end and self._failure is None:
            await self._next_change()

    def _unstored(self) -> WriterBacklog:
        return (
            WriterBacklog() if isinstance(self._failure, ClientClosedError) else WriterBacklog(bytes=len(self._buffer))
        )

    def _abandon(self) -> WriterBacklog:
        unstored = self._unstored()
        self._stop()
        return unstored

    def _check(self) -> None:
        self._channel.check()
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # or each raise would add to it

    def _stop(self) -> None:
        self._failure = ClientClosedError("the writer was closed")
        if self._task is not None:
            self._task.cancel()
        self._changed.set()

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _send(self) -> None:
        """Send what is in the buffer, an append at a time; what is written meanwhile makes the next one larger."""
        try:
            while True:
                while not self._buffer:
                    await self._next_change()
                payload = bytes(memoryview(self._buffer)[: min(APPEND_SIZE_BYTES, self._channel.append_size_max)])
                await self._append(payload)
                self._last_event_number += 1
                self._acked_offset += len(payload)
                del self._buffer[: len(payload)]
                self._changed.set()
        except MillraceError as error:
            if isinstance(error, SegmentSealedError):  # the only segment, which is never replaced
                error = StreamSealedError(error.facts)
            self._failure = self._failure or error
            self._changed.set()

    async def _append(self, payload: bytes) -> None:
        """Store one append, once; send it again until it is known to be stored."""
        is_unknown = False
        with self._channel.retry(self._delivery_limit_s, is_transient=may_resend) as retry:
            while True:
                try:
                    connection = await self._channel.connection_by(retry)
                    await connection.wait_for_room(len(payload))
                    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                    connection.send_append(
                        FutureAppend(done),
                        payload,
                        segment_id=self._segment_id,
                        writer_number=self._number,
                        writer_epoch=self._epoch,
                        event_number=self._last_event_number + 1,
                        expected_offset=self._acked_offset,
                    )
                    await done
                    return
                except WriterExpiredError as error:
                    if not is_unknown:
                        raise
                    raise OutcomeUnknownError(
                        f"sent, and not known to be stored when the writer expired: {error}"
                    ) from error
                except MillraceError as error:
                    is_unknown = is_unknown or isinstance(error, ConnectionLostError | OutcomeUnknownError)
                    try:
                        await retry.wait(error)
                    except MillraceError as last:
                        if not may_resend(last):
                            raise
                        raise self._given_up(last, is_unknown=is_unknown) from last

    def _given_up(self, error: MillraceError, *, is_unknown: bool) -> DeliveryTimeoutError:
        stored = f"all below offset {self._acked_offset} is stored"
        rest = "what follows may be" if is_unknown else "what follows is not"
        return DeliveryTimeoutError(f"given up after {self._delivery_limit_s:g} s: {error}; {stored}, {rest}")
