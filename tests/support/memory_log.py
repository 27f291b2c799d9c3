"""A log in memory: what was handed back outlives the object, as on a disk that never fails unless a test says so."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from millrace.server.errors import LogClosedError, LogFailedError, NoSpaceError
from millrace.server.host.clock import Clock
from millrace.server.wal import (
    NOTHING_ACCEPTED,
    AcceptedLoss,
    Damage,
    Ending,
    LogStatistics,
    RecoveredBatch,
    RecoveryReport,
)
from millrace.server.wal.protocol import OnDurable, OnFailure
from millrace.wire.append_run import KIND_CONTROL, AppendRun
from millrace.wire.limits import KIB, MIB
from tests.support.clock import ManualClock

PLACE = "memory"


@dataclass(slots=True)
class LogMedium:
    """What is left when a `MemoryLog` ends."""

    capacity_bytes: int = 16 * MIB
    batches: list[RecoveredBatch] = field(default_factory=list)
    # The next batch is lost, and the log with it.
    is_failing: bool = False
    # Nothing is written until `resume`.
    is_stalled: bool = False
    _write: Callable[[], None] = lambda: None

    @property
    def size_bytes(self) -> int:
        return sum(batch.size for batch in self.batches)

    def resume(self) -> None:
        """Write what was submitted meanwhile as one batch."""
        self.is_stalled = False
        self._write()

    def written_by(self, write: Callable[[], None]) -> None:
        """Name what `resume` calls."""
        self._write = write

    def copy(self) -> "LogMedium":
        """Return what another process finds."""
        return LogMedium(self.capacity_bytes, list(self.batches))


class MemoryLog:
    """Fills the `Log` seam: every batch is durable in the next turn of the event loop."""

    def __init__(self, medium: LogMedium, *, clock: Clock | None = None) -> None:
        self._medium = medium
        self._clock = clock or ManualClock()
        self._report: RecoveryReport | None = None
        self._queue: list[AppendRun] = []
        self._sequence = 0
        self._batch_count = 0
        self._is_open = False
        self._on_durable: OnDurable = lambda runs, sequence, wall_time_us: None
        self._on_failure: OnFailure = lambda error: None

    def recover(
        self, from_sequence: int = 0, *, accepted: AcceptedLoss = NOTHING_ACCEPTED
    ) -> Iterator[RecoveredBatch | Damage]:
        batches = self._medium.batches
        damages = []
        first = batches[0].sequence if batches else 0
        if 0 < from_sequence < first and accepted.sequence < first - 1:
            damages.append(
                Damage(
                    place=PLACE,
                    offset=0,
                    size=0,
                    first_sequence=from_sequence,
                    last_sequence=first - 1,
                    reason="the log starts too late",
                )
            )
        yield from damages
        yield from (batch for batch in batches if batch.sequence >= from_sequence)
        self._sequence = batches[-1].sequence if batches else 0
        self._report = RecoveryReport(
            ending=Ending.CORRUPT if damages else Ending.END,
            torn_bytes=0,
            damages=damages,
            first_sequence=first,
            last_sequence=self._sequence,
            batch_count=len(batches),
            size_bytes=self._medium.size_bytes,
            places=(PLACE,),
            end_offset=self._medium.size_bytes,
        )

    @property
    def report(self) -> RecoveryReport:
        assert self._report is not None
        return self._report

    async def end_recovered(self) -> None:
        """Do nothing, see `Log`."""

    async def start(self, *, on_durable: OnDurable, on_failure: OnFailure, after_sequence: int = 0) -> None:
        assert self._report is not None
        self._sequence = max(self._sequence, after_sequence)
        self._on_durable, self._on_failure = on_durable, on_failure
        self._medium.written_by(self._write)
        self._is_open = True

    async def close(self) -> None:
        if self._queue:
            self._write()
        self._is_open = False

    def submit(self, run: AppendRun, *, is_followed: bool = False) -> None:
        del is_followed  # all runs of a turn are one batch
        if not self._is_open:
            raise LogClosedError("the log is closed")
        if len(run.frames) > self.run_size_bytes_max:
            raise ValueError(f"a run of {len(run.frames)} bytes; the largest is {self.run_size_bytes_max}")
        reserve = 0 if run.kind == KIND_CONTROL else self._headroom_bytes
        if len(run.frames) + reserve > self._room_bytes:
            raise NoSpaceError("the log is full")
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._write)
        self._queue.append(run)

    def share_loop(self) -> None:
        """Nothing here holds up the loop."""

    def recycle(self, sequence: int) -> None:
        assert sequence <= self._sequence
        # Never the last batch: a log without it has lost it.
        done = min(sequence, self._sequence - 1)
        self._medium.batches = [batch for batch in self._medium.batches if batch.sequence > done]

    @property
    def run_size_bytes_max(self) -> int:
        return min(64 * KIB, self._medium.capacity_bytes // 4)

    @property
    def queued_bytes(self) -> int:
        return sum(len(run.frames) for run in self._queue)

    @property
    def durable_sequence(self) -> int:
        return self._sequence

    @property
    def lacks_room(self) -> bool:
        return False

    @property
    def fullness(self) -> float:
        return self._medium.size_bytes / self._medium.capacity_bytes

    def reclaimable_bytes(self, sequence: int) -> int:
        done = min(sequence, self._sequence - 1)
        return sum(batch.size for batch in self._medium.batches if batch.sequence <= done)

    @property
    def capacity_bytes(self) -> int:
        return self._medium.capacity_bytes

    @property
    def refusal(self) -> str | None:
        if not self._is_open:
            return "the log is closed"
        return None if self.run_size_bytes_max + self._headroom_bytes <= self._room_bytes else "the log is full"

    def statistics(self) -> LogStatistics:
        return LogStatistics(
            durable_sequence=self._sequence,
            batch_count=self._batch_count,
            written_bytes=self._medium.size_bytes,
            queued_bytes=self.queued_bytes,
            fullness=self.fullness,
            write_age_s=0.0,
            refusal=self.refusal,
        )

    @property
    def _headroom_bytes(self) -> int:
        return self._medium.capacity_bytes // 4

    @property
    def _room_bytes(self) -> int:
        return self._medium.capacity_bytes - self._medium.size_bytes - self.queued_bytes

    def _write(self) -> None:
        if not (self._queue and self._is_open) or self._medium.is_stalled:
            return
        runs, self._queue = self._queue, []
        if self._medium.is_failing:
            self._is_open = False
            self._on_failure(LogFailedError(f"the log failed at sequence {self._sequence + 1}"))
            return
        self._sequence += 1
        self._batch_count += 1
        batch = RecoveredBatch(
            sequence=self._sequence,
            wall_time_us=self._clock.unix_us(),
            runs=[replace(run, frames=memoryview(bytes(run.frames))) for run in runs],
            place=PLACE,
            offset=self._medium.size_bytes,
            size=sum(len(run.frames) for run in runs),
        )
        self._medium.batches.append(batch)
        self._on_durable(runs, batch.sequence, batch.wall_time_us)
