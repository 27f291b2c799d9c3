"""Byte streams as files, for threads."""

import io
from typing import Any

from millrace.client.read.byte_reader import ByteReader as AsyncByteReader
from millrace.client.write.byte_writer import ByteWriter as AsyncByteWriter

from .loop_thread import LoopThread, repr_for_threads


class ByteWriter(io.RawIOBase):
    """A file that grows at its end, durably: see `millrace.client.write.byte_writer`."""

    def __init__(self, loop: LoopThread, writer: AsyncByteWriter) -> None:
        self._loop = loop
        self._writer = writer
        # Closing a file of `io` flushes it once more.
        self._ended = False
        loop.call(writer.__aenter__)

    def __repr__(self) -> str:
        """Return what it is of, and its place."""
        return repr_for_threads(self, getattr(self, "_writer", None))

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any, /) -> int:
        """Take all bytes; waits only while much is in flight."""
        copied = bytes(data)
        return self._loop.call(lambda: self._writer.write(copied))

    def flush(self) -> None:
        """Wait until everything that was written is durable."""
        if not self._ended:
            self._loop.call(self._writer.flush)

    def tell(self) -> int:
        """Return the offset of the next byte to be written."""
        return self._writer.tell()

    def drop_before(self, offset: int) -> None:
        """Drop all bytes below an offset; `truncate` of a file would cut the other end."""
        self._loop.call(lambda: self._writer.truncate(offset))

    def seal(self) -> None:
        """Flush, let the stream take no more bytes, forever, and close."""
        self._loop.call(self._writer.seal)
        self._ended = True
        super().close()

    def close(self) -> None:
        """Flush and close."""
        if not self._ended:
            self._ended = True
            try:
                self._loop.call(self._writer.close)
            finally:
                super().close()


class ByteReader(io.RawIOBase):
    """A file to read a byte stream: see `millrace.client.read.byte_reader`. `io.BufferedReader` takes it, too."""

    def __init__(self, loop: LoopThread, reader: AsyncByteReader) -> None:
        self._loop = loop
        self._reader = reader
        loop.call(reader.__aenter__)

    def __repr__(self) -> str:
        """Return what it is of, and its place."""
        return repr_for_threads(self, getattr(self, "_reader", None))

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes, at most `size`; None or below 0: all up to the tail, with `follow` up to the end."""
        return self._loop.call(lambda: self._reader.read(-1 if size is None else size))

    def readall(self) -> bytes:
        """Return all up to the tail, with `follow` up to the end."""
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, as far as one read goes; 0 at the tail, with `follow` at the end."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to an offset; see `io.IOBase.seek`."""
        return self._loop.call(lambda: self._reader.seek(offset, whence))

    def tell(self) -> int:
        """Return the offset of the next byte to be read."""
        return self._reader.tell()
