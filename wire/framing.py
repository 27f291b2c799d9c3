"""Encodes and decodes frames of messages, with codecs that are derived from `wire.messages`.

Nothing here runs construct. Appends have functions of their own, because their header is fixed and their payload is
never copied.
"""

from collections.abc import Sequence
from functools import cache
from struct import error as StructError  # noqa: N812  # the class is an exception, spelled in lower case for its age
from typing import Final, NamedTuple

from construct import Struct

from millrace.model.checksum import Buffer, crc32c
from millrace.model.limits import APPEND_SIZE_BYTES_MAX

from . import messages as m
from .append_run import Sequences
from .codec import Codec, fixed_struct
from .errors import ChecksumError, CodecError
from .limits import (
    APPEND_HEADER_SIZE_BYTES,
    CONTROL_FRAME_SIZE_BYTES_MAX,
    FRAME_HEADER_SIZE_BYTES,
    FRAME_SIZE_BYTES_MAX,
    RECORD_SIZE_BYTES_MAX,
)
from .schema.frame import FrameHeader as FrameHeaderLayout

FRAME_HEADER: Final = fixed_struct(FrameHeaderLayout, name="FrameHeader")
_LENGTH_AND_CHECKSUM: Final = fixed_struct(Struct(*FrameHeaderLayout.subcons[:2]), name="FrameHeader")
_HEADER_REST: Final = fixed_struct(Struct(*FrameHeaderLayout.subcons[2:]), name="FrameHeader")
APPEND_HEADER: Final = fixed_struct(m.AppendHeader, name="AppendHeader")
SEQUENCES: Final = fixed_struct(Struct(*m.SequencedAppend.layout.subcons[-4:-1]), name="Sequences")
"""The part that follows the header of an append in that of a sequenced one."""
_APPEND: Final = int(m.Append.type)
_SEQUENCED_APPEND: Final = int(m.SequencedAppend.type)
_APPEND_ACK: Final = int(m.AppendAck.type)
_DATA: Final = int(m.Data.type)

DATA_PREFIX: Final = fixed_struct(Struct(*m.Data.layout.subcons[:-1]), name="Data")
"""The fields before the payload of a DATA frame, which is written and read without being copied."""
ACK_ENTRY: Final = fixed_struct(m.layout_of(m.AppendAckEntry), name="AppendAckEntry")
"""An entry of an APPEND_ACK; acks are written and read without an object for each."""


class FrameHeader(NamedTuple):
    """The header of a frame, checked."""

    length: int
    type: int
    flags: int
    event_count: int
    request_id: int


@cache
def _codec(number: int) -> Codec:
    """Return the codec of a message type, derived on first use: most programs need only some."""
    cls = m.MESSAGES[number]
    return Codec(cls.layout, name=cls.__name__, cls=cls)


def encode(message: m.Message, *, request_id: int = 0, flags: int = 0) -> bytes:
    """Return the frame of a message.

    Raises:
        CodecError: a value does not fit its field, or the whole does not fit a frame of the peer, or of the log.
    """
    codec = _codec(message.type)
    body = codec.pack_object(message)
    frame = encode_body(int(message.type), body, request_id=request_id, flags=flags)
    if len(frame) > CONTROL_FRAME_SIZE_BYTES_MAX and len(frame) > _size_max(message):
        raise CodecError(type(message).__name__, "", f"makes a frame of {len(frame)} bytes, above the limit")
    return frame


def _size_max(message: m.Message) -> int:
    if isinstance(message, m.Record):
        return RECORD_SIZE_BYTES_MAX
    return FRAME_SIZE_BYTES_MAX if message.type == _DATA else CONTROL_FRAME_SIZE_BYTES_MAX


def encode_body(frame_type: int, body: bytes, *, request_id: int, flags: int = 0) -> bytes:
    """Return a frame around a body that is already laid out."""
    length = FRAME_HEADER_SIZE_BYTES + len(body)
    rest = _HEADER_REST.pack(frame_type, flags, 0, 0, request_id) + body
    return _LENGTH_AND_CHECKSUM.pack(length, crc32c(rest, length)) + rest


def encode_data(
    *, request_id: int, segment_id: int, offset: int, length: int, flags: int, pieces: Sequence[memoryview | bytes]
) -> list[bytes | memoryview]:
    """Return a DATA frame as buffers, without copying its payload."""
    size = FRAME_HEADER_SIZE_BYTES + DATA_PREFIX.size + sum(map(len, pieces))
    rest = _HEADER_REST.pack(_DATA, flags, 0, 0, request_id) + DATA_PREFIX.pack(segment_id, offset, length)
    checksum = crc32c(rest, size)
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return [_LENGTH_AND_CHECKSUM.pack(size, checksum) + rest, *pieces]


def encode_append_ack(entries: Sequence[tuple[int, int, int, int]]) -> bytes:
    """Return an APPEND_ACK of some entries (see `AppendAckEntry`), with the id of the last append that they cover."""
    first, _, count, _ = entries[-1]
    body = bytearray(len(entries).to_bytes(4, "little"))
    for entry in entries:
        body += ACK_ENTRY.pack(*entry)
    return encode_body(_APPEND_ACK, bytes(body), request_id=first + count - 1)


