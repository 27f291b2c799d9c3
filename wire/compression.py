"""Decompression of event blocks: zstd and lz4, each by an optional package (`pip install millrace[compression]`).

What is decompressed is bounded by the size that the header of the block names, whatever the data says.
"""

from millrace.wire.schema.block import COMPRESSION_LZ4, COMPRESSION_ZSTD

from .checksum import Buffer
from .errors import CodecError

_STRUCTURE = "EventBlock"


def decompress(compression: int, data: Buffer, *, size_bytes: int) -> bytes:
    """Return what was compressed; padding behind it is ignored.

    Raises:
        CodecError: it does not hold exactly `size_bytes`, or the compression is unknown.
        ModuleNotFoundError: the package of that compression is not installed.
    """
    if compression == COMPRESSION_ZSTD:
        result = _decompress_zstd(data, size_bytes)
    elif compression == COMPRESSION_LZ4:
        result = _decompress_lz4(data, size_bytes)
    else:
        raise CodecError(_STRUCTURE, "compression", f"{compression} is unknown")
    if len(result) != size_bytes:
        raise CodecError(_STRUCTURE, "columns", f"{len(result)} bytes were compressed, the header says {size_bytes}")
    return result


def _decompress_zstd(data: Buffer, size_bytes: int) -> bytes:
    import zstandard

    try:
        # The frame's own word is compared first: it decides how much zstandard allocates.
        named = zstandard.frame_content_size(data)
        if named != size_bytes:
            raise CodecError(_STRUCTURE, "columns", f"a zstd frame of {named} bytes, the header says {size_bytes}")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_bytes, allow_extra_data=True)
    except zstandard.ZstdError as error:
        raise CodecError(_STRUCTURE, "columns", f"zstd: {error}") from None


def _decompress_lz4(data: Buffer, size_bytes: int) -> bytes:
    import lz4.frame

    try:
        return bytes(lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=size_bytes))
    except RuntimeError as error:
        raise CodecError(_STRUCTURE, "columns", f"lz4: {error}") from None
