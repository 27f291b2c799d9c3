"""Messages about segments: append, read, subscribe, attributes, the index of append borders."""

from enum import IntEnum
from typing import ClassVar, Final, NamedTuple

from construct import Const, Int32ul, Struct

from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES, SEQUENCED_APPEND_HEADER_SIZE_BYTES
from millrace.wire.schema.frame import FrameHeader

from .declaration import (
    I64,
    U8,
    U32,
    U64,
    Blob,
    FromClient,
    FromServer,
    List32,
    Query,
    Request,
    Rest,
    SegmentId,
    SegmentName,
    Text,
    message,
)
from .session import Done


class AppendAckEntry(NamedTuple):
    """One run of appends that are durable: `count` of them, from `request_id` on."""

    request_id: U64  # of the first append of the run
    offset: I64  # of the first byte of the first append of the run; -1: duplicate, offset unknown
    # Appends in the run; their request ids and their bytes follow one another.
    count: U32  # type: ignore[assignment]  # hides tuple.count, which no ack needs
    duplicate: U32  # 1: all were stored before; our client makes no difference


@message(17)
class AppendAck(FromServer):
    """Appends that are durable."""

    entries: List32[AppendAckEntry]


@message(16, kw_only=True)
class Append(Request[AppendAck]):
    """Append a payload to a segment. Scanned in place (`wire.append_scan`), never decoded; see `schema.frame`."""

    segment_id: U64
    writer_number: U64
    event_number: U64
    expected_offset: I64
    writer_epoch: U32
    reserved_tail: ClassVar = Const(0, Int32ul)
    payload: Rest


@message(41, kw_only=True)
class SequencedAppend(Request[AppendAck]):
    """Append events with sequences, numbers given by the caller; scanned like APPEND.

    From a named writer that was opened for the stream of the segment; either all its events there have sequences, or
    none. Refused with SEQUENCES_REFUSED if everything in the range of the segment is stored up to `first_sequence`.
    """

    segment_id: U64
    writer_number: U64  # above 0
    event_number: U64
    expected_offset: I64
    writer_epoch: U32
    reserved_tail: ClassVar = Const(0, Int32ul)
    first_sequence: I64  # from 0
    last_sequence: I64  # at least `event_count` - 1 above the first: ascending, gaps are allowed
    stored_below: I64  # everything that the writer wrote below it is stored; at most `first_sequence`
    payload: Rest


APPENDS: Final = frozenset({Append.type, SequencedAppend.type})
"""Frames that are scanned in place, not decoded."""
AppendHeader: Final = Struct(*FrameHeader.subcons, *Append.layout.subcons[:-1])
SequencedAppendHeader: Final = Struct(*FrameHeader.subcons, *SequencedAppend.layout.subcons[:-1])

assert AppendHeader.sizeof() == APPEND_HEADER_SIZE_BYTES
assert SequencedAppendHeader.sizeof() == SEQUENCED_APPEND_HEADER_SIZE_BYTES


class SegmentDescription(NamedTuple):
    """A segment as listed."""

    segment_id: U64
    start_offset: U64
    length: U64
    event_count: U64
    created_us: I64
    sealed: U8
    name: Text


@message(20, kw_only=True)
class SegmentInfo(FromServer):
    """A segment as it is now."""

    segment_id: U64
    start_offset: U64
    length: U64
    event_count: U64
    created_us: I64
    sealed: U8
    name: Text


@message(18)
class CreateSegment(Request[SegmentInfo]):
    """Create a segment. Names that start with `#` are those of internal segments, which only the server creates.

    A request that would change an internal segment is refused with INVALID_ARGUMENT.
    """

    name: SegmentName


@message(19)
class GetSegment(Query[SegmentInfo]):
    """Fetch a segment by id, or by name if the id is 0."""

    segment_id: SegmentId
    name: SegmentName


@message(21)
class SealSegment(Request[SegmentInfo]):
    """Seal a segment."""

    segment_id: SegmentId


@message(22)
class TruncateSegment(Request[SegmentInfo]):
    """Move the start of a segment."""

    segment_id: SegmentId
    offset: U64


