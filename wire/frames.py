"""One frozen dataclass per message; their layouts are in `schema.frames`.

Each class knows its `type` (a number on the wire, never changed and never reused). Field names and their order are
those of the declaration, which `framing` asserts when it is imported.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple


class FrameType(IntEnum):
    """What a frame is. Numbers are frozen for ever."""

    HELLO = 1
    HELLO_REPLY = 2
    ERROR = 3
    PING = 4
    PONG = 5
    THROTTLE = 6
    DONE = 7
    APPEND = 16
    APPEND_ACK = 17
    CREATE_SEGMENT = 18
    GET_SEGMENT = 19
    SEGMENT_INFO = 20
    SEAL_SEGMENT = 21
    TRUNCATE_SEGMENT = 22
    DELETE_SEGMENT = 23
    MERGE_SEGMENT = 24
    LIST_SEGMENTS = 25
    SEGMENT_LIST = 26
    READ = 27
    DATA = 28
    SUBSCRIBE = 29
    CREDIT = 30
    UNSUBSCRIBE = 31
    SET_ATTRIBUTE = 32
    GET_ATTRIBUTE = 33
    ATTRIBUTE = 34
    OPEN_WRITER = 35
    WRITER_OPENED = 36
    GET_WRITER = 37
    GET_INDEX = 38
    SEEK = 39
    INDEX = 40
    CREATE_STREAM = 48
    GET_STREAM = 49
    STREAM_INFO = 50
    LIST_STREAMS = 51
    STREAM_LIST = 52
    SEAL_STREAM = 53
    TRUNCATE_STREAM = 54
    DELETE_STREAM = 55
    SCALE_STREAM = 56
    GET_STREAM_HISTORY = 57
    STREAM_HISTORY = 58
    UPDATE_STREAM = 59
    EXPLAIN_STREAM = 60
    EXPLANATION = 61
    SAVE_CUT = 62
    FORGET_CUT = 63
    LIST_CUTS = 64
    CUT_LIST = 65
    SEGMENT_CREATED = 128
    SEGMENT_SEALED = 129
    SEGMENT_TRUNCATED = 130
    SEGMENT_DELETED = 131
    SEGMENT_MERGED = 132
    ATTRIBUTE_SET = 133
    WRITER_RECORDED = 134
    STREAM_CREATED = 135
    STREAM_SEALED = 136
    STREAM_TRUNCATED = 137
    STREAM_DELETED = 138
    STREAM_SCALED = 139
    STREAM_UPDATED = 140
    CUT_SAVED = 141
    CUT_FORGOTTEN = 142
    WRITERS_EXPIRED = 143
    UPTIME_COUNTED = 144


class DataFlag(IntEnum):
    """Bits in the header flags of DATA."""

    AT_TAIL = 1  # nothing durable follows the payload
    END_OF_SEGMENT = 2  # sealed, and nothing follows the payload


class AppendAckEntry(NamedTuple):
    """One run of appends that are durable: `count` of them, from `request_id` on.

    `offset` is where the first byte of the first append is, -1 if it was stored before and its offset is not kept.
    """

    request_id: int
    offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks an ack for
    duplicate: int


class SegmentDescription(NamedTuple):
    """A segment as listed."""

    segment_id: int
    start_offset: int
    length: int
    event_count: int
    created_us: int
    sealed: int
    name: str


class WriterState(NamedTuple):
    """The last event number stored by a writer in a segment; 0 = never written."""

    segment_id: int
    last_event_number: int


class IndexEntry(NamedTuple):
    """A border between appends: its offset, the events before it, the wall time at which it was durable."""

    offset: int
    events: int
    wall_time_us: int


class StreamSegment(NamedTuple):
    """A segment of a stream with its key range, `low` to `last` inclusive."""

    segment_id: int
    low: int
    last: int
    epoch: int
    sealed_epoch: int
    start_offset: int
    length: int
    event_count: int
    sealed: int


class SegmentRangeRecord(NamedTuple):
    """A new segment of a stream in the log, with its key range, `low` to `last` inclusive."""

    segment_id: int
    low: int
    last: int


class CutKind(IntEnum):
    """What a saved cut is for."""

    BOOKMARK = 1  # a place worth finding again
    CURSOR = 2  # how far a consumer has come: retention by consumption does not pass it


class SavedPosition(NamedTuple):
    """A place in a segment: the offset of a block, and the index of an event in it."""

    segment_id: int
    offset: int
    event_index: int


class SavedCut(NamedTuple):
    """A cut that the server keeps under a name; each kind has names of its own."""

    kind: int
    name: str
    saved_us: int
    positions: list[SavedPosition]


class KeyRangeRecord(NamedTuple):
    """A range of the key space, `low` to `last` inclusive."""

    low: int
    last: int


class EpochRecord(NamedTuple):
    """An epoch of a stream: when and why it began, what it sealed, what it created in its place."""

    number: int
    started_us: int
    cause: str
    sealed_ids: list[int]
    created: list[SegmentRangeRecord]


class CutPosition(NamedTuple):
    """An offset in a segment, on a border between appends."""

    segment_id: int
    offset: int


class StreamName(NamedTuple):
    """A stream as listed."""

    name: str


class Message:
    """A message: a frozen dataclass with the number of its frame."""

    __slots__ = ()
    type: ClassVar[FrameType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """First frame of a client: versions, features, identity."""

    type: ClassVar[FrameType] = FrameType.HELLO
    version_min: int
    version_max: int
    features: int
    frame_size_max: int
    client: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloReply(Message):
    """First frame of a server: what was agreed, and its limits."""

    type: ClassVar[FrameType] = FrameType.HELLO_REPLY
    version: int
    features: int
    frame_size_max: int
    append_size_max: int
    appends_in_flight_max: int
    server_id: bytes
    server: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply(Message):
    """A request failed; the facts. -1 and 0 stand for facts that do not apply."""

    type: ClassVar[FrameType] = FrameType.ERROR
    code: int
    retriable: int
    retry_after_ms: int
    start_offset: int
    length: int
    subject: str
    message: str
    successors: list[int]


@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Ask for a PONG."""

    type: ClassVar[FrameType] = FrameType.PING


