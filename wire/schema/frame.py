"""The frame, the unit of the protocol. Messages, which are the bodies of frames, are declared in `wire.messages`.

All numbers are little-endian. A connection carries frames in both directions, one after the other. Each frame is
a header of 24 bytes and a body whose layout is named by `type`:

    offset size field
    0      4    length        bytes of the whole frame, this field included
    4      4    checksum      CRC-32C of bytes 8 to `length`, started with `length` as its initial value
    8      1    type          number of the message
    9      1    flags         DATA: bit 0 = at the tail, bit 1 = end of segment; BEGIN_TRANSACTION, ADD_PARTS: bit 0 =
                              no reply is wanted; all others are 0 and refused otherwise
    10     2    reserved      0
    12     4    event_count   events in an append; 0 elsewhere
    16     8    request_id    chosen by the client, from 1, strictly increasing; a reply repeats it; 0 is a notice

The checksum starts from the length because a flipped length otherwise moves the end of what is covered. It is before
what it covers, so that one call over one contiguous slice computes it.

An append has a fixed header of 64 bytes and is stored in the log exactly as it came:

    24     8    segment_id
    32     8    writer_number     0 = no writer: not deduplicated
    40     8    event_number      number of the first event, from 1; 0 without a writer; below 2^63 to the last event
    48     8    expected_offset   the length that the segment must have, or -1
    56     4    writer_epoch      0 without a writer
    60     4    reserved          0
    64     ...  payload           1 byte to 16 MiB

A sequenced append has a header of 88 bytes, which begins like that of an append:

    64     8    first_sequence    from 0; sequences are given by the caller, and ascend from event to event
    72     8    last_sequence     at least `event_count` - 1 above the first
    80     8    stored_below      everything that the writer wrote below it is stored; at most `first_sequence`
    88     ...  payload           1 byte to 16 MiB

The first frame of a client is HELLO, the first of the server its HELLO_REPLY (or an ERROR_REPLY); neither is above
16 KiB, so that unknown peers get little memory, and so that TLS, whose first bytes would be a longer length, is told
apart. Appends of one connection to one segment are applied in order. They are answered by APPEND_ACK, cumulative over
the connection in the order of request ids, or by an ERROR_REPLY each. All other requests get exactly one reply with
their request id, but for those that ask for none, and for SUBSCRIBE, whose request id names a subscription that answers
with any number of DATA frames until its end of segment, an ERROR_REPLY or UNSUBSCRIBE. CREDIT and UNSUBSCRIBE repeat
that id. HELLO, PING and PONG need no id of their own.

Types below 128 cross the wire. Types from 128 on are records of decisions: they are written to the log by the
server, as frames of the same form, and are refused from the network.

Example, a PING with request id 7:

    18 00 00 00 9d 34 ee e1 04 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00
"""

from construct import Const, Int8ul, Int16ul, Int32ul, Int64ul, Struct

from millrace.wire.limits import FRAME_HEADER_SIZE_BYTES

FrameHeader = Struct(
    "length" / Int32ul,
    "checksum" / Int32ul,
    "type" / Int8ul,
    "flags" / Int8ul,
    "reserved" / Const(0, Int16ul),
    "event_count" / Int32ul,
    "request_id" / Int64ul,
)

assert FrameHeader.sizeof() == FRAME_HEADER_SIZE_BYTES
