"""Saved cuts: bookmarks and cursors, stored on the server by name.

A *bookmark* marks a position. A *cursor* is the position of a consumer: retention by consumption deletes no event that
a cursor has not passed, and `explain_stream` names the cursor that holds bytes back. A bookmark and a cursor may have
the same name.

Setting a cursor is part of reading, so it waits out outages as a reader does.
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
"""Resolves places of a stream and sends a request with the cuts; repeats both if the stream was truncated meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SavedCut(ShortRepr):
    """A named cut on the server.

    Attributes:
        saved_us: when it was saved, in Unix microseconds of the server's clock.
        hold_s: the cursor expires if it is not set for this long; 0 for never.
    """

    name: str
    cut: StreamCut
    saved_us: int
    hold_s: int = 0


class CutList(list[SavedCut]):
    """Saved cuts, sorted by name. Notebooks show the list as a table."""

    def _repr_html_(self) -> str:
        rows = [(saved.name, saved.cut, shown_time(saved.saved_us)) for saved in self]
        return html_table("saved cuts", ("name", "cut", "saved"), rows)


class _SavedCuts(Handle):
    """The saved cuts of one kind of one stream.

    Args:
        save_timeout_s: time limit of the request that saves a cut, instead of `request_timeout_s` of the options.
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
        """Return all, sorted by name.

        Raises:
            StreamNotFoundError: the stream does not exist.
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
        """Return the cut with a name, None if it does not exist."""
        return next((saved.cut for saved in await self.list() if saved.name == name), None)

    async def forget(self, name: str) -> bool:
        """Delete the saved cut with a name; False if it does not exist.

        Raises:
            StreamNotFoundError: the stream does not exist.
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
        """Save a cut under a name, replacing a bookmark of that name; return the resolved cut.

        Args:
            cut: a place, as a cut or in words; see `Place`.

        Raises:
            CutInvalidError, CutTruncatedError, OffsetBeyondEndError: the cut does not fit the stream.
            InvalidArgumentError: the name is invalid, or the stream has too many saved cuts.
        """
        return (await self._put({name: cut}))[name]

    async def save_many(self, cuts: Mapping[str, Place]) -> dict[str, StreamCut]:
        """Save several cuts atomically; return the resolved cuts. Raises like `save`; then none was saved."""
        return await self._put(cuts)

    async def save_when(
        self,
        name: str,
        holds: Callable[[Event], bool],
        *,
        start: Place = HEAD,
        end: Place | None = None,
    ) -> StreamCut:
        """Save the cut before the first events that meet a condition; return it.

        In each segment, the cut is before the first event that meets the condition, so no event before the cut meets
        it. If a segment is split or merged before it has such an event, its successors are searched; if a segment is
        merged with one that has such an event, the cut is at its end. The same history always yields the same cut.

        The call waits for events without a time limit, and saves nothing before every segment has a match. Use it for
        a condition that every segment meets eventually, such as a time or a version. It is safe to cancel, or to kill
        the program: another call finds the same cut.

        Args:
            holds: the condition. It is called once per event, in the event loop, in the order of each key, and for no
                event of a segment after its first match. If it raises, nothing is saved.
            start: where the search begins.
            end: where the search ends: in segments without a match before it, the cut is at `end`. None searches until
                the stream is sealed.

        Raises:
            CutInvalidError, CutTruncatedError, OffsetBeyondEndError, CutOrderError: a cut does not fit the stream; or
                the stream was truncated during the search.
            InvalidArgumentError: the name is invalid, or the stream has too many saved cuts.
            StreamNotFoundError: the stream does not exist, or was deleted.
        """
        part = Slice(self.stream, start=start, end=end)
        return await self.save(name, await cut_before_first(self._open_reader, part, holds))


class Cursors(_SavedCuts):
    """The cursors of a stream: `client.cursors(stream)`."""

    async def set(self, name: str, cut: Place = HEAD, *, hold_s: float | None = None) -> StreamCut:
        """Set or create a cursor: retention by consumption keeps all events after it. Return the resolved cut.

        Waits out an outage of the server for up to `outage_timeout_s` of the client's options. If cancelled, the cursor
        may or may not be set.

        Args:
            hold_s: the cursor expires if it is not set for this many seconds of server uptime, for a consumer that may
                disappear. At most 2^32 - 1; None for never. A stream that retains everything may keep it for longer.

        Raises:
            CutInvalidError, CutTruncatedError, OffsetBeyondEndError: the cut does not fit the stream.
            InvalidArgumentError: the name or `hold_s` is invalid, or the stream has too many saved cuts.
        """
        return (await self.set_many({name: cut}, hold_s=hold_s))[name]

    async def set_many(self, cuts: Mapping[str, Place], *, hold_s: float | None = None) -> dict[str, StreamCut]:
        """Set several cursors atomically, by name; return the resolved cuts.

        Retention by consumption sees all of them or none, so it deletes no event that one of them has not passed.
        Raises like `set`; then no cursor was set.
        """
        if hold_s is not None and not 0 < hold_s < HOLD_S_LIMIT:
            raise InvalidArgumentError(f"hold_s={hold_s} must be above 0 and below 2^32")
        return await self._put(cuts, hold_s=hold_s or 0)
