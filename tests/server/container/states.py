"""States of a container of which nothing was stored yet."""

from millrace.server.container.checkpoint.rows import CheckpointRows, take_rows
from millrace.server.container.idle_budget import IDLE_BYTES_MAX, IdleBudget
from millrace.server.container.state.container_state import ContainerState, StoredState
from millrace.server.container.state.garbage import DeleteAfter, GarbageQueue
from millrace.server.container.state.scalars import Scalars
from millrace.server.kinds.registry import KINDS

FIRST_ID = 1


class EmptyArchive:
    """The archive in which nothing was ever stored."""

    def load(self, number: int) -> None:
        pass

    def find(self, name: str) -> int:
        return 0

    def numbers(self, *, after: int, count_max: int) -> list[int]:
        return []

    def names(self, *, prefix: str, after: str, count_max: int) -> list[tuple[str, int]]:
        return []


def new_state(*, idle_bytes_max: int = IDLE_BYTES_MAX) -> ContainerState:
    """Return the state of a container before anything happened, without a checkpoint."""
    stored = StoredState(
        kinds=KINDS,
        archives={kind.name: EmptyArchive() for kind in KINDS},
        counts={kind.name: 0 for kind in KINDS},
        internal_count=0,
        attribute_bytes=0,
        scalars=Scalars(next_id=FIRST_ID),
    )
    state = ContainerState(stored, idle_bytes_max=idle_bytes_max)
    evict_at_once(state.idle)
    return state


def evict_at_once(idle: IdleBudget) -> IdleBudget:
    """Let each use of a cache be a step of its own, after which idle entities are evicted."""
    idle.on_full = idle.trim
    return idle


def waiting(garbage: GarbageQueue, delete_after: DeleteAfter) -> list[str]:
    """Return the names of the chunks that wait for this, in the order in which they were added."""
    return [name for name, _ in garbage._entries[delete_after]]


def store(state: ContainerState) -> CheckpointRows:
    """Take what changed, as if a checkpoint stored it, and return that."""
    rows = take_rows(state)
    state.stored(stored_below=rows.next_id)
    return rows
