"""Checkpoints and their copies: verified, and never waited for at a stop."""

import asyncio
import contextlib
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX
from millrace.server.container.checkpoint.verification import VERIFIED_PAGE_ROWS_COUNT
from millrace.server.errors import CheckpointDamagedError, StorageError
from millrace.server.host.clock import SystemClock
from millrace.wire.limits import KIB
from tests.server.container.flush.test_flusher import flusher_of
from tests.support.databases import FaultyDatabases
from tests.support.protocol import Peer
from tests.support.servers import QUIET, server_options
from tests.support.storage import FaultyStorage


@pytest.mark.asyncio
async def test_stopping_does_not_wait_until_a_copy_is_verified(tmp_path: Path) -> None:
    """Behaviour 48: a stop has a deadline, and verifying the copy of a large checkpoint takes minutes."""
    pauses = 0
    begun, may_go_on = threading.Event(), threading.Event()

    class Held(SystemClock):
        def pause(self, duration_s: float) -> None:
            nonlocal pauses
            pauses += 1
            begun.set()
            assert may_go_on.wait(10)

    container = replace(QUIET, chunk_size_bytes_small=48 * KIB, garbage_interval_s=0.0)
    server = Server(server_options(tmp_path, container=container), storage=FaultyStorage(), clock=Held())
    await server.start()
    async with await Peer.connect(server.address) as peer:
        # More than are verified between two pauses.
        for number in range(VERIFIED_PAGE_ROWS_COUNT + 1):
            segment_id = await peer.create_segment(f"raw/{number}")
        for _ in range(2):
            await peer.store(segment_id, b"x" * 100)
            await flusher_of(server).flush()
        # A copy is due: it lets the small chunk be deleted that was written again.
        await flusher_of(server).checkpoint()
        flusher_of(server)._work.set()
        assert await asyncio.to_thread(begun.wait, 10)

    await server.stop()
    may_go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()

    assert pauses == 1


@pytest.mark.asyncio
async def test_a_damaged_copy_of_a_good_checkpoint_is_no_damage_of_the_checkpoint(tmp_path: Path) -> None:
    """Behaviour 41: the copy is not published, and the container continues."""
    storage, files = FaultyStorage(), FaultyDatabases()

    def damage(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as copy:
            copy.execute("UPDATE segments SET created_us = created_us + 1")

    async with (
        Server(server_options(tmp_path, container=QUIET), storage=storage, files=files) as server,
        await Peer.connect(server.address) as peer,
    ):
        segment_id = await peer.create_segment("raw/a")
        await flusher_of(server).checkpoint()
        assert server._open is not None
        files.on_reading = damage
        with pytest.raises(StorageError, match="the checkpoint is not") as caught:
            await flusher_of(server).copy()
        files.on_reading = lambda path: None
        assert not isinstance(caught.value, CheckpointDamagedError)
        assert not storage.names(CHECKPOINT_PREFIX)
        await flusher_of(server).copy()
        assert len(storage.names(CHECKPOINT_PREFIX)) == 1
        assert (await peer.info(segment_id)).segment_id == segment_id
        assert server._open.container.checkpoint_damage is None
