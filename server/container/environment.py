"""The environment of a container: the interface along which a server could own several containers."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from millrace.server.cache import PageCache
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.errors import ServerError
from millrace.server.host.clock import Clock
from millrace.server.ownership import Ownership
from millrace.server.tier2 import ChunkStorage
from millrace.server.wal import Log, LogOwner

from .options import ContainerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnvironment:
    """What a container gets from outside.

    Attributes:
        container: its number, which its ids carry.
        server_id: identity of the server that it belongs to.
        ownership: its right to change what is in tier 2, and the epoch of this start.
        checkpoints: its checkpoint, not loaded yet.
        storage: its own scope of tier 2: it lists and deletes what it finds there.
        make_log: returns its log, neither recovered nor started; called for each attempt.
        on_failure: called once if the log or the checkpoint fails: the container is to be closed and started again.
            With an OwnerFencedError, also after that: it is another server's.
    """

    container: int
    server_id: UUID
    ownership: Ownership
    checkpoints: CheckpointStore
    storage: ChunkStorage
    make_log: Callable[[], Log]
    cache: PageCache
    container_options: ContainerOptions
    page_size_bytes: int
    clock: Clock
    on_failure: Callable[[ServerError], None]

    @property
    def epoch(self) -> int:
        """Of this start: above those of all earlier starts. Chunks are published under it, or a higher one."""
        return self.ownership.epoch

    @property
    def owner(self) -> LogOwner:
        """Whose log and copies these are."""
        return LogOwner(self.container, self.server_id)
