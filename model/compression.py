"""Compression of whole event blocks: zstd for density, lz4 for speed.

Each needs a package of the extra `compression`, imported when a block uses it. The decompressed size is bounded by the
header of the block, whatever the data claims.
"""

from enum import IntEnum
from typing import Final

from .checksum import Buffer
from .errors import BlockCorruptError
from .extras import needs

EXTRA: Final = "compression"


class Compression(IntEnum):
    """The compression of a writer's blocks; the number is in their headers."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2


def check_installed(compression: Compression) -> None:
    """Raise MissingExtraError unless blocks can be compressed so."""
    if compression is not Compression.NONE:
        compress(compression, b"")


def compress(compression: Compression, data: Buffer) -> bytes:
    """Return `data` compressed.

    Raises:
        MissingExtraError: the package of that compression is not installed.
    """
    if compression is Compression.ZSTD:
        with needs(EXTRA):
            import zstandard

        return zstandard.ZstdCompressor(level=3).compress(data)
    assert compression is Compression.LZ4
    with needs(EXTRA):
        import lz4.frame

    return bytes(lz4.frame.compress(data, content_checksum=False, store_size=True))


def decompress(compression: int, data: Buffer, *, size_bytes: int) -> bytes:
    """Decompress data; padding after it is ignored.

    Raises:
        BlockCorruptError: the size is not exactly `size_bytes`, or the compression is unknown.
        MissingExtraError: the package of that compression is not installed.
    """
    if compression == Compression.ZSTD:
        result = _decompress_zstd(data, size_bytes)
    elif compression == Compression.LZ4:
        result = _decompress_lz4(data, size_bytes)
    else:
        raise BlockCorruptError(f"compression {compression} is unknown")
    if len(result) != size_bytes:
        raise BlockCorruptError(f"columns: {len(result)} bytes were compressed, but the header says {size_bytes}")
    return result


def _decompress_zstd(data: Buffer, size_bytes: int) -> bytes:
    with needs(EXTRA):
        import zstandard

    try:
        # The size in the frame is compared first: zstandard allocates that much.
        named = zstandard.frame_content_size(data)
        if named != size_bytes:
            raise BlockCorruptError(f"columns: a zstd frame of {named} bytes, but the header says {size_bytes}")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_bytes, allow_extra_data=True)
    except zstandard.ZstdError as error:
        raise BlockCorruptError(f"columns: zstd: {error}") from None


def _decompress_lz4(data: Buffer, size_bytes: int) -> bytes:
    with needs(EXTRA):
        import lz4.frame

    try:
        return bytes(lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=size_bytes))
    except RuntimeError as error:
        raise BlockCorruptError(f"columns: lz4: {error}") from None
