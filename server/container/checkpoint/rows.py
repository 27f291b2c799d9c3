"""The state of a container as rows of a checkpoint, and back.

A checkpoint writes the rows of what changed since the one before, so that a container of very many segments pays for
the busy ones only.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from millrace.model.key_range import KeyRange
from millrace.model.lineage import StreamPart
from millrace.server.container.memtable import LinkedExtent
from millrace.server.container.state.container_state import Changes, ContainerState
from millrace.server.container.state.segment import ChunkRecord, DamagedRange, Segment, WriterProgress
from millrace.server.container.state.stream import Stream
from millrace.server.container.state.writer import Writer
from millrace.server.tier2 import IndexEntry
from millrace.wire import messages as m

from .schema import (
    ATTRIBUTES,
    CHUNKS,
    CUTS,
    DAMAGES,
    LABELS,
    LINKS,
    PROGRESS,
    SEGMENTS,
    STREAMS,
    WRITERS,
    Key,
    Row,
    Table,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRows:
    """What one checkpoint changes in the stored tables. Removals come first, then additions."""

    # Keys, or leading parts of keys: then all rows that begin so are removed.
    removed: Mapping[Table, Sequence[Key]]
    added: Mapping[Table, Sequence[Row]]
    # Writers of which all rows of progress are removed.
    forgotten_writers: Sequence[int]
    # The chunks of each changed segment, as stored and as wanted; which differ is found out off the event loop.
    chunks: Mapping[int, tuple[Sequence[ChunkRecord] | None, Sequence[ChunkRecord]]]
    # How many rows there must be afterwards, of the tables where the state knows it.
    counts: Mapping[Table, int]
    next_id: int
    uptime_us: int


def take_rows(
    state: ContainerState, changes: Changes, *, labels_of: Callable[[str], Iterable[str]] = lambda configuration: ()
) -> CheckpointRows:
    """Return copies of what `changes` names, as it is now and durable.

    Called in the event loop, in the same step that takes the changes and chooses the sequence number of the checkpoint.
    Takes time for what changed only, but for the references to the chunks of each changed segment.

    Args:
        labels_of: by which labels a stream of some configuration is to be found.
    """
    segments, streams, writers = (
        changes.segments.changed.values(),
        changes.streams.changed.values(),
        changes.writers.changed.values(),
    )
    gone: list[Key] = [(number,) for number in changes.segments.gone]
    gone_writers: list[Key] = [(number,) for number in changes.writers.gone]
    gone_streams: list[Key] = [(number,) for number in changes.streams.gone]
    changed: list[Key] = [(segment.segment_id,) for segment in segments]
    changed_streams: list[Key] = [(stream.stream_id,) for stream in streams]
    return CheckpointRows(
        removed={
            SEGMENTS: gone + changed,
            CHUNKS: gone,
            DAMAGES: gone + changed,
            LINKS: gone + changed,
            PROGRESS: [*gone, *changes.progress],
            ATTRIBUTES: [*gone, *changes.attributes],
            WRITERS: [*gone_writers, *((writer.writer_number,) for writer in writers)],
            STREAMS: gone_streams + changed_streams,
            LABELS: gone_streams + changed_streams,
            CUTS: gone_streams + changed_streams,
        },
        added={
            SEGMENTS: [_segment_row(segment) for segment in segments],
            DAMAGES: [row for segment in segments for row in _damage_rows(segment)],
            LINKS: [_link_row(segment.link) for segment in segments if segment.link is not None],
            PROGRESS: list(_progress_rows(state, changes.progress)),
            ATTRIBUTES: list(_attribute_rows(state, changes.attributes)),
            WRITERS: [_writer_row(writer) for writer in writers],
            STREAMS: [_stream_row(stream) for stream in streams],
            LABELS: [
                (stream.stream_id, label, stream.name)
                for stream in streams
                for label in sorted(labels_of(stream.configuration))
            ],
            CUTS: [
                (stream.stream_id, cut.kind, cut.saved_us, cut.name, json.dumps(cut.positions))
                for stream in streams
                for cut in stream.cuts.values()
            ],
        },
        forgotten_writers=sorted(changes.forgotten_writers),
        chunks=changes.chunks,
        counts={SEGMENTS: len(state.segments), WRITERS: len(state.writers), STREAMS: len(state.streams)},
        next_id=changes.next_id,
        uptime_us=state.uptime_us,
    )


def chunk_differences(
    segment_id: int, *, stored: Sequence[ChunkRecord] | None, wanted: Sequence[ChunkRecord]
) -> tuple[list[Key], list[Row]]:
    """Return the keys to remove and the rows to add, in this order, to make the wanted chunks of the stored ones.

    If it is not known which are stored, all of them are removed.

    Chunks are dropped at the front by truncation and come at the end by flushes, so the two lists share a middle part,
    which is left alone. What follows the first chunk that was replaced (by compaction) is written anew.
    """
    if stored is None:
        return [(segment_id,)], [_chunk_row(segment_id, chunk) for chunk in wanted]
    first = 0
    if wanted:
        while first < len(stored) and stored[first].start_offset < wanted[0].start_offset:
            first += 1
    shared = 0
    for shared_stored, shared_wanted in zip(islice(stored, first, None), wanted, strict=False):
        # Nearly always the very same object, which is the quicker comparison.
        if shared_stored is not shared_wanted and shared_stored != shared_wanted:
            break
        shared += 1
    # The keys of new ones are removed too: a save whose outcome was not known may have stored them.
    others = (*stored[:first], *stored[first + shared :], *wanted[shared:])
    return (
        [(segment_id, chunk.start_offset) for chunk in others],
        [_chunk_row(segment_id, chunk) for chunk in wanted[shared:]],
    )


def _segment_row(segment: Segment) -> Row:
    return (
        segment.segment_id,
        segment.stream_id,
        segment.created_us,
        segment.start_offset,
        segment.length,
        segment.event_count,
        segment.flushed_offset,
        int(segment.sealed),
        segment.name,
    )


def _writer_row(writer: Writer) -> Row:
    return (
        writer.writer_number,
        writer.epoch,
        writer.opened_us,
        writer.active_us,
        writer.expired_us,
        writer.seen_uptime_us,
        writer.writer_id,
    )


def _link_row(link: LinkedExtent) -> Row:
    return (
        link.source_id,
        link.target_id,
        link.offset,
        link.size,
        link.source_offset,
        link.event_count,
        link.end_events,
        link.sequence,
        link.wall_time_us,
    )


def _chunk_row(segment_id: int, chunk: ChunkRecord) -> Row:
    return (
        segment_id,
        chunk.start_offset,
        chunk.length,
        chunk.size,
        chunk.start_events,
        chunk.end_events,
        chunk.end_wall_time_us,
        chunk.name,
    )


def _damage_rows(segment: Segment) -> Iterator[Row]:
    for position, damage in enumerate(segment.damages):
        yield (segment.segment_id, position, damage.start, damage.end, damage.source)


def _progress_rows(state: ContainerState, pairs: Iterable[tuple[int, int]]) -> Iterator[Row]:
    for segment_id, writer_number in pairs:
        segment = state.segments.get(segment_id)
        if segment is not None and (progress := segment.writers.get(writer_number)) is not None:
            yield (segment_id, writer_number, progress.durable, progress.last_offset)


def _attribute_rows(state: ContainerState, pairs: Iterable[tuple[int, str]]) -> Iterator[Row]:
    for segment_id, key in pairs:
        segment = state.segments.get(segment_id)
        if segment is not None and (value := segment.attributes.get(key)) is not None:
            yield (segment_id, key, value)


def _range_texts(low: int, last: int) -> tuple[str, str]:
    return f"{low:016x}", f"{last:016x}"


def _stream_row(stream: Stream) -> Row:
    parts = [
        (part.segment_id, *_range_texts(part.key_range.low, part.key_range.last), part.epoch, part.sealed_epoch)
        for part in stream.parts
    ]
    epochs = [
        (
            epoch.number,
            epoch.started_us,
            epoch.cause,
            list(epoch.sealed_ids),
            [(segment_id, *_range_texts(low, last)) for segment_id, low, last in epoch.created],
        )
        for epoch in stream.epochs
    ]
    return (
        stream.stream_id,
        stream.created_us,
        stream.epoch,
        int(stream.sealed),
        stream.name,
        stream.configuration,
        json.dumps(parts, separators=(",", ":")),
        json.dumps(epochs, separators=(",", ":")),
    )


def segment_of_rows(
    row: Row,
    *,
    chunks: Iterable[Row],
    damages: Iterable[Row],
    progress: Iterable[Row],
    attributes: Iterable[Row],
) -> Segment:
    """Return a segment from its rows, in the order of their keys; its admitted view is the durable one.

    Its index has the borders of its chunks.
    """
    segment_id, stream_id, created_us, start_offset, length, event_count, flushed_offset, sealed, name = row
    segment = Segment(segment_id=segment_id, name=name, created_us=created_us, stream_id=stream_id)
    segment.start_offset = start_offset
    segment.length = segment.next_offset = length
    segment.event_count = event_count
    segment.flushed_offset = flushed_offset
    segment.sealed = bool(sealed)
    segment.chunks = [
        ChunkRecord(start_offset, length, name, size, start_events, end_events, end_wall_time_us)
        for _, start_offset, length, size, start_events, end_events, end_wall_time_us, name in chunks
    ]
    if segment.chunks:
        segment.stored_chunks = tuple(segment.chunks)
        segment.index.merge(chunk_borders(segment.chunks, created_us=created_us))
    segment.damages = [DamagedRange(start, end, source) for _, _, start, end, source in damages]
    segment.writers = {
        writer_number: WriterProgress(last_event_number=last_event_number, last_offset=last_offset)
        for _, writer_number, last_event_number, last_offset in progress
    }
    segment.attributes = {key: value for _, key, value in attributes}
    return segment


def writer_of_row(row: Row) -> Writer:
    """Return a writer from its row."""
    writer_number, epoch, opened_us, active_us, expired_us, seen_uptime_us, writer_id = row
    return Writer(
        writer_number=writer_number,
        writer_id=writer_id,
        epoch=epoch,
        opened_us=opened_us,
        active_us=active_us,
        expired_us=expired_us,
        seen_uptime_us=seen_uptime_us,
    )


def stream_of_rows(row: Row, *, cuts: Iterable[Row]) -> Stream:
    """Return a stream from its rows."""
    stream_id, created_us, epoch, sealed, name, configuration, parts, epochs = row
    stream = Stream(stream_id=stream_id, name=name, configuration=configuration, created_us=created_us)
    stream.epoch = stream.admitted_epoch = epoch
    stream.sealed = bool(sealed)
    stream.parts = [
        StreamPart(
            segment_id=segment_id,
            key_range=KeyRange.inclusive(int(low, 16), int(last, 16)),
            epoch=epoch,
            sealed_epoch=sealed_epoch,
        )
        for segment_id, low, last, epoch, sealed_epoch in json.loads(parts)
    ]
    stream.epochs = [
        m.EpochRecord(
            number=number,
            started_us=started_us,
            cause=cause,
            sealed_ids=sealed_ids,
            created=[
                m.SegmentRangeRecord(segment_id, int(low, 16), int(last, 16)) for segment_id, low, last in created
            ],
        )
        for number, started_us, cause, sealed_ids, created in json.loads(epochs)
    ]
    for _, kind, saved_us, cut_name, positions in cuts:
        stream.cuts[kind, cut_name] = m.SavedCut(
            kind, cut_name, saved_us, [m.SavedPosition(*position) for position in json.loads(positions)]
        )
    return stream


def link_of_row(row: Row) -> LinkedExtent:
    """Return where the bytes of a merged segment are from its row."""
    source_id, target_id, offset, size, source_offset, event_count, end_events, sequence, wall_time_us = row
    return LinkedExtent(
        target_id=target_id,
        offset=offset,
        size=size,
        source_id=source_id,
        source_offset=source_offset,
        event_count=event_count,
        sequence=sequence,
        end_events=end_events,
        wall_time_us=wall_time_us,
    )


def chunk_borders(chunks: Sequence[ChunkRecord], *, created_us: int) -> list[IndexEntry]:
    """Return index entries for the borders of chunks: the start of each, and the end of the last.

    The time of an entry is that of the last append before it, so it is a little early, which an index may be: still no
    append of a later time starts before the entry. The one at the end keeps what follows from being dated earlier.
    """
    borders = []
    wall_time_us = min(created_us, chunks[0].end_wall_time_us)
    end = 0
    for chunk in chunks:
        borders.append(IndexEntry(chunk.start_offset, chunk.start_events, wall_time_us))
        # The clock may have gone back.
        wall_time_us = max(wall_time_us, chunk.end_wall_time_us)
        end = chunk.end_events
    borders.append(IndexEntry(chunks[-1].end_offset, end, wall_time_us))
    return borders
