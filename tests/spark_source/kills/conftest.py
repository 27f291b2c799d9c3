"""A server, a relay and drivers that may all be killed; each cell of the matrix has streams and a query of its own."""

import asyncio
import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import millrace
from millrace.blocking import Client
from millrace.client.testing import TestServer
from tests.spark_source.kills.cells import SEED_VARIABLE
from tests.spark_source.kills.commit_relay import CommitRelay
from tests.spark_source.kills.driver import PATIENCE_S, ROOT, DriverProcess
from tests.spark_source.kills.points import Points
from tests.support.waiting import until

BATCHES_COUNT: Final = 3
BATCH_EVENTS: Final = 60
KEYS_COUNT: Final = 7
LEASE: Final = "10m"

_numbers = itertools.count(1)


class DeadlyServer(TestServer):
    """A server that kills itself at a point of `tests.crash.deadly_server`, once one is armed."""

    def _popen(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [
                sys.executable, "-m", "tests.crash.deadly_server", str(self.folder),
                "--listen", self._address or self._listen, "--log-level", self._log_level,
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **self._settings},
        )  # fmt: skip


@pytest.fixture(scope="module")
def seed() -> int:
    """Of all that is left to chance; a failing test prints it."""
    chosen = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"seed: {SEED_VARIABLE}={chosen}")
    return chosen


@pytest.fixture
def dice(seed: int, request: pytest.FixtureRequest) -> random.Random:
    print(f"seed: {SEED_VARIABLE}={seed}")
    return random.Random(f"{seed} {request.node.name}")


@pytest.fixture(scope="module")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeadlyServer]:
    server = DeadlyServer(tmp_path_factory.mktemp("deadly") / "data")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def relay(deadly: DeadlyServer) -> Iterator[CommitRelay]:
    running = CommitRelay(deadly.address)
    yield running
    running.close()


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Points]:
    made = Points(tmp_path_factory.mktemp("points") / "armed")
    yield made
    made.close()


class Drivers:
    """The driver of the moment: the one that was killed is followed by a new one."""

    def __init__(self, folder: Path, points: Points, *, master: str, conf: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._points = points
        self._master = master
        self._conf = conf or {}
        self._living: DriverProcess | None = None
        self._stopped: list[DriverProcess] = []

    def living(self) -> DriverProcess:
        if self._living is None:
            self._living = DriverProcess(self._folder, self._points.folder, master=self._master, conf=self._conf)
        return self._living

    def kill(self) -> None:
        """Kill the driver with its JVM and all its workers."""
        if self._living is not None:
            self._living.kill()
            self._living = None

    def leave(self) -> DriverProcess:
        """Let the driver be: the next one is another. It is killed at the end."""
        left = self.living()
        self._stopped.append(left)
        self._living = None
        return left

    def close(self) -> None:
        self.kill()
        for each in self._stopped:
            each.kill()


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory, points: Points) -> Iterator[Drivers]:
    made = Drivers(tmp_path_factory.mktemp("driver"), points, master="local[2,4]")
    yield made
    made.close()


class Cell:
    """A query from a raw stream to a cooked one, and what of it must be there when it is over."""

    def __init__(self, client: Client, relay: CommitRelay, drivers: Drivers, folder: Path, dice: random.Random) -> None:
        self.client = client
        self.relay = relay
        self.drivers = drivers
        self.dice = dice
        self.folder = folder
        number = next(_numbers)
        self.raw, self.cooked = f"kills/raw-{number}", f"kills/cooked-{number}"
        for stream, segments in ((self.raw, 2), (self.cooked, dice.randint(1, 4))):
            scaling = millrace.ScalingPolicy.fixed(segments)
            assert client.create_stream(stream, millrace.StreamConfig(scaling=scaling))
        # Tasks of a batch; 0: as the source has them.
        self.partitions = dice.choice((0, 2, 3))
        # Which batch is met; so it is the first one of a query, or one in its middle, or its last.
        self.batch = dice.randrange(BATCHES_COUNT)
        self._write()
        self._open_before = self._open_numbers()

    def _write(self) -> None:
        numbers = iter(range(BATCHES_COUNT * BATCH_EVENTS))
        with self.client.writer(self.raw) as writer:
            while block := list(itertools.islice(numbers, 10)):
                key = f"key-{self.dice.randrange(KEYS_COUNT)}"
                writer.write_many([f"event-{number:06}".encode() for number in block], key=key).result()

    def start(self, **options: Any) -> DriverProcess:
        """Start the query, or start it again, with the living driver."""
        driver = self.drivers.living()
        driver.start(
            source={"address": self.relay.address, "stream": self.raw, "maxEventsPerTrigger": str(BATCH_EVENTS)},
            columns=["key", "upper(cast(value as string)) as value"],
            sink={"address": self.relay.address, "stream": self.cooked, "transactionLease": LEASE, **options},
            checkpoint=str(self.folder / "checkpoint"),
            partitions=self.partitions,
        )
        return driver

    def start_up_to_its_batch(self, points: Points) -> None:
        """Start the query; once this returns, nothing is done about its batch before `go_on`."""
        if self.batch:
            points.arm("after", "wait", batch=self.batch - 1)
            self.start()
            points.wait(within_s=PATIENCE_S)

    def go_on(self, points: Points) -> None:
        """Let the query do its batch."""
        if self.batch:
            points.release()
        else:
            self.start()

    def finish(self, driver: DriverProcess | None = None) -> dict[str, Any]:
        """Wait until the query is over, which must be without an error; return its outcome."""
        outcome = (driver or self.drivers.living()).outcome()
        assert outcome["error"] == ""
        return outcome

    def check(self, query_id: str, *, left: int = 0) -> None:
        """Assert that each batch is in the cooked stream once, in the order of its keys.

        Args:
            left: transactions that nobody commits, and their leases end.
        """
        stored, expected = self.stored(), self.expected()
        missing, surplus = Counter(expected) - Counter(stored), Counter(stored) - Counter(expected)
        assert (missing, surplus) == (Counter(), Counter())
        by_key: dict[str | None, list[bytes]] = {}
        for key, value in stored:
            by_key.setdefault(key, []).append(value)
        assert all(values == sorted(values) for values in by_key.values())
        known = self.client.producer_info(query_id)
        assert (known.holder, known.last_sequence) == (query_id, BATCHES_COUNT - 1)
        assert len(self._open_numbers() - self._open_before) == left

    def _open_numbers(self) -> set[int]:
        return {each.number for each in self.client.list_transactions()}

    def stored(self) -> list[tuple[str | None, bytes]]:
        with self.client.reader(self.cooked, end=millrace.TAIL) as reader:
            return [(event.key, event.value) for event in reader]

    def expected(self) -> list[tuple[str | None, bytes]]:
        with self.client.reader(self.raw, end=millrace.TAIL) as reader:
            return [(event.key, event.value.upper()) for event in reader]

    def wait_for_end_of(self, server: TestServer) -> None:
        """Wait until a server has killed itself."""
        asyncio.run(until(lambda: not server.running, within_s=PATIENCE_S))


@pytest.fixture
def cell(
    deadly: DeadlyServer, relay: CommitRelay, drivers: Drivers, tmp_path: Path, dice: random.Random
) -> Iterator[Cell]:
    # Patient: the server is killed under it, too.
    with millrace.blocking.connect(deadly.address) as client:
        yield Cell(client, relay, drivers, tmp_path, dice)
