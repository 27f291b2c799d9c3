"""Moves the oldest part of a segment's tail into tier 2, as one chunk or, for a merged segment, as several.

    read the range  ->  encode it in a thread  ->  publish the chunk  ->  let the segment refer to it  ->  drop the tail

A chunk is published before anything refers to it, so a crash in between leaves an orphan and loses nothing.

Owns the payload of chunks, their records and the index entries that go with them. Does not own which segment is due
(`selector`), nor the order with checkpoints: an epoch must be stored before a chunk is published under it (`flusher`).
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Sequence

from millrace.model.checksum import Buffer
from millrace.server.container.container import SegmentContainer
from millrace.server.container.memtable import Extent, LinkedExtent
from millrace.server.container.seek import parts_between
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.container.state.segment import ChunkRecord, Segment
from millrace.server.errors import ChunkCorruptError, ChunkNotFoundError, ServerError
from millrace.server.tier2 import ChunkId, ChunkStorage, IndexEntry, chunk_name, encode_chunk, read_chunk, times_of
from millrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)


class Uploader:
    """Writes chunks of one container under one epoch."""

    def __init__(
        self, container: SegmentContainer, *, storage: ChunkStorage, container_epoch: int, page_size_bytes: int
    ) -> None:
        self._container = container
        self._state = container.state
        self._options = container.options
        self._storage = storage
        self._container_epoch = container_epoch
        self._page_size_bytes = page_size_bytes

    async def upload(self, segments: Sequence[Segment]) -> None:
        """Flush a chunk's worth of each of the segments, a few at the same time. Safe to cancel.

        Damage of one segment keeps no other from being flushed; it is raised at the end.

        Raises:
            SegmentDamagedError: the bytes of a merged segment cannot be read.
            StorageError: tier 2 refused; what was flushed before stays flushed.
        """
        damage: ServerError | None = None
        at_once = self._options.flushes_at_once
        for start in range(0, len(segments), at_once):
            group = [segment for segment in segments[start : start + at_once] if segment.tail]
            results = await asyncio.gather(*map(self._upload, group), return_exceptions=True)
            self._container.relieve()
            for result in results:
                if isinstance(result, ServerError) and result.code is ErrorCode.SEGMENT_DAMAGED:
                    damage = result
                elif isinstance(result, BaseException):
                    raise result
        if damage is not None:
            raise damage

    async def _upload(self, segment: Segment) -> None:
        if not segment.tail:
            return  # truncated or deleted since it was chosen
        first = segment.tail.first
        if isinstance(first, LinkedExtent):
            await self._upload_link(segment, first)
        else:
            await self._upload_extents(segment, segment.tail.head(self._options.chunk_size_bytes_max))

    async def _upload_extents(self, segment: Segment, extents: list[Extent]) -> None:
        """Publish contiguous extents as one chunk, together with the last chunk if that one is small."""
        first, last = extents[0], extents[-1]
        small = self._small_last_chunk(segment, first)
        before: list[memoryview] = []
        index: list[IndexEntry] = []
        if small:
            try:
                before = await self._payload_of(segment, small)
                index = await self._index_of(small)
            except (ChunkCorruptError, ChunkNotFoundError) as error:
                # It stays as it is: damage refuses its own range, and must not delay what follows.
                logger.error("small chunk left aside segment=%s error=%s", segment.name, error)
                small = None
        start = small.start_offset if small else first.offset
        # Taken here, not in the thread: the index changes with every append and truncation.
        index += segment.index.entries(first.offset, last.end)
        if not index or index[0].offset > start:
            index.insert(0, _border(segment, first.offset, events=first.start_events, wall_time_us=first.wall_time_us))
        record = await self._publish(
            segment,
            [*before, *extents],
            start=start,
            end=last.end,
            index=index,
            start_events=small.start_events if small else first.start_events,
            end_events=last.end_events,
            end_wall_time_us=last.wall_time_us,
        )
        if self._is_obsolete(segment, record.end_offset):
            self._state.garbage.add([record.name], delete_after=DeleteAfter.NOW)
            return
        replaced = [small] if small and segment.chunks and segment.chunks[-1] == small else []
        self._state.garbage.add((chunk.name for chunk in replaced), delete_after=DeleteAfter.COPY)
        self._take_over(segment, [record], replaced=replaced)
        # The chunk has the entries now; `CatchUpReader.load_index` loads them when they are asked for.
        segment.index.evict(record.start_offset, record.end_offset)

    async def _upload_link(self, segment: Segment, link: LinkedExtent) -> None:
        """Copy the bytes of a segment that was merged into this one to chunks of this one, and drop that segment."""
        source = self._state.segments[link.source_id]
        source_end = link.source_offset + link.size
        events_before = source.event_count - link.event_count
        borders = source.index.split(link.source_offset, source_end, target_bytes=self._options.chunk_size_bytes_max)
        start, start_events = link.source_offset, link.start_events
        records = []
        for end in [*borders, source_end]:
            near = source.index.floor(end) if end != source_end else None
            end_events = link.end_events if near is None else link.start_events + near.events - events_before
            record = await self._publish(
                segment,
                await self._payload_between(source, start, end),
                start=link.offset + start - link.source_offset,
                end=link.offset + end - link.source_offset,
                index=[
                    _border(
                        segment,
                        link.offset + start - link.source_offset,
                        events=start_events,
                        wall_time_us=link.wall_time_us,
                    )
                ],
                parts=parts_between(self._state.merged, source, start, end),
                start_events=start_events,
                end_events=end_events,
                end_wall_time_us=link.wall_time_us,
            )
            records.append(record)
            start, start_events = end, end_events
        if self._is_obsolete(segment, link.end):
            self._state.garbage.add((record.name for record in records), delete_after=DeleteAfter.NOW)
            return
        # The segment may have been truncated inside of what was merged, before or during the upload.
        needed = [record for record in records if record.end_offset > segment.start_offset]
        self._state.garbage.add(
            (record.name for record in records[: len(records) - len(needed)]), delete_after=DeleteAfter.NOW
        )
        self._take_over(segment, needed)

    @staticmethod
    def _is_obsolete(segment: Segment, end: int) -> bool:
        """Return whether nothing up to `end` is needed any more: the segment was deleted or truncated meanwhile."""
        return segment.deleted or segment.start_offset >= end

    def _take_over(self, segment: Segment, records: list[ChunkRecord], *, replaced: Sequence[ChunkRecord] = ()) -> None:
        """Let the segment refer to its new chunks instead of its tail, and of the chunks that they replace."""
        self._state.replace_chunks(segment, replaced, records)
        self._state.release(segment, records[-1].end_offset, delete_after=DeleteAfter.COPY)
        # Merged segments were deleted with the tail.
        for woken in self._state.take_woken():
            woken.notify()

    def _small_last_chunk(self, segment: Segment, first: Extent) -> ChunkRecord | None:
        """Return the last chunk if it is small and ends where the tail starts: it is written again with the tail."""
        if not segment.chunks:
            return None
        last = segment.chunks[-1]
        if last.length >= self._options.chunk_size_bytes_small or last.end_offset != first.offset:
            return None
        return last

    async def _payload_of(self, segment: Segment, chunk: ChunkRecord) -> list[memoryview]:
        """Return the payload of a chunk, around the cache: it is read once and deleted soon."""
        reader = self._container.reader
        await reader.load_index(segment, chunk.start_offset, chunk.end_offset)
        footer = await reader.footer(chunk)
        pieces, offset = [], chunk.start_offset
        while offset < chunk.end_offset:
            pieces.append(await read_chunk(self._storage, footer, offset=offset, size=chunk.end_offset - offset))
            offset += len(pieces[-1])
        return pieces

    async def _index_of(self, chunk: ChunkRecord) -> list[IndexEntry]:
        """Return the index entries of a chunk with their event times, the first at its start."""
        entries = list((await self._container.reader.footer(chunk)).entries())
        return entries or [IndexEntry(chunk.start_offset, chunk.start_events, 0, *chunk.event_times())]

    async def _payload_between(self, segment: Segment, start: int, end: int) -> list[memoryview]:
        """Return the bytes [start, end) of a segment, from memory or tier 2."""
        pieces = []
        while start < end:
            part = await self._container.read(segment, start, end - start)
            pieces += part
            start += sum(map(len, part))
        return pieces

    async def _publish(
        self,
        segment: Segment,
        payload: Sequence[Extent | memoryview],
        *,
        start: int,
        end: int,
        index: list[IndexEntry],
        parts: Sequence[ChunkRecord | Extent] = (),
        start_events: int,
        end_events: int,
        end_wall_time_us: int,
    ) -> ChunkRecord:
        """Publish the bytes [start, end) of a segment as a chunk; encoded in a thread, as that takes milliseconds.

        Event times are added to the index: those of extents in `payload` to the entry before each, those of `parts`,
        which hold the bytes of a merged segment, to the first.
        """
        assert start < end
        assert index[0].offset == start
        chunk = ChunkId(
            segment_id=segment.segment_id, start_offset=start, length=end - start, container_epoch=self._container_epoch
        )

        def encode() -> list[Buffer]:
            for part in parts:
                index[0] = index[0].widened(part.event_times())
            for piece in payload:
                if isinstance(piece, Extent):
                    place = bisect_right(index, piece.offset, key=lambda entry: entry.offset) - 1
                    index[place] = index[place].widened(piece.event_times())
            return encode_chunk(
                chunk,
                [piece.payload() if isinstance(piece, Extent) else piece for piece in payload],
                index=index,
                start_events=start_events,
                end_events=end_events,
                end_wall_time_us=end_wall_time_us,
                page_size=self._page_size_bytes,
            )

        pieces = await asyncio.to_thread(encode)
        name = chunk_name(chunk)
        await self._storage.publish(name, pieces)
        times = times_of(index)
        return ChunkRecord(
            start_offset=start,
            length=end - start,
            name=name,
            size=sum(map(len, pieces)),
            start_events=start_events,
            end_events=end_events,
            end_wall_time_us=end_wall_time_us,
            timestamp_us_min=times.min_us,
            timestamp_us_max=times.max_us,
        )


def _border(segment: Segment, offset: int, *, events: int, wall_time_us: int) -> IndexEntry:
    """Return the index entry of a border that may not be in the index of its segment.

    If the clock was set back, its time may be earlier than that of entries before it which a chunk holds by now.
    """
    near = segment.index.floor(offset)
    return IndexEntry(offset, events, wall_time_us if near is None else max(wall_time_us, near.wall_time_us))