def encode_append_header(
    *,
    request_id: int,
    segment_id: int,
    payload: Buffer,
    event_count: int = 1,
    writer_number: int = 0,
    writer_epoch: int = 0,
    event_number: int = 0,
    expected_offset: int = -1,
    sequences: Sequences | None = None,
) -> bytes:
    """Return the 64 bytes that precede `payload`, which the caller sends after them without a copy.

    `payload` is a buffer of single bytes. With `sequences` the header is that of a sequenced append, of 88 bytes.

    Raises:
        CodecError: a value does not fit its field, or the payload is empty or above `APPEND_SIZE_BYTES_MAX`.
    """
    size = len(payload)
    if not 0 < size <= APPEND_SIZE_BYTES_MAX:
        raise CodecError("AppendHeader", "length", f"payload of {size} bytes, not 1 to {APPEND_SIZE_BYTES_MAX}")
    kind = _APPEND if sequences is None else _SEQUENCED_APPEND
    try:
        tail = b"" if sequences is None else SEQUENCES.pack(*sequences)
        length = APPEND_HEADER_SIZE_BYTES + len(tail) + size
        rest = APPEND_HEADER.pack(
            length, 0, kind, 0, 0, event_count, request_id, segment_id, writer_number, event_number, expected_offset,
            writer_epoch, 0,
        )[8:] + tail  # fmt: skip
    except StructError as error:
        raise CodecError("AppendHeader", "", str(error)) from None
    return _LENGTH_AND_CHECKSUM.pack(length, crc32c(payload, crc32c(rest, length))) + rest


def with_payload(frame: memoryview, payload: Buffer, *, header_size: int) -> bytes:
    """Return the frame of an append with another payload of as many events.

    Args:
        header_size: of the header of the append, which stays the same except for length and checksum.

    Raises:
        CodecError: the payload is empty or above `APPEND_SIZE_BYTES_MAX`.
    """
    if not 0 < len(payload) <= APPEND_SIZE_BYTES_MAX:
        raise CodecError("AppendHeader", "length", f"payload of {len(payload)} bytes, not 1 to {APPEND_SIZE_BYTES_MAX}")
    length = header_size + len(payload)
    rest = bytes(frame[_LENGTH_AND_CHECKSUM.size : header_size])
    return _LENGTH_AND_CHECKSUM.pack(length, crc32c(payload, crc32c(rest, length))) + rest + payload


def verify(frame: memoryview) -> None:
    """Check the checksum of one whole frame.

    The checksum covers the length in the header: bytes cut anywhere else do not pass.

    Raises:
        ChecksumError: it does not match.
        CodecError: fewer bytes than a header.
    """
    if len(frame) < FRAME_HEADER_SIZE_BYTES:
        raise CodecError("FrameHeader", "", f"{len(frame)} bytes left, {FRAME_HEADER_SIZE_BYTES} needed")
    expected = int.from_bytes(frame[4:8], "little")
    actual = crc32c(frame[8:], int.from_bytes(frame[:4], "little"))
    if actual != expected:
        raise ChecksumError(expected=expected, actual=actual)


def decode_header(data: Buffer, offset: int = 0) -> FrameHeader:
    """Return the header at `offset`; its checksum is not verified.

    Raises:
        CodecError: fewer than 24 bytes, or reserved bits set.
    """
    if len(data) - offset < FRAME_HEADER_SIZE_BYTES:
        raise CodecError("FrameHeader", "", f"{len(data) - offset} bytes left, {FRAME_HEADER_SIZE_BYTES} needed")
    length, _, kind, flags, reserved, event_count, request_id = FRAME_HEADER.unpack_from(data, offset)
    if reserved:
        raise CodecError("FrameHeader", "reserved", f"is {reserved}, not 0")
    return FrameHeader(length, kind, flags, event_count, request_id)


def decode(frame: Buffer) -> tuple[FrameHeader, m.Message]:
    """Return header and message of one whole frame that is not an append; its checksum is not verified.

    A `Data` holds a memoryview into `frame`; everything else owns its bytes.

    Raises:
        CodecError: an unknown type, unknown flags, or a body that does not fit its declaration.
    """
    header = decode_header(frame)
    cls = m.MESSAGES.get(header.type)
    if cls is None or header.type in m.APPENDS:
        raise CodecError("FrameHeader", "type", f"{header.type} is not the type of a message")
    if header.flags & ~cls.flags:
        raise CodecError("FrameHeader", "flags", f"is {header.flags:#04x}, with bits unknown in type {header.type}")
    if header.event_count:
        raise CodecError("FrameHeader", "event_count", f"is {header.event_count} in a frame that is not an append")
    if header.length != len(frame):
        raise CodecError("FrameHeader", "length", f"is {header.length}, but the frame has {len(frame)} bytes")
    codec = _codec(header.type)
    return header, codec.unpack_object(frame, FRAME_HEADER_SIZE_BYTES)[0]
