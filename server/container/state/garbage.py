"""The queue of chunks that nothing refers to any more, each with what must be durable before it is deleted.

A chunk may be deleted only when nothing that a restart could start from still leads to it:

    NOW         no checkpoint ever knew it, and none will: it was published for a segment that was deleted meanwhile
    CHECKPOINT  a record of the log gave it up (truncate, delete). Once a checkpoint without it is stored it can go: a
                restart from an older copy of the checkpoint reads that record again, and gives it up again
    COPY        it was written again elsewhere, of which no record tells (a small chunk, a merged segment, an orphan):
                a copy of the checkpoint without it must be published first, or an older copy would lead to nothing

Where another server may take over, it has a copy of the checkpoint and no log. So there CHECKPOINT is as COPY, and only
a copy that counts (`Ownership.record_copy`) is a published one.

Checkpoints are numbered from 1 in the order in which they begin. An entry waits for the first one that begins after it
was added, or for a copy of that one or of a later one; so a checkpoint or a copy that fails needs no undoing.

    added --(checkpoint begun, stored)--> deletable if CHECKPOINT --(copied, published)--> deletable if COPY

Owns the names and their order. Does not own the deleting, which is I/O and belongs to the flusher; nor does it outlive
the process: what was not deleted before a crash is found again as an orphan.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto


class DeleteAfter(Enum):
    """What must be durable before a chunk is deleted; see the module."""

    NOW = auto()
    CHECKPOINT = auto()
    COPY = auto()


class GarbageQueue:
    """Names of chunks to delete, by what they wait for. Not thread-safe: belongs to the event loop.

    Args:
        is_shared: whether another server may take the container over, see `Ownership`.
    """

    __slots__ = ("_begun", "_copied", "_entries", "_is_shared", "_stored")

    def __init__(self, *, is_shared: bool = False) -> None:
        self._is_shared = is_shared
        # By what must be durable, the oldest first: the name, and the number of the checkpoint that it waits for.
        self._entries: dict[DeleteAfter, deque[tuple[str, int]]] = {kind: deque() for kind in DeleteAfter}
        # Numbers of the checkpoint that began last, of the newest stored one, and of the newest in a published copy.
        self._begun = self._stored = self._copied = 0

    def add(self, names: Iterable[str], *, delete_after: DeleteAfter) -> None:
        """Add chunks that nothing in memory refers to any more."""
        if self._is_shared and delete_after is DeleteAfter.CHECKPOINT:
            delete_after = DeleteAfter.COPY
        self._entries[delete_after].extend((name, self._begun + 1) for name in names)

    def checkpoint_begun(self) -> int:
        """Note that a checkpoint of the state as it is now is to be stored; return its number."""
        self._begun += 1
        return self._begun

    def checkpoint_stored(self, number: int) -> None:
        """Note that a checkpoint is durable."""
        assert self._stored < number <= self._begun
        self._stored = number

    def copy_published(self, number: int) -> None:
        """Note that a copy of that checkpoint is durable in tier 2, and counts."""
        assert self._copied <= number <= self._stored
        self._copied = number

    @property
    def waits_for_checkpoint(self) -> bool:
        """Whether an entry waits for a checkpoint that is not stored yet."""
        kinds = (DeleteAfter.CHECKPOINT, DeleteAfter.COPY)
        return any(self._entries[kind] and self._entries[kind][-1][1] > self._stored for kind in kinds)

    @property
    def waits_for_copy(self) -> bool:
        """Whether a copy of the newest stored checkpoint would let an entry be deleted."""
        entries = self._entries[DeleteAfter.COPY]
        return bool(entries) and self._copied < entries[0][1] <= self._stored

    def take(self) -> str | None:
        """Remove and return a name that may be deleted now; None if there is none. If that fails, `put_back` it."""
        durable = {
            DeleteAfter.NOW: self._begun + 1,
            DeleteAfter.CHECKPOINT: self._stored,
            DeleteAfter.COPY: self._copied,
        }
        for kind, entries in self._entries.items():
            if entries and entries[0][1] <= durable[kind]:
                return entries.popleft()[0]
        return None

    def put_back(self, name: str) -> None:
        """Return a name that was taken and could not be deleted: it is tried again."""
        self._entries[DeleteAfter.NOW].append((name, 0))
