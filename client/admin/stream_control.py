"""Management of streams: create, describe, update, scale, truncate, delete; and cuts of streams."""

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
    """The calls of `Client` that manage streams; its base class."""

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
        """Create a stream; False, and no change, if a stream of that name exists.

        Args:
            cursors: names of cursors to create at its head. Because they exist from the beginning, retention by
                consumption keeps every event for each of these consumers. See also `cursors(name).set_many`.

        Raises:
            InvalidNameError: the name is not of the form scope/name.
            InvalidArgumentError: the name of a cursor is invalid, or given twice.
        """
        configuration = StreamConfig() if configuration is None else _checked(configuration)
        count = configuration.scaling.segment_count
        request = m.CreateStream(
            checked_stream_name(name), count, configuration.to_json(), [m.CursorName(each) for each in cursors]
        )
        return bool((await self._writes.request(request)).created)

    async def stream_info(self, name: str) -> StreamInfo:
        """Return the current description of a stream.

        Raises:
            StreamNotFoundError: the stream does not exist.
        """
        return await self._cuts.fetch(name)

    async def list_streams(self, prefix: str = "", *, tag: str = "", after: str = "") -> AsyncGenerator[str]:
        """Yield the names of the streams that start with `prefix` and, if given, have the tag; in ascending order.

        Args:
            after: yield only names above this one, to continue an earlier listing.
        """
        async for name in self._readers.listed(prefix, tag=tag, after=after):
            yield name

    async def update_stream(self, name: str, configuration: StreamConfig) -> StreamInfo:
        """Change the configuration of a stream; return its new description, with its open segments only.

        A new `ScalingPolicy.fixed(n)` splits segments or merges neighbours at once, until n are open; the order per key
        is kept. A stream that was scaled by hand keeps its segments if other options change; an update without a change
        restores the n segments. With other policies, the server scales the stream later.

        Raises:
            StreamNotFoundError: the stream does not exist.
        """
        request = m.UpdateStream(checked_stream_name(name), _checked(configuration).to_json())
        return stream_info(await self._writes.request(request))

    async def scale_stream(
        self, name: str, *, seal: Iterable[int], ranges: Iterable[tuple[Border, Border]]
    ) -> StreamInfo:
        """Replace segments of a stream by new ones that cover the same keys, atomically. Idempotent.

        Returns the new description of the stream, with its open segments only. Writers continue in the new segments;
        readers read them after the replaced ones.

        Args:
            seal: ids of the open segments to replace.
            ranges: key range of each new segment: its lower border, and its upper border, which is exclusive. Borders
                are numbers from 0 to 1, or exact integers out of 2^64. A float that equals a border as it is printed
                stands for that border.

        Raises:
            StreamNotFoundError, StreamSealedError: the stream does not exist, or is sealed.
            InvalidArgumentError: the ranges do not cover exactly the keys of the sealed segments, or a segment is not
                open.
        """
        info = stream_info(await fetch_open_segments(self._writes, checked_stream_name(name)))
        sealed_ids = list(seal)
        # A repeated scale names segments that are sealed by now: their borders are in the history.
        segments: list[StreamPart] = list(info.segments)
        if any(segment_id not in {each.segment_id for each in segments} for segment_id in sealed_ids):
            segments += parts_of_history(await self.stream_history(name))
        borders = [
            m.KeyRangeRecord(part.low, part.high - 1)
            for part in scaled_ranges(ranges, segments=(each for each in segments if each.segment_id in sealed_ids))
        ]
        return stream_info(await self._writes.request(m.ScaleStream(name, sealed_ids, borders)))

    async def stream_history(self, name: str) -> History:
        """Return the epochs of a stream, oldest first: which segments were split and merged, when and why.

        Raises:
            StreamNotFoundError: the stream does not exist.
        """
        return History(await fetch_history(self._writes, checked_stream_name(name)))

    async def explain_stream(self, name: str) -> dict[str, Any]:
        """Return the state of a stream's policies: inputs, last decisions and waits, and the bytes held by each cursor.

        Raises:
            StreamNotFoundError: the stream does not exist.
        """
        reply = await self._writes.request(m.ExplainStream(checked_stream_name(name)))
        facts: dict[str, Any] = json.loads(reply.facts)
        return facts

    def bookmarks(self, stream: str) -> Bookmarks:
        """Return the bookmarks of a stream: named cuts, stored on the server."""
        return Bookmarks(
            self._writes, checked_stream_name(stream), use_cuts=self._cuts.use, open_reader=self._readers.open
        )

    def cursors(self, stream: str) -> Cursors:
        """Return the cursors of a stream: the positions of its consumers, stored on the server."""
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
        """Seal a stream: it never accepts events again. Idempotent.

        Open transactions over the stream are aborted, in all of their streams.

        Args:
            force: abort prepared transactions, too.

        Raises:
            StreamNotFoundError: the stream does not exist.
            TransactionPreparedError: a transaction, which the text names, is prepared; nothing was changed.
        """
        return await self._whole(await self._writes.request(m.SealStream(checked_stream_name(name), int(force))))

    async def _whole(self, reply: m.StreamInfo) -> StreamInfo:
        """Return the description in a reply, completed with its further pages."""
        return await fetch_stream(self._writes, reply.name) if reply.next_epoch else stream_info(reply)

    async def release_stream(self, name: str) -> bool:
        """Fence the exclusive writer of a stream; False if the stream has none.

        The stream then accepts events from all writers. The program with the exclusive writer calls `Writer.release`
        instead.

        Raises:
            StreamNotFoundError: the stream does not exist.
        """
        info = await fetch_open_segments(self._writes, checked_stream_name(name))
        return bool((await self._writes.request(m.ReleaseStream(stream_id=info.stream_id))).changed)

    async def delete_stream(self, name: str) -> bool:
        """Delete a sealed stream with all its events; False if the stream does not exist.

        Raises:
            StreamNotSealedError: the stream is not sealed.
        """
        return bool((await self._writes.request(m.DeleteStream(checked_stream_name(name)))).changed)

    async def truncate_stream(self, name: str, cut: Place) -> StreamInfo:
        """Truncate a stream: the events before a cut cannot be read afterwards. Their bytes are deleted later.

        Args:
            cut: a place, as a cut or in words; see `Place`.

        Raises:
            CutInvalidError: the cut belongs to another stream, or is inside of an append; then `start_offset` is the
                border before it.
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
        """Return a request for a cut: `await client.stream_cut(name)` returns the current tail.

        `await client.stream_cut(name).at_time(...)`, `.after_events(...)`, `.after_bytes(...)` and `.head()` return
        other cuts; the arguments are short forms of these. See `CutRequest`.

        Raises:
            InvalidArgumentError: more than one of the places is given.
        """
        if sum(each is not None for each in (at_time, after_events, after_bytes)) > 1:
            raise InvalidArgumentError("give only one of at_time, after_events and after_bytes")
        if at_time is not None:
            return CutRequest(self._cuts, name, lambda request: request.at_time(at_time, as_end=as_end))
        if after_events is not None:
            return CutRequest(self._cuts, name, lambda request: request.after_events(after_events, start=start))
        if after_bytes is not None:
            return CutRequest(self._cuts, name, lambda request: request.after_bytes(after_bytes, start=start))
        return CutRequest(self._cuts, name, CutRequest.tail)

    async def stream_cuts(self, streams: Iterable[str]) -> dict[str, StreamCut]:
        """Return the tails of several streams, given by name or pattern, all at one moment.

        The cuts are consistent across streams: if they include an event, they include every event that was durable
        before it. A stream that matches a pattern and is deleted during the call is left out.

        Raises:
            StreamNotFoundError: a named stream does not exist.
            InvalidArgumentError: more than 1,000 streams, or too many segments.
        """
        selection = Selection.of(streams)
        return await self._readers.tails(await self._readers.names(selection), named=selection.names)

    async def distance(self, start: Place, end: Place, *, stream: str | None = None) -> Distance:
        """Return the bytes and events between two places of one stream, each a cut or words; see `Place`.

        Args:
            stream: required unless one of the places is a `StreamCut`, or the text of one.

        Raises like `reader`.
        """
        first, last = chosen(start), chosen(end)
        names = {cut.stream for cut in (first, last) if isinstance(cut, StreamCut)} | ({stream} if stream else set())
        if len(names) != 1:
            raise InvalidArgumentError(f"a distance needs exactly one stream, not {', '.join(sorted(names)) or 'none'}")

        async def measure(info: StreamInfo) -> Distance:
            places = await self._cuts.choose(first, info), await self._cuts.choose(last, info, is_end=True)
            return await distance(self._reads, info, start=places[0], end=places[1])

        return await self._cuts.search(names.pop(), measure)


def _checked(configuration: object) -> StreamConfig:
    """Return the configuration, checked.

    Raises:
        InvalidArgumentError: it is not a StreamConfig.
    """
    if not isinstance(configuration, StreamConfig):
        raise InvalidArgumentError(f"the configuration of a stream must be a StreamConfig, not {configuration!r:.120}")
    return configuration
