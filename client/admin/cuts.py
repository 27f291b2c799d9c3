"""Cuts of streams: checked, resolved and searched for, also while a stream is truncated under the search."""

from collections.abc import Awaitable, Callable, Generator
from datetime import datetime
from typing import Any, TypeVar

from millrace.client.errors import CutTruncatedError, SegmentNotFoundError, SegmentTruncatedError
from millrace.client.read.cut_resolution import cut_after_bytes, cut_after_events, cut_at_time, resolve_cut
from millrace.client.streams import fetch_history, fetch_stream
from millrace.client.transport.channel import Channel
from millrace.model.cut import HEAD, Cut, StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.lineage import StreamPart, parts_of_history
from millrace.model.names import checked_name
from millrace.model.stream import StreamInfo

R = TypeVar("R")


class Cuts:
    """Finds cuts in the streams of one server. Cancelling any of its searches is safe.

    Args:
        timeout_s: of each request, instead of `request_timeout_s` of the options; those of a search keep the latter.
    """

    def __init__(self, *, writes: Channel, reads: Channel, timeout_s: float | None = None) -> None:
        self._writes = writes
        self._timeout_s = timeout_s
        self.reads = reads

    async def resolve(self, cut: Cut, info: StreamInfo) -> StreamCut:
        """Return a cut, checked; segments that the stream no longer has are looked up in its history.

        Raises:
            CutInvalidError, CutTruncatedError, OffsetBeyondEndError: the cut does not fit the stream.
        """
        known: list[StreamPart] = []
        if isinstance(cut, StreamCut) and cut.stream == info.name:
            listed = {segment.segment_id for segment in info.segments}
            if not listed.issuperset(cut.places):
                known = parts_of_history(await fetch_history(self._writes, info.name, timeout_s=self._timeout_s))
        return resolve_cut(cut, info, known=known)

    async def fetch(self, stream: str) -> StreamInfo:
        """Return what a stream is now.

        Raises:
            StreamNotFoundError: there is none.
        """
        return await fetch_stream(self._writes, checked_name(stream, kind="stream"), timeout_s=self._timeout_s)

    async def use(self, stream: str, cut: Cut, use: Callable[[StreamCut], Awaitable[R]]) -> R:
        """Return what the server answers about a cut; about HEAD and TAIL as they are when it does."""
        while True:
            place = await self.resolve(cut, await self.fetch(stream))
            try:
                return await use(place)
            except CutTruncatedError:
                if isinstance(cut, StreamCut):
                    raise
                # The stream was truncated since it was fetched: HEAD is at another place now.

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
        return (await self._cuts.fetch(self._stream)).tail()

    async def head(self) -> StreamCut:
        """Return the cut before everything that is left."""
        return (await self._cuts.fetch(self._stream)).head()

    async def at_time(self, when: int | datetime) -> StreamCut:
        """Return the cut before the first event with this timestamp or a newer one, of all keys.

        Events with the writer's clock as their timestamp are found exactly. One whose caller gave it a timestamp in the
        future of its writing is found too; one that was dated back may be before the cut.

        Args:
            when: Unix microseconds, or a datetime with a time zone.
        """
        timestamp_us = _unix_us(when)
        return await self._cuts.search(self._stream, lambda info: cut_at_time(self._cuts.reads, info, timestamp_us))

    async def after_events(self, count: int, *, start: Cut = HEAD) -> StreamCut:
        """Return a cut with exactly so many events between `start` and it, or the tail where there are fewer.

        Of segments that are read side by side each gives a share of them, by what it holds.

        Raises like `reader`.
        """

        async def find(info: StreamInfo) -> StreamCut:
            place = await self._cuts.resolve(start, info)
            return await cut_after_events(self._cuts.reads, info, start=place, count=count)

        return await self._cuts.search(self._stream, find)

    async def after_bytes(self, size_bytes: int, *, start: Cut = HEAD) -> StreamCut:
        """Return a cut about so many bytes after `start`, at borders of blocks, or the tail where there are fewer.

        Never more, and of each segment that is read side by side less than a block fewer. Raises like `reader`.
        """

        async def find(info: StreamInfo) -> StreamCut:
            place = await self._cuts.resolve(start, info)
            return await cut_after_bytes(self._cuts.reads, info, start=place, size_bytes=size_bytes)

        return await self._cuts.search(self._stream, find)


def _unix_us(when: int | datetime) -> int:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidArgumentError("a datetime without a time zone names no moment")
        return int(when.timestamp() * 1_000_000)
    return when
