"""The client's end of a connection: it sends requests and appends, and receives replies.

The caller passes a *subject* of its choice with each request and append, and gets it back with the reply. So the core
knows no futures, callbacks or threads, and its shells need no tables. `next_event` returns one of three kinds:

    AppendAcks    appends that are durable
    PieceFrame    bytes of a segment: the reply to a READ, or part of a subscription
    ServerFrame   any other frame; an ERROR_REPLY with the subject of the rejected request or append

When the connection is lost, `abandon` returns the subjects of all unanswered requests and appends.

A DATA frame that is larger than the buffer is received straight into the array that its reader will hold. The array is
allocated once the frame's header has arrived; its size is bounded by the frame size that was agreed.
"""

import math
from typing import Any, Final, NamedTuple

import numpy as np

from millrace.model.checksum import Buffer, crc32c

from . import messages as m
from .append_run import Sequences
from .append_window import AppendWindow
from .errors import ChecksumError, ProtocolError
from .framing import DATA_PREFIX, decode, encode, encode_append_header
from .limits import FRAME_HEADER_SIZE_BYTES, FRAME_SIZE_BYTES_MAX, KIB, PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN
from .requests import OpenRequests
from .session import Role, Session, negotiate_version

DIRECT_SIZE_BYTES_MIN: Final = 32 * KIB
"""DATA frames from this size on are received straight into their own array."""

_DATA_START: Final = FRAME_HEADER_SIZE_BYTES + DATA_PREFIX.size
_DATA: Final = int(m.Data.type)
_APPEND_ACK: Final = int(m.AppendAck.type)


class Piece(NamedTuple):
    """Received bytes of a segment.

    Attributes:
        data: read-only if large; owned by the receiver.
        length: durable length of the segment when the bytes were sent.
        flags: bits of `DataFlag`.
    """

    offset: int
    data: memoryview
    length: int
    flags: int


class AppendAcks(NamedTuple):
    """Durable appends: the subject of each, and its offset; see `AppendWindow.ack`."""

    appends: list[tuple[Any, int | None]]


class PieceFrame(NamedTuple):
    """Bytes of a segment. The subject is None if the client ended the subscription while they were in flight."""

    request_id: int
    subject: Any
    piece: Piece


class ServerFrame(NamedTuple):
    """A frame. The subject is None for a notice, and for the rejection of a subscription that the client has ended."""

    request_id: int
    subject: Any
    message: m.Message


ClientEvent = AppendAcks | PieceFrame | ServerFrame


