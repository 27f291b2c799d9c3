"""The parts of chained queries that are killed and started again: a query with its drivers, a producer, the server."""

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from millrace.client.testing import TestServer
from tests.crash import producing
from tests.crash.deadly_server import CHECKPOINT, Point, arm, disarm
from tests.crash.processes import kill
from tests.spark_source.kills.driver import ROOT, DriverProcess
from tests.spark_source.kills.points import Points

POINTS: Final = ("begin", "middle", "end", "before", "after")
POINTS_OF_TASKS: Final = POINTS[:3]
PAUSE_S_MAX: Final = 1.0
"""After a query came to a point, when it is met at a moment of chance."""

MARK: Final = "mark"
"""In each event that is produced, so that the server can be killed at an append."""
RECORDS: Final = ("TransactionBegun", "ProducerTaken", "PartsAdded", "TransactionCommitted", "CutsSaved", "appended")
MOMENTS: Final = ("queued", "torn", "written", "synced", "applied")

NOT_THERE: Final = 'option "address"'
"""In what a query says that is started while there is no server: it fails at once, as documented."""


class Waitable(Protocol):
    """What has a descriptor, as a file has."""

    def fileno(self) -> int:
        """Return what can be read once it has happened."""
        ...


async def readable(what: Waitable) -> None:
    """Wait until there is something to read; nothing is lost when this is cancelled."""
    happened = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(what.fileno(), happened.set)
    try:
        await happened.wait()
    finally:
        loop.remove_reader(what.fileno())


@dataclass
class QueryPart:
    """A query that runs all the time, in one driver after the other.

    Attributes:
        query: as `driver.run` takes it.
        attacks: whom of it to kill, each once at least; at last, and beside them, its driver.
    """

    name: str
    folder: Path
    query: dict[str, Any]
    master: str
    conf: dict[str, str]
    attacks: tuple[str, ...]
    dice: random.Random
    counted: Counter[str]

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self._points = Points(self.folder / "points")
        self.conf = {**self.conf, "spark.executorEnv.KILL_MATRIX_POINTS": str(self._points.folder)}
        self._driver: DriverProcess | None = None
        self._was_killed = False
        # Of this life of the query, something it consists of was killed: it may fail, once.
        self._is_hit = False
        self._is_over = False

    async def keep_running(self) -> None:
        """Start the query again whenever it fails, in another driver when that was killed, until `end`."""
        while not self._is_over:
            self._was_killed = False
            driver = self._start_driver()
            with contextlib.suppress(RuntimeError):
                while True:
                    self._is_hit = False
                    driver.start(**self.query, is_endless=True)
                    await readable(driver)
                    self._look_at(driver.outcome()["error"])
            assert self._was_killed, f"the driver of {self.name} ended by itself"
            self._close_driver()

    async def attack(self, *, seconds: float) -> None:
        """Attack the query for so long at least."""
        deadline = asyncio.get_running_loop().time() + seconds
        for whom in self.dice.sample(self.attacks, len(self.attacks)):
            while not await self._attack_once(whom):
                pass
        while asyncio.get_running_loop().time() < deadline:
            await self._attack_once(self.dice.choice(["driver", *self.attacks]))

    async def end(self) -> None:
        """Kill the driver, and start no other one."""
        while not await self._attack_once("driver", is_last=True):
            pass

    def start_last_driver(self) -> None:
        """Start a driver that nobody attacks, for `finish`."""
        self._start_driver()

    async def finish(self) -> str:
        """Let the query read all that is there; return its id."""
        assert self._driver is not None
        self._driver.start(**self.query)
        await readable(self._driver)
        outcome = self._driver.outcome()
        assert outcome["error"] == "", outcome["error"]
        return str(outcome["id"])

    def close(self) -> None:
        """End what is left of it."""
        self._close_driver()
        self._points.close()

    def _close_driver(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver = None

    def _start_driver(self) -> DriverProcess:
        self.counted["drivers started"] += 1
        self._driver = DriverProcess(self.folder, self._points.folder, master=self.master, conf=self.conf)
        return self._driver

    def _look_at(self, error: str) -> None:
        """Start it again after what was done to it, and after nothing else."""
        assert self._is_hit or NOT_THERE in error, f"{self.name} failed: {error}"
        assert "ReplacedError" not in error, f"{self.name} was taken for another: {error}"
        self.counted["queries failed"] += 1

    async def _attack_once(self, whom: str, *, is_last: bool = False) -> bool:
        """Wait until the query comes to a point of chance, and kill somebody there, or a moment later.

        Returns whether there was somebody.
        """
        points = POINTS_OF_TASKS if whom == "executor" else POINTS
        action = {"driver": self.dice.choice(["wait", "pass"]), "worker": "die", "executor": "kill", "process": "pass"}
        self._points.arm(self.dice.choice(points), action[whom], batch=None)
        await readable(self._points)
        if action[whom] == "pass":
            await asyncio.sleep(self.dice.uniform(0.0, PAUSE_S_MAX))
        if self._driver is None:
            return False  # what came to the point is left of a driver that is dead
        self._is_hit = True
        if whom == "driver":
            # Not before: a driver that was killed a moment ago has to be followed by the one that is killed here.
            self._was_killed, self._is_over = True, is_last
            self._driver.signal(signal.SIGKILL)
        if whom == "process" and not self._kill_process(self._driver):
            return False
        self.counted[f"{whom}es killed" if whom == "process" else f"{whom}s killed"] += 1
        return True

    def _kill_process(self, driver: DriverProcess) -> bool:
        """Kill one of the processes of Python that the JVM has started: those that plan and commit are among them."""
        alive = []
        for each in psutil.Process(driver.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "python" in each.name():
                    alive.append(each)
        if not alive:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            self.dice.choice(alive).kill()
        return True


@dataclass
class ProducerPart:
    """Producers with writer ids of their own, one after the other; each is killed now and then, and resumes.

    Attributes:
        keys: by name, how many keys each one has.
        counts: how many events each one has to write; those that it has not are written by `finish`.
    """

    address: str
    stream: str
    keys: dict[str, int]
    histories: Path
    dice: random.Random
    counted: Counter[str]
    counts: Counter[str] = field(default_factory=Counter)
    _lives: int = 0

    async def run(self, is_over: asyncio.Event) -> None:
        """Produce all the time."""
        self.histories.mkdir(parents=True)
        while not is_over.is_set():
            name = self.dice.choice(list(self.keys))
            self.counts[name] += self.dice.randint(20, 200)
            await self._live(name, self.dice.choice([None, self.dice.uniform(0.0, 0.3)]))
            # A query that starts again does not get far on a busy machine.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), self.dice.uniform(0.0, 3.0))

    async def finish(self) -> None:
        """Write what is not written yet."""
        for name in self.counts:
            await self._live(name, None)

    async def _live(self, name: str, kill_after_s: float | None) -> None:
        self._lives += 1
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", producing.__name__,
            self.address, self.stream, name, str(self.keys[name]), str(self.counts[name]), str(self.dice.random()),
            str(self.histories / f"{name}-{self._lives}.jsonl"),
            stdout=asyncio.subprocess.PIPE, env=os.environ, cwd=ROOT,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            await process.stdout.readline()
            if kill_after_s is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), kill_after_s)
                if process.returncode is None:
                    kill(process.pid)
                    self.counted["producers killed"] += 1
            await process.communicate()
            assert process.returncode in {0, None if kill_after_s is None else -signal.SIGKILL}, f"{name} failed"
        finally:
            if process.returncode is None:
                kill(process.pid)


