"""Frames of a connection by their headers alone: for generators that must take less of the machine than the server."""

import socket
from struct import Struct
from typing import Final, NamedTuple

from loadtests.protocol import DisconnectedError

_HEADER: Final = Struct("<IIBBHIQ")
_BUFFER_SIZE_BYTES: Final = 256 * 1024


class RawFrame(NamedTuple):
    """What a generator looks at of a frame."""

    type: int
    request_id: int


class RawFrames:
    """Takes over the receiving side of a connection after its handshake. No frame may be larger than 256 KiB."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = memoryview(bytearray(_BUFFER_SIZE_BYTES))
        # Bytes of a frame of which the rest is to come, at the start of the buffer.
        self._size = 0

    def receive(self) -> list[RawFrame]:
        """Wait for bytes once; return the frames that are whole then.

        Raises:
            DisconnectedError: the server closed the connection.
        """
        buffer = self._buffer
        count = self._socket.recv_into(buffer[self._size :])
        if count == 0:
            raise DisconnectedError("the server closed the connection")
        start, end = 0, self._size + count
        frames = []
        while end - start >= _HEADER.size:
            length, _, kind, _, _, _, request_id = _HEADER.unpack_from(buffer, start)
            if end - start < length:
                break
            frames.append(RawFrame(kind, request_id))
            start += length
        self._size = end - start
        if self._size and start:
            buffer[: self._size] = bytes(buffer[start:end])
        return frames

    def next(self) -> RawFrame:
        """Wait for one frame while nothing else can come."""
        while not (frames := self.receive()):
            pass
        return frames[0]
