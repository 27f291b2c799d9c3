"""Servers in this process whose disks are copied at any instant: what another process finds when this one is killed."""

import copy
from dataclasses import dataclass
from pathlib import Path

from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.options import ServerOptions
from millrace.server.wal import WalOptions
from tests.crash.clients import Clients
from tests.support.files import MemoryFileSystem
from tests.support.servers import SMALL_WAL, server_options
from tests.support.storage import FaultyStorage


@dataclass(slots=True)
class Snapshot:
    """The disks of a server at one instant, and what had been acknowledged by then."""

    label: str
    files: MemoryFileSystem
    storage: FaultyStorage | None
    clients: Clients
    wal: WalOptions


@dataclass(slots=True)
class Machine:
    """A server whose log and checkpoint (and tier 2, unless `storage` is given) are on a file system in memory."""

    folder: Path
    container: ContainerOptions
    files: MemoryFileSystem
    storage: FaultyStorage | None = None
    wal: WalOptions = SMALL_WAL

    @property
    def options(self) -> ServerOptions:
        return server_options(self.folder, container=self.container, wal=self.wal)

    def server(self) -> Server:
        """Return a server on these disks, not started."""
        return Server(self.options, files=self.files, storage=self.storage)

    def snapshot(self, clients: Clients, label: str = "") -> Snapshot:
        """Copy everything at this instant; to be called in the event loop."""
        storage = self.storage.copy() if self.storage is not None else None
        return Snapshot(label, self.files.copy(), storage, copy.deepcopy(clients), self.wal)


def machine_of(snapshot: Snapshot, folder: Path, container: ContainerOptions) -> Machine:
    """Return a machine that starts from a copy of the snapshot."""
    storage = snapshot.storage.copy() if snapshot.storage is not None else None
    return Machine(folder, container, snapshot.files.copy(), storage, snapshot.wal)
