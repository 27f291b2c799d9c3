"""Checkpoints and their copies: verified, and never waited for at a stop."""

import asyncio
import contextlib
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX
from millrace.server.container.checkpoint.rows import CheckpointRows
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.checkpoint.verification import VERIFIED_PAGE_ROWS_COUNT
from millrace.server.container.flush.checkpointer import Checkpointer
from millrace.server.errors import CheckpointDamagedError, StorageError
from millrace.server.host.files import OsFileSystem
from millrace.server.kinds.registry import KINDS
from millrace.wire import messages as m
from millrace.wire.limits import KIB
from tests.support.databases import FaultyDatabases
from tests.support.scenario import Scenario
from tests.support.servers import QUIET
from tests.support.waiting import until


@pytest.mark.asyncio
async def test_stopping_does_not_wait_until_a_copy_is_verified(scenario: Scenario) -> None:
    """Behaviour 48: a stop has a deadline, and verifying the copy of a large checkpoint takes minutes."""
    pauses = 0
    begun, may_go_on = threading.Event(), threading.Event()

    def pause(duration_s: float) -> None:
        nonlocal pauses
        pauses += 1
        begun.set()
        assert may_go_on.wait(10)

    scenario.clock.on_pause = pause
    container = replace(QUIET, chunk_size_bytes_small=48 * KIB, garbage_interval_s=0.0)
    async with scenario.running(container=container, in_background=True, flush_s=10.0) as run, run.peer() as peer:
        # More than are verified between two pauses.
        for number in range(VERIFIED_PAGE_ROWS_COUNT + 1):
            segment_id = await peer.create_segment(f"raw/{number}")
        for _ in range(2):
            await peer.store(segment_id, b"x" * 100)
            await run.opened.flusher.flush()
        # A copy is due: it lets the small chunk be deleted that was written again.
        await run.opened.flusher.checkpoint()
        scenario.clock.move(container.checkpoint_interval_s)
        assert await asyncio.to_thread(begun.wait, 10)

    may_go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()

    assert pauses == 1


@pytest.mark.asyncio
async def test_a_damaged_copy_of_a_good_checkpoint_is_no_damage_of_the_checkpoint(
    scenario: Scenario, tmp_path: Path
) -> None:
    """Behaviour 41: the copy is not published, and the container continues."""
    storage, files = scenario.storage, FaultyDatabases()
    scenario.disk, scenario.folder = files, tmp_path

    def damage(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as copy:
            copy.execute("UPDATE segments SET created_us = created_us + 1")

    async with scenario.running() as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await run.opened.flusher.checkpoint()
        files.on_reading = damage
        with pytest.raises(StorageError, match="the checkpoint is not") as caught:
            await run.opened.flusher.copy()
        files.on_reading = lambda path: None
        assert not isinstance(caught.value, CheckpointDamagedError)
        assert not storage.names(CHECKPOINT_PREFIX)
        await run.opened.flusher.copy()
        assert len(storage.names(CHECKPOINT_PREFIX)) == 1
        assert (await peer.info(segment_id)).segment_id == segment_id
        assert run.container.checkpoint_damage is None


class HeldStore(CheckpointStore):
    """A store whose saves wait before they begin, until they may."""

    def __init__(self, path: Path) -> None:
        super().__init__(OsFileSystem(), path, KINDS)
        self.sequences: list[int] = []
        self.may_begin = threading.Event()

    def save(self, rows: CheckpointRows, *, sequence: int, replay_from: int, container_epoch: int) -> None:
        self.sequences.append(sequence)
        assert self.may_begin.wait(10)
        super().save(rows, sequence=sequence, replay_from=replay_from, container_epoch=container_epoch)


@pytest.mark.asyncio
async def test_a_save_that_nobody_waits_for_is_not_made_after_a_newer_one(scenario: Scenario, tmp_path: Path) -> None:
    """Behaviour 85: it would leave what is older, with chunks that were deleted since."""
    async with scenario.running() as run, run.peer() as peer:
        with contextlib.closing(HeldStore(tmp_path / "held.db")) as store:
            environment = run.opened.environment
            checkpointer = Checkpointer(
                run.container,
                checkpoints=store,
                storage=environment.storage,
                ownership=environment.ownership,
                owner=environment.owner,
            )
            await peer.create_segment("raw/a")
            first = asyncio.create_task(checkpointer.checkpoint())
            await until(lambda: store.sequences)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first

            await peer.create_segment("raw/b")
            second = asyncio.create_task(checkpointer.checkpoint())
            for _ in range(20):
                await peer.ask(m.ListSegments("", "", 10), m.SegmentList)
            assert len(store.sequences) == 1
            store.may_begin.set()
            await second

            assert store.sequences[0] < store.sequences[1]
            found = store.load()
            assert found is not None
            assert found.sequence == store.sequences[1]
            assert found.stored.counts["segments"] == 2
