"""Reads bytes of a byte stream from any offset, as `tell` of a `ByteWriter` returns it.

    async with client.byte_reader("logs/raw", follow=True) as reader:
        while data := await reader.read(65536): ...    # waits at the tail; b"" at the end of a sealed stream

Reads wait out an outage of the server, for up to `ClientOptions.outage_timeout_s`.
"""

import asyncio
import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from millrace.client.errors import (
    NotOpenError,
    OutageTimeoutError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    StreamNotFoundError,
)
from millrace.client.streams import fetch_byte_stream
from millrace.client.transport.channel import Channel
from millrace.model.errors import InvalidArgumentError, MillraceError
from millrace.model.shown import Handle
from millrace.wire import messages as m
from millrace.wire.client_session import Piece
from millrace.wire.limits import KIB, READ_SIZE_BYTES_MAX, READ_WAIT_S_MAX

READ_AHEAD_BYTES: Final = 256 * KIB


class ByteReader(Handle):
    """Reads bytes of a byte stream, from any offset. Made by `client.byte_reader`; an async context manager.

    Several tasks may share it: calls are atomic, and run in the order in which they began.
    """

    def __init__(self, channel: Channel, stream: str, *, offset: int, follow: bool) -> None:
        self._channel = channel
        self.stream = stream
        self._offset = offset
        self._follow = follow
        self._segment_id = 0
        # Held by the running call.
        self._turn = asyncio.Lock()
        # The read-ahead buffer, which starts at `_offset`.
        self._ahead = memoryview(b"")

    def _facts(self) -> Iterator[str]:
        yield f"of {self.stream} at {self._channel.address}"
        yield f"at {self._offset:,}"

    async def __aenter__(self) -> Self:
        """Find the stream.

        Raises:
            StreamNotFoundError: the stream does not exist.
            InvalidArgumentError: the stream has, or had, more than one segment.
        """
        self._segment_id = (await fetch_byte_stream(self._channel, self.stream)).segments[0].segment_id
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. Nothing to do: only reads fetch bytes."""

    def tell(self) -> int:
        """Return the offset of the next byte to be read."""
        return self._offset

    async def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset: absolute, relative to the current one (SEEK_CUR), or to the tail (SEEK_END).

        Raises:
            InvalidArgumentError: the new offset is below 0, or `whence` is invalid.
        """
        async with self._turn:
            return await self._seek(offset, whence)

    async def _seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._offset
        elif whence == io.SEEK_END:
            timeout_s = self._channel.options.outage_timeout_s
            offset += (await fetch_byte_stream(self._channel, self.stream, timeout_s=timeout_s)).segments[0].length
        elif whence != io.SEEK_SET:
            raise InvalidArgumentError(f"whence must be SEEK_SET, SEEK_CUR or SEEK_END, not {whence}")
        if offset < 0:
            raise InvalidArgumentError(f"offset must be at least 0, not {offset}")
        skipped = offset - self._offset
        self._ahead = self._ahead[skipped:] if 0 <= skipped <= len(self._ahead) else memoryview(b"")
        self._offset = offset
        return offset

    async def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; if it is negative, all bytes up to the tail, or with `follow` up to the end.

        Returns b"" at the tail. With `follow` it waits there, and returns b"" only at the end of a sealed stream.
        Cancelling loses no bytes.

        Raises:
            SegmentTruncatedError: the offset was truncated; `seek` to `start_offset` of the error.
            StreamNotFoundError: the stream was deleted.
            OffsetBeyondEndError: the offset is beyond the tail.
            SegmentDamagedError: the bytes fail their checksum on the server.
            OutageTimeoutError: the server was unavailable for `outage_timeout_s`; a later read continues.
        """
        async with self._turn:
            return await self._read(size) if size >= 0 else await self._gather(sys.maxsize)

    async def _read(self, size: int) -> bytes:
        while size and not self._ahead:
            piece = await self._fetch(size)
            self._ahead = piece.data
            if not len(piece.data) and (not self._follow or piece.flags & m.DataFlag.END_OF_SEGMENT):
                break
        data = bytes(self._ahead[:size])
        self._ahead = self._ahead[len(data) :]
        self._offset += len(data)
        return data

    async def readexactly(self, size: int) -> bytes:
        """Return exactly `size` bytes. Cancelling loses no bytes.

        Raises:
            EOFError: the stream ends before; the offset is unchanged.
        """
        async with self._turn:
            start = self._offset
            data = await self._gather(size)
            if len(data) < size:
                await self._seek(start)
                raise EOFError(f"{self.stream} ends {size - len(data)} bytes before offset {start + size}")
            return data

    async def _gather(self, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the stream; after an error the offset is unchanged."""
        start, pieces, missing = self._offset, [], size
        try:
            while missing and (piece := await self._read(min(missing, READ_SIZE_BYTES_MAX))):
                pieces.append(piece)
                missing -= len(piece)
        except BaseException:
            await self._seek(start)
            raise
        return b"".join(pieces)

    async def _fetch(self, size: int) -> Piece:
        if not self._segment_id:
            raise NotOpenError("the reader is not open yet: enter it with `async with`")
        timeout_s = self._channel.options.outage_timeout_s
        request = m.Read(
            segment_id=self._segment_id,
            offset=self._offset,
            size_max=min(max(size, READ_AHEAD_BYTES), READ_SIZE_BYTES_MAX),
            wait_ms=int(READ_WAIT_S_MAX * 1000) if self._follow else 0,
        )
        try:
            return await self._channel.read(request, timeout_s=timeout_s)
        except SegmentNotFoundError as error:  # the only segment is deleted only with its stream
            raise StreamNotFoundError(f"{self.stream} was deleted") from error
        except SegmentTruncatedError as error:
            start = error.start_offset or 0
            message = (
                f"offset {self._offset} was truncated: {start - self._offset} bytes are lost; "
                f"seek({start}) continues with the rest"
            )
            raise SegmentTruncatedError(replace(error.facts, subject=self.stream, message=message)) from None
        except MillraceError as error:
            if not error.retriable:
                raise
            message = f"{self.stream} was read up to offset {self._offset}; given up after {timeout_s:g} s: {error}"
            raise OutageTimeoutError(message) from error
