"""The steps of the demo while its server runs: a load that rises and falls, two kills, a query, the proof."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import millrace
from millrace.cli.history_picture import change_text
from millrace.client.testing import TestServer
from millrace.examples.running import Program
from millrace.model.figures import duration_text
from millrace.model.lineage import Epoch

from .data import Reading
from .live import PHASES, Load, target_per_s
from .proof import Proof, converted_item, item_with, prove, read, written_item
from .pulse import Pulse
from .queries import ANSWERS, CELSIUS, QUESTIONS, TEMPERATURES
from .screen import Bars, Screen

PATIENCE_S: Final = 900.0
"""Only a machine that does much else needs so long."""
KILLED_AT: Final = 0.4
"""The server is killed when this share of the readings is on its way, and the query has begun."""
HELD: Final = 100
"""So many readings are left for the time before and after each kill, however slow this machine is."""
SPLIT_INTO: Final = 4
"""So many at most at once."""
LOOK_S: Final = 0.25
SAY_S: Final = 3.0
SQL: Final = """SELECT quarter(_timestamp) AS quarter, sensor, count(*) AS readings,
       round(min(celsius), 1) AS lowest, round(avg(celsius), 1) AS mean, round(max(celsius), 1) AS highest
FROM celsius GROUP BY 1, 2 ORDER BY 1, 2"""


class Fault(StrEnum):
    """What is done to the stream before the proof, so that it fails."""

    DROP = "drop"
    DOUBLE = "double"


class DemoError(Exception):
    """The demo cannot continue; its text says why."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that was killed and started again.

    Attributes:
        silence_s: how long nothing came from it after that.
    """

    process: str
    silence_s: float


@dataclass(slots=True, kw_only=True)
class Told:
    """What the demo has found."""

    delays_s: list[float] = field(default_factory=list)
    epochs: Sequence[Epoch] = ()
    kills: list[Kill] = field(default_factory=list)
    answer: list[dict[str, Any]] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)

    @property
    def splits(self) -> int:
        """How often a segment was replaced by several."""
        return sum(len(epoch.created) > len(epoch.sealed_ids) > 0 for epoch in self.epochs)

    @property
    def merges(self) -> int:
        """How often several segments were replaced by one."""
        return sum(len(epoch.created) < len(epoch.sealed_ids) for epoch in self.epochs)


class Run:
    """The demo on a server that runs.

    Args:
        driver: the program of Spark, which is not started yet; None: there is no Spark.
    """

    def __init__(
        self,
        server: TestServer,
        driver: Program | None,
        readings: Sequence[Reading],
        *,
        screen: Screen,
        duration_s: float,
    ) -> None:
        self._server = server
        self._driver = driver
        self._screen = screen
        self._load = Load(readings, duration_s=duration_s)
        self._results = Pulse()
        self._told = Told()

    async def run(self, *, fault: Fault | None) -> Told:
        """Do all of it.

        Raises:
            DemoError: something ended that should not, or took too long.
            MillraceError: the server refused something.
        """
        readings = self._load.readings
        async with millrace.connect(self._server.address) as client:
            await self._create(client)
            if self._driver is not None:
                self._driver.start()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._stream(client)
            except TimeoutError:
                raise DemoError(
                    f"of {len(readings):,} readings {self._load.acks.count:,} were acknowledged and "
                    f"{self._results.count:,} had a result within {PATIENCE_S:g} s"
                ) from None
            if fault is not None:
                await spoil(client, fault, readings[0])
            await self._prove(client)
        return self._told

    async def _create(self, client: millrace.Client) -> None:
        target = target_per_s(len(self._load.readings), duration_s=self._load.duration_s)
        elastic = millrace.ScalingPolicy.by_events_per_s(target, factor=SPLIT_INTO)
        self._screen.title(
            "2. A year of measurements, live",
            f"{len(self._load.readings):,} hourly readings of two cities to {TEMPERATURES}, up to "
            f"{max(load for _, load in PHASES) * target:,.0f} a second; a segment is meant to take {target}",
        )
        if self._driver is not None:
            self._screen.line(
                f"Spark starts meanwhile; its query writes each one in Celsius to {CELSIUS}, exactly once"
            )
        await client.create_stream(TEMPERATURES, millrace.StreamConfig(scaling=elastic))
        for name in (CELSIUS, QUESTIONS, ANSWERS) if self._driver is not None else ():
            await client.create_stream(name)

    # --- the live part ---

    async def _stream(self, client: millrace.Client) -> None:
        """Write all readings and follow them, with the kills in the middle; then ask about the results."""
        count = len(self._load.readings)
        with self._screen.changing():
            async with client.reader(TEMPERATURES, start=millrace.TAIL) as tail, self._background(client, tail):
                async with _unpacked(), asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._load.write(client))
                    tasks.create_task(self._disturb())
                    tasks.create_task(self._load.tailed.reach(count))
                    if self._driver is not None:
                        tasks.create_task(self._results.reach(count))
                if self._driver is not None:
                    self._told.answer = await self._ask(client, SQL)
                    self._driver.kill()
            self._told.epochs = await client.stream_history(TEMPERATURES)
        self._told.delays_s = self._load.delays_s
        self._screen.picture(self._told.epochs)

    @asynccontextmanager
    async def _background(self, client: millrace.Client, tail: millrace.Reader) -> AsyncIterator[None]:
        """Follow, watch and draw for the length of a block; if one of these fails, so does the block."""
        async with _unpacked(), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(each) for each in (self._load.tail(tail), self._watch(client), self._draw())]
            if self._driver is not None:
                running.append(tasks.create_task(self._follow(client)))
            yield
            for task in running:
                task.cancel()

    async def _follow(self, client: millrace.Client) -> None:
        """Count results as they are committed."""
        async with client.reader(CELSIUS, start=millrace.HEAD) as reader:
            while events := await reader.next_events():
                self._results.beat(len(events))

    async def _watch(self, client: millrace.Client) -> None:
        """Say what the server splits and merges, and why."""
        while True:
            epochs = await client.stream_history(TEMPERATURES)
            for epoch in epochs[max(1, len(self._told.epochs)) :]:
                cause = epoch.cause.partition(": ")[2] or epoch.cause
                self._screen.moment(f"{change_text(epoch)}: {cause.partition(';')[0]}")
            self._told.epochs = epochs
            await asyncio.sleep(LOOK_S)

    async def _draw(self) -> None:
        """Show how far everything is; as lines where nothing can be drawn."""
        pulses = {"acknowledged": self._load.acks, "tailed": self._load.tailed}
        if self._driver is not None:
            pulses["results of Spark"] = self._results
        bars = Bars(list(pulses), total=len(self._load.readings))
        while True:
            if self._driver is not None and self._driver.ended:
                raise DemoError("the driver of Spark has ended")
            newest = list(self._load.newest)
            if self._screen.is_changing:
                bars.move([pulse.count for pulse in pulses.values()])
                self._screen.frame(bars, self._told.epochs, newest)
            else:
                counts = ", ".join(f"{pulse.count:,} {name}" for name, pulse in pulses.items())
                last = "; last {1} at {0}: {2} F, {3} after its write".format(*newest[-1]) if newest else ""
                self._screen.moment(counts + last)
            await asyncio.sleep(LOOK_S if self._screen.is_changing else SAY_S)

    # --- the kills ---

    async def _disturb(self) -> None:
        """Kill the server, and then the driver, each in the middle of its work."""
        load, results = self._load, self._results
        load.allowed -= HELD * (2 if self._driver is None else 3)
        if self._driver is not None:
            # A query that is started while no server answers fails at once; one that runs waits.
            await results.reach(1)
        load.allowed += HELD
        await load.sent.reach(max(int(KILLED_AT * len(load.readings)), load.sent.count + 1))
        results_before = results.count
        await self._kill_server()
        if self._driver is not None:
            await results.reach(results_before + 1)  # the query has outlived the server
            await self._kill_driver(self._driver)

    async def _kill_server(self) -> None:
        load = self._load
        load.acks.listen()
        in_flight = load.sent.count - load.acks.count
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.start)
        load.allowed += HELD
        await load.acks.reach(load.sent.count + 1)
        self._say_killed("server", f"{in_flight} events on their way", load.acks, "the next acknowledgement")

    async def _kill_driver(self, driver: Program) -> None:
        results = self._results
        results.listen()
        driver.kill()
        driver.start()
        self._load.allowed += HELD
        await results.reach(results.count + 1)
        self._say_killed("driver of Spark", "and its JVM", results, "the next result")

    def _say_killed(self, process: str, how: str, pulse: Pulse, what: str) -> None:
        self._told.kills.append(Kill(process, pulse.silence_s))
        silence = duration_text(pulse.silence_s)
        text = f"killed the {process} with SIGKILL ({how}), and started it again: {silence} until {what}"
        self._screen.moment(text, style="yellow")

    # --- what is left ---

    async def _ask(self, client: millrace.Client, sql: str) -> list[dict[str, Any]]:
        """Return the rows that Spark answers a question with."""
        async with client.writer(QUESTIONS) as writer:
            await writer.write(sql.encode())
        async with client.reader(ANSWERS, start=millrace.HEAD) as reader:
            async for event in reader:
                rows: list[dict[str, Any]] = json.loads(event.value)
                return rows
        raise DemoError("the stream of the answers was sealed")

    async def _prove(self, client: millrace.Client) -> None:
        acked = self._load.acked
        found = await read(client, TEMPERATURES, item_with("temp_f"))
        self._told.proofs.append(prove(TEMPERATURES, [written_item(reading) for reading in acked], found))
        if self._driver is not None:
            found = await read(client, CELSIUS, item_with("celsius"))
            self._told.proofs.append(prove(CELSIUS, [converted_item(reading) for reading in acked], found))


async def spoil(client: millrace.Client, fault: Fault, reading: Reading) -> None:
    """Lose the first events of the stream, or write one again."""
    if fault is Fault.DOUBLE:
        async with client.writer(TEMPERATURES) as writer:
            await writer.write(reading.value(), key=reading.key, timestamp_us=reading.timestamp_us)
        return
    async with client.reader(TEMPERATURES, start=millrace.HEAD) as reader:
        await reader.next_events()
        await client.truncate_stream(TEMPERATURES, reader.position())


@asynccontextmanager
async def _unpacked() -> AsyncIterator[None]:
    """Raise the first error of a group of tasks as it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
