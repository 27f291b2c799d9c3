"""The event block: many events laid out as columns. The unit that a writer sends and a segment of a stream stores.

All numbers are little-endian. A block is the payload of one append; its size is a multiple of 8, and so every block of
a segment starts at a multiple of 8 and every column of a block is aligned for Arrow without a copy.

    offset size field
    0      4    magic                "MRBK"
    4      1    version              2
    5      1    flags                bit 0: compressed columns; 1: has keys; 2: some keys are missing;
                                     3: has timestamps; 4: has headers
    6      1    compression          0 none, 1 zstd, 2 lz4 (frame format)
    7      1    reserved             0
    8      4    size                 bytes of the block, header and padding included
    12     4    event_count          1 or more
    16     8    first_event_number   number of the first event of its writer, 0 without a writer
    24     8    timestamp_us_min     Unix microseconds; 0 without timestamps. A reader takes a timestamp outside
    32     8    timestamp_us_max     of both as the nearer of them: the server checks only these.
    40     4    value_size           bytes of the value column
    44     4    key_size             bytes of the key column
    48     4    columns_size         bytes of all columns before compression, padding included
    52     4    checksum             CRC-32C of bytes 0 to 52, then 56 to `size`
    56     ...  columns, each padded with zeros to a multiple of 8:
                value offsets        int32[event_count + 1]
                value bytes          value_size
                key validity         bitmap, least significant bit first (only if some keys are missing)
                key offsets          int32[event_count + 1]    (only if it has keys)
                key bytes            key_size, UTF-8           (only if it has keys)
                timestamps           int64[event_count], Unix microseconds (only if it has timestamps)
                header offsets       int32[event_count + 1]: which entries an event has (only if it has headers, and
                                     so are the four below: an Arrow `Map<utf8, binary>`)
                header name offsets  int32[entries + 1]
                header names         UTF-8
                header value offsets int32[entries + 1]
                header values        bytes

A compressed block holds the compressed columns, padded with zeros to a multiple of 8 (`compressed_size` is not kept:
both compressions know their own end). A block is valid when magic, version, size and checksum hold, the offsets rise
from 0 to the size of their column, and `columns_size` is what the counts demand. The last header offset is the number
of entries; the last offsets of names and values are the sizes of these columns.

Example: two events, `hi` with the key `k` at 1000000 and the header `a` = `1`, and `yo!` without a key or headers at
1000001, the first with number 7:

    4d 52 42 4b 02 1e 00 00 b0 00 00 00 02 00 00 00
    07 00 00 00 00 00 00 00 40 42 0f 00 00 00 00 00
    41 42 0f 00 00 00 00 00 05 00 00 00 01 00 00 00
    78 00 00 00 57 ec 1b 40 00 00 00 00 02 00 00 00
    05 00 00 00 00 00 00 00 68 69 79 6f 21 00 00 00
    01 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00
    01 00 00 00 00 00 00 00 6b 00 00 00 00 00 00 00
    40 42 0f 00 00 00 00 00 41 42 0f 00 00 00 00 00
    00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00
    00 00 00 00 01 00 00 00 61 00 00 00 00 00 00 00
    00 00 00 00 01 00 00 00 31 00 00 00 00 00 00 00
"""

# construct is published without types: how a declaration names its fields is not known.
# pyright: reportOperatorIssue=false

from construct import Const, Int8ul, Int32ul, Int64sl, Int64ul, Struct

BLOCK_MAGIC = b"MRBK"
BLOCK_VERSION = 2
BLOCK_HEADER_SIZE_BYTES = 56

FLAG_COMPRESSED = 1
FLAG_KEYS = 2
FLAG_MISSING_KEYS = 4
FLAG_TIMESTAMPS = 8
FLAG_HEADERS = 16

BlockHeader = Struct(
    "magic" / Const(BLOCK_MAGIC),
    "version" / Const(BLOCK_VERSION, Int8ul),
    "flags" / Int8ul,
    "compression" / Int8ul,
    "reserved" / Const(0, Int8ul),
    "size" / Int32ul,
    "event_count" / Int32ul,
    "first_event_number" / Int64ul,
    "timestamp_us_min" / Int64sl,
    "timestamp_us_max" / Int64sl,
    "value_size" / Int32ul,
    "key_size" / Int32ul,
    "columns_size" / Int32ul,
    "checksum" / Int32ul,
)

assert BlockHeader.sizeof() == BLOCK_HEADER_SIZE_BYTES
