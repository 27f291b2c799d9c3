"""Cuts that the server keeps under a name: bookmarks and cursors.

A *bookmark* is a place worth finding again. A *cursor* says how far a consumer has come: retention by consumption drops
nothing that a cursor has not passed, and `explain_stream` names the cursor that holds bytes back. Each kind has names
of its own.

Setting a cursor is part of reading, so it outlives outages as a reader does.
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.client.read.conditional_cut import cut_before_first
from millrace.client.read.reader import OpenReader
from millrace.client.transport.channel import Channel
from millrace.model.cut import HEAD, TAIL, Place, StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.event import Event
from millrace.model.html_table import html_table, shown_time
from millrace.model.shown import Handle, ShortRepr
from millrace.model.slice import Slice
from millrace.wire import messages as m

HOLD_S_LIMIT: Final = (1 << 32) - 1

UseCuts = Callable[
    [str, Sequence[Place], Callable[[list[StreamCut]], Awaitable[list[StreamCut]]]], Awaitable[list[StreamCut]]
]
"""Resolves cuts of a stream and asks the server something of them, again if it is truncated in between."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SavedCut(ShortRepr):
    """A cut under a name.

    Attributes:
        saved_us: when it was saved, in Unix microseconds of the server's clock.
        hold_s: a cursor is forgotten when it was not set for so long; 0: never.
    """

    name: str
    cut: StreamCut
    saved_us: int
    hold_s: int = 0


class CutList(list[SavedCut]):
    """Saved cuts in the order of their names. A list, which notebooks show as a table."""

    def _repr_html_(self) -> str:
        rows = [(saved.name, saved.cut, shown_time(saved.saved_us)) for saved in self]
        return html_table("saved cuts", ("name", "cut", "saved"), rows)


class _SavedCuts(Handle):
    """The saved cuts of one kind of one stream.

    Args:
        save_timeout_s: of the request that saves a cut, instead of `request_timeout_s` of the options.
    """

    def __init__(
        self, channel: Channel, stream: str, *, kind: m.CutKind, use_cuts: UseCuts, save_timeout_s: float | None = None
    ) -> None:
        self._channel = channel
        self.stream = stream
        self._kind = kind
        self._use_cuts = use_cuts
        self._save_timeout_s = save_timeout_s

    def _facts(self) -> Iterator[str]:
        yield f"of {self.stream} at {self._channel.address}"

    async def list(self) -> CutList:
        """Return all of them, in the order of their names.

        Raises:
            StreamNotFoundError: there is no such stream.
        """
        return CutList(
            SavedCut(
                name=saved.name,
                cut=StreamCut.of(self.stream, {id_: (offset, index) for id_, offset, index in saved.positions}),
                saved_us=saved.saved_us,
                hold_s=saved.hold_s,
            )
            for saved in (await self._channel.request(m.ListCuts(self.stream))).cuts
            if saved.kind == self._kind
        )

    async def get(self, name: str) -> StreamCut | None:
        """Return the cut of that name, None if there is none."""
        return next((saved.cut for saved in await self.list() if saved.name == name), None)

    async def forget(self, name: str) -> bool:
        """Forget the one of that name; False if there is none.

        Raises:
            StreamNotFoundError: there is no such stream.
        """
        return bool((await self._channel.request(m.ForgetCut(self.stream, int(self._kind), name))).changed)

    async def _put(self, cuts: Mapping[str, Place], *, hold_s: float = 0) -> dict[str, StreamCut]:
        async def put(places: list[StreamCut]) -> list[StreamCut]:
            named = [
                m.NamedCut(
                    int(self._kind),
                    name,
                    [m.SavedPosition(segment_id, *where) for segment_id, where in place.positions],
                    math.ceil(hold_s),
                )
                for name, place in zip(cuts, places, strict=True)
            ]
            await self._channel.request(m.SaveCuts(self.stream, named), timeout_s=self._save_timeout_s)
            return places

        if not cuts:
            return {}
        return dict(zip(cuts, await self._use_cuts(self.stream, list(cuts.values()), put), strict=True))


