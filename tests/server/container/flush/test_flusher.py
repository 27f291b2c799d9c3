"""What goes to tier 2, when, and what a failing tier 2 does to everybody else."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.server.container.checkpoint.backup import (
    CHECKPOINT_PREFIX,
    COPIES_KEPT,
    PART_HEADER_SIZE_BYTES,
    decode_part,
    parse_part_name,
)
from millrace.server.errors import StorageError
from millrace.server.object_store import ObjectStoreOptions, RetryingStore
from millrace.server.tier2 import ChunkInfo, ObjectStorage
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.support.clock import passing_time
from tests.support.databases import FaultyDatabases
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.object_store import MemoryObjectStore
from tests.support.protocol import Peer, Stored, code_of
from tests.support.scenario import CHECKPOINT, Run, Scenario
from tests.support.servers import BUSY, QUIET, SMALL_WAL
from tests.support.storage import SCOPE, FaultyStorage
from tests.support.waiting import PATIENCE_S, until


async def flushed(run: Run, segment_id: int) -> None:
    """Wait until a segment is in tier 2."""
    await until(lambda: not run.container.segment(segment_id).tail)


@asynccontextmanager
async def background(scenario: Scenario, **options: Any) -> AsyncIterator[tuple[Run, Peer]]:
    """Run a container whose flusher does by itself what is due, while time passes."""
    async with (
        scenario.running(in_background=True, **options) as run,
        run.peer() as peer,
        passing_time(scenario.clock),
    ):
        yield run, peer


def chunks_in(name: str, copy: bytes) -> set[str]:
    """Return the names of the chunks that a copy of the checkpoint refers to."""
    part = parse_part_name(name)
    assert part is not None
    assert part.part_count == 1
    _, content = decode_part(copy, name=name, owner=None)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(bytes(content))
        return {chunk for (chunk,) in connection.execute("SELECT name FROM chunks")}


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_full_tier_2_throttles_then_refuses_and_loses_nothing(scenario: Scenario) -> None:
    """Behaviour 44: the log grows to its bound, then refuses; everything is stored when there is space again."""
    storage, scenario.wal = scenario.storage, SMALL_WAL
    storage.capacity_bytes = 100 * KIB
    async with background(scenario, container=BUSY) as (run, peer):
        segment_id = await peer.create_segment("raw/a")
        content = b""
        refused = 0
        async with asyncio.timeout(PATIENCE_S):
            while refused < 3:
                piece = bytes([len(content) // KIB % 251]) * (4 * KIB)
                (outcome,) = await peer.settled(await peer.append(segment_id, piece))
                if isinstance(outcome, Stored):
                    content += piece
                else:
                    assert outcome is ErrorCode.NO_SPACE
                    refused += 1
        assert len(content) > 300 * KIB
        assert await peer.read_all(segment_id) == content
        storage.capacity_bytes = None
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance((await peer.settled(await peer.append(segment_id, b"end")))[0], Stored):
                pass
        await flushed(run, segment_id)
        assert await peer.read_all(segment_id) == content + b"end"


@pytest.mark.slow
@pytest.mark.asyncio
async def test_deleting_makes_room_in_a_tier_2_that_is_too_full_to_flush(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour 44: deletes work, and it recovers by itself; the copy of the checkpoint must still fit."""
    storage = scenario.storage
    scenario.wal = replace(SMALL_WAL, files_max=32)
    async with background(scenario, container=BUSY) as (run, peer):
        doomed, segment_id = await peer.create_segment("raw/doomed"), await peer.create_segment("raw/a")
        await peer.store(doomed, *[bytes(8 * KIB)] * 50)
        await flushed(run, doomed)
        storage.capacity_bytes = storage.size_bytes + 260 * KIB
        await peer.store(segment_id, *[bytes(8 * KIB)] * 60)
        await until(lambda: "step=flush" in caplog.text)
        assert run.container.segment(segment_id).tail
        await peer.ask(m.DeleteSegment(doomed), m.Done)
        await flushed(run, segment_id)
        assert await peer.read_all(segment_id) == bytes(480 * KIB)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_one_damaged_chunk_holds_up_no_other_flush(scenario: Scenario) -> None:
    """Behaviour 41: only its range refuses; what is appended after it is flushed, for this segment and others."""
    storage = scenario.storage
    container = replace(BUSY, chunk_size_bytes_small=48 * KIB)
    async with background(scenario, container=container) as (run, peer):
        a, b = await peer.create_segment("raw/a"), await peer.create_segment("raw/b")
        await peer.store(a, b"a" * 100)
        await flushed(run, a)
        await run.opened.flusher.checkpoint()
        for name in storage.names():
            storage.replace(name, bytes(len(await storage.read(name, offset=0, size=1 << 20))))
    async with background(scenario, container=container) as (run, peer):
        await peer.store(a, b"A" * 100)
        await peer.store(b, b"B" * 100)
        await flushed(run, a)
        await flushed(run, b)
        assert await peer.read_all(b) == b"B" * 100
        assert await peer.read_all(a, start=100) == b"A" * 100
        assert await code_of(peer.read(a, 0)) is ErrorCode.SEGMENT_DAMAGED


