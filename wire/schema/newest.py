"""The layout of the file `newest`, which names the newest log file.

Little-endian. The file has two slots of 4096 bytes, since disks write whole blocks of 512 or 4096: a write of one that
fails halfway leaves the other. A slot is these 28 bytes and zeros, or all zeros if it was never used:

    offset  size  field             meaning
    0       4     magic             "MRWN"
    4       2     version           1
    6       2     reserved          0
    8       8     file_number       of the log file
    16      8     salt              of the log file, in this use of it
    24      4     checksum          CRC-32C of bytes 0..24

A slot whose checksum does not hold names nothing. Of two that name a file the higher number counts: numbers of log
files only ascend. A log file is named, and this file synced, before the first batch is written to the log file.

What a crash can leave. The file gets its name when its first slot is durable. After that, each write goes to the slot
that does not count; if it is torn, the file before is still named, and the newer one holds no batch.

Example: file 3, with the salt 0123456789abcdef:

    4d52574e 0100 0000 0300000000000000 efcdab8967452301 8691457e
"""

from typing import Final

from construct import Const, Int16ul, Int32ul, Int64ul, Struct

NEWEST_SLOT_MAGIC: Final = b"MRWN"
NEWEST_SLOT_SIZE_BYTES: Final = 4096
NEWEST_CHECKSUM_END: Final = 4 + 2 + 2 + 8 + 8
"""Where the bytes end that the checksum of a slot covers."""

NewestSlot = Struct(
    "magic" / Const(NEWEST_SLOT_MAGIC),
    "version" / Const(1, Int16ul),
    "reserved" / Const(0, Int16ul),
    "file_number" / Int64ul,
    "salt" / Int64ul,
    "checksum" / Int32ul,
)
