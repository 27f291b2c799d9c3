"""Servers in this process whose disks are copied at any instant: what another process finds when this one is killed."""

import copy
import shutil
from dataclasses import dataclass
from pathlib import Path

from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.options import ServerOptions
from tests.crash.checker import Account
from tests.support.files import MemoryFileSystem
from tests.support.servers import server_options
from tests.support.storage import FaultyStorage


@dataclass(slots=True)
class Snapshot:
    """The disks of a server at one instant, and what had been acknowledged by then."""

    label: str
    files: MemoryFileSystem
    storage: FaultyStorage | None
    checkpoint: bytes
    account: Account


@dataclass(slots=True)
class Machine:
    """A server whose log (and tier 2, unless `storage` is given) is on a file system in memory.

    The checkpoint is a real file, since SQLite knows no other. What it has committed is durable by its own word.
    """

    folder: Path
    container: ContainerOptions
    files: MemoryFileSystem
    storage: FaultyStorage | None = None

    @property
    def options(self) -> ServerOptions:
        return server_options(self.folder, container=self.container)

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "containers" / "0000" / "checkpoint.db"

    def server(self) -> Server:
        """Return a server on these disks, not started."""
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        return Server(self.options, files=self.files, storage=self.storage)

    def snapshot(self, server: Server, account: Account, label: str = "") -> Snapshot:
        """Copy everything at this instant; to be called in the event loop."""
        assert server._open is not None
        # In this order: whatever the log has let go of by now, this checkpoint does not need. The lock keeps a save
        # that is under way from being copied half; it takes place before or after.
        with server._open.checkpoints._lock:
            checkpoint = self._checkpoint.read_bytes()
            files = self.files.copy()
        storage = self.storage.copy() if self.storage is not None else None
        return Snapshot(label, files, storage, checkpoint, copy.deepcopy(account))


def machine_of(snapshot: Snapshot, folder: Path, container: ContainerOptions) -> Machine:
    """Return a machine that starts from a copy of the snapshot; `folder`, which keeps its path, is made anew."""
    storage = snapshot.storage.copy() if snapshot.storage is not None else None
    machine = Machine(folder, container, snapshot.files.copy(), storage)
    checkpoint = machine._checkpoint
    if checkpoint.parent.exists():
        shutil.rmtree(checkpoint.parent)
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(snapshot.checkpoint)
    return machine
