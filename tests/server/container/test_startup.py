"""Starting from disks on which something is missing or damaged."""

import asyncio
import contextlib
import shutil
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.cli.main import main
from millrace.server.app import Server
from millrace.server.cache import CacheOptions, PageCache
from millrace.server.container.checkpoint.backup import (
    CHECKPOINT_PREFIX,
    PART_HEADER_SIZE_BYTES,
    decode_part,
    encode_part,
    parse_part_name,
)
from millrace.server.container.control import SegmentControl
from millrace.server.container.local import local_environment
from millrace.server.container.options import ContainerOptions
from millrace.server.container.running import OpenContainer
from millrace.server.container.startup import open_container
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.errors import ChunkExistsError, LogCorruptError, NoSpaceError, StorageError
from millrace.server.host.metrics import Metrics
from millrace.server.tier2 import ChunkId, ChunkInfo, chunk_name
from millrace.server.wal import LogOwner, Wal
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.server.container.states import waiting
from tests.server.tier2.chunks import forged
from tests.support.clock import ManualClock
from tests.support.databases import FaultyDatabases
from tests.support.protocol import Peer, Stored, code_of
from tests.support.servers import BUSY, QUIET, SMALL_WAL, server_options
from tests.support.storage import FaultyStorage
from tests.support.waiting import PATIENCE_S, settled, until

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
            assert server._open is not None
            await server._open.flusher.checkpoint()
            await server._open.flusher.copy()
    return content


async def found(folder: Path, *, storage: FaultyStorage | None = None, container: object = QUIET) -> bytes:
    """Return what a server serves of raw/a."""
    async with (
        Server(server_options(folder, container=container), storage=storage) as server,
        await Peer.connect(server.address) as peer,
    ):
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        return await peer.read_all(info.segment_id)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_lost_checkpoint_is_rebuilt_from_a_log_that_goes_back_to_the_beginning(tmp_path: Path) -> None:
    """Behaviour 41: derived files are rebuilt."""
    content = await filled(tmp_path, size=20 * KIB, container=QUIET)
    (tmp_path / CONTAINER / "checkpoint.db").unlink()
    for _ in range(2):
        assert await found(tmp_path) == content


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("damage", ["lost", "flipped"])
async def test_a_lost_checkpoint_comes_back_from_its_copy_in_tier_2(tmp_path: Path, damage: str) -> None:
    """Behaviour 41: a flipped bit in the checkpoint: detected, restored, nothing deleted; the damaged one is kept."""
    content = await filled(tmp_path, size=900 * KIB)
    path = tmp_path / CONTAINER / "checkpoint.db"
    if damage == "lost":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[data.index(b"raw/")] ^= 16
        path.write_bytes(data)
    known = {chunk.name for chunk in (tmp_path / "tier2" / "c0000" / "segments").rglob("*.chunk")}
    impatient = replace(QUIET, orphan_grace_s=0.0, garbage_interval_s=0.0, checkpoint_interval_s=0.01)
    for _ in range(2):
        assert await found(tmp_path, container=impatient) == content
        assert known <= {chunk.name for chunk in (tmp_path / "tier2" / "c0000" / "segments").rglob("*.chunk")}
    assert (damage == "lost") == (not list((tmp_path / CONTAINER).glob("*.damaged-*")))


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["the log was recycled", "the log is gone, too"])
async def test_without_checkpoint_and_copies_nothing_is_started_and_nothing_deleted(tmp_path: Path, what: str) -> None:
    """Behaviour 41: starting would take the chunks of tier 2 for orphans."""
    await filled(tmp_path, size=900 * KIB)
    lose_checkpoints(tmp_path)
    if "gone" in what:
        shutil.rmtree(tmp_path / CONTAINER / "wal")
    before = chunks(tmp_path)
    with pytest.raises(LogCorruptError, match="no checkpoint"):
        await Server(server_options(tmp_path, container=QUIET)).start()
    assert chunks(tmp_path) == before


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
        assert server._open is not None
        await server._open.flusher.checkpoint()
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
async def test_orphan_chunks_are_collected_after_the_grace(tmp_path: Path) -> None:
    """Behaviour 46: orphans are collected later, and what is known stays."""
    content = await filled(tmp_path, size=40 * KIB)
    orphan = tmp_path / "tier2" / "c0000" / "segments" / "01" / f"{1:016x}-{10**9:020d}-{5:012d}-{1:08x}.chunk"
    orphan.write_bytes(b"left over")
    container = replace(BUSY, orphan_grace_s=0.05)
    async with (
        Server(server_options(tmp_path, container=container)) as server,
        await Peer.connect(server.address) as peer,
    ):
        async with asyncio.timeout(PATIENCE_S):
            while orphan.exists():
                await peer.ask(m.ListStreams("", "", 1), m.StreamList)
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        assert await peer.read_all(info.segment_id) == content


