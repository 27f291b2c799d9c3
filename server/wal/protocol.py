"""What a container needs of its write-ahead log, whatever it is kept in.

There are two: `Wal`, in files, and one in memory for tests. `tests/contracts/test_log.py` holds both to what is said
here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from millrace.wire.append_run import AppendRun

from .report import NOTHING_ACCEPTED, AcceptedLoss, Damage, RecoveredBatch, RecoveryReport

OnDurable = Callable[[list[AppendRun], int, int], None]
OnFailure = Callable[[BaseException], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    """What a log is doing.

    Attributes:
        written_bytes: since the start, headers included.
        fullness: as `Log.fullness`.
        write_age_s: how long the medium has been at the write in flight; 0 when there is none. Grows while it stalls.
        refusal: why appends are refused, or None.
    """

    durable_sequence: int
    batch_count: int
    written_bytes: int
    queued_bytes: int
    fullness: float
    write_age_s: float
    refusal: str | None


class Log(Protocol):
    """A durable queue of runs: what was handed back is on the medium, in the order submitted.

    Life: `recover` (in a thread), `start`, then any number of `submit`, then `close`. Or it fails: a write that fails
    ends the log forever, every run not handed back yet is of unknown outcome, and only another `Log` on the same
    medium, recovering, can tell.

    All methods but `recover` belong to the thread of the event loop in which `start` was awaited.
    """

    def recover(
        self, from_sequence: int = 0, *, accepted: AcceptedLoss = NOTHING_ACCEPTED
    ) -> Iterator[RecoveredBatch | Damage]:
        """Read back what the log holds from that sequence on, in order. Blocking: call and iterate it in a thread.

        It must be exhausted before `start`. Damaged ranges come as `Damage`, each after what could be salvaged from
        it; reading continues after them. Damage whose loss was accepted is not told. With `from_sequence` above 0, the
        caller says that it needs everything from there on: a log that starts later is damage. Frames are views of
        whole files in memory: copy what is kept for long.

        Raises:
            FolderVersionError: the log was written by another version, or belongs to another container or server.
            OSError: the medium cannot be read.
        """
        ...

    @property
    def report(self) -> RecoveryReport:
        """What `recover` found; once it is exhausted."""
        ...

    async def end_recovered(self) -> None:
        """Keep everybody from adding to what was recovered, of which a part is missing and is about to be given up.

        Raises:
            StorageError: some of it is there by now; start over.
        """
        ...

    async def start(self, *, on_durable: OnDurable, on_failure: OnFailure, after_sequence: int = 0) -> None:
        """Make the end of the log durable and ready for new batches.

        Once this returns, everything that `recover` handed out is on the medium, whether it was synced before or not;
        answer no request from it earlier. Not to be cancelled.

        Args:
            on_durable: called in the loop with the runs of each batch, its sequence and its wall time (Unix
                microseconds), in order. It must not raise.
            on_failure: called in the loop, at most once, when runs will never be handed back: the log has failed
                (LogFailedError), or was closed while it waited for space (LogClosedError).
            after_sequence: new batches get higher sequences than this, and than the last batch of the log: a checkpoint
                may know of batches that the log has lost.

        Raises:
            NoSpaceError: there is no room for the first batch.
            OSError: the end of the log could not be made good; nothing was started.
        """
        ...

    async def close(self) -> None:
        """Write what is queued, hand it back, and end; at once if the log has failed.

        If there is no room for what is queued, it is not waited for: those runs are of unknown outcome. Safe to cancel
        and to call again: the closing continues, and each call waits for its end. Before `start` it does nothing.
        """
        ...

    def submit(self, run: AppendRun, *, is_followed: bool = False) -> None:
        """Queue a run for the next batch; never waits.

        Args:
            is_followed: others are expected that belong to it: no batch begins with it before one comes for which that
                is not so, or this turn of the loop has ended. All of these are one batch then, if they fit one.

        Raises:
            LogClosedError: the log is closed, or has failed.
            NoSpaceError: there is no room that could be promised to it. It was not queued. For appends that cannot
                happen while there is no `refusal`; control records have room beyond that.
        """
        ...

    def share_loop(self) -> None:
        """Write the next batch without holding up the loop: it serves others than who submits.

        Otherwise a log may write a batch that is alone in the loop itself.
        """
        ...

    def recycle(self, sequence: int) -> None:
        """Say that batches up to that sequence are no longer needed: their space is used again."""
        ...

    @property
    def run_size_bytes_max(self) -> int:
        """The largest run of frames, with their headers, that the log takes."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes of frames that were submitted and are not durable yet."""
        ...

    @property
    def durable_sequence(self) -> int:
        """Sequence of the last batch that was handed back, or recovered."""
        ...

    @property
    def fullness(self) -> float:
        """Which part of its bound the log has reached, from 0 to 1."""
        ...

    def reclaimable_bytes(self, sequence: int) -> int:
        """Return how many bytes `recycle` of that sequence would give back now."""
        ...

    @property
    def capacity_bytes(self) -> int:
        """The bound of the log."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why appends should be refused now, or None while the largest possible run of them would be taken.

        Then they are to be refused before anything was promised; control records may still be submitted.
        """
        ...

    @property
    def lacks_room(self) -> bool:
        """Whether a write waits for room on a medium that tier 2 shares; what is not urgent is not stored there now."""
        ...

    def statistics(self) -> LogStatistics:
        """Return what the log is doing. Cheap; also when closed."""
        ...
