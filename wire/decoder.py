"""Received bytes to whole frames: incremental, bounded, without I/O.

`FrameBuffer` lends its free end to the socket (`writable`, `received`) and names the whole frames that it holds. It
never allocates on a stranger's word: the buffer doubles only when more than half of it is bytes of a frame that did
arrive, and never far beyond the largest frame that was agreed.

`scan_run` is the hot path of the server: it takes as many appends as stand behind one another for one segment and one
writer, and looks at nothing but their fixed headers and checksums.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

import numpy as np

from .checksum import crc32c
from .errors import ChecksumError, ForeignProtocolError, FrameTooLargeError, ProtocolError
from .framing import APPEND_HEADER
from .limits import (
    APPEND_HEADER_SIZE_BYTES,
    CONTROL_FRAME_SIZE_BYTES_MAX,
    EVENT_NUMBER_MAX,
    FRAME_HEADER_SIZE_BYTES,
    HELLO_FRAME_SIZE_BYTES_MAX,
    KIB,
    RUN_EVENT_COUNT_MAX,
)
from .messages import Append

BUFFER_SIZE_BYTES_INITIAL: Final = 16 * KIB
BUFFER_SIZE_BYTES_IDLE: Final = 256 * KIB
"""A larger buffer is given back when it runs empty and did not need its size since it last did."""
ROOM_SIZE_BYTES_MIN: Final = 4 * KIB
"""The least that a socket is offered: a buffer filled to its last byte would cost a system call for that byte."""

_APPEND: Final = int(Append.type)
assert APPEND_HEADER.fixed is not None
_unpack_append = APPEND_HEADER.fixed.unpack_from

# The first four bytes of requests in HTTP. As lengths, all are far above the limit of a first frame.
_HTTP: Final = frozenset({b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI "})
_TLS_HANDSHAKE: Final = b"\x16\x03"
# A record of TLS goes on with its minor version, which is not 0: as a length, it is above the limit of a first frame.
assert int.from_bytes(_TLS_HANDSHAKE + b"\x01\x00", "little") > HELLO_FRAME_SIZE_BYTES_MAX


_ALIKE_COUNT_MIN: Final = 32
"""From here on it is quicker to look at many headers at once: 6 us a block, then 0.24 us an append instead of 0.46."""
_ALIKE_COUNT_MAX: Final = 256
"""The most headers of one block. A peer that lays false trails wastes at most one block with each of its appends."""
_WORD: Final = np.dtype("<u8")
_HEADER_WORDS: Final = APPEND_HEADER_SIZE_BYTES // _WORD.itemsize
_LENGTH_MASK: Final = np.uint64(0xFFFFFFFF)  # of the first word; its upper half is the checksum
_WORD_MAX: Final = (1 << 64) - 1


class FrameBuffer:
    """The receive buffer of one connection.

    Whoever fills it takes every whole frame out (`consume`, `frames`) before the next `writable`; so what is pending
    is never more than one frame that is not whole, and the buffer need not grow beyond that.

    Args:
        frame_size_max: frames above this size end the connection; the first one is held to
            `HELLO_FRAME_SIZE_BYTES_MAX`.

    Attributes:
        data: the buffer itself; replaced when it grows or shrinks.
    """

    __slots__ = ("_end", "_first", "_frame_size_max", "_limit", "_start", "_view", "_was_filled", "data")

    def __init__(self, *, frame_size_max: int) -> None:
        self.data = bytearray(BUFFER_SIZE_BYTES_INITIAL)
        self._view = memoryview(self.data)
        self._frame_size_max = frame_size_max
        # Whether the pending frame is the first of the connection, and how large it may be.
        self._first = True
        self._limit = min(HELLO_FRAME_SIZE_BYTES_MAX, frame_size_max)
        self._start = 0
        self._end = 0
        self._was_filled = False

    @property
    def pending(self) -> int:
        """Bytes that arrived and are not consumed."""
        return self._end - self._start

    @property
    def size(self) -> int:
        """Bytes allocated."""
        return len(self.data)

    def writable(self) -> memoryview:
        """Return the free end of the buffer, never empty; valid until the next call of any method."""
        if self._was_filled:
            self._was_filled = False
            if len(self.data) < BUFFER_SIZE_BYTES_IDLE:
                self._resize(2 * len(self.data))
        if len(self.data) - self._end < ROOM_SIZE_BYTES_MIN:
            self._make_room()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Say that `count` bytes were written at the start of what `writable` returned."""
        assert 0 <= count <= len(self.data) - self._end
        self._end += count
        if self._end == len(self.data):
            # The peer sends faster than we read: larger reads mean longer runs and fewer system calls.
            self._was_filled = True

    def frame_end(self) -> int:
        """Return where the first pending frame ends, or 0 if it is not whole yet.

        Raises:
            ProtocolError: a length that no frame can have; nothing behind it can be understood.
        """
        start = self._start
        pending = self._end - start
        if pending < 4:
            return 0
        length = int.from_bytes(self._view[start : start + 4], "little")
        if length < FRAME_HEADER_SIZE_BYTES:
            raise ProtocolError(f"frame length {length} is below the header of {FRAME_HEADER_SIZE_BYTES} bytes")
        if length > self._limit:
            self._refuse(length)
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
        """Give back everything before `end`, the end of a frame. What `view` lent before stays as it is."""
        assert self._start <= end <= self._end
        if self._first and end != self._start:
            self._first = False
            self._limit = self._frame_size_max
        self._start = end
        if end == self._end:
            self._start = self._end = 0
            # Large frames tend to follow one another: growing anew for each would copy more than it saves. The
            # first small one, at the latest a PONG, gives the memory back.
            if end <= BUFFER_SIZE_BYTES_IDLE < len(self.data):
                self._resize(BUFFER_SIZE_BYTES_IDLE)

    def frames(self) -> Iterator[memoryview]:
        """Yield the whole frames that are pending, checked by their checksum, and consume each.

        A frame is valid until `writable` is called.

        Raises:
            ProtocolError: a length or a checksum that cannot be.
        """
        while end := self.frame_end():
            frame = self._view[self._start : end]
            expected = int.from_bytes(frame[4:8], "little")
            actual = crc32c(frame[8:], len(frame))
            if actual != expected:
                raise ChecksumError(expected=expected, actual=actual)
            # Consumed first, so that a caller who stops here does not meet the same frame again.
            self.consume(end)
            yield frame

    def _refuse(self, length: int) -> NoReturn:
        """Name what is wrong with a length above the limit; peers that speak something else are met here."""
        if self._first:
            head = length.to_bytes(4, "little")
            if head in _HTTP:
                raise ForeignProtocolError("HTTP")
            if head.startswith(_TLS_HANDSHAKE):
                raise ForeignProtocolError("TLS")
        raise FrameTooLargeError(size_bytes=length, limit_bytes=self._limit)

    def _make_room(self) -> None:
        pending = self._end - self._start
        size_max = self._frame_size_max + BUFFER_SIZE_BYTES_IDLE
        if 2 * pending > len(self.data) and len(self.data) < size_max:
            self._resize(min(2 * len(self.data), size_max))
        else:
            self._view[:pending] = self._view[self._start : self._end]
            self._start, self._end = 0, pending
        assert self._end < len(self.data), "whole frames were left in the buffer"

    def _resize(self, size: int) -> None:
        # A new buffer, not a longer one: frames lent from the old one keep it alive and unchanged.
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
    """Return the run of whole appends at `start`, or None if no whole append stands there.

    The first append is checked and complained about. One behind it that does not fit (another segment or writer, a
    gap in the numbers, a condition, anything malformed) ends the run, and is met again as the first of the next.

    Raises:
        ProtocolError: the first append is malformed.
    """
    if end - start < APPEND_HEADER_SIZE_BYTES:
        if end - start >= FRAME_HEADER_SIZE_BYTES and data[start + 8] == _APPEND:
            length = int.from_bytes(view[start : start + 4], "little")
            if length <= end - start:
                raise ProtocolError(f"append of {length} bytes is shorter than its header")
        return None
    (
        length, checksum, kind, flags, reserved, event_count, request_id, segment_id, writer_number, event_number,
        expected_offset, writer_epoch, reserved_tail,
    ) = _unpack_append(data, start)  # fmt: skip
    position = start + length
    if kind != _APPEND or position > end:
        return None
    if length <= APPEND_HEADER_SIZE_BYTES:
        raise ProtocolError(f"append of {length} bytes has no payload behind its header")
    actual = crc32c(view[start + 8 : position], length)
    if actual != checksum:
        raise ChecksumError(expected=checksum, actual=actual)
    if flags or reserved or reserved_tail:
        raise ProtocolError("append with reserved bits set")
    if expected_offset < -1:
        raise ProtocolError(f"expected offset {expected_offset} is neither an offset nor -1")
    if (writer_number == 0) != (event_number == 0) or (writer_epoch and not writer_number):
        raise ProtocolError("an append has writer number, writer epoch and event number, or none of them")
    events_max = RUN_EVENT_COUNT_MAX
    if writer_number:
        numbers_left = EVENT_NUMBER_MAX - event_number + 1
        if numbers_left < events_max:
            events_max = numbers_left
        if not 0 < event_count <= events_max:
            raise ProtocolError(f"{event_count} events from number {event_number} on cannot be an append of a writer")
    frame_count, frame_size, events_left = 1, length, events_max - event_count
    if expected_offset == -1:
        if end - position >= _ALIKE_COUNT_MIN * length:
            more = _count_alike(data, view, start=start, end=end, events_max=events_max)
            position += more * length
            frame_count += more
            events_left -= more * event_count
        next_request = request_id + frame_count
        next_event = event_number + frame_count * event_count if writer_number else 0
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
                or event_count > events_left
                or (writer_number and not event_count)
                or crc32c(view[position + 8 : frame_end], length) != checksum
            ):
                break
            if length != frame_size:
                frame_size = 0
            frame_count += 1
            events_left -= event_count
            next_request += 1
            if writer_number:
                next_event += event_count
            position = frame_end
    return AppendRun(
        position, frame_count, frame_size, events_max - events_left,
        request_id, segment_id, writer_number, writer_epoch, event_number, expected_offset,
    )  # fmt: skip


