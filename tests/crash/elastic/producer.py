"""A producer in a process of its own, which is killed, or put to sleep and replaced, and always continues.

It writes the numbers of its life under one key with a writer id, and under another key without one, and each process
records what it writes and is told.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.crash.elastic import program
from tests.crash.elastic.program import FENCED, UNKNOWN

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Producer:
    """One producer over all its lives, each of which records its history in a file of the folder."""

    address: str
    stream: str
    name: str
    dice: random.Random
    histories: Path
    count_stored: Callable[[str], Awaitable[int]]
    is_truncated: bool
    lives: int = 0
    kills: int = 0
    fenced: int = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Live, die and live again until it is over; then end as a program should."""
        lives: list[_Life] = []
        try:
            while True:
                lives.append(await _Life.begin(self))
                if len(lives) > 1:
                    await self._wake(lives.pop(0))
                (life,) = lives
                while not is_over() and life.process.returncode is None:
                    await asyncio.sleep(self.dice.uniform(0.1, 1.0))
                    if self.dice.random() < 0.5:
                        break
                if is_over() and await life.end():
                    return
                if self.dice.random() < 0.3 and life.process.returncode is None:
                    life.process.send_signal(signal.SIGSTOP)
                else:
                    await lives.pop().kill()
                    self.kills += 1
        finally:
            for life in lives:
                await life.kill()

    async def _wake(self, sleeper: "_Life") -> None:
        """Let a process continue whose id another one has taken: it must notice."""
        sleeper.process.send_signal(signal.SIGCONT)
        code = await sleeper.process.wait()
        assert code == FENCED or (code == UNKNOWN and self.is_truncated), (
            f"{self.name}: the older one ended with {code}"
        )
        self.fenced += code == FENCED


@dataclass
class _Life:
    """One process of a producer."""

    owner: Producer
    process: Process

    @classmethod
    async def begin(cls, owner: Producer) -> "_Life":
        """Start a process, and tell it where to continue."""
        owner.lives += 1
        key, history = f"{owner.name}/{owner.lives}", owner.histories / f"{owner.name}-{owner.lives}.jsonl"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", program.__name__, owner.address, owner.stream, owner.name, key,
            str(owner.dice.random()), str(history),
            stdin=PIPE, stdout=PIPE, env=os.environ, cwd=ROOT,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            word, counted = (await process.stdout.readline()).split()
            assert word == b"open"
            # Asked only now that nobody else writes under the id.
            stored = await owner.count_stored(owner.name)
            if not owner.is_truncated:  # what is truncated is counted by no writer any more
                assert int(counted) == stored, f"{owner.name}: its writer counts {int(counted)}, a reader {stored}"
            process.stdin.write(b"%d\n" % stored)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
            raise
        return cls(owner, process)

    async def end(self) -> bool:
        """Let it flush and end by itself; return whether it could, or does not know what became of its last events."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"end\n")
        code = await self.process.wait()
        assert code == 0 or (code == UNKNOWN and self.owner.is_truncated), f"{self.owner.name} ended with {code}"
        return code == 0

    async def kill(self) -> None:
        """Kill it if it lives."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
