"""Catch-up reads: the bytes of a segment that are in tier 2, through the cache.

Pages are fetched whole, verified, and read ahead of sequential readers; see `server.cache`. Footers of chunks are
kept, and their sparse indexes in those of their segments, a bounded number of both. The caller has checked that the
offset is neither truncated nor damaged.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from functools import partial
from typing import Final

from millrace.server.cache import PageCache, PendingRead
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.sparse_index import SparseIndex
from millrace.server.errors import ChunkCorruptError, ChunkNotFoundError, SegmentDamagedError
from millrace.server.tier2 import ChunkFooter, ChunkRecord, ChunkStorage, open_chunk, read_chunk

FOOTERS_COUNT_MAX: Final = 4096
INDEXES_COUNT_MAX: Final = 4096


class CatchUpReader:
    """Reads of tier 2 for all segments of a container. Belongs to one event loop."""

    def __init__(self, *, storage: ChunkStorage, cache: PageCache, indexes_count_max: int = INDEXES_COUNT_MAX) -> None:
        self._storage = storage
        self._cache = cache
        self._footers: OrderedDict[str, ChunkFooter] = OrderedDict()
        # By chunk, while its footer is read: done when it was, whatever came of it.
        self._footer_reads: dict[str, asyncio.Future[None]] = {}
        self._indexes_count_max = indexes_count_max
        # Chunks whose sparse index is loaded into that of their segment, the one that was asked for last at the end.
        self._indexed: OrderedDict[str, tuple[SparseIndex, ChunkRecord]] = OrderedDict()

    def read(self, segment: Segment, offset: int, size_max: int) -> list[memoryview] | PendingRead:
        """Return at least one and up to `size_max` bytes from `offset` on, in pieces: at once, or when awaited.

        Raises, when awaited:
            SegmentDamagedError: the page that holds `offset` is damaged; the rest of the segment is served.
            StorageError: tier 2 failed.
        """
        end = segment.limit_before_damage(offset, segment.flushed_offset)
        size = min(size_max, end - offset)
        return self._cache.read(
            segment.segment_id,
            offset,
            size,
            partial(self._fetch, segment),
            end=end,
            border_after=partial(_chunk_end, segment),
        )

    def forget(self, segment: Segment) -> None:
        """Drop what is cached of a segment that was truncated or deleted."""
        if segment.deleted:
            self._cache.drop_segment(segment.segment_id)
        else:
            self._cache.truncate(segment.segment_id, segment.start_offset)

    async def footer(self, chunk: ChunkRecord) -> ChunkFooter:
        """Return the footer of a chunk, kept for the next time; who asks while it is read waits for it. Safe to cancel.

        Raises:
            StorageError: it is damaged or missing.
        """
        while (reading := self._footer_reads.get(chunk.name)) is not None:
            await asyncio.wait([reading])
        footer = self._footers.get(chunk.name)
        if footer is not None:
            self._footers.move_to_end(chunk.name)
            return footer
        reading = self._footer_reads[chunk.name] = asyncio.get_running_loop().create_future()
        try:
            footer = self._footers[chunk.name] = await open_chunk(self._storage, chunk.name, chunk.size, record=chunk)
        finally:
            del self._footer_reads[chunk.name]
            reading.set_result(None)
        if len(self._footers) > FOOTERS_COUNT_MAX:
            self._footers.popitem(last=False)
        return footer

    async def read_chunk(self, chunk: ChunkRecord, *, offset: int, size: int) -> memoryview:
        """Return verified bytes of a chunk around the cache; see `tier2.read_chunk`. Safe to cancel.

        Raises:
            StorageError: they are damaged or missing.
        """
        footer = await self.footer(chunk)
        try:
            return await read_chunk(self._storage, footer, offset=offset, size=size)
        except ChunkCorruptError:
            # The file may have been replaced since its footer was read: then it is another chunk, which is to be told.
            self._footers.pop(chunk.name, None)
            await self.footer(chunk)
            raise

    async def load_index(self, segment: Segment, start: int, end: int) -> None:
        """Load the sparse indexes of the chunks in [start, end) into that of the segment. Safe to cancel.

        A segment holds one border for each of its chunks, and all of them for those that were asked for last. A chunk
        whose index is damaged is skipped: answers then are earlier than they could be, never wrong.

        Raises:
            StorageError: tier 2 failed.
        """
        for chunk in list(segment.chunks):
            if chunk.start_offset < end and chunk.end_offset > start:
                # A segment that was evicted since, and loaded again, has an index of its own.
                if self._indexed.get(chunk.name, (None,))[0] is segment.index:
                    self._indexed.move_to_end(chunk.name)
                    continue
                try:
                    footer = await self.footer(chunk)
                except (ChunkCorruptError, ChunkNotFoundError):
                    continue
                segment.index.merge(entry for entry in footer.entries() if entry.offset >= segment.start_offset)
                self._indexed[chunk.name] = segment.index, chunk
                if len(self._indexed) > self._indexes_count_max:
                    _, (other, oldest) = self._indexed.popitem(last=False)
                    other.evict(oldest.start_offset, oldest.end_offset)

    async def _fetch(self, segment: Segment, offset: int, size: int) -> memoryview:
        chunk = self._chunk_at(segment, offset)
        try:
            return await self.read_chunk(chunk, offset=offset, size=size)
        except (ChunkCorruptError, ChunkNotFoundError) as error:
            if not segment.deleted and self._chunk_at(segment, offset) != chunk:
                # It was small, and was replaced during the read; what replaced it holds the same bytes.
                return await self._fetch(segment, offset, size)
            raise segment.error(
                SegmentDamagedError, f"bytes at offset {offset} are damaged or missing in tier 2: {error}"
            ) from error

    def _chunk_at(self, segment: Segment, offset: int) -> ChunkRecord:
        chunk = _find_chunk(segment, offset)
        if chunk is None:
            raise segment.error(SegmentDamagedError, f"no chunk has the bytes at offset {offset}")
        return chunk


def _find_chunk(segment: Segment, offset: int) -> ChunkRecord | None:
    place = bisect_right(segment.chunks, offset, key=lambda chunk: chunk.start_offset) - 1
    return segment.chunks[place] if place >= 0 and offset < segment.chunks[place].end_offset else None


def _chunk_end(segment: Segment, offset: int) -> int:
    """Return where the chunk ends that holds an offset; where none does, which reading tells, the segment's end."""
    chunk = _find_chunk(segment, offset)
    return segment.length if chunk is None else chunk.end_offset