@pytest.mark.slow
@pytest.mark.asyncio
async def test_chunks_are_deleted_only_when_no_copy_in_use_refers_to_them(scenario: Scenario) -> None:
    """Behaviour 41: with the checkpoint lost at any time, its newest copy in tier 2 leads to all bytes."""
    storage = scenario.storage
    deleted: list[tuple[str, set[str]]] = []

    def step(when: str, action: str, name: str) -> None:
        if (when, action) == ("before", "delete") and "/segments/" in name:
            copies = storage.names("checkpoints/")[-1:]
            in_use = [chunks_in(SCOPE.sub("", copy), storage.content(copy)) for copy in copies]
            deleted.append((SCOPE.sub("", name), set().union(*in_use)))

    storage.on_step = step
    container = replace(BUSY, chunk_size_bytes_small=32 * KIB)
    async with background(scenario, container=container) as (run, peer):
        segment_id = await peer.create_segment("raw/a")
        async with asyncio.timeout(PATIENCE_S):
            while len(deleted) < 5:
                await peer.store(segment_id, bytes(500))
                await flushed(run, segment_id)
        for name, in_use in deleted:
            assert in_use, "a segment that is never truncated to its end keeps a chunk"
            assert name not in in_use
        assert len(storage.names("checkpoints/")) <= COPIES_KEPT + 1
        storage.on_step = lambda when, action, name: None


@pytest.mark.slow
@pytest.mark.asyncio
async def test_flushing_continues_without_appends(scenario: Scenario) -> None:
    """Behaviour 51: writers that are throttled send nothing that would wake the flusher."""
    storage = scenario.storage
    storage.open.clear()
    container = replace(QUIET, flush_size_bytes=8 * KIB, chunk_size_bytes_max=8 * KIB)
    scenario.wal = replace(SMALL_WAL, files_max=32)
    async with background(scenario, container=container) as (run, peer):
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, *[bytes(4 * KIB)] * 20)
        storage.open.set()
        async with asyncio.timeout(PATIENCE_S):
            while run.container.segment(segment_id).tail.size >= 8 * KIB:
                await peer.info(segment_id)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_segment_emptied_while_it_waits_to_be_flushed_stops_no_other(scenario: Scenario) -> None:
    async with background(scenario, container=BUSY) as (run, peer):
        kept = await peer.create_segment("raw/kept")
        for number in range(100):
            segment_id = await peer.create_segment(f"raw/s{number}")
            await peer.store(segment_id, bytes(2000))
            await peer.append(kept, bytes(100))
            await peer.start(m.TruncateSegment(segment_id, 2000) if number % 2 else m.DeleteSegment(segment_id))
        await flushed(run, kept)
        assert not run.container.refusal
        assert (await peer.info(kept)).length == 10_000


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_index_in_memory_stays_thin(scenario: Scenario) -> None:
    """What is in tier 2 costs one entry a chunk in memory, however long the segment."""
    scenario.wal = replace(SMALL_WAL, files_max=64)
    async with background(scenario, container=BUSY) as (run, peer):
        segment_id = await peer.create_segment("raw/a")
        for _ in range(40):
            await peer.store(segment_id, *[bytes(15 * KIB)] * 4)
        await flushed(run, segment_id)
        segment = run.container.segment(segment_id)
        segment.index.check()
        assert len(segment.index) <= len(segment.chunks) + 2


