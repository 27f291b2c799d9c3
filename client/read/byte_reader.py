"""Reads bytes of a byte stream from any offset: those that were written, where `tell` said they would be.

    async with client.byte_reader("logs/raw", follow=True) as reader:
        while data := await reader.read(65536): ...    # waits at the tail; b"" at the end of a sealed stream

While the server is away a read waits; an end to that is `ClientOptions.outage_timeout_s`.
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
    """Reads bytes of a byte stream, from any place. Made by `client.byte_reader`; an async context manager.

    Several tasks may share it: each call is carried out as a whole, after those that began before it.
    """

    def __init__(self, channel: Channel, stream: str, *, offset: int, follow: bool) -> None:
        self._channel = channel
        self.stream = stream
        self._offset = offset
        self._follow = follow
        self._segment_id = 0
        # Held by the call that is carried out.
        self._turn = asyncio.Lock()
        # Bytes that were read ahead; they start at `_offset`.
        self._ahead = memoryview(b"")

    def _facts(self) -> Iterator[str]:
        yield f"of {self.stream} at {self._channel.address}"
        yield f"at {self._offset:,}"

    async def __aenter__(self) -> Self:
        """Find the stream.

        Raises:
            StreamNotFoundError: there is none.
            InvalidArgumentError: it has, or had, more than one segment.
        """
        self._segment_id = (await fetch_byte_stream(self._channel, self.stream)).segments[0].segment_id
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; nothing is fetched except by a read."""

    def tell(self) -> int:
        """Return the offset of the next byte to be read."""
        return self._offset

    async def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an offset, from the start of all offsets, from here (SEEK_CUR) or from the tail (SEEK_END).

        Raises:
            InvalidArgumentError: below 0.
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
            SegmentTruncatedError: the offset was truncated away; `seek` to its `start_offset`.
            StreamNotFoundError: the stream was deleted.
            OffsetBeyondEndError: the offset is after the tail.
            SegmentDamagedError: the bytes fail their checksum on the server.
            OutageTimeoutError: the server was away for `outage_timeout_s`; a later read continues.
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
        """Return exactly so many bytes. Cancelling loses nothing.

        Raises:
            EOFError: the stream ends before; the place is where it was.
        """
        async with self._turn:
            start = self._offset
            data = await self._gather(size)
            if len(data) < size:
                await self._seek(start)
                raise EOFError(f"{self.stream} ends {size - len(data)} bytes before {start + size}")
            return data

    async def _gather(self, size: int) -> bytes:
        """Return so many bytes, fewer where the stream ends before; if that fails, the place is where it was."""
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
            raise NotOpenError("the reader was not opened yet: use `async with`")
        timeout_s = self._channel.options.outage_timeout_s
        request = m.Read(
            segment_id=self._segment_id,
            offset=self._offset,
            size_max=min(max(size, READ_AHEAD_BYTES), READ_SIZE_BYTES_MAX),
            wait_ms=int(READ_WAIT_S_MAX * 1000) if self._follow else 0,
        )
        try:
            return await self._channel.read(request, timeout_s=timeout_s)
        except SegmentNotFoundError as error:  # the only segment is never truncated away
            raise StreamNotFoundError(f"{self.stream} was deleted") from error
        except SegmentTruncatedError as error:
            start = error.start_offset or 0
            message = (
                f"offset {self._offset} was truncated, {start - self._offset} bytes are lost; "
                f"seek({start}) resumes with what is left"
            )
            raise SegmentTruncatedError(replace(error.facts, subject=self.stream, message=message)) from None
        except MillraceError as error:
            if not error.retriable:
                raise
            message = f"{self.stream} is read up to offset {self._offset}, given up after {timeout_s:g} s: {error}"
            raise OutageTimeoutError(message) from error