@dataclass(frozen=True, slots=True)
class Pong(Message):
    """Answer to PING."""

    type: ClassVar[FrameType] = FrameType.PONG


@dataclass(frozen=True, slots=True)
class Throttle(Message):
    """Notice: the server reads no more from this connection until what is full has room."""

    type: ClassVar[FrameType] = FrameType.THROTTLE
    retry_after_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Done(Message):
    """The request was carried out; `changed` is 0 where it already was so."""

    type: ClassVar[FrameType] = FrameType.DONE
    changed: int


@dataclass(frozen=True, slots=True)
class AppendAck(Message):
    """Appends that are durable."""

    type: ClassVar[FrameType] = FrameType.APPEND_ACK
    entries: list[AppendAckEntry]


@dataclass(frozen=True, slots=True)
class CreateSegment(Message):
    """Create a segment; answered by SEGMENT_INFO."""

    type: ClassVar[FrameType] = FrameType.CREATE_SEGMENT
    name: str


@dataclass(frozen=True, slots=True)
class GetSegment(Message):
    """Ask for a segment by id, or by name where the id is 0; answered by SEGMENT_INFO."""

    type: ClassVar[FrameType] = FrameType.GET_SEGMENT
    segment_id: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo(Message):
    """A segment as it is now."""

    type: ClassVar[FrameType] = FrameType.SEGMENT_INFO
    segment_id: int
    start_offset: int
    length: int
    event_count: int
    created_us: int
    sealed: int
    name: str


@dataclass(frozen=True, slots=True)
class SealSegment(Message):
    """Seal a segment; answered by SEGMENT_INFO."""

    type: ClassVar[FrameType] = FrameType.SEAL_SEGMENT
    segment_id: int


@dataclass(frozen=True, slots=True)
class TruncateSegment(Message):
    """Move the start of a segment; answered by SEGMENT_INFO."""

    type: ClassVar[FrameType] = FrameType.TRUNCATE_SEGMENT
    segment_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteSegment(Message):
    """Delete a segment; answered by DONE."""

    type: ClassVar[FrameType] = FrameType.DELETE_SEGMENT
    segment_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSegment(Message):
    """Move all bytes of a sealed segment to the end of another; answered by SEGMENT_INFO of the target."""

    type: ClassVar[FrameType] = FrameType.MERGE_SEGMENT
    target_id: int
    source_id: int


