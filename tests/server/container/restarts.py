"""Servers that are filled and stopped, and started again on what a test has left of their folders."""

from pathlib import Path

from millrace.server.app import Server
from millrace.wire import messages as m
from millrace.wire.limits import KIB
from tests.support.protocol import Peer, Stored
from tests.support.servers import BUSY, QUIET, server_options
from tests.support.storage import FaultyStorage
from tests.support.waiting import settled

CONTAINER = "containers/0000"


def logs(folder: Path) -> list[Path]:
    return sorted((folder / CONTAINER / "wal").glob("wal-*.log"))


def chunks(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.chunk"))


def lose_checkpoints(folder: Path) -> None:
    """Remove the checkpoint and its copies."""
    for path in (folder / CONTAINER / "checkpoint.db", *(folder / "tier2" / "c0000" / "checkpoints").iterdir()):
        path.unlink()


async def filled(folder: Path, *, size: int, container: object = BUSY, storage: FaultyStorage | None = None) -> bytes:
    """Let a server store something in raw/a, and stop it in good order."""
    async with (
        Server(server_options(folder, container=container), storage=storage) as server,
        await Peer.connect(server.address) as peer,
    ):
        segment_id = await peer.create_segment("raw/a")
        content = b""
        while len(content) < size:
            piece = (len(content) // 7).to_bytes(4, "little") * KIB
            (outcome,) = await peer.settled(await peer.append(segment_id, piece))
            if isinstance(outcome, Stored):
                content += piece
        if container is BUSY:  # all of it goes to tier 2, and into a copy of the checkpoint
            await settled(server)
            await server.opened.flusher.checkpoint()
            await server.opened.flusher.copy()
    return content


async def found(folder: Path, *, storage: FaultyStorage | None = None, container: object = QUIET) -> bytes:
    """Return what a server serves of raw/a."""
    async with (
        Server(server_options(folder, container=container), storage=storage) as server,
        await Peer.connect(server.address) as peer,
    ):
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        return await peer.read_all(info.segment_id)


def flip(data: bytes, name: bytes = b"raw/a") -> bytes:
    """Turn over a bit of a name in a checkpoint: a row does not match its checksum any more."""
    damaged = bytearray(data)
    damaged[damaged.index(name)] ^= 16
    return bytes(damaged)


def damage_checkpoint(folder: Path) -> None:
    path = folder / CONTAINER / "checkpoint.db"
    path.write_bytes(flip(path.read_bytes()))


def set_aside(folder: Path) -> list[str]:
    return [path.name for path in (folder / CONTAINER).glob("checkpoint.db.damaged-*")]


async def saved_and_copied(server: Server) -> None:
    """Let the server flush, save a checkpoint and publish a copy of it."""
    flusher = server.opened.flusher
    await flusher.flush()
    await flusher.checkpoint()
    await flusher.copy()
