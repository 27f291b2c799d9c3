"""What is below a threshold is one slice, exactly, whatever is killed; and Spark computes the same over it later."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import millrace
from applications.sensors import live
from applications.sensors.recorded import READINGS, SLICES, create, recorded, runs_below, write
from applications.sensors.trial import Watcher, check, write_and_kill
from millrace.client.testing import TestServer

pytestmark = pytest.mark.slow


def test_the_measurements_are_those_of_six_sensors_in_five_years() -> None:
    readings = recorded()

    assert len(readings) == 17_518 + 4 * 1461
    assert readings == sorted(readings, key=lambda reading: reading.timestamp_us)
    runs = runs_below(readings)
    assert {sensor: len(found) for sensor, found in runs.items()} == {
        "KSEA": 8, "KSFO": 12, "seattle-high": 14, "seattle-low": 23, "seattle-wind": 17,
    }  # fmt: skip
    assert [run for found in runs.values() for run in found if not run.is_over] == [runs["seattle-low"][-1]]


@pytest.mark.asyncio
async def test_each_run_is_one_slice_although_everything_is_killed(millrace_server: TestServer, tmp_path: Path) -> None:
    """Behaviours 5, 22, 26 and 61: the job, the server and the connections, while the stream is split and merged."""
    readings = recorded()[-6000:]
    with millrace.testing.chaos(millrace_server, seed=11, every_s=(0.5, 2.0)) as chaos:

        def disturb() -> None:
            # Not without end: on a slow machine nothing would be up for long enough to be started.
            chaos.wait(8, timeout_s=300)
            chaos.stop()

        async with millrace.connect(chaos.address) as client:
            await create(client)
            async with Watcher(chaos.address, log=tmp_path / "log") as watcher:
                await asyncio.gather(write_and_kill(client, watcher, readings), asyncio.to_thread(disturb))
    async with millrace.connect(millrace_server.address) as client:
        count = await check(client, readings)

    assert count == sum(len(runs) for runs in runs_below(readings).values()) > 50
    assert watcher.starts > 6


@pytest.mark.asyncio
@pytest.mark.parametrize("wrong", ["once more", "too long", "too short", "missing"])
async def test_a_wrong_slice_is_seen(millrace_server: TestServer, wrong: str) -> None:
    """The check of the program can fail."""
    readings = recorded()[-400:]
    async with millrace.connect(millrace_server.address) as client:
        await create(client)
        await write(client, readings)
        await live.watch(millrace_server.address, end=millrace.TAIL)
        assert await check(client, readings) > 0
        parts = [part async for part in live.slices(client)]
        closed = next(part for part in parts if part.end is not None)
        assert isinstance(closed.start, millrace.StreamCut)
        by_one = await client.stream_cut(READINGS, after_events=1, start=closed.start)
        changed = {
            "once more": [*parts, closed],
            "too long": [replace(part, end=millrace.TAIL) if part == closed else part for part in parts],
            "too short": [replace(part, end=by_one) if part == closed else part for part in parts],
            "missing": [part for part in parts if part != closed],
        }
        await client.seal_stream(SLICES)
        await client.delete_stream(SLICES)
        await create(client)
        async with client.writer(SLICES) as writer:
            for part in changed[wrong]:
                _ = writer.write(str(part).encode(), key=part.key)
        with pytest.raises(SystemExit, match=r"holds|tell of its slices"):
            await check(client, readings)


@pytest.mark.asyncio
async def test_a_second_watcher_tells_nothing(millrace_server: TestServer) -> None:
    """Behaviour 61: of two that watch from one place, one commits."""
    readings = recorded()[-2000:]
    address = millrace_server.address
    async with millrace.connect(address) as client:
        await create(client)
        await write(client, readings)
        outcomes = await asyncio.gather(
            *(live.watch(address, end=millrace.TAIL) for _ in range(3)), return_exceptions=True
        )
        assert {type(outcome) for outcome in outcomes} <= {type(None), millrace.CursorMovedError}
        await live.watch(address, end=millrace.TAIL)
        await check(client, readings)


@pytest.mark.spark
def test_slices_are_replayed_and_a_week_is_compared() -> None:
    """Behaviours 26, 55 and 79. As a process of its own: the sessions of Spark in one process are one."""
    program = [sys.executable, "-m", "applications.sensors"]
    finished = subprocess.run(program, capture_output=True, text=True, check=False)

    shown = finished.stdout + finished.stderr
    assert finished.returncode == 0, shown
    for piece in ("seattle-wind", "74 times", "a year before", "+", "KSEA", "#seattle-low"):
        assert piece in shown
