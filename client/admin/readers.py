"""Opens readers of one stream or slice, of several streams, and of streams that match patterns."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypedDict

from millrace.client.errors import StreamNotFoundError
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.client.read.streams_reader import StreamsReader
from millrace.client.transport.channel import Channel
from millrace.model.cut import HEAD, TAIL, CutChoice, Place, StreamCut, chosen
from millrace.model.errors import InvalidArgumentError
from millrace.model.selection import Selection
from millrace.model.slice import Slice, slice_of
from millrace.model.stream import StreamInfo
from millrace.wire import messages as m
from millrace.wire.limits import LIST_PAGE_COUNT_MAX

from .cuts import Cuts

Choices = Place | Mapping[str, Place]
"""One place for all streams, or a mapping by name."""
StreamList = list[str] | list[Slice] | list[str | Slice]


class ReadOne(TypedDict, total=False):
    """Arguments for one stream; see `Client.reader`."""

    start: Place
    end: Place | None
    key: str | None
    options: ReaderOptions | None


class ReadSeveral(TypedDict, total=False):
    """Arguments for several streams; see `Client.reader`."""

    start: Choices
    end: Choices | None
    key: str | None
    options: ReaderOptions | None


class Readers:
    """Opens readers of the streams of one server."""

    def __init__(self, *, writes: Channel, reads: Channel, cuts: Cuts) -> None:
        self._writes = writes
        self._reads = reads
        self._cuts = cuts

    async def open(self, part: Slice, options: ReaderOptions) -> Reader:
        """Return a reader of a slice, to be entered. Raises like `Client.reader`."""

        async def resolve(info: StreamInfo) -> tuple[StreamInfo, StreamCut, StreamCut | None]:
            return info, *await self._cuts.bounds(part, info)

        if part.end is None and part.start in (HEAD, TAIL):
            # Segments replaced before the tail are not read; successors of the head are fetched as the reader proceeds.
            place = m.AT_HEAD if part.start is HEAD else m.NOT_REPLACED
            found = await resolve(await self._cuts.fetch(part.stream, replaced_from=place))
        else:
            found = await self._cuts.search(part.stream, resolve)
        info, first, last = found
        return Reader(
            self._reads, info, start=first, end=last, options=options, key=part.key, is_from_head=part.start is HEAD
        )

    @asynccontextmanager
    async def one(self, part: Slice, options: ReaderOptions) -> AsyncIterator[Reader]:
        """Return a reader of a slice. Raises like `Client.reader`."""
        async with await self.open(part, options) as reader:
            yield reader

    @asynccontextmanager
    async def several(
        self,
        streams: Sequence[str | Slice],
        *,
        start: Choices,
        end: Choices | None,
        key: str | None,
        options: ReaderOptions,
    ) -> AsyncIterator[StreamsReader]:
        """Return a reader of several streams. Raises like `Client.reader`."""
        slices = {each.stream: each for each in streams if isinstance(each, Slice)}
        selection = Selection.of(each.stream if isinstance(each, Slice) else each for each in streams)
        for choices in (start, end):
            if isinstance(choices, Mapping):
                _check_names(choices, selection)
        names = await self.names(selection)
        start, end = self._fixed(start), None if end is None else self._fixed(end)

        def part_of(name: str, *, is_new: bool = False) -> Slice:
            if name in slices:
                return slices[name]
            first = start.get(name, HEAD) if isinstance(start, Mapping) else start
            if isinstance(end, Mapping) and name not in end:
                raise InvalidArgumentError(f"the mapping of ends has no entry for {name}")
            last = end[name] if isinstance(end, Mapping) else end
            return slice_of(name, start=HEAD if is_new else first, end=last, key=key)

        async def discover() -> list[Slice]:
            return [part_of(name, is_new=True) for name in await self.names(selection) if name not in slices]

        async with StreamsReader(
            self._reads,
            await self._at_one_moment([part_of(name) for name in names], named=selection.names),
            named=selection.names,
            open_reader=self.open,
            # With an end, the set of streams is fixed.
            discover=discover if selection.patterns and end is None else None,
            options=options,
        ) as reader:
            yield reader

    def _fixed(self, choices: Choices) -> CutChoice | Mapping[str, CutChoice]:
        """Return choices in which time spans ago are resolved to times, the same for all streams."""
        if isinstance(choices, Mapping):
            return {name: self._cuts.fixed(chosen(choice)) for name, choice in choices.items()}
        return self._cuts.fixed(chosen(choices))

    async def names(self, selection: Selection) -> list[str]:
        """Return the names of a selection: the given ones, and those that match a pattern now."""
        names = dict.fromkeys(selection.names)
        for prefix in selection.prefixes:
            names.update(dict.fromkeys([name async for name in self.listed(prefix) if selection.matches(name)]))
        return list(names)

    async def listed(self, prefix: str, *, tag: str = "", after: str = "") -> AsyncIterator[str]:
        """Yield the names of streams in ascending order; see `StreamControl.list_streams`."""
        while True:
            page = await self._writes.request(m.ListStreams(prefix, after, LIST_PAGE_COUNT_MAX, tag))
            for name in page.names:
                yield name.name
            if not page.more or not page.names:
                return
            after = page.names[-1].name

    async def tails(self, names: Iterable[str], *, named: Collection[str]) -> dict[str, StreamCut]:
        """Return the tails of streams, all at one moment.

        Args:
            names: the streams; some may have been deleted since they were listed.
            named: the streams that must exist; other deleted streams are left out.

        Raises:
            StreamNotFoundError: a stream in `named` does not exist.
            InvalidArgumentError: too many streams for one reply.
        """
        left = dict.fromkeys(names)
        while True:
            try:
                reply = await self._writes.request(m.GetTails([m.NamedStream(name) for name in left]))
            except StreamNotFoundError as error:
                if error.subject in named or error.subject not in left:
                    raise
                del left[error.subject]
                continue
            return {
                tail.name: StreamCut.of(tail.name, {segment_id: (offset, 0) for segment_id, offset in tail.positions})
                for tail in reply.tails
            }

    async def _at_one_moment(self, parts: Sequence[Slice], *, named: Collection[str]) -> list[Slice]:
        """Return slices in which TAIL is replaced by the tails of all streams at one moment.

        Slices of deleted streams that are not in `named` are left out.
        """
        names = [part.stream for part in parts if TAIL in (part.start, part.end)]
        tails = await self.tails(names, named=named) if names else {}
        gone = {*names} - {*tails}
        return [
            replace(
                part,
                start=tails[part.stream] if part.start is TAIL else part.start,
                end=tails[part.stream] if part.end is TAIL else part.end,
            )
            for part in parts
            if part.stream not in gone
        ]


def _check_names(choices: Mapping[str, Place], selection: Selection) -> None:
    unread = [name for name in choices if name not in selection.names and not selection.matches(name)]
    if unread:
        raise InvalidArgumentError(f"cuts are given for streams that are not read: {', '.join(unread)[:200]}")
