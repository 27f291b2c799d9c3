"""The streams of a server: made, described, changed, scaled, truncated and deleted; and cuts of them."""

import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any, Final

from millrace.client.read.cut_resolution import Distance, distance
from millrace.client.streams import fetch_history, fetch_open_segments, fetch_stream, stream_info
from millrace.client.transport.channel import Channel, ChannelState
from millrace.model.cut import HEAD, Place, StreamCut, chosen
from millrace.model.errors import InvalidArgumentError
from millrace.model.lineage import History, StreamPart, parts_of_history
from millrace.model.names import checked_stream_name
from millrace.model.policy import StreamConfig
from millrace.model.selection import Selection
from millrace.model.shown import Handle
from millrace.model.stream import Border, StreamInfo, scaled_ranges
from millrace.wire import messages as m

from .bookmarks import Bookmarks, Cursors
from .cuts import CutRequest, Cuts
from .readers import Readers

_STATES: Final = {
    ChannelState.IDLE: "not connected",
    ChannelState.CONNECTING: "connecting",
    ChannelState.READY: "connected",
    ChannelState.CLOSED: "closed",
}


class StreamControl(Handle):
    """What a client does with streams as a whole: a base of `Client`."""

    def __init__(self, *, writes: Channel, reads: Channel) -> None:
        self._writes = writes
        self._reads = reads
        self._cuts = Cuts(writes=writes, reads=reads)
        self._readers = Readers(writes=writes, reads=reads, cuts=self._cuts)

    def _facts(self) -> Iterator[str]:
        yield f"of {self._writes.address}"
        yield _STATES[self._writes.state]
        if self._writes.waits.current is not None:
            yield f"waiting: {self._writes.waits.current.reason}"

    async def create_stream(
        self, name: str, configuration: StreamConfig | None = None, *, cursors: Iterable[str] = ()
    ) -> bool:
        """Create a stream; False if there was one of that name, of which nothing is then changed.

        Args:
            cursors: names of cursors at its head. They are there from the start: retention by consumption keeps for
                each of these consumers all that is written, whenever it comes. See `cursors(name).set_many`, too.

        Raises:
            InvalidNameError: the name is not of the form scope/name.
            InvalidArgumentError: a name of a cursor is none, or given twice.
        """
        configuration = StreamConfig() if configuration is None else _checked(configuration)
        count = configuration.scaling.segment_count
        request = m.CreateStream(
            checked_stream_name(name), count, configuration.to_json(), [m.CursorName(each) for each in cursors]
        )
        return bool((await self._writes.request(request)).created)

    async def stream_info(self, name: str) -> StreamInfo:
        """Return what a stream is now.

        Raises:
            StreamNotFoundError: there is none.
        """
        return await self._cuts.fetch(name)

    async def list_streams(self, prefix: str = "", *, tag: str = "", after: str = "") -> AsyncGenerator[str]:
        """Yield the names of the streams that start with `prefix` and have the tag, if one is given, in their order.

        Args:
            after: only names above this one: where an earlier listing was left.
        """
        async for name in self._readers.listed(prefix, tag=tag, after=after):
            yield name

    async def update_stream(self, name: str, configuration: StreamConfig) -> StreamInfo:
        """Give a stream another configuration; return what it is then, with its open segments only.

        With a new `ScalingPolicy.fixed(n)` it has n open segments then: some were split, or neighbours merged, and the
        order per key holds across. A stream that was scaled by hand since stays so while only something else changes,
        and gets its n segments back from an update that changes nothing. By any other policy, segments change later.

        Raises:
            StreamNotFoundError: there is none.
        """
        request = m.UpdateStream(checked_stream_name(name), _checked(configuration).to_json())
        return stream_info(await self._writes.request(request))

    async def scale_stream(
        self, name: str, *, seal: Iterable[int], ranges: Iterable[tuple[Border, Border]]
    ) -> StreamInfo:
        """Replace segments of a stream by new ones that cover the same keys, in one step.

        Return what the stream is then, with its open segments only: what was replaced before does not count.
        Writers continue in the new ones; readers read them after those that they replace. Repeating it changes nothing.

        Args:
            seal: ids of open segments.
            ranges: keys of each new segment, from one border up to, not with, another: numbers from 0 to 1, or exact
                integers out of 2^64. A float that is printed as a border of the stream is that border.

        Raises:
            StreamNotFoundError, StreamSealedError: there is nothing to scale.
            InvalidArgumentError: the ranges do not cover exactly what the sealed segments do, or a segment is not open.
        """
        info = stream_info(await fetch_open_segments(self._writes, checked_stream_name(name)))
        sealed_ids = list(seal)
        # The others are in the history: a scale that is repeated means their borders.
        segments: list[StreamPart] = list(info.segments)
        if any(segment_id not in {each.segment_id for each in segments} for segment_id in sealed_ids):
            segments += parts_of_history(await self.stream_history(name))
        borders = [
            m.KeyRangeRecord(part.low, part.high - 1)
            for part in scaled_ranges(ranges, segments=(each for each in segments if each.segment_id in sealed_ids))
        ]
        return stream_info(await self._writes.request(m.ScaleStream(name, sealed_ids, borders)))

    async def stream_history(self, name: str) -> History:
        """Return the epochs of a stream, the first one first: what was split and merged, when and why.

        Raises:
            StreamNotFoundError: there is none.
        """
        return History(await fetch_history(self._writes, checked_stream_name(name)))

    async def explain_stream(self, name: str) -> dict[str, Any]:
        """Return what the policies of a stream see, decided last and wait for, and which cursor holds which bytes.

        Raises:
            StreamNotFoundError: there is none.
        """
        reply = await self._writes.request(m.ExplainStream(checked_stream_name(name)))
        facts: dict[str, Any] = json.loads(reply.facts)
        return facts

    def bookmarks(self, stream: str) -> Bookmarks:
        """Return the bookmarks of a stream: named cuts that the server keeps."""
        return Bookmarks(
            self._writes, checked_stream_name(stream), use_cuts=self._cuts.use, open_reader=self._readers.open
        )

    def cursors(self, stream: str) -> Cursors:
        """Return the cursors of a stream: how far its consumers have come."""
        timeout_s = self._writes.options.outage_timeout_s
        cuts = Cuts(writes=self._writes, reads=self._reads, timeout_s=timeout_s)
        return Cursors(
            self._writes,
            checked_stream_name(stream),
            kind=m.CutKind.CURSOR,
            use_cuts=cuts.use,
            save_timeout_s=timeout_s,
        )

    async def seal_stream(self, name: str, *, force: bool = False) -> StreamInfo:
        """Let a stream take no more events, forever; sealing it again changes nothing.

        The transactions that are open over it are aborted, over all of their streams.

        Args:
            force: abort those that are prepared, too.

        Raises:
            StreamNotFoundError: there is none.
            TransactionPreparedError: one is prepared, which the error names; nothing is changed.
        """
        return await self._whole(await self._writes.request(m.SealStream(checked_stream_name(name), int(force))))

    async def _whole(self, reply: m.StreamInfo) -> StreamInfo:
        """Return what a reply describes, all pages of it."""
        return await fetch_stream(self._writes, reply.name) if reply.next_epoch else stream_info(reply)

    async def release_stream(self, name: str) -> bool:
        """End the exclusive writer of a stream, and fence it; False if the stream has none.

        From then on the stream takes events from all writers. A program that has it gives it back by `Writer.release`.

        Raises:
            StreamNotFoundError: there is none.
        """
        info = await fetch_open_segments(self._writes, checked_stream_name(name))
        return bool((await self._writes.request(m.ReleaseStream(stream_id=info.stream_id))).changed)

    async def delete_stream(self, name: str) -> bool:
        """Delete a sealed stream with everything in it; False if there is none.

        Raises:
            StreamNotSealedError: it is not sealed.
        """
        return bool((await self._writes.request(m.DeleteStream(checked_stream_name(name)))).changed)

    async def truncate_stream(self, name: str, cut: Place) -> StreamInfo:
        """Drop the events before a cut: no reader gets them afterwards. Their bytes are deleted later.

        Args:
            cut: a place, as a cut or in words: see `Place`.

        Raises:
            CutInvalidError: the cut is one of another stream, or goes through the inside of an append, and then
                `start_offset` is the border before it.
            OffsetBeyondEndError: the cut is beyond the end.
        """

        async def truncate(cuts: list[StreamCut]) -> StreamInfo:
            positions = [m.SavedPosition(segment_id, *place) for segment_id, place in cuts[0].positions]
            return await self._whole(await self._writes.request(m.TruncateStream(checked_stream_name(name), positions)))

        place = chosen(cut)
        if not isinstance(place, StreamCut):
            return await self._cuts.use(name, [place], truncate)
        if place.stream != name:
            raise InvalidArgumentError(f"a cut of {place.stream} cannot be used for {name}")
        return await truncate([place])

    def stream_cut(
        self,
        name: str,
        *,
        at_time: Place | None = None,
        after_events: int | None = None,
        after_bytes: int | None = None,
        start: Place = HEAD,
        as_end: bool = False,
    ) -> CutRequest:
        """Return a request for a cut: `await client.stream_cut(name)` is the tail as it is now.

        `await client.stream_cut(name).at_time(...)`, `.after_events(...)`, `.after_bytes(...)` and `.head()` are other
        places, of which the arguments are short forms; see `CutRequest`.

        Raises:
            InvalidArgumentError: more than one place is asked for.
        """
        if sum(each is not None for each in (at_time, after_events, after_bytes)) > 1:
            raise InvalidArgumentError("a cut is at a time, or after so many events, or after so many bytes")
        if at_time is not None:
            return CutRequest(self._cuts, name, lambda request: request.at_time(at_time, as_end=as_end))
        if after_events is not None:
            return CutRequest(self._cuts, name, lambda request: request.after_events(after_events, start=start))
        if after_bytes is not None:
            return CutRequest(self._cuts, name, lambda request: request.after_bytes(after_bytes, start=start))
        return CutRequest(self._cuts, name, CutRequest.tail)

    async def stream_cuts(self, streams: Iterable[str]) -> dict[str, StreamCut]:
        """Return the tails of several streams, given by name or pattern, all as of one moment of the server.

        What was durable before something else is in these cuts if that is, whatever their streams. A stream that
        matches a pattern and is deleted meanwhile is left out.

        Raises:
            StreamNotFoundError: there is no stream of one of these names.
            InvalidArgumentError: they are more than 1,000, or too many segments.
        """
        selection = Selection.of(streams)
        return await self._readers.tails(await self._readers.names(selection), named=selection.names)

    async def distance(self, start: Place, end: Place, *, stream: str | None = None) -> Distance:
        """Return the bytes and events between two places of one stream, each a cut or in words: see `Place`.

        Args:
            stream: needed only where neither is a `StreamCut`, or the text of one.

        Raises like `reader`.
        """
        first, last = chosen(start), chosen(end)
        names = {cut.stream for cut in (first, last) if isinstance(cut, StreamCut)} | ({stream} if stream else set())
        if len(names) != 1:
            raise InvalidArgumentError(f"a distance is one inside of one stream, not of {sorted(names) or 'none'}")

        async def measure(info: StreamInfo) -> Distance:
            places = await self._cuts.choose(first, info), await self._cuts.choose(last, info, is_end=True)
            return await distance(self._reads, info, start=places[0], end=places[1])

        return await self._cuts.search(names.pop(), measure)


def _checked(configuration: object) -> StreamConfig:
    """Return a configuration.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not isinstance(configuration, StreamConfig):
        raise InvalidArgumentError(f"the configuration of a stream is a StreamConfig, not {configuration!r:.120}")
    return configuration
