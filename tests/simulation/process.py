"""A server process whose container is the list of the runs that are durable.

It does with the parts that are real what a server does with them: a lease, a claim, a copy of the checkpoint or the
checkpoint in its folder, the log after it, and then appends, replies, checkpoints, copies, and the log that forgets.
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from millrace.model.checksum import Buffer
from millrace.server.errors import (
    LogClosedError,
    NoSpaceError,
    ObjectNotFoundError,
    OwnedElsewhereError,
    OwnerFencedError,
    StorageError,
)
from millrace.server.front.reply_writer import ReplyWriter
from millrace.server.host.metrics import Metrics
from millrace.server.object_store import ObjectStoreOptions, RetryingStore, StoreMonitor
from millrace.server.object_store.hedging import SAMPLES_MAX
from millrace.server.object_store.monitor import Kind
from millrace.server.ownership import Claimant, CopyRecord, ManifestOwnership, Worker, WorkerLease
from millrace.server.wal import Damage, LogOwner, ObjectWal, RecoveredBatch, WalOptions
from millrace.wire.append_run import AppendRun
from millrace.wire.limits import KIB
from tests.support.files import MemoryFileSystem
from tests.support.reply_writers import Connection, make_reply_writer
from tests.support.wal import append_run, payload_of

from .history import History, Rule, Runs
from .network import SimulatedStore
from .virtual_loop import Life, VirtualClock

SERVER_ID: Final = uuid.UUID(int=1)
FOLDER: Final = Path("/data/containers/0000")
SCOPE: Final = "c0000/"
LEASE_S: Final = 1.0
OPTIONS: Final = WalOptions(
    spare_files=1,
    file_size_bytes=16 * KIB,
    batch_size_bytes_max=2 * KIB,
    run_size_bytes_max=4 * KIB,
    headroom_bytes=4 * KIB,
    puts_per_s_max=0.0,
)
REPLIES_S: Final = 0.1
"""The mean time between a reply and the next request."""
STORE_OPTIONS: Final = ObjectStoreOptions(patience_s=1.5)
Claiming = Callable[..., Coroutine[Any, Any, ManifestOwnership]]
"""See `claim_container`."""
METRICS: Final = Metrics()
"""Of all processes of all schedules: nobody reads them."""


class _Monitor(StoreMonitor):
    """Tells the history of hedges."""

    def __init__(self, name: str, history: History, clock: VirtualClock) -> None:
        super().__init__(METRICS, clock)
        self._name = name
        self._history = history

    def hedged(self, kind: Kind) -> None:
        super().hedged(kind)
        self._history.counted[f"hedged {kind}s"] += 1
        self._history.say(f"{self._name} hedges a {kind}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a container knew as of one batch."""

    sequence: int = 0
    epoch: int = 0
    replay_from: int = 1
    batches: tuple[tuple[int, Runs], ...] = ()

    def encode(self) -> bytes:
        return json.dumps([self.sequence, self.epoch, self.replay_from, self.batches]).encode()

    @classmethod
    def decode(cls, content: bytes) -> "Checkpoint":
        sequence, epoch, replay_from, batches = json.loads(content)
        return cls(sequence, epoch, replay_from, tuple((number, tuple(runs)) for number, runs in batches))


@dataclass(slots=True)
class Machine:
    """What outlives the processes on it: the folder, with a checkpoint in it."""

    name: str
    clock: VirtualClock
    files: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    checkpoint: Checkpoint | None = None

    def discard(self) -> None:
        self.checkpoint = None


class ReplyTransport(asyncio.Transport):
    """The transport of a connection, which hands each reply to a function at once."""

    def __init__(self, receive: Callable[[bytes], None]) -> None:
        super().__init__()
        self._receive = receive

    def is_closing(self) -> bool:
        return False

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for each in list_of_data:
            self._receive(bytes(each))