class Bookmarks(_SavedCuts):
    """The bookmarks of a stream: `client.bookmarks(stream)`.

    Args:
        open_reader: opens readers of the stream.
    """

    def __init__(self, channel: Channel, stream: str, *, use_cuts: UseCuts, open_reader: OpenReader) -> None:
        super().__init__(channel, stream, kind=m.CutKind.BOOKMARK, use_cuts=use_cuts)
        self._open_reader = open_reader

    async def save(self, name: str, cut: Place = TAIL) -> StreamCut:
        """Keep a cut under a name, in place of the bookmark of that name; return it, resolved.

        Args:
            cut: a place, as a cut or in words: see `Place`.

        Raises:
            CutInvalidError, CutTruncatedError, OffsetBeyondEndError: the cut does not fit the stream.
            InvalidArgumentError: the name is none, or the stream has too many saved cuts.
        """
        return (await self._put({name: cut}))[name]

    async def save_many(self, cuts: Mapping[str, Place]) -> dict[str, StreamCut]:
        """Keep cuts under names in one step; return them, resolved. Raises like `save`, and then none was kept."""
        return await self._put(cuts)

    async def save_when(
        self,
        name: str,
        holds: Callable[[Event], bool],
        *,
        start: Place = HEAD,
        end: Place | None = None,
    ) -> StreamCut:
        """Keep the cut at which a condition begins to hold, under a name; return it.

        It is before the first event of each segment that meets the condition. None before the cut does. Where segments
        are split or merged before one has come, those that replace them are searched; of segments that are merged with
        one that has it, the cut is at their ends. The same history always has the same cut.

        It waits for events, however long that takes, and nothing is saved before all segments have one: a condition
        that every segment will meet some day, such as a time or a version, is what this is for. To cancel it, or to end
        the program, is safe: another call finds the same.

        Args:
            holds: asked of each event once, in the event loop, in the order of each key, and of no event of a segment
                after the first one that meets it. What it raises is raised, and nothing is saved.
            start: where to begin; what is before it is not asked about.
            end: where to give up: the cut is there in the segments in which nothing before it meets the condition.
                None waits, until the stream is sealed.

        Raises:
            CutInvalidError, CutTruncatedError, OffsetBeyondEndError, CutOrderError: a cut does not fit the stream; or
                it was truncated before all was found.
            InvalidArgumentError: the name is none, or the stream has too many saved cuts.
            StreamNotFoundError: there is no such stream, or it was deleted.
        """
        part = Slice(self.stream, start=start, end=end)
        return await self.save(name, await cut_before_first(self._open_reader, part, holds))


class Cursors(_SavedCuts):
    """The cursors of a stream: `client.cursors(stream)`."""

    async def set(self, name: str, cut: Place = HEAD, *, hold_s: float | None = None) -> StreamCut:
        """Record how far a consumer has read; retention by consumption keeps all after the cut. Return it, resolved.

        Waits while the server is away, for `outage_timeout_s` of the client's options. Cancelling forgets the outcome.

        Args:
            hold_s: the server forgets the cursor when it was not set for so many seconds, not counting those in which
                no server ran: for a consumer that may end without a word. At most 2^32 - 1; None is never. A stream
                that retains everything may keep the cursor for longer.

        Raises:
            CutInvalidError, CutTruncatedError, OffsetBeyondEndError: the cut does not fit the stream.
            InvalidArgumentError: the name is none, `hold_s` is, or the stream has too many saved cuts.
        """
        return (await self.set_many({name: cut}, hold_s=hold_s))[name]

    async def set_many(self, cuts: Mapping[str, Place], *, hold_s: float | None = None) -> dict[str, StreamCut]:
        """Record how far several consumers have read, by their names, in one step; return the cuts, resolved.

        Retention by consumption sees all of them or none: nothing is dropped that one of them has not passed. Raises
        like `set`, and then nothing was recorded.
        """
        if hold_s is not None and not 0 < hold_s < HOLD_S_LIMIT:
            raise InvalidArgumentError(f"hold_s={hold_s} is not above 0 and below 2^32")
        return await self._put(cuts, hold_s=hold_s or 0)
