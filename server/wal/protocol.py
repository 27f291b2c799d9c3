"""The interface of a container's write-ahead log, for every medium.

There are three implementations: `Wal` in files, `ObjectWal` in an object store, and one in memory for tests.
`tests/contracts/test_log.py` checks each against this contract.
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
    """Statistics of a log.

    Attributes:
        written_bytes: since the start, headers included.
        fullness: as `Log.fullness`.
        write_age_s: how long the write in flight has taken so far; 0 if there is none. Grows while the medium stalls.
        refusal: why appends are rejected, or None.
    """

    durable_sequence: int
    batch_count: int
    written_bytes: int
    queued_bytes: int
    fullness: float
    write_age_s: float
    refusal: str | None


class Log(Protocol):
    """A durable queue of runs: runs that were handed back are on the medium, in the order submitted.

    Life cycle: `recover` (in a thread), `start`, then any number of `submit`, then `close`. Or it fails: a failed write
    ends the log forever. Every run not handed back yet has an unknown outcome, which only the recovery of another `Log`
    on the same medium can find out.

    All methods but `recover` belong to the thread of the event loop in which `start` was awaited.
    """

    def recover(
        self, from_sequence: int = 0, *, accepted: AcceptedLoss = NOTHING_ACCEPTED
    ) -> Iterator[RecoveredBatch | Damage]:
        """Read back the content of the log from that sequence on, in order. Blocking: call and iterate it in a thread.

        It must be exhausted before `start`. Damaged ranges are yielded as `Damage`, each after the runs salvaged from
        it; reading continues after them. Damage whose loss was accepted is not yielded. With `from_sequence` above 0,
        the caller needs everything from there on: a log that starts later counts as damaged. Frames are views of whole
        files in memory: copy frames that are kept for long.

        Raises:
            FolderVersionError: the log was written by another version, or belongs to another container or server.
            OSError: the medium cannot be read.
        """
        ...

    @property
    def report(self) -> RecoveryReport:
        """The result of `recover`, once it is exhausted."""
        ...

    async def end_recovered(self) -> None:
        """Prevent anybody from adding to the recovered log, before the loss of its missing part is accepted.

        Raises:
            StorageError: some of the missing part has appeared; start over.
        """
        ...

    async def start(self, *, on_durable: OnDurable, on_failure: OnFailure, after_sequence: int = 0) -> None:
        """Make the end of the log durable and accept new batches.

        Once this returns, everything that `recover` yielded is durable, whether it was synced before or not; answer no
        request from it earlier. Not to be cancelled.

        Args:
            on_durable: called in the loop with the runs of each batch, its sequence and its wall time (Unix
                microseconds), in order. It must not raise.
            on_failure: called in the loop, at most once, when runs will never be handed back: the log has failed
                (LogFailedError), or was closed while it waited for space (LogClosedError).
            after_sequence: new batches get higher sequences than this, and than the last batch of the log: a checkpoint
                may know of batches that the log has lost.

        Raises:
            NoSpaceError: there is no space for the first batch.
            OSError: the end of the log could not be repaired; nothing was started.
        """
        ...

    async def close(self) -> None:
        """Write the queued runs, hand them back, and close; at once if the log has failed.

        It does not wait for space for queued runs: without space their outcome is unknown. Safe to cancel and to call
        again: the closing continues, and each call waits for its end. Before `start` it does nothing.
        """
        ...

    def submit(self, run: AppendRun, *, is_followed: bool = False) -> None:
        """Queue a run for the next batch; never waits.

        Args:
            is_followed: more runs are expected that belong to it: no batch begins with this run before a run comes that
                is not followed, or this turn of the loop has ended. All of these are one batch then, if they fit into
                one.

        Raises:
            LogClosedError: the log is closed, or has failed.
            NoSpaceError: no space is left to promise. The run was not queued. For appends this cannot happen while
                `refusal` is None; control records have space beyond that.
        """
        ...

    def share_loop(self) -> None:
        """Write the next batch without blocking the loop, because the loop also serves other peers.

        Otherwise a log may write a batch that is alone in the loop itself.
        """
        ...

    def recycle(self, sequence: int) -> None:
        """Mark batches up to that sequence as no longer needed: their space is reused."""
        ...

    @property
    def run_size_bytes_max(self) -> int:
        """The largest run of frames, with their headers, that the log accepts."""
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
        """The used part of the log's limit, from 0 to 1."""
        ...

    def reclaimable_bytes(self, sequence: int) -> int:
        """Return how many bytes `recycle` of that sequence would free now."""
        ...

    @property
    def capacity_bytes(self) -> int:
        """The bound of the log."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why appends should be rejected now, or None while the largest possible run would be accepted.

        Reject them before anything was promised; control records may still be submitted.
        """
        ...

    @property
    def lacks_room(self) -> bool:
        """Whether a write waits for space on a medium shared with tier 2; store nothing there that is not urgent."""
        ...

    def statistics(self) -> LogStatistics:
        """Return the statistics of the log. Cheap; also when closed."""
        ...