class SlowToDelete(FaultyStorage):
    """Deletes nothing until the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_delete = asyncio.Event()
        self.deleting = asyncio.Event()
        self.deleted: list[str] = []

    async def delete(self, name: str) -> None:
        self.deleting.set()
        await self.may_delete.wait()
        self.deleted.append(name)
        await super().delete(name)


@pytest.mark.asyncio
async def test_a_checkpoint_and_a_copy_that_delete_at_the_same_time_delete_each_chunk_once(scenario: Scenario) -> None:
    storage = scenario.storage = SlowToDelete()
    container = replace(QUIET, chunk_size_bytes_small=48 * KIB)
    async with scenario.running(container=container) as run, run.peer() as peer:
        flusher = run.opened.flusher
        kept, doomed = await peer.create_segment("raw/kept"), await peer.create_segment("raw/doomed")
        await peer.store(kept, b"k" * 100)
        await peer.store(doomed, b"d" * 100)
        await flusher.flush()
        old = storage.names()
        await peer.store(kept, b"K" * 100)
        await flusher.flush()  # the small chunk is written again
        await flusher.checkpoint()
        # A copy that knows of it deletes the old one, and a checkpoint at the same time those of a deleted segment.
        copying = asyncio.create_task(flusher.copy())
        await storage.deleting.wait()
        await peer.ask(m.DeleteSegment(doomed), m.Done)
        saved = scenario.files.content(CHECKPOINT)
        checkpointing = asyncio.create_task(flusher.checkpoint())
        async with asyncio.timeout(PATIENCE_S):
            while scenario.files.content(CHECKPOINT) == saved:
                await peer.info(kept)
        storage.may_delete.set()
        await asyncio.gather(copying, checkpointing)
        assert sorted(storage.deleted) == sorted(old)
        assert len(storage.names()) == 1
        assert await peer.read_all(kept) == b"k" * 100 + b"K" * 100


@pytest.mark.asyncio
async def test_a_checkpoint_does_not_wait_for_a_store_that_does_not_answer(scenario: Scenario) -> None:
    """Behaviour 44: it is on the disk, and the next start replays less of the log."""
    clock, storage = scenario.clock, scenario.storage
    container = replace(QUIET, flush_size_bytes=KIB, checkpoint_interval_s=10.0)
    async with scenario.running(container=container, in_background=True) as run, run.peer() as peer:
        flusher = run.opened.flusher
        segment_id = await peer.create_segment("raw/a")
        storage.open.clear()
        await peer.store(segment_id, bytes(2 * KIB))
        await until(flusher._uploader._lock.locked)
        saved = scenario.files.content(CHECKPOINT)
        async with asyncio.timeout(PATIENCE_S):
            while scenario.files.content(CHECKPOINT) == saved:
                clock.move(1.0)
                await peer.info(segment_id)
        assert run.container.segment(segment_id).tail
        storage.open.set()
        async with passing_time(clock):
            await flushed(run, segment_id)


@pytest.mark.asyncio
async def test_a_store_that_is_busy_for_long_ends_no_flusher(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour 92: a step fails then, and is done later."""
    scenario.wal, faulty = SMALL_WAL, FaultyStore(MemoryObjectStore())
    retrying = RetryingStore(faulty, ObjectStoreOptions(patience_s=0.0))
    scenario.store = ObjectStorage(retrying, puts_count_max=16)
    container = replace(QUIET, flush_size_bytes=KIB)
    async with scenario.running(container=container, in_background=True) as run, run.peer() as peer:
        faulty.fail("create", *[Fault.BUSY] * 5)
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"x" * 2 * KIB)
        async with asyncio.timeout(PATIENCE_S):
            while run.container.segment(segment_id).tail:
                scenario.clock.move(1.0)
                await peer.info(segment_id)
        assert await peer.read_all(segment_id) == b"x" * 2 * KIB
    assert caplog.text.count("background step failed step=flush") == 5