@dataclass(frozen=True, slots=True)
class ListSegments(Message):
    """List segments by name: those with the prefix, behind `after`; answered by SEGMENT_LIST."""

    type: ClassVar[FrameType] = FrameType.LIST_SEGMENTS
    prefix: str
    after: str
    count_max: int


@dataclass(frozen=True, slots=True)
class SegmentList(Message):
    """A page of segments; `more` says that further ones follow."""

    type: ClassVar[FrameType] = FrameType.SEGMENT_LIST
    segments: list[SegmentDescription]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Message):
    """Read up to `size_max` bytes from `offset`; at the tail wait for up to `wait_ms`. Answered by DATA."""

    type: ClassVar[FrameType] = FrameType.READ
    segment_id: int
    offset: int
    size_max: int
    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Data(Message):
    """Bytes of a segment from `offset`; flags in the frame header (`DataFlag`)."""

    type: ClassVar[FrameType] = FrameType.DATA
    segment_id: int
    offset: int
    length: int
    payload: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Subscribe(Message):
    """Push the bytes of a segment from `offset` on, as they become durable, for as long as there is credit."""

    type: ClassVar[FrameType] = FrameType.SUBSCRIBE
    segment_id: int
    offset: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class Credit(Message):
    """Give a subscription (named by the request id) more credit. No reply."""

    type: ClassVar[FrameType] = FrameType.CREDIT
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class Unsubscribe(Message):
    """End a subscription (named by the request id). No reply; DATA on its way may still arrive."""

    type: ClassVar[FrameType] = FrameType.UNSUBSCRIBE


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAttribute(Message):
    """Compare and set an attribute of a segment; absent is a value. Answered by ATTRIBUTE."""

    type: ClassVar[FrameType] = FrameType.SET_ATTRIBUTE
    segment_id: int
    expected_present: int
    present: int
    key: str
    expected: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class GetAttribute(Message):
    """Ask for an attribute of a segment; answered by ATTRIBUTE."""

    type: ClassVar[FrameType] = FrameType.GET_ATTRIBUTE
    segment_id: int
    key: str


@dataclass(frozen=True, slots=True)
class Attribute(Message):
    """The value of an attribute, or its absence."""

    type: ClassVar[FrameType] = FrameType.ATTRIBUTE
    present: int
    value: bytes


@dataclass(frozen=True, slots=True)
class OpenWriter(Message):
    """Open a writer under a new epoch; an empty id asks for a fresh unnamed one. Answered by WRITER_OPENED.

    An id whose state has expired is refused with WRITER_EXPIRED, unless it is to `start_over`.
    """

    type: ClassVar[FrameType] = FrameType.OPEN_WRITER
    writer_id: str
    segment_ids: list[int]
    start_over: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOpened(Message):
    """The writer, its epoch, and its last event number in each of the segments asked for.

    Of a writer whose state has expired number and epoch are those which it had, and it is not `known`. One that was
    opened to start over is new, and tells when the state before it expired.
    """

    type: ClassVar[FrameType] = FrameType.WRITER_OPENED
    writer_number: int
    writer_epoch: int
    known: int
    active_us: int
    expired_us: int
    states: list[WriterState]


@dataclass(frozen=True, slots=True)
class GetWriter(Message):
    """Ask how far a writer has come, without opening it. Answered by WRITER_OPENED."""

    type: ClassVar[FrameType] = FrameType.GET_WRITER
    writer_id: str
    segment_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GetIndex(Message):
    """Ask for append borders in [start, end], at least `spacing_bytes` apart; answered by INDEX."""

    type: ClassVar[FrameType] = FrameType.GET_INDEX
    segment_id: int
    start: int
    end: int
    spacing_bytes: int
    count_max: int


@dataclass(frozen=True, slots=True)
class Seek(Message):
    """Ask for the last known append border at or before a wall time; answered by INDEX with one entry."""

    type: ClassVar[FrameType] = FrameType.SEEK
    segment_id: int
    wall_time_us: int


@dataclass(frozen=True, slots=True)
class Index(Message):
    """Append borders, in order."""

    type: ClassVar[FrameType] = FrameType.INDEX
    entries: list[IndexEntry]


