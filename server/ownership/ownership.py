"""The container's write permission: epoch, fencing, and which checkpoint copy is current.

There are two kinds. In a data folder of its own, a server may change the container while it holds the lock of the
folder (`FolderOwnership`). In an object store another server can take over at any time, so the right is a manifest that
is changed by compare-and-swap only (`manifest_ownership.ManifestOwnership`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """A copy of the checkpoint in tier 2.

    Attributes:
        name: prefix of the names of all its parts.
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
    """The log of a container in the object store.

    Attributes:
        first_epoch, last_epoch: the range of epochs under which it was written; the last is that of the newest claim.
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
    """State of an ownership. Without a lease its numbers are 0.

    Attributes:
        epoch: of this start.
        claimed: when, in UTC; empty if nobody can take over.
        is_fenced: whether another server has taken over.
        is_stalled: whether no batch may be acknowledged, because another server may have taken over.
        renewals_count: successful renewals of the lease of this process.
        failed_renewals_count: failed renewal attempts.
        lease_age_s: seconds since the first attempt at the last successful renewal; above the length of the lease,
            another server may take over at any time.
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
        """Epoch of this start: above those of all earlier ones. Chunks are published under it."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether another server may take over from a copy of the checkpoint, without a log.

        A chunk is then deleted only after a copy that does not refer to it was recorded.
        """
        ...

    @property
    def is_stalled(self) -> bool:
        """Whether this process stalled for so long that another server may have taken over unnoticed.

        No batch may be acknowledged then. Cheap: it is read for every batch.
        """
        ...

    @property
    def is_lapsed(self) -> bool:
        """Whether the lease has expired, so that another server may have taken over with all acknowledged batches.

        No reply may be sent then. Never if the log is in the folder.
        """
        ...

    @property
    def store(self) -> str:
        """URL of the object store that has log and history; empty if the log is in the folder."""
        ...

    @property
    def copy(self) -> CopyRecord | None:
        """The current copy; None if there is none, or if only the names of copies show it."""
        ...

    @property
    def copy_before(self) -> CopyRecord | None:
        """The copy before the current one, for a start that cannot use that one; None as for `copy`."""
        ...

    def copy_unusable(self, name: str) -> None:
        """Note that a current copy is missing or damaged: it is not kept beside the next one."""
        ...

    @property
    def log(self) -> RemoteLog | None:
        """Location of the log in the object store; None if it is in the data folder."""
        ...

    def log_began(self, epoch_ends: Mapping[int, int], *, acknowledged: Callable[[], int]) -> None:
        """Record where earlier epochs of the log have ended, when that of this start begins.

        Args:
            epoch_ends: for each epoch, the first sequence that is not in it.
            acknowledged: returns the last acknowledged batch; may be called at any time from now on.
        """
        ...

    async def record_copy(self, copy: CopyRecord) -> None:
        """Make a published copy current. Recycle the log, and delete the chunks of older copies, only afterwards.

        Raises:
            OwnerFencedError: another server owns the container; nothing was changed.
            StorageError: the copy may not be current; try again.
        """
        ...

    async def raise_epoch(self) -> int:
        """Continue under a higher epoch, because another server has published under this one; return it.

        Raises:
            OwnerFencedError, StorageError: as for `record_copy`.
        """
        ...

    def statistics(self) -> OwnershipStatistics:
        """Return the state of the ownership. May be called from any thread."""
        ...

    async def release(self) -> None:
        """Release the container, after everything else has ended: the next owner need not wait.

        Raises:
            StorageError: the next owner has to wait for the lease to expire.
        """
        ...


class FolderOwnership:
    """The ownership of a container whose folder is locked, and whose tier 2 is used by no other server.

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
        """Do nothing: a start finds complete copies by their names."""

    def log_began(self, epoch_ends: Mapping[int, int], *, acknowledged: Callable[[], int]) -> None:
        """Do nothing: the log in a folder records where it begins and ends."""

    async def record_copy(self, copy: CopyRecord) -> None:
        """Do nothing: the names of copies show which is the newest."""

    async def raise_epoch(self) -> int:
        """Continue under the next epoch, see `Ownership`."""
        self.epoch += 1
        return self.epoch

    def statistics(self) -> OwnershipStatistics:
        """Return the state of the ownership, see `Ownership`."""
        return OwnershipStatistics(epoch=self.epoch)

    async def release(self) -> None:
        """Do nothing: the lock of the folder ends with the process."""
