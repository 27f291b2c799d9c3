"""The write-ahead log of one container in an object store: acknowledged events outlive the machine.

Theory. Each batch is an object of its own (`log_objects`), created with put-if-absent under a name that has the epoch
of this start and the sequence of the batch. Several puts are in flight at once (`pacing`), and a batch is acknowledged
when it and all before it are stored. An owner that was superseded finds a fence in the place of its next batch, so it
cannot acknowledge anything that the next owner has not read (`object_recovery`). This depends on put-if-absent alone:
on no clock, no lease, and no second read of the manifest.

Failure. A put with an unknown outcome, or a put that finds its name taken, ends the log: every run that was not handed
back has an unknown outcome. The container is then claimed again, under a new epoch, and recovers the log.

A full store is not a failure. The same bytes are put under the same name until the store has space; meanwhile appends
are rejected, and records of truncations and deletions queue after the waiting batches. The reserve of the store has
space for both.

Slow puts are hedged by the store, if it supports that (`RetryingStore.with_hedged_creates`): sent a second time beside
the first, with the same name and bytes. A put that arrives after its batch was deleted stores the batch once more,
before the first batch that is needed, where nothing is read.

Space. Objects that are no longer needed are deleted in the background; all others count against the capacity, which is
that of a log in files. Objects left by a crash, or by a put that arrived late, are deleted after the next start.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Final

from millrace.server.errors import (
    LogClosedError,
    LogFailedError,
    NoSpaceError,
    ObjectExistsError,
    StorageError,
)
from millrace.server.host.clock import Clock
from millrace.server.host.metrics import Metrics
from millrace.server.object_store import ObjectStore, PatientPuts, Reserve
from millrace.wire.append_run import KIND_CONTROL, AppendRun
from millrace.wire.schema.log import LOG_FILE_HEADER_SIZE_BYTES

from .batch import BATCH_OVERHEAD_BYTES, RUN_ENTRY_SIZE_BYTES, encode_batch
from .log_objects import LogPoint, encode_log_object
from .object_recovery import ObjectRecovery
from .options import WalOptions
from .pacing import WINDOW_COUNT, Pacing
from .protocol import LogStatistics, OnDurable, OnFailure
from .report import NOTHING_ACCEPTED, AcceptedLoss, Damage, LogOwner, RecoveredBatch, RecoveryReport

logger = logging.getLogger(__name__)

DELETES_COUNT_MAX: Final = 1000
"""Objects that are deleted with one request."""
DELETE_RETRY_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectWalStatistics(LogStatistics):
    """Statistics of a log in an object store.

    Attributes:
        puts_in_flight: batches under way to the store.
        round_trip_s: the shortest duration of the last puts.
        objects_count: stored batches.
    """

    puts_in_flight: int
    round_trip_s: float
    objects_count: int


@dataclass(slots=True, eq=False)
class _Put:
    """A batch that is under way."""

    runs: list[AppendRun]
    sequence: int
    wall_time_us: int
    begun_s: float
    # Of the object, and of the frames in it.
    size: int
    frames_size: int
    is_stored: bool = False


class ObjectWal:
    """A `Log` in an object store.

    Create it in the event loop to which the store belongs; `recover` calls that loop from its thread.

    Args:
        prefix: of its keys.
        options: sizes of batches and runs, the headroom, and `puts_per_s_max`; the capacity is that of `files_max`
            files.
        epochs: as the manifest names them. The last one is that of this start: no other start has it, and nothing was
            written under it.
        from_sequence: the first batch that is needed, according to the manifest.
        acknowledged: the last batch that is known to be acknowledged, according to the manifest; 0 if none is.
        owner: of the log; stored in each object, and checked at recovery.
        random: for the salt of the epoch.
        reserve: of the store, see `Reserve`; None if it has none.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        options: WalOptions,
        *,
        epochs: Sequence[int],
        from_sequence: int,
        clock: Clock,
        owner: LogOwner,
        acknowledged: int = 0,
        metrics: Metrics | None = None,
        random: Random | None = None,
        reserve: Reserve | None = None,
    ) -> None:
        self._store = store
        self._puts = PatientPuts(store, clock=clock, reserve=reserve)
        self._prefix = prefix
        self._options = options
        self._epoch = epochs[-1]
        self._clock = clock
        self._owner = owner
        self._metrics = metrics = metrics or Metrics()
        self._put_seconds = metrics.wal_sync_seconds.series()
        self._batch_bytes = metrics.wal_batch_bytes.series()
        self._salt = (random or SystemRandom()).getrandbits(63) + 1  # 0 is the salt of fences
        self._loop = asyncio.get_running_loop()
        self._recovery = ObjectRecovery(
            store,
            prefix,
            epochs=epochs,
            from_sequence=from_sequence,
            owner=owner,
            acknowledged=acknowledged,
            create=self._puts.create,
        )
        self._is_recovered = False
        self._on_durable: OnDurable = lambda runs, sequence, wall_time_us: None
        self._on_failure: OnFailure = lambda error: None
        self._pacing = Pacing(puts_per_s_max=options.puts_per_s_max, now_s=clock.monotonic_s())
        self._pump: asyncio.Task[None] | None = None
        # Set when the pump has something to do, or need not wait any longer.
        self._poked = asyncio.Event()
        self._is_open = False
        self._failure: BaseException | None = None
        self._queue: deque[AppendRun] = deque()
        self._queue_cost = 0
        self._queued_bytes = 0
        self._in_flight: deque[_Put] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        # The newest batch that was made, and its checksum; the newest that was handed back.
        self._sequence = 0
        self._checksum = 0
        self._durable_sequence = 0
        self._batch_count = 0
        self._written_bytes = 0
        # Objects that are stored, or about to be, and are still needed, with their sizes; and the sum of their sizes
        # plus the queued runs, each counted as if it were stored alone.
        self._objects: deque[tuple[LogPoint, int]] = deque()
        self._stored_bytes = 0
        self._promised_bytes = 0
        self._deleting: asyncio.Task[None] | None = None
        self._garbage: deque[str] = deque()

    # --- recovery ---

    def recover(
        self, from_sequence: int = 0, *, accepted: AcceptedLoss = NOTHING_ACCEPTED
    ) -> Iterator[RecoveredBatch | Damage]:
        """Read the objects back and close earlier epochs, see `Log`. Never in the thread of the loop.

        Raises:
            StorageError: the store cannot be read, or rejects a fence.
        """
        items = self.read(from_sequence, accepted=accepted)
        try:
            while (item := asyncio.run_coroutine_threadsafe(_next(items), self._loop).result()) is not None:
                yield item
        finally:
            asyncio.run_coroutine_threadsafe(items.aclose(), self._loop).result()

    async def read(
        self, from_sequence: int = 0, *, accepted: AcceptedLoss = NOTHING_ACCEPTED
    ) -> AsyncGenerator[RecoveredBatch | Damage, None]:
        """Yield the same as `recover`, in the event loop."""
        items = self._recovery.batches(from_sequence, accepted=accepted)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()
        self._metrics.wal_damages_total.increase(by=len(self._recovery.report.damages))
        self._is_recovered = True

    @property
    def report(self) -> RecoveryReport:
        """The result of `recover`, once it is exhausted."""
        assert self._is_recovered, "recover was not exhausted"
        return self._recovery.report

    async def end_recovered(self) -> None:
        """Fence the recovered epochs, see `Log`."""
        await self._recovery.close_epochs()

    async def start(self, *, on_durable: OnDurable, on_failure: OnFailure, after_sequence: int = 0) -> None:
        """Accept new batches, see `Log`. All recovered batches are durable already.

        Raises:
            StorageError: a batch was written under this epoch. The container has to be claimed again.
        """
        assert self._is_recovered, "recover was not exhausted"
        assert self._pump is None, "start is called once"
        recovery = self._recovery
        if recovery.is_begun:
            raise StorageError(f"epoch {self._epoch} was begun before; claim the container again", subject=self._prefix)
        self._on_durable, self._on_failure = on_durable, on_failure
        last_sequence = recovery.report.last_sequence
        self._sequence = self._durable_sequence = max(last_sequence, after_sequence)
        # 0 if the next batch does not follow a batch that was read.
        if recovery.last is not None and recovery.last.sequence == self._sequence:
            self._checksum = recovery.last.checksum
        self._objects.extend(recovery.objects)
        self._stored_bytes = sum(size for _, size in recovery.objects)
        self._is_open = True
        self._pump = asyncio.create_task(self._run(), name="log")
        self._pump.add_done_callback(self._pump_ended)
        self._delete(recovery.garbage)

    # --- state ---

    @property
    def run_size_bytes_max(self) -> int:
        """The largest run that the log accepts."""
        return self._options.run_size_bytes_max

    @property
    def queued_bytes(self) -> int:
        """Bytes of frames that were submitted and are not durable yet."""
        return self._queued_bytes

    @property
    def durable_sequence(self) -> int:
        """Sequence of the last batch that was handed back, or recovered."""
        return self._durable_sequence

    @property
    def fullness(self) -> float:
        """The used part of the capacity."""
        return self._stored_bytes / self.capacity_bytes

    def reclaimable_bytes(self, sequence: int) -> int:
        """Return the bytes of the objects that `recycle` would delete."""
        last = self._last_not_needed(sequence)
        return sum(size for point, size in self._objects if point.sequence <= last)

    @property
    def capacity_bytes(self) -> int:
        """Size of all objects that are allowed, in bytes."""
        return self._options.files_max * self._options.file_size_bytes

    @property
    def refusal(self) -> str | None:
        """Why appends should be rejected now, or None."""
        if not self._is_open:
            return "the log is closed"
        if self._puts.reason:
            return self._puts.reason
        options = self._options
        if self._fits(options.run_size_bytes_max + BATCH_OVERHEAD_BYTES, reserve=options.headroom_bytes):
            return None
        return "the log is full"

    @property
    def lacks_room(self) -> bool:
        """Whether the store is full."""
        return bool(self._puts.reason)

    def statistics(self) -> ObjectWalStatistics:
        """Return the statistics of the log. Cheap; also when closed."""
        # A store that is full has answered.
        begun_s = self._in_flight[0].begun_s if self._in_flight and not self.lacks_room else None
        return ObjectWalStatistics(
            durable_sequence=self._durable_sequence,
            batch_count=self._batch_count,
            written_bytes=self._written_bytes,
            queued_bytes=self._queued_bytes,
            fullness=self.fullness,
            write_age_s=0.0 if begun_s is None else max(0.0, self._clock.monotonic_s() - begun_s),
            refusal=self.refusal,
            puts_in_flight=len(self._in_flight),
            round_trip_s=self._pacing.round_trip_s,
            objects_count=len(self._objects),
        )

    # --- writing ---

    def submit(self, run: AppendRun, *, is_followed: bool = False) -> None:
        """Queue a run for the next batch, see `Log`."""
        del is_followed  # no batch is made before this turn of the loop has ended
        if not self._is_open:
            raise LogClosedError("the log is closed", subject=self._prefix) from self._failure
        size = len(run.frames)
        if size > self._options.run_size_bytes_max:
            raise ValueError(f"a run of {size} bytes; the largest is {self._options.run_size_bytes_max}")
        cost = size + BATCH_OVERHEAD_BYTES
        reserve = 0 if run.kind == KIND_CONTROL else self._options.headroom_bytes
        if self._puts.reason and run.kind != KIND_CONTROL:
            raise NoSpaceError(self._puts.reason, subject=self._prefix)
        if not self._fits(cost, reserve=reserve):
            raise NoSpaceError("the log is full", subject=self._prefix)
        self._queue.append(run)
        self._queue_cost += size + RUN_ENTRY_SIZE_BYTES
        self._queued_bytes += size
        self._promised_bytes += cost
        if len(self._queue) == 1 or self._is_full:
            self._poked.set()

    def share_loop(self) -> None:
        """Do nothing: no batch is written in the loop."""

    def recycle(self, sequence: int) -> None:
        """Mark batches up to that sequence as no longer needed: their objects are deleted in the background."""
        assert sequence <= self._durable_sequence, "only durable batches can be recycled"
        last = self._last_not_needed(sequence)
        names = []
        while self._objects and self._objects[0][0].sequence <= last:
            point, size = self._objects.popleft()
            self._stored_bytes -= size
            names.append(point.name)
        self._delete(names)

    async def close(self) -> None:
        """Store the queued runs and close, see `Log`."""
        self._puts.end()  # also of the fences of a recovery
        if self._pump is None:
            return
        self._is_open = False
        self._poked.set()
        # Waiting, unlike awaiting, does not hand a cancellation on.
        await asyncio.wait([self._pump])
        if self._deleting is not None:  # the next start deletes the rest
            self._deleting.cancel()
            await asyncio.wait([self._deleting])

    def _last_not_needed(self, sequence: int) -> int:
        # As in files, the last batch stays: it proves that the end of the log is not lost.
        return min(sequence, self._durable_sequence - 1)

    def _fits(self, cost: int, *, reserve: int) -> bool:
        return self._stored_bytes + self._promised_bytes + cost + reserve <= self.capacity_bytes

    @property
    def _is_full(self) -> bool:
        """Whether the queued runs fill a batch that cannot grow."""
        return self._queue_cost >= self._options.batch_size_bytes_max

    async def _run(self) -> None:
        """Make a batch of the queued runs, whenever one may begin, until closed or failed."""
        while await self._may_begin():
            put, pieces = self._take()
            task = asyncio.create_task(self._put(put, pieces), name=f"log put {put.sequence}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        while self._tasks:
            if self._failure is not None:
                for task in self._tasks:
                    task.cancel()
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def _pump_ended(self, task: asyncio.Task[None]) -> None:
        """Fail the log if the pump has ended: it must not stall silently."""
        if task.cancelled():
            self._fail(asyncio.CancelledError(), "its task was cancelled")
        elif (error := task.exception()) is not None:
            self._fail(error, f"its task ended: {error!r}")

    async def _may_begin(self) -> bool:
        """Wait until the next batch is due; return False if there will be none."""
        while self._failure is None:
            self._poked.clear()
            if not self._queue:
                if not self._is_open:
                    return False
                await self._poked.wait()
                continue
            if len(self._in_flight) == WINDOW_COUNT:
                await self._poked.wait()
                continue
            wait_s = 0.0
            if self._is_open and not self._is_full:
                wait_s = self._pacing.wait_s(self._clock.monotonic_s(), in_flight=len(self._in_flight))
            if not wait_s:
                return True
            with suppress(TimeoutError):
                async with self._clock.timeout(wait_s):
                    await self._poked.wait()
        return False

    def _take(self) -> tuple[_Put, list[bytes | bytearray | memoryview]]:
        """Return the next batch, and the bytes of its object."""
        runs: list[AppendRun] = []
        cost = frames_size = 0
        while self._queue:
            size = len(self._queue[0].frames)
            if runs and cost + size + RUN_ENTRY_SIZE_BYTES > self._options.batch_size_bytes_max:
                break
            runs.append(self._queue.popleft())
            cost += size + RUN_ENTRY_SIZE_BYTES
            frames_size += size
        self._queue_cost -= cost
        self._sequence += 1
        wall_time_us = self._clock.unix_us()
        batch = encode_batch(
            runs,
            sequence=self._sequence,
            salt=self._salt,
            previous_checksum=self._checksum,
            wall_time_us=wall_time_us,
        )
        self._checksum = batch.checksum
        point = LogPoint(self._epoch, self._sequence)
        pieces = encode_log_object(
            batch, point, owner=self._owner, salt=self._salt, acknowledged=self._durable_sequence
        )
        now_s = self._clock.monotonic_s()
        size = LOG_FILE_HEADER_SIZE_BYTES + batch.size
        put = _Put(runs, self._sequence, wall_time_us, now_s, size, frames_size)
        self._pacing.began(now_s)
        self._in_flight.append(put)
        self._objects.append((point, size))
        self._stored_bytes += size
        self._promised_bytes -= frames_size + BATCH_OVERHEAD_BYTES * len(runs)
        return put, list(pieces)

    async def _put(self, put: _Put, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Store a batch; hand back all batches stored up to there."""
        key = self._prefix + LogPoint(self._epoch, put.sequence).name
        try:
            await self._puts.create(key, pieces)
        except ObjectExistsError as error:
            self._fail(error, f"epoch {self._epoch} was ended at batch {put.sequence} by another server")
            return
        except LogClosedError as error:
            self._fail(error, f"{error.message}; {self._queued_bytes} bytes are not stored")
            return
        except Exception as error:  # noqa: BLE001  # whatever it is, the batch is of unknown outcome
            self._fail(error, f"the store did not accept batch {put.sequence}: {error}")
            return
        duration_s = self._clock.monotonic_s() - put.begun_s
        put.is_stored = True
        self._pacing.ended(duration_s)
        self._hand_back()
        self._poked.set()
        # Only now, with the acks on their way.
        self._put_seconds.observe(duration_s)
        self._batch_bytes.observe(put.size)

    def _hand_back(self) -> None:
        """Hand back, in order, the batches that are stored together with all before them."""
        while self._in_flight and self._in_flight[0].is_stored and self._failure is None:
            put = self._in_flight.popleft()
            self._queued_bytes -= put.frames_size
            self._durable_sequence = put.sequence
            self._batch_count += 1
            self._written_bytes += put.size
            self._on_durable(put.runs, put.sequence, put.wall_time_us)

    def _fail(self, cause: BaseException, reason: str) -> None:
        """End the log, once."""
        if self._failure is not None:
            return
        self._is_open = False
        self._failure = LogFailedError(f"the log failed: {reason}", subject=self._prefix)
        self._failure.__cause__ = cause
        self._poked.set()
        logger.critical("log failed prefix=%s epoch=%d error=%s", self._prefix, self._epoch, self._failure)
        self._on_failure(self._failure)

    # --- deleting ---

    def _delete(self, names: Sequence[str]) -> None:
        """Delete objects in the background, with retries until the store accepts it."""
        self._garbage.extend(names)
        if self._garbage and self._deleting is None and self._is_open:
            self._deleting = asyncio.create_task(self._run_deletes(), name="delete log objects")
            self._deleting.add_done_callback(self._deletes_ended)

    def _deletes_ended(self, task: asyncio.Task[None]) -> None:
        self._deleting = None
        if not task.cancelled():
            task.result()
            self._delete([])  # names that arrived after the last look

    async def _run_deletes(self) -> None:
        while self._garbage:
            names = [self._garbage[index] for index in range(min(DELETES_COUNT_MAX, len(self._garbage)))]
            try:
                await self._store.delete([self._prefix + name for name in names])
            except StorageError as error:
                logger.warning("log objects not deleted retry_after_s=%.0f error=%s", DELETE_RETRY_S, error)
                await self._clock.sleep(DELETE_RETRY_S)
                continue
            for _ in names:
                self._garbage.popleft()


async def _next(items: AsyncGenerator[RecoveredBatch | Damage, None]) -> RecoveredBatch | Damage | None:
    return await anext(items, None)
