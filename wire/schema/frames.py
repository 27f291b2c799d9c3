"""The protocol: every frame, declared. This is its specification.

All numbers are little-endian. A connection carries frames in both directions, one behind the other. Each frame is
a header of 24 bytes and a body whose layout is named by `type`:

    offset size field
    0      4    length        bytes of the whole frame, this field included
    4      4    checksum      CRC-32C of bytes 8 to `length`, started with `length` as its initial value
    8      1    type          `FrameType`
    9      1    flags         DATA: bit 0 = at the tail, bit 1 = end of segment; all others are 0 and refused otherwise
    10     2    reserved      0
    12     4    event_count   events in an append; 0 elsewhere
    16     8    request_id    chosen by the client, from 1, strictly increasing; a reply repeats it; 0 is a notice

The checksum starts from the length because a flipped length otherwise moves the end of what is covered. It stands in
front of what it covers, so that one call over one contiguous slice computes it.

An append has a fixed header of 64 bytes and is stored in the log exactly as it came:

    24     8    segment_id
    32     8    writer_number     0 = no writer: not deduplicated
    40     8    event_number      number of the first event, from 1; 0 without a writer; below 2^63 to the last event
    48     8    expected_offset   the length that the segment must have, or -1
    56     4    writer_epoch      0 without a writer
    60     4    reserved          0
    64     ...  payload           1 byte to 16 MiB

The first frame of a client is HELLO, the first of the server its HELLO_REPLY (or an ERROR); neither is above 16 KiB, so
that strangers are lent little memory, and so that TLS, whose first bytes would be a longer length, is told apart.
Appends of one connection to one segment are applied in order. They are answered by APPEND_ACK, cumulative over the
connection in the order of request ids, or by an ERROR each. All other requests get exactly one reply with their request
id, except SUBSCRIBE, whose request id names a subscription that answers with any number of DATA frames until its end of
segment, an ERROR or UNSUBSCRIBE. CREDIT and UNSUBSCRIBE repeat that id. HELLO, PING and PONG need no id of their own.

Types below 128 cross the wire. Types from 128 on are records of decisions: they are written to the log by the
server, as frames of the same form, and are refused from the network.

Example, a PING with request id 7:

    18 00 00 00 9d 34 ee e1 04 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00
"""

from construct import (
    Bytes,
    Const,
    GreedyBytes,
    Int8ul,
    Int16ul,
    Int32ul,
    Int64sl,
    Int64ul,
    PascalString,
    Prefixed,
    PrefixedArray,
    Struct,
    Terminated,
)

from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES, FRAME_HEADER_SIZE_BYTES

Text = PascalString(Int16ul, "utf8")
Blob = Prefixed(Int32ul, GreedyBytes)

FrameHeader = Struct(
    "length" / Int32ul,
    "checksum" / Int32ul,
    "type" / Int8ul,
    "flags" / Int8ul,
    "reserved" / Const(0, Int16ul),
    "event_count" / Int32ul,
    "request_id" / Int64ul,
)

AppendHeader = Struct(
    "length" / Int32ul,
    "checksum" / Int32ul,
    "type" / Int8ul,
    "flags" / Int8ul,
    "reserved" / Const(0, Int16ul),
    "event_count" / Int32ul,
    "request_id" / Int64ul,
    "segment_id" / Int64ul,
    "writer_number" / Int64ul,
    "event_number" / Int64ul,
    "expected_offset" / Int64sl,
    "writer_epoch" / Int32ul,
    "reserved_tail" / Const(0, Int32ul),
)

assert FrameHeader.sizeof() == FRAME_HEADER_SIZE_BYTES
assert AppendHeader.sizeof() == APPEND_HEADER_SIZE_BYTES

Hello = Struct(
    "magic" / Const(b"MLRC"),
    "version_min" / Int16ul,
    "version_max" / Int16ul,
    "features" / Int64ul,
    "frame_size_max" / Int32ul,
    "client" / Text,
    "token" / Text,
    Terminated,
)

HelloReply = Struct(
    "magic" / Const(b"MLRC"),
    "version" / Int16ul,
    "features" / Int64ul,
    "frame_size_max" / Int32ul,
    "append_size_max" / Int32ul,
    "appends_in_flight_max" / Int32ul,
    "server_id" / Bytes(16),
    "server" / Text,
    Terminated,
)

ErrorReply = Struct(
    "code" / Int16ul,
    "retriable" / Int8ul,
    "retry_after_ms" / Int32ul,
    "start_offset" / Int64sl,
    "length" / Int64sl,
    "subject" / Text,
    "message" / Text,
    "successors" / PrefixedArray(Int16ul, Int64ul),
    Terminated,
)

Empty = Struct(Terminated)

Throttle = Struct("retry_after_ms" / Int32ul, "reason" / Text, Terminated)

Done = Struct("changed" / Int8ul, Terminated)