class ClientSession(Session):
    """One connection of a client. Arguments as of `Session`, and `in_flight_bytes_max` of its append window."""

    def __init__(
        self,
        *,
        now_s: float,
        handshake_timeout_s: float,
        keepalive_s: float,
        in_flight_bytes_max: int,
    ) -> None:
        super().__init__(Role.CLIENT, now_s=now_s, handshake_timeout_s=handshake_timeout_s, keepalive_s=keepalive_s)
        self.requests = OpenRequests()
        self.appends = AppendWindow(bytes_max=in_flight_bytes_max)
        # The server's HELLO_REPLY; None before the handshake is over.
        self.server: m.HelloReply | None = None
        # The DATA frame that is being received into its own array: head, array, bytes still missing.
        self._direct_head = b""
        self._direct: memoryview | None = None
        self._direct_missing = 0

    # --- out ---

    def greet(self, *, session_id: bytes, client: str, token: str, subject: Any = None) -> int:
        """Send HELLO, before anything else; return its id. The server answers with HELLO_REPLY or ERROR_REPLY.

        Args:
            session_id: 16 random bytes, the same on all connections of a client.
        """
        hello = m.Hello(
            version_min=PROTOCOL_VERSION_MIN,
            version_max=PROTOCOL_VERSION_MAX,
            features=0,
            frame_size_max=FRAME_SIZE_BYTES_MAX,
            session_id=session_id,
            client=client,
            token=token,
        )
        return self.request(hello, subject)

    def request(self, message: m.Message, subject: Any = None) -> int:
        """Send a request; return its id. A SUBSCRIBE stays open until an error, or until `requests.end`.

        Raises:
            CodecError: a value does not fit its field; nothing was sent.
        """
        request_id = self.requests.next_id()
        self.put(encode(message, request_id=request_id))
        self.requests.open(request_id, subject, is_lasting=isinstance(message, m.Subscribe))
        return request_id

    def send_unanswered(self, message: m.BeginTransaction | m.AddParts) -> None:
        """Send a request that gets no reply. Raises like `request`."""
        self.put(encode(message, request_id=self.requests.next_id(), flags=m.RequestFlag.UNANSWERED))

    def grant(self, subscription: int, credit_bytes: int) -> None:
        """Grant the server credit to push more bytes; does nothing if the subscription has ended."""
        if self.requests.is_open(subscription):
            self.put(encode(m.Credit(credit_bytes), request_id=subscription))

    def unsubscribe(self, subscription: int) -> None:
        """End a subscription; does nothing if it has ended."""
        if self.requests.is_open(subscription):
            self.requests.end(subscription)
            self.put(encode(m.Unsubscribe(), request_id=subscription))

    def append(
        self,
        payload: Buffer,
        subject: Any = None,
        *,
        segment_id: int,
        event_count: int = 1,
        writer_number: int = 0,
        writer_epoch: int = 0,
        event_number: int = 0,
        expected_offset: int = -1,
        sequences: Sequences | None = None,
    ) -> int:
        """Send one append, without copying its payload; return its id. The caller has checked `appends.has_room`.

        Raises:
            CodecError: a value does not fit its field; nothing was sent.
        """
        # Spelled out: passing on a dictionary of fields would double the cost of an append here.
        request_id = self.requests.next_id()
        header = encode_append_header(
            request_id=request_id,
            payload=payload,
            segment_id=segment_id,
            event_count=event_count,
            writer_number=writer_number,
            writer_epoch=writer_epoch,
            event_number=event_number,
            expected_offset=expected_offset,
            sequences=sequences,
        )
        self.appends.add(request_id, subject, len(payload))
        self.put(header, payload)
        return request_id

    def abandon(self) -> list[Any]:
        """Close, and return the subjects of all that was not answered: requests first, then appends."""
        self.close()
        return [*self.requests.clear(), *self.appends.clear()]

    # --- in ---

    def writable(self) -> memoryview:
        """Return memory for received bytes, never empty; valid until the next call of any method."""
        if self._direct is not None:
            return self._direct[len(self._direct) - self._direct_missing :]
        return super().writable()

    def received(self, count: int, now_s: float) -> None:
        """Record that `count` bytes were written at the start of the result of `writable`."""
        if self._direct is None:
            super().received(count, now_s)
        else:
            self._received_s = now_s
            self._pinged_s = math.inf
            self._direct_missing -= count

    def next_event(self) -> ClientEvent | None:
        """Return the next event, None if more bytes are needed.

        Raises:
            WireError: the server violated the protocol; no further event can be decoded.
        """
        if self._direct is not None:
            return None if self._direct_missing else self._end_direct()
        end = self._frames.frame_end()
        if end:
            event = self._event(self._first_frame(end))
            self._consume(end)
            return event
        if self._frames.pending >= _DATA_START:
            self._begin_direct()
        return None

    def _event(self, frame: memoryview) -> ClientEvent:
        kind = frame[8]
        if kind == _APPEND_ACK:
            return AppendAcks(self.appends.ack(frame))
        if kind == _DATA:
            if len(frame) < _DATA_START:
                raise ProtocolError(f"DATA of {len(frame)} bytes")
            # The buffer is reused: the reader's bytes are copied out of it, once.
            return self._piece_received(bytes(frame[:_DATA_START]), memoryview(bytes(frame[_DATA_START:])))
        header, message = decode(frame)
        request_id = header.request_id
        subject = None
        if isinstance(message, m.Ping):
            self.put(encode(m.Pong(), request_id=request_id))
        elif isinstance(message, m.ErrorReply):
            subject = self.appends.refuse(request_id)
            if subject is None:
                subject = self.requests.end(request_id)
        elif not isinstance(message, m.Throttle) and not (isinstance(message, m.Pong) and not request_id):
            if not self.requests.is_single(request_id):
                raise ProtocolError(f"{type(message).__name__} answers no request: id {request_id}")
            if isinstance(message, m.HelloReply):
                self._agree(message)  # first: if it raises, the request is still there, to be failed
            subject = self.requests.end(request_id)
        return ServerFrame(request_id, subject, message)

    def _agree(self, reply: m.HelloReply) -> None:
        negotiate_version(version_min=reply.version, version_max=reply.version)
        self.server = reply
        self.appends.count_max = max(1, reply.appends_in_flight_max)
        self.appends.payload_size_max = reply.append_size_max

    def _piece_received(self, head: bytes, payload: memoryview) -> PieceFrame:
        request_id = int.from_bytes(head[16:24], "little")
        _, offset, length = DATA_PREFIX.unpack_from(head, FRAME_HEADER_SIZE_BYTES)
        return PieceFrame(request_id, self.requests.answer(request_id), Piece(offset, payload, length, head[9]))

    # --- large data ---

    def _begin_direct(self) -> None:
        """Receive the rest of the first frame into its own array, if it is a large DATA frame."""
        frames = self._frames
        start, end = frames.start, frames.end
        head = bytes(frames.view(start, start + _DATA_START))
        length = int.from_bytes(head[:4], "little")
        if head[8] != _DATA or length < DIRECT_SIZE_BYTES_MIN:
            return
        self.admit(_DATA)
        # Not a bytearray: that would be filled with zeros first, at the price of a second pass over the memory.
        array = np.empty(length - _DATA_START, dtype=np.uint8).data
        arrived = end - start - _DATA_START
        array[:arrived] = frames.view(start + _DATA_START, end)
        self._consume(end)
        self._direct_head, self._direct, self._direct_missing = head, array, len(array) - arrived

    def _end_direct(self) -> PieceFrame:
        head, array = self._direct_head, self._direct
        assert array is not None
        self._direct, self._direct_head = None, b""
        expected = int.from_bytes(head[4:8], "little")
        actual = crc32c(array, crc32c(head[8:], int.from_bytes(head[:4], "little")))
        if actual != expected:
            raise ChecksumError(expected=expected, actual=actual)
        return self._piece_received(head, array.toreadonly())
