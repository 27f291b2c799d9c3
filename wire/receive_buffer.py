"""The receive buffer of a connection: received bytes to whole frames, incremental and bounded.

It lends its free end to the socket (`writable`, `received`) and finds whole frames in it. It never allocates because of
a length that a peer claims: the buffer doubles only when more than half of it is bytes of a frame that did arrive, and
never far beyond the largest frame that was agreed.

Memory beyond its initial size comes from an `Allowance`: for the whole of a frame, once its length is known, so that a
frame that has begun can be received to its end. Without it, the buffer `is_short`, and must not be written to until
`frame_end` resets that.
"""

from typing import Final, NoReturn, Protocol

from .errors import ForeignProtocolError, FrameTooLargeError, ProtocolError
from .limits import FRAME_HEADER_SIZE_BYTES, HELLO_FRAME_SIZE_BYTES_MAX, KIB

BUFFER_SIZE_BYTES_INITIAL: Final = 16 * KIB
BUFFER_SIZE_BYTES_IDLE: Final = 256 * KIB
"""A larger buffer shrinks when it runs empty without having needed its size since it last did."""
ROOM_SIZE_BYTES_MIN: Final = 4 * KIB
"""The least that a socket is offered: a buffer filled to its last byte would cost a system call for that byte."""

# The first four bytes of requests in HTTP. As lengths, all are far above the limit of a first frame.
_HTTP: Final = frozenset(
    {b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI ", b"HTTP"}
)
# A TLS client hello, and the alert by which a TLS server rejects other protocols.
_TLS_STARTS: Final = (b"\x16\x03", b"\x15\x03")
# A TLS record continues with its minor version, which is not 0: as a length, it is above the limit of a first frame.
assert all(int.from_bytes(start + b"\x01\x00", "little") > HELLO_FRAME_SIZE_BYTES_MAX for start in _TLS_STARTS)


def held_bytes(size: int) -> int:
    """Return the accounted memory of a buffer of that size: half of it more, for the buffers that it grew out of.

    The allocator keeps these, in pieces that are too small for other growing buffers.
    """
    return size + size // 2


class Allowance(Protocol):
    """The memory that one connection may use, of a limit for all."""

    def take(self, size: int) -> bool:
        """Hold that much more; return False, and hold no more, if it is not available now."""
        ...

    def give(self, size: int) -> None:
        """Release that much."""
        ...


class Unlimited:
    """The allowance of an end that chose its peer: unlimited."""

    def take(self, size: int) -> bool:
        """Allow it."""
        return True

    def give(self, size: int) -> None:
        """Do nothing."""


UNLIMITED: Final = Unlimited()


class ReceiveBuffer:
    """The receive buffer of one connection.

    The caller takes every whole frame out (`consume`) before the next `writable`; so the pending bytes are never more
    than one incomplete frame, and the buffer need not grow beyond that.

    Args:
        frame_size_max: frames above this size end the connection; for the first one the limit is
            `HELLO_FRAME_SIZE_BYTES_MAX`.
        allowance: provides memory above the initial size.

    Attributes:
        data: the buffer itself; replaced when it grows or shrinks.
        is_short: whether memory for the pending frame is missing.
    """

    __slots__ = (
        "_allowance",
        "_allowed",
        "_first",
        "_frame_size_max",
        "_limit",
        "_view",
        "_was_filled",
        "data",
        "end",
        "is_short",
        "start",
    )

    def __init__(self, *, frame_size_max: int, allowance: Allowance = UNLIMITED) -> None:
        self._allowance = allowance
        # How large the buffer may be.
        self._allowed = BUFFER_SIZE_BYTES_INITIAL
        self.is_short = False
        self.data = bytearray(BUFFER_SIZE_BYTES_INITIAL)
        self._view = memoryview(self.data)
        self._frame_size_max = frame_size_max
        # Whether the pending frame is the first of the connection, and how large it may be.
        self._first = True
        self._limit = min(HELLO_FRAME_SIZE_BYTES_MAX, frame_size_max)
        self.start = 0
        self.end = 0
        self._was_filled = False

    @property
    def pending(self) -> int:
        """Bytes that arrived and are not consumed."""
        return self.end - self.start

    def writable(self) -> memoryview:
        """Return the free end of the buffer, never empty; valid until the next call of any method."""
        if self._was_filled:
            self._was_filled = False
            if len(self.data) < BUFFER_SIZE_BYTES_IDLE and self._allow(2 * len(self.data)):
                self._resize(2 * len(self.data))
        if len(self.data) - self.end < ROOM_SIZE_BYTES_MIN:
            self._make_room()
        return self._view[self.end :]

    def received(self, count: int) -> None:
        """Record that `count` bytes were written at the start of the result of `writable`."""
        assert 0 <= count <= len(self.data) - self.end
        self.end += count
        if self.end == len(self.data):
            # The peer sends faster than we read: larger reads mean longer runs and fewer system calls.
            self._was_filled = True

    def frame_end(self) -> int:
        """Return where the first pending frame ends, or 0 if it is incomplete; then `is_short` may be set.

        Raises:
            ProtocolError: an invalid length; no later byte can be decoded.
        """
        start = self.start
        pending = self.end - start
        if pending < 4:
            return 0
        length = int.from_bytes(self._view[start : start + 4], "little")
        if length < FRAME_HEADER_SIZE_BYTES:
            raise ProtocolError(f"frame length {length} is below the header of {FRAME_HEADER_SIZE_BYTES} bytes")
        if length > self._limit:
            self._refuse(length)
        if pending >= length:
            return start + length
        is_large = length > self._allowed - ROOM_SIZE_BYTES_MIN
        self.is_short = is_large and not self._allow(length + min(length, BUFFER_SIZE_BYTES_IDLE))
        return 0

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes [start, end) of the buffer; valid until `writable` is called."""
        return self._view[start:end]

    def consume(self, end: int) -> None:
        """Release everything before `end`, the end of a frame. Views returned earlier stay unchanged."""
        assert self.start <= end <= self.end
        if self._first and end != self.start:
            self._first = False
            self._limit = self._frame_size_max
        self.start = end
        if end == self.end:
            self.start = self.end = 0
            # Large frames tend to follow one another: growing again for each would copy more than it saves. The first
            # small one, at the latest a PONG, releases the memory.
            if end <= BUFFER_SIZE_BYTES_IDLE < self._allowed:
                self._shrink(BUFFER_SIZE_BYTES_IDLE)

    def give_back(self) -> bool:
        """Shrink to the initial size, if that is enough for the pending bytes; return whether that released memory."""
        pending = self.pending
        length = int.from_bytes(self._view[self.start : self.start + 4], "little") if pending >= 4 else 0
        enough = BUFFER_SIZE_BYTES_INITIAL - ROOM_SIZE_BYTES_MIN
        if self._allowed == BUFFER_SIZE_BYTES_INITIAL or pending > enough or (pending < length and length > enough):
            return False
        self._was_filled = False
        self._shrink(BUFFER_SIZE_BYTES_INITIAL)
        return True

    def drop(self) -> None:
        """Drop the pending bytes, and shrink to the initial size: no more bytes arrive."""
        self.start = self.end = 0
        self._was_filled = False
        self._shrink(BUFFER_SIZE_BYTES_INITIAL)

    def _allow(self, size: int) -> bool:
        """Return whether the buffer may have that size."""
        if size > self._allowed:
            if not self._allowance.take(held_bytes(size) - held_bytes(self._allowed)):
                return False
            self._allowed = size
        return True

    def _shrink(self, size: int) -> None:
        if len(self.data) > size:
            self._resize(size)
        self._allowance.give(held_bytes(self._allowed) - held_bytes(size))
        self._allowed = size

    def _refuse(self, length: int) -> NoReturn:
        """Raise the error for a length above the limit; recognises peers of other protocols."""
        if self._first:
            head = length.to_bytes(4, "little")
            if head in _HTTP:
                raise ForeignProtocolError("HTTP")
            if head.startswith(_TLS_STARTS):
                raise ForeignProtocolError("TLS")
        raise FrameTooLargeError(size_bytes=length, limit_bytes=self._limit)

    def _make_room(self) -> None:
        pending = self.end - self.start
        if 2 * pending > len(self.data) and len(self.data) < self._allowed:
            self._resize(min(2 * len(self.data), self._allowed))
        else:
            self._view[:pending] = self._view[self.start : self.end]
            self.start, self.end = 0, pending
        assert self.end < len(self.data), "whole frames were left in the buffer"

    def _resize(self, size: int) -> None:
        # A new buffer, not a longer one: frames lent from the old one keep it alive and unchanged.
        pending = self.end - self.start
        assert size > pending
        data = bytearray(size)
        data[:pending] = self._view[self.start : self.end]
        self.data = data
        self._view = memoryview(data)
        self.start, self.end = 0, pending
