"""Uptime on a real container, under clocks that the test moves."""

from pathlib import Path

import pytest

from millrace.server.kinds.writers.expiry_plan import step_us
from millrace.server.kinds.writers.options import WritersOptions
from millrace.server.kinds.writers.uptime import boot_id
from tests.server.streams.containers import streams_in
from tests.support.clock import ManualClock
from tests.support.storage import MemoryStorage

S = 1_000_000
STEP_US = step_us(WritersOptions())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_the_machine_names_its_start() -> None:
    assert boot_id() == boot_id()


@pytest.mark.asyncio
async def test_it_counts_over_restarts_what_was_recorded(tmp_path: Path, clock: ManualClock) -> None:
    storage = MemoryStorage()
    for run in range(3):
        async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
            assert streams.uptime.now_us() == run * 100 * S
            clock.move(100.0)
            await streams.uptime.record()
            clock.move(50.0)  # lost
            assert streams.uptime.now_us() == (run * 100 + 150) * S
        clock.move(1e9)  # off


@pytest.mark.asyncio
async def test_of_the_time_in_which_the_process_was_stopped_a_step_counts(tmp_path: Path, clock: ManualClock) -> None:
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=clock) as streams:
        clock.move(1e9)
        assert streams.uptime.record_interval_s == 600.0 < STEP_US / 2e6
        assert streams.uptime.now_us() == STEP_US
        await streams.uptime.record()
        clock.move(1.0)
        assert streams.uptime.now_us() == STEP_US + S


@pytest.mark.asyncio
async def test_a_reading_is_recorded_when_the_wall_clock_jumps(tmp_path: Path, clock: ManualClock) -> None:
    start_us = clock.unix_us()
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=clock) as streams:
        history = streams.opened.container.state.scalars.clock_history
        await streams.uptime.record_jump()
        assert history.anchors == [(0, start_us)]
        clock.move(10.0)
        await streams.uptime.record_jump()
        assert (len(history.anchors), streams.opened.container.state.scalars.uptime_us) == (1, 0)
        clock.jump_wall(1000 * S)
        await streams.uptime.record_jump()
        assert history.anchors[1:] == [(10 * S, start_us + 1010 * S)]
        assert streams.uptime.old_before_us(4.0) == start_us + 6 * S
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=clock) as streams:
        assert streams.opened.container.state.scalars.clock_history.anchors == history.anchors


@pytest.mark.asyncio
async def test_a_clock_may_have_been_set_back_right_after_the_last_look(tmp_path: Path, clock: ManualClock) -> None:
    """Behaviour 25: what was stamped between the jump and its reading is young, also right after a restart."""
    storage = MemoryStorage()
    start_us = clock.unix_us()
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        await streams.uptime.record()
        await streams.run(1000.0)
        clock.jump_wall(-500 * S)
        stamp_us = clock.unix_us()
        clock.move(2.0)
        for _ in range(3):
            await streams.uptime.record_jump()
            assert streams.uptime.old_before_us(5.0) <= stamp_us
            assert streams.uptime.old_before_us(900.0) == start_us + 102 * S
    clock.jump_wall(-500 * S)
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        stamp_us = clock.unix_us()
        clock.move(2.0)
        await streams.uptime.record_jump()
        assert streams.uptime.old_before_us(5.0) <= stamp_us


@pytest.mark.asyncio
async def test_what_streams_hold_grows_older_while_the_machine_runs(tmp_path: Path, clock: ManualClock) -> None:
    """Neither a restart loses a second of it, nor the time in which no server runs."""
    storage = MemoryStorage()
    start_us = clock.unix_us()
    for run in range(3):
        async with streams_in(tmp_path, storage=storage, clock=clock, boot="of monday") as streams:
            await streams.uptime.record()
            assert streams.uptime.now_us() == 0
            assert streams.uptime.old_before_us(run * 86_400.0) == start_us
            assert streams.uptime.old_before_us(run * 86_400.0 + 1) < start_us
            assert len(streams.opened.container.state.scalars.clock_history.anchors) == 1
            if run == 1:
                await streams.opened.flusher.checkpoint()
        clock.move(86_400.0)
    async with streams_in(tmp_path, storage=storage, clock=clock, boot="of friday") as streams:
        await streams.uptime.record()
        assert streams.uptime.old_before_us(2 * 86_400.0) == start_us
        assert streams.uptime.old_before_us(2 * 86_400.0 + 1) < start_us


@pytest.mark.asyncio
async def test_readings_are_in_the_checkpoint(tmp_path: Path, clock: ManualClock) -> None:
    storage = MemoryStorage()
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        await streams.uptime.record()
        clock.jump_wall(1000 * S)
        await streams.uptime.record()
        anchors = streams.opened.container.state.scalars.clock_history.anchors
        await streams.opened.flusher.checkpoint()
    assert len(anchors) == 2
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        assert streams.opened.container.state.scalars.clock_history.anchors == anchors