AppendAckEntry = Struct(
    "request_id" / Int64ul,  # of the first append of the run
    "offset" / Int64sl,  # of the first byte of the first append of the run; -1: already stored, offset not kept
    "count" / Int32ul,  # appends in the run; their request ids and their bytes follow one another
    "duplicate" / Int32ul,  # 1: all were stored before
)
AppendAck = Struct("entries" / PrefixedArray(Int32ul, AppendAckEntry), Terminated)

CreateSegment = Struct("name" / Text, Terminated)
GetSegment = Struct("segment_id" / Int64ul, "name" / Text, Terminated)
SegmentRequest = Struct("segment_id" / Int64ul, Terminated)
TruncateSegment = Struct("segment_id" / Int64ul, "offset" / Int64ul, Terminated)
MergeSegment = Struct("target_id" / Int64ul, "source_id" / Int64ul, Terminated)

SegmentDescription = Struct(
    "segment_id" / Int64ul,
    "start_offset" / Int64ul,
    "length" / Int64ul,
    "event_count" / Int64ul,
    "created_us" / Int64sl,
    "sealed" / Int8ul,
    "name" / Text,
)
SegmentInfo = Struct(*SegmentDescription.subcons, Terminated)

ListRequest = Struct("prefix" / Text, "after" / Text, "count_max" / Int32ul, Terminated)
ListStreams = Struct("prefix" / Text, "after" / Text, "count_max" / Int32ul, "tag" / Text, Terminated)
SegmentList = Struct("segments" / PrefixedArray(Int32ul, SegmentDescription), "more" / Int8ul, Terminated)

Read = Struct(
    "segment_id" / Int64ul,
    "offset" / Int64ul,
    "size_max" / Int32ul,
    "wait_ms" / Int32ul,
    Terminated,
)
Data = Struct(
    "segment_id" / Int64ul,
    "offset" / Int64ul,
    "length" / Int64ul,  # of the segment, durable, when the reply was made
    "payload" / GreedyBytes,
)
Subscribe = Struct("segment_id" / Int64ul, "offset" / Int64ul, "credit_bytes" / Int32ul, Terminated)
Credit = Struct("credit_bytes" / Int32ul, Terminated)

SetAttribute = Struct(
    "segment_id" / Int64ul,
    "expected_present" / Int8ul,
    "present" / Int8ul,
    "key" / Text,
    "expected" / Blob,
    "value" / Blob,
    Terminated,
)
GetAttribute = Struct("segment_id" / Int64ul, "key" / Text, Terminated)
Attribute = Struct("present" / Int8ul, "value" / Blob, Terminated)

OpenWriter = Struct(
    "writer_id" / Text,
    "segment_ids" / PrefixedArray(Int16ul, Int64ul),
    "start_over" / Int8ul,  # 1: start from nothing where the state of that id has expired, rather than fail
    Terminated,
)
GetWriter = Struct("writer_id" / Text, "segment_ids" / PrefixedArray(Int16ul, Int64ul), Terminated)
WriterState = Struct("segment_id" / Int64ul, "last_event_number" / Int64ul)
WriterOpened = Struct(
    "writer_number" / Int64ul,
    "writer_epoch" / Int32ul,
    "known" / Int8ul,  # 1: it was there before, and its state is kept
    "active_us" / Int64sl,  # its last durable append or open before this, to within a minute; 0: never
    "expired_us" / Int64sl,  # when the state that was kept under its id expired; 0 if it did not
    "states" / PrefixedArray(Int16ul, WriterState),
    Terminated,
)

GetIndex = Struct(
    "segment_id" / Int64ul,
    "start" / Int64ul,
    "end" / Int64ul,
    "spacing_bytes" / Int64ul,
    "count_max" / Int32ul,
    Terminated,
)
Seek = Struct("segment_id" / Int64ul, "wall_time_us" / Int64sl, Terminated)
IndexEntry = Struct("offset" / Int64ul, "events" / Int64ul, "wall_time_us" / Int64sl)
Index = Struct("entries" / PrefixedArray(Int32ul, IndexEntry), Terminated)

CreateStream = Struct("name" / Text, "segment_count" / Int32ul, "configuration" / Text, Terminated)
StreamRequest = Struct("name" / Text, Terminated)
StreamSegment = Struct(
    "segment_id" / Int64ul,
    "low" / Int64ul,  # first place of its key range
    "last" / Int64ul,  # last place of its key range, inclusive: 2^64 does not fit
    "epoch" / Int32ul,  # of the stream, in which the segment came to be
    "sealed_epoch" / Int32ul,  # which replaced it by successors; 0 while it was not
    "start_offset" / Int64ul,
    "length" / Int64ul,
    "event_count" / Int64ul,
    "sealed" / Int8ul,
)
StreamDescription = Struct(
    "stream_id" / Int64ul,
    "created_us" / Int64sl,
    "epoch" / Int32ul,
    "sealed" / Int8ul,
    "name" / Text,
    "configuration" / Text,
    "segments" / PrefixedArray(Int16ul, StreamSegment),
)
StreamInfo = Struct("created" / Int8ul, *StreamDescription.subcons, Terminated)
StreamList = Struct("names" / PrefixedArray(Int32ul, Struct("name" / Text)), "more" / Int8ul, Terminated)
CutPosition = Struct("segment_id" / Int64ul, "offset" / Int64ul)
ScaleStream = Struct(
    "name" / Text,
    "sealed_ids" / PrefixedArray(Int16ul, Int64ul),
    "ranges" / PrefixedArray(Int16ul, Struct("low" / Int64ul, "last" / Int64ul)),
    Terminated,
)
EpochRange = Struct("segment_id" / Int64ul, "low" / Int64ul, "last" / Int64ul)
Epoch = Struct(
    "number" / Int32ul,
    "started_us" / Int64sl,
    "cause" / Text,
    "sealed_ids" / PrefixedArray(Int16ul, Int64ul),
    "created" / PrefixedArray(Int16ul, EpochRange),
)
UpdateStream = Struct("name" / Text, "configuration" / Text, Terminated)
Explanation = Struct("facts" / PascalString(Int32ul, "utf8"), Terminated)  # JSON, for people and scripts

