"""The machine of one server after the other: a disk that outlives them, and loses its power with them or not."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from millrace.model.address import Address
from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.options import ServerOptions
from millrace.server.wal import WalOptions
from tests.simulation.virtual_loop import Life, VirtualClock
from tests.support.files import SteppedFileSystem

from .loop import ServerLoop

ADDRESS: Final = Address("127.0.0.1", 9240)
FOLDER: Final = Path("/data")

LOG_PREFIX: Final = "wal-"
RESTART_S: Final = 0.1
"""When a supervisor starts a server again whose start failed."""


class WorldClock(VirtualClock):
    """The clock of a server, and of clients."""

    def time_ns(self) -> int:
        return self.unix_us() * 1000

    def timeout(self, duration_s: float) -> asyncio.Timeout:
        return asyncio.timeout(None if duration_s == math.inf else duration_s)

    def pause(self, duration_s: float) -> None:
        """Return at once: other threads have their turn when this one waits."""


@dataclass
class Machine:
    """What a server runs on.

    Attributes:
        server: the one that runs, or starts; None while it is down.
        sync_s: the mean time of a sync of the log.
        on_end: called with the error of a server that has ended by itself.
    """

    loop: ServerLoop
    dice: Random
    wal: WalOptions
    container: ContainerOptions
    on_end: Callable[[BaseException], None]
    sync_s: float = 0.0
    files: SteppedFileSystem = field(default_factory=SteppedFileSystem)
    server: Server | None = None
    life: Life = field(default_factory=Life)
    is_serving: bool = False
    lives: list[Life] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = WorldClock(self.loop)
        self.files.before_sync = self._sync
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a server on what is on the disk."""
        assert self.server is None
        self.life = Life()
        self.lives.append(self.life)
        self.server = self._made()
        self._running = self.loop.start(self.life, self._run(self.server))

    def _made(self) -> Server:
        options = ServerOptions(
            data_folder=FOLDER, listen=ADDRESS, wal=self.wal, container=self.container, console=None
        )
        return Server(options, files=self.files, clock=self.clock, threads=self.loop.threads)

    async def stop(self) -> None:
        """Stop the server in good order."""
        assert self.server is not None
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait([self._running])
        self.server = None

    def kill(self, *, loses_power: bool) -> None:
        """End the server at this instant, as SIGKILL or a power loss does."""
        self._copy_files()
        self._bury(loses_power=loses_power)

    def kill_within(self, steps_count: int, *, loses_power: bool) -> asyncio.Event:
        """End the server in the middle of what it does to its disk, after so many steps of that."""
        killed = asyncio.Event()
        files, last = self.files, self.files.step_count + steps_count

        def refuses(step: int, path: Path, is_change: bool) -> bool:
            if step == last and files is self.files and not self.life.is_frozen:
                self._copy_files()
                self._bury(loses_power=loses_power)
                killed.set()
            return False

        files.refuses = refuses
        return killed

    def _copy_files(self) -> None:
        """Leave the disk as it is to whoever is killed: the next server has another one with the same content."""
        self.files = self.files.copy()
        self.files.before_sync = self._sync

    def _sync(self, path: Path) -> None:
        """Let a sync of the log take its time, in which the event loop goes on; others hold locks."""
        if self.sync_s and path.name.startswith(LOG_PREFIX) and not self.loop.threads.in_loop:
            self.loop.threads.pause(self.dice.expovariate(1 / self.sync_s))

    def _bury(self, *, loses_power: bool) -> None:
        self.life.is_frozen = True
        self.server, self.is_serving = None, False
        if loses_power:
            self.files.crash(self.dice.getrandbits(32))
        self.loop.wires.end_process(self.life)

    async def _run(self, server: Server) -> None:
        try:
            while not await self._has_started(server):
                await asyncio.sleep(RESTART_S)
                server = self.server = self._made()
            try:
                self.is_serving = True
                await server.wait_for_end()
            finally:
                await server.stop()
        except Exception as error:  # noqa: BLE001  # whatever it is, a server does not end by itself
            self.on_end(error)
        finally:
            self.is_serving = False

    async def _has_started(self, server: Server) -> bool:
        """Return whether a server started; one whose disk refuses a sync ends, and its supervisor starts another."""
        try:
            await server.start()
        except OSError:
            return False
        return True
