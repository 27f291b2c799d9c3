"""Cuts of streams: resolves and checks them, and searches streams, which may be truncated during the search."""

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final, TypeVar

from millrace.client.errors import CutTruncatedError, SegmentNotFoundError, SegmentTruncatedError
from millrace.client.read.cut_resolution import cut_after_bytes, cut_after_events, resolve_cut
from millrace.client.read.time_cuts import end_at_time, start_at_time
from millrace.client.streams import fetch_history, fetch_stream
from millrace.client.transport.channel import Channel
from millrace.model.cut import (
    HEAD,
    Cut,
    CutChoice,
    PastCut,
    Place,
    SavedKind,
    SavedPlace,
    StreamCut,
    TimeCut,
    chosen,
    chosen_time,
)
from millrace.model.errors import CutInvalidError, CutOrderError
from millrace.model.lineage import StreamPart, parts_of_history
from millrace.model.names import checked_stream_name
from millrace.model.slice import Slice
from millrace.model.stream import StreamInfo
from millrace.wire import messages as m

R = TypeVar("R")

SAVED_KINDS: Final = {SavedKind.BOOKMARK: m.CutKind.BOOKMARK, SavedKind.CURSOR: m.CutKind.CURSOR}


class Cuts:
    """Finds cuts in the streams of one server. All searches are safe to cancel.

    Args:
        timeout_s: time limit of each request, instead of `request_timeout_s` of the options; the reads of a search keep
            the latter.
    """

    def __init__(self, *, writes: Channel, reads: Channel, timeout_s: float | None = None) -> None:
        self._writes = writes
        self._timeout_s = timeout_s
        self.reads = reads

    async def resolve(self, cut: Cut, info: StreamInfo, *, key: str | None = None) -> StreamCut:
        """Return a cut, checked against the stream; truncated segments are looked up in its history.

        Args:
            key: see `resolve_cut`.

        Raises:
            CutInvalidError, CutTruncatedError, OffsetBeyondEndError: the cut does not fit the stream.
        """
        known: list[StreamPart] = []
        if isinstance(cut, StreamCut) and cut.stream == info.name:
            listed = {segment.segment_id for segment in info.segments}
            if not listed.issuperset(cut.places):
                known = parts_of_history(await fetch_history(self._writes, info.name, timeout_s=self._timeout_s))
        return resolve_cut(cut, info, known=known, key=key)

    async def choose(
        self, choice: CutChoice, info: StreamInfo, *, is_end: bool = False, key: str | None = None
    ) -> StreamCut:
        """Resolve a cut, a time, or the name of a saved cut.

        Raises:
            CutInvalidError: the stream has no saved cut of that name.
            SegmentTruncatedError, SegmentNotFoundError: a part of the stream was truncated during the search.
        """
        choice = self.fixed(choice)
        if isinstance(choice, SavedPlace):
            choice = await self.saved(choice, info.name)
        if not isinstance(choice, TimeCut):
            return await self.resolve(choice, info, key=key)
        find = end_at_time if is_end else start_at_time
        return await find(self.reads, info, choice.unix_us)

    def fixed(self, choice: CutChoice) -> Cut | TimeCut | SavedPlace:
        """Return a choice that no longer depends on the clock: a time span ago becomes a time."""
        return choice.at(self.reads.clock.time_ns() // 1000) if isinstance(choice, PastCut) else choice

    async def saved(self, place: SavedPlace, stream: str) -> StreamCut:
        """Return a saved cut of a stream.

        Raises:
            CutInvalidError: the stream has no saved cut of that name.
            StreamNotFoundError: the stream does not exist.
        """
        kind = SAVED_KINDS[place.kind]
        for saved in (await self._writes.request(m.ListCuts(stream), timeout_s=self._timeout_s)).cuts:
            if saved.kind == kind and saved.name == place.name:
                return StreamCut.of(stream, {id_: (offset, index) for id_, offset, index in saved.positions})
        raise CutInvalidError(
            f"{stream} has no {place.kind.value} {place.name!r}; `millrace cut list {stream}` lists the saved cuts"
        )

    async def bounds(self, part: Slice, info: StreamInfo) -> tuple[StreamCut, StreamCut | None]:
        """Return the cuts between which to read a stream. Raises like `choose`.

        Raises:
            CutOrderError: the start is after the end.
        """
        start, key = self.fixed(part.start), part.key
        end = None if part.end is None else self.fixed(part.end)
        if isinstance(start, TimeCut) and isinstance(end, TimeCut) and start.unix_us > end.unix_us:
            raise CutOrderError(f"the start, {start}, is after the end, {end}; swap them")
        first = await self.choose(start, info, key=key)
        last = None if end is None else await self.choose(end, info, is_end=True, key=key)
        if last is not None:
            info.check_order(first, last, key=key)
        return first, last

    async def fetch(self, stream: str, *, replaced_from: int = 0) -> StreamInfo:
        """Return the current description of a stream.

        Args:
            replaced_from: see `fetch_description`.

        Raises:
            StreamNotFoundError: the stream does not exist.
        """
        return await fetch_stream(
            self._writes, checked_stream_name(stream), replaced_from=replaced_from, timeout_s=self._timeout_s
        )

    async def use(self, stream: str, choices: Sequence[Place], use: Callable[[list[StreamCut]], Awaitable[R]]) -> R:
        """Resolve places, and return the result of `use` with the cuts; retry if HEAD was truncated meanwhile.

        A time resolves to the cut with no event of that time or newer before it.
        """
        wanted = [chosen(choice) for choice in choices]

        async def choose(info: StreamInfo) -> list[StreamCut]:
            return [await self.choose(choice, info) for choice in wanted]

        while True:
            places = await self.search(stream, choose)
            try:
                return await use(places)
            except CutTruncatedError:
                if all(isinstance(choice, StreamCut) for choice in wanted):
                    raise
                # The stream was truncated after it was fetched: HEAD has moved.

    async def find(self, stream: str, choice: CutChoice) -> StreamCut:
        """Resolve a choice for a stream, now. Raises like `choose`."""
        return await self.search(stream, lambda info: self.choose(choice, info))

    async def search(self, stream: str, search: Callable[[StreamInfo], Awaitable[R]]) -> R:
        """Run a search in a stream, and repeat it if the stream is truncated during the search."""
        info = await self.fetch(stream)
        while True:
            try:
                return await search(info)
            except CutTruncatedError:
                raise
            except (SegmentTruncatedError, SegmentNotFoundError):
                now = await self.fetch(stream)
                if now.head() == info.head():
                    raise
                info = now


class CutRequest:
    """A request for a cut: `await` it, or one of its methods."""

    def __init__(self, cuts: Cuts, stream: str, ask: Callable[["CutRequest"], Awaitable[StreamCut]]) -> None:
        self._cuts = cuts
        self._stream = stream
        self._ask = ask

    def __await__(self) -> Generator[Any, Any, StreamCut]:
        """Return the cut that the arguments of `stream_cut` describe."""
        return self._ask(self).__await__()

    async def tail(self) -> StreamCut:
        """Return the cut after all events that are durable now."""
        return (await self._cuts.fetch(self._stream, replaced_from=m.NOT_REPLACED)).tail()

    async def head(self) -> StreamCut:
        """Return the cut before the first remaining event."""
        return (await self._cuts.fetch(self._stream)).head()

    async def at_time(self, when: Place, *, as_end: bool = False) -> StreamCut:
        """Return the cut at an event time, as a start: no event with this timestamp or a newer one is before it.

        If timestamps do not ascend, older events may be after the cut. If they ascend, the cut is exactly before the
        first event of that time or newer.

        Args:
            when: Unix microseconds, a datetime or a date (UTC without a zone), a timedelta before now, or a text for
                one of these.
            as_end: return the cut as an end: no durable event with an older timestamp is after it. If timestamps ascend
                in each segment, it is the same cut.
        """
        choice = self._cuts.fixed(chosen_time(when))
        return await self._cuts.search(self._stream, lambda info: self._cuts.choose(choice, info, is_end=as_end))

    async def after_events(self, count: int, *, start: Place = HEAD) -> StreamCut:
        """Return the cut exactly `count` events after `start`, or the tail if there are fewer.

        Segments that are read in parallel contribute in proportion to their events.

        Raises like `reader`.
        """

        async def find(info: StreamInfo) -> StreamCut:
            place = await self._cuts.choose(chosen(start), info)
            return await cut_after_events(self._cuts.reads, info, start=place, count=count)

        return await self._cuts.search(self._stream, find)

    async def after_bytes(self, size_bytes: int, *, start: Place = HEAD) -> StreamCut:
        """Return the cut at most `size_bytes` after `start`, at borders of blocks, or the tail if there are fewer.

        In each segment that is read in parallel, it is less than one block short. Raises like `reader`.
        """

        async def find(info: StreamInfo) -> StreamCut:
            place = await self._cuts.choose(chosen(start), info)
            return await cut_after_bytes(self._cuts.reads, info, start=place, size_bytes=size_bytes)

        return await self._cuts.search(self._stream, find)
