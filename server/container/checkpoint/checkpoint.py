"""The content of an opened checkpoint."""

from dataclasses import dataclass
from typing import NamedTuple

from millrace.server.container.state.container_state import StoredState


class CheckpointVersion(NamedTuple):
    """What orders the checkpoints of a container: a newer one is greater. Each of these only ascends."""

    sequence: int
    container_epoch: int
    replay_from: int

    def __str__(self) -> str:
        return f"sequence {self.sequence}, epoch {self.container_epoch}, replay from {self.replay_from}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was opened.

    Attributes:
        stored: what it has of segments, streams and writers.
        sequence: of the last log batch that it contains.
        replay_from: of the first log batch that holds bytes which are not in tier 2.
        container_epoch: of the container when it was saved.
        is_verified: whether every row was; if not, `CheckpointStore.verify` does it.
        is_restored: whether it is a copy that took the place of the file, and nothing was saved to it yet.
        restored_from: the name of the copy in tier 2 that has just taken the place of the file; empty if none has.
        newer_copy: the name of a copy in tier 2 that says it is newer, and cannot be used; empty if there is none.
    """

    stored: StoredState
    sequence: int
    replay_from: int
    container_epoch: int
    is_verified: bool
    is_restored: bool
    restored_from: str = ""
    newer_copy: str = ""

    @property
    def version(self) -> CheckpointVersion:
        """Where it stands among the checkpoints of the container."""
        return CheckpointVersion(self.sequence, self.container_epoch, self.replay_from)
