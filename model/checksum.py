"""The one checksum of wire and disk: CRC-32C (Castagnoli), computed by the processor's own instruction."""

from typing import Final, Protocol

from crc32c import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview


class _Checksum(Protocol):
    def __call__(self, data: Buffer, initial: int = 0, /) -> int: ...


crc32c: Final[_Checksum] = _crc32c
"""Return the CRC-32C of `data`, continued from `initial` (the checksum of what came before, or a seed).

The function of the library itself: one of ours around it would cost as much as 100 bytes of checksum.

>>> hex(crc32c(b"123456789"))
'0xe3069283'
"""
