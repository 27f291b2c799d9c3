"""The live job on trial: it is killed again and again, the stream is split and merged, and what it told is checked."""

import asyncio
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import millrace

from . import live
from .recorded import READINGS, SEGMENTS, SLICES, Reading, reading_of, runs_below, write

PATIENCE_S: Final = 300.0


class Watcher:
    """The live job as a process, which is started again whenever it ends. An async context manager.

    Attributes:
        starts: how often it was started.
    """

    def __init__(self, address: str, *, log: Path) -> None:
        self._command = (sys.executable, "-m", live.__name__, address)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.starts = 0

    async def __aenter__(self) -> Self:
        """Start it."""
        self._task = asyncio.create_task(self._run(), name="keep the watcher running")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it, and start it no more."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def kill(self) -> None:
        """Kill it, wherever it is in its work (SIGKILL)."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _run(self) -> None:
        with self._log.open("ab") as log:
            while True:
                self._process = await asyncio.create_subprocess_exec(*self._command, stdout=log, stderr=log)
                self.starts += 1
                try:
                    await self._process.wait()
                finally:
                    self.kill()
                    await self._process.wait()


async def write_and_kill(client: millrace.Client, watcher: Watcher, readings: list[Reading], *, parts: int = 6) -> None:
    """Write measurements in parts; kill the watcher and scale the stream in the middle of each; wait until all is told.

    Nothing may be told before.

    Raises:
        SystemExit: less was told than should be.
    """
    size = -(-len(readings) // parts)
    before = 0
    async with client.reader(SLICES) as told:
        for number in range(parts):
            await write(client, readings[number * size : (number + 1) * size])
            expected = told_count(readings[: (number + 1) * size])
            middle = (before + expected) // 2
            await take(told, middle - before)
            watcher.kill()
            scaling = millrace.ScalingPolicy.fixed(SEGMENTS if number % 2 else 2 * SEGMENTS)
            await client.update_stream(READINGS, millrace.StreamConfig(scaling=scaling))
            await take(told, expected - middle)
            before = expected


def told_count(readings: list[Reading]) -> int:
    """Return how many events there have to be in the stream of slices."""
    return sum(1 + run.is_over for runs in runs_below(readings).values() for run in runs)


async def take(reader: millrace.Reader, count: int) -> list[millrace.Event]:
    """Return the next events of a stream.

    Raises:
        SystemExit: they do not come.
    """
    events: list[millrace.Event] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(events) < count:
                events.append(await anext(reader))
    except TimeoutError:
        raise SystemExit(f"{reader.stream}: {len(events)} of {count} events came within {PATIENCE_S:g} s") from None
    return events


async def check(client: millrace.Client, readings: list[Reading]) -> int:
    """Check that each run below a threshold is one slice, which holds exactly that run; return how many there are.

    Raises:
        SystemExit: a slice is missing, is there twice, or holds something else.
    """
    told: defaultdict[str | None, list[millrace.Slice]] = defaultdict(list)
    async for part in live.slices(client):
        told[part.key].append(part)
    expected = runs_below(readings)
    if told.keys() - expected.keys():
        raise SystemExit(f"slices of {sorted(map(str, told.keys() - expected.keys()))}, which nobody watches")
    for sensor, runs in expected.items():
        count = sum(1 + run.is_over for run in runs)
        if len(told[sensor]) != count:
            raise SystemExit(f"{sensor}: {len(told[sensor])} events tell of its slices in place of {count}")
        parts = iter(told[sensor])
        for run in runs:
            opened = next(parts)
            part = next(parts) if run.is_over else replace(opened, end=millrace.TAIL)
            if opened != replace(part, end=None):
                raise SystemExit(f"{opened} was followed by {part}")
            async with client.reader(part) as reader:
                held = [reading_of(event) async for event in reader]
            if held != run.readings:
                raise SystemExit(f"{part} holds {held} in place of {run.readings}")
    return sum(map(len, expected.values()))
