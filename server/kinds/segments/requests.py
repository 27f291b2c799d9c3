"""Requests about segments that are neither appends nor reads."""

from dataclasses import astuple
from typing import Final

from millrace.model.names import AFTER_INTERNAL
from millrace.server.container.container import SegmentContainer
from millrace.server.container.loader import page_of_names
from millrace.server.container.merged_borders import load_merged_index
from millrace.server.container.requests import page_count
from millrace.server.container.seek import seek_before_event_time, seek_event_time
from millrace.server.container.state.segment import Segment
from millrace.server.errors import InvalidArgumentError
from millrace.wire import messages as m

from .commands import SegmentCommands

INDEX_ENTRIES_COUNT_MAX: Final = 10_000


class SegmentRequests:
    """Answers requests about segments."""

    def __init__(self, container: SegmentContainer) -> None:
        self._container = container
        self._segments = SegmentCommands(container)

    async def create_segment(self, message: m.CreateSegment) -> m.SegmentInfo:
        return _info(await self._segments.create(message.name))

    async def get_segment(self, message: m.GetSegment) -> m.SegmentInfo:
        return _info(self._segments.find(segment_id=message.segment_id, name=message.name))

    async def seal_segment(self, message: m.SealSegment) -> m.SegmentInfo:
        segment = self._container.segment(message.segment_id)
        await self._segments.seal(segment)
        return _info(segment)

    async def truncate_segment(self, message: m.TruncateSegment) -> m.SegmentInfo:
        segment = self._container.segment(message.segment_id)
        await self._segments.truncate(segment, message.offset)
        self._container.reader.forget(segment)
        return _info(segment)

    async def delete_segment(self, message: m.DeleteSegment) -> m.Done:
        segment = self._container.segment(message.segment_id)
        await self._segments.delete(segment)
        self._container.reader.forget(segment)
        return m.Done(1)

    async def merge_segment(self, message: m.MergeSegment) -> m.SegmentInfo:
        target = self._container.segment(message.target_id)
        await self._segments.merge(target, source_id=message.source_id, source=message.source)
        return _info(target)

    async def list_segments(self, message: m.ListSegments) -> m.SegmentList:
        # So internal segments are not even passed over.
        after = max(message.after, AFTER_INTERNAL)
        cache = self._container.state.segments
        segments: list[Segment] = []
        more = True
        # A page of nothing but segments that were merged is not the last one.
        while more and not segments:
            names, more = await page_of_names(
                cache, cache.archive.names, prefix=message.prefix, after=after, count_max=page_count(message)
            )
            with await self._container.loader.pin(m.Required(segments=names)):
                found = map(cache.find, names)
                segments = [segment for segment in found if segment is not None and segment.link is None]
            after = names[-1] if names else after
        return m.SegmentList([m.SegmentDescription(*astuple(_info(segment))) for segment in segments], int(more))

    async def set_attribute(self, message: m.SetAttribute) -> m.Attribute:
        value = message.value if message.present else None
        await self._segments.set_attribute(
            self._container.segment(message.segment_id),
            message.key,
            expected=message.expected if message.expected_present else None,
            value=value,
        )
        return m.Attribute(int(value is not None), value or b"")

    async def get_attribute(self, message: m.GetAttribute) -> m.Attribute:
        value = self._container.segment(message.segment_id).attributes.get(message.key)
        return m.Attribute(int(value is not None), value or b"")

    async def get_index(self, message: m.GetIndex) -> m.Index:
        segment = self._container.segment(message.segment_id)
        start, end = max(message.start, segment.start_offset), min(message.end, segment.length)
        if message.spacing_bytes < 1:
            raise InvalidArgumentError("spacing_bytes must be above 0", subject=segment.name)
        await self._container.reader.load_index(segment, start, end)
        await load_merged_index(self._container.reader, self._container.state.merged, segment, start, end)
        borders = segment.index.split(start, end, target_bytes=message.spacing_bytes)
        count_max = min(message.count_max, INDEX_ENTRIES_COUNT_MAX)
        return m.Index([m.IndexEntry(*entry[:3]) for entry in borders[:count_max]])

    async def seek(self, message: m.Seek) -> m.Index:
        segment = self._container.segment(message.segment_id)
        entry = await seek_event_time(
            self._container.reader, self._container.state.merged, segment, timestamp_us=message.timestamp_us
        )
        return m.Index([] if entry is None else [m.IndexEntry(*entry[:3])])

    async def seek_before(self, message: m.SeekBefore) -> m.Interval:
        segment = self._container.segment(message.segment_id)
        found = await seek_before_event_time(
            self._container.reader,
            self._container.state.merged,
            segment,
            timestamp_us=message.timestamp_us,
            end=min(message.end, segment.length),
        )
        return m.Interval(*(found or (0, 0)))


def _info(segment: Segment) -> m.SegmentInfo:
    """Return the durable state of a segment as a message."""
    return m.SegmentInfo(
        segment_id=segment.segment_id,
        start_offset=segment.start_offset,
        length=segment.length,
        event_count=segment.event_count,
        created_us=segment.created_us,
        sealed=int(segment.sealed),
        name=segment.name,
    )
