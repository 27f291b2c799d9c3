"""Verified reads of chunks: every returned byte matches its checksum and belongs to the expected chunk."""

from collections.abc import AsyncIterator
from typing import Final

from millrace.model.checksum import crc32c
from millrace.server.errors import ChunkCorruptError, ChunkIdentityError
from millrace.wire.limits import KIB, MIB

from .identity import ChunkRecord, check_identity
from .layout import SUMMARY_SIZE_BYTES, ChunkFooter, Summary, decode_footer, decode_summary
from .storage import ChunkStorage

TAIL_SIZE_BYTES: Final = 64 * KIB
"""Read at the end of a chunk for its footer: enough for the tables of 100 MiB, so that usually one read suffices."""

VERIFY_SIZE_BYTES: Final = 4 * MIB
"""Payload bytes that `verify_chunk` holds in memory at once."""


async def open_chunk(storage: ChunkStorage, name: str, size: int, *, record: ChunkRecord | None = None) -> ChunkFooter:
    """Return the footer of a published chunk of `size` bytes. Keep it: it serves any number of reads.

    All reads of a chunk start here, so this is where its identity is checked. A damaged summary is replaced by its
    copy, a damaged index is marked in the footer; neither rejects a byte of payload. Cancelling is safe.

    Args:
        storage: contains the chunk.
        name: of the chunk; it must match the chunk's summary.
        size: bytes of the whole chunk.
        record: the segment's record of the chunk, checked as well; None if nothing refers to it.

    Raises:
        ChunkIdentityError: it is another chunk.
        ChunkCorruptError: both summaries are damaged, or the chunk has another size than they say.
        ChunkNotFoundError: the chunk does not exist.
        StorageError: the medium failed.
    """
    if size < 2 * SUMMARY_SIZE_BYTES:
        raise ChunkCorruptError(name, size, "the file of a chunk ends")
    tail = b""
    footer_damaged = False
    try:
        tail = await _read_exactly(storage, name, offset=max(0, size - TAIL_SIZE_BYTES), end=size)
        offset = size - SUMMARY_SIZE_BYTES
        summary = _summary_of(tail[-SUMMARY_SIZE_BYTES:], name=name, offset=offset, size=size, record=record)
    except ChunkIdentityError:
        raise
    except ChunkCorruptError:
        # The first summary identifies the chunk even in a file of another size.
        header = await _read_exactly(storage, name, offset=0, end=SUMMARY_SIZE_BYTES)
        summary = _summary_of(header, name=name, offset=0, size=size, record=record)
        if not tail:
            raise
        footer_damaged = True
    if summary.tail_size > len(tail):
        tail = await _read_exactly(storage, name, offset=size - summary.tail_size, end=size)
    return decode_footer(tail, summary, name=name, footer_damaged=footer_damaged)


async def read_chunk(storage: ChunkStorage, footer: ChunkFooter, *, offset: int, size: int) -> memoryview:
    """Return verified bytes of the segment from `offset` on, at least one and at most `size`.

    Returns fewer than `size` where the chunk ends or a damaged page begins: damage affects its own pages only, and is
    raised by the read that starts inside it. Whole pages are read and checked, so read 1 MiB or more at a time. The
    view may keep up to two pages more alive than it shows. Cancelling is safe.

    Args:
        storage: contains the chunk.
        footer: of the chunk, from `open_chunk`.
        offset: place in the segment, inside the chunk.
        size: the most bytes to return, at least 1.

    Raises:
        ChunkCorruptError: the page at `offset` is damaged.
        ChunkNotFoundError: the chunk was deleted.
        StorageError: the medium failed.
    """
    chunk = footer.summary
    assert size > 0
    assert chunk.start_offset <= offset < chunk.end_offset
    page_size = chunk.page_size
    start = offset - chunk.start_offset
    end = min(start + size, chunk.length)
    first_page = start // page_size
    pages_start = first_page * page_size
    pages_end = min(-(-end // page_size) * page_size, chunk.length)
    data = memoryview(
        await storage.read(footer.name, offset=SUMMARY_SIZE_BYTES + pages_start, size=pages_end - pages_start)
    )
    for page in range(first_page, -(-pages_end // page_size)):
        page_start = page * page_size
        page_end = min(page_start + page_size, chunk.length)
        content = data[page_start - pages_start : page_end - pages_start]
        if len(content) < page_end - page_start or crc32c(content) != footer.page_checksum(page):
            if page == first_page:
                raise ChunkCorruptError(footer.name, SUMMARY_SIZE_BYTES + page_start)
            end = page_start
            break
    return data[start - pages_start : end - pages_start]


async def verify_chunk(
    storage: ChunkStorage, name: str, size: int, *, record: ChunkRecord | None = None
) -> AsyncIterator[ChunkCorruptError]:
    """Read all of a chunk, and yield everything that is damaged. The arguments are those of `open_chunk`.

    Raises:
        ChunkNotFoundError: the chunk does not exist.
        StorageError: the medium failed.
    """
    try:
        footer = await open_chunk(storage, name, size, record=record)
    except ChunkCorruptError as error:
        yield error
        return
    try:
        header = await _read_exactly(storage, name, offset=0, end=SUMMARY_SIZE_BYTES)
        if _summary_of(header, name=name, offset=0, size=size, record=record) != footer.summary:
            yield ChunkCorruptError(name, 0, "the summary differs from the one at the end,")
    except ChunkCorruptError as error:
        yield error
    chunk = footer.summary
    offset = chunk.start_offset
    while offset < chunk.end_offset:
        try:
            offset += len(await read_chunk(storage, footer, offset=offset, size=VERIFY_SIZE_BYTES))
        except ChunkCorruptError as error:
            yield error
            page = (offset - chunk.start_offset) // chunk.page_size
            offset = chunk.start_offset + (page + 1) * chunk.page_size
    if footer.index is None:
        yield ChunkCorruptError(name, SUMMARY_SIZE_BYTES + chunk.length, "the index does not match its checksum,")
    if footer.footer_damaged:
        yield ChunkCorruptError(name, size - SUMMARY_SIZE_BYTES, "the summary does not match its checksum,")


def _summary_of(data: bytes, *, name: str, offset: int, size: int, record: ChunkRecord | None) -> Summary:
    """Decode a summary, and check its checksum, the identity of the chunk and its size, in this order."""
    summary = decode_summary(data, name=name, offset=offset)
    check_identity(summary, name=name, offset=offset, record=record)
    if summary.chunk_size != size:
        reason = f"{size} bytes where {summary.chunk_size} were published, wrong"
        raise ChunkCorruptError(name, min(size, summary.chunk_size), reason)
    return summary


async def _read_exactly(storage: ChunkStorage, name: str, *, offset: int, end: int) -> bytes:
    data = await storage.read(name, offset=offset, size=end - offset)
    if len(data) != end - offset:
        raise ChunkCorruptError(name, offset + len(data), "the file of a chunk ends")
    return data
