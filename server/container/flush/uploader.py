"""Moves the oldest part of a segment's tail into tier 2, as one chunk or, for a large merged segment, as several.

    read the range  ->  encode it in a thread  ->  publish the chunk  ->  let the segment refer to it  ->  drop the tail

A chunk is published before anything refers to it, so a crash in between leaves an orphan and loses nothing.

Owns the payload of chunks, their records and the index entries that go with them. Does not own which segment is due
(`selector`), nor the order with checkpoints: an epoch must be stored before a chunk is published under it (`flusher`).
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from millrace.model.checksum import Buffer
from millrace.server.container.container import SegmentContainer
from millrace.server.container.memtable import Extent, LinkedExtent
from millrace.server.container.merged_borders import Border, borders_between, moved
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.sparse_index import SPACING_BYTES
from millrace.server.errors import (
    ChunkCorruptError,
    ChunkNotFoundError,
    NoSpaceError,
    SegmentDamagedError,
    SegmentNotFoundError,
    StorageError,
)
from millrace.server.tier2 import (
    ChunkId,
    ChunkRecord,
    ChunkStorage,
    IndexEntry,
    chunk_name,
    encode_chunk,
    times_of,
)

logger = logging.getLogger(__name__)

LINKS_JOINED_COUNT_MAX: Final = 1000
"""So many merged segments are copied in one step: each costs the event loop some ten microseconds."""


class Uploader:
    """Writes chunks of one container under its epoch."""

    def __init__(
        self, container: SegmentContainer, *, storage: ChunkStorage, container_epoch: int, page_size_bytes: int
    ) -> None:
        self._container = container
        self._state = container.state
        self._options = container.options
        self._storage = storage
        # The flusher sets another one when a checkpoint was stored under it.
        self.container_epoch = container_epoch
        self._page_size_bytes = page_size_bytes
        # One call after the other: two would publish the same tail twice.
        self._lock = asyncio.Lock()

    def candidates(self) -> list[Segment]:
        """Return the segments whose tails are to be flushed: not those whose bytes are copied with their target."""
        return list(self._state.unmerged.values())

    async def upload(self, segments: Sequence[Segment]) -> None:
        """Flush a chunk's worth of each of the segments, a few at the same time. Safe to cancel.

        Waits for another call that is under way. A merged segment that is damaged is left where it is, and what follows
        it is flushed by the next call.

        Raises:
            ChunkExistsError: somebody has published under the epoch.
            StorageError: tier 2 refused; what was flushed before stays flushed.
        """
        at_once = self._options.flushes_at_once
        async with self._lock:
            for start in range(0, len(segments), at_once):
                group = segments[start : start + at_once]
                results = await asyncio.gather(*map(self._upload, group), return_exceptions=True)
                self._container.room_changed()
                for result in results:
                    if isinstance(result, BaseException):
                        raise result

    async def _upload(self, segment: Segment) -> None:
        if not segment.tail:
            return  # truncated or deleted since it was chosen
        first = segment.tail.first
        try:
            if isinstance(first, LinkedExtent) and not self._is_small(first):
                await self._upload_link(segment, first)
            else:
                await self._upload_head(segment)
        except SegmentNotFoundError:
            # A truncation or a delete took what was merged, and deleted the segment whose bytes were copied.
            if segment.tail and segment.tail.first is first:
                raise
        except SegmentDamagedError as error:
            if not isinstance(first, LinkedExtent):
                raise
            if segment.tail and segment.tail.first is first:
                logger.error("merged segment not copied segment=%s error=%s", segment.name, error)
                self._state.set_aside(segment, first)

    async def _upload_head(self, segment: Segment) -> None:
        """Publish the oldest extents as one chunk; as a smaller one while tier 2 has no room for it."""
        size_max = self._options.chunk_size_bytes_max
        while segment.tail:
            head = segment.tail.head(size_max, joins=self._is_small, links_count_max=LINKS_JOINED_COUNT_MAX)
            size_max = sum(extent.size for extent in head) // 2
            try:
                await self._upload_extents(segment, head)
            except NoSpaceError:
                if len(head) == 1 or size_max < self._options.flush_size_bytes // 16:
                    raise
            else:
                return

    def _is_small(self, link: LinkedExtent) -> bool:
        """Return whether what was merged is copied together with what is beside it: many commits make few chunks."""
        source = self._state.segments[link.source_id]
        is_whole = source.length >= link.source_offset + link.size
        return is_whole and link.size < self._options.chunk_size_bytes_small

    async def _upload_extents(self, segment: Segment, extents: list[Extent | LinkedExtent]) -> None:
        """Publish contiguous extents as one chunk, together with the last chunks if those are small."""
        first = last = extents[0]
        payload: list[Extent | memoryview] = []
        borders: list[Border] = []
        inner: list[IndexEntry] = []
        for extent in extents:
            if isinstance(extent, Extent):
                payload.append(extent)
                borders.append(_start_of(extent))
            else:
                try:
                    pieces, found = await self._content_of_link(extent)
                except (SegmentDamagedError, SegmentNotFoundError, StorageError):
                    if extent is first:
                        raise
                    break  # what is before it is flushed without it
                payload += pieces
                borders += found
                inner += [entry for entry, _ in found]
            last = extent
        small, before, index = await self._content_of_small(segment, first.offset, size=last.end - first.offset)
        # Taken here, not in the thread: the index changes with every append and truncation.
        index += segment.index.entries(first.offset, last.end)
        if not index or index[0].offset > first.offset:
            index.insert(0, _border(segment, first.offset, events=first.start_events, wall_time_us=first.wall_time_us))
        _add_distant(index, inner)
        record = await self._publish(
            segment,
            [*before, *payload],
            end=last.end,
            index=index,
            borders=borders,
            end_events=last.end_events,
            end_wall_time_us=last.wall_time_us,
        )
        # A truncation may have dropped some of them meanwhile.
        replaced = [chunk for chunk in small if segment.chunk_from(chunk.start_offset) == chunk]
        self._take_over(segment, [record], replaced=replaced)

    async def _content_of_link(self, link: LinkedExtent) -> tuple[Sequence[Extent | memoryview], list[Border]]:
        """Return the bytes of a segment that was merged, and the borders in them as those of its target."""
        source = self._state.merged.get(link.source_id)
        if source is None:
            raise SegmentNotFoundError("the merged segment is not needed any more")
        start, end = link.source_offset, link.source_offset + link.size
        # As a rule it is small, and all of it is in memory.
        extents = source.tail.exactly(start, end)
        if extents is not None and not source.damages:
            return extents, moved([_start_of(extent) for extent in extents], link, source)
        # First, since reading the bytes fails if the segment is deleted meanwhile.
        borders = await borders_between(self._container.reader, self._state.merged, source, start, end)
        return await self._payload_between(source, start, end), moved(borders, link, source)

    async def _upload_link(self, segment: Segment, link: LinkedExtent) -> None:
        """Copy the bytes of a segment that was merged into this one to chunks of this one, and drop that segment."""
        source = self._state.segments[link.source_id]
        source_end = link.source_offset + link.size
        if source.length < source_end:
            raise SegmentDamagedError(
                f"its bytes [{link.offset}, {link.end}) should be those of {source.name} up to {source_end}, "
                f"which ends at {source.length}",
                subject=segment.name,
                start_offset=segment.start_offset,
                length=segment.length,
            )
        # By how much offsets, and counts of events before them, are higher here than in the source.
        more_bytes, more_events = link.offset - link.source_offset, link.end_events - source.event_count
        cuts = [
            IndexEntry(link.source_offset, source.event_count - link.event_count, 0),
            *source.index.split(link.source_offset, source_end, target_bytes=self._options.chunk_size_bytes_max),
            IndexEntry(source_end, source.event_count, 0),
        ]
        records: list[ChunkRecord] = []
        for start, end in pairwise(cuts):
            place, events = start.offset + more_bytes, start.events + more_events
            try:
                found = await borders_between(
                    self._container.reader, self._state.merged, source, start.offset, end.offset
                )
                payload = await self._payload_between(source, start.offset, end.offset)
            except SegmentNotFoundError:
                self._take_over(segment, records)
                raise
            except SegmentDamagedError:
                self._state.garbage.add((record.name for record in records), delete_after=DeleteAfter.NOW)
                raise
            borders = moved(found, link, source)
            index = [_border(segment, place, events=events, wall_time_us=link.wall_time_us)]
            _add_distant(index, [entry for entry, _ in borders])
            record = await self._publish(
                segment,
                payload,
                end=end.offset + more_bytes,
                index=index,
                borders=borders,
                end_events=end.events + more_events,
                end_wall_time_us=link.wall_time_us,
            )
            records.append(record)
        self._take_over(segment, records)

    def _take_over(self, segment: Segment, records: list[ChunkRecord], *, replaced: Sequence[ChunkRecord] = ()) -> None:
        """Let the segment refer to its new chunks instead of its tail, and of the chunks that they replace.

        It may have been deleted meanwhile, or truncated, also inside of what was merged: then some are not needed.
        """
        needed = [] if segment.deleted else [each for each in records if each.end_offset > segment.start_offset]
        unneeded = records[: len(records) - len(needed)]
        self._state.garbage.add((record.name for record in unneeded), delete_after=DeleteAfter.NOW)
        if not needed:
            return
        self._state.garbage.add((chunk.name for chunk in replaced), delete_after=DeleteAfter.COPY)
        self._state.replace_chunks(segment, replaced, needed)
        self._state.release(segment, needed[-1].end_offset, delete_after=DeleteAfter.COPY)
        for record in needed:
            # The chunk has the entries now; `CatchUpReader.load_index` loads them when they are asked for.
            segment.index.evict(record.start_offset, record.end_offset)
        # Merged segments were deleted with the tail.
        for woken in self._state.take_woken():
            woken.notify()

    def _small_last_chunks(self, segment: Segment, end: int, *, size: int) -> list[ChunkRecord]:
        """Return the small chunks before `end` that are written again with the `size` bytes that follow there.

        Of those at the end, from the first one on that is no longer than all that follows it: so whatever is written
        again is then in a chunk of at least twice the length, and each one left is longer than all after it.
        """
        chosen_count = 0
        for count, chunk in enumerate(reversed(segment.chunks), 1):
            if chunk.length >= self._options.chunk_size_bytes_small or chunk.end_offset != end:
                break
            if chunk.length <= size:
                chosen_count = count
            size += chunk.length
            end = chunk.start_offset
        return segment.chunks[len(segment.chunks) - chosen_count :]

    async def _content_of_small(
        self, segment: Segment, end: int, *, size: int
    ) -> tuple[list[ChunkRecord], list[memoryview], list[IndexEntry]]:
        """Return the small chunks that are written again with what follows at `end`, their bytes and their index."""
        chunks: list[ChunkRecord] = []
        payload: list[memoryview] = []
        index: list[IndexEntry] = []
        for chunk in self._small_last_chunks(segment, end, size=size):
            try:
                pieces, entries = await self._content_of(chunk)
            except (ChunkCorruptError, ChunkNotFoundError) as error:
                # It stays as it is, with those before: damage refuses its own range, and must not delay what follows.
                logger.error("small chunk skipped segment=%s error=%s", segment.name, error)
                chunks, payload, index = [], [], []
                continue
            chunks.append(chunk)
            payload += pieces
            index += entries
        return chunks, payload, index

    async def _content_of(self, chunk: ChunkRecord) -> tuple[list[memoryview], list[IndexEntry]]:
        """Return the payload of a chunk, around the cache, as it is read once and deleted soon, and its index."""
        reader = self._container.reader
        pieces, offset = [], chunk.start_offset
        while offset < chunk.end_offset:
            pieces.append(await reader.read_chunk(chunk, offset=offset, size=chunk.end_offset - offset))
            offset += len(pieces[-1])
        entries = list((await reader.footer(chunk)).entries())
        return pieces, entries or [IndexEntry(chunk.start_offset, chunk.start_events, 0, *chunk.event_times())]

    async def _payload_between(self, segment: Segment, start: int, end: int) -> list[memoryview]:
        """Return the bytes [start, end) of a segment, from memory or tier 2."""
        assert end <= segment.length
        pieces = []
        while start < end:
            part = await self._container.reads.read(segment, start, end - start)
            pieces += part
            start += sum(map(len, part))
        return pieces

    async def _publish(
        self,
        segment: Segment,
        payload: Sequence[Extent | memoryview],
        *,
        end: int,
        index: list[IndexEntry],
        borders: Sequence[Border],
        end_events: int,
        end_wall_time_us: int,
    ) -> ChunkRecord:
        """Publish the bytes from the first entry of `index` to `end` as a chunk of a segment.

        Encoded in a thread, as that takes milliseconds. The event times from each of the borders on are added to the
        index entry at or before it.
        """
        start, start_events = index[0].offset, index[0].events
        assert start < end
        chunk = ChunkId(
            segment_id=segment.segment_id, start_offset=start, length=end - start, container_epoch=self.container_epoch
        )

        def encode() -> list[Buffer]:
            _add_event_times(index, borders)
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


def _start_of(extent: Extent) -> Border:
    """Return the border where an extent begins."""
    return IndexEntry(extent.offset, extent.start_events, extent.wall_time_us), extent


def _border(segment: Segment, offset: int, *, events: int, wall_time_us: int) -> IndexEntry:
    """Return the index entry of a border that may not be in the index of its segment.

    If the clock was set back, its time may be earlier than that of entries before it which a chunk holds by now.
    """
    near = segment.index.floor(offset)
    return IndexEntry(offset, events, wall_time_us if near is None else max(wall_time_us, near.wall_time_us))


def _add_distant(index: list[IndexEntry], entries: Iterable[IndexEntry]) -> None:
    """Add those of some entries to an index that are far from the one before them; event times are added later."""
    for entry in entries:
        before = index[place := _place_before(index, entry.offset)]
        if entry.offset - before.offset >= SPACING_BYTES:
            wall_time_us = max(entry.wall_time_us, before.wall_time_us)
            index.insert(place + 1, IndexEntry(entry.offset, entry.events, wall_time_us))


def _add_event_times(index: list[IndexEntry], borders: Iterable[Border]) -> None:
    """Add the event times from each border on to the entry at or before it.

    A thread that does so holds the interpreter, which the event loop wants, and large appends have a border for every
    64 KiB. So the offsets are listed once, for a search that calls nothing: it takes half as long.
    """
    offsets = [entry.offset for entry in index]
    for border, held in borders:
        place = bisect_right(offsets, border.offset) - 1
        index[place] = index[place].widened(held.event_times())


def _place_before(index: list[IndexEntry], offset: int) -> int:
    """Return the place of the last entry at or before an offset."""
    return bisect_right(index, offset, key=lambda entry: entry.offset) - 1
