"""Lag of each cursor, the distance to the tail of its stream: measured on demand, and only where something changed.

A cursor lags further when its stream is written to, and less when it moves. So only these streams are visited, a
bounded number each time it is asked; of all others the last answer holds, but for its age, which is that of an event.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from typing import Final

from millrace.model.lineage import Lineage
from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.stream import Stream
from millrace.server.errors import ServerError
from millrace.server.kinds.streams.catalog import Catalog
from millrace.server.kinds.writers.uptime import Uptime
from millrace.wire import messages as m

VISITED_COUNT_MAX: Final = 1000
"""Streams that are looked at each time it is asked; the others are first at the next time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorLag:
    """What a cursor has not read.

    Attributes:
        oldest_us: when the oldest of it was stored, within a second; 0 if it has read all.
        saved_us: when the cursor was set last, if it ends by not being set; None if it never ends.
    """

    stream: str
    cursor: str
    size_bytes: int
    oldest_us: int
    saved_us: int | None = None


class CursorLags:
    """The lags of the cursors of one container; belongs to the event loop, but for `rows`.

    Args:
        uptime: by which cursors are silent.
        silent_s: cursors that end, and were not set for so long, have no lag any more.
        visited_count_max: streams that are looked at each time it is asked.
    """

    def __init__(
        self,
        container: SegmentContainer,
        catalog: Catalog,
        *,
        uptime: Uptime,
        silent_s: float,
        visited_count_max: int = VISITED_COUNT_MAX,
    ) -> None:
        self._uptime = uptime
        self._silent_s = silent_s
        # Of the last measurement: cursors that end, and were set before this stamp, are silent.
        self._silent_before_us = 0
        self._container = container
        self._catalog = catalog
        self._visited_count_max = visited_count_max
        self._state = container.state
        self._lock = asyncio.Lock()
        # Of streams with cursors; those that have to be looked at.
        self._lags: dict[int, tuple[CursorLag, ...]] = {}
        # The first one has waited longest: what is written to without a pause must not keep others from their turn.
        self._changed: dict[int, None] = {}
        self._knows_stored = False

    def found(self, stream_ids: Iterable[int]) -> None:
        """Know streams whose cursors were set, moved or forgotten."""
        self._changed.update(dict.fromkeys(stream_ids))

    def written(self, stream_ids: set[int]) -> None:
        """Know streams that were written to."""
        self.found(stream_ids & self._lags.keys())

    async def measure(self) -> None:
        """Look at what changed. Safe to cancel.

        Raises:
            StorageError: the checkpoint cannot be read, or a stream not be loaded.
        """
        async with self._lock:
            with suppress(ServerError):  # the log may take nothing now; the border is then as the clock was before
                await self._uptime.record_jump()
            self._silent_before_us = self._uptime.old_before_us(self._silent_s)
            if not self._knows_stored:
                self.found(await self._catalog.with_cursors())
                self._knows_stored = True
            for stream_id in list(islice(self._changed, self._visited_count_max)):
                self._changed.pop(stream_id, None)
                try:
                    with await self._container.loader.pin(m.Required(open_streams=[stream_id])):
                        await self._measure(stream_id)
                except BaseException:
                    self.found([stream_id])
                    raise
                await asyncio.sleep(0)  # many streams must not delay the appends

    def rows(self, count_max: int) -> tuple[list[CursorLag], list[CursorLag]]:
        """Return the cursors that lag most, and all others, without silent ones. May be called from any thread."""
        border_us = self._silent_before_us
        lags = [
            lag
            for of_stream in list(self._lags.values())
            for lag in of_stream
            if lag.saved_us is None or lag.saved_us >= border_us
        ]
        most = nlargest(count_max, lags, key=attrgetter("size_bytes"))
        shown = set(map(id, most))
        return most, [lag for lag in lags if id(lag) not in shown]

    async def _measure(self, stream_id: int) -> None:
        """Measure the cursors of a stream, which is pinned with its open segments."""
        cursors: dict[str, tuple[m.SavedCut, list[int]]] = {}
        stream = self._state.streams.get(stream_id)
        for cut in stream.cuts.values() if stream else ():
            if stream is not None and cut.kind == m.CutKind.CURSOR:
                cursors[cut.name] = cut, _unread(stream, cut)
        if stream is None or not cursors:
            self._lags.pop(stream_id, None)
            return
        # Of the replaced segments only those that a cursor has not passed are loaded.
        segment_ids = {segment_id for _, unread in cursors.values() for segment_id in unread}
        with await self._container.loader.pin(m.Required(segments=sorted(segment_ids))):
            self._lags[stream_id] = tuple(self._lag(stream, cut, unread) for cut, unread in cursors.values())

    def _lag(self, stream: Stream, cut: m.SavedCut, unread: Iterable[int]) -> CursorLag:
        positions = {segment_id: offset for segment_id, offset, _ in cut.positions}
        size_bytes, oldest_us = 0, 0
        for segment_id in unread:
            segment = self._state.segments.get(segment_id)
            if segment is None:
                continue
            offset = max(segment.start_offset, positions.get(segment_id, 0))
            if offset < segment.length:
                size_bytes += segment.length - offset
                entry = segment.index.floor(offset)
                stored_us = segment.created_us if entry is None else entry.wall_time_us
                oldest_us = min(oldest_us or stored_us, stored_us)
        return CursorLag(
            stream=stream.name,
            cursor=cut.name,
            size_bytes=size_bytes,
            oldest_us=oldest_us,
            saved_us=cut.saved_us if cut.hold_s else None,
        )


def _unread(stream: Stream, cut: m.SavedCut) -> list[int]:
    """Return the segments that a cursor has not passed as a whole."""
    ids = [position.segment_id for position in cut.positions]
    if all(stream.part(segment_id) is not None for segment_id in ids):
        parts = stream.parts_around(ids)
        lineage = Lineage(parts)
    else:  # truncated away
        parts, lineage = stream.parts, Lineage(stream.history())
    passed = lineage.before(segment_id for segment_id in ids if segment_id in lineage.by_id)
    return [part.segment_id for part in parts if part.segment_id not in passed]
