"""Servers with data folders of their own over one object store, each on a clock of its own."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.host.files import FileSystem
from millrace.server.object_store import ObjectStore, ObjectStoreOptions, StoreUrl
from millrace.server.wal import WalOptions
from millrace.wire import messages as m
from millrace.wire.limits import KIB
from tests.support.clock import ManualClock
from tests.support.object_store import MemoryObjectStore
from tests.support.protocol import Peer
from tests.support.servers import QUIET, SMALL_WAL, server_options
from tests.support.waiting import PATIENCE_S

URL: Final = StoreUrl.parse("s3://bucket/prefix")
LEASE_S: Final = 9.0
RESERVE_BYTES: Final = 512 * KIB
STEP_S: Final = 0.5
TURNS_COUNT: Final = 50


class Site:
    """A data folder whose history is in a store, and the server that serves it, on a clock of its own.

    Args:
        container, standby: see `ServerOptions`.
        files: in place of those of the machine.
    """

    def __init__(
        self,
        folder: Path,
        store: ObjectStore,
        *,
        wal: WalOptions = SMALL_WAL,
        container: ContainerOptions = QUIET,
        standby: bool = False,
        files: FileSystem | None = None,
    ) -> None:
        self.folder = folder
        self.files = files
        self.store = store
        self.wal = wal
        self.container = container
        self.standby = standby
        self.clock = ManualClock()
        self.server = self._server()

    def _server(self) -> Server:
        options = server_options(
            self.folder,
            store=URL,
            wal=self.wal,
            standby=self.standby,
            objects=ObjectStoreOptions(lease_s=LEASE_S, reserve_bytes=RESERVE_BYTES),
            container=self.container,
            shutdown_s=20.0,
        )
        return Server(options, files=self.files, store=self.store, clock=self.clock)

    def copied(self, folder: Path) -> "Site":
        """Return a site with a copy of the folder as it is now, as of a machine that was cloned."""
        shutil.copytree(self.folder, folder)
        return Site(folder, self.store, wal=self.wal)

    async def start(self, *clocks: ManualClock) -> None:
        """Start the server, while time passes here and on other clocks."""
        self.server = self._server()
        await self.passing(self.server.start(), *clocks)

    async def passing(self, work: Any, *clocks: ManualClock) -> Any:
        """Do something while time passes here and on other clocks."""
        running: asyncio.Future[Any] = asyncio.ensure_future(work)
        await pass_time(running.done, self.clock, *clocks)
        return await running

    async def until(self, predicate: Callable[[], object]) -> None:
        """Let time pass here until something is true, and then no more."""
        await pass_time(predicate, self.clock)

    async def stop(self) -> None:
        """Stop in good order."""
        await self.passing(self.server.stop())

    async def killed(self) -> None:
        """End the server as a kill would: nothing is stored or given back."""
        server = self.server
        server.stop_listening()
        for connection in list(server.connections):
            connection.abort()
        await server.host.end_recovery()
        await server.host.container.end_tasks()
        await server.host.backend.end_tasks()
        if server.is_open:
            await server.opened.end_storing()
            await server.opened.release()
        await server.host.cache.close()
        await server.host.backend.close(release_s=None)

    async def stored(self, payload: bytes) -> None:
        """Store an append in raw/a."""
        async with await Peer.connect(self.server.address) as peer:
            segment_id = await peer.create_segment("raw/a")
            await peer.store(segment_id, payload)

    async def stored_more(self, payload: bytes) -> None:
        """Store another append in raw/a."""
        async with await Peer.connect(self.server.address) as peer:
            info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
            await peer.store(info.segment_id, payload)

    async def content(self) -> bytes:
        """Return what is in raw/a."""
        async with await Peer.connect(self.server.address) as peer:
            info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
            return await peer.read_all(info.segment_id)


async def pass_time(is_over: Callable[[], object], *clocks: ManualClock) -> None:
    """Let time pass on clocks until something is true, and then no more.

    Between two steps the loop runs until all have done what they can without more time, or nearly all: where a renewal
    of a lease takes a few turns of the loop, as many steps would let the lease run out on a busy machine.
    """
    async with asyncio.timeout(PATIENCE_S):
        while not is_over():
            for clock in clocks:
                clock.move(STEP_S)
            for _ in range(TURNS_COUNT):
                await asyncio.sleep(0)
            await asyncio.sleep(0.001)  # for threads


def manifest_in(store: MemoryObjectStore) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.objects["c0000/manifest"])
    return found


def leases_in(store: MemoryObjectStore) -> list[str]:
    return [key for key in store.objects if key.startswith("workers/")]
