"""Compression of whole event blocks: zstd where density matters, lz4 where speed does.

Both packages are optional (`pip install millrace[compression]`) and are imported when a block asks for them. How blocks
are decompressed is `millrace.wire.compression`.
"""

from enum import IntEnum

from millrace.wire.checksum import Buffer
from millrace.wire.schema.block import COMPRESSION_LZ4, COMPRESSION_NONE, COMPRESSION_ZSTD


class Compression(IntEnum):
    """How a writer compresses its blocks."""

    NONE = COMPRESSION_NONE
    ZSTD = COMPRESSION_ZSTD
    LZ4 = COMPRESSION_LZ4


def compress(compression: Compression, data: Buffer) -> bytes:
    """Return `data` compressed.

    Raises:
        ModuleNotFoundError: the package of that compression is not installed.
    """
    if compression is Compression.ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=3).compress(data)
    assert compression is Compression.LZ4
    import lz4.frame

    return bytes(lz4.frame.compress(data, content_checksum=False, store_size=True))