class _Process:
    """A process, which can be waited for."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass
class ServerPart:
    """The server, which kills itself at a point, or is killed at a moment of chance, and is started again."""

    server: TestServer
    dice: random.Random
    counted: Counter[str]

    async def run(self, is_over: asyncio.Event) -> None:
        """Kill it again and again."""
        ending = asyncio.create_task(is_over.wait(), name="the end")
        try:
            while not is_over.is_set():
                await self._kill_once(ending)
        finally:
            ending.cancel()
            disarm(self.server.folder)
            if not self.server.running:
                await asyncio.to_thread(self._start_again)

    async def _kill_once(self, ending: "asyncio.Task[bool]") -> None:
        """Wait until it is dead, or all is over; then it runs."""
        process = _Process(self.server.pid)
        dying = asyncio.create_task(readable(process), name="the server dies")
        try:
            pause_s = self.dice.uniform(1.0, 10.0)
            point = self._point() if self.dice.random() < 0.6 else None
            await asyncio.wait({ending}, timeout=pause_s)
            if ending.done():
                return
            if point is None:
                await asyncio.to_thread(self.server.kill)
                self.counted["servers killed"] += 1
            else:
                arm(self.server.folder, point)
                await asyncio.wait({ending, dying}, return_when=asyncio.FIRST_COMPLETED)
                disarm(self.server.folder)
                self.counted["servers killed at a step"] += dying.done()
            if not self.server.running:
                await asyncio.sleep(self.dice.choice([0.0, 0.0, 3.0]))
                await asyncio.to_thread(self._start_again)
        finally:
            dying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await dying
            process.close()

    def _point(self) -> Point:
        what = self.dice.choice([*RECORDS, CHECKPOINT])
        return Point(what, self.dice.choice(("before", "after") if what == CHECKPOINT else MOMENTS))

    def _start_again(self) -> None:
        self.server.kill()  # what is left of it
        self.server.start()
