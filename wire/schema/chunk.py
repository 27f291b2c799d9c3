"""The layout of a chunk, the immutable file of tier 2 that holds one range of one segment.

Little-endian. A chunk is, in this order and without gaps (n = index entries, m = pages):

    offset                 size            part
    0                      96              summary
    96                     length          payload: bytes [start_offset, start_offset + length) of the segment
    96 + length            40 * n          sparse index: n entries, ascending
    ... + 40 * n           4 * m           page checksums: u32 each, m = ceil(length / page_size)
    ... + 4 * m            96              summary, the same bytes again

Summary:

    offset  size  field             meaning
    0       4     magic             "MRCK"
    4       2     version           1
    6       2     reserved          0
    8       4     page_size         bytes of the payload that one page checksum covers (the last page may be shorter)
    12      4     container_epoch   epoch of the container that wrote the chunk
    16      8     segment_id
    24      8     start_offset      place in the segment of the first payload byte
    32      8     length            payload bytes, at least 1
    40      8     start_events      events of the segment before the first payload byte
    48      8     end_events        events of the segment before the end of the payload
    56      4     index_count       n
    60      4     index_checksum    CRC-32C of the index entries
    64      8     end_wall_time_us  log wall time of the last append in the payload, Unix microseconds (signed)
    72      8     timestamp_us_min  least event time in the payload, Unix microseconds (signed)
    80      8     timestamp_us_max  greatest event time
    88      4     reserved          0
    92      4     checksum          CRC-32C of bytes 0..92

Index entry:

    offset  size  field         meaning
    0       8     offset        place in the segment of the border between two appends
    8       8     events        events of the segment before that place
    16      8     wall_time_us  log wall time of the append that starts there, kept monotone (signed)
    24      8     timestamp_us_min  least event time from there to the next entry, or the end of the payload (signed)
    32      8     timestamp_us_max  greatest event time

The first entry is at the start of the payload. If no event has a time, the least is 2^63 - 1 and the greatest -2^63;
if the bytes are no event blocks, they may hold anything: the least is -2^63 and the greatest 2^63 - 1.

What the checksums cover. Each part has its own checksum, so that damage makes no other part unreadable: a page
is valid when its CRC-32C equals its entry in the table (a flipped bit in the table therefore refuses one page); the
index is valid when it matches `index_checksum` (it can be derived again from the payload of an event segment);
a summary is valid when it matches its own checksum and the size of the file. Either summary describes the whole
chunk, so losing one loses nothing.

Which chunk it is. Segment, start offset, length and epoch are in the name of the file as well, and the checkpoint has
events and times, too. A chunk is used only if its summary says the same as both: a sound file in the place of another
is refused. An index whose entries do not ascend, or are outside of the payload or its events, is not used.

What a crash can leave: nothing. A chunk is written under a temporary name, synced and renamed, so under its own name
it is whole or absent. A chunk of the wrong size, or one that fails a checksum, was damaged afterwards.

Version 1 is the first.

Example: segment 7, epoch 2, bytes [100, 105) are "hello" (no block), one index entry, events 3 to 4:

    4d52434b 0100 000000000100 02000000 0700000000000000 6400000000000000 0500000000000000
    0300000000000000 0400000000000000 01000000 41932e50
    40420f0000000000 0000000000000080 ffffffffffffff7f 00000000 5aacdb1b
    68656c6c6f
    6400000000000000 0300000000000000 40420f0000000000 0000000000000080 ffffffffffffff7f
    4cbb719a
    4d52434b 0100 000000000100 02000000 0700000000000000 6400000000000000 0500000000000000
    0300000000000000 0400000000000000 01000000 41932e50
    40420f0000000000 0000000000000080 ffffffffffffff7f 00000000 5aacdb1b
"""

from typing import Final

from construct import Const, Int16ul, Int32ul, Int64sl, Int64ul, Struct

CHUNK_MAGIC: Final = int.from_bytes(b"MRCK", "little")
CHUNK_VERSION: Final = 1

ChunkSummary = Struct(
    "magic" / Const(CHUNK_MAGIC, Int32ul),
    "version" / Const(CHUNK_VERSION, Int16ul),
    "reserved" / Const(0, Int16ul),
    "page_size" / Int32ul,
    "container_epoch" / Int32ul,
    "segment_id" / Int64ul,
    "start_offset" / Int64ul,
    "length" / Int64ul,
    "start_events" / Int64ul,
    "end_events" / Int64ul,
    "index_count" / Int32ul,
    "index_checksum" / Int32ul,
    "end_wall_time_us" / Int64sl,
    "timestamp_us_min" / Int64sl,
    "timestamp_us_max" / Int64sl,
    "reserved_end" / Const(0, Int32ul),
    "checksum" / Int32ul,
)

ChunkIndexEntry = Struct(
    "offset" / Int64ul,
    "events" / Int64ul,
    "wall_time_us" / Int64sl,
    "timestamp_us_min" / Int64sl,
    "timestamp_us_max" / Int64sl,
)

PageChecksum = Struct("checksum" / Int32ul)
