"""A server, its clients, and what befalls them: one seed is one course of events, and the same one each time."""

import asyncio
import hashlib
import itertools
import logging
import os
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from unittest import mock

import millrace
from millrace.client.client import Client
from millrace.wire.limits import KIB, MIB
from tests.crash.patience import PATIENT
from tests.crash.recorded_reads import RecordedRead, record_lineage
from tests.crash.transactions.accounting import Books
from tests.crash.transactions.queries import recorded_producer
from tests.crash.transactions.recorded import recorded_outcome
from tests.simulation.virtual_loop import Life, end_tasks
from tests.support.files import SteppedFileSystem
from tests.support.history import Recorder, check
from tests.support.servers import BUSY, SMALL_WAL

from .hashes import repeatable_hashes
from .loop import ServerLoop
from .machine import ADDRESS, Machine, WorldClock

PATIENCE_S: Final = 3600.0
"""Virtual time after which something waits for what never comes. It is beyond all leases and their expiries."""
STORY_COUNT_MAX: Final = 200
"""Of the faults, the last ones are shown."""

Fault = Callable[["World", Random], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Part:
    """One life of a client, which plays a role.

    Attributes:
        number: of the life, from 1.
        recorder: of the whole history.
    """

    world: "World"
    name: str
    number: int
    client: Client
    dice: Random

    @property
    def recorder(self) -> Recorder:
        return self.world.recorder

    def is_over(self) -> bool:
        """Whether the role should come to its end."""
        return self.world.is_over


@dataclass(frozen=True, slots=True)
class Role:
    """What a client does until the end, in one life after the other.

    Attributes:
        play: one life of it.
        is_mortal: whether its process is killed now and then.
    """

    name: str
    play: Callable[[Part], Coroutine[Any, Any, None]]
    is_mortal: bool = False


@dataclass(frozen=True, slots=True)
class Torture:
    """Who acts on which streams, and what befalls them.

    Attributes:
        clients: their roles. They come to an end one after the other, the last one first.
        disturbers: the roles that end before them.
        faults: how often each one happens, compared with the others.
        producers: the ids of producers whose state a restart must leave as it is.
        judge: asserts what is true of the events of this torture, apart from the checker of histories.
        idle_bytes: of what the caches of idle entities hold, one is drawn.
        checkpoints_s: of the intervals of checkpoints, one is drawn.
        syncs_s: of the mean times of a sync of the log, one is drawn.
        pause_s: the mean time between two faults.
        seconds: how long all this goes on, in virtual time.
    """

    name: str
    streams: tuple[str, ...]
    clients: tuple[Role, ...]
    disturbers: tuple[Role, ...]
    faults: Mapping[Fault, int]
    producers: tuple[str, ...] = ()
    judge: Callable[["World"], Coroutine[Any, Any, None]] | None = None
    idle_bytes: tuple[int, ...] = (0, 0, 4 * KIB, MIB)
    checkpoints_s: tuple[float, ...] = (0.05, 0.05, 0.5, 3600.0)
    syncs_s: tuple[float, ...] = (0.0, 0.002, 0.02)
    pause_s: float = 0.5
    seconds: float = 4.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a seed.

    Attributes:
        trace: a hash of all that happened, in its order.
        reached: how often which rare branch was reached.
    """

    torture: str
    seed: int
    violations: tuple[str, ...]
    story: tuple[str, ...]
    counted: Counter[str]
    reached: Counter[str]
    trace: str

    def __str__(self) -> str:
        replay = f"seed {self.seed}: python -m tests.simulation --torture {self.torture} --only {self.seed}"
        return "\n".join([*self.story, "", replay, *self.violations])


def run_torture(torture: Torture, seed: int, *, files: SteppedFileSystem | None = None) -> Outcome:
    """Run the course of events of a seed, and judge it.

    Args:
        files: the disk, in place of one that loses nothing that was synced.
    """
    dice = Random(f"{torture.name}/{seed}")
    loop = ServerLoop(Random(dice.getrandbits(64)))
    with _repeatable_chance(Random(dice.getrandbits(64))), repeatable_hashes(), _reached() as reached:
        world = World(loop, dice, torture, files or SteppedFileSystem())
        try:
            try:
                loop.run_until_complete(world.run())
            except Exception as error:  # noqa: BLE001  # of a mutant, or of the simulation: it is told with its seed
                world.violated(f"ERROR: {error!r}")
            for text in loop.errors:
                world.violated(f"ERROR: {text}")
            outcome = world.outcome(seed, reached)
            loop.run_until_complete(world.clear())
            loop.run_until_complete(loop.shutdown_asyncgens())
            return outcome
        finally:
            loop.threads.end()
            loop.close()


@contextmanager
def _repeatable_chance(dice: Random) -> Iterator[None]:
    """Draw what is otherwise drawn by the system, such as identities, from a seed."""
    with mock.patch.object(os, "urandom", dice.randbytes), mock.patch.object(random, "_urandom", dice.randbytes):
        yield


class _Phrases(logging.Handler):
    """Counts what is logged, by its fixed phrase: most rare branches of the product log one."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.counted: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        phrase = str(record.msg).partition("=")[0].rpartition(" ")[0] or str(record.msg)
        self.counted[f"{record.name.removeprefix('millrace.')}: {phrase}"] += 1


@contextmanager
def _reached() -> Iterator[Counter[str]]:
    """Count what the product logs, and print nothing of it: what fails here fails on purpose."""
    logger, phrases = logging.getLogger("millrace"), _Phrases()
    before = logger.level, logger.propagate, logger.handlers
    logger.handlers, logger.propagate = [phrases], False
    logger.setLevel(logging.DEBUG)
    try:
        yield phrases.counted
    finally:
        logger.level, logger.propagate, logger.handlers = before[0], before[1], before[2]
        logger.setLevel(before[0])


@dataclass
class Seen:
    """What a reader from the head was given so far.

    Attributes:
        places: of all readers of the stream, which no truncation may overtake; None for one that has not begun.
    """

    events: list[tuple[str, str]] = field(default_factory=list)
    places: list[Callable[[], millrace.StreamCut | None]] = field(default_factory=list)


@dataclass
class Decisions:
    """What one decider was asked to decide and has not, in whichever of its lives.

    Attributes:
        waiting: its lines, by the name of the transaction.
    """

    waiting: dict[str, str] = field(default_factory=dict)
    lines: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    def hand_over(self, name: str, line: str) -> None:
        """Ask for a decision."""
        self.waiting[name] = line
        self.lines.put_nowait(line)

    def resume(self) -> "asyncio.Queue[str]":
        """Return the lines of a new life, which begins with what the one before has left."""
        self.lines = asyncio.Queue()
        for line in self.waiting.values():
            self.lines.put_nowait(line)
        return self.lines


class World:
    """One course of events.

    Attributes:
        admin: the client of those who disturb, read and check.
        is_over: whether all roles should come to their end.
        seen: by stream, what its reader was given.
        decisions: by decider, the transactions of others that it has to decide on.
        playing: by role, the process that plays it.
    """

    def __init__(self, loop: ServerLoop, dice: Random, torture: Torture, files: SteppedFileSystem) -> None:
        self.loop = loop
        self.dice = dice
        self.torture = torture
        self.recorder = Recorder("h", now_ns=itertools.count(1).__next__)
        self.counted: Counter[str] = Counter()
        self.violations: list[str] = []
        self.story: deque[str] = deque(maxlen=STORY_COUNT_MAX)
        self._hash = hashlib.blake2b(digest_size=16)
        container = replace(
            BUSY,
            idle_bytes_max=dice.choice(torture.idle_bytes),
            checkpoint_interval_s=dice.choice(torture.checkpoints_s),
            flush_age_s=dice.choice([0.05, 0.05, 0.5]),
        )
        wal = replace(SMALL_WAL, lone_size_bytes_max=dice.choice([0, 2 * KIB]))
        self.machine = Machine(
            loop, Random(dice.getrandbits(64)), wal, container,
            on_end=self._server_ended, sync_s=dice.choice(torture.syncs_s), files=files,
        )  # fmt: skip
        self.is_over = False
        self.seen = {stream: Seen() for stream in torture.streams}
        self.decisions: dict[str, Decisions] = {}
        self.next_numbers: dict[str, int] = {}
        self._lives: list[Life] = []
        self.playing: dict[str, Life] = {}

    # --- what happened ---

    def tell(self, text: str) -> None:
        """Note an event for the reader of a failure."""
        line = f"{self.loop.time():9.4f}  {text}"
        self.story.append(line)
        self._hash.update(line.encode())

    def violated(self, text: str) -> None:
        """Note what must not be."""
        self.violations.append(text)
        self.tell(text)

    def outcome(self, seed: int, reached: Counter[str]) -> Outcome:
        """Return what became of this."""
        for line in self.recorder.lines:
            self._hash.update(line.encode())
        self._hash.update(f"{self.loop.time()!r} {self.machine.files.step_count}".encode())
        return Outcome(
            self.torture.name, seed, tuple(self.violations), tuple(self.story), self.counted, Counter(reached),
            self._hash.hexdigest(),
        )  # fmt: skip

    def _server_ended(self, error: BaseException) -> None:
        self.violated(f"ERROR: the server has ended: {error!r}")

    # --- the course of events ---

    async def run(self) -> None:
        """Let it go on, come to its end, and be judged."""
        self.machine.start()
        self.admin = self.client()
        async with asyncio.timeout(PATIENCE_S):
            await self._live()
            await self._judge()
            await self.admin.close()
            await self.machine.stop()

    def client(self) -> Client:
        """Return a client that is not connected."""
        return Client(str(ADDRESS), PATIENT, clock=WorldClock(self.loop), chance=self.dice.random)

    async def _live(self) -> None:
        for stream in self.torture.streams:
            scaling = millrace.ScalingPolicy.fixed(self.dice.randint(1, 3))
            await self.admin.create_stream(stream, millrace.StreamConfig(scaling=scaling))
        async with asyncio.TaskGroup() as reading:
            for stream in self.torture.streams:
                reading.create_task(self._consume(stream))
            async with asyncio.TaskGroup() as disturbing:
                for role in self.torture.disturbers:
                    disturbing.create_task(self._play(role))
                clients = [asyncio.create_task(self._play(role)) for role in self.torture.clients]
                await self._let_fail()
                self.is_over = True
                self.tell("the end begins")
                for task in reversed(clients):
                    await task
            async for listed in self.admin.list_transactions():
                assert listed.state is not millrace.TransactionState.PREPARED, f"{listed} was handed over to nobody"
            for stream in self.torture.streams:
                await self.admin.seal_stream(stream)

    def has_ended(self, prefix: str) -> bool:
        """Return whether all clients have ended whose names begin so."""
        return not any(name.startswith(prefix) for name in self.playing)

    async def _play(self, role: Role) -> None:
        """Play a role, in one process after the other."""
        self.playing[role.name] = Life()
        try:
            await self._play_lives(role)
        finally:
            del self.playing[role.name]

    async def _play_lives(self, role: Role) -> None:
        dice = Random(self.dice.getrandbits(64))
        for number in itertools.count(1):
            life = self.playing[role.name] = Life()
            self._lives.append(life)
            part = Part(self, role.name, number, self.client(), Random(dice.getrandbits(64)))
            playing = self.loop.start(life, role.play(part))
            timeout_s = dice.uniform(0.1, 2.0) if role.is_mortal and dice.random() < 0.7 else None
            await asyncio.wait([playing], timeout=timeout_s)
            if playing.done() or self.is_over:
                await asyncio.wait([playing])
                playing.result()
                return
            life.is_frozen = True
            self.loop.wires.end_process(life)
            self.counted["clients killed"] += 1
            self.tell(f"{role.name} is killed")

    async def _let_fail(self) -> None:
        dice = Random(self.dice.getrandbits(64))
        end_s = self.loop.time() + self.torture.seconds
        faults, weights = list(self.torture.faults), list(self.torture.faults.values())
        while self.loop.time() < end_s:
            await asyncio.sleep(dice.expovariate(1 / self.torture.pause_s))
            (fault,) = dice.choices(faults, weights)
            name = fault.__name__.replace("_", " ")
            self.tell(name)
            self.counted[name] += 1
            await fault(self, dice)

    async def _consume(self, stream: str) -> None:
        """Read a stream from its head until it is sealed."""
        read = RecordedRead(self.recorder, f"reader of {stream}", stream)
        seen = self.seen[stream]
        async with self.admin.reader(stream) as reader:
            seen.places.append(reader.position)
            async for event in reader:
                value = event.value.decode()
                read.take(value, segment=event.segment, offset=event.offset, index=event.index)
                seen.events.append((event.key or "", value))
            end = reader.position()
            read.end(end, is_tail=True)
        # Once more, after all that anybody was told: what is not there now is lost.
        read = RecordedRead(self.recorder, f"reader of {stream}", stream, start=end)
        async with self.admin.reader(stream, start=end) as reader:
            assert not [event async for event in reader], f"{stream} continues after its end"
        read.end(end, is_tail=True)

    # --- the judgement ---

    async def _judge(self) -> None:
        """Judge the history, and that a restart changes nothing."""
        for stream in self.torture.streams:
            record_lineage(self.recorder, stream, await self.admin.stream_history(stream))
        before = await self._state()
        self.machine.kill(loses_power=True)
        self.machine.start()
        if (after := await self._state()) != before:
            self.violated(f"RESTART: {before} is {after} after a restart")
        verdict = check(self.recorder.lines)
        self.counted += Counter({f"checked {what}": count for what, count in verdict.counts.items()})
        for violation in verdict.violations:
            self.violated(str(violation))
        if verdict.counts["unread"]:
            self.violated(f"UNREAD: {verdict}")
        try:
            self.counted += Books.of(self.recorder.lines).check({name: seen.events for name, seen in self.seen.items()})
            if self.torture.judge is not None:
                await self.torture.judge(self)
        except AssertionError as error:
            self.violated(f"BOOKS: {error}")

    async def _state(self) -> dict[str, object]:
        """Return what a restart must leave as it is."""
        state: dict[str, object] = {}
        books = Books.of(self.recorder.lines)
        for name in sorted(books.names):
            outcome = await recorded_outcome(self.recorder, self.admin, "outcomes", name)
            state[name] = outcome.number, str(outcome.state)
        for producer in self.torture.producers:
            state[producer] = await recorded_producer(self.recorder, self.admin, "outcomes", producer)
        for stream in self.torture.streams:
            info = await self.admin.stream_info(stream)
            state[stream] = str([(each.segment_id, each.low, each.high) for each in info.open_segments])
        return state

    async def clear(self) -> None:
        """End all tasks, also those of processes that were killed."""
        for life in (*self._lives, *self.machine.lives):
            self.loop.thaw(life, timers_first=False)
        await end_tasks()
