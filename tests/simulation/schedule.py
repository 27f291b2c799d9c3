"""One schedule: what happens to the machines, drawn from a seed, and the claimant that judges what they have left."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from millrace.server.errors import ManifestDamagedError
from millrace.server.front.reply_writer import ReplyWriter
from millrace.server.ownership import Manifest, claim_container, manifest_key
from millrace.server.ownership.manifest import decode_manifest
from millrace.server.wal import ObjectWal
from millrace.server.wal.log_objects import LogPoint, is_fence_size, parse_log_name

from .history import History, Rule
from .network import CALM, LATE_S_MAX, Bucket, SimulatedStore, Weather
from .process import LEASE_S, SCOPE, Claiming, Machine, Process
from .virtual_loop import VirtualClock, VirtualLoop, end_tasks

LIFE_S: Final = 8.0
"""How long it goes badly, in virtual time."""
PATIENCE_S: Final = 20.0
"""How long a claimant may take once all is calm."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a schedule came to."""

    seed: int
    violations: tuple[tuple[Rule, str], ...]
    lines: tuple[str, ...]
    counted: Counter[str]

    @property
    def rules(self) -> set[Rule]:
        """Those that were violated."""
        return {rule for rule, _ in self.violations}

    def __str__(self) -> str:
        """Return the whole schedule, for the reader of a failure."""
        told = "\n".join(f"{rule.name}: {text}" for rule, text in self.violations)
        return "\n".join(self.lines) + f"\n\nseed {self.seed}: python -m tests.simulation --only {self.seed}\n{told}"


def run_schedule(
    seed: int,
    *,
    log_class: type[ObjectWal] = ObjectWal,
    claim: Claiming = claim_container,
    reply_writer_class: type[ReplyWriter] = ReplyWriter,
) -> Outcome:
    """Run the schedule of a seed, and judge it."""
    loop = VirtualLoop()
    with _silence():
        try:
            world = _World(loop, Random(seed), log_class, claim, reply_writer_class)
            try:
                loop.run_until_complete(world.run())
            except Exception as error:  # noqa: BLE001  # of a mutant, or of the simulation: it is told with its seed
                world.history.violated(Rule.ERROR, repr(error))
            world.bucket.before_delete = lambda key: None
            history = world.history
            for text in loop.errors:
                history.violated(Rule.ERROR, text)
            outcome = Outcome(seed, tuple(history.violations), tuple(history.lines), Counter(history.counted))
            loop.run_until_complete(world.clear())
            loop.run_until_complete(loop.shutdown_asyncgens())
            return outcome
        finally:
            loop.close()


