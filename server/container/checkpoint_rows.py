"""The state of a container as rows of a checkpoint, and back.

A checkpoint writes the rows of what changed since the one before, so that a container of very many segments pays for
the busy ones only.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from millrace.server.tier2 import IndexEntry
from millrace.wire import frames as f

from .checkpoint_tables import (
    ATTRIBUTES,
    CHUNKS,
    CUTS,
    DAMAGES,
    EPOCHS,
    LINKS,
    PROGRESS,
    SEGMENTS,
    STREAM_SEGMENTS,
    STREAMS,
    WRITERS,
    Key,
    Row,
    Table,
)
from .segment import ChunkRecord, DamagedRange, Segment, WriterProgress
from .state import Changes, ContainerState, Writer
from .stream import Stream, StreamPart
from .tail import LinkedExtent


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRows:
    """What one checkpoint changes in the stored tables. Removals come first, then additions."""

    # Keys, or leading parts of keys: then all rows that begin so are removed.
    removed: Mapping[Table, Sequence[Key]]
    added: Mapping[Table, Sequence[Row]]
    # All chunks of each changed segment; which of them are new is found out by the store, off the event loop.
    chunks: Mapping[int, Sequence[ChunkRecord]]
    # How many rows there must be afterwards, of the tables where the state knows it.
    counts: Mapping[Table, int]
    next_id: int
    uptime_us: int


def everything(state: ContainerState) -> Changes:
    """Return changes that name all there is, for a first checkpoint in place of one that was set aside."""
    return Changes(
        segments=set(state.segments),
        writers=set(state.writers),
        streams=set(state.streams),
        progress={(segment.segment_id, number) for segment in state.segments.values() for number in segment.writers},
        attributes={(segment.segment_id, key) for segment in state.segments.values() for key in segment.attributes},
    )


def take_rows(state: ContainerState, changes: Changes) -> CheckpointRows:
    """Return copies of what `changes` names, as it is now and durable.

    Called in the event loop, in the same step that chooses the sequence number of the checkpoint. Takes time for what
    changed only, but for the references to the chunks of each changed segment.
    """
    segments = [segment for number in changes.segments if (segment := state.segments.get(number)) is not None]
    streams = [stream for number in changes.streams if (stream := state.streams.get(number)) is not None]
    writers = [writer for number in changes.writers if (writer := state.writers.get(number)) is not None]
    gone: list[Key] = [(number,) for number in changes.deleted_segments]
    gone_writers: list[Key] = [(number,) for number in changes.deleted_writers]
    gone_streams: list[Key] = [(number,) for number in changes.deleted_streams]
    changed: list[Key] = [(segment.segment_id,) for segment in segments]
    changed_streams: list[Key] = [(stream.stream_id,) for stream in streams]
    return CheckpointRows(
        removed={
            SEGMENTS: gone + changed,
            DAMAGES: gone + changed,
            LINKS: gone + changed,
            PROGRESS: [*gone, *changes.progress],
            ATTRIBUTES: [*gone, *changes.attributes],
            WRITERS: [*gone_writers, *((writer.writer_number,) for writer in writers)],
            STREAMS: gone_streams + changed_streams,
            STREAM_SEGMENTS: gone_streams + changed_streams,
            EPOCHS: gone_streams + changed_streams,
            CUTS: gone_streams + changed_streams,
        },
        added={
            SEGMENTS: [_segment_row(segment) for segment in segments],
            DAMAGES: [row for segment in segments for row in _damage_rows(segment)],
            LINKS: [_link_row(segment.link) for segment in segments if segment.link is not None],
            PROGRESS: list(_progress_rows(state, changes.progress)),
            ATTRIBUTES: list(_attribute_rows(state, changes.attributes)),
            WRITERS: [_writer_row(writer) for writer in writers],
            STREAMS: [
                (
                    stream.stream_id,
                    stream.created_us,
                    stream.epoch,
                    int(stream.sealed),
                    stream.name,
                    stream.configuration,
                )
                for stream in streams
            ],
            STREAM_SEGMENTS: [
                (stream.stream_id, position, *part[:1], *part[3:], *_range_texts(part.low, part.last))
                for stream in streams
                for position, part in enumerate(stream.parts)
            ],
            EPOCHS: [_epoch_row(stream.stream_id, epoch) for stream in streams for epoch in stream.epochs],
            CUTS: [
                (stream.stream_id, cut.kind, cut.saved_us, cut.name, json.dumps(cut.positions))
                for stream in streams
                for cut in stream.cuts.values()
            ],
        },
        chunks=dict.fromkeys(changes.deleted_segments, ())
        | {segment.segment_id: list(segment.chunks) for segment in segments},
        counts={SEGMENTS: len(state.segments), WRITERS: len(state.writers), STREAMS: len(state.streams)},
        next_id=state.next_id,
        uptime_us=state.uptime_us,
    )


def chunk_differences(
    segment_id: int, *, stored: Sequence[ChunkRecord], wanted: Sequence[ChunkRecord]
) -> tuple[list[Key], list[Row]]:
    """Return the keys to remove and the rows to add, in this order, to make the wanted chunks of the stored ones.

    Chunks are dropped at the front by truncation and come at the end by flushes, so the two lists share a middle part,
    which is left alone. What follows the first chunk that was replaced (by compaction) is written anew.
    """
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


def _add_segment(state: ContainerState, row: Row) -> None:
    segment_id, stream_id, created_us, start_offset, length, event_count, flushed_offset, sealed, name = row
    segment = Segment(segment_id=segment_id, name=name, created_us=created_us, stream_id=stream_id)
    segment.start_offset = start_offset
    segment.length = segment.next_offset = length
    segment.event_count = event_count
    segment.flushed_offset = flushed_offset
    segment.sealed = bool(sealed)
    state.add_segment(segment)


def _add_chunk(state: ContainerState, row: Row) -> None:
    segment_id, start_offset, length, size, start_events, end_events, end_wall_time_us, name = row
    state.segments[segment_id].chunks.append(
        ChunkRecord(start_offset, length, name, size, start_events, end_events, end_wall_time_us)
    )


def _add_damage(state: ContainerState, row: Row) -> None:
    segment_id, _, start, end, source = row
    state.segments[segment_id].damages.append(DamagedRange(start, end, source))


def _add_progress(state: ContainerState, row: Row) -> None:
    segment_id, writer_number, last_event_number, last_offset = row
    state.segments[segment_id].writers[writer_number] = WriterProgress(
        last_event_number=last_event_number, last_offset=last_offset
    )


def _add_attribute(state: ContainerState, row: Row) -> None:
    segment_id, key, value = row
    state.segments[segment_id].attributes[key] = value


def _add_writer(state: ContainerState, row: Row) -> None:
    writer_number, epoch, opened_us, active_us, expired_us, seen_uptime_us, writer_id = row
    state.add_writer(
        Writer(
            writer_number=writer_number,
            writer_id=writer_id,
            epoch=epoch,
            opened_us=opened_us,
            active_us=active_us,
            expired_us=expired_us,
            seen_uptime_us=seen_uptime_us,
        )
    )


def _range_texts(low: int, last: int) -> tuple[str, str]:
    return f"{low:016x}", f"{last:016x}"


def _epoch_row(stream_id: int, epoch: f.EpochRecord) -> Row:
    created = [(segment_id, *_range_texts(low, last)) for segment_id, low, last in epoch.created]
    return (
        stream_id,
        epoch.number,
        epoch.started_us,
        epoch.cause,
        json.dumps(list(epoch.sealed_ids)),
        json.dumps(created),
    )


def _add_epoch(state: ContainerState, row: Row) -> None:
    stream_id, number, started_us, cause, sealed_ids, created = row
    state.streams[stream_id].epochs.append(
        f.EpochRecord(
            number=number,
            started_us=started_us,
            cause=cause,
            sealed_ids=json.loads(sealed_ids),
            created=[
                f.SegmentRangeRecord(segment_id, int(low, 16), int(last, 16))
                for segment_id, low, last in json.loads(created)
            ],
        )
    )


def _add_cut(state: ContainerState, row: Row) -> None:
    stream_id, kind, saved_us, name, positions = row
    state.streams[stream_id].cuts[kind, name] = f.SavedCut(
        kind, name, saved_us, [f.SavedPosition(*position) for position in json.loads(positions)]
    )


def _add_stream(state: ContainerState, row: Row) -> None:
    stream_id, created_us, epoch, sealed, name, configuration = row
    stream = Stream(stream_id=stream_id, name=name, configuration=configuration, created_us=created_us)
    stream.epoch = stream.admitted_epoch = epoch
    stream.sealed = bool(sealed)
    state.add_stream(stream)


def _add_stream_segment(state: ContainerState, row: Row) -> None:
    stream_id, _, segment_id, epoch, sealed_epoch, low, last = row
    state.streams[stream_id].parts.append(StreamPart(segment_id, int(low, 16), int(last, 16), epoch, sealed_epoch))


def _add_link(state: ContainerState, row: Row) -> None:
    source_id, target_id, offset, size, source_offset, event_count, end_events, sequence, wall_time_us = row
    link = LinkedExtent(
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
    state.segments[source_id].link = link
    state.hold(state.segments[target_id], link)


ADD: Final[Mapping[Table, Callable[[ContainerState, Row], None]]] = {
    SEGMENTS: _add_segment,
    CHUNKS: _add_chunk,
    DAMAGES: _add_damage,
    PROGRESS: _add_progress,
    ATTRIBUTES: _add_attribute,
    WRITERS: _add_writer,
    STREAMS: _add_stream,
    STREAM_SEGMENTS: _add_stream_segment,
    EPOCHS: _add_epoch,
    CUTS: _add_cut,
    LINKS: _add_link,
}
"""How a stored row becomes part of a state. Rows come in the order of the tables and of their keys."""


def finish(state: ContainerState, *, next_id: int, uptime_us: int) -> None:
    """Complete a state that has all its rows: indexes, ids, and an admitted view that is the durable one."""
    for segment in state.segments.values():
        if segment.chunks:
            segment.index.merge(chunk_borders(segment.chunks, created_us=segment.created_us))
    state.next_id = max(state.next_id, next_id)
    state.uptime_us = uptime_us
    state.admit_as_durable()


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
