"""The layout of a part of a copy of the checkpoint in tier 2.

Little-endian. A copy is an SQLite file, the checkpoint as it was, cut into parts of 8 MiB. Each part is a file of its
own: this header, then the bytes of the part. The header says to which copy, container and server the part belongs, so
that a part in a wrong place is noticed. Its name says the same:

    offset  size  field             meaning
    0       4     magic             "MRCP"
    4       2     version           1
    6       2     reserved          0
    8       16    server_id         identity of the data folder (a UUID)
    24      4     container_id
    28      4     container_epoch   of the checkpoint
    32      8     sequence          of the last log batch that the checkpoint contains
    40      8     replay_from       the log is needed with it from this sequence on
    48      4     number            of the copy, from 1, ascending in the epoch
    52      4     part              from 0
    56      4     part_count
    60      4     reserved          0
    64      8     size              bytes that follow the header
    72      4     content_checksum  CRC-32C of these bytes
    76      4     checksum          CRC-32C of bytes 0..76

Of two copies, or a copy and the checkpoint itself, the newer one is that with the higher sequence, then epoch, then
replay_from: each of them only ascends.

What a crash can leave: only the first parts. A copy with a missing part is not used.

Example: the only part of copy 3 at sequence 7, 5 bytes:

    4d524350 0100 0000 000102030405060708090a0b0c0d0e0f 00000000 02000000 0700000000000000 0500000000000000
    03000000 00000000 01000000 00000000 0500000000000000 4cbb719a dc0487bf
    68656c6c6f
"""

from typing import Final

from construct import Bytes, Const, Int16ul, Int32ul, Int64ul, Struct

COPY_PART_MAGIC: Final = b"MRCP"

CopyPartHeader = Struct(
    "magic" / Const(COPY_PART_MAGIC),
    "version" / Const(1, Int16ul),
    "reserved" / Const(0, Int16ul),
    "server_id" / Bytes(16),
    "container_id" / Int32ul,
    "container_epoch" / Int32ul,
    "sequence" / Int64ul,
    "replay_from" / Int64ul,
    "number" / Int32ul,
    "part" / Int32ul,
    "part_count" / Int32ul,
    "reserved_end" / Const(0, Int32ul),
    "size" / Int64ul,
    "content_checksum" / Int32ul,
    "checksum" / Int32ul,
)
