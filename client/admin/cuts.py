"""Cuts of streams: checked, resolved and searched for, also while a stream is truncated under the search."""

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
    """Finds cuts in the streams of one server. Cancelling any of its searches is safe.

    Args:
        timeout_s: of each request, instead of `request_timeout_s` of the options; those of a search keep the latter.
    """

    def __init__(self, *, writes: Channel, reads: Channel, timeout_s: float | None = None) -> None:
        self._writes = writes
        self._timeout_s = timeout_s
        self.reads = reads

    async def resolve(self, cut: Cut, info: StreamInfo, *, key: str | None = None) -> StreamCut:
        """Return a cut, checked; segments that the stream no longer has are looked up in its history.

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
        """Return a cut as `resolve` does, or the cut at a time, or one that the server keeps under a name.

        Raises:
            CutInvalidError: there is none of that name.
            SegmentTruncatedError, SegmentNotFoundError: some of the stream was truncated during the search.
        """
        choice = self.fixed(choice)
        if isinstance(choice, SavedPlace):
            choice = await self.saved(choice, info.name)
        if not isinstance(choice, TimeCut):
            return await self.resolve(choice, info, key=key)
        find = end_at_time if is_end else start_at_time
        return await find(self.reads, info, choice.unix_us)

    def fixed(self, choice: CutChoice) -> Cut | TimeCut | SavedPlace:
        """Return a choice that means the same whenever it is used: a time ago as that of now."""
        return choice.at(self.reads.clock.time_ns() // 1000) if isinstance(choice, PastCut) else choice

    async def saved(self, place: SavedPlace, stream: str) -> StreamCut:
        """Return the cut that the server keeps for a stream under a name.

        Raises:
            CutInvalidError: there is none of that name.
            StreamNotFoundError: there is no such stream.
        """
        kind = SAVED_KINDS[place.kind]
        for saved in (await self._writes.request(m.ListCuts(stream), timeout_s=self._timeout_s)).cuts:
            if saved.kind == kind and saved.name == place.name:
                return StreamCut.of(stream, {id_: (offset, index) for id_, offset, index in saved.positions})
        raise CutInvalidError(
            f"{stream} has no {place.kind.value} {place.name!r}; `millrace cut list {stream}` shows what it has"
        )

    async def bounds(self, part: Slice, info: StreamInfo) -> tuple[StreamCut, StreamCut | None]:
        """Return the cuts between which a stream is to be read. Raises like `choose`.

        Raises:
            CutOrderError: the start is after the end.
        """
        start, key = self.fixed(part.start), part.key
        end = None if part.end is None else self.fixed(part.end)
        if isinstance(start, TimeCut) and isinstance(end, TimeCut) and start.unix_us > end.unix_us:
            raise CutOrderError(f"the start, {start}, is after the end, {end}; exchange them")
        first = await self.choose(start, info, key=key)
        last = None if end is None else await self.choose(end, info, is_end=True, key=key)
        if last is not None:
            info.check_order(first, last, key=key)
        return first, last

    async def fetch(self, stream: str, *, replaced_from: int = 0) -> StreamInfo:
        """Return what a stream is now.

        Args:
            replaced_from: as in `fetch_description`.

        Raises:
            StreamNotFoundError: there is none.
        """
        return await fetch_stream(
            self._writes, checked_stream_name(stream), replaced_from=replaced_from, timeout_s=self._timeout_s
        )

    async def use(self, stream: str, choices: Sequence[Place], use: Callable[[list[StreamCut]], Awaitable[R]]) -> R:
        """Return what the server answers about cuts; about HEAD, TAIL and times as they are when it does.

        A time is the cut before which no event is of that time or newer.
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
                # The stream was truncated since it was fetched: HEAD is at another place now.

    async def find(self, stream: str, choice: CutChoice) -> StreamCut:
        """Return the cut of a stream that is meant, as it is now. Raises like `choose`."""
        return await self.search(stream, lambda info: self.choose(choice, info))

    async def search(self, stream: str, search: Callable[[StreamInfo], Awaitable[R]]) -> R:
        """Return what a search finds in a stream, also if the stream is truncated under it."""
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
    """A cut to be asked for: `await` it for the one that `stream_cut` was asked for, or one of its methods."""

    def __init__(self, cuts: Cuts, stream: str, ask: Callable[["CutRequest"], Awaitable[StreamCut]]) -> None:
        self._cuts = cuts
        self._stream = stream
        self._ask = ask

    def __await__(self) -> Generator[Any, Any, StreamCut]:
        """Return the cut that was asked for."""
        return self._ask(self).__await__()

    async def tail(self) -> StreamCut:
        """Return the cut after everything that is durable now."""
        return (await self._cuts.fetch(self._stream, replaced_from=m.NOT_REPLACED)).tail()

    async def head(self) -> StreamCut:
        """Return the cut before everything that is left."""
        return (await self._cuts.fetch(self._stream)).head()

    async def at_time(self, when: Place, *, as_end: bool = False) -> StreamCut:
        """Return the cut at an event time, as a start: no event with this timestamp or a newer one lies before it.

        Timestamps need not ascend: events that are older may lie after it. Where none does, it is the place before the
        first event of that time or newer, of all keys.

        Args:
            when: Unix microseconds, a datetime or a date (UTC where it names no zone), how long ago as a timedelta,
                or a text that names one of these.
            as_end: return the cut as an end: no event with an older timestamp lies after it, of those that are durable
                now. Where timestamps ascend in each segment it is the same cut.
        """
        choice = self._cuts.fixed(chosen_time(when))
        return await self._cuts.search(self._stream, lambda info: self._cuts.choose(choice, info, is_end=as_end))

    async def after_events(self, count: int, *, start: Place = HEAD) -> StreamCut:
        """Return a cut with exactly so many events between `start` and it, or the tail where there are fewer.

        Of segments that are read side by side each gives a share of them, by what it holds.

        Raises like `reader`.
        """

        async def find(info: StreamInfo) -> StreamCut:
            place = await self._cuts.choose(chosen(start), info)
            return await cut_after_events(self._cuts.reads, info, start=place, count=count)

        return await self._cuts.search(self._stream, find)

    async def after_bytes(self, size_bytes: int, *, start: Place = HEAD) -> StreamCut:
        """Return a cut about so many bytes after `start`, at borders of blocks, or the tail where there are fewer.

        Never more, and of each segment that is read side by side less than a block fewer. Raises like `reader`.
        """

        async def find(info: StreamInfo) -> StreamCut:
            place = await self._cuts.choose(chosen(start), info)
            return await cut_after_bytes(self._cuts.reads, info, start=place, size_bytes=size_bytes)

        return await self._cuts.search(self._stream, find)