@contextmanager
def _silence() -> Iterator[None]:
    """Let nobody log: what fails here fails on purpose."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


class _World:
    """The machines, their processes, and the store."""

    def __init__(
        self,
        loop: VirtualLoop,
        dice: Random,
        log_class: type[ObjectWal],
        claim: Claiming,
        reply_writer_class: type[ReplyWriter],
    ) -> None:
        self._loop = loop
        self._dice = dice
        self._log_class = log_class
        self._claim = claim
        self._reply_writer_class = reply_writer_class
        self.bucket = Bucket()
        self.history = History(loop)
        self._weather = Weather.drawn(dice)
        self._appends_s = dice.choice([0.1, 0.3, 1.0])
        self._heeds_lease = dice.random() < 0.5
        self._processes: list[Process] = []
        self._is_over = False

    async def run(self) -> None:
        """Let it go badly for a while; then judge."""
        self.bucket.before_delete = self._check_delete
        machines = [self._machine(name) for name in "ABCD"[: self._dice.choice([2, 2, 3, 4])]]
        fates = [asyncio.create_task(self._fate(each)) for each in machines]
        fates.append(asyncio.create_task(self._damage_manifest()))
        fates.append(asyncio.create_task(self._fill_bucket(Random(self._dice.getrandbits(64)))))
        await asyncio.wait(fates, timeout=LIFE_S)
        self._is_over = True
        for each in fates:
            each.cancel()
        await asyncio.gather(*fates, return_exceptions=True)
        # Some have crashed, some are frozen and come back when somebody else has the container.
        zombies = []
        for process in self._processes:
            if not process.life.is_frozen:
                process.life.is_frozen = True
                zombies.append(process)
        first = await self._claimant("Y")
        if first is None:
            return
        acks_count = self.history.counted["acks"]
        for process in zombies:
            if self._dice.random() < 0.7:
                self.history.say(f"{process.name} is back")
                self._loop.thaw(process.life, timers_first=self._dice.random() < 0.5)
        await asyncio.sleep(LATE_S_MAX)
        if self.history.counted["acks"] == acks_count:
            self.history.violated(Rule.STUCK, "the claimant acknowledges nothing")
        for process in self._processes:
            process.life.is_frozen = True
        last = await self._claimant("Z")
        if last is not None:
            self.history.judge(last.recovered or {})

    async def clear(self) -> None:
        """Let all tasks end."""
        for process in self._processes:
            self._loop.thaw(process.life, timers_first=False)
        await end_tasks()

    def _machine(self, name: str) -> Machine:
        return Machine(name, VirtualClock(self._loop))

    def _process(self, machine: Machine, *, weather: Weather, appends_s: float, may_idle: bool = True) -> Process:
        dice = Random(self._dice.getrandbits(64))
        # An idle owner meets neither a fence nor a lost manifest, and keeps answering reads.
        idle_factor = dice.choice([1, 1, 10]) if may_idle else 1
        process = Process(
            machine,
            len(self._processes),
            store=SimulatedStore(self.bucket, self._loop, weather=weather, dice=Random(dice.getrandbits(64))),
            history=self.history,
            dice=dice,
            log_class=self._log_class,
            claim=self._claim,
            reply_writer_class=self._reply_writer_class,
            heeds_lease=self._heeds_lease,
            appends_s=appends_s * idle_factor,
            saves_s=1.0 * idle_factor,
            usual_s=dice.choice([None, 2 * weather.latency_s, 4 * weather.latency_s]),
            is_newest=lambda epoch: (manifest := self._manifest()) is not None and manifest.epoch == epoch,
        )
        self._processes.append(process)
        self.history.say(f"{process.name} starts")
        return process

    async def _claimant(self, name: str) -> Process | None:
        """Return a process on a new machine, in calm weather, that has recovered; None if it does not come to that."""
        process = self._process(self._machine(name), weather=CALM, appends_s=1.0, may_idle=False)
        serving = self._loop.start(process.life, process.serve())
        end_s = self._loop.time() + PATIENCE_S
        while process.recovered is None:
            if self._loop.time() > end_s or serving.done():
                self.history.violated(Rule.STUCK, f"{process.name} does not get the container")
                return None
            await asyncio.sleep(0.1)
        return process

    # --- fates ---

    async def _fate(self, machine: Machine) -> None:
        """Start processes on a machine, one after the other, and let things happen to them."""
        dice = self._dice
        while True:
            await asyncio.sleep(dice.uniform(0.0, 1.5))
            process = self._process(machine, weather=self._weather, appends_s=self._appends_s)
            serving = self._loop.start(process.life, process.serve())
            while not serving.done() and not process.life.is_frozen:
                await asyncio.wait([serving], timeout=dice.uniform(0.2, 3.0))
                if not serving.done():
                    await self._befall(process)
            if serving.done() and not serving.cancelled() and (error := serving.exception()) is not None:
                self.history.violated(Rule.ERROR, f"{process.name}: {error!r}")

    async def _befall(self, process: Process) -> None:
        """Let something happen to a process."""
        dice, clock = self._dice, process.machine.clock
        what = dice.choice(["stop", "pause", "cut", "cut", "crash", "end", "jump", "nothing"])
        duration_s = dice.choice([0.3, 1.0, 2.0, 3.0]) * LEASE_S * dice.uniform(0.5, 1.5)
        if what != "nothing":
            self.history.say(f"{process.name}: {what} {duration_s:.2f} s")
        if what == "crash":
            process.life.is_frozen = True  # and is never thawed
        elif what == "cut":
            process.network.cut_until_s = self._loop.time() + duration_s
        elif what == "jump":
            clock.ahead_us += round(dice.uniform(-5e6, 5e6))
        elif what == "end":
            await self._loop.start(process.life, _set(process.ending))
        elif what in ("stop", "pause"):
            process.life.is_frozen = True
            await asyncio.sleep(duration_s)
            # SIGSTOP stops no clock; of a virtual machine that is paused, all stand still, or all but one.
            if what == "pause":
                clock.lost_monotonic_s += duration_s
                clock.lost_elapsed_s += dice.choice([0.0, duration_s])
            self._loop.thaw(process.life, timers_first=dice.random() < 0.5)

    # --- the bucket ---

    async def _fill_bucket(self, dice: Random) -> None:
        """Leave no room in the bucket for a while, now and then, in one of two schedules: only deletes make some."""
        if dice.random() < 0.5:
            return
        try:
            while True:
                await asyncio.sleep(dice.uniform(0.5, 3.0))
                self.bucket.quota_bytes = self.bucket.used_bytes + dice.choice([0, 64, 300, 2000])
                self.history.counted["full buckets"] += 1
                self.history.say("the bucket is full")
                await asyncio.sleep(dice.uniform(0.2, 2.0))
                self.bucket.quota_bytes = None
                self.history.say("the bucket has room")
        finally:
            self.bucket.quota_bytes = None

    # --- the manifest ---

    async def _damage_manifest(self) -> None:
        """Lose or flip the manifest once, in one of two schedules, half of these soon after a claim; then wait."""
        dice = self._dice
        how = dice.choice(["nothing", "nothing", "lost", "flipped"])
        is_soon = dice.random() < 0.5
        await asyncio.sleep(dice.uniform(0.0, LIFE_S / 2 if is_soon else LIFE_S))
        if is_soon:
            await self._next_start()
            await asyncio.sleep(dice.uniform(0.0, LEASE_S / 6))
        content = self.bucket.objects.get(manifest_key(0))
        if how != "nothing" and content is not None and self.history.acks:
            self.history.say(f"the manifest is {how}")
            self.history.counted["damaged manifests"] += 1
            del self.bucket.objects[manifest_key(0)]
            if how == "flipped":
                at = dice.randrange(len(content))
                flipped = bytes([content[at] ^ 1 << dice.randrange(8)])
                self.bucket.objects[manifest_key(0)] = content[:at] + flipped + content[at + 1 :]
            if is_soon:
                rebuilding = self._process(self._machine("E"), weather=CALM, appends_s=0.1, may_idle=False)
                await asyncio.wait([self._loop.start(rebuilding.life, rebuilding.serve())])
        await asyncio.Event().wait()

    async def _next_start(self) -> None:
        """Wait until a process has begun to serve."""
        starts_count = self.history.counted["starts"]
        while self.history.counted["starts"] == starts_count:  # noqa: ASYNC110  # in virtual time
            await asyncio.sleep(LEASE_S / 50)

    def _manifest(self) -> Manifest | None:
        content = self.bucket.objects.get(manifest_key(0))
        if content is None:
            return None
        try:
            return decode_manifest(content, container=0)
        except ManifestDamagedError:
            return None

    def _check_delete(self, key: str) -> None:
        """Judge a delete that is about to happen."""
        manifest = self._manifest()
        if manifest is None or manifest.log is None:
            return
        if manifest.checkpoint is not None and key == SCOPE + manifest.checkpoint.name:
            self.history.violated(Rule.DELETED, f"{key}, which the manifest names")
        point = parse_log_name(key.removeprefix(f"{SCOPE}log/"))
        if point is None or is_fence_size(len(self.bucket.objects[key])):
            return  # a mutant may try: what comes of it is what counts
        is_needed = point.epoch in manifest.log.epochs and point.sequence >= manifest.log.from_sequence
        if is_needed and not self._is_fenced(point, from_sequence=manifest.log.from_sequence):
            self.history.violated(Rule.DELETED, f"{point.name}, and the manifest needs {manifest.log}")

    def _is_fenced(self, point: LogPoint, *, from_sequence: int) -> bool:
        """Return whether the epoch of a batch had ended before it."""
        start = f"{SCOPE}log/{LogPoint(point.epoch, from_sequence).name}"
        end = f"{SCOPE}log/{point.name}"
        return any(is_fence_size(len(self.bucket.objects[key])) for key in self.bucket.objects.irange(start, end))


async def _set(event: asyncio.Event) -> None:
    event.set()
