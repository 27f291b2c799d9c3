"""What runs in the background of a container: verification, and the deletion of what a crash has left."""

import asyncio
import contextlib
import sqlite3
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.model.checksum import Buffer
from millrace.server.app import Server
from millrace.server.cache import CacheOptions, PageCache
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX
from millrace.server.container.local import local_container
from millrace.server.container.options import ContainerOptions
from millrace.server.container.running import FLUSH_SHARE, OpenContainer
from millrace.server.container.startup import open_container
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.errors import StorageError
from millrace.server.host.metrics import Metrics
from millrace.server.kinds.registry import KINDS
from millrace.server.kinds.segments.commands import SegmentCommands
from millrace.server.ownership import FolderOwnership
from millrace.server.tier2 import ChunkId, ChunkInfo, chunk_name
from millrace.wire import messages as m
from millrace.wire.limits import KIB
from tests.server.container.restarts import CONTAINER, filled, set_aside
from tests.server.container.states import waiting
from tests.support.clock import ManualClock
from tests.support.databases import FaultyDatabases
from tests.support.protocol import Peer
from tests.support.servers import BUSY, QUIET, SMALL_WAL, server_options
from tests.support.storage import FaultyStorage
from tests.support.waiting import PATIENCE_S, until


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
        await until(lambda: not orphan.exists())
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

    async with Server(server_options(tmp_path)):
        await until(lambda: not ours.exists())
        assert others.exists()


@pytest.mark.asyncio
@pytest.mark.parametrize("table", ["labels", "streams", "writers"])
async def test_damage_that_a_task_in_the_background_meets_is_restored(tmp_path: Path, table: str) -> None:
    """Behaviour 41: it is no reason to stop the server, though nobody has asked for what is damaged."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=replace(QUIET, verified_at_once_count_max=0))
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        await peer.ask(m.CreateStream("a/b", 1, '{"retention": {"kind": "size", "max_bytes": 1000}}'), m.StreamInfo)
        await peer.open_writer("w", (await peer.create_segment("raw/a")))
        await server.opened.flusher.checkpoint()
        await server.opened.flusher.copy()
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
            assert server.failure is None
            assert set_aside(tmp_path) == ["checkpoint.db.damaged-1"]


@asynccontextmanager
async def opened(
    folder: Path, *, storage: FaultyStorage, clock: ManualClock, options: ContainerOptions = QUIET
) -> AsyncIterator[OpenContainer]:
    """Open a container without the tasks in its background."""
    cache = PageCache(CacheOptions())
    local = await local_container(
        0,
        folder,
        files=FaultyDatabases(busy_timeout_s=0.0),
        storage=storage,
        kinds=KINDS,
        server_id=uuid.UUID(int=7),
        options=options,
    )
    container = await open_container(
        local.environment(
            FolderOwnership(local.next_epoch),
            cache=cache,
            container_options=options,
            wal_options=SMALL_WAL,
            clock=clock,
            metrics=Metrics(),
            page_size_bytes=4 * KIB,
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
        await SegmentCommands(container.container).create("raw/a")
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


def copies_in(storage: FaultyStorage) -> list[str]:
    return storage.names(CHECKPOINT_PREFIX)


@pytest.mark.asyncio
@pytest.mark.parametrize("copy_interval_s", [0.0, 60.0])
async def test_an_orderly_stop_leaves_a_copy_of_everything_where_copies_are_made_for_their_age(
    tmp_path: Path, copy_interval_s: float
) -> None:
    """Behaviour 46: the disk may be lost before the next start, and only the copy knows what was flushed."""
    storage, clock = FaultyStorage(), ManualClock()
    options = replace(QUIET, copy_interval_s=copy_interval_s)
    async with opened(tmp_path / "old", storage=storage, clock=clock, options=options) as container:
        await SegmentCommands(container.container).create("raw/a")
        # As when its task is cancelled in the middle of a copy.
        container.flusher._checkpointer.stop_copying()
    assert bool(copies_in(storage)) == bool(copy_interval_s)
    async with opened(tmp_path / "new", storage=storage, clock=clock, options=options) as container:
        names = [segment.name for segment in container.container.state.segments.values()]
        assert names == (["raw/a"] if copy_interval_s else [])


@pytest.mark.asyncio
async def test_a_stop_says_what_a_store_did_not_take_in_time_and_stores_a_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour 45: the log keeps it, and the next start replays no more than that."""

    class Stuck(FaultyStorage):
        async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
            waits.set()
            await super().publish(name, pieces)

    waits, storage, clock = asyncio.Event(), Stuck(), ManualClock()
    options = server_options(tmp_path)
    server = Server(options, storage=storage, clock=clock)
    await server.start()
    async with await Peer.connect(server.address) as peer:
        segment_ids = [await peer.create_segment(f"raw/{number}") for number in range(3)]
        for segment_id in segment_ids:
            await peer.store(segment_id, b"x" * 100)
    sequence = server.opened.container.state.sequence
    storage.open.clear()
    stopping = asyncio.ensure_future(server.stop())
    async with asyncio.timeout(PATIENCE_S):
        await waits.wait()
        clock.move(0.9 * FLUSH_SHARE * options.shutdown_s + 0.1)
        await stopping
    assert "segments_left=3 tail_bytes=" in caplog.text
    storage.open.set()
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert server.opened.summary.checkpoint_sequence >= sequence
        assert [await peer.read_all(segment_id) for segment_id in segment_ids] == [b"x" * 100] * 3


@pytest.mark.asyncio
async def test_a_stop_does_not_wait_for_a_store_that_takes_no_copy(tmp_path: Path) -> None:
    class Stuck(FaultyStorage):
        async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
            waits.set()
            await answers.wait()

    waits, answers = asyncio.Event(), asyncio.Event()
    storage, clock = Stuck(), ManualClock()
    options = replace(QUIET, copy_interval_s=60.0)
    async with opened(tmp_path, storage=storage, clock=clock, options=options) as container:
        closing = asyncio.ensure_future(container.close(log_s=5.0, flush_s=5.0))
        async with asyncio.timeout(PATIENCE_S):
            await waits.wait()
            clock.move(5.0)
            await closing
        assert not copies_in(storage)
        answers.set()  # it is closed once more