def _count_alike(data: bytearray, view: memoryview, *, start: int, end: int, events_max: int) -> int:
    """Return how many appends behind the one at `start`, which was checked, go on in its pattern.

    A header is eight words. From one append to the next of the same size and writer none of them changes, but for the
    checksum, the request id (by 1) and the event number (by the events of an append): so one subtraction asks
    everything that `scan_run` asks of the headers of a block. What does not fit here may still fit there.
    """
    length, _, _, _, _, event_count, request_id, _, writer_number, *_ = _unpack_append(data, start)
    steps = np.array([0, 0, 1, 0, 0, event_count if writer_number else 0, 0, 0], _WORD)
    total = 0
    while True:
        count = min((end - start) // length, _ALIKE_COUNT_MAX)
        if (
            count <= _ALIKE_COUNT_MIN
            # Appends of two segments may alternate, or sizes vary: then a block would be looked at in vain, each time.
            or _unpack_append(data, start + _ALIKE_COUNT_MIN * length)[6] != request_id + total + _ALIKE_COUNT_MIN
            # A sum of words beyond their range begins anew at 0; a number does not.
            or request_id + total + count > _WORD_MAX
            or (total + count) * event_count > events_max
        ):
            return total
        words = np.ndarray((count, _HEADER_WORDS), _WORD, data, start, (length, _WORD.itemsize)).copy()
        checksums = (words[:, 0] >> 32).tolist()
        words[:, 0] &= _LENGTH_MASK
        alike = (words[1:] - words[:-1] == steps).all(axis=1)
        count = count - 1 if alike.all() else int(alike.argmin())
        body, size = start + length + 8, length - 8
        for index in range(1, count + 1):
            if crc32c(view[body : body + size], length) != checksums[index]:
                return total + index - 1
            body += length
        total += count
        start += count * length
        if count < _ALIKE_COUNT_MAX - 1:
            return total


def checked_control(frame: memoryview) -> memoryview:
    """Return the frame if it is small enough to be no append.

    Raises:
        FrameTooLargeError: otherwise.
    """
    if len(frame) > CONTROL_FRAME_SIZE_BYTES_MAX:
        raise FrameTooLargeError(size_bytes=len(frame), limit_bytes=CONTROL_FRAME_SIZE_BYTES_MAX)
    return frame