@pytest.mark.asyncio
async def test_temporary_files_of_a_crash_are_deleted_after_the_start(tmp_path: Path) -> None:
    """Behaviour 46: those of this container only, and without a grace."""
    ours = tmp_path / "tier2" / "c0000" / "segments" / "01" / "a.4f5e.temporary"
    others = tmp_path / "tier2" / "c0001" / "segments" / "01" / "a.4f5e.temporary"
    async with Server(server_options(tmp_path)):
        pass
    for path in (ours, others):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"left over")

    async with (
        Server(server_options(tmp_path)) as server,
        await Peer.connect(server.address) as peer,
        asyncio.timeout(PATIENCE_S),
    ):
        while ours.exists():
            await peer.ask(m.ListStreams("", "", 1), m.StreamList)
        assert others.exists()


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
@pytest.mark.parametrize("flushes", [False, True], ids=["unflushed", "flushed"])
async def test_a_merge_in_the_log_is_replayed_with_what_is_around_it(tmp_path: Path, flushes: bool) -> None:
    """Behaviours 20 and 39: appends, a merge and appends again, after a kill, in any state of flushing."""
    server = Server(server_options(tmp_path, container=QUIET))
    await server.start()
    async with await Peer.connect(server.address) as peer:
        target, source = await peer.create_segment("raw/target"), await peer.create_segment("raw/source")
        await peer.store(target, *[b"a" * 100] * 3)
        await peer.store(source, *[b"b" * 100] * 3)
        await peer.ask(m.SealSegment(source), m.SegmentInfo)
        if flushes:
            assert server._open is not None
            await server._open.flusher.flush()
            await server._open.flusher.checkpoint()
        await peer.ask(m.MergeSegment(target_id=target, source_id=source), m.SegmentInfo)
        await peer.store(target, *[b"c" * 100] * 3)
    killed = tmp_path.with_name("killed")
    await asyncio.to_thread(shutil.copytree, tmp_path, killed)
    await server.stop()
    for _ in range(2):
        async with (
            Server(server_options(killed, container=QUIET)) as server,
            await Peer.connect(server.address) as peer,
        ):
            assert await peer.read_all(target) == b"a" * 300 + b"b" * 300 + b"c" * 300
            assert (await peer.info(target)).event_count == 9
            assert server._open is not None
            server._open.container.segment(target).index.check()


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
        assert server._open is not None
        with pytest.raises(NoSpaceError):
            await server._open.flusher.checkpoint()
        replayed = server._open.summary
        stored = server._open.checkpoints._connection
        assert stored is not None
        stored.execute("PRAGMA max_page_count=100000")
        await server._open.flusher.checkpoint()
    async with Server(server_options(killed, container=QUIET)) as server, await Peer.connect(server.address) as peer:
        assert server._open is not None
        assert server._open.summary.checkpoint_sequence > replayed.last_sequence > replayed.checkpoint_sequence
        assert await peer.read_all(segment_id) == b"a" * 100
        assert await code_of(peer.ask(m.GetSegment(gone.segment_id, ""), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND


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


@pytest.mark.asyncio
@pytest.mark.parametrize("copies", ["none", "damaged"])
async def test_a_damaged_checkpoint_is_rebuilt_from_a_log_that_goes_back_to_the_beginning(
    tmp_path: Path, copies: str
) -> None:
    """Behaviour 41: also where no copy helps; at the first start, and nothing is set aside again at the next ones."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=QUIET)
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"x" * 100)
        if copies == "damaged":
            assert server._open is not None
            await server._open.flusher.checkpoint()
            await server._open.flusher.copy()
    for name in storage.names(CHECKPOINT_PREFIX):
        storage.replace(name, flip(storage._chunks[name]))
    damage_checkpoint(tmp_path)
    for _ in range(3):
        assert await found(tmp_path, storage=storage) == b"x" * 100
        assert set_aside(tmp_path) == ["checkpoint.db.damaged-1"]


@pytest.mark.asyncio
@pytest.mark.parametrize("table", ["labels", "streams", "writers"])
async def test_damage_that_a_task_in_the_background_meets_is_restored(tmp_path: Path, table: str) -> None:
    """Behaviour 41: it is no reason to stop the server, though nobody has asked for what is damaged."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=replace(QUIET, verified_at_once_count_max=0))
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        await peer.ask(m.CreateStream("a/b", 1, '{"retention": {"kind": "size", "max_bytes": 1000}}'), m.StreamInfo)
        await peer.open_writer("w", (await peer.create_segment("raw/a")))
        assert server._open is not None
        await server._open.flusher.checkpoint()
        await server._open.flusher.copy()
    name = {"labels": "name", "streams": "name", "writers": "writer_id"}[table]
    with contextlib.closing(
        sqlite3.connect(tmp_path / CONTAINER / "checkpoint.db", isolation_level=None)
    ) as connection:
        connection.execute(f"UPDATE {table} SET {name} = {name} || 'x'")
    for _ in range(2):
        async with Server(options, storage=storage) as server:
            await until(lambda: set_aside(tmp_path) and not server.health())
            async with await Peer.connect(server.address) as peer:
                assert (await peer.ask(m.GetStream("a/b"), m.StreamInfo)).name == "a/b"
            assert server._fatal is None
            assert set_aside(tmp_path) == ["checkpoint.db.damaged-1"]


def repacked(name: str, data: bytes, content: bytes) -> bytes:
    """Return a part of a copy with another content, and good checksums of it."""
    name = name.removeprefix("c0000/")
    part = parse_part_name(name)
    assert part is not None
    version, _ = decode_part(data, name=name, owner=None)
    owner = LogOwner(0, uuid.UUID(bytes=data[8:24]))
    return b"".join(encode_part(part, content, replay_from=version.replay_from, owner=owner))


@pytest.mark.asyncio
async def test_a_damaged_copy_of_a_large_checkpoint_gives_way_to_an_older_one(tmp_path: Path) -> None:
    """Behaviour 41: every row of a copy is verified before it is used, for an older one may be better."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=replace(QUIET, verified_at_once_count_max=0))
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segments = [await peer.create_segment(f"raw/{name}") for name in "abc"]
        assert server._open is not None
        for _ in range(2):
            await peer.store(segments[-1], b"x" * 100)
            await server._open.flusher.checkpoint()
            await server._open.flusher.copy()
    _, newer = storage.names(CHECKPOINT_PREFIX)
    path = tmp_path / CONTAINER / "checkpoint.db"
    # A row that a start does not read.
    path.write_bytes(storage._chunks[newer][PART_HEADER_SIZE_BYTES:])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE segments SET created_us = created_us + 1 WHERE segment_id = ?", [segments[0]])
    storage.replace(newer, repacked(newer, storage._chunks[newer], path.read_bytes()))
    path.unlink()

    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        for segment_id, length in zip(segments, (0, 0, 200), strict=True):
            assert (await peer.info(segment_id)).length == length
        assert not server.health()
        assert set_aside(tmp_path) == []


async def saved_and_copied(server: Server) -> None:
    """Let the server flush, save a checkpoint and publish a copy of it."""
    assert server._open is not None
    flusher = server._open.flusher
    await flusher.flush()
    await flusher.checkpoint()
    await flusher.copy()


@pytest.mark.asyncio
@pytest.mark.parametrize("is_same_sequence", [False, True], ids=["later sequence", "same sequence"])
async def test_an_older_checkpoint_gives_way_to_its_newest_copy(tmp_path: Path, is_same_sequence: bool) -> None:
    """Behaviour 85: it leads to a chunk that was written again and deleted since; its epoch was used since, too."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=replace(QUIET, garbage_interval_s=0.0))
    path = tmp_path / CONTAINER / "checkpoint.db"
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"a" * 100)
        await saved_and_copied(server)
        if is_same_sequence:
            # The bytes are in the log still: a flush adds nothing to it.
            await peer.store(segment_id, b"b" * 100)
            assert server._open is not None
            await server._open.flusher.checkpoint()
        older = path.read_bytes()
        if is_same_sequence:
            await saved_and_copied(server)
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        if not is_same_sequence:
            await peer.store(segment_id, b"b" * 100)
            await saved_and_copied(server)
        assert server._open is not None
        epoch = server._open.environment.epoch
        names = storage.names()
        newest = storage.names(CHECKPOINT_PREFIX)[-1]
    path.write_bytes(older)

    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert await peer.read_all(segment_id) == b"a" * 100 + b"b" * 100
        assert server._open is not None
        assert server._open.environment.epoch > epoch or is_same_sequence
        assert server._open.keeps_orphans
        restored_from = server._open.summary.restored_from
        assert newest.startswith(f"c0000/{restored_from}-")
        assert path.with_name("checkpoint.db.older-1").read_bytes() == older
        assert storage.names() == names
        assert await peer.store(segment_id, b"c" * 100) == [200]
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert server._open is not None
        assert server._open.summary.restored_from == ""
        assert await peer.read_all(segment_id) == b"a" * 100 + b"b" * 100 + b"c" * 100
    assert not path.with_name("checkpoint.db.older-2").exists()


@pytest.mark.asyncio
async def test_an_older_checkpoint_after_its_newest_copy_is_completed_by_the_log(tmp_path: Path) -> None:
    """Behaviour 85: what it does not know is in the log, which is recycled after a copy only."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=replace(QUIET, garbage_interval_s=0.0))
    path = tmp_path / CONTAINER / "checkpoint.db"
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await saved_and_copied(server)
        await peer.store(segment_id, b"a" * 100)
        assert server._open is not None
        await server._open.flusher.checkpoint()
        older = path.read_bytes()
        await peer.store(segment_id, b"b" * 100)
        await server._open.flusher.flush()
        await server._open.flusher.checkpoint()
    path.write_bytes(older)

    for _ in range(2):
        async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
            assert await peer.read_all(segment_id) == b"a" * 100 + b"b" * 100
            assert server._open is not None
            assert server._open.summary.restored_from == ""


@pytest.mark.asyncio
async def test_an_epoch_that_an_older_checkpoint_does_not_know_of_is_left_alone(tmp_path: Path) -> None:
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
        assert server._open is not None
        await server._open.flusher.flush()
        epoch = server._open.environment.epoch
    (taken,) = storage.names()
    # As if these bytes had been written at another time, or by a fork.
    other = forged(storage._chunks[taken], end_wall_time_us=5)
    storage.replace(taken, other)
    path.write_bytes(older)

    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert server._open is not None
        assert server._open.environment.epoch == epoch
        with pytest.raises(ChunkExistsError):
            await server._open.flusher.flush()
        await saved_and_copied(server)
        (chunk,) = server._open.container.segment(segment_id).chunks
        assert f"c0000/{chunk.name}" != taken
        assert storage._chunks[taken] == other
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert await peer.read_all(segment_id) == b"a" * 100
        assert server._open is not None
        assert server._open.environment.epoch == epoch + 2


@pytest.mark.asyncio
async def test_a_copy_of_another_server_is_not_restored(tmp_path: Path) -> None:
    """Behaviour 81: however new its name says that it is, and whether the checkpoint is there or not."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=QUIET)
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"a" * 100)
        await saved_and_copied(server)
    others = FaultyStorage()
    folder = tmp_path.with_name("other")
    async with Server(server_options(folder), storage=others) as server, await Peer.connect(server.address) as peer:
        for name in "abcdefghij":
            await peer.create_segment(f"raw/{name}")
        await saved_and_copied(server)
    (name,) = others.names(CHECKPOINT_PREFIX)
    await storage.publish(name, [others._chunks[name]])
    assert name == storage.names(CHECKPOINT_PREFIX)[-1]

    for is_missing in (False, True):
        if is_missing:
            (tmp_path / CONTAINER / "checkpoint.db").unlink()
        async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
            assert await peer.read_all(segment_id) == b"a" * 100
            assert server._open is not None
            assert bool(server._open.summary.restored_from) == is_missing