SavedPosition = Struct("segment_id" / Int64ul, "offset" / Int64ul, "event_index" / Int32ul)
SaveCut = Struct(
    "stream" / Text,
    "kind" / Int8ul,  # 1 bookmark, 2 cursor: what lies behind a cursor may be needed still
    "name" / Text,  # among those of its kind
    "positions" / PrefixedArray(Int16ul, SavedPosition),
    Terminated,
)
CutName = Struct("stream" / Text, "kind" / Int8ul, "name" / Text, Terminated)
SavedCut = Struct(
    "kind" / Int8ul,
    "name" / Text,
    "saved_us" / Int64sl,
    "positions" / PrefixedArray(Int16ul, SavedPosition),
)
CutList = Struct("cuts" / PrefixedArray(Int32ul, SavedCut), Terminated)
StreamHistory = Struct("epochs" / PrefixedArray(Int32ul, Epoch), Terminated)
TruncateStream = Struct("name" / Text, "positions" / PrefixedArray(Int16ul, CutPosition), Terminated)

# --- records of decisions: only in the log ---

SegmentCreated = Struct("segment_id" / Int64ul, "created_us" / Int64sl, "name" / Text, Terminated)
SegmentSealed = Struct("segment_id" / Int64ul, Terminated)
SegmentTruncated = Struct("segment_id" / Int64ul, "offset" / Int64ul, Terminated)
SegmentDeleted = Struct("segment_id" / Int64ul, Terminated)
SegmentMerged = Struct(
    "target_id" / Int64ul,
    "source_id" / Int64ul,
    "target_offset" / Int64ul,  # where the first byte of the source now stands
    "source_start" / Int64ul,
    "size" / Int64ul,
    "event_count" / Int64ul,
    Terminated,
)
AttributeSet = Struct("segment_id" / Int64ul, "present" / Int8ul, "key" / Text, "value" / Blob, Terminated)
WriterRecorded = Struct(
    "writer_number" / Int64ul, "writer_epoch" / Int32ul, "opened_us" / Int64sl, "writer_id" / Text, Terminated
)
WritersExpired = Struct(
    "expired_us" / Int64sl,
    "marked" / PrefixedArray(Int32ul, Int64ul),  # writers that leave a mark: named ones
    "forgotten" / PrefixedArray(Int32ul, Int64ul),  # writers, and marks, that leave nothing
    Terminated,
)
UptimeCounted = Struct("uptime_us" / Int64sl, Terminated)
StreamCreated = Struct(
    "stream_id" / Int64ul,
    "created_us" / Int64sl,
    "name" / Text,
    "configuration" / Text,
    "segments" / PrefixedArray(Int16ul, Struct("segment_id" / Int64ul, "low" / Int64ul, "last" / Int64ul)),
    Terminated,
)
StreamScaled = Struct(
    "stream_id" / Int64ul,
    "epoch" / Int32ul,  # the one that begins
    "scaled_us" / Int64sl,
    "cause" / Text,
    "sealed_ids" / PrefixedArray(Int16ul, Int64ul),
    "created" / PrefixedArray(Int16ul, Struct("segment_id" / Int64ul, "low" / Int64ul, "last" / Int64ul)),
    Terminated,
)
StreamUpdated = Struct("stream_id" / Int64ul, "configuration" / Text, Terminated)
CutSaved = Struct(
    "stream_id" / Int64ul,
    "kind" / Int8ul,
    "name" / Text,
    "saved_us" / Int64sl,
    "positions" / PrefixedArray(Int16ul, SavedPosition),
    Terminated,
)
CutForgotten = Struct("stream_id" / Int64ul, "kind" / Int8ul, "name" / Text, Terminated)
StreamSealed = Struct("stream_id" / Int64ul, Terminated)
StreamTruncated = Struct("stream_id" / Int64ul, "positions" / PrefixedArray(Int16ul, CutPosition), Terminated)
StreamDeleted = Struct("stream_id" / Int64ul, Terminated)