@message(23)
class DeleteSegment(Request[Done]):
    """Delete a segment."""

    segment_id: SegmentId


@message(24, kw_only=True)
class MergeSegment(Request[SegmentInfo]):
    """Move all bytes of a sealed segment to the end of another; the reply describes the target.

    Idempotent: also by name, when the source is gone because it was merged into that target.
    """

    target_id: SegmentId
    source_id: SegmentId  # 0: the segment that `source` names
    source: SegmentName = ""


@message(26)
class SegmentList(FromServer):
    """A page of segments; `more` is set if further ones follow."""

    segments: List32[SegmentDescription]
    more: U8


@message(25)
class ListSegments(Query[SegmentList]):
    """List segments by name: those with the prefix, after `after`; no internal ones."""

    prefix: Text
    after: Text
    count_max: U32


class DataFlag(IntEnum):
    """Bits in the header flags of DATA."""

    AT_TAIL = 1  # no durable byte follows the payload
    END_OF_SEGMENT = 2  # sealed, and no byte follows the payload


@message(28, kw_only=True)
class Data(FromServer):
    """Bytes of a segment from `offset`; flags in the frame header (`DataFlag`)."""

    flags: ClassVar[int] = DataFlag.AT_TAIL | DataFlag.END_OF_SEGMENT
    segment_id: U64
    offset: U64
    length: U64  # of the segment, durable, when the reply was made
    payload: Rest


@message(27, kw_only=True)
class Read(Query[Data]):
    """Read up to `size_max` bytes from `offset`; at the tail wait for up to `wait_ms`.

    Refused with SEGMENT_TRUNCATED if the event at (`offset`, `event_index`) is before the start of the segment.
    """

    segment_id: SegmentId
    offset: U64
    size_max: U32
    wait_ms: U32
    event_index: U32 = 0  # of the first event wanted, in the block at `offset`


@message(29)
class Subscribe(Query[Data]):
    """Push the bytes of a segment from `offset` on, as they become durable, as far as there is credit.

    Refused for the same reasons as READ.
    """

    segment_id: SegmentId
    offset: U64
    credit_bytes: U32
    event_index: U32 = 0  # of the first event wanted, in the block at `offset`


@message(30)
class Credit(FromClient):
    """Grant a subscription (identified by the request id) more credit. No reply."""

    credit_bytes: U32


@message(31)
class Unsubscribe(FromClient):
    """End a subscription (identified by the request id). No reply; DATA in flight may still arrive."""


@message(34)
class Attribute(FromServer):
    """The value of an attribute, or its absence."""

    present: U8
    value: Blob


@message(32, kw_only=True)
class SetAttribute(Request[Attribute]):
    """Compare and set an attribute of a segment; absent is a value."""

    segment_id: SegmentId
    expected_present: U8
    present: U8
    key: Text
    expected: Blob
    value: Blob


@message(33)
class GetAttribute(Query[Attribute]):
    """Fetch an attribute of a segment."""

    segment_id: SegmentId
    key: Text


class IndexEntry(NamedTuple):
    """A border between appends: its offset, the events before it, the wall time when its write to the log began."""

    offset: U64
    events: U64
    wall_time_us: I64


@message(40)
class Index(FromServer):
    """Append borders, in order."""

    entries: List32[IndexEntry]


@message(38, kw_only=True)
class GetIndex(Query[Index]):
    """Fetch append borders in [start, end], at least `spacing_bytes` apart."""

    segment_id: SegmentId
    start: U64
    end: U64
    spacing_bytes: U64
    count_max: U32


@message(39)
class Seek(Query[Index]):
    """Find an append border before the first event with this event time or a newer one; none if none has."""

    segment_id: SegmentId
    timestamp_us: I64


@message(45)
class Interval(FromServer):
    """Bytes [start, end) of a segment between two append borders; empty if there are none."""

    start: U64
    end: U64


@message(44, kw_only=True)
class SeekBefore(Query[Interval]):
    """Find the last interval before `end` that may contain an event with an older event time than this one.

    No event from there up to `end` is older.
    """

    segment_id: SegmentId
    timestamp_us: I64
    end: U64
