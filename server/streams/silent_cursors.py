"""Expiry of cursors: a cursor that is not renewed for as long as it holds ends.

Retention visits the streams with a retention policy anyway. Of the other streams, this keeps the time at which a cursor
may expire next. A stream whose cursors move all the time is visited once a minute, a silent one eight times within the
shortest hold. A visit loads the open segments of the stream, however many were replaced, and a pass visits a bounded
number of streams.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from heapq import nsmallest
from typing import Final

from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.stream import Stream
from millrace.server.errors import ServerError
from millrace.server.kinds.streams.catalog import Catalog
from millrace.server.kinds.streams.commands import StreamCommands
from millrace.server.kinds.writers.uptime import Uptime
from millrace.wire import messages as m

logger = logging.getLogger(__name__)

VISIT_INTERVAL_S: Final = 60.0
"""Between two visits of a stream whose cursors move, or could not be looked at."""
VISITS_PER_HOLD: Final = 8
VISITS_COUNT_MAX: Final = 500
"""Streams that one pass visits; the others wait for the next pass, in the order in which they were due."""


class SilentCursors:
    """The cursors of one container that may expire."""

    def __init__(
        self, container: SegmentContainer, streams: StreamCommands, catalog: Catalog, *, uptime: Uptime
    ) -> None:
        self._clock = container.clock
        self._streams = streams
        self._catalog = catalog
        self._uptime = uptime
        # When the cursors of a stream are looked at next, by its id.
        self._due_s: dict[int, float] = {}
        self._knows_stored = False

    def moved(self, stream_ids: Iterable[int]) -> None:
        """Note that cursors of streams were set or forgotten."""
        later_s = self._clock.monotonic_s() + VISIT_INTERVAL_S
        for stream_id in stream_ids:
            self._due_s[stream_id] = min(self._due_s.get(stream_id, later_s), later_s)

    async def expire(
        self,
        visit: Callable[[int, Callable[[Stream], Awaitable[None]]], Awaitable[bool]],
        *,
        without: Collection[int],
    ) -> None:
        """Forget the silent cursors of the streams that are due.

        Args:
            visit: calls back with a stream that is pinned, if it exists; returns False if that was refused.
            without: streams that are not visited now.
        """
        if not self._knows_stored:
            try:
                self._due_s.update(dict.fromkeys(await self._catalog.with_cursors(), 0.0))
            except ServerError as error:
                logger.warning("cursors of streams not read error=%s", error)
                return
            self._knows_stored = True
        now_s = self._clock.monotonic_s()
        due = (
            (due_s, stream_id)
            for stream_id, due_s in self._due_s.items()
            if due_s <= now_s and stream_id not in without
        )
        for _, stream_id in nsmallest(VISITS_COUNT_MAX, due):
            del self._due_s[stream_id]
            if not await visit(stream_id, self._expire_of):
                self.moved([stream_id])

    async def forget_silent(self, stream: Stream) -> None:
        """Forget the cursors of a stream that were not set for as long as they hold.

        Raises:
            ServerError: the log takes nothing now.
        """
        await self._uptime.record_jump()
        for cut in list(stream.cuts.values()):
            if cut.kind != m.CutKind.CURSOR or not cut.hold_s:
                continue
            if cut.saved_us < self._uptime.old_before_us(cut.hold_s) and await self._streams.forget_cut(
                stream.name, cut.name, kind=cut.kind, saved_us=cut.saved_us
            ):
                logger.info("cursor forgotten stream=%s cursor=%s not_set_for_s=%d", stream.name, cut.name, cut.hold_s)

    async def _expire_of(self, stream: Stream) -> None:
        await self.forget_silent(stream)
        holds_s = [cut.hold_s for cut in stream.cuts.values() if cut.kind == m.CutKind.CURSOR and cut.hold_s]
        if holds_s:
            self._due_s[stream.stream_id] = self._clock.monotonic_s() + min(holds_s) / VISITS_PER_HOLD