@pytest.mark.asyncio
async def test_a_copy_that_the_log_was_recycled_beyond_is_refused(tmp_path: Path) -> None:
    """Behaviour 41: restored, it would serve holes; refused, however often one tries, until a newer one is there."""
    storage = FaultyStorage()
    # So large that the flusher sees no reason to do anything by itself.
    options = server_options(tmp_path, container=QUIET, wal=replace(SMALL_WAL, files_max=64))
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segment_id, other = await peer.create_segment("raw/a"), await peer.create_segment("raw/other")
        assert server._open is not None
        flusher = server._open.flusher
        for number in range(3):
            await peer.store(segment_id, b"%d" % number * 100)
            await peer.store(other, *[bytes(32 * KIB)] * 12)
            await flusher.flush()
            await flusher.checkpoint()
            await flusher.copy()
        content = await peer.read_all(segment_id)
        wal = server._open.container.log
        assert isinstance(wal, Wal)
        # A thread recycles them one after the other; a stop waits for one only.
        async with asyncio.timeout(PATIENCE_S):
            while wal._pool._released:
                await peer.info(segment_id)
    newest = storage.names(CHECKPOINT_PREFIX)[-1]
    good = storage._chunks[newest]
    storage.replace(newest, flip(good))
    damage_checkpoint(tmp_path)
    chunk_names = storage.names()

    for _ in range(3):
        with pytest.raises(LogCorruptError, match="needs the log from sequence"):
            await Server(options, storage=storage).start()
        assert storage.names() == chunk_names
    storage.replace(newest, good)
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert await peer.read_all(segment_id) == content


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
        assert server._open is not None
        await server._open.flusher.checkpoint()
        await server._open.flusher.copy()
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        await peer.store(segment_id, b"x" * 100)
        assert server._open is not None
        await server._open.flusher.flush()
        epoch = server._open.environment.epoch
    (tmp_path / CONTAINER / "checkpoint.db").unlink()
    storage.away = True
    for _ in range(2):
        with pytest.raises(StorageError, match="away"):
            await Server(options, storage=storage).start()
    storage.away = False
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert server._open is not None
        assert server._open.environment.epoch > epoch
        assert server._open.keeps_orphans
        assert await peer.read_all(segment_id) == b"x" * 100


