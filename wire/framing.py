"""Messages to frames and back: the declarations of `schema.frames` bound to the classes of `frames`.

Codecs are derived when this module is imported; nothing here runs construct. Appends have functions of their own,
because their header is fixed and their payload is never copied.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from struct import error as StructError  # noqa: N812  # the class is an exception, spelled in lower case for its age
from typing import Any, Final, NamedTuple

from construct import Struct

from . import frames as f
from .checksum import Buffer, crc32c
from .codec import Codec, derive
from .errors import ChecksumError, CodecError
from .limits import (
    APPEND_HEADER_SIZE_BYTES,
    APPEND_SIZE_BYTES_MAX,
    CONTROL_FRAME_SIZE_BYTES_MAX,
    FRAME_HEADER_SIZE_BYTES,
    FRAME_SIZE_BYTES_MAX,
)
from .schema import frames as schema

FRAME_HEADER: Final = derive(schema.FrameHeader, name="FrameHeader")
APPEND_HEADER: Final = derive(schema.AppendHeader, name="AppendHeader")

assert FRAME_HEADER.fixed is not None
assert APPEND_HEADER.fixed is not None
_pack_header = FRAME_HEADER.fixed.pack
_unpack_header = FRAME_HEADER.fixed.unpack_from
_pack_append = APPEND_HEADER.fixed.pack
_APPEND: Final = int(f.FrameType.APPEND)
_DATA: Final = int(f.FrameType.DATA)

# What stands in front of the payload of a DATA frame, which is written and read without being copied.
_data_prefix = derive(Struct(*schema.Data.subcons[:-1]), name="Data").fixed
assert _data_prefix is not None
_pack_data = _data_prefix.pack
_DATA_PREFIX_SIZE_BYTES: Final = _data_prefix.size

KNOWN_FLAGS: Final = {_DATA: int(f.DataFlag.AT_TAIL | f.DataFlag.END_OF_SEGMENT)}
"""The flags that a type of frame can have; none where it is not named."""

DECLARATIONS: Final[dict[type[f.Message], Any]] = {
    f.Hello: schema.Hello,
    f.HelloReply: schema.HelloReply,
    f.ErrorReply: schema.ErrorReply,
    f.Ping: schema.Empty,
    f.Pong: schema.Empty,
    f.Throttle: schema.Throttle,
    f.Done: schema.Done,
    f.AppendAck: schema.AppendAck,
    f.CreateSegment: schema.CreateSegment,
    f.GetSegment: schema.GetSegment,
    f.SegmentInfo: schema.SegmentInfo,
    f.SealSegment: schema.SegmentRequest,
    f.TruncateSegment: schema.TruncateSegment,
    f.DeleteSegment: schema.SegmentRequest,
    f.MergeSegment: schema.MergeSegment,
    f.ListSegments: schema.ListRequest,
    f.SegmentList: schema.SegmentList,
    f.Read: schema.Read,
    f.Data: schema.Data,
    f.Subscribe: schema.Subscribe,
    f.Credit: schema.Credit,
    f.Unsubscribe: schema.Empty,
    f.SetAttribute: schema.SetAttribute,
    f.GetAttribute: schema.GetAttribute,
    f.Attribute: schema.Attribute,
    f.OpenWriter: schema.OpenWriter,
    f.WriterOpened: schema.WriterOpened,
    f.GetWriter: schema.GetWriter,
    f.GetIndex: schema.GetIndex,
    f.Seek: schema.Seek,
    f.Index: schema.Index,
    f.CreateStream: schema.CreateStream,
    f.GetStream: schema.StreamRequest,
    f.StreamInfo: schema.StreamInfo,
    f.ListStreams: schema.ListStreams,
    f.StreamList: schema.StreamList,
    f.SealStream: schema.StreamRequest,
    f.TruncateStream: schema.TruncateStream,
    f.DeleteStream: schema.StreamRequest,
    f.ScaleStream: schema.ScaleStream,
    f.GetStreamHistory: schema.StreamRequest,
    f.StreamHistory: schema.StreamHistory,
    f.UpdateStream: schema.UpdateStream,
    f.ExplainStream: schema.StreamRequest,
    f.Explanation: schema.Explanation,
    f.SaveCut: schema.SaveCut,
    f.ForgetCut: schema.CutName,
    f.ListCuts: schema.StreamRequest,
    f.CutList: schema.CutList,
    f.SegmentCreated: schema.SegmentCreated,
    f.SegmentSealed: schema.SegmentSealed,
    f.SegmentTruncated: schema.SegmentTruncated,
    f.SegmentDeleted: schema.SegmentDeleted,
    f.SegmentMerged: schema.SegmentMerged,
    f.AttributeSet: schema.AttributeSet,
    f.WriterRecorded: schema.WriterRecorded,
    f.WritersExpired: schema.WritersExpired,
    f.UptimeCounted: schema.UptimeCounted,
    f.StreamCreated: schema.StreamCreated,
    f.StreamSealed: schema.StreamSealed,
    f.StreamTruncated: schema.StreamTruncated,
    f.StreamDeleted: schema.StreamDeleted,
    f.StreamScaled: schema.StreamScaled,
    f.StreamUpdated: schema.StreamUpdated,
    f.CutSaved: schema.CutSaved,
    f.CutForgotten: schema.CutForgotten,
}
"""The layout of each message. The inspector renders frames from these."""

ITEMS: Final[dict[tuple[type[Any], str], Any]] = {
    (f.AppendAck, "entries"): f.AppendAckEntry,
    (f.SegmentList, "segments"): f.SegmentDescription,
    (f.WriterOpened, "states"): f.WriterState,
    (f.Index, "entries"): f.IndexEntry,
    (f.StreamInfo, "segments"): f.StreamSegment,
    (f.StreamList, "names"): f.StreamName,
    (f.TruncateStream, "positions"): f.CutPosition,
    (f.StreamCreated, "segments"): f.SegmentRangeRecord,
    (f.StreamTruncated, "positions"): f.CutPosition,
    (f.ScaleStream, "ranges"): f.KeyRangeRecord,
    (f.StreamScaled, "created"): f.SegmentRangeRecord,
    (f.StreamHistory, "epochs"): f.EpochRecord,
    (f.SaveCut, "positions"): f.SavedPosition,
    (f.CutSaved, "positions"): f.SavedPosition,
    (f.CutList, "cuts"): f.SavedCut,
    (f.EpochRecord, "created"): f.SegmentRangeRecord,
    (f.SavedCut, "positions"): f.SavedPosition,
}
"""The class of the items of each list of structures, in messages and in the items themselves."""


class FrameHeader(NamedTuple):
    """The header of a frame, checked."""

    length: int
    type: int
    flags: int
    event_count: int
    request_id: int


class _Binding:
    """A message class with its codec."""

    __slots__ = ("_cls", "_codec", "_get", "_items", "_names")

    def __init__(self, cls: type[f.Message], codec: Codec) -> None:
        names = tuple(field.name for field in fields(cls))  # type: ignore[arg-type]  # every message is a dataclass
        assert names == codec.names, (cls, names, codec.names)
        self._cls = cls
        self._codec = codec
        self._names = names
        self._get = attrgetter(*names) if names else None
        self._items = _item_makers(cls, names)

    def body(self, message: f.Message) -> bytes:
        if self._get is None:
            return b""
        values = self._get(message)
        return self._codec.pack(*values) if len(self._names) > 1 else self._codec.pack(values)

    def message(self, data: Buffer, offset: int, end: int) -> f.Message:
        values: Any = self._codec.unpack(data, offset, end)
        if self._items:
            values = list(values)
            for index, make in self._items:
                values[index] = [make(value) for value in values[index]]
        return self._cls(**dict(zip(self._names, values, strict=True)))


def _item_makers(cls: type[Any], names: Sequence[str]) -> list[tuple[int, Callable[[Any], Any]]]:
    """Return, for each list of structures among the fields, its index and what makes an item of plain values."""
    return [(index, _item_maker(ITEMS[cls, name])) for index, name in enumerate(names) if (cls, name) in ITEMS]


def _item_maker(item: Any) -> Callable[[Any], Any]:
    nested = _item_makers(item, item._fields)
    if not nested:
        make: Callable[[Any], Any] = item._make
        return make

    def make_nested(values: Any) -> Any:
        values = list(values)
        for index, make in nested:
            values[index] = [make(value) for value in values[index]]
        return item._make(values)

    return make_nested


_BINDINGS: Final = {cls: _Binding(cls, derive(struct, name=cls.__name__)) for cls, struct in DECLARATIONS.items()}
_BY_TYPE: Final = {int(cls.type): binding for cls, binding in _BINDINGS.items()}
CLASS_OF_TYPE: Final = {int(cls.type): cls for cls in DECLARATIONS}
assert len(_BY_TYPE) == len(_BINDINGS), "two messages share a number"


def encode(message: f.Message, *, request_id: int = 0, flags: int = 0) -> bytes:
    """Return the frame of a message.

    Raises:
        CodecError: a value does not fit its field, or the whole does not fit a frame that the peer accepts.
    """
    frame_type = int(message.type)
    frame = encode_body(frame_type, _BINDINGS[type(message)].body(message), request_id=request_id, flags=flags)
    if len(frame) > CONTROL_FRAME_SIZE_BYTES_MAX and (frame_type != _DATA or len(frame) > FRAME_SIZE_BYTES_MAX):
        raise CodecError(type(message).__name__, "", f"makes a frame of {len(frame)} bytes, above the limit")
    return frame


def encode_body(frame_type: int, body: bytes, *, request_id: int, flags: int = 0) -> bytes:
    """Return a frame around a body that is already laid out."""
    length = FRAME_HEADER_SIZE_BYTES + len(body)
    rest = _pack_header(length, 0, frame_type, flags, 0, 0, request_id)[8:] + body
    checksum = crc32c(rest, length)
    return length.to_bytes(4, "little") + checksum.to_bytes(4, "little") + rest


def encode_data(
    *, request_id: int, segment_id: int, offset: int, length: int, flags: int, pieces: Sequence[memoryview | bytes]
) -> list[bytes | memoryview]:
    """Return a DATA frame as buffers, without copying its payload."""
    size = FRAME_HEADER_SIZE_BYTES + _DATA_PREFIX_SIZE_BYTES + sum(map(len, pieces))
    rest = _pack_header(size, 0, f.FrameType.DATA, flags, 0, 0, request_id)[8:] + _pack_data(segment_id, offset, length)
    checksum = crc32c(rest, size)
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return [size.to_bytes(4, "little") + checksum.to_bytes(4, "little") + rest, *pieces]


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
) -> bytes:
    """Return the 64 bytes that go in front of `payload`, which the caller sends behind them without a copy.

    `payload` is a buffer of single bytes.

    Raises:
        CodecError: a value does not fit its field, or the payload is empty or above `APPEND_SIZE_BYTES_MAX`.
    """
    size = len(payload)
    if not 0 < size <= APPEND_SIZE_BYTES_MAX:
        raise CodecError("AppendHeader", "length", f"payload of {size} bytes, not 1 to {APPEND_SIZE_BYTES_MAX}")
    length = APPEND_HEADER_SIZE_BYTES + size
    try:
        rest = _pack_append(
            length, 0, _APPEND, 0, 0, event_count, request_id, segment_id, writer_number, event_number,
            expected_offset, writer_epoch, 0,
        )[8:]  # fmt: skip
    except StructError as error:
        raise CodecError("AppendHeader", "", str(error)) from None
    checksum = crc32c(payload, crc32c(rest, length))
    return length.to_bytes(4, "little") + checksum.to_bytes(4, "little") + rest


def verify(frame: memoryview) -> None:
    """Check the checksum of one whole frame.

    The length in its header is part of what is checked: bytes cut anywhere else do not pass.

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
    """Return the header at `offset`; its checksum is not looked at.

    Raises:
        CodecError: fewer than 24 bytes, or reserved bits set.
    """
    if len(data) - offset < FRAME_HEADER_SIZE_BYTES:
        raise CodecError("FrameHeader", "", f"{len(data) - offset} bytes left, {FRAME_HEADER_SIZE_BYTES} needed")
    length, _, kind, flags, reserved, event_count, request_id = _unpack_header(data, offset)
    if reserved:
        raise CodecError("FrameHeader", "reserved", f"is {reserved}, not 0")
    return FrameHeader(length, kind, flags, event_count, request_id)


def decode(frame: Buffer) -> tuple[FrameHeader, f.Message]:
    """Return header and message of one whole frame that is not an append; its checksum is not looked at.

    A `Data` holds a memoryview into `frame`; everything else owns its bytes.

    Raises:
        CodecError: an unknown type, unknown flags, or a body that does not fit its declaration.
    """
    header = decode_header(frame)
    binding = _BY_TYPE.get(header.type)
    if binding is None:
        raise CodecError("FrameHeader", "type", f"{header.type} is not the type of a message")
    if header.flags & ~KNOWN_FLAGS.get(header.type, 0):
        raise CodecError("FrameHeader", "flags", f"is {header.flags:#04x}, with bits unknown in type {header.type}")
    if header.event_count:
        raise CodecError("FrameHeader", "event_count", f"is {header.event_count} in a frame that is no append")
    if header.length != len(frame):
        raise CodecError("FrameHeader", "length", f"is {header.length}, the frame has {len(frame)} bytes")
    return header, binding.message(frame, FRAME_HEADER_SIZE_BYTES, len(frame))
