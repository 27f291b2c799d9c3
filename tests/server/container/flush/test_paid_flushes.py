"""What a server publishes where flushes are paid for: the real flusher, with segments that trickle."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from millrace.server.container.flush.flusher import DELETES_COUNT_MAX
from millrace.server.container.options import ContainerOptions
from millrace.server.container.state.garbage import DeleteAfter
from millrace.wire.limits import KIB
from tests.support.clock import ManualClock
from tests.support.measured_storage import MeasuredStorage
from tests.support.protocol import Peer
from tests.support.scenario import Run, Scenario
from tests.support.servers import QUIET, SMALL_WAL
from tests.support.waiting import PATIENCE_S

PAID = replace(QUIET, flush_age_s=5.0, small_flushes_per_s_max=4.0, flushes_at_once=4, idle_bytes_max=32 * KIB * KIB)
LARGE_WAL = replace(SMALL_WAL, file_size_bytes=4 * KIB * KIB)


class Trickle:
    """A container whose flusher does what is due when the test says so, and segments that are appended to in turn."""

    def __init__(self, run: Run, peer: Peer, clock: ManualClock, segment_ids: Sequence[int]) -> None:
        self._peer = peer
        self._clock = clock
        self._segment_ids = segment_ids
        self.container = run.container
        self.flusher = run.opened.flusher

    async def run(self, duration_s: float, *, step_s: float = 0.5, payload: bytes = b"x" * 20) -> None:
        """Append to every segment in each step, and let the flusher do what is due."""
        for _ in range(round(duration_s / step_s)):
            for segment_id in self._segment_ids:
                await self._peer.append(segment_id, payload)
            await self._peer.store(self._segment_ids[0], payload)
            self._clock.move(step_s)
            await self.flusher._flush_due()

    @property
    def oldest_s(self) -> float:
        """Age of the oldest bytes that are not in tier 2."""
        tails = [segment.tail for segment in self.container.state.unflushed.values()]
        return max((self._clock.unix_us() - tail.first.wall_time_us) / 1e6 for tail in tails)


async def trickle(run: Run, peer: Peer, clock: ManualClock, count: int) -> Trickle:
    return Trickle(run, peer, clock, [await peer.create_segment(f"raw/{number}") for number in range(count)])


@pytest.mark.slow
@pytest.mark.asyncio
async def test_many_trickling_segments_share_the_budget(scenario: Scenario) -> None:
    """Behaviour 95: at 8 flushes a second each of 200 waits for 25 s; without a budget there were 40 a second."""
    clock = scenario.clock
    storage = scenario.store = MeasuredStorage(scenario.storage, clock=clock)
    container = replace(PAID, small_flushes_per_s_max=8.0)
    scenario.wal = LARGE_WAL
    async with scenario.running(container=container) as run, run.peer() as peer:
        segments = await trickle(run, peer, clock, 200)
        await segments.run(40.0, step_s=2.5)
        assert 8 * 30 <= storage.counts.puts <= 8 * 40 + 8 * 5
        assert 20 < segments.oldest_s < 30


@pytest.mark.asyncio
async def test_tails_that_hold_on_to_the_log_are_flushed_before_it_is_full(scenario: Scenario) -> None:
    """Whatever the budget says: a busy segment is never refused because of others that trickle."""
    clock = scenario.clock
    scenario.wal = SMALL_WAL
    container = replace(PAID, small_flushes_per_s_max=0.001, flush_size_bytes=32 * KIB, checkpoint_interval_s=0.0)
    async with scenario.running(container=container) as run, run.peer() as peer:
        segments = await trickle(run, peer, clock, 20)
        flusher, log = segments.flusher, segments.container.log
        busy = await peer.create_segment("raw/busy")
        flushed_small = 0
        for _ in range(40):
            await segments.run(0.5)
            await peer.store(busy, bytes(32 * KIB))
            small = {each.segment_id for each in flusher._segments_due()} - {busy}
            assert not small or log.fullness > 0.5
            flushed_small += len(small)
            await flusher._flush_due()
            await flusher.checkpoint()
            if flusher._is_copy_due():
                await flusher.copy()
            assert log.fullness < 0.8
        assert flushed_small >= 40


@pytest.mark.asyncio
async def test_many_deletes_let_a_flush_go_first(scenario: Scenario) -> None:
    """A store takes its time for each: a few at once, and of very many only some before the next look."""
    clock = scenario.clock
    storage = scenario.store = MeasuredStorage(scenario.storage, clock=clock)
    container = replace(PAID, flush_size_bytes=KIB)
    async with scenario.running(container=container, in_background=True) as run, run.peer() as peer:
        garbage = run.state.garbage
        segment_id = await peer.create_segment("raw/a")
        storage.requests.clear()
        storage.latency_s = 0.03
        names = [f"segments/00/{number}.chunk" for number in range(DELETES_COUNT_MAX + 40)]
        garbage.add(names, delete_after=DeleteAfter.NOW)
        await peer.store(segment_id, bytes(2 * KIB))  # wakes the flusher
        while not storage.counts.deletes:
            await clock.advance(0.03)
        await peer.store(segment_id, bytes(2 * KIB))
        async with asyncio.timeout(PATIENCE_S):
            while storage.counts.deletes < len(names):
                await clock.advance(0.03)
        storage.latency_s = 0.0
        await clock.advance(0.03)
    assert storage.deletes_at_once_max == 4
    verbs = [verb for verb, _ in storage.requests]
    assert verbs[:2] == ["PUT", "DELETE"]
    assert verbs[: verbs.index("PUT", 1)].count("DELETE") == DELETES_COUNT_MAX


@pytest.mark.asyncio
async def test_what_cannot_be_deleted_now_is_deleted_later(scenario: Scenario) -> None:
    inner = scenario.storage
    storage = scenario.store = MeasuredStorage(inner, clock=scenario.clock)
    async with scenario.running() as run:
        flusher, garbage = run.opened.flusher, run.state.garbage

        def fail(when: str, action: str, name: str) -> None:
            if (when, action) == ("before", "delete") and name.endswith("3.chunk"):
                raise OSError("not now")

        inner.on_step = fail
        garbage.add([f"segments/00/{number}.chunk" for number in range(6)], delete_after=DeleteAfter.NOW)
        with pytest.raises(OSError, match="not now"):
            await flusher._delete_due()
        inner.on_step = lambda when, action, name: None
        assert await flusher._delete_due() == 3  # the one that failed, and those after it
        deleted = [name for verb, name in storage.requests if verb == "DELETE"]
        assert sorted(deleted) == [f"c0000/segments/00/{number}.chunk" for number in (0, 1, 2, 3, 3, 4, 5)]


def test_without_a_bound_nothing_is_paid_for() -> None:
    """Local folders: as before."""
    assert ContainerOptions().small_flushes_per_s_max == 0.0
