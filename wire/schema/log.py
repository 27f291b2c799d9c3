"""The layout of a log file, the unit of the write-ahead log (tier 1).

Little-endian. A log file is one file header in a block of 4096 bytes, then batches. A batch starts at a multiple of 8
and never spans files; the bytes between the end of a batch and that border are not part of anything.

File header (64 bytes; the rest of its block is zero):

    offset  size  field             meaning
    0       4     magic             "MRWL"
    4       2     version           2
    6       2     flags             1 = recycled: bytes after the last batch may be from an earlier use of the file;
                                    2 = fence: the object ends an epoch of a log in an object store
    8       8     container_id      the container whose log this is
    16      16    server_id         identity of the data folder (a UUID)
    32      8     file_number       from 1, ascending; also in the name of the file
    40      8     salt              random, new with each use of the file
    48      8     sequence_floor    every batch of the file has a higher sequence
    56      4     reserved          0
    60      4     checksum          CRC-32C of bytes 0..60, in every version

In an object store each batch is an object of its own, after a file header without the rest of its block. Its file
number is the epoch of the owner, and its floor the last batch that the owner had acknowledged when it made the object.
A fence is a header alone (`server/wal/log_objects.py`).

Batch (`table` = 64 + 80 * run_count):

    offset  size  field             meaning
    0       4     magic             "MRWB"
    4       4     size              bytes of header, run table and frames
    8       4     checksum          CRC-32C of bytes 12..size, seeded with `size`
    12      4     table_checksum    CRC-32C of bytes 16..table
    16      8     sequence          from 1, +1 with each batch of the log, across files
    24      8     salt              of the file
    32      4     previous_checksum `checksum` of the batch before, 0 before the first
    36      4     run_count
    40      8     wall_time_us      clock of the log when the batch was built, Unix microseconds (signed)
    48      16    reserved          0
    64      80*n  run table         one entry per run
    table   ...   frames            the frames of the runs, in the order of the table, without gaps

Run entry. A run is some whole frames of one segment, exactly as they arrived, or one control record:

    offset  size  field             meaning
    0       8     segment_id        0 for a control record
    8       8     offset            place in the segment of the first payload byte
    16      4     frames_size       bytes of the frames, their headers included
    20      4     frame_count
    24      4     frame_size        size of each frame if all have the same, else 0
    28      4     event_count
    32      8     writer_number     0 = none
    40      8     last_event_number
    48      4     writer_epoch
    52      1     kind              0 = appends, 1 = control record
    53      3     reserved          0
    56      8     first_sequence    of a sequenced append, which is a run of its own; -1 otherwise
    64      8     last_sequence     -1 if not sequenced
    72      8     stored_below      -1 if not sequenced

When a batch is valid: its checksum holds, its salt is the one of the file, its sequence follows the one before (in this
file or the last), and its `previous_checksum` is the checksum of that one. The table has a checksum of its own, so
that a flipped bit among the frames leaves readable which ranges of which segments it hit.

What a crash can leave. One batch is written at a time, and the next only after its sync, so at most the last one
can be incomplete, in any subset of its sectors. What follows the last batch is zeros, remains of that batch, or,
in a recycled file, batches under an older salt. A valid batch of the same salt *after* an invalid one is not what
a crash leaves: that is corruption. A batch of no runs is written when the log is closed: it proves that the one before
was acknowledged, which the last batch of a log cannot prove of itself.

Version 1 had run entries without sequences; it is not read.

Example: the header of file 3 of container 1, then batch 9 with one run of a control record of 8 bytes:

    4d52574c 0200 0000 0100000000000000 000102030405060708090a0b0c0d0e0f 0300000000000000
    efcdab8967452301 0700000000000000 00000000 14b2331e
    4d525742 98000000 f574aaf2 b95dc635 0900000000000000 efcdab8967452301 0df0fe0f 01000000
    40420f0000000000 00000000000000000000000000000000
    0000000000000000 0000000000000000 08000000 01000000 08000000 00000000 0000000000000000
    0000000000000000 00000000 01 000000 ffffffffffffffff ffffffffffffffff ffffffffffffffff
    6d696c6c72616365
"""

from typing import Final

from construct import Bytes, Const, Int8ul, Int16ul, Int32ul, Int64sl, Int64ul, Struct

LOG_FILE_MAGIC: Final = int.from_bytes(b"MRWL", "little")
LOG_FILE_VERSION: Final = 2
LOG_FILE_RECYCLED: Final = 1
"""Flag of a file whose space was used before, under another salt."""
LOG_FILE_FENCE: Final = 2
"""Flag of an object that ends an epoch of a log in an object store, and consists of a header only."""
LOG_FILE_HEADER_SIZE_BYTES: Final = 64
LOG_FILE_HEADER_BLOCK_BYTES: Final = 4096
"""Where the batches start: after the file header and the zeros that fill its block."""

BATCH_MAGIC: Final = int.from_bytes(b"MRWB", "little")
BATCH_ALIGNMENT_BYTES: Final = 8
BATCH_CHECKSUM_START: Final = 4 + 4 + 4
"""First byte of a batch that its checksum covers: after magic, size and the checksum itself."""
TABLE_CHECKSUM_START: Final = BATCH_CHECKSUM_START + 4
"""First byte of a batch that its table checksum covers."""

LogFileHeader = Struct(
    "magic" / Const(LOG_FILE_MAGIC, Int32ul),
    "version" / Int16ul,
    "flags" / Int16ul,
    "container_id" / Int64ul,
    "server_id" / Bytes(16),
    "file_number" / Int64ul,
    "salt" / Int64ul,
    "sequence_floor" / Int64ul,
    "reserved" / Const(0, Int32ul),
    "checksum" / Int32ul,
)

BatchHeader = Struct(
    "magic" / Const(BATCH_MAGIC, Int32ul),
    "size" / Int32ul,
    "checksum" / Int32ul,
    "table_checksum" / Int32ul,
    "sequence" / Int64ul,
    "salt" / Int64ul,
    "previous_checksum" / Int32ul,
    "run_count" / Int32ul,
    "wall_time_us" / Int64sl,
    "reserved" / Const(bytes(16)),
)

RunEntry = Struct(
    "segment_id" / Int64ul,
    "offset" / Int64ul,
    "frames_size" / Int32ul,
    "frame_count" / Int32ul,
    "frame_size" / Int32ul,
    "event_count" / Int32ul,
    "writer_number" / Int64ul,
    "last_event_number" / Int64ul,
    "writer_epoch" / Int32ul,
    "kind" / Int8ul,
    "reserved" / Const(bytes(3)),
    "first_sequence" / Int64sl,
    "last_sequence" / Int64sl,
    "stored_below" / Int64sl,
)
