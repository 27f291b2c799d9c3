"""A client in a process of its own, which is killed and started again until it may end by itself."""

import asyncio
import os
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.crash.processes import kill, signal_child
from tests.crash.transactions import program

ROOT: Final = Path(__file__).resolve().parents[3]
START_S: Final = 0.7
"""How long a process takes to start where nothing else runs."""


@dataclass
class ClientProcess:
    """One client over all of its lives.

    Attributes:
        hear: called with the words of each line that it says.
        arguments: for the next life.
        resume: what the next life is told first.
        life_s_max: it is killed before it is older; on a slow machine it lives as much longer as it takes to start.
        has_begun: set once the first life has begun.
    """

    role: str
    name: str
    address: str
    histories: Path
    dice: random.Random
    hear: Callable[..., None]
    arguments: Callable[[], Iterable[str]] = tuple
    resume: Callable[[], Iterable[str]] = tuple
    life_s_max: float = 10.0
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    kills: int = 0
    _lives: int = 0
    _slowness: float = 1.0
    _process: Process | None = field(default=None, repr=False)

    async def run(self, is_over: asyncio.Event) -> None:
        """Live, die and live again until it is over; then end as a program should."""
        while True:
            process = await self._start()
            try:
                async with asyncio.TaskGroup() as tasks:
                    listening = tasks.create_task(self._listen(process))
                    ending = tasks.create_task(is_over.wait())
                    await asyncio.wait(
                        [listening, ending], timeout=self.dice.uniform(0.3, self.life_s_max) * self._slowness,
                        return_when=asyncio.FIRST_COMPLETED,
                    )  # fmt: skip
                    has_ended = ending.done()
                    ending.cancel()
                    if has_ended:
                        self.tell(program.END)
                    elif not listening.done():
                        kill(process.pid)
                        self.kills += 1
                code = await process.wait()
            finally:
                await self._end(process)
            assert code == 0 if has_ended else code == -signal.SIGKILL, f"{self.name} failed by itself: {code}"
            if has_ended:
                return

    def tell(self, line: str) -> None:
        """Tell it a line, if it lives."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n".encode())

    async def stand_still(self, seconds: float) -> None:
        """Stop the process that lives now for some seconds (SIGSTOP), unless it is killed meanwhile."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        signal_child(process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            if process.returncode is None:
                signal_child(process.pid, signal.SIGCONT)

    async def _start(self) -> Process:
        """Start the next life, and return when it has begun."""
        self._lives += 1
        started_s = time.monotonic()
        history = self.histories / f"{self.name}-{self._lives}.jsonl"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", program.__name__, self.role, self.address, self.name, str(self._lives),
            str(self.dice.random()), str(history), *self.arguments(),
            stdin=PIPE, stdout=PIPE, env=os.environ, cwd=ROOT,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            assert await process.stdout.readline() == b"ready\n", f"{self.name} did not start"
        except BaseException:
            await self._end(process)
            raise
        self._slowness = max(1.0, (time.monotonic() - started_s) / START_S)
        self._process = process
        self.has_begun.set()
        for line in self.resume():
            self.tell(line)
        return process

    async def _end(self, process: Process) -> None:
        """Leave no process, whatever failed."""
        self._process = None
        if process.returncode is None:
            kill(process.pid)
            await process.wait()

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if line.endswith(b"\n"):
                self.hear(*line.decode().split())
