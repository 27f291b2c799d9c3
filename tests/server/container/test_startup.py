"""Starting from disks on which something is missing or damaged."""

from pathlib import Path

import pytest

from millrace.server.container.repair import accept_loss
from millrace.server.errors import ChunkExistsError, LogCorruptError, NoSpaceError, StorageError
from millrace.server.tier2 import ChunkInfo
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.server.container.restarts import filled, found, logs
from tests.server.tier2.chunks import forged
from tests.support.databases import FaultyDatabases
from tests.support.protocol import code_of
from tests.support.scenario import CHECKPOINT, WAL, Scenario
from tests.support.servers import SMALL_WAL
from tests.support.storage import FaultyStorage


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_log_whose_only_file_is_gone_is_not_an_empty_one(scenario: Scenario) -> None:
    """Behaviour 82: the checkpoint does not know of all that was acknowledged."""
    scenario.wal = SMALL_WAL
    await filled(scenario, size=20 * KIB)
    kept = {name: scenario.files.content(WAL / name) for name in logs(scenario)}
    for name in kept:
        scenario.files.remove(WAL / name)
    for _ in range(2):
        async with scenario.running() as run, run.peer() as peer:
            info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
            assert await peer.settled(await peer.append(info.segment_id, b"new")) == [ErrorCode.CONTENT_LOST]
            assert "wal-0000000000000001.log: this file is missing" in run.container.refusal
    assert logs(scenario) == []
    for name, content in kept.items():
        scenario.files.open(WAL / name, create=True).close()
        scenario.files.replace_content(WAL / name, content)
    assert len(await found(scenario)) == 20 * KIB