@pytest.mark.asyncio
async def test_a_checkpoint_presses_when_the_log_could_be_recycled_but_not_while_one_is_copied(
    scenario: Scenario,
) -> None:
    """The copy that is being made is of the checkpoint before; a newer one would not recycle the log sooner."""
    scenario.wal = replace(SMALL_WAL, files_max=64)
    async with scenario.running() as run, run.peer() as peer:
        flusher, log = run.opened.flusher, run.container.log
        segment_id = await peer.create_segment("raw/a")
        flusher._checkpointer.begun_s -= 1.0
        assert not flusher._is_checkpoint_due()
        while not log.reclaimable_bytes(log.durable_sequence):
            await peer.store(segment_id, bytes(32 * KIB))
        assert not flusher._is_checkpoint_due(), "the bytes in the full file are not in tier 2 yet"
        await flusher.flush()
        assert flusher._is_checkpoint_due()
        flusher._copying = asyncio.current_task()
        assert not flusher._is_checkpoint_due()
        flusher._copying = None


@pytest.mark.asyncio
async def test_copies_that_are_asked_for_at_the_same_time_are_both_whole(scenario: Scenario) -> None:
    storage = scenario.storage
    async with scenario.running() as run:
        flusher = run.opened.flusher
        await flusher.checkpoint()
        await asyncio.gather(flusher.copy(), flusher.copy())
        first, second = (storage.content(name)[PART_HEADER_SIZE_BYTES:] for name in storage.names(CHECKPOINT_PREFIX))
        assert first == second


@pytest.mark.asyncio
async def test_chunks_are_deleted_later_when_old_copies_cannot_be_deleted_now(scenario: Scenario) -> None:
    class AwayAtTimes(FaultyStorage):
        away = False

        async def list(self, prefix: str = "") -> list[ChunkInfo]:
            if self.away and prefix.endswith(CHECKPOINT_PREFIX):
                raise StorageError("tier 2 is away")
            return await super().list(prefix)

    storage = scenario.storage = AwayAtTimes()
    container = replace(QUIET, chunk_size_bytes_small=48 * KIB)
    async with scenario.running(container=container) as run, run.peer() as peer:
        flusher = run.opened.flusher
        segment_id = await peer.create_segment("raw/a")
        for _ in range(2):
            await peer.store(segment_id, b"x" * 100)
            await flusher.flush()
        await flusher.checkpoint()
        storage.away = True
        with pytest.raises(StorageError, match="away"):
            await flusher.copy()
        storage.away = False
        await flusher.copy()
        assert len(storage.names()) == 1


