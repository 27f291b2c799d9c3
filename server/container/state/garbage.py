"""The queue of chunks that nothing refers to any more, each with what must be durable before it is deleted.

A chunk may be deleted only when nothing that a restart could start from still leads to it:

    NOW         no checkpoint ever knew it, and none will: it was published for a segment that was deleted meanwhile
    CHECKPOINT  a record of the log gave it up (truncate, delete). Once a checkpoint without it is stored it can go: a
                restart from an older copy of the checkpoint reads that record again, and gives it up again
    COPY        it was written again elsewhere, of which no record tells (a small chunk, a merged segment, an orphan):
                a copy of the checkpoint without it must be published first, or an older copy would lead to nothing

Where another server may take over, it may have no log, and starts from the newest copy that counts
(`Ownership.record_copy`), or from the one before if that is damaged. So there CHECKPOINT waits for a copy, and COPY for
two: both copies that a start may use are without the chunk then. (What a record gave up is not missed by a start from
the copy before the newest: nobody can ask for it.)

Checkpoints are numbered from 1 in the order in which they begin. An entry waits for the first one that begins after it
was added, or for a copy of that one or of a later one; so a checkpoint or a copy that fails needs no undoing.

                added --(checkpoint stored)--> CHECKPOINT --(copy published)--> COPY
    shared      added --(checkpoint stored)--> --(copy counts)--> CHECKPOINT --(another copy counts)--> COPY

Owns the names and their order. Does not own the deleting, which is I/O and belongs to the flusher; nor does it outlive
the process: what was not deleted before a crash is found again as an orphan.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from math import inf


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

    __slots__ = ("_begun", "_copied", "_copied_before", "_entries", "_is_shared", "_stored")

    def __init__(self, *, is_shared: bool = False) -> None:
        self._is_shared = is_shared
        # By what must be durable, the oldest first: the name, and the number of the checkpoint that it waits for.
        self._entries: dict[DeleteAfter, deque[tuple[str, int]]] = {kind: deque() for kind in DeleteAfter}
        # Numbers of the checkpoint that began last, of the newest stored one, and of those in the last two copies.
        self._begun = self._stored = self._copied = self._copied_before = 0

    def add(self, names: Iterable[str], *, delete_after: DeleteAfter) -> None:
        """Add chunks that nothing in memory refers to any more."""
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
        self._copied_before, self._copied = self._copied, number

    @property
    def waits_for_checkpoint(self) -> bool:
        """Whether an entry waits for a checkpoint that is not stored yet."""
        kinds = (DeleteAfter.CHECKPOINT, DeleteAfter.COPY)
        return any(self._entries[kind] and self._entries[kind][-1][1] > self._stored for kind in kinds)

    @property
    def waits_for_copy(self) -> bool:
        """Whether an entry waits for a copy of the newest stored checkpoint.

        Where it waits for two, the second one is made when it is due anyway.
        """
        kinds = (DeleteAfter.CHECKPOINT, DeleteAfter.COPY) if self._is_shared else (DeleteAfter.COPY,)
        return any(self._first_not_copied(self._entries[kind]) <= self._stored for kind in kinds)

    def _first_not_copied(self, entries: deque[tuple[str, int]]) -> float:
        """Return the checkpoint that the first entry waits for of which no copy is published."""
        return next((number for _, number in entries if number > self._copied), inf)

    def take(self) -> str | None:
        """Remove and return a name that may be deleted now; None if there is none. If that fails, `put_back` it."""
        durable = {
            DeleteAfter.NOW: self._begun + 1,
            DeleteAfter.CHECKPOINT: self._copied if self._is_shared else self._stored,
            DeleteAfter.COPY: self._copied_before if self._is_shared else self._copied,
        }
        for kind, entries in self._entries.items():
            if entries and entries[0][1] <= durable[kind]:
                return entries.popleft()[0]
        return None

    def put_back(self, name: str) -> None:
        """Return a name that was taken and could not be deleted: it is tried again."""
        self._entries[DeleteAfter.NOW].append((name, 0))
