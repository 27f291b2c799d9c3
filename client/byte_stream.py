"""Byte streams: a stream of one segment as a file that grows at its end, for ever and durably.

    async with client.byte_writer("logs/raw") as writer:
        await writer.write(b"...")                     # waits only while much is on its way
        await writer.flush()                           # durable
    async with client.byte_reader("logs/raw", follow=True) as reader:
        while data := await reader.read(65536): ...    # waits at the tail; b"" at the end of a sealed stream

There are no events and no blocks in it: what is read are the bytes that were written, at the offsets where `tell` said
they would be. A writer expects to be the only one; bytes of another fail it with `ConditionFailedError`, and nothing of
its own is stored behind them. What has no ack is sent again after a lost connection and stored once.
"""

import asyncio
import io
import logging
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from millrace.client.admin.streams import stream_info
from millrace.client.transport.channel import Channel
from millrace.client.transport.connection import Chunk
from millrace.client.write.segment_writer import passes
from millrace.model.errors import InvalidArgumentError, MillraceError
from millrace.model.stream import StreamInfo
from millrace.wire import messages as m
from millrace.wire.checksum import Buffer
from millrace.wire.limits import KIB, MIB, READ_SIZE_BYTES_MAX, READ_WAIT_S_MAX

from .errors import (
    ClientClosedError,
    ConnectionLostError,
    OutcomeUnknownError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
    StreamNotFoundError,
    StreamSealedError,
    WriterExpiredError,
)

logger = logging.getLogger(__name__)

APPEND_SIZE_BYTES: Final = 4 * MIB
BUFFER_BYTES_HIGH: Final = 16 * MIB
READ_AHEAD_BYTES: Final = 256 * KIB
DELIVERY_TIMEOUT_S: Final = 120.0


async def byte_stream_info(channel: Channel, stream: str) -> StreamInfo:
    """Return a stream that can be used as a byte stream.

    Raises:
        StreamNotFoundError: there is none.
        InvalidArgumentError: it has, or had, more than one segment.
    """
    info = stream_info(await channel.request(m.GetStream(stream)))
    if info.epoch or len(info.segments) != 1:
        raise InvalidArgumentError(f"{stream} is no byte stream: it has more than one segment, or was scaled")
    return info


