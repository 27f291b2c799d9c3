"""Group commit: one thread writes all queued runs with one write and one sync.

Theory. While one batch is being synced, arriving runs queue up, and all of them form the next batch: the slower the
disk, the larger the batches. There is no timer, and an idle log answers after exactly one sync. The event loop appends
to a deque and rings a bell only if the thread sleeps; the thread puts the finished batch on another deque and rings the
loop only if it was not rung since the loop last emptied that deque. So under load neither side makes many system calls
to wake the other.

Order. Runs are written, and handed back, in the order submitted. One write is in flight at a time: the next begins only
when the sync of the last has returned. Recovery relies on it.

Failure. A failed write or sync ends the thread forever. The runs in it and after it have an unknown outcome; the bytes
stay as they are, and no sync is repeated: the system may have dropped pages that it could not write, and a second sync
would then succeed without them.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from millrace.server.errors import LogClosedError, LogFailedError
from millrace.server.host.clock import Clock
from millrace.server.host.metrics import Metrics
from millrace.server.host.threads import SYSTEM_THREADS, Threads
from millrace.wire.append_run import AppendRun

from .batch import BATCH_HEADER_SIZE_BYTES, RUN_ENTRY_SIZE_BYTES, encode_batch
from .log_head import NEWEST_NAME, FileUse, LogHeadFile
from .logfile import LogFile, close_file
from .options import WalOptions
from .pool import FilePool

logger = logging.getLogger(__name__)

_SLOW_SYNC_S: Final = 1.0


class DurableBatch(NamedTuple):
    """A batch that is on the disk."""

    runs: list[AppendRun]
    sequence: int
    wall_time_us: int
    size: int
    # Free space in the active file, and how many files had been taken from the pool, when it was written.
    room_bytes: int
    taken_count: int
    # Duration of write and sync.
    duration_s: float


class WriterExit(NamedTuple):
    """The thread has ended; with an error unless it was stopped."""

    error: BaseException | None


class ResumptionPoint(NamedTuple):
    """Where the writer resumes: the file, the last batch, and the log head that names the file."""

    active: LogFile
    newest: LogHeadFile
    sequence: int
    previous_checksum: int


class LogWriter:
    """The log thread and its queue.

    `submit`, `submit_together`, `write_lone` and `stop` belong to one other thread, the event loop's; `deliver` is
    called in the log thread.
    """

    def __init__(
        self,
        point: ResumptionPoint,
        pool: FilePool,
        options: WalOptions,
        *,
        clock: Clock,
        metrics: Metrics,
        deliver: Callable[[DurableBatch | WriterExit], None],
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        """Store the collaborators; `point` is where to resume."""
        self._active, self._newest, self._sequence, self._checksum = point
        pool.sequence_floor = point.sequence
        self._pool = pool
        self._batch_size_bytes_max = options.batch_size_bytes_max
        self._clock = clock
        self._sync_seconds = metrics.wal_sync_seconds.series()
        self._batch_bytes = metrics.wal_batch_bytes.series()
        self._taken_count = 0
        self._deliver = deliver
        self._queue: deque[AppendRun] = deque()
        self._bell = threads.bell(blocking=True)
        # True from just before the thread checks the queue for the last time until it is rung.
        self._is_idle = False
        self._is_stopping = False
        self._needs_closing_batch = False
        # Why nothing may be written any more.
        self._failure: BaseException | None = None
        # When the write in flight began, on the monotonic clock; None if no write is in flight.
        self.writing_since_s: float | None = None
        self._thread = threads.thread(self._run, name="millrace-wal")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, run: AppendRun) -> None:
        """Queue a run. Never waits."""
        self._queue.append(run)
        if self._is_idle:
            self._is_idle = False
            self._bell.ring()

    def submit_together(self, runs: Sequence[AppendRun]) -> None:
        """Queue runs that are taken for one batch, if they fit one. Never waits."""
        self._queue.extend(runs)
        if self._is_idle:
            self._is_idle = False
            self._bell.ring()

    def write_lone(self, runs: list[AppendRun]) -> DurableBatch | None:
        """Write one batch in the calling thread, while the log thread sleeps; call `observe` afterwards.

        Returns:
            None, and nothing was done, if the thread does not sleep or the runs do not fit the active file.

        Raises:
            LogFailedError: the log failed; `deliver` is about to report it. Nothing may be submitted any more.
        """
        # The thread is asleep, or between its last check of the queue and its sleep: it touches nothing until it is
        # rung.
        if not self._is_idle or BATCH_HEADER_SIZE_BYTES + sum(map(_cost, runs)) > self._active.room_bytes:
            return None
        try:
            return self._write(runs)
        except Exception as error:
            self._fail(error)
            self._is_idle = False
            self.stop()
            assert self._failure is not None
            raise self._failure from error

    def stop(self) -> None:
        """Let the thread write the queued runs and then end, which `deliver` reports."""
        self._is_stopping = True
        self._bell.ring()

    def close(self) -> None:
        """Wait for the end of the thread, then close its files."""
        self._thread.join()
        self._bell.close()
        close_file(self._active.file, self._active.path)
        close_file(self._newest, self._active.path.with_name(NEWEST_NAME))

    def _run(self) -> None:
        try:
            while runs := self._take():
                batch = self._write(runs)
                self._deliver(batch)
                # Only now, with the acks on their way.
                self.observe(batch)
            if self._failure is None and (closing := self._closing_batch()) is not None:
                self._deliver(closing)
        except BaseException as error:  # noqa: BLE001  # whatever ends this thread ends the log, and must be told
            self._fail(error)
        self._deliver(WriterExit(self._failure))

    def _fail(self, error: BaseException) -> None:
        """Stop all writing."""
        self.writing_since_s = None
        if isinstance(error, LogClosedError):
            self._failure = error
            return
        self._failure = LogFailedError(
            f"the log failed at sequence {self._sequence + 1}: {error!r}", subject=str(self._active.path)
        )
        self._failure.__cause__ = error
        logger.critical("log failed path=%s offset=%d error=%r", self._active.path, self._active.end, error)

    def _take(self) -> list[AppendRun]:
        """Sleep until there are runs; return those of the next batch, which fits the active file. Empty at the end."""
        queue = self._queue
        while not queue:
            # The order matters: mark the thread as idle, then check again, so that either the thread sees a run queued
            # in between, or its submitter sees that the thread is idle.
            self._is_idle = True
            if queue:
                self._is_idle = False
                break
            if self._is_stopping:
                return []
            self._bell.wait()
            self._is_idle = False
        while True:
            room = self._active.room_bytes - BATCH_HEADER_SIZE_BYTES
            runs: list[AppendRun] = []
            size = 0
            while queue:
                cost = _cost(queue[0])
                if size + cost > room or (runs and size + cost > self._batch_size_bytes_max):
                    break
                runs.append(queue.popleft())
                size += cost
            if runs:
                return runs
            self._roll()

    def _write(self, runs: list[AppendRun]) -> DurableBatch:
        active, clock = self._active, self._clock
        wall_time_us = clock.unix_us()
        sequence = self._sequence + 1
        pieces, size, checksum = encode_batch(
            runs, sequence=sequence, salt=active.salt, previous_checksum=self._checksum, wall_time_us=wall_time_us
        )
        started_s = self.writing_since_s = clock.monotonic_s()
        active.append(pieces, size=size, sequence=sequence)
        self.writing_since_s = None
        duration_s = clock.monotonic_s() - started_s
        self._sequence = self._pool.sequence_floor = sequence
        self._checksum = checksum
        self._needs_closing_batch = True
        return DurableBatch(runs, sequence, wall_time_us, size, active.room_bytes, self._taken_count, duration_s)

    def observe(self, batch: DurableBatch) -> None:
        """Count a batch."""
        self._sync_seconds.observe(batch.duration_s)
        self._batch_bytes.observe(batch.size)
        if batch.duration_s > _SLOW_SYNC_S:
            logger.warning(
                "slow log sync duration_s=%.3f bytes=%d sequence=%d", batch.duration_s, batch.size, batch.sequence
            )

    def _closing_batch(self) -> DurableBatch | None:
        """Write a batch that proves to the next recovery that the batch before was acknowledged, if there is space."""
        if self._needs_closing_batch and self._active.room_bytes >= BATCH_HEADER_SIZE_BYTES:
            return self._write([])
        return None

    def _roll(self) -> None:
        """Continue in the next file, which is named in the log head before anything is written to it."""
        file = self._pool.take()
        self._taken_count += 1
        self.writing_since_s = self._clock.monotonic_s()
        try:
            self._newest.name(FileUse(file.number, file.salt))
        except BaseException:
            close_file(file.file, file.path)
            raise
        self.writing_since_s = None
        full, self._active = self._active, file
        self._pool.put_full(full)
        logger.debug("log rolled path=%s sequence=%d", file.path, self._sequence + 1)


def _cost(run: AppendRun) -> int:
    """Return the size of a run in a batch."""
    return RUN_ENTRY_SIZE_BYTES + len(run.frames)