@asynccontextmanager
async def opened(
    folder: Path, *, storage: FaultyStorage, clock: ManualClock, options: ContainerOptions = QUIET
) -> AsyncIterator[OpenContainer]:
    """Open a container without the tasks in its background."""
    cache = PageCache(CacheOptions())
    container = await open_container(
        await local_environment(
            0,
            folder,
            files=FaultyDatabases(busy_timeout_s=0.0),
            storage=storage,
            cache=cache,
            container_options=options,
            wal_options=SMALL_WAL,
            clock=clock,
            metrics=Metrics(),
            page_size_bytes=4 * KIB,
            server_id=uuid.UUID(int=7),
            on_failure=lambda error: None,
        )
    )
    try:
        yield container
    finally:
        await container.close(log_s=5.0, flush_s=5.0)
        await cache.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("task", ["clean_tier2", "verify_checkpoint"])
async def test_a_task_in_the_background_outlives_one_who_holds_the_checkpoint(tmp_path: Path, task: str) -> None:
    """Somebody looks into the file with other means, or a commit takes long: that passes, and is no reason to end."""
    storage, clock = FaultyStorage(), ManualClock()
    options = replace(QUIET, verified_at_once_count_max=0, orphan_grace_s=0.0)
    async with opened(tmp_path, storage=storage, clock=clock, options=options) as container:
        await SegmentControl(container.container).create("raw/a")
    orphan = chunk_name(ChunkId(segment_id=5, start_offset=0, length=9, container_epoch=1))
    await storage.publish(f"c0000/{orphan}", [b"left over"])
    async with opened(tmp_path, storage=storage, clock=clock, options=options) as container:
        with contextlib.closing(sqlite3.connect(tmp_path / "checkpoint.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            running = asyncio.ensure_future(getattr(container, task)())
            await until(lambda: clock.sleeper_count or running.done())
            assert not running.done()
            other.execute("ROLLBACK")
        clock.move(3600.0)
        async with asyncio.timeout(PATIENCE_S):
            await running
        assert container.container.checkpoint_damage is None
        assert waiting(container.container.state.garbage, DeleteAfter.COPY) == (
            [orphan] if task == "clean_tier2" else []
        )


@pytest.mark.asyncio
async def test_orphans_are_looked_for_again_when_tier_2_was_away(tmp_path: Path) -> None:
    """Behaviour 46: and the task in the background does not end, which would end the server."""

    class AwayAtFirst(FaultyStorage):
        away = False

        async def list(self, prefix: str = "") -> list[ChunkInfo]:
            if self.away:
                self.away = False
                raise StorageError("tier 2 is away")
            return await super().list(prefix)

    storage, clock = AwayAtFirst(), ManualClock()
    options = replace(QUIET, orphan_grace_s=0.0)
    async with opened(tmp_path, storage=storage, clock=clock, options=options):
        pass
    orphan = chunk_name(ChunkId(segment_id=5, start_offset=0, length=9, container_epoch=1))
    await storage.publish(f"c0000/{orphan}", [b"left over"])
    async with opened(tmp_path, storage=storage, clock=clock, options=options) as container:
        storage.away = True
        running = asyncio.ensure_future(container.clean_tier2())
        await until(lambda: clock.sleeper_count or running.done())
        assert not running.done()
        clock.move(3600.0)
        async with asyncio.timeout(PATIENCE_S):
            await running
        assert waiting(container.container.state.garbage, DeleteAfter.COPY) == [orphan]
