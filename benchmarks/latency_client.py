"""Appends one at a time through a bare socket, with frames that were built before."""

from typing import Final

from loadtests.protocol import ProtocolClient, UnexpectedFrameError
from millrace.wire import messages as m

from .append_ring import AppendRing
from .raw_frames import RawFrames

_RING_COUNT: Final = 1024


class LoneAppender:
    """A connection with one append outstanding. The client is its own from now on."""

    def __init__(self, client: ProtocolClient, segment: str, *, payload_size: int) -> None:
        self.segment_id = client.create_segment(segment)
        self.socket = client.socket
        # A timeout makes every call poll first, which would be measured.
        self.socket.settimeout(None)
        self._ring = AppendRing(self.segment_id, payload_size=payload_size, count=_RING_COUNT)
        self._next = 0
        self._frames = RawFrames(self.socket)

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
        kind, request_id = self._frames.next()
        if kind != m.AppendAck.type or request_id != self._ring.first_request_id + self._next - 1:
            raise UnexpectedFrameError(f"frame of type {kind} with request id {request_id} for an ack")

    def append(self, _: int = 0) -> None:
        """Send one append and wait for its ack."""
        self.send()
        self.take_ack()
