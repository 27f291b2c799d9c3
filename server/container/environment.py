"""What a container gets from outside: the seam along which a server could own several containers."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from millrace.server.cache import PageCache
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.errors import ServerError
from millrace.server.host.clock import Clock
from millrace.server.tier2 import ChunkStorage
from millrace.server.wal import Log, LogOwner

from .options import ContainerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnvironment:
    """What a container gets from outside.

    Attributes:
        container: its number, which its ids carry.
        server_id: identity of the server that it belongs to.
        epoch: of this start: above those of all earlier starts. Chunks are published under it.
        checkpoints: its checkpoint, not loaded yet.
        storage: its own scope of tier 2: it lists and deletes what it finds there.
        make_log: returns its log, neither recovered nor started; called for each attempt.
        on_failure: called once if the log or the checkpoint fails: the container is to be closed and started again.
    """

    container: int
    server_id: UUID
    epoch: int
    checkpoints: CheckpointStore
    storage: ChunkStorage
    make_log: Callable[[], Log]
    cache: PageCache
    container_options: ContainerOptions
    page_size_bytes: int
    clock: Clock
    on_failure: Callable[[ServerError], None]

    @property
    def owner(self) -> LogOwner:
        """Whose log and copies these are."""
        return LogOwner(self.container, self.server_id)