class ByteWriter:
    """Writes bytes at the end of a byte stream. Made by `client.byte_writer`; an async context manager."""

    def __init__(
        self, channel: Channel, stream: str, *, writer_id: str | None, start_over_if_expired: bool = False
    ) -> None:
        self._channel = channel
        self.stream = stream
        self._writer_id = writer_id or ""
        self._start_over = int(start_over_if_expired)
        self._segment_id = 0
        self._number = 0
        self._epoch = 0
        self._last_event_number = 0
        self._acked_offset = 0
        self._buffer = bytearray()
        # What is on its way, in front of the buffer.
        self._sending_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._failure: MillraceError | None = ClientClosedError("the writer is not open; use `async with`")

    async def __aenter__(self) -> Self:
        """Open the writer at the end of the stream; an older one of the same id is fenced from now on.

        Raises:
            StreamNotFoundError, StreamSealedError: nothing can be written.
            WriterExpiredError: what this id stored is not known any more, since it was idle for too long.
            InvalidArgumentError: the stream has, or had, more than one segment.
        """
        info = await byte_stream_info(self._channel, self.stream)
        if info.sealed:
            raise StreamSealedError(f"{self.stream} is sealed")
        self._segment_id = info.segments[0].segment_id
        request = m.OpenWriter(self._writer_id, [self._segment_id], self._start_over)
        opened = await self._channel.request(request)
        self._number, self._epoch = opened.writer_number, opened.writer_epoch
        self._last_event_number = opened.states[0].last_event_number
        # Asked only now: whoever had the id has stored all that it ever will.
        self._acked_offset = (await byte_stream_info(self._channel, self.stream)).segments[0].length
        self._failure = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close. When the body was cancelled nothing is waited for."""
        if kind is None:
            await self.close()
        elif issubclass(kind, Exception):
            try:
                await self.close()
            except MillraceError as second:  # the body's own error goes on; this one must not hide it
                logger.warning("bytes lost while leaving writer stream=%s error=%s", self.stream, second)
        else:
            self._stop()

    def tell(self) -> int:
        """Return the offset of the next byte to be written."""
        return self._acked_offset + self._sending_bytes + len(self._buffer)

    @property
    def durable_offset(self) -> int:
        """Everything below this offset is durable."""
        return self._acked_offset

    async def write(self, data: Buffer) -> int:
        """Take bytes, and return how many: all of them. Waits while much is on its way. Cancelling takes nothing.

        Raises:
            StreamSealedError, WriterFencedError, WriterExpiredError, ConditionFailedError: nothing can be written any
                more.
        """
        while self.tell() - self._acked_offset >= BUFFER_BYTES_HIGH and self._failure is None:
            self._room.clear()
            await self._room.wait()
        self._check()
        self._buffer += data
        self._start()
        return len(data)

    async def flush(self) -> None:
        """Wait until everything that was written is durable. Cancelling is safe. Raises like `write`."""
        end = self.tell()
        while self._acked_offset < end and self._failure is None:
            self._room.clear()
            await self._room.wait()
        self._check()

    async def truncate(self, offset: int) -> None:
        """Drop all bytes below an offset that is durable; the offsets of the rest do not change.

        Raises:
            OffsetBeyondEndError: beyond what is durable.
        """
        self._check()
        request = m.TruncateStream(self.stream, [m.CutPosition(self._segment_id, offset)])
        await self._channel.request(request)

    async def seal(self) -> None:
        """Flush, let the stream take no more bytes, for ever, and close."""
        await self.flush()
        await self._channel.request(m.SealStream(self.stream))
        self._stop()

    async def close(self) -> None:
        """Flush and close; closing again does nothing. Raises like `write`."""
        if isinstance(self._failure, ClientClosedError):
            return
        try:
            await self.flush()
        finally:
            self._stop()

    # --- inside ---

    def _check(self) -> None:
        self._channel.check()
        if self._failure is not None:
            raise self._failure

    def _stop(self) -> None:
        self._failure = ClientClosedError("the writer was closed")
        if self._task is not None:
            self._task.cancel()
        self._room.set()

    def _start(self) -> None:
        if self._task is None and self._buffer:
            self._task = asyncio.create_task(self._send(), name=f"byte writer of {self.stream}")
            self._task.add_done_callback(self._sent)

    async def _send(self) -> None:
        """Send what is in the buffer, an append at a time; what is written meanwhile makes the next one larger."""
        while self._buffer:
            payload = bytes(memoryview(self._buffer)[: min(APPEND_SIZE_BYTES, self._channel.append_size_max)])
            del self._buffer[: len(payload)]
            self._sending_bytes = len(payload)
            await self._append(payload)
            self._last_event_number += 1
            self._acked_offset += len(payload)
            self._sending_bytes = 0
            self._room.set()

    async def _append(self, payload: bytes) -> None:
        """Store one append, once; try again until it is known to be stored."""
        loop = asyncio.get_running_loop()
        retry = self._channel.retry(DELIVERY_TIMEOUT_S, passes=passes)
        is_doubtful = False
        while True:
            try:
                connection = await self._channel.connection_by(retry)
                await connection.wait_for_room(len(payload))
                append = _Append(loop, len(payload))
                connection.send_append(
                    append,
                    payload,
                    segment_id=self._segment_id,
                    writer_number=self._number,
                    writer_epoch=self._epoch,
                    event_number=self._last_event_number + 1,
                    expected_offset=self._acked_offset,
                )
                await append.done
                return
            except WriterExpiredError as error:
                if not is_doubtful:
                    raise
                raise OutcomeUnknownError(
                    f"sent, and not known to be stored when the writer expired: {error}"
                ) from error
            except MillraceError as error:
                is_doubtful = is_doubtful or isinstance(error, ConnectionLostError | OutcomeUnknownError)
                try:
                    await retry.wait(error)
                except ConnectionLostError:
                    raise OutcomeUnknownError(f"given up after {DELIVERY_TIMEOUT_S:g} s: {error}") from error

    def _sent(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, SegmentSealedError):
            error = StreamSealedError(error.facts)  # one segment, which is never replaced
        if isinstance(error, MillraceError):
            self._failure = self._failure or error
        elif error is not None:
            raise error  # our own bug: the loop's exception handler names it
        else:
            self._start()  # written since the task found nothing more
        self._room.set()


class ByteReader:
    """Reads bytes of a byte stream, from any place. Made by `client.byte_reader`; an async context manager.

    One task at a time may use it.
    """

    def __init__(self, channel: Channel, stream: str, *, offset: int, follow: bool) -> None:
        self._channel = channel
        self.stream = stream
        self._offset = offset
        self._follow = follow
        self._segment_id = 0
        # Bytes that were read ahead; they start at `_offset`.
        self._ahead = memoryview(b"")

    async def __aenter__(self) -> Self:
        """Find the stream.

        Raises:
            StreamNotFoundError: there is none.
            InvalidArgumentError: it has, or had, more than one segment.
        """
        self._segment_id = (await byte_stream_info(self._channel, self.stream)).segments[0].segment_id
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; nothing is fetched while nobody reads."""

    def tell(self) -> int:
        """Return the offset of the next byte to be read."""
        return self._offset

    async def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an offset, from the start of all offsets, from here (SEEK_CUR) or from the tail (SEEK_END).

        Raises:
            InvalidArgumentError: below 0.
        """
        if whence == io.SEEK_CUR:
            offset += self._offset
        elif whence == io.SEEK_END:
            offset += (await byte_stream_info(self._channel, self.stream)).segments[0].length
        elif whence != io.SEEK_SET:
            raise InvalidArgumentError(f"whence={whence} is none of SEEK_SET, SEEK_CUR and SEEK_END")
        if offset < 0:
            raise InvalidArgumentError(f"{offset} is no offset")
        skipped = offset - self._offset
        self._ahead = self._ahead[skipped:] if 0 <= skipped <= len(self._ahead) else memoryview(b"")
        self._offset = offset
        return offset

    async def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most `size`; below 0: all up to the tail, with `follow` up to the end.

        Empty at the tail; with `follow` it waits there, and only the end of a sealed stream is empty. Cancelling loses
        nothing.

        Raises:
            SegmentTruncatedError: the place was truncated away; `seek` to its `start_offset`.
            StreamNotFoundError: the stream was deleted.
            OffsetBeyondEndError: the place lies beyond the tail.
            SegmentDamagedError: the bytes fail their checksum on the server.
        """
        if size < 0:
            pieces = []
            start = self._offset
            try:
                while piece := await self.read(READ_SIZE_BYTES_MAX):
                    pieces.append(piece)
            except BaseException:
                await self.seek(start)
                raise
            return b"".join(pieces)
        while size and not self._ahead:
            chunk = await self._fetch(size)
            self._ahead = chunk.data
            if not len(chunk.data) and (not self._follow or chunk.flags & m.DataFlag.END_OF_SEGMENT):
                break
        data = bytes(self._ahead[:size])
        self._ahead = self._ahead[len(data) :]
        self._offset += len(data)
        return data

    async def readexactly(self, size: int) -> bytes:
        """Return exactly so many bytes. Cancelling loses nothing.

        Raises:
            EOFError: the stream ends before; the place is where it was.
        """
        start = self._offset
        pieces = []
        missing = size
        try:
            while missing:
                piece = await self.read(missing)
                if not piece:
                    raise EOFError(f"{self.stream} ends {missing} bytes before {start + size}")
                pieces.append(piece)
                missing -= len(piece)
        except BaseException:
            await self.seek(start)
            raise
        return b"".join(pieces)

    async def _fetch(self, size: int) -> Chunk:
        request = m.Read(
            segment_id=self._segment_id,
            offset=self._offset,
            size_max=min(max(size, READ_AHEAD_BYTES), READ_SIZE_BYTES_MAX),
            wait_ms=int(READ_WAIT_S_MAX * 1000) if self._follow else 0,
        )
        try:
            return await self._channel.read(request)
        except SegmentNotFoundError as error:  # the only segment is never truncated away
            raise StreamNotFoundError(f"{self.stream} was deleted") from error
        except SegmentTruncatedError as error:
            start = error.start_offset or 0
            message = (
                f"offset {self._offset} was truncated, {start - self._offset} bytes are lost; "
                f"seek({start}) goes on with what is left"
            )
            raise SegmentTruncatedError(replace(error.facts, subject=self.stream, message=message)) from None


class _Append:
    """An append on its way, as a future."""

    __slots__ = ("done", "size")

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.size = size

    def acked(self, offset: int | None, *, duplicate: bool) -> None:
        """Called by the connection."""
        del offset, duplicate  # its place was its condition
        if not self.done.done():
            self.done.set_result(None)

    def failed(self, error: MillraceError) -> None:
        """Called by the connection."""
        if not self.done.done():
            self.done.set_exception(error)
