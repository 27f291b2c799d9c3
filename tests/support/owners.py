"""Server processes that claim containers of one store, each with its folder, on a clock that the test moves."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from millrace.server.errors import OwnerFencedError
from millrace.server.object_store import ObjectStore
from millrace.server.ownership import Claimant, CopyRecord, ManifestOwnership, Worker, WorkerLease, claim_container
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem

URL: Final = "s3://bucket/prefix"
SERVER_ID: Final = uuid.UUID(int=1)
FOLDER: Final = Path("/data/containers/0000")
LEASE_S: Final = 12.0
"""Renewed each 4 s, looked at each 3 s by those who watch it."""

T = TypeVar("T")


def worker(host: str) -> Worker:
    """Return a process on a machine; the processes on one machine have one place."""
    return Worker(
        worker_id=uuid.uuid4(),
        host=host,
        folder="/data",
        place=f"{host}:/data#7",
        pid=1,
        started="2026-01-31T12:00:00+00:00",
    )


class Process:
    """A server process: it has a lease, which it renews from `start` on, and may claim container 0.

    Args:
        files: those of its machine; empty if not given.
    """

    def __init__(
        self, store: ObjectStore, clock: ManualClock, *, host: str = "one", files: MemoryFileSystem | None = None
    ) -> None:
        self.files = files or MemoryFileSystem()
        self.clock = clock
        self.store = store
        self.host = host
        self.fenced: list[OwnerFencedError] = []
        # How often what is in the folder was discarded.
        self.discards_count = 0
        # The newest whole copy of the checkpoint, as the names in the store tell.
        self.newest_copy: CopyRecord | None = None
        self.lease = WorkerLease(
            store, worker(host), url=URL, lease_s=LEASE_S, clock=clock, on_fenced=self.fenced.append
        )
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> "Process":
        """Make the lease and renew it in the background."""
        await self.lease.start()
        self._renewing = asyncio.create_task(self.lease.run())
        return self

    async def claim(
        self,
        next_epoch: int = 1,
        *,
        server_id: uuid.UUID = SERVER_ID,
        has_remote_log: bool = False,
        on_standby: Callable[[Claimant], None] | None = None,
    ) -> ManifestOwnership:
        """Claim the container."""
        return await claim_container(
            self.lease,
            0,
            files=self.files,
            folder=FOLDER,
            server_id=server_id,
            next_epoch=next_epoch,
            has_remote_log=has_remote_log,
            discard=self._discard,
            newest_copy=self._newest_copy,
            on_standby=on_standby,
        )

    async def _newest_copy(self) -> CopyRecord | None:
        return self.newest_copy

    def _discard(self) -> None:
        self.discards_count += 1

    async def crash(self) -> None:
        """End at once: nothing is renewed any more."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])

    async def next_process(self, *, host: str = "", store: ObjectStore | None = None) -> "Process":
        """Return a process that was started after the end of this one, in the same folder, perhaps moved elsewhere."""
        await self.crash()
        host = host or self.host
        return await Process(store or self.store, self.clock, host=host, files=self.files.copy()).start()


async def passing(clock: ManualClock, work: Coroutine[Any, Any, T] | Awaitable[T], *, step_s: float = 1.0) -> T:
    """Let time pass until something is done, and return what it comes to."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await clock.advance(step_s)
    return task.result()
