"""Requests about streams and their cuts."""

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.server.container.container import SegmentContainer
from millrace.server.container.loader import page_of_names
from millrace.server.container.requests import page_count
from millrace.server.container.state.stream import Stream
from millrace.wire import messages as m
from millrace.wire.limits import CONTROL_FRAME_SIZE_BYTES_MAX, FRAME_HEADER_SIZE_BYTES

from .catalog import Catalog
from .commands import StreamCommands

EPOCH_SIZE_BYTES: Final = 18
"""Of an epoch in STREAM_HISTORY, without its cause and its lists."""
HISTORY_SIZE_BYTES_MAX: Final = CONTROL_FRAME_SIZE_BYTES_MAX - FRAME_HEADER_SIZE_BYTES - 5


@dataclass(frozen=True, slots=True)
class Explain:
    """Explains why a stream has the segments that it has; what scales streams provides it.

    Attributes:
        explain: returns facts for JSON.
    """

    explain: Callable[[Stream], dict[str, Any]]


class StreamRequests:
    """Answers requests about streams.

    Args:
        explain: of a stream.
    """

    def __init__(
        self,
        container: SegmentContainer,
        streams: StreamCommands,
        catalog: Catalog,
        *,
        explain: Explain,
    ) -> None:
        self._container = container
        self._streams = streams
        self._catalog = catalog
        self._explain = explain.explain

    async def create_stream(self, message: m.CreateStream) -> m.StreamInfo:
        stream, created = await self._streams.create(
            message.name,
            segment_count=message.segment_count,
            configuration=message.configuration,
            cursors=[name for (name,) in message.cursors],
        )
        return self._streams.describe(stream, created=created)

    async def get_stream(self, message: m.GetStream) -> m.StreamInfo:
        stream = self._streams.find(message.name)
        segment_ids = self._streams.page_ids(stream, message)
        # The request pins the open segments only. Of the replaced ones, no more than a page is loaded at once.
        while segment_ids:
            with await self._container.loader.pin(m.Required(segments=segment_ids, open_streams=[message.name])):
                stream = self._streams.find(message.name)
                pinned, segment_ids = set(segment_ids), self._streams.page_ids(stream, message)
                if pinned.issuperset(segment_ids):
                    return self._streams.describe_page(stream, message)
        return self._streams.describe_page(stream, message)

    async def get_tails(self, message: m.GetTails) -> m.StreamTails:
        # Without a wait: what is durable of one stream here, and of another, is so at one moment.
        return m.StreamTails(self._streams.tails([name for (name,) in message.streams]))

    async def list_streams(self, message: m.ListStreams) -> m.StreamList:
        count_max = page_count(message)
        if message.tag:
            names, more = await self._catalog.names_with_tag(
                message.tag, prefix=message.prefix, after=message.after, count_max=count_max
            )
        else:
            cache = self._container.state.streams
            names, more = await page_of_names(
                cache, cache.archive.names, prefix=message.prefix, after=message.after, count_max=count_max
            )
        return m.StreamList([m.ListedStream(name) for name in names], int(more))

    async def seal_stream(self, message: m.SealStream) -> m.StreamInfo:
        return self._described(await self._streams.seal(message.name, force=bool(message.force)))

    async def truncate_stream(self, message: m.TruncateStream) -> m.StreamInfo:
        before = [self._container.segment(segment_id) for segment_id in self._streams.find(message.name).segment_ids]
        stream = await self._streams.truncate(message.name, message.positions)
        for segment in before:
            self._container.reader.forget(segment)
        return self._described(stream)

    def _described(self, stream: Stream) -> m.StreamInfo:
        """Return the first page of a stream, all of which is in memory."""
        return self._streams.describe(stream, replaced_from=0)

    async def scale_stream(self, message: m.ScaleStream) -> m.StreamInfo:
        stream = await self._streams.scale(
            message.name, sealed_ids=message.sealed_ids, ranges=message.ranges, cause="asked for"
        )
        return self._streams.describe(stream)

    async def update_stream(self, message: m.UpdateStream) -> m.StreamInfo:
        return self._streams.describe(await self._streams.update(message.name, configuration=message.configuration))

    async def get_stream_history(self, message: m.GetStreamHistory) -> m.StreamHistory:
        epochs = self._streams.find(message.name).epochs
        first = bisect_left(epochs, message.first, key=lambda epoch: epoch.number)
        page = _page_of_epochs(epochs, first)
        return m.StreamHistory(page, more=int(first + len(page) < len(epochs)))

    async def explain_stream(self, message: m.ExplainStream) -> m.Explanation:
        return m.Explanation(json.dumps(self._explain(self._streams.find(message.name))))

    async def save_cuts(self, message: m.SaveCuts) -> m.Done:
        await self._streams.save_cuts(message.stream, message.cuts)
        return m.Done(1)

    async def forget_cut(self, message: m.ForgetCut) -> m.Done:
        return m.Done(int(await self._streams.forget_cut(message.stream, message.name, kind=message.kind)))

    async def list_cuts(self, message: m.ListCuts) -> m.CutList:
        cuts = self._streams.find(message.name).cuts
        return m.CutList([cuts[key] for key in sorted(cuts)])

    async def delete_stream(self, message: m.DeleteStream) -> m.Done:
        return m.Done(int(await self._streams.delete(message.name)))


def _page_of_epochs(epochs: Sequence[m.EpochRecord], first: int) -> list[m.EpochRecord]:
    """Return epochs from a place on, as many as fit a frame, at least one if there is one."""
    size_bytes = 0
    page: list[m.EpochRecord] = []
    for place in range(first, len(epochs)):
        epoch = epochs[place]
        size_bytes += EPOCH_SIZE_BYTES + len(epoch.cause.encode()) + 8 * len(epoch.sealed_ids) + 24 * len(epoch.created)
        if page and size_bytes > HISTORY_SIZE_BYTES_MAX:
            break
        page.append(epoch)
    return page
