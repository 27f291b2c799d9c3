"""Containers that are filled and closed, and opened again on what a test has left of their files."""

from millrace.server.container.options import ContainerOptions
from millrace.wire import messages as m
from millrace.wire.limits import KIB
from tests.support.scenario import CHECKPOINT, FOLDER, WAL, Scenario
from tests.support.servers import QUIET


async def filled(scenario: Scenario, *, size: int, is_published: bool = False) -> bytes:
    """Store something in raw/a and in the checkpoint; if `is_published`, in tier 2 and in a copy of the checkpoint."""
    content = b""
    async with scenario.running() as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        while len(content) < size:
            piece = (len(content) // 7).to_bytes(4, "little") * KIB
            await peer.store(segment_id, piece)
            content += piece
            if is_published and (len(content) % (64 * KIB) == 0 or len(content) >= size):
                await run.published()
        await run.opened.flusher.checkpoint()
    return content


async def found(scenario: Scenario, *, container: ContainerOptions = QUIET) -> bytes:
    """Return what a container serves of raw/a."""
    async with scenario.running(container=container) as run, run.peer() as peer:
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        return await peer.read_all(info.segment_id)


def flip(data: bytes, name: bytes = b"raw/a") -> bytes:
    """Turn over a bit of a name in a checkpoint: a row does not match its checksum any more."""
    damaged = bytearray(data)
    damaged[damaged.index(name)] ^= 16
    return bytes(damaged)


def damage_checkpoint(scenario: Scenario) -> None:
    scenario.files.replace_content(CHECKPOINT, flip(scenario.files.content(CHECKPOINT)))


def set_aside(scenario: Scenario, reason: str = "damaged") -> list[str]:
    """Return the names of the checkpoints that were set aside."""
    return [name for name in scenario.files.list_directory(FOLDER) if name.startswith(f"checkpoint.db.{reason}-")]


def logs(scenario: Scenario) -> list[str]:
    """Return the names of the files of the log."""
    return [name for name in scenario.files.list_directory(WAL) if name.startswith("wal-")]
