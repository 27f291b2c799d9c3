"""Moves durable bytes to tier 2, stores checkpoints, and lets the log be recycled: in that order, for ever.

A segment is flushed when it has enough unflushed bytes, when they are old enough, or when memory or the log run full. A
chunk is published first; only then does the segment refer to it and let go of its tail; a checkpoint then stores that;
a copy of the checkpoint is published in tier 2; only then may the log forget. A crash between any two steps loses
nothing and stores nothing twice: what the checkpoint does not know is replayed from the log and flushed again, and a
chunk that no checkpoint knows is an orphan.

Tier 2 being full or away stops the flusher, not the server: the tail and the log grow to their bounds, appends are
throttled and then refused, and the flusher tries again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from millrace.server.container.catch_up_reader import CatchUpReader
from millrace.server.container.checkpoint.backup import copy_name, delete_old_copies, publish_copy
from millrace.server.container.checkpoint.rows import CheckpointRows, take_rows
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.memtable import Extent, LinkedExtent
from millrace.server.container.options import ContainerOptions
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.container.state.segment import ChunkRecord, Segment
from millrace.server.errors import (
    CheckpointDamagedError,
    ChunkCorruptError,
    ChunkNotFoundError,
    ServerError,
    ShuttingDownError,
    StorageError,
)
from millrace.server.host.clock import Clock
from millrace.server.tier2 import ChunkId, ChunkStorage, IndexEntry, chunk_name, encode_chunk, read_chunk
from millrace.server.wal import Wal
from millrace.wire.checksum import Buffer
from millrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0
PASS_INTERVAL_S: Final = 0.05
CHECKPOINT_INTERVAL_S_MIN: Final = 0.1
ADDED_COUNT_MAX: Final = 4_000
CHANGED_COUNT_MAX: Final = 50_000
"""With so many new things, or changed ones, a checkpoint is due: until then they are held in memory."""
COPY_PAUSE_S: Final = 0.002


class Flusher:
    """The one background task of a container; `run` is its body."""

    def __init__(
        self,
        *,
        state: ContainerState,
        sequence: Callable[[], int],
        has_failed: Callable[[], bool],
        wal: Wal,
        storage: ChunkStorage,
        reader: CatchUpReader,
        checkpoints: CheckpointStore,
        container_epoch: int,
        page_size_bytes: int,
        options: ContainerOptions,
        clock: Clock,
        read: Callable[[Segment, int, int], Awaitable[list[memoryview]]],
        labels_of: Callable[[str], Iterable[str]],
        on_relief: Callable[[], None],
        stored: tuple[int, int] | None,
    ) -> None:
        self._state = state
        self._sequence = sequence
        self._has_failed = has_failed
        self._wal = wal
        self._storage = storage
        self._reader = reader
        self._checkpoints = checkpoints
        self._container_epoch = container_epoch
        self._page_size_bytes = page_size_bytes
        self._options = options
        self._clock = clock
        self._read = read
        self._labels_of = labels_of
        self._on_relief = on_relief
        # Nothing is published under an epoch before it is stored: the next start takes one above it.
        self._epoch_is_stored = stored is not None
        self._work = asyncio.Event()
        self._checkpoint_lock = asyncio.Lock()
        self._recycled_sequence = 0
        # Sequence of the last checkpoint, and from where the log is needed with it.
        self._saved = stored or (0, 0)
        self._copying: asyncio.Task[None] | None = None
        self._checkpoint_s = clock.monotonic_s()
        self._copied_s = self._checkpoint_s
        self._copy_count = 0
        # Number of the last checkpoint, as the garbage queue counts them.
        self._saved_number = 0
        self._is_ending = False
        self._copy_size_bytes = 0

    def poke(self) -> None:
        """Look whether there is work; called after each batch, so it is quick."""
        if self._state.tail_bytes >= self._options.flush_size_bytes or self._log_is_filling or self._changes_are_many:
            self._work.set()

    async def run(self) -> None:
        """Flush, checkpoint and copy until cancelled, or until something other than the storage fails."""
        try:
            while True:
                await self._wait_for_work()
                self._work.clear()
                pause_s = PASS_INTERVAL_S
                # One failing does not keep the other from being tried: a disk that is too full to flush is relieved by
                # the deletes that follow a checkpoint.
                for name, step in (("flush", self._flush_due), ("checkpoint", self._checkpoint_due)):
                    try:
                        await step()
                    except (ServerError, OSError) as error:
                        logger.warning("%s failed, will retry retry_after_s=%.1f error=%s", name, RETRY_S, error)
                        pause_s = RETRY_S
                if self._copying is not None and self._copying.done():
                    # Whatever nobody foresaw ends this task, too.
                    copying, self._copying = self._copying, None
                    copying.result()
                if self._copy_is_due and self._copying is None:
                    self._copying = asyncio.get_running_loop().create_task(self._copy_in_background(), name="copy")
                # Whoever is throttled sends nothing that could wake us: what is left over is not left until it is old.
                if pause_s == RETRY_S or self._due(everything=False):
                    self._work.set()
                await self._clock.sleep(pause_s)
        finally:
            self._is_ending = True
            if self._copying is not None:
                self._copying.cancel()
                await asyncio.gather(self._copying, return_exceptions=True)

    async def flush(self) -> None:
        """Flush everything there is, and what comes meanwhile.

        Raises:
            StorageError: tier 2 refused; what was flushed before stays flushed.
        """
        while due := self._due(everything=True):
            await self._flush_all_of(due)

    async def checkpoint(self) -> None:
        """Store a checkpoint of the state as it is now.

        Raises:
            StorageError: nothing is lost; the changes go into the next checkpoint.
        """
        async with self._checkpoint_lock:
            if self._has_failed():
                raise StorageError("the container has failed: what it holds may be less than what the log holds")
            state = self._state
            sequence = self._sequence()
            replay_from = min((s.tail.first.sequence for s in state.unflushed.values()), default=sequence + 1)
            rows = take_rows(state, state.take_changes(), labels_of=self._labels_of)
            number = state.garbage.checkpoint_begun()
            self._checkpoint_s = self._clock.monotonic_s()
            try:
                await self._save(rows, sequence=sequence, replay_from=replay_from)
            except BaseException:
                state.give_back()
                raise
            state.stored()
            self._epoch_is_stored = True
            self._saved = (sequence, replay_from)
            self._saved_number = number
            state.garbage.checkpoint_stored(number)
            await self._delete_garbage()

    async def copy(self) -> None:
        """Publish a copy of the last checkpoint in tier 2; recycle the log and delete what only older copies refer to.

        Checkpoints go on meanwhile: a copy of a large one takes long.

        Raises:
            StorageError: no copy was published; nothing was recycled, and nothing deleted.
        """
        checkpoints = self._checkpoints
        async with self._checkpoint_lock:
            sequence, replay_from = self._saved
            number = self._saved_number
            self._copied_s = self._clock.monotonic_s()
            self._copy_size_bytes = await asyncio.to_thread(checkpoints.export)
        try:
            await asyncio.to_thread(self._verify_copy)
            self._copy_count += 1
            name = copy_name(sequence=sequence, container_epoch=self._container_epoch, number=self._copy_count)
            await publish_copy(self._storage, checkpoints, name=name, size=self._copy_size_bytes)
        finally:
            await asyncio.to_thread(checkpoints.remove_copy)
        if replay_from - 1 > self._recycled_sequence:
            self._wal.recycle(replay_from - 1)
            self._recycled_sequence = replay_from - 1
            self._on_relief()
        self._state.garbage.copy_published(number)
        await delete_old_copies(self._storage)
        await self._delete_garbage()

    async def _copy_in_background(self) -> None:
        try:
            await self.copy()
        except (ServerError, OSError) as error:
            logger.warning("copy of the checkpoint failed, will retry retry_after_s=%.1f error=%s", RETRY_S, error)
            await self._clock.sleep(RETRY_S)
        self._work.set()

    def _verify_copy(self) -> None:
        """Verify the copy, and if it is damaged, whether the checkpoint is so; blocks."""
        try:
            self._checkpoints.verify_copy(pause=self._pause_copy)
        except CheckpointDamagedError as error:
            self._checkpoints.verify(pause=self._pause_copy)
            raise StorageError(f"a copy of the checkpoint is damaged, the checkpoint is not: {error}") from error

    def _pause_copy(self) -> None:
        if self._is_ending:
            raise ShuttingDownError("the copy of the checkpoint is not waited for")
        self._clock.pause(COPY_PAUSE_S)

    async def _delete_garbage(self) -> None:
        while (name := self._state.garbage.take()) is not None:
            try:
                await self._storage.delete(name)
            except BaseException:
                self._state.garbage.put_back(name)
                raise

    async def _save(self, rows: CheckpointRows, *, sequence: int, replay_from: int) -> None:
        await asyncio.to_thread(
            self._checkpoints.save,
            rows,
            sequence=sequence,
            replay_from=replay_from,
            container_epoch=self._container_epoch,
        )

    @property
    def _log_is_filling(self) -> bool:
        """Whether bytes should not wait until they are old: more than a quarter of the log's bound is in use."""
        return 4 * self._wal.size_bytes > self._wal.capacity_bytes

    @property
    def _changes_are_many(self) -> bool:
        changes = self._state.changes
        return (
            sum(each.added_count for each in changes) >= ADDED_COUNT_MAX
            or sum(len(each.changed) for each in changes) >= CHANGED_COUNT_MAX
        )

    @property
    def _recycling_pays(self) -> bool:
        """Whether more of the log could be forgotten than a copy of the checkpoint costs, or has to be.

        Soon, because a recycled file is in the memory of the system already: writing it again is several times as fast
        as writing a fresh one (measured 1.4 against 0.3 GB/s).
        """
        full_bytes = self._wal.statistics().full_files * self._wal.file_size_bytes
        return full_bytes > 0 and (full_bytes >= 2 * self._copy_size_bytes or 2 * full_bytes > self._wal.capacity_bytes)

    @property
    def _checkpoint_is_due(self) -> bool:
        if not (any(self._state.changes) or self._state.garbage.waits_for_checkpoint):
            return False
        is_pressing = (self._recycling_pays and self._copying is None) or self._changes_are_many
        age_s = self._clock.monotonic_s() - self._checkpoint_s
        return age_s >= (CHECKPOINT_INTERVAL_S_MIN if is_pressing else self._options.checkpoint_interval_s)

    @property
    def _copy_is_due(self) -> bool:
        _, replay_from = self._saved
        return (replay_from - 1 > self._recycled_sequence and self._recycling_pays) or self._garbage_is_due

    @property
    def _garbage_is_due(self) -> bool:
        age_s = self._clock.monotonic_s() - self._copied_s
        return self._state.garbage.waits_for_copy and age_s >= self._options.garbage_interval_s

    async def _wait_for_work(self) -> None:
        """Return when poked, or when the oldest bytes (or the checkpoint) may have come of age."""
        timeout_s = min(self._options.flush_age_s, self._options.checkpoint_interval_s)
        waiting = asyncio.ensure_future(self._work.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()

    def _due(self, *, everything: bool) -> list[Segment]:
        options = self._options
        segments = list(self._state.unflushed.values())
        if not everything and self._state.tail_bytes <= options.tail_size_bytes_low // 2 and not self._log_is_filling:
            oldest_us = self._clock.unix_us() - int(options.flush_age_s * 1e6)
            segments = [
                segment
                for segment in segments
                if segment.tail.size >= options.flush_size_bytes or segment.tail.first.wall_time_us <= oldest_us
            ]
        return sorted(segments, key=lambda segment: segment.tail.size, reverse=True)

    async def _flush_all_of(self, segments: list[Segment]) -> None:
        """Flush a chunk's worth of each of the segments, a few at the same time.

        Damage of one segment keeps no other from being flushed; it is raised at the end.
        """
        damage: ServerError | None = None
        at_once = self._options.flushes_at_once
        if not self._epoch_is_stored:
            await self.checkpoint()
        for start in range(0, len(segments), at_once):
            group = [segment for segment in segments[start : start + at_once] if segment.tail]
            results = await asyncio.gather(*map(self._flush_segment, group), return_exceptions=True)
            self._on_relief()
            for result in results:
                if isinstance(result, ServerError) and result.code is ErrorCode.SEGMENT_DAMAGED:
                    damage = result
                elif isinstance(result, BaseException):
                    raise result
        if damage is not None:
            raise damage

    async def _flush_due(self) -> None:
        await self._flush_all_of(self._due(everything=False))

    async def _checkpoint_due(self) -> None:
        if self._checkpoint_is_due:
            await self.checkpoint()

    async def _flush_segment(self, segment: Segment) -> None:
        """Publish the first contiguous part of the tail of a segment as one chunk."""
        if not segment.tail:
            return  # truncated or deleted since it was chosen
        if isinstance(segment.tail.first, LinkedExtent):
            await self._flush_link(segment, segment.tail.first)
            return
        extents = segment.tail.head(self._options.chunk_size_bytes_max)
        small = self._small_last_chunk(segment, extents[0])
        payload_before: list[memoryview] = []
        if small:
            try:
                payload_before = await self._payload_of(segment, small)
            except (ChunkCorruptError, ChunkNotFoundError) as error:
                # It stays as it is: what is damaged refuses its own range, and holds nothing up.
                logger.error("small chunk left aside segment=%s error=%s", segment.name, error)
                small = None
        # Here, not in the thread: the index changes with every append and truncation.
        index = segment.index.entries(small.start_offset if small else extents[0].offset, extents[-1].end)
        record, pieces = await asyncio.to_thread(self._encode, segment, small, payload_before, extents, index)
        await self._storage.publish(record.name, pieces)
        if segment.deleted or segment.start_offset >= record.end_offset:
            self._state.garbage.add([record.name], delete_after=DeleteAfter.NOW)
            return
        if small and segment.chunks and segment.chunks[-1] == small:
            segment.chunks.pop()
            self._state.garbage.add([small.name], delete_after=DeleteAfter.COPY)
        segment.chunks.append(record)
        # The chunk has the entries now, and gives them back when they are asked for.
        segment.index.evict(record.start_offset, record.end_offset)
        self._state.segments.changed(segment)
        self._state.release(segment, record.end_offset, delete_after=DeleteAfter.COPY)

    async def _flush_link(self, segment: Segment, link: LinkedExtent) -> None:
        """Copy the bytes of a segment that was merged into this one to chunks of this one, then let go of it."""
        source = self._state.segments[link.source_id]
        events_before = source.event_count - link.event_count
        borders = source.index.split(
            link.source_offset, link.source_offset + link.size, target_bytes=self._options.chunk_size_bytes_max
        )
        ends = [*borders, link.source_offset + link.size]
        start, start_events = link.source_offset, link.start_events
        records = []
        for end in ends:
            pieces = await self._payload_between(source, start, end)
            near = source.index.floor(end) if end != ends[-1] else None
            end_events = link.end_events if near is None else link.start_events + near.events - events_before
            chunk = ChunkId(
                segment_id=segment.segment_id,
                start_offset=link.offset + start - link.source_offset,
                length=end - start,
                container_epoch=self._container_epoch,
            )
            encoded = await asyncio.to_thread(
                encode_chunk,
                chunk,
                pieces,
                index=[],
                start_events=start_events,
                end_events=end_events,
                end_wall_time_us=link.wall_time_us,
                page_size=self._page_size_bytes,
            )
            await self._storage.publish(chunk_name(chunk), encoded)
            records.append(
                ChunkRecord(
                    start_offset=chunk.start_offset,
                    length=chunk.length,
                    name=chunk_name(chunk),
                    size=sum(map(len, encoded)),
                    start_events=start_events,
                    end_events=end_events,
                    end_wall_time_us=link.wall_time_us,
                )
            )
            start, start_events = end, end_events
        if segment.deleted or segment.start_offset >= link.end:
            self._state.garbage.add((record.name for record in records), delete_after=DeleteAfter.NOW)
            return
        segment.chunks += records
        self._state.segments.changed(segment)
        self._state.release(segment, link.end, delete_after=DeleteAfter.COPY)
        for gone in self._state.take_woken():
            gone.notify()

    async def _payload_between(self, segment: Segment, start: int, end: int) -> list[memoryview]:
        pieces = []
        while start < end:
            part = await self._read(segment, start, end - start)
            pieces += part
            start += sum(map(len, part))
        return pieces

    def _small_last_chunk(self, segment: Segment, first: Extent) -> ChunkRecord | None:
        """Return the last chunk if it is small and ends where the tail starts: it is written anew with what follows."""
        if not segment.chunks:
            return None
        last = segment.chunks[-1]
        if last.length >= self._options.chunk_size_bytes_small or last.end_offset != first.offset:
            return None
        return last

    async def _payload_of(self, segment: Segment, chunk: ChunkRecord) -> list[memoryview]:
        await self._reader.load_index(segment, chunk.start_offset, chunk.end_offset)
        footer = await self._reader.footer(chunk)
        pieces, offset = [], chunk.start_offset
        while offset < chunk.end_offset:
            pieces.append(await read_chunk(self._storage, footer, offset=offset, size=chunk.end_offset - offset))
            offset += len(pieces[-1])
        return pieces

    def _encode(
        self,
        segment: Segment,
        small: ChunkRecord | None,
        payload_before: list[memoryview],
        extents: list[Extent],
        index: list[IndexEntry],
    ) -> tuple[ChunkRecord, list[Buffer]]:
        """Build the chunk: in a thread, since stripping and checksumming take some milliseconds."""
        start = small.start_offset if small else extents[0].offset
        start_events = small.start_events if small else extents[0].start_events
        end = extents[-1].end
        chunk = ChunkId(
            segment_id=segment.segment_id,
            start_offset=start,
            length=end - start,
            container_epoch=self._container_epoch,
        )
        pieces = encode_chunk(
            chunk,
            [*payload_before, *(extent.payload() for extent in extents)],
            index=index,
            start_events=start_events,
            end_events=extents[-1].end_events,
            end_wall_time_us=extents[-1].wall_time_us,
            page_size=self._page_size_bytes,
        )
        record = ChunkRecord(
            start_offset=start,
            length=end - start,
            name=chunk_name(chunk),
            size=sum(map(len, pieces)),
            start_events=start_events,
            end_events=extents[-1].end_events,
            end_wall_time_us=extents[-1].wall_time_us,
        )
        return record, pieces
