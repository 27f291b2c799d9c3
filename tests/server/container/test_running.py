"""What runs in the background of a container: verification, and the deletion of what a crash has left."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.model.checksum import Buffer
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX
from millrace.server.container.running import FLUSH_SHARE
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.errors import StorageError
from millrace.server.tier2 import ChunkId, ChunkInfo, LocalStorage, Tier2Options, chunk_name
from millrace.wire import messages as m
from millrace.wire.limits import KIB
from tests.server.container.restarts import filled, set_aside
from tests.server.container.states import waiting
from tests.support.clock import passing_time
from tests.support.databases import FaultyDatabases
from tests.support.scenario import CHECKPOINT, Scenario
from tests.support.servers import BUSY, QUIET
from tests.support.storage import FaultyStorage
from tests.support.waiting import PATIENCE_S, until


@pytest.mark.slow
@pytest.mark.asyncio
async def test_orphan_chunks_are_collected_after_the_grace(scenario: Scenario) -> None:
    """Behaviour 46: orphans are collected later, and what is known stays."""
    content = await filled(scenario, size=40 * KIB, is_published=True)
    orphan = f"c0000/{chunk_name(ChunkId(segment_id=1, start_offset=10**9, length=5, container_epoch=1))}"
    await scenario.storage.publish(orphan, [b"left over"])
    container = replace(BUSY, orphan_grace_s=0.05)
    async with (
        scenario.running(container=container, in_background=True) as run,
        run.peer() as peer,
        passing_time(scenario.clock),
    ):
        await until(lambda: orphan not in scenario.storage.names())
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        assert await peer.read_all(info.segment_id) == content


@pytest.mark.asyncio
async def test_temporary_files_of_a_crash_are_deleted_after_the_start(scenario: Scenario) -> None:
    """Behaviour 46: those of this container only, and without a grace."""
    files, folder = scenario.files, Path("/tier2")
    ours, others = (folder / scope / "segments" / "01" / "a.4f5e.temporary" for scope in ("c0000", "c0001"))
    for path in (ours, others):
        files.make_directories(path.parent)
        files.open(path, create=True).close()

    scenario.store = LocalStorage(files, folder, Tier2Options())
    async with scenario.running(in_background=True):
        await until(lambda: not files.exists(ours))
        assert files.exists(others)
    await scenario.store.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("table", ["labels", "streams", "writers"])
async def test_damage_that_a_task_in_the_background_meets_is_restored(scenario: Scenario, table: str) -> None:
    """Behaviour 41: the container fails for it, though nobody has asked, and the next start restores the copy."""
    container = replace(QUIET, verified_at_once_count_max=0)
    async with scenario.running(container=container) as run, run.peer() as peer:
        await peer.ask(m.CreateStream("a/b", 1, '{"retention": {"kind": "size", "max_bytes": 1000}}'), m.StreamInfo)
        await peer.open_writer("w", (await peer.create_segment("raw/a")))
        await run.published()
    name = {"labels": "name", "streams": "name", "writers": "writer_id"}[table]
    with closing(scenario.files.database(CHECKPOINT)) as connection:
        connection.execute(f"UPDATE {table} SET {name} = {name} || 'x'")
    async with scenario.running(container=container, in_background=True):
        async with passing_time(scenario.clock):
            await until(lambda: scenario.failures)
    for _ in range(2):
        async with scenario.running(container=container, in_background=True) as run, run.peer() as peer:
            assert (await peer.ask(m.GetStream("a/b"), m.StreamInfo)).name == "a/b"
            assert set_aside(scenario) == ["checkpoint.db.damaged-1"]
            assert not run.container.refusal
    assert len(scenario.failures) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("task", ["clean_tier2", "verify_checkpoint"])
async def test_a_task_in_the_background_outlives_one_who_holds_the_checkpoint(
    scenario: Scenario, tmp_path: Path, task: str
) -> None:
    """Somebody looks into the file with other means, or a commit takes long: that passes, and is no reason to end."""
    scenario.disk, scenario.folder = FaultyDatabases(busy_timeout_s=0.0), tmp_path
    options = replace(QUIET, verified_at_once_count_max=0, orphan_grace_s=0.0)
    async with scenario.running(container=options, flush_s=5.0) as run, run.peer() as peer:
        await peer.create_segment("raw/a")
    orphan = chunk_name(ChunkId(segment_id=5, start_offset=0, length=9, container_epoch=1))
    await scenario.storage.publish(f"c0000/{orphan}", [b"left over"])
    async with scenario.running(container=options) as run:
        with closing(sqlite3.connect(scenario.checkpoint, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            running = asyncio.ensure_future(getattr(run.opened, task)())
            await until(lambda: scenario.clock.sleeper_count or running.done())
            assert not running.done()
            other.execute("ROLLBACK")
        scenario.clock.move(3600.0)
        async with asyncio.timeout(PATIENCE_S):
            await running
        assert run.container.checkpoint_damage is None
        assert waiting(run.state.garbage, DeleteAfter.COPY) == ([orphan] if task == "clean_tier2" else [])


@pytest.mark.asyncio
async def test_orphans_are_looked_for_again_when_tier_2_was_away(scenario: Scenario) -> None:
    """Behaviour 46: and the task in the background does not end, which would end the server."""

    class AwayAtFirst(FaultyStorage):
        away = False

        async def list(self, prefix: str = "") -> list[ChunkInfo]:
            if self.away:
                self.away = False
                raise StorageError("tier 2 is away")
            return await super().list(prefix)

    storage = scenario.storage = AwayAtFirst()
    clock = scenario.clock
    options = replace(QUIET, orphan_grace_s=0.0)
    async with scenario.running(container=options, flush_s=5.0):
        pass
    orphan = chunk_name(ChunkId(segment_id=5, start_offset=0, length=9, container_epoch=1))
    await storage.publish(f"c0000/{orphan}", [b"left over"])
    async with scenario.running(container=options) as run:
        storage.away = True
        running = asyncio.ensure_future(run.opened.clean_tier2())
        await until(lambda: clock.sleeper_count or running.done())
        assert not running.done()
        clock.move(3600.0)
        async with asyncio.timeout(PATIENCE_S):
            await running
        assert waiting(run.state.garbage, DeleteAfter.COPY) == [orphan]


@pytest.mark.asyncio
@pytest.mark.parametrize("copy_interval_s", [0.0, 60.0])
async def test_an_orderly_stop_leaves_a_copy_of_everything_where_copies_are_made_for_their_age(
    scenario: Scenario, copy_interval_s: float
) -> None:
    """Behaviour 46: the disk may be lost before the next start, and only the copy knows what was flushed."""
    options = replace(QUIET, copy_interval_s=copy_interval_s)
    # In the background: its end stops a copy that is being made.
    async with scenario.running(container=options, in_background=True, flush_s=5.0) as run, run.peer() as peer:
        await peer.create_segment("raw/a")
    assert bool(scenario.storage.names(CHECKPOINT_PREFIX)) == bool(copy_interval_s)
    other_disk = Scenario(storage=scenario.storage)
    async with other_disk.running(container=options) as run:
        names = [segment.name for segment in run.state.segments.values()]
        assert names == (["raw/a"] if copy_interval_s else [])


@pytest.mark.asyncio
async def test_a_stop_says_what_a_store_did_not_take_in_time_and_stores_a_checkpoint(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour 45: the log keeps it, and the next start replays no more than that."""

    class Stuck(FaultyStorage):
        async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
            waits.set()
            await super().publish(name, pieces)

    waits, storage, clock = asyncio.Event(), Stuck(), scenario.clock
    scenario.storage = storage
    life = AsyncExitStack()
    run = await life.enter_async_context(scenario.running(flush_s=10.0))
    async with run.peer() as peer:
        segment_ids = [await peer.create_segment(f"raw/{number}") for number in range(3)]
        for segment_id in segment_ids:
            await peer.store(segment_id, b"x" * 100)
    sequence = run.sequence
    storage.open.clear()
    stopping = asyncio.ensure_future(life.aclose())
    async with asyncio.timeout(PATIENCE_S):
        await waits.wait()
        clock.move(FLUSH_SHARE * 10.0 + 0.1)
        await stopping
    assert "segments_left=3 tail_bytes=" in caplog.text
    storage.open.set()
    async with scenario.running() as run, run.peer() as peer:
        assert run.opened.summary.checkpoint_sequence >= sequence
        assert [await peer.read_all(segment_id) for segment_id in segment_ids] == [b"x" * 100] * 3


@pytest.mark.asyncio
async def test_a_stop_does_not_wait_for_a_store_that_takes_no_copy(scenario: Scenario) -> None:
    class Stuck(FaultyStorage):
        async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
            waits.set()
            await answers.wait()

    waits, answers = asyncio.Event(), asyncio.Event()
    storage = scenario.storage = Stuck()
    options = replace(QUIET, copy_interval_s=60.0)
    async with scenario.running(container=options) as run:
        closing_down = asyncio.ensure_future(run.opened.close(log_s=5.0, flush_s=5.0))
        async with asyncio.timeout(PATIENCE_S):
            await waits.wait()
            scenario.clock.move(5.0)
            await closing_down
        assert not storage.names(CHECKPOINT_PREFIX)
        answers.set()  # it is closed once more
