"""The power fails at any instant: of what was not synced, any subset is gone; of what was acknowledged, nothing.

Also the steps between the publishing of a chunk, the checkpoint and the recycling of the log, each with a kill before
and after it.
"""

import asyncio
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.app import Server
from tests.crash.clients import Clients
from tests.crash.snapshots import Machine, Snapshot, machine_of
from tests.support.files import MemoryFileSystem
from tests.support.protocol import Peer
from tests.support.servers import BUSY, SMALL_WAL
from tests.support.storage import FaultyStorage
from tests.support.waiting import PATIENCE_S

CONTAINER = replace(BUSY, orphan_grace_s=0.01)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, if there is such a thing: SQLite syncs it very often."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name) / "data"


async def finish(writing: "asyncio.Task[None]", server: Server) -> None:
    """Stop the server under its writers."""
    await server.stop()
    await writing


async def checked(snapshot: Snapshot, folder: Path) -> None:
    """Start a server on a snapshot and clients for everything, twice."""
    machine = machine_of(snapshot, folder, CONTAINER)
    for _ in range(2):
        async with machine.server() as server:
            await snapshot.clients.check(server.address)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(("seed", "zero_fill"), [(0, True), (1, True), (2, False)])
async def test_a_loss_of_power_loses_nothing_acknowledged(folder: Path, seed: int, zero_fill: bool) -> None:
    """Behaviour 40: all unsynced bytes gone, or any subset of unsynced writes persisted, in log and tier 2."""
    asyncio.get_running_loop().set_debug(False)
    choices = random.Random(seed)
    machine = Machine(folder, CONTAINER, MemoryFileSystem(), wal=replace(SMALL_WAL, zero_fill=zero_fill))
    server = machine.server()
    await server.start()
    clients = Clients(seed)
    await clients.prepare(server.address)
    writing = asyncio.create_task(clients.write(server.address))
    snapshots = []
    for number in range(6):
        await asyncio.sleep(choices.uniform(0.01, 0.2))
        snapshots.append(machine.snapshot(clients, f"seed {seed} snapshot {number}"))
    await finish(writing, server)
    for snapshot in snapshots:
        for loss in range(3):
            print(f"{snapshot.label}, loss {loss}")
            copied = replace_files(snapshot, loss)
            await checked(copied, folder)


def replace_files(snapshot: Snapshot, seed: int) -> Snapshot:
    """Return the snapshot after a loss of power."""
    files = snapshot.files.copy()
    files.crash(seed)
    return replace(snapshot, files=files)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_kill_between_any_two_steps_of_flushing_is_harmless(folder: Path) -> None:
    """Behaviour 46: tier-2 publish, checkpoint, log recycling: no byte twice, none missing, orphans collected."""
    asyncio.get_running_loop().set_debug(False)
    storage = FaultyStorage()
    machine = Machine(folder, CONTAINER, MemoryFileSystem(), storage)
    server = machine.server()
    await server.start()
    clients = Clients(1)
    await clients.prepare(server.address)
    snapshots: list[Snapshot] = []
    steps: dict[str, int] = {}
    all_seen = asyncio.Event()

    def step(when: str, action: str, name: str) -> None:
        label = f"{when} {action} of {name.split('/')[1]}"
        steps[label] = steps.get(label, 0) + 1
        if steps[label] in {1, 4}:
            snapshots.append(machine.snapshot(clients, f"{label} {name}"))
        if len(steps) == 8:
            all_seen.set()

    storage.on_step = step
    writing = asyncio.create_task(clients.write(server.address))
    async with asyncio.timeout(PATIENCE_S):
        await all_seen.wait()
    storage.on_step = lambda when, action, name: None
    await finish(writing, server)
    assert set(steps) == {
        f"{when} {action} of {kind}"
        for when in ("before", "after")
        for action in ("publish", "delete")
        for kind in ("segments", "checkpoints")
    }
    for snapshot in snapshots:
        print(snapshot.label)
        await checked(snapshot, folder)
        machine = machine_of(snapshot, folder, CONTAINER)
        await assert_orphans_go(machine)


async def assert_orphans_go(machine: Machine) -> None:
    """Wait until tier 2 holds exactly the chunks that segments refer to."""
    assert machine.storage is not None
    async with machine.server() as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("orphans/wait")
        async with asyncio.timeout(PATIENCE_S):
            while True:
                # Something to checkpoint; a log that was full has to be recycled first.
                await peer.settled(await peer.append(segment_id, b"x"))
                segments = server.opened.container.state.segments.values()
                known = {chunk.name for segment in segments for chunk in segment.chunks}
                if {name.removeprefix("c0000/") for name in machine.storage.names()} == known:
                    return
                await asyncio.sleep(0.02)