@pytest.mark.asyncio
async def test_a_log_that_lost_its_end_never_gives_a_number_twice(scenario: Scenario) -> None:
    """Behaviour 42: the checkpoint knows of batches that the log has lost. What is acknowledged next must survive."""
    scenario.wal = SMALL_WAL
    async with scenario.running() as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"a" * 100)
        for _ in range(5):
            await peer.store(segment_id, b"b" * 100)
        await run.opened.flusher.checkpoint()
        log = WAL / logs(scenario)[0]
        data = scenario.files.content(log)
    end = len(data.rstrip(b"\0"))
    scenario.files.replace_content(log, data[: end - 300].ljust(len(data), b"\0"))
    async with scenario.running() as run, run.peer() as peer:
        assert (await peer.info(segment_id)).length == 600
        assert bytes((await peer.read(segment_id, 0)).payload).startswith(b"a" * 100)
        assert await code_of(peer.read(segment_id, 599)) is ErrorCode.SEGMENT_DAMAGED
        assert await peer.settled(await peer.append(segment_id, b"new")) == [ErrorCode.CONTENT_LOST]
        await accept_loss(run.opened)
    async with scenario.running() as run, run.peer() as peer:
        (offset,) = await peer.store(segment_id, b"new")
        assert offset > 600
    for _ in range(2):
        async with scenario.running() as run, run.peer() as peer:
            assert await peer.read_all(segment_id, start=offset) == b"new"
            assert await code_of(peer.read(segment_id, 599)) is ErrorCode.SEGMENT_DAMAGED


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_start_that_fails_leaves_nothing_running(scenario: Scenario) -> None:
    """Behaviour 43: recovery is tried again and again, on the same files."""
    scenario.wal = SMALL_WAL
    content = await filled(scenario, size=20 * KIB)

    class Failing(FaultyStorage):
        async def list(self, prefix: str = "") -> list[ChunkInfo]:
            if prefix.endswith("segments/"):
                raise LogCorruptError("tier 2 is away")
            return []

    # Without it, the start looks at the chunks: the log is open by then.
    scenario.files.remove(CHECKPOINT)
    scenario.store = Failing()
    for _ in range(3):
        with pytest.raises(LogCorruptError):
            async with scenario.running():
                pass
    scenario.store = None
    assert await found(scenario) == content


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_full_disk_does_not_keep_a_server_from_starting(scenario: Scenario, tmp_path: Path) -> None:
    """Behaviour 44: reads and deletes work after a restart, too, and the checkpoint is saved when there is room."""
    files = FaultyDatabases()
    scenario.disk, scenario.folder = files, tmp_path
    async with scenario.running() as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"a" * 100)
        for number in range(100):
            await peer.create_segment(f"raw/{'long' * 20}-{number}")

    files.spare_pages_count = 0
    async with scenario.running() as run, run.peer() as peer:
        assert await peer.read_all(segment_id) == b"a" * 100
        gone = await peer.ask(m.GetSegment(0, f"raw/{'long' * 20}-0"), m.SegmentInfo)
        await peer.ask(m.DeleteSegment(gone.segment_id), m.Done)
        with pytest.raises(NoSpaceError):
            await run.opened.flusher.checkpoint()
        replayed = run.opened.summary
        files.make_room()
        await run.opened.flusher.checkpoint()
    async with scenario.running() as run, run.peer() as peer:
        assert run.opened.summary.checkpoint_sequence > replayed.last_sequence > replayed.checkpoint_sequence
        assert await peer.read_all(segment_id) == b"a" * 100
        assert await code_of(peer.ask(m.GetSegment(gone.segment_id, ""), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND


@pytest.mark.asyncio
@pytest.mark.parametrize("is_stored_before", [False, True], ids=["by the flush", "by a checkpoint before it"])
async def test_an_epoch_that_an_older_checkpoint_does_not_know_of_is_left_alone(
    scenario: Scenario, is_stored_before: bool
) -> None:
    """Behaviour 85: nothing newer proves that it was used, but a chunk is there when one of that name is published."""
    storage = scenario.storage
    files = scenario.files
    async with scenario.running() as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await run.published()
        older = files.content(CHECKPOINT)
    async with scenario.running() as run, run.peer() as peer:
        await peer.store(segment_id, b"a" * 100)
        await run.opened.flusher.flush()
        epoch = run.opened.environment.epoch
    (taken,) = storage.names()
    # As if these bytes had been written at another time, or by a fork.
    other = forged(storage.content(taken), end_wall_time_us=5)
    storage.replace(taken, other)
    files.replace_content(CHECKPOINT, older)

    async with scenario.running() as run, run.peer() as peer:
        assert run.opened.environment.epoch == epoch
        with pytest.raises(ChunkExistsError):
            await run.opened.flusher.flush()
        if is_stored_before:
            await run.opened.flusher.checkpoint()
        await run.published()
        (chunk,) = run.container.segment(segment_id).chunks
        assert f"c0000/{chunk.name}" != taken
        assert storage.content(taken) == other
    async with scenario.running() as run, run.peer() as peer:
        assert await peer.read_all(segment_id) == b"a" * 100
        assert run.opened.environment.epoch == epoch + 2


@pytest.mark.asyncio
async def test_a_start_that_fails_after_a_restored_copy_does_not_spoil_the_next_one(scenario: Scenario) -> None:
    """Behaviour 46: chunks are published under an epoch of their own, also when the second attempt succeeds only."""

    class AwayAtTimes(FaultyStorage):
        away = False

        async def list(self, prefix: str = "") -> list[ChunkInfo]:
            if self.away and prefix.endswith("segments/"):
                raise StorageError("tier 2 is away")
            return await super().list(prefix)

    storage = scenario.storage = AwayAtTimes()
    async with scenario.running() as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await run.opened.flusher.checkpoint()
        await run.opened.flusher.copy()
    async with scenario.running() as run, run.peer() as peer:
        await peer.store(segment_id, b"x" * 100)
        await run.opened.flusher.flush()
        epoch = run.opened.environment.epoch
    scenario.files.remove(CHECKPOINT)
    storage.away = True
    for _ in range(2):
        with pytest.raises(StorageError, match="away"):
            async with scenario.running():
                pass
    storage.away = False
    async with scenario.running() as run, run.peer() as peer:
        assert run.opened.environment.epoch > epoch
        assert run.opened.keeps_orphans
        assert await peer.read_all(segment_id) == b"x" * 100
