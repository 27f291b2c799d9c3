"""Received bytes to whole frames: incremental, bounded, without I/O.

`FrameBuffer` lends its free end to the socket (`writable`, `received`) and names the whole frames that it holds. It
never allocates on a stranger's word: the buffer doubles only when it is full of bytes that did arrive, and never
beyond the largest frame that was agreed.

`scan_run` is the hot path of the server: it takes as many appends as stand behind one another for one segment and one
writer, and looks at nothing but their fixed headers and checksums.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from .checksum import crc32c
from .errors import ChecksumError, CodecError, ForeignProtocolError, FrameTooLargeError, ProtocolError
from .frames import FrameType
from .framing import APPEND_HEADER, FRAME_HEADER, decode_header
from .limits import APPEND_HEADER_SIZE_BYTES, CONTROL_FRAME_SIZE_BYTES_MAX, FRAME_HEADER_SIZE_BYTES, KIB

BUFFER_SIZE_BYTES_INITIAL: Final = 16 * KIB
BUFFER_SIZE_BYTES_IDLE: Final = 256 * KIB
"""A larger buffer is given back when it runs empty."""

_APPEND: Final = int(FrameType.APPEND)
assert APPEND_HEADER.fixed is not None and FRAME_HEADER.fixed is not None
_unpack_append = APPEND_HEADER.fixed.unpack_from

_FOREIGN: Final = ((b"GET ", "HTTP"), (b"POST", "HTTP"), (b"HEAD", "HTTP"), (b"PUT ", "HTTP"), (b"\x16\x03", "TLS"))


class FrameBuffer:
    """The receive buffer of one connection.

    Args:
        frame_size_max: frames above this size end the connection.
    """

    __slots__ = ("_end", "_frame_size_max", "_greeted", "_start", "_view", "data")

    def __init__(self, *, frame_size_max: int) -> None:
        self.data = bytearray(BUFFER_SIZE_BYTES_INITIAL)
        self._view = memoryview(self.data)
        self._frame_size_max = frame_size_max
        self._start = 0
        self._end = 0
        self._greeted = False

    @property
    def pending(self) -> int:
        """Bytes that arrived and are not consumed."""
        return self._end - self._start

    @property
    def size(self) -> int:
        """Bytes allocated."""
        return len(self.data)

    def writable(self) -> memoryview:
        """Return the free end of the buffer, at least one byte; valid until the next call of any method."""
        if self._end == len(self.data):
            self._make_room()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Say that `count` bytes were written at the start of what `writable` returned."""
        self._end += count
        assert self._end <= len(self.data)

    def frame_end(self) -> int:
        """Return where the first pending frame ends, or 0 if it is not whole yet.

        Raises:
            ProtocolError: a length that no frame can have; nothing behind it can be understood.
        """
        start = self._start
        pending = self._end - start
        if not self._greeted:
            self._greet()
        if pending < 4:
            return 0
        length = int.from_bytes(self._view[start : start + 4], "little")
        if length < FRAME_HEADER_SIZE_BYTES:
            raise ProtocolError(f"frame length {length} is below the header of {FRAME_HEADER_SIZE_BYTES} bytes")
        if length > self._frame_size_max:
            raise FrameTooLargeError(size_bytes=length, limit_bytes=self._frame_size_max)
        return start + length if pending >= length else 0

    @property
    def start(self) -> int:
        """Where the first pending frame starts in `data`."""
        return self._start

    @property
    def end(self) -> int:
        """Where the received bytes end in `data`."""
        return self._end

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes [start, end) of the buffer; valid until `writable` is called."""
        return self._view[start:end]

    def consume(self, end: int) -> None:
        """Give back everything before `end`."""
        assert self._start <= end <= self._end
        self._start = end
        if end == self._end:
            self._start = self._end = 0
            if len(self.data) > BUFFER_SIZE_BYTES_IDLE:
                self._resize(BUFFER_SIZE_BYTES_IDLE)

    def frames(self) -> Iterator[memoryview]:
        """Yield the whole frames that are pending, checked by their checksum, and consume each.

        A frame is valid until the next one is asked for.

        Raises:
            ProtocolError: a length or a checksum that cannot be.
        """
        while end := self.frame_end():
            frame = self._view[self._start : end]
            expected = int.from_bytes(frame[4:8], "little")
            actual = crc32c(frame[8:], len(frame))
            if actual != expected:
                raise ChecksumError(expected=expected, actual=actual)
            yield frame
            self.consume(end)

    def _greet(self) -> None:
        """Recognise, in the first bytes of a connection, peers that speak something else."""
        head = bytes(self._view[self._start : min(self._end, self._start + 4)])
        for magic, protocol in _FOREIGN:
            if head.startswith(magic):
                raise ForeignProtocolError(protocol)
        if len(head) >= 4:
            self._greeted = True

    def _make_room(self) -> None:
        pending = self._end - self._start
        if self._start > len(self.data) // 2 or (self._start and pending < len(self.data) // 2):
            self._view[:pending] = self._view[self._start : self._end]
            self._start, self._end = 0, pending
        else:
            size_max = self._frame_size_max + BUFFER_SIZE_BYTES_IDLE
            self._resize(min(2 * len(self.data), max(size_max, 2 * BUFFER_SIZE_BYTES_INITIAL)))

    def _resize(self, size: int) -> None:
        pending = self._end - self._start
        assert size > pending
        data = bytearray(size)
        data[:pending] = self._view[self._start : self._end]
        self.data = data
        self._view = memoryview(data)
        self._start, self._end = 0, pending


class AppendRun(NamedTuple):
    """Appends that stand behind one another for one segment and one writer.

    Attributes:
        end: where the run ends in the buffer.
        request_id: of its first append; the others follow without a gap.
        frame_size: of each append if all have the same, else 0.
        event_number: of the first event; the events of the run are numbered without a gap.
        expected_offset: of its only append, or -1.
    """

    end: int
    frame_count: int
    frame_size: int
    event_count: int
    request_id: int
    segment_id: int
    writer_number: int
    writer_epoch: int
    event_number: int
    expected_offset: int


def scan_run(data: bytearray, view: memoryview, *, start: int, end: int) -> AppendRun | None:
    """Return the longest run of whole appends at `start`, or None if no whole append stands there.

    The caller has checked that a whole frame of type APPEND stands at `start`. An append behind the first whose
    checksum or header is wrong ends the run, and is met again as the first of the next.

    Raises:
        ProtocolError: the first append is malformed.
    """
    (
        length, checksum, kind, flags, reserved, event_count, request_id, segment_id, writer_number, event_number,
        expected_offset, writer_epoch, reserved_tail,
    ) = _unpack_append(data, start)  # fmt: skip
    position = start + length
    if kind != _APPEND or position > end:
        return None
    actual = crc32c(view[start + 8 : position], length)
    if actual != checksum:
        raise ChecksumError(expected=checksum, actual=actual)
    if flags or reserved or reserved_tail:
        raise ProtocolError("append with reserved bits set")
    if length == APPEND_HEADER_SIZE_BYTES:
        raise ProtocolError("append without a payload")
    if expected_offset < -1:
        raise ProtocolError(f"expected offset {expected_offset} is neither an offset nor -1")
    if (writer_number == 0) != (event_number == 0):
        raise ProtocolError("an append has a writer number and an event number, or neither")
    if writer_number and not event_count:
        raise ProtocolError("an append of a writer holds at least one event")
    frame_count, frame_size, events = 1, length, event_count
    if expected_offset == -1:
        next_request, next_event = request_id + 1, event_number + event_count if writer_number else 0
        while position + APPEND_HEADER_SIZE_BYTES < end:
            (
                length, checksum, kind, flags, reserved, event_count, frame_request, frame_segment, frame_writer,
                frame_event, expected, frame_epoch, reserved_tail,
            ) = _unpack_append(data, position)  # fmt: skip
            frame_end = position + length
            if (
                frame_segment != segment_id
                or frame_request != next_request
                or frame_end > end
                or kind != _APPEND
                or frame_writer != writer_number
                or frame_event != next_event
                or frame_epoch != writer_epoch
                or expected != -1
                or flags
                or reserved
                or reserved_tail
                or length <= APPEND_HEADER_SIZE_BYTES
                or crc32c(view[position + 8 : frame_end], length) != checksum
                or (writer_number and not event_count)
            ):
                break
            if length != frame_size:
                frame_size = 0
            frame_count += 1
            events += event_count
            next_request += 1
            if writer_number:
                next_event += event_count
            position = frame_end
    return AppendRun(
        position, frame_count, frame_size, events, request_id, segment_id, writer_number, writer_epoch, event_number,
        expected_offset,
    )  # fmt: skip


def checked_control(frame: memoryview) -> memoryview:
    """Return the frame if it is small enough to be no append.

    Raises:
        FrameTooLargeError: otherwise.
    """
    if len(frame) > CONTROL_FRAME_SIZE_BYTES_MAX:
        raise FrameTooLargeError(size_bytes=len(frame), limit_bytes=CONTROL_FRAME_SIZE_BYTES_MAX)
    return frame


__all__ = ["AppendRun", "CodecError", "FrameBuffer", "checked_control", "decode_header", "scan_run"]
