"""Scans received appends into runs: the hot path of the server.

`scan_run` takes consecutive appends of one segment and one writer, and reads only their fixed headers and checksums. A
sequenced append is a run of its own: its sequences are those of the run.
"""

from typing import Final

import numpy as np

from millrace.model.checksum import crc32c
from millrace.model.limits import APPEND_SIZE_BYTES_MAX

from .append_run import KIND_APPENDS, AppendRun, Sequences
from .errors import ChecksumError, ProtocolError
from .framing import APPEND_HEADER, SEQUENCES
from .limits import (
    APPEND_HEADER_SIZE_BYTES,
    EVENT_NUMBER_MAX,
    FRAME_HEADER_SIZE_BYTES,
    RUN_EVENT_COUNT_MAX,
    SEQUENCED_APPEND_HEADER_SIZE_BYTES,
)
from .messages import APPENDS, Append

_APPEND: Final = int(Append.type)
_unpack_append = APPEND_HEADER.unpack_from

_ALIKE_COUNT_MIN: Final = 32
"""From this number on it is faster to compare many headers at once: 6 us a block, then 0.24 us an append instead of
0.46."""
_ALIKE_COUNT_MAX: Final = 256
"""The most headers of one block. A peer that makes its appends nearly alike wastes at most one block with each."""
_WORD: Final = np.dtype("<u8")
_HEADER_WORDS: Final = APPEND_HEADER_SIZE_BYTES // _WORD.itemsize
_LENGTH_MASK: Final = np.uint64(0xFFFFFFFF)  # of the first word; its upper half is the checksum
_WORD_MAX: Final = (1 << 64) - 1


def scan_run(data: bytearray, view: memoryview, *, start: int, end: int) -> AppendRun | None:
    """Return the run of whole appends at `start`, or None if there is no whole append.

    Its frames are copied out of the buffer. The first append is checked, and an error if malformed. A later one that
    does not fit (another segment or writer, a gap in the numbers, a condition, anything malformed) ends the run, and
    becomes the first of the next.

    Raises:
        ProtocolError: the first append is malformed.
    """
    if end - start < APPEND_HEADER_SIZE_BYTES:
        if end - start >= FRAME_HEADER_SIZE_BYTES and data[start + 8] in APPENDS:
            length = int.from_bytes(view[start : start + 4], "little")
            if length <= end - start:
                raise ProtocolError(f"append of {length} bytes is shorter than its header")
        return None
    (
        length, checksum, kind, flags, reserved, event_count, request_id, segment_id, writer_number, event_number,
        expected_offset, writer_epoch, reserved_tail,
    ) = _unpack_append(data, start)  # fmt: skip
    position = start + length
    if (kind != _APPEND and kind not in APPENDS) or position > end:
        return None
    payload_size = length - (APPEND_HEADER_SIZE_BYTES if kind == _APPEND else SEQUENCED_APPEND_HEADER_SIZE_BYTES)
    if not 0 < payload_size <= APPEND_SIZE_BYTES_MAX:
        raise ProtocolError(f"append with a payload of {payload_size} bytes, not 1 to {APPEND_SIZE_BYTES_MAX}")
    actual = crc32c(view[start + 8 : position], length)
    if actual != checksum:
        raise ChecksumError(expected=checksum, actual=actual)
    if flags or reserved or reserved_tail:
        raise ProtocolError("append with reserved bits set")
    if expected_offset < -1:
        raise ProtocolError(f"expected offset {expected_offset} is neither an offset nor -1")
    if (writer_number == 0) != (event_number == 0) or (writer_epoch and not writer_number):
        raise ProtocolError("an append must have writer number, writer epoch and event number, or none of them")
    events_max = RUN_EVENT_COUNT_MAX
    if writer_number:
        numbers_left = EVENT_NUMBER_MAX - event_number + 1
        if numbers_left < events_max:
            events_max = numbers_left
        if not 0 < event_count <= events_max:
            raise ProtocolError(f"{event_count} events from number {event_number} on cannot be an append of a writer")
    frame_count, frame_size, events_left = 1, length, events_max - event_count
    sequences = None
    if kind != _APPEND:
        sequences = _checked_sequences(data, start, event_count=event_count, writer_number=writer_number)
    elif expected_offset == -1 and position < end:
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
    event_count = events_max - events_left
    # By position: names would cost 0.5 us a run.
    return AppendRun(
        segment_id, 0, bytes(view[start:position]), frame_count, frame_size, event_count, writer_number,
        event_number + event_count - 1 if writer_number else 0, writer_epoch, KIND_APPENDS, sequences, request_id,
        expected_offset,
    )  # fmt: skip


def _checked_sequences(data: bytearray, start: int, *, event_count: int, writer_number: int) -> Sequences:
    """Return the sequences of the sequenced append at `start`, whose other fields were checked."""
    first, last, stored_below = SEQUENCES.unpack_from(data, start + APPEND_HEADER_SIZE_BYTES)
    if not writer_number:
        raise ProtocolError("a sequenced append must have a writer")
    if not 0 <= stored_below <= first <= last - event_count + 1:
        raise ProtocolError(
            f"sequences {first} to {last} of {event_count} events, stored below {stored_below}, do not ascend"
        )
    return Sequences(first, last, stored_below)


def _count_alike(data: bytearray, view: memoryview, *, start: int, end: int, events_max: int) -> int:
    """Return how many appends after the one at `start`, which was checked, continue its pattern.

    A header is eight words. From one append to the next of the same size and writer none of them changes, except the
    checksum, the request id (by 1) and the event number (by the events of an append): so one subtraction checks
    everything that `scan_run` checks in the headers of a block. An append that does not fit here may still fit there.
    """
    length, _, _, _, _, event_count, request_id, _, writer_number, *_ = _unpack_append(data, start)
    steps = np.array([0, 0, 1, 0, 0, event_count if writer_number else 0, 0, 0], _WORD)
    total = 0
    while True:
        count = min((end - start) // length, _ALIKE_COUNT_MAX)
        if (
            count <= _ALIKE_COUNT_MIN
            # Appends of two segments may alternate, or sizes vary: then a block would be compared in vain, each time.
            or _unpack_append(data, start + _ALIKE_COUNT_MIN * length)[6] != request_id + total + _ALIKE_COUNT_MIN
            # A sum of words wraps around at their range; a number does not.
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