@dataclass(frozen=True, slots=True)
class CreateStream(Message):
    """Create a stream; answered by STREAM_INFO, also where it existed (`created` = 0)."""

    type: ClassVar[FrameType] = FrameType.CREATE_STREAM
    name: str
    segment_count: int
    configuration: str


@dataclass(frozen=True, slots=True)
class GetStream(Message):
    """Ask for a stream; answered by STREAM_INFO."""

    type: ClassVar[FrameType] = FrameType.GET_STREAM
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo(Message):
    """A stream and its segments as they are now."""

    type: ClassVar[FrameType] = FrameType.STREAM_INFO
    created: int
    stream_id: int
    created_us: int
    epoch: int
    sealed: int
    name: str
    configuration: str
    segments: list[StreamSegment]


@dataclass(frozen=True, slots=True)
class ListStreams(Message):
    """List streams by name: those with the prefix and the tag (if any), behind `after`; answered by STREAM_LIST."""

    type: ClassVar[FrameType] = FrameType.LIST_STREAMS
    prefix: str
    after: str
    count_max: int
    tag: str = ""


@dataclass(frozen=True, slots=True)
class StreamList(Message):
    """A page of streams; `more` says that further ones follow."""

    type: ClassVar[FrameType] = FrameType.STREAM_LIST
    names: list[StreamName]
    more: int


@dataclass(frozen=True, slots=True)
class SealStream(Message):
    """Seal a stream; answered by STREAM_INFO."""

    type: ClassVar[FrameType] = FrameType.SEAL_STREAM
    name: str


@dataclass(frozen=True, slots=True)
class TruncateStream(Message):
    """Move the start of a stream to a cut; answered by STREAM_INFO."""

    type: ClassVar[FrameType] = FrameType.TRUNCATE_STREAM
    name: str
    positions: list[CutPosition]


@dataclass(frozen=True, slots=True)
class ScaleStream(Message):
    """Replace segments of a stream by new ones that cover the same keys; answered by STREAM_INFO."""

    type: ClassVar[FrameType] = FrameType.SCALE_STREAM
    name: str
    sealed_ids: list[int]
    ranges: list[KeyRangeRecord]


@dataclass(frozen=True, slots=True)
class GetStreamHistory(Message):
    """Ask for the epochs of a stream; answered by STREAM_HISTORY."""

    type: ClassVar[FrameType] = FrameType.GET_STREAM_HISTORY
    name: str


@dataclass(frozen=True, slots=True)
class StreamHistory(Message):
    """The epochs of a stream, the oldest one first; of very many, the newest, as many as fit a frame."""

    type: ClassVar[FrameType] = FrameType.STREAM_HISTORY
    epochs: list[EpochRecord]


@dataclass(frozen=True, slots=True)
class UpdateStream(Message):
    """Give a stream another configuration; answered by STREAM_INFO."""

    type: ClassVar[FrameType] = FrameType.UPDATE_STREAM
    name: str
    configuration: str


@dataclass(frozen=True, slots=True)
class ExplainStream(Message):
    """Ask why a stream is as it is: scaling, retention, cursors. Answered by EXPLANATION."""

    type: ClassVar[FrameType] = FrameType.EXPLAIN_STREAM
    name: str


@dataclass(frozen=True, slots=True)
class Explanation(Message):
    """What the policies of a stream see, decided last, and wait for, as JSON."""

    type: ClassVar[FrameType] = FrameType.EXPLANATION
    facts: str


@dataclass(frozen=True, slots=True)
class SaveCut(Message):
    """Keep a cut of a stream under a name, in place of the one of that kind and name; answered by DONE."""

    type: ClassVar[FrameType] = FrameType.SAVE_CUT
    stream: str
    kind: int
    name: str
    positions: list[SavedPosition]


@dataclass(frozen=True, slots=True)
class ForgetCut(Message):
    """Forget a saved cut; answered by DONE, `changed` = 0 if there was none."""

    type: ClassVar[FrameType] = FrameType.FORGET_CUT
    stream: str
    kind: int
    name: str


@dataclass(frozen=True, slots=True)
class ListCuts(Message):
    """Ask for the saved cuts of a stream; answered by CUT_LIST."""

    type: ClassVar[FrameType] = FrameType.LIST_CUTS
    name: str


@dataclass(frozen=True, slots=True)
class CutList(Message):
    """Saved cuts, by kind and name."""

    type: ClassVar[FrameType] = FrameType.CUT_LIST
    cuts: list[SavedCut]