@pytest.mark.asyncio
async def test_a_copy_taken_before_a_merge_was_flushed_leads_to_all_bytes(scenario: Scenario) -> None:
    """Behaviour 41: the chunks of a merged segment go only when a copy knows where its bytes are now."""
    storage = scenario.storage
    async with scenario.running() as run, run.peer() as peer:
        flusher = run.opened.flusher
        target, source = await peer.create_segment("raw/a"), await peer.create_segment("raw/b")
        await peer.store(target, b"a" * 1000)
        await peer.store(source, b"b" * 1000)
        await flusher.flush()
        await flusher.checkpoint()
        await peer.ask(m.SealSegment(source), m.SegmentInfo)
        await peer.ask(m.MergeSegment(target_id=target, source_id=source), m.SegmentInfo)
        await flusher.checkpoint()
        await flusher.copy()
        before = storage.names()
        await flusher.flush()
        await flusher.checkpoint()
        assert set(before) < set(storage.names())
    scenario.files.remove(CHECKPOINT)
    async with scenario.running() as run, run.peer() as peer:
        assert await peer.read_all(target) == b"a" * 1000 + b"b" * 1000
        flusher = run.opened.flusher
        await flusher.flush()
        await flusher.checkpoint()
        await flusher.copy()
        assert await peer.read_all(target) == b"a" * 1000 + b"b" * 1000


@pytest.mark.asyncio
async def test_a_log_that_was_full_at_the_stop_takes_appends_after_the_next_start(scenario: Scenario) -> None:
    """Behaviour 44: tier 2 was full, came back, and then the server was stopped: it recovers without anybody's help."""
    storage, scenario.wal = scenario.storage, SMALL_WAL
    storage.failing = True
    async with background(scenario, container=BUSY, flush_s=5.0) as (_, peer):
        segment_id = await peer.create_segment("raw/a")
        outcomes: list[object] = []
        async with asyncio.timeout(PATIENCE_S):
            while ErrorCode.NO_SPACE not in outcomes:
                outcomes = [*await peer.settled(await peer.append(segment_id, *[bytes(4 * KIB)] * 16))]
        length = (await peer.info(segment_id)).length
        await peer.close()
        storage.failing = False
    assert not storage.names(CHECKPOINT_PREFIX)
    async with background(scenario, container=BUSY) as (_, peer):
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance((await peer.settled(await peer.append(segment_id, b"end")))[0], Stored):
                pass
        assert (await peer.info(segment_id)).length == length + 3


@pytest.mark.asyncio
async def test_no_chunk_is_published_under_an_epoch_that_is_not_stored(scenario: Scenario, tmp_path: Path) -> None:
    """Behaviour 44: the disk is full from the start to the stop; the next start would give the same epoch again."""
    storage, files = scenario.storage, FaultyDatabases()
    scenario.disk, scenario.folder = files, tmp_path
    async with scenario.running() as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await run.opened.flusher.checkpoint()
        for number in range(100):
            await peer.create_segment(f"raw/{'long' * 20}-{number}")
    files.spare_pages_count = -(10**6)
    async with scenario.running(flush_s=5.0) as run, run.peer() as peer:
        await peer.store(segment_id, b"x" * 100)
    assert storage.names() == []
    files.spare_pages_count = None
    async with scenario.running() as run, run.peer() as peer:
        await run.opened.flusher.flush()
        assert len(storage.names()) == 1
        assert await peer.read_all(segment_id) == b"x" * 100


@pytest.mark.asyncio
async def test_a_log_of_few_files_is_recycled_although_a_copy_is_larger(scenario: Scenario) -> None:
    """Behaviour 44: all is in tier 2, and one file is less than a copy of the checkpoint: appends continue."""
    container = replace(BUSY, checkpoint_interval_s=3600.0, garbage_interval_s=3600.0)
    scenario.wal = replace(SMALL_WAL, files_max=3)
    async with background(scenario, container=container) as (_, peer):
        segment_id = await peer.create_segment("raw/a")
        stored_count = 0
        async with asyncio.timeout(PATIENCE_S):
            while stored_count < 20:
                (outcome,) = await peer.settled(await peer.append(segment_id, bytes(30 * KIB)))
                stored_count += isinstance(outcome, Stored)
    newest = scenario.storage.names(CHECKPOINT_PREFIX)[-1]
    assert len(scenario.storage.content(newest)) > SMALL_WAL.file_size_bytes / 2
