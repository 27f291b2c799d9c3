"""A producer in a process of its own, which is killed, or put to sleep and replaced, and always continues.

It writes the numbers of its life under one key with a writer id, and under another key without one. The first must be
there once each, whatever happens; of the second everything that was acknowledged, and of the rest each at most once.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

FENCED = 3
UNKNOWN = 4
"""What it sent last went to a segment that is truncated away by now, and nothing says whether it had been stored."""

PROGRAM = '''
import asyncio, os, random, sys, threading, traceback
import millrace

def lines_of_input():
    """A queue that a thread fills which nobody waits for at the end."""
    lines, loop = asyncio.Queue(), asyncio.get_running_loop()
    def listen():
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
    threading.Thread(target=listen, daemon=True).start()
    return lines

async def produce(address, stream, name, key_of_unnamed, seed):
    dice = random.Random(seed)
    client = millrace.connect(address)  # not entered: it connects when it must, again and again while nothing is there
    try:
        async with client.writer(stream, writer_id=name) as named, client.writer(stream) as unnamed:
            # Whoever had the id before stores nothing more from here on.
            print("open", sum(named.last_event_numbers.values()), flush=True)
            lines = lines_of_input()
            number = int(await lines.get())
            of_unnamed = 0
            while lines.empty():
                for _ in range(dice.randint(1, 40)):
                    named.write(b"%d" % number, key=name)
                    unnamed.write(b"%d" % of_unnamed, key=key_of_unnamed)
                    number, of_unnamed = number + 1, of_unnamed + 1
                if dice.random() < 0.3:
                    await named.flush()
                    await unnamed.flush()
                    print("stored", number, of_unnamed, flush=True)
                await asyncio.sleep(dice.random() * 0.02)
                await named.drain()
                await unnamed.drain()
            await named.flush()
            await unnamed.flush()
            print("stored", number, of_unnamed, flush=True)
    finally:
        await client.close()

try:
    asyncio.run(produce(*sys.argv[1:]))
except millrace.WriterFencedError:
    os._exit(3)
except millrace.OutcomeUnknownError as error:
    print(error, file=sys.stderr)
    os._exit(4)
except BaseException:
    traceback.print_exc()
    os._exit(1)
'''


@dataclass
class Producer:
    """One producer over all its lives.

    Attributes:
        count: numbers 0 up to, not with, this one must be there under `name`; known once it has ended.
        stored: by the key of each life without an id, how many were acknowledged at least.
    """

    address: str
    stream: str
    name: str
    dice: random.Random
    count_stored: Callable[[str], Awaitable[int]]
    is_truncated: bool
    count: int = 0
    stored: dict[str, int] = field(default_factory=dict)
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
        await sleeper.listening
        assert code == FENCED or (code == UNKNOWN and self.is_truncated), (
            f"{self.name}: the older one ended with {code}"
        )
        self.fenced += code == FENCED


@dataclass
class _Life:
    """One process of a producer."""

    owner: Producer
    process: Process
    key_of_unnamed: str
    listening: asyncio.Task[None]

    @classmethod
    async def begin(cls, owner: Producer) -> "_Life":
        """Start a process, and tell it where to continue."""
        key = f"{owner.name}/{len(owner.stored)}"
        owner.stored[key] = 0
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, owner.address, owner.stream, owner.name, key, str(owner.dice.random()),
            stdin=PIPE, stdout=PIPE, env=os.environ,
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
            assert stored >= owner.count, f"{owner.name}: {owner.count} were acknowledged, {stored} are there"
            process.stdin.write(b"%d\n" % stored)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
            raise
        life = cls(owner, process, key, asyncio.create_task(_nothing()))
        life.listening = asyncio.create_task(life._listen(), name=f"what {owner.name} says")
        return life

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if not line.endswith(b"\n"):
                return  # killed in the middle of a word
            _, count, of_unnamed = line.split()
            self.owner.count = max(self.owner.count, int(count))
            self.owner.stored[self.key_of_unnamed] = int(of_unnamed)

    async def end(self) -> bool:
        """Let it flush and end by itself; return whether it could, or does not know what became of its last events."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"end\n")
        code = await self.process.wait()
        await self.listening
        assert code == 0 or (code == UNKNOWN and self.owner.is_truncated), f"{self.owner.name} ended with {code}"
        return code == 0

    async def kill(self) -> None:
        """Kill it if it lives, and hear what it had said."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self.listening


async def _nothing() -> None:
    pass
