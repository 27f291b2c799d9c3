"""Compression of whole event blocks: zstd where density matters, lz4 where speed does.

Both packages are optional (`pip install millrace[compression]`) and are imported when a block asks for them. What is
decompressed is bounded by the size that the block's header names, and that by the largest append.
"""

from enum import IntEnum

from millrace.wire.checksum import Buffer
from millrace.wire.schema.block import COMPRESSION_LZ4, COMPRESSION_NONE, COMPRESSION_ZSTD

from .errors import BlockCorruptError


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


def decompress(compression: Compression, data: Buffer, *, size_bytes: int) -> bytes:
    """Return what was compressed; padding behind it is ignored.

    Raises:
        BlockCorruptError: it does not hold exactly `size_bytes`.
        ModuleNotFoundError: the package of that compression is not installed.
    """
    result = (
        _decompress_zstd(data, size_bytes) if compression is Compression.ZSTD else _decompress_lz4(data, size_bytes)
    )
    if len(result) != size_bytes:
        raise BlockCorruptError(f"{len(result)} bytes were compressed, the header says {size_bytes}")
    return result


def _decompress_zstd(data: Buffer, size_bytes: int) -> bytes:
    import zstandard

    try:
        # The frame's own word is compared first: it decides how much zstandard allocates.
        named = zstandard.frame_content_size(data)
        if named != size_bytes:
            raise BlockCorruptError(f"a zstd frame of {named} bytes, the header says {size_bytes}")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_bytes, allow_extra_data=True)
    except zstandard.ZstdError as error:
        raise BlockCorruptError(f"zstd: {error}") from None


def _decompress_lz4(data: Buffer, size_bytes: int) -> bytes:
    import lz4.frame

    try:
        return bytes(lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=size_bytes))
    except RuntimeError as error:
        raise BlockCorruptError(f"lz4: {error}") from None
