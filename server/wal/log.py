"""The write-ahead log of one container in files, as the event loop uses it."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millrace.server.errors import LogClosedError, LogFailedError, NoSpaceError
from millrace.server.host.clock import Clock
from millrace.server.host.files import FileSystem
from millrace.server.host.metrics import Metrics
from millrace.server.host.room import DiskRoom
from millrace.server.host.threads import SYSTEM_THREADS, Threads
from millrace.server.host.wakeup import Wakeup
from millrace.wire.append_run import KIND_CONTROL, AppendRun

from .batch import BATCH_HEADER_SIZE_BYTES, BATCH_OVERHEAD_BYTES, RUN_ENTRY_SIZE_BYTES
from .fitting import fitted
from .inline_sync import InlineSyncPolicy
from .log_head import read_log_head
from .options import WalOptions
from .pool import FilePool
from .protocol import LogStatistics, OnDurable, OnFailure
from .recovery import Recovery, log_paths
from .repair import remove_unfinished, resume
from .report import NOTHING_ACCEPTED, AcceptedLoss, Damage, LogOwner, RecoveredBatch, RecoveryReport
from .writer import DurableBatch, LogWriter, WriterExit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalStatistics(LogStatistics):
    """Statistics of a log in files."""

    full_files: int
    spare_files: int


class Wal:
    """A `Log` in preallocated files, which are recycled when they are no longer needed."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        options: WalOptions,
        *,
        clock: Clock,
        owner: LogOwner,
        metrics: Metrics | None = None,
        room: DiskRoom | None = None,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        """Store the collaborators; no file is touched yet.

        Args:
            files: the file system.
            directory: folder of this log only; created if missing.
            options: sizes and bounds.
            clock: gives the wall time of each batch.
            owner: of the log; stored in each file, and checked at recovery.
            metrics: where to count.
            room: of the volume of the folder; None if the log may use all of it.
            threads: creates its two threads.
        """
        self._room = room or DiskRoom(files)
        self._threads = threads
        self._files = files
        self._directory = directory
        self._options = options
        self._clock = clock
        self._on_durable: OnDurable = lambda runs, sequence, wall_time_us: None
        self._on_failure: OnFailure = lambda error: None
        self._owner = owner
        self._metrics = metrics or Metrics()
        self._recovery: Recovery | None = None
        self._pool = self._make_pool()
        self._writer: LogWriter | None = None
        # Runs that wait for others of this turn of the loop; and whether the loop may write them itself at the end of
        # the turn, if all that follow belong to them.
        self._gathered: list[AppendRun] = []
        self._is_lone = False
        # Number of runs in the last turn that gathered runs to its end.
        self._turn_count = 0
        self._inline_sync = InlineSyncPolicy()
        # Set from `start` on.
        self._loop: asyncio.AbstractEventLoop
        self._bell: Wakeup
        self._stopped: asyncio.Future[None]
        self._is_rung = False
        self._deliveries: deque[DurableBatch | WriterExit] = deque()
        self._closing: asyncio.Task[None] | None = None
        self._is_open = False
        self._failure: BaseException | None = None
        self._durable_sequence = 0
        self._queued_bytes = 0
        # The most space that queued runs may occupy, and the largest of them since the queue was last empty.
        self._promised_bytes = 0
        self._largest_promise_bytes = 0
        # The state of the files as of the last batch handed back, so that a run in between is never counted twice.
        self._active_room_bytes = 0
        self._taken_count = 0
        self._batch_count = 0
        self._written_bytes = 0

    def recover(
        self, from_sequence: int = 0, *, accepted: AcceptedLoss = NOTHING_ACCEPTED
    ) -> Iterator[RecoveredBatch | Damage]:
        """Read the files back, see `Log`; makes the folder if it is missing."""
        self._files.make_directories(self._directory)
        recovery = Recovery(
            self._files,
            log_paths(self._files, self._directory),
            owner=self._owner,
            newest=read_log_head(self._files, self._directory),
        )
        yield from recovery.batches(from_sequence, accepted=accepted)
        self._metrics.wal_damages_total.increase(by=len(recovery.report.damages))
        self._recovery = recovery

    @property
    def report(self) -> RecoveryReport:
        """The result of `recover`, once it is exhausted."""
        assert self._recovery is not None, "recover was not exhausted"
        return self._recovery.report

    @property
    def queued_bytes(self) -> int:
        """Bytes of frames that were submitted and are not durable yet."""
        return self._queued_bytes

    @property
    def durable_sequence(self) -> int:
        """Sequence of the last batch that was handed back, or recovered."""
        return self._durable_sequence

    @property
    def run_size_bytes_max(self) -> int:
        """The largest run that the log accepts."""
        return self._options.run_size_bytes_max

    @property
    def fullness(self) -> float:
        """The used part of the recyclable files: all files that fit, except the active one."""
        return self._pool.fullness

    def reclaimable_bytes(self, sequence: int) -> int:
        """Return the bytes of the full files that `recycle` would release; the active file is never released."""
        return self._pool.recyclable_count(self._last_not_needed(sequence)) * self._options.file_size_bytes

    @property
    def capacity_bytes(self) -> int:
        """Size of all files that are allowed, in bytes."""
        return self._options.files_max * self._options.file_size_bytes

    @property
    def refusal(self) -> str | None:
        """Why appends should be rejected now, or None."""
        if not self._is_open:
            return "the log is closed"
        options = self._options
        if self._fits(options.run_size_bytes_max + BATCH_OVERHEAD_BYTES, reserve=options.headroom_bytes):
            return None
        return self._pool.problem or "the queue of the log is full"

    @property
    def lacks_room(self) -> bool:
        """False: the files have their size from the start."""
        return False

    def submit(self, run: AppendRun, *, is_followed: bool = False) -> None:
        """Queue a run for the next batch, see `Log`."""
        writer = self._writer
        if not self._is_open or writer is None:
            raise LogClosedError("the log is closed", subject=str(self._directory)) from self._failure
        size = len(run.frames)
        cost = size + BATCH_OVERHEAD_BYTES
        if size > self._options.run_size_bytes_max:
            raise ValueError(f"a run of {size} bytes; the largest is {self._options.run_size_bytes_max}")
        reserve = 0 if run.kind == KIND_CONTROL else self._options.headroom_bytes
        if not self._fits(cost, reserve=reserve):
            raise NoSpaceError(self._pool.problem or "the queue of the log is full", subject=str(self._directory))
        is_lone = (
            not self._promised_bytes
            and size <= self._options.lone_size_bytes_max
            and self._inline_sync.allows(self._clock.monotonic_s())
        )
        self._queued_bytes += size
        self._promised_bytes += cost
        if cost > self._largest_promise_bytes:
            self._largest_promise_bytes = cost
        if is_lone or is_followed:
            if not self._gathered:
                self._is_lone = is_lone
                self._loop.call_soon(self._end_turn, writer)
            self._gathered.append(run)
        elif self._gathered:
            self._gathered.append(run)
            self._hand_over(writer)
        else:
            writer.submit(run)

    def share_loop(self) -> None:
        """Write the next batch without holding up the loop, see `Log`."""
        self._inline_sync.share()

    def recycle(self, sequence: int) -> None:
        """Mark batches up to that sequence as no longer needed: whole files of them are recycled."""
        assert sequence <= self._durable_sequence, "only durable batches can be recycled"
        self._pool.recycle(self._last_not_needed(sequence))

    def _last_not_needed(self, sequence: int) -> int:
        # The file with the last batch stays even when the next one is begun: without that batch the log would look
        # damaged.
        return min(sequence, self._durable_sequence - 1)

    def statistics(self) -> WalStatistics:
        """Return the statistics of the log. Cheap; also when closed."""
        since_s = self._writer.writing_since_s if self._writer is not None else None
        return WalStatistics(
            durable_sequence=self._durable_sequence,
            batch_count=self._batch_count,
            written_bytes=self._written_bytes,
            queued_bytes=self._queued_bytes,
            full_files=self._pool.full_count,
            spare_files=self._pool.ready_count,
            fullness=self.fullness,
            write_age_s=0.0 if since_s is None else max(0.0, self._clock.monotonic_s() - since_s),
            refusal=self.refusal,
        )

    async def end_recovered(self) -> None:
        """Do nothing, see `Log`: the folder is locked."""

    async def start(self, *, on_durable: OnDurable, on_failure: OnFailure, after_sequence: int = 0) -> None:
        """Repair the end of the log, and start the threads; see `Log`."""
        assert self._recovery is not None, "recover was not exhausted"
        assert self._writer is None, "start is called once"
        loop = self._loop = asyncio.get_running_loop()
        self._on_durable, self._on_failure = on_durable, on_failure
        log_bytes = sum(found.size_bytes for found in self._recovery.found)
        # First, or their room would count as taken.
        await loop.run_in_executor(None, remove_unfinished, self._files, self._directory)
        self._options = await loop.run_in_executor(
            None, partial(fitted, self._options, self._room, self._directory, log_bytes=log_bytes)
        )
        self._pool = self._make_pool()
        point = await loop.run_in_executor(
            None, resume, self._files, self._directory, self._options, self._pool, self._recovery, after_sequence
        )
        self._durable_sequence = point.sequence
        self._active_room_bytes = point.active.room_bytes
        self._writer = LogWriter(
            point, self._pool, self._options, clock=self._clock, metrics=self._metrics, deliver=self._deliver,
            threads=self._threads,
        )  # fmt: skip
        self._stopped = loop.create_future()
        self._bell = self._threads.bell(blocking=False)
        loop.add_reader(self._bell.descriptor, self._on_bell)
        self._is_open = True
        self._pool.start()
        self._writer.start()

    async def close(self) -> None:
        """Write the queued runs and close, see `Log`."""
        if self._writer is None:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(self._writer), name="close log")
        await asyncio.shield(self._closing)

    async def _close(self, writer: LogWriter) -> None:
        if self._is_open:
            self._is_open = False
            self._pool.drain()
            self._hand_over(writer)
            writer.stop()
        await self._stopped
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._bell.descriptor)
        # A spare may be being filled, which takes as long as the disk needs.
        await loop.run_in_executor(None, writer.close)
        await loop.run_in_executor(None, self._pool.close)
        self._bell.close()

    def _fits(self, cost: int, *, reserve: int) -> bool:
        """Return whether that much more can be promised, however the runs are spread over files."""
        active_room = self._active_room_bytes
        rest = self._promised_bytes + cost + reserve
        if rest <= active_room:
            return True
        unused_count = self._pool.unused_files(self._taken_count)
        if unused_count and rest <= self._options.file_room_bytes:
            return True  # a run that does not fit in the active file fits in the next one
        # Each file may be left with a gap in which the next run did not fit, smaller than the largest run. One control
        # record may need all of the reserve.
        waste = max(cost, reserve, self._largest_promise_bytes)
        whole = unused_count * max(0, self._options.file_room_bytes - waste)
        return rest <= max(0, active_room - waste) + whole

    def _make_pool(self) -> FilePool:
        return FilePool(
            self._files, self._directory, self._options, owner=self._owner, metrics=self._metrics, room=self._room,
            threads=self._threads,
        )  # fmt: skip

    def _hand_over(self, writer: LogWriter) -> None:
        """Hand all gathered runs to the thread at once."""
        if self._gathered:
            runs, self._gathered = self._gathered, []
            writer.submit_together(runs)

    def _end_turn(self, writer: LogWriter) -> None:
        """Write the gathered runs; in the loop itself if they are alone, and the policy allows it."""
        self._turn_count = len(self._gathered)
        # Runs after the first may come from another peer.
        is_lone = (
            self._is_lone
            and self._queued_bytes <= self._options.lone_size_bytes_max
            and self._inline_sync.allows(self._clock.monotonic_s())
        )
        if not is_lone:
            self._hand_over(writer)
        elif self._gathered:  # otherwise the thread has it
            runs, self._gathered = self._gathered, []
            self._write_lone(writer, runs)

    def _write_lone(self, writer: LogWriter, runs: list[AppendRun]) -> None:
        """Write a batch that is alone at the end of the loop's turn."""
        try:
            batch = writer.write_lone(runs)
        except LogFailedError:
            self._is_open = False
            return
        if batch is None:
            writer.submit_together(runs)
            return
        self._on_batch(batch)
        # Only now, with the ack on its way.
        writer.observe(batch)

    def _deliver(self, delivery: DurableBatch | WriterExit) -> None:
        """Hand something to the loop; called in the log thread."""
        self._deliveries.append(delivery)
        if not self._is_rung:
            self._is_rung = True
            self._bell.ring()

    def _on_bell(self) -> None:
        """Process the batches that the log thread has finished."""
        self._bell.clear()
        # Clear the flag before emptying the queue, so that a batch delivered after the last check rings again.
        self._is_rung = False
        deliveries = self._deliveries
        while deliveries:
            delivery = deliveries.popleft()
            if isinstance(delivery, DurableBatch):
                self._on_batch(delivery)
            else:
                self._on_stopped(delivery)

    def _on_batch(self, batch: DurableBatch) -> None:
        count = len(batch.runs)
        size = batch.size - BATCH_HEADER_SIZE_BYTES - RUN_ENTRY_SIZE_BYTES * count  # of all frames
        self._queued_bytes -= size
        self._promised_bytes -= size + BATCH_OVERHEAD_BYTES * count
        assert self._promised_bytes >= 0, "handed back more than was submitted"
        if not self._promised_bytes:
            self._largest_promise_bytes = 0
        self._active_room_bytes = batch.room_bytes
        self._taken_count = batch.taken_count
        self._durable_sequence = batch.sequence
        self._batch_count += 1
        self._written_bytes += batch.size
        is_alone = count in {1, self._turn_count}
        self._turn_count = 0
        self._inline_sync.wrote(is_alone=is_alone, duration_s=batch.duration_s, now_s=self._clock.monotonic_s())
        if batch.runs:
            self._on_durable(batch.runs, batch.sequence, batch.wall_time_us)

    def _on_stopped(self, stopped: WriterExit) -> None:
        self._is_open = False
        self._failure = stopped.error
        self._pool.stop()
        if not self._stopped.done():
            self._stopped.set_result(None)
        if stopped.error is not None:
            self._on_failure(stopped.error)