class Process:
    """A process on a machine, from its start to its end. `serve` is all that it does.

    Args:
        log_class: the real one, or a mutant.
        claim, reply_writer_class: the real ones, or mutants.
        appends_s: the mean time between two of its appends.
        saves_s: the longest time between two of its checkpoints.
        heeds_lease: whether it acknowledges nothing once it knows that its lease has ended, or may have. A server does,
            and the log does not rest on it.
        usual_s: how long its last puts took, as far as it knows; None if it has made none.
        is_newest: whether the manifest has no later claim than that of an epoch.

    Attributes:
        life: frozen, it does nothing.
        ending: set when it is to stop in good order.
        recovered: what its newest start has found, once it has begun; None before.
    """

    def __init__(
        self,
        machine: Machine,
        number: int,
        *,
        store: SimulatedStore,
        history: History,
        dice: Random,
        log_class: type[ObjectWal],
        claim: Claiming,
        reply_writer_class: type[ReplyWriter],
        appends_s: float,
        saves_s: float,
        heeds_lease: bool,
        usual_s: float | None,
        is_newest: Callable[[int], bool],
    ) -> None:
        self.machine = machine
        self.name = f"{machine.name}.{number}"
        self.network = store
        self.life = Life()
        self.ending = asyncio.Event()
        self.recovered: dict[int, Runs] | None = None
        self.history = history
        self.dice = dice
        self.log_class = log_class
        self._claim = claim
        self.reply_writer_class = reply_writer_class
        self.appends_s = appends_s
        self.saves_s = saves_s
        self.heeds_lease = heeds_lease
        self.is_newest = is_newest
        self.clock = machine.clock
        self._stands_by = dice.random() < 0.5
        self._fenced: list[OwnerFencedError] = []
        self._start: _Start | None = None
        self._worker = Worker(
            worker_id=uuid.UUID(int=dice.getrandbits(128)),
            host=machine.name,
            folder="/data",
            place=f"{machine.name}:/data#7",
            pid=number,
            started="2026-01-31T12:00:00+00:00",
        )
        self.store = RetryingStore(
            store,
            STORE_OPTIONS,
            clock=self.clock,
            monitor=_Monitor(self.name, history, self.clock),
            random=Random(dice.getrandbits(64)),
        )
        # A process does not live for as many puts as it takes to know what is usual.
        if usual_s is not None:
            for _ in range(SAMPLES_MAX):
                self.store._usual["create", False].add(usual_s)

    async def serve(self) -> None:
        """Own the container whenever that can be, until told to end, or superseded."""
        self._lease = lease = WorkerLease(
            self.store, self._worker, url="memory", lease_s=LEASE_S, clock=self.clock, on_fenced=self._on_fenced
        )
        while not await self.managed(lease.start()):
            await self._pause()
        renewing = asyncio.create_task(lease.run())
        try:
            while not (self._fenced or self.ending.is_set()):
                ownership = await self._claimed()
                if ownership is None:
                    await self._pause()
                    continue
                self._start = _Start(self, ownership)
                await self._start.run()
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
        if not self._fenced:
            await self.managed(lease.release())
        self.history.say(f"{self.name} has ended")

    async def _claimed(self) -> ManifestOwnership | None:
        """Return the right to the container; None if it is not to be had, or this is to end meanwhile."""
        try:
            epoch = await self._known_epoch()
        except StorageError:
            return None
        claiming = asyncio.ensure_future(
            self._claim(
                self._lease,
                0,
                files=self.machine.files,
                folder=FOLDER,
                server_id=SERVER_ID,
                next_epoch=epoch + 1,
                has_remote_log=True,
                discard=self.machine.discard,
                newest_copy=self._newest_copy,
                on_standby=self._on_standby if self._stands_by else None,
            )
        )
        ending = asyncio.create_task(self.ending.wait())
        try:
            await asyncio.wait([claiming, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            claiming.cancel()
            ending.cancel()
            await asyncio.wait([claiming, ending])
        if claiming.cancelled():
            return None
        try:
            return claiming.result()
        except OwnerFencedError as error:
            self._fenced.append(error)
        except (OwnedElsewhereError, StorageError):
            pass
        return None

    async def _known_epoch(self) -> int:
        """Return the newest epoch that the machine knows of, or else the names of copies, as a container does."""
        if self.machine.checkpoint is not None:
            return self.machine.checkpoint.epoch
        copy = await self._newest_copy()
        return 0 if copy is None else copy.container_epoch

    async def _newest_copy(self) -> CopyRecord | None:
        prefix = f"{SCOPE}checkpoints/"
        names = [each.key async for page in self.store.list(prefix) for each in page]
        if not names:
            return None
        # Sequence, epoch and first batch of the newest one.
        sequence, epoch, replay_from = (int(part) for part in max(names).removeprefix(prefix).split("-"))
        name = max(names).removeprefix(SCOPE)
        return CopyRecord(name=name, sequence=sequence, container_epoch=epoch, replay_from=replay_from)

    def _on_standby(self, owner: Claimant) -> None:
        self.history.counted["standbys"] += 1
        self.history.say(f"{self.name} stands by for {owner.host}")

    def _on_fenced(self, error: OwnerFencedError) -> None:
        self.history.say(f"{self.name} is fenced")
        self._fenced.append(error)
        if self.heeds_lease and self._start is not None:
            self._start.on_failure(error)

    async def managed(self, work: Awaitable[object]) -> bool:
        """Return whether something that the store may refuse was done."""
        try:
            await work
        except (StorageError, OwnerFencedError):
            return False
        return True

    async def _pause(self) -> None:
        await self.clock.sleep(self.dice.uniform(0.05, 0.5))


class _Start:
    """One start of the container: from its claim until it has failed, was superseded, or gave it up."""

    def __init__(self, process: Process, ownership: ManifestOwnership) -> None:
        self._process = process
        self._ownership = ownership
        self._epoch = ownership.epoch
        self._history = process.history
        self._dice = process.dice
        self._clock = process.clock
        self._store = process.store
        self._machine = process.machine
        # What is durable, and the checkpoint that was saved last.
        self._batches: dict[int, Runs] = {}
        self._checkpoint = Checkpoint()
        self._failed = asyncio.Event()

    async def run(self) -> None:
        """Serve; return when the container is to be claimed again, if at all."""
        self._history.say(f"{self._process.name} has claimed epoch {self._epoch}")
        log = self._ownership.log
        assert log is not None
        self._log = self._process.log_class(
            self._store.with_hedged_creates(),
            f"{SCOPE}log/",
            OPTIONS,
            epochs=log.epochs,
            from_sequence=log.from_sequence,
            acknowledged=log.acknowledged,
            clock=self._clock,
            owner=LogOwner(0, SERVER_ID),
            metrics=METRICS,
            random=Random(self._dice.getrandbits(64)),
        )
        try:
            await self._recover()
        except (StorageError, OwnerFencedError) as error:
            self._history.say(f"{self._process.name} epoch {self._epoch} has not begun: {error}")
            return
        works = [asyncio.create_task(each) for each in (self._append(), self._reply(), self._save())]
        ends = [asyncio.create_task(each.wait()) for each in (self._failed, self._process.ending)]
        try:
            await asyncio.wait([*works, *ends], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (*works, *ends):
                each.cancel()
            await asyncio.gather(*works, *ends, return_exceptions=True)
        await self._log.close()
        for each in works:
            reason = None if each.cancelled() else each.exception()
            if reason is not None and not isinstance(reason, OwnerFencedError):
                self._history.violated(Rule.ERROR, f"{self._process.name}: {reason!r}")
        if not self._failed.is_set():
            await self._process.managed(self._ownership.release())

    async def _recover(self) -> None:
        """Find out what is durable, and let the log begin."""
        checkpoint = await self._load()
        batches = dict(checkpoint.batches)
        damages = []
        items = self._log.read(checkpoint.replay_from)
        try:
            async for item in items:
                if isinstance(item, Damage):
                    damages.append(item)
                else:
                    self._take(item, batches, checkpoint)
        finally:
            await items.aclose()
        if damages:
            await self._judge_damage(f"{[str(each) for each in damages]}")
        await self._log.start(
            on_durable=self._on_durable, on_failure=self.on_failure, after_sequence=checkpoint.sequence
        )
        first = self._log.durable_sequence + 1
        self._ownership.log_began(self._log.report.epoch_ends, acknowledged=lambda: self._log.durable_sequence)
        self._batches, self._checkpoint = batches, checkpoint
        self._process.recovered = dict(batches)
        self._history.recovered(self._process.name, epoch=self._epoch, batches=batches, next_sequence=first)

    async def _load(self) -> Checkpoint:
        """Return the checkpoint in the folder, or the copy that counts if that is newer."""
        counted, local = self._ownership.copy, self._machine.checkpoint or Checkpoint()
        if counted is None or (counted.sequence, counted.container_epoch) <= (local.sequence, local.epoch):
            return local
        try:
            return Checkpoint.decode((await self._store.get(SCOPE + counted.name)).content)
        except ObjectNotFoundError:
            await self._judge_damage(f"the copy {counted.name} is gone")
            raise

    async def _judge_damage(self, what: str) -> None:
        """Raise unless nobody has claimed the container since: who has may have deleted what this one reads."""
        if self._process.is_newest(self._epoch):
            self._history.violated(Rule.DAMAGED, f"{self._process.name} epoch {self._epoch}: {what}")
        raise StorageError(f"superseded: {what}")

    def _take(self, batch: RecoveredBatch, batches: dict[int, Runs], checkpoint: Checkpoint) -> None:
        runs = _numbers(batch.runs)
        if batch.sequence > checkpoint.sequence:
            batches[batch.sequence] = runs
        elif batches.get(batch.sequence) != runs:
            known = batches.get(batch.sequence)
            self._history.violated(
                Rule.LOST, f"{self._process.name} finds {runs} at {batch.sequence}, and the checkpoint has {known}"
            )

    # --- appends ---

    def _on_durable(self, runs: list[AppendRun], sequence: int, wall_time_us: int) -> None:
        if self._failed.is_set():
            return
        if self._process.heeds_lease and self._ownership.is_stalled:  # as the real container does
            self.on_failure(TimeoutError("stood still"))
            return
        numbers = _numbers(runs)
        self._batches[sequence] = numbers
        self._history.acked(self._process.name, epoch=self._epoch, sequence=sequence, runs=numbers)

    def on_failure(self, error: BaseException) -> None:
        self._history.say(f"{self._process.name} epoch {self._epoch} has failed: {error}")
        self._failed.set()

    async def _append(self) -> None:
        """Append runs, alone and several together, until cancelled."""
        dice = self._dice
        while True:
            mean_s = self._process.appends_s
            await self._clock.sleep(min(dice.expovariate(1 / mean_s), 2 * mean_s))
            for _ in range(dice.choice([1, 1, 2, 5, 12])):
                number = self._history.submitted()
                try:
                    self._log.submit(append_run(7, number, b"%d" % number))
                except LogClosedError:
                    return
                except NoSpaceError:
                    if not self._log.lacks_room:
                        return
                    self._history.counted["refusals of a full bucket"] += 1
                if dice.random() < 0.7:
                    await asyncio.sleep(dice.choice([0, 0, 0.002]))

    # --- replies ---

    async def _reply(self) -> None:
        """Answer requests of a reader from memory, each after a while, until cancelled."""
        dice = self._dice
        connection = Connection()
        connection.is_aborted = True
        while True:
            if connection.is_aborted:
                connection = Connection()
                transport = ReplyTransport(self._replied)
                reply_writer = make_reply_writer(
                    self._clock,
                    METRICS,
                    connection,
                    reply_writer_class=self._process.reply_writer_class,
                    may_be_superseded=lambda: self._ownership.is_lapsed,
                    transport=transport,
                )
            await self._clock.sleep(dice.expovariate(1 / REPLIES_S))
            if self._ownership.is_lapsed:
                continue  # the connection takes no request then
            await self._clock.sleep(dice.choice([0.0, 0.3, 1.0, 2.0]))
            reply_writer.send(b"%d" % max(self._batches, default=0))

    def _replied(self, frame: bytes) -> None:
        # A paused machine whose clocks all stood still cannot know that another server has taken over.
        if not self._clock.lost_elapsed_s:
            self._history.replied(self._process.name, epoch=self._epoch, sequence=int(frame))

    # --- checkpoints ---

    async def _save(self) -> None:
        """Save checkpoints, let copies count, and let the log forget, until superseded or cancelled."""
        while True:
            await self._clock.sleep(self._dice.uniform(0.05, self._process.saves_s))
            self._checkpoint = self._machine.checkpoint = self._taken()
            if self._dice.random() < 0.6:
                with suppress(StorageError):
                    await self._copy(self._checkpoint)

    def _taken(self) -> Checkpoint:
        last = max(self._batches, default=0)
        replay_from = last + 1 - self._dice.choice([0, 0, 1, 4])
        return Checkpoint(
            last, self._epoch, max(self._checkpoint.replay_from, replay_from), tuple(sorted(self._batches.items()))
        )

    async def _copy(self, saved: Checkpoint) -> None:
        before = self._ownership.copy_before
        name = f"checkpoints/{saved.sequence:08d}-{saved.epoch:08d}-{saved.replay_from:08d}"
        await self._store.create(SCOPE + name, [saved.encode()])
        if self._failed.is_set():
            raise StorageError("failed meanwhile: the copy is not to count")
        await self._ownership.record_copy(
            CopyRecord(name=name, sequence=saved.sequence, container_epoch=saved.epoch, replay_from=saved.replay_from)
        )
        self._history.say(f"{self._process.name} epoch {self._epoch} lets {name} count")
        self._history.counted["copies"] += 1
        remote = self._ownership.log
        assert remote is not None
        self._log.recycle(remote.from_sequence - 1)
        if before is not None and before != self._ownership.copy_before:
            await self._store.delete([SCOPE + before.name])


def _numbers(runs: list[AppendRun]) -> Runs:
    return tuple(int(payload_of(run)) for run in runs)
