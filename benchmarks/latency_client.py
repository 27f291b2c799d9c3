"""Appends one at a time through a bare socket, with frames that were built before."""

import struct
from typing import Final

from loadtests.protocol import DisconnectedError, ProtocolClient, UnexpectedFrameError
from millrace.wire import messages as m

from .append_ring import AppendRing

_HEADER: Final = struct.Struct("<IIBBHIQ")
_RING_COUNT: Final = 1024
_BUFFER_SIZE_BYTES: Final = 64 * 1024


class LoneAppender:
    """A connection with one append outstanding. The client is its own from now on."""

    def __init__(self, client: ProtocolClient, segment: str, *, payload_size: int) -> None:
        self.segment_id = client.create_segment(segment)
        self.socket = client.socket
        # A timeout makes every call poll first, which would be measured.
        self.socket.settimeout(None)
        self._ring = AppendRing(self.segment_id, payload_size=payload_size, count=_RING_COUNT)
        self._next = 0
        self._buffer = bytearray(_BUFFER_SIZE_BYTES)

    def send(self) -> None:
        """Send the next append."""
        ring = self._ring
        if self._next == ring.count:
            ring.advance()
            self._next = 0
        start = self._next * ring.frame_size
        self.socket.sendall(ring.frames[start : start + ring.frame_size])
        self._next += 1

    def take_ack(self) -> None:
        """Wait for the ack.

        Raises:
            LoadError: something else came, or nothing any more.
        """
        received = 0
        view = memoryview(self._buffer)
        while received < _HEADER.size or received < _HEADER.unpack_from(view)[0]:
            count = self.socket.recv_into(view[received:])
            if count == 0:
                raise DisconnectedError("the server closed the connection")
            received += count
        _, _, kind, _, _, _, request_id = _HEADER.unpack_from(view)
        if kind != m.AppendAck.type or request_id != self._ring.first_request_id + self._next - 1:
            raise UnexpectedFrameError(f"frame of type {kind} with request id {request_id} for an ack")

    def append(self, _: int = 0) -> None:
        """Send one append and wait for its ack."""
        self.send()
        self.take_ack()
