"""Frames of a connection by their headers alone: for generators that must take less of the machine than the server."""

import socket
from collections.abc import Iterator

from loadtests.protocol import DisconnectedError
from millrace.wire.limits import FRAME_SIZE_BYTES_MAX
from millrace.wire.receive_buffer import ReceiveBuffer


class RawFrames:
    """Takes over the receiving side of a connection after its handshake."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX)

    def receive(self) -> Iterator[memoryview]:
        """Wait for bytes once; yield the frames that are whole then, each valid until the next call.

        Raises:
            DisconnectedError: the server closed the connection.
        """
        count = self._socket.recv_into(self._buffer.writable())
        if count == 0:
            raise DisconnectedError("the server closed the connection")
        self._buffer.received(count)
        yield from self._buffer.frames()

    def next(self) -> tuple[int, int]:
        """Wait for one frame while nothing else can come; return its type and its request id."""
        while True:
            for frame in self.receive():
                return frame[8], request_id_of(frame)


def request_id_of(frame: memoryview) -> int:
    """Return the request id of a frame."""
    return int.from_bytes(frame[16:24], "little")
