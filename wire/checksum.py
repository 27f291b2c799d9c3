"""The one checksum of wire and disk: CRC-32C (Castagnoli), computed by the processor's own instruction."""

from crc32c import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview


def crc32c(data: Buffer, initial: int = 0) -> int:
    """Return the CRC-32C of `data`, continued from `initial` (the checksum of what came before, or a seed).

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    return _crc32c(data, initial)