@dataclass(frozen=True, slots=True)
class DeleteStream(Message):
    """Delete a sealed stream; answered by DONE, `changed` = 0 if there was none."""

    type: ClassVar[FrameType] = FrameType.DELETE_STREAM
    name: str


@dataclass(frozen=True, slots=True)
class SegmentCreated(Message):
    """Record: a segment exists from here on."""

    type: ClassVar[FrameType] = FrameType.SEGMENT_CREATED
    segment_id: int
    created_us: int
    name: str


@dataclass(frozen=True, slots=True)
class SegmentSealed(Message):
    """Record: a segment takes no more appends."""

    type: ClassVar[FrameType] = FrameType.SEGMENT_SEALED
    segment_id: int


@dataclass(frozen=True, slots=True)
class SegmentTruncated(Message):
    """Record: a segment starts at `offset`."""

    type: ClassVar[FrameType] = FrameType.SEGMENT_TRUNCATED
    segment_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class SegmentDeleted(Message):
    """Record: a segment is gone."""

    type: ClassVar[FrameType] = FrameType.SEGMENT_DELETED
    segment_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMerged(Message):
    """Record: the bytes of one segment now stand in another."""

    type: ClassVar[FrameType] = FrameType.SEGMENT_MERGED
    target_id: int
    source_id: int
    target_offset: int
    source_start: int
    size: int
    event_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeSet(Message):
    """Record: an attribute has a value, or none."""

    type: ClassVar[FrameType] = FrameType.ATTRIBUTE_SET
    segment_id: int
    present: int
    key: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterRecorded(Message):
    """Record: a writer was opened under an epoch."""

    type: ClassVar[FrameType] = FrameType.WRITER_RECORDED
    writer_number: int
    writer_epoch: int
    opened_us: int
    writer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WritersExpired(Message):
    """Record: nothing is known any more of what these writers wrote."""

    type: ClassVar[FrameType] = FrameType.WRITERS_EXPIRED
    expired_us: int
    marked: list[int]
    forgotten: list[int]


@dataclass(frozen=True, slots=True)
class UptimeCounted(Message):
    """Record: for how long servers ran, all of them together, by their monotonic clocks."""

    type: ClassVar[FrameType] = FrameType.UPTIME_COUNTED
    uptime_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCreated(Message):
    """Record: a stream and its first segments exist from here on."""

    type: ClassVar[FrameType] = FrameType.STREAM_CREATED
    stream_id: int
    created_us: int
    name: str
    configuration: str
    segments: list[SegmentRangeRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamScaled(Message):
    """Record: an epoch of a stream begins; segments are sealed, their successors exist."""

    type: ClassVar[FrameType] = FrameType.STREAM_SCALED
    stream_id: int
    epoch: int
    scaled_us: int
    cause: str
    sealed_ids: list[int]
    created: list[SegmentRangeRecord]


@dataclass(frozen=True, slots=True)
class StreamUpdated(Message):
    """Record: a stream has another configuration."""

    type: ClassVar[FrameType] = FrameType.STREAM_UPDATED
    stream_id: int
    configuration: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSaved(Message):
    """Record: a cut has a name."""

    type: ClassVar[FrameType] = FrameType.CUT_SAVED
    stream_id: int
    kind: int
    name: str
    saved_us: int
    positions: list[SavedPosition]


@dataclass(frozen=True, slots=True)
class CutForgotten(Message):
    """Record: a cut has no name any more."""

    type: ClassVar[FrameType] = FrameType.CUT_FORGOTTEN
    stream_id: int
    kind: int
    name: str


@dataclass(frozen=True, slots=True)
class StreamSealed(Message):
    """Record: a stream and all its segments take no more appends."""

    type: ClassVar[FrameType] = FrameType.STREAM_SEALED
    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamTruncated(Message):
    """Record: the segments of a stream start at these positions."""

    type: ClassVar[FrameType] = FrameType.STREAM_TRUNCATED
    stream_id: int
    positions: list[CutPosition]


@dataclass(frozen=True, slots=True)
class StreamDeleted(Message):
    """Record: a stream and its segments are gone."""

    type: ClassVar[FrameType] = FrameType.STREAM_DELETED
    stream_id: int
