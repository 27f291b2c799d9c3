"""Chunks for the tests of tier 2."""

from collections.abc import Sequence

from millrace.model.checksum import Buffer, crc32c
from millrace.server.tier2 import ChunkFooter, ChunkId, ChunkStorage, IndexEntry, chunk_name, encode_chunk, open_chunk
from millrace.server.tier2.layout import SUMMARY_SIZE_BYTES
from millrace.wire.schema.chunk import ChunkSummary


def chunk_id(length: int, *, segment_id: int = 7, start_offset: int = 1000, epoch: int = 2) -> ChunkId:
    return ChunkId(segment_id=segment_id, start_offset=start_offset, length=length, container_epoch=epoch)


def encoded(
    payload: Sequence[Buffer], *, start_offset: int = 1000, page_size: int = 512, index: Sequence[IndexEntry] = ()
) -> tuple[str, bytes]:
    """Return the name and the bytes of a chunk of segment 7."""
    chunk = chunk_id(sum(map(len, payload)), start_offset=start_offset)
    pieces = encode_chunk(
        chunk, payload, index=index, start_events=10, end_events=20, end_wall_time_us=5_000_000, page_size=page_size
    )
    return chunk_name(chunk), b"".join(pieces)


async def published(
    storage: ChunkStorage, payload: bytes, *, page_size: int = 512, index: Sequence[IndexEntry] = ()
) -> ChunkFooter:
    """Publish a chunk of segment 7 and open it."""
    name, data = encoded([payload], page_size=page_size, index=index)
    await storage.publish(name, [data])
    return await open_chunk(storage, name, len(data))


def flipped(data: bytes, *, offset: int, bit: int = 0) -> bytes:
    """Return `data` with one bit flipped."""
    damaged = bytearray(data)
    damaged[offset] ^= 1 << bit
    return bytes(damaged)


def forged(data: bytes, index: bytes = b"", **fields: int) -> bytes:
    """Return a chunk whose summaries say something else, and match their checksums; its index may be another one."""
    summary = ChunkSummary.parse(data[:SUMMARY_SIZE_BYTES])
    summary.update(fields)
    body = data[SUMMARY_SIZE_BYTES:-SUMMARY_SIZE_BYTES]
    if index:
        at = summary.length
        assert len(index) == 40 * summary.index_count
        summary.index_checksum = crc32c(index)
        body = body[:at] + index + body[at + len(index) :]
    summary.checksum = crc32c(ChunkSummary.build(summary)[:-4])
    encoded_summary: bytes = ChunkSummary.build(summary)
    return encoded_summary + body + encoded_summary
