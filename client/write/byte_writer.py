"""Appends bytes to a byte stream: a stream of one segment, used as a durable append-only file.

    async with client.byte_writer("logs/raw") as writer:
        await writer.write(b"...")                     # waits only while the buffer is full
        await writer.flush()                           # durable

A byte stream has no events and no blocks. A writer expects to be the only one: if another writer appends bytes, it
fails with `ConditionFailedError`, and stores none of its own after them. After a lost connection, unacknowledged bytes
are resent and stored exactly once; the argument `delivery_timeout_s` limits the retries.
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
    """Appends bytes to a byte stream. Made by `client.byte_writer`; an async context manager."""

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
        # The bytes that are not durable yet; a copy of their beginning is in flight.
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        # Set when the buffer or the durable offset has changed, or the writer has failed.
        self._changed = asyncio.Event()
        self._failure: MillraceError | None = NotOpenError("the writer is not open yet: enter it with `async with`")
        self._at_exit: UnclosedWriter | None = None

    def _facts(self) -> Iterator[str]:
        yield f"of {self.stream} at {self._channel.address}"
        if self._writer_id:
            yield f"id {short(self._writer_id)}"
        yield state_of(self._failure)
        yield f"at {self.tell():,}"

    async def __aenter__(self) -> Self:
        """Open the writer at the end of the stream, and fence older writers with the same id.

        Raises:
            StreamNotFoundError, StreamSealedError: the stream accepts no bytes.
            WriterExpiredError: the id was idle for too long, so the server no longer knows what it stored.
            InvalidArgumentError: the stream has, or had, more than one segment; or the writer is open already.
            ClientClosedError, MillraceError: the writer was closed, or has failed.
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
        # Fetched only now: the previous writer with the id is fenced, so the length is final.
        self._acked_offset = (await fetch_byte_stream(self._channel, self.stream)).segments[0].length
        self._failure = None
        self._task = asyncio.create_task(self._send(), name=f"byte writer of {self.stream}")
        guard = self._channel.guard
        self._at_exit = UnclosedWriter(self.stream, guard, unstored=self._unstored, settle=self._settle)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close; if the body was cancelled, close without waiting."""
        await leave(kind, close=self.close, abandon=self._abandon, stream=self.stream)

    def tell(self) -> int:
        """Return the offset of the next byte to be written."""
        return self._acked_offset + len(self._buffer)

    @property
    def durable_offset(self) -> int:
        """All bytes below this offset are durable."""
        return self._acked_offset

    async def write(self, data: Buffer) -> int:
        """Append bytes, and return their number. Waits while the buffer is full. If cancelled, nothing is written.

        Raises:
            StreamSealedError, WriterFencedError, WriterExpiredError, StreamHasExclusiveWriterError,
                ConditionFailedError: the writer has failed, and accepts no more bytes.
            DeliveryTimeoutError: the writer gave up after `delivery_timeout_s`; see `durable_offset`.
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
        """Wait until all bytes written so far are durable. Safe to cancel. Raises like `write`."""
        self._channel.guard.check()
        await self._settle()
        self._check()

    async def truncate(self, offset: int) -> None:
        """Truncate the bytes below a durable offset; the offsets of the rest do not change.

        Raises:
            OffsetBeyondEndError: the offset is beyond `durable_offset`.
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
        """Flush and close; idempotent. Cancelling abandons bytes that are not durable. Raises like `write`."""
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
        """Wait until all bytes written so far are durable, or the writer has failed."""
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
        """Send the buffer, one append at a time; bytes written meanwhile go into the next append."""
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
            if isinstance(error, SegmentSealedError):  # the only segment: it has no successors
                error = StreamSealedError(error.facts)
            self._failure = self._failure or error
            self._changed.set()

    async def _append(self, payload: bytes) -> None:
        """Store one append exactly once: resend it until it is acknowledged."""
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
                        f"the writer expired before the bytes that it had sent were acknowledged: {error}"
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
        stored = f"all bytes below offset {self._acked_offset} are stored"
        rest = "later ones may be" if is_unknown else "later ones are not"
        return DeliveryTimeoutError(f"given up after {self._delivery_limit_s:g} s: {error}; {stored}, {rest}")
