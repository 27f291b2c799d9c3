"""The cost of the expiry of cursors, counted: segments that are loaded, and visits."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millrace.server.container.state.stream import Stream
from millrace.server.streams.silent_cursors import VISIT_INTERVAL_S, VISITS_COUNT_MAX, SilentCursors
from millrace.wire import messages as m
from millrace.wire.limits import MIB
from tests.server.streams.containers import WHOLE, halves, streams_in
from tests.support.clock import ManualClock
from tests.support.storage import MemoryStorage

pytestmark = pytest.mark.asyncio

DAY_S = 86_400
TICK_S = 6.0


class Visits:
    """Counts the streams that are visited; none of them exists."""

    def __init__(self) -> None:
        self.stream_ids: list[int] = []

    async def __call__(self, stream_id: int, _: Callable[[Stream], Awaitable[None]]) -> bool:
        self.stream_ids.append(stream_id)
        return True

    def take(self) -> list[int]:
        found, self.stream_ids = self.stream_ids, []
        return found


async def test_a_cursor_expires_without_a_look_at_replaced_segments(tmp_path: Path) -> None:
    """Behaviour 106: its cost does not grow with how often the stream was scaled."""
    clock, storage = ManualClock(), MemoryStorage()
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        stream, _ = await streams.controller.create("a/b", segment_count=1, configuration="")
        start = [m.SavedPosition(stream.segment_ids[0], 0, 0)]
        await streams.controller.save_cuts(
            "a/b", [m.NamedCut(2, "dead", start, DAY_S), m.NamedCut(2, "billing", start)]
        )
        for number in range(10):
            for segment_id in stream.open_ids:
                await streams.append(segment_id, b"x")
            ranges = WHOLE if number % 2 else halves()
            stream = await streams.controller.scale(
                "a/b", sealed_ids=stream.open_ids, ranges=ranges, cause="for a test"
            )
        await streams.opened.flusher.flush()
        await streams.opened.flusher.checkpoint()
        assert len(stream.segment_ids) > 10
    async with streams_in(tmp_path, storage=storage, clock=clock, idle_bytes_max=MIB) as streams:
        await streams.run(2 * DAY_S)
        await streams.runner.retain()

        assert list(streams.controller.find("a/b").cuts) == [(m.CutKind.CURSOR, "billing")]
        present = [segment.segment_id for segment in streams.opened.container.state.segments.present()]
        assert sorted(present) == sorted(streams.controller.find("a/b").open_ids)


async def test_a_stream_whose_cursors_move_all_the_time_is_visited_once_a_minute(tmp_path: Path) -> None:
    clock, visits = ManualClock(), Visits()
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=clock) as streams:
        cursors = SilentCursors(streams.opened.container, streams.controller, streams.catalog, uptime=streams.uptime)
        for _ in range(100):
            cursors.moved([7])
            await cursors.expire(visits, without=())
            clock.move(TICK_S)
        assert len(visits.take()) == int(100 * TICK_S / (VISIT_INTERVAL_S + TICK_S))


async def test_one_pass_visits_a_bounded_number_of_streams(tmp_path: Path) -> None:
    clock, visits = ManualClock(), Visits()
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=clock) as streams:
        cursors = SilentCursors(streams.opened.container, streams.controller, streams.catalog, uptime=streams.uptime)
        cursors.moved(range(1, 2 * VISITS_COUNT_MAX))
        clock.move(VISIT_INTERVAL_S)
        await cursors.expire(visits, without=[3])
        assert visits.take() == [1, 2, *range(4, VISITS_COUNT_MAX + 2)]
        await cursors.expire(visits, without=())
        assert visits.take() == [3, *range(VISITS_COUNT_MAX + 2, 2 * VISITS_COUNT_MAX)]
