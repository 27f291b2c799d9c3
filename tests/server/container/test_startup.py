"""Starting from disks on which something is missing or damaged."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.cli.main import main
from millrace.server.app import Server
from millrace.server.errors import ChunkExistsError, LogCorruptError, NoSpaceError, StorageError
from millrace.server.tier2 import ChunkInfo
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.server.container.restarts import CONTAINER, filled, found, logs, saved_and_copied
from tests.server.tier2.chunks import forged
from tests.support.databases import FaultyDatabases
from tests.support.protocol import Peer, code_of
from tests.support.servers import QUIET, server_options
from tests.support.storage import FaultyStorage


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_log_whose_only_file_is_gone_is_not_an_empty_one(tmp_path: Path) -> None:
    """Behaviour 82: the checkpoint does not know of all that was acknowledged."""
    await filled(tmp_path, size=20 * KIB, container=QUIET)
    kept = {log: log.read_bytes() for log in logs(tmp_path)}
    for log in kept:
        log.unlink()
    for _ in range(2):
        async with (
            Server(server_options(tmp_path, container=QUIET)) as server,
            await Peer.connect(server.address) as peer,
        ):
            info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
            assert await peer.settled(await peer.append(info.segment_id, b"new")) == [ErrorCode.CONTENT_LOST]
            assert "wal-0000000000000001.log: this file is missing" in server.health()
    assert logs(tmp_path) == []
    for log, content in kept.items():
        log.write_bytes(content)
    assert len(await found(tmp_path)) == 20 * KIB


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_log_that_lost_its_end_never_gives_a_number_twice(tmp_path: Path) -> None:
    """Behaviour 42: the checkpoint knows of batches that the log has lost. What is acknowledged next must survive."""
    container = replace(QUIET, checkpoint_interval_s=0.01)
    server = Server(server_options(tmp_path, container=container))
    await server.start()
    async with await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"a" * 100)
        for _ in range(5):
            await peer.store(segment_id, b"b" * 100)
        await server.opened.flusher.checkpoint()
        saved = (tmp_path / CONTAINER / "checkpoint.db").read_bytes()
        data = logs(tmp_path)[0].read_bytes()
    await server.stop()
    # As a kill leaves it, with the last bytes of the log gone.
    (tmp_path / CONTAINER / "checkpoint.db").write_bytes(saved)
    end = len(data.rstrip(b"\0"))
    for log in logs(tmp_path)[1:]:
        log.unlink()
    for path in (tmp_path / "tier2").rglob("*.chunk"):
        path.unlink()
    logs(tmp_path)[0].write_bytes(data[: end - 300].ljust(len(data), b"\0"))
    options = server_options(tmp_path, container=QUIET)
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        assert (await peer.info(segment_id)).length == 600
        assert bytes((await peer.read(segment_id, 0)).payload).startswith(b"a" * 100)
        assert await code_of(peer.read(segment_id, 599)) is ErrorCode.SEGMENT_DAMAGED
        assert await peer.settled(await peer.append(segment_id, b"new")) == [ErrorCode.CONTENT_LOST]
    assert await asyncio.to_thread(main, ["repair", "--accept-loss", str(tmp_path)]) == 0
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        (offset,) = await peer.store(segment_id, b"new")
        assert offset > 600
    for _ in range(2):
        async with Server(options) as server, await Peer.connect(server.address) as peer:
            assert await peer.read_all(segment_id, start=offset) == b"new"
            assert await code_of(peer.read(segment_id, 599)) is ErrorCode.SEGMENT_DAMAGED


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_start_that_fails_leaves_nothing_running(tmp_path: Path) -> None:
    """Behaviour 43: recovery is tried again and again, on the same files."""
    content = await filled(tmp_path, size=20 * KIB, container=QUIET)

    class Failing(FaultyStorage):
        async def list(self, prefix: str = "") -> list[ChunkInfo]:
            if prefix.endswith("segments/"):
                raise LogCorruptError("tier 2 is away")
            return []

    # Without it, the start looks at the chunks: the log is open by then.
    (tmp_path / "containers/0000/checkpoint.db").unlink()
    for _ in range(3):
        with pytest.raises(LogCorruptError):
            await Server(server_options(tmp_path), storage=Failing()).start()
    assert await found(tmp_path) == content


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_full_disk_does_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    """Behaviour 44: reads and deletes work after a restart, too, and the checkpoint is saved when there is room."""
    server = Server(server_options(tmp_path, container=QUIET))
    await server.start()
    async with await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"a" * 100)
        for number in range(100):
            await peer.create_segment(f"raw/{'long' * 20}-{number}")
    killed = tmp_path.with_name("killed")
    await asyncio.to_thread(shutil.copytree, tmp_path, killed)
    await server.stop()

    files = FaultyDatabases()
    files.spare_pages_count = 0
    async with (
        Server(server_options(killed, container=QUIET), files=files) as server,
        await Peer.connect(server.address) as peer,
    ):
        assert await peer.read_all(segment_id) == b"a" * 100
        gone = await peer.ask(m.GetSegment(0, f"raw/{'long' * 20}-0"), m.SegmentInfo)
        await peer.ask(m.DeleteSegment(gone.segment_id), m.Done)
        with pytest.raises(NoSpaceError):
            await server.opened.flusher.checkpoint()
        replayed = server.opened.summary
        stored = server.opened.checkpoints._connection
        assert stored is not None
        stored.execute("PRAGMA max_page_count=100000")
        await server.opened.flusher.checkpoint()
    async with Server(server_options(killed, container=QUIET)) as server, await Peer.connect(server.address) as peer:
        assert server.opened.summary.checkpoint_sequence > replayed.last_sequence > replayed.checkpoint_sequence
        assert await peer.read_all(segment_id) == b"a" * 100
        assert await code_of(peer.ask(m.GetSegment(gone.segment_id, ""), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND


@pytest.mark.asyncio
@pytest.mark.parametrize("is_stored_before", [False, True], ids=["by the flush", "by a checkpoint before it"])
async def test_an_epoch_that_an_older_checkpoint_does_not_know_of_is_left_alone(
    tmp_path: Path, is_stored_before: bool
) -> None:
    """Behaviour 85: nothing newer proves that it was used, but a chunk is there when one of that name is published."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=QUIET)
    path = tmp_path / CONTAINER / "checkpoint.db"
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await saved_and_copied(server)
        older = path.read_bytes()
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        await peer.store(segment_id, b"a" * 100)
        await server.opened.flusher.flush()
        epoch = server.opened.environment.epoch
    (taken,) = storage.names()
    # As if these bytes had been written at another time, or by a fork.
    other = forged(storage.content(taken), end_wall_time_us=5)
    storage.replace(taken, other)
    path.write_bytes(older)

    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert server.opened.environment.epoch == epoch
        with pytest.raises(ChunkExistsError):
            await server.opened.flusher.flush()
        if is_stored_before:
            await server.opened.flusher.checkpoint()
        await saved_and_copied(server)
        (chunk,) = server.opened.container.segment(segment_id).chunks
        assert f"c0000/{chunk.name}" != taken
        assert storage.content(taken) == other
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert await peer.read_all(segment_id) == b"a" * 100
        assert server.opened.environment.epoch == epoch + 2


@pytest.mark.asyncio
async def test_a_start_that_fails_after_a_restored_copy_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    """Behaviour 46: chunks are published under an epoch of their own, also when the second attempt succeeds only."""

    class AwayAtTimes(FaultyStorage):
        away = False

        async def list(self, prefix: str = "") -> list[ChunkInfo]:
            if self.away and prefix.endswith("segments/"):
                raise StorageError("tier 2 is away")
            return await super().list(prefix)

    storage = AwayAtTimes()
    options = server_options(tmp_path, container=QUIET)
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await server.opened.flusher.checkpoint()
        await server.opened.flusher.copy()
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        await peer.store(segment_id, b"x" * 100)
        await server.opened.flusher.flush()
        epoch = server.opened.environment.epoch
    (tmp_path / CONTAINER / "checkpoint.db").unlink()
    storage.away = True
    for _ in range(2):
        with pytest.raises(StorageError, match="away"):
            await Server(options, storage=storage).start()
    storage.away = False
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert server.opened.environment.epoch > epoch
        assert server.opened.keeps_orphans
        assert await peer.read_all(segment_id) == b"x" * 100
