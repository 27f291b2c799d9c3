"""The right of a container to change its stored data, in the folder or in a store.

There are two kinds. In a data folder of its own a server has that right while it holds the lock of the folder
(`FolderOwnership`). In an object store another server can take over at any time, so the right is a manifest that is
changed by compare-and-swap only (`manifest_ownership.ManifestOwnership`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """A copy of the checkpoint in tier 2.

    Attributes:
        name: what the names of all of its parts begin with.
        sequence: the last batch of the log that it contains.
        container_epoch: under which it was stored.
        replay_from: the first batch that a start from it needs.
    """

    name: str
    sequence: int
    container_epoch: int
    replay_from: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLog:
    """The log of a container, if it is in the object store.

    Attributes:
        first_epoch, last_epoch: it was written under these epochs and those between, or under some of them; the last
            is that of the newest claim.
        from_sequence: the first batch that a start from either copy of the checkpoint needs; it is in one of these
            epochs.
        acknowledged: the last batch that is known to be acknowledged, 0 if none is.
    """

    first_epoch: int
    last_epoch: int
    from_sequence: int
    acknowledged: int = 0

    @property
    def epochs(self) -> range:
        """All epochs, the oldest first."""
        return range(self.first_epoch, self.last_epoch + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipStatistics:
    """How the right to change a container is. Without a lease its numbers are 0.

    Attributes:
        epoch: of this start.
        claimed: when, in UTC; empty if nobody can take over.
        is_fenced: whether another server has taken over.
        is_stalled: whether nothing may be acknowledged, as it may have.
        renewals_count: of the lease of this process, that succeeded.
        failed_renewals_count: attempts at one that did not.
        lease_age_s: seconds since the last that succeeded was first attempted; above the length of the lease, another
            may take over at any time.
    """

    epoch: int
    claimed: str = ""
    is_fenced: bool = False
    is_stalled: bool = False
    renewals_count: int = 0
    failed_renewals_count: int = 0
    lease_age_s: float = 0.0


class Ownership(Protocol):
    """The right of one start of a container to change its stored data. Belongs to one event loop."""

    @property
    def epoch(self) -> int:
        """Of this start: above those of all earlier ones. Chunks are published under it."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether another server may take over from a copy of the checkpoint, with no log.

        Then a chunk is deleted only after a copy that does not refer to it has been recorded.
        """
        ...

    @property
    def is_stalled(self) -> bool:
        """Whether this process stood still for so long that another may have taken over without its knowledge.

        Then no batch may be acknowledged. Cheap: it is read for every batch.
        """
        ...

    @property
    def is_lapsed(self) -> bool:
        """Whether another may have taken over with all that was acknowledged, as the lease could not be renewed.

        Then nothing is answered. Never where the log is in the folder.
        """
        ...

    @property
    def store(self) -> str:
        """URL of the object store that has log and history; empty if the log is in the folder."""
        ...

    @property
    def copy(self) -> CopyRecord | None:
        """The newest copy that counts; None if there is none, or if only the names of copies show it."""
        ...

    @property
    def copy_before(self) -> CopyRecord | None:
        """The copy that counted before it, for a start that cannot use that one; None as of `copy`."""
        ...

    def copy_unusable(self, name: str) -> None:
        """Note that a copy that counts is missing or damaged: once another counts, this one is not kept beside it."""
        ...

    @property
    def log(self) -> RemoteLog | None:
        """Where the log is in the object store; None if it is in the data folder."""
        ...

    def log_began(self, epoch_ends: Mapping[int, int], *, acknowledged: Callable[[], int]) -> None:
        """Take notice where earlier epochs of the log have ended, once that of this start begins.

        Args:
            epoch_ends: for each, the first sequence that is not in it.
            acknowledged: returns the last batch that was acknowledged; may be called at any time from now on.
        """
        ...

    async def record_copy(self, copy: CopyRecord) -> None:
        """Make a published copy count. Recycle the log, and delete the chunks of older copies, only afterwards.

        Raises:
            OwnerFencedError: another server owns the container now; nothing was changed.
            StorageError: it is not known to count; try again.
        """
        ...

    async def raise_epoch(self) -> int:
        """Continue under a higher epoch, since another server has published under this one; return it.

        Raises:
            OwnerFencedError, StorageError: as of `record_copy`.
        """
        ...

    def statistics(self) -> OwnershipStatistics:
        """Return how the right is. May be called from any thread."""
        ...

    async def release(self) -> None:
        """Give the right up, after everything else has ended: the next owner need not wait.

        Raises:
            StorageError: the next owner has to wait for the lease to end.
        """
        ...


class FolderOwnership:
    """The ownership of a container whose folder is locked, and whose tier 2 has no other server.

    Args:
        epoch: above those of all earlier starts.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.is_shared = False
        self.is_stalled = False
        self.is_lapsed = False
        self.store = ""
        self.copy: CopyRecord | None = None
        self.copy_before: CopyRecord | None = None
        self.log: RemoteLog | None = None

    def copy_unusable(self, name: str) -> None:
        """Do nothing: a start looks for whole copies by their names."""

    def log_began(self, epoch_ends: Mapping[int, int], *, acknowledged: Callable[[], int]) -> None:
        """Do nothing: the log in a folder records where it begins and ends."""

    async def record_copy(self, copy: CopyRecord) -> None:
        """Do nothing: the names of copies show which is the newest."""

    async def raise_epoch(self) -> int:
        """Continue under the next epoch, see `Ownership`."""
        self.epoch += 1
        return self.epoch

    def statistics(self) -> OwnershipStatistics:
        """Return how the right is, see `Ownership`."""
        return OwnershipStatistics(epoch=self.epoch)

    async def release(self) -> None:
        """Do nothing: the lock of the folder ends with the process."""
