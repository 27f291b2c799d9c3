"""Recovering the checkpoint, its copies and the log, where one of them is missing, older or damaged."""

import asyncio
import contextlib
import shutil
import sqlite3
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.container.checkpoint.backup import (
    CHECKPOINT_PREFIX,
    PART_HEADER_SIZE_BYTES,
    decode_part,
    encode_part,
    parse_part_name,
)
from millrace.server.errors import LogCorruptError
from millrace.server.wal import LogOwner, Wal
from millrace.wire import messages as m
from millrace.wire.limits import KIB
from tests.server.container.restarts import (
    CONTAINER,
    chunks,
    damage_checkpoint,
    filled,
    flip,
    found,
    lose_checkpoints,
    saved_and_copied,
    set_aside,
)
from tests.support.protocol import Peer
from tests.support.servers import QUIET, SMALL_WAL, server_options
from tests.support.storage import FaultyStorage
from tests.support.waiting import PATIENCE_S


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
            await server.opened.flusher.checkpoint()
            await server.opened.flusher.copy()
    for name in storage.names(CHECKPOINT_PREFIX):
        storage.replace(name, flip(storage.content(name)))
    damage_checkpoint(tmp_path)
    for _ in range(3):
        assert await found(tmp_path, storage=storage) == b"x" * 100
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
        for _ in range(2):
            await peer.store(segments[-1], b"x" * 100)
            await server.opened.flusher.checkpoint()
            await server.opened.flusher.copy()
    _, newer = storage.names(CHECKPOINT_PREFIX)
    path = tmp_path / CONTAINER / "checkpoint.db"
    # A row that a start does not read.
    path.write_bytes(storage.content(newer)[PART_HEADER_SIZE_BYTES:])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE segments SET created_us = created_us + 1 WHERE segment_id = ?", [segments[0]])
    storage.replace(newer, repacked(newer, storage.content(newer), path.read_bytes()))
    path.unlink()

    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        for segment_id, length in zip(segments, (0, 0, 200), strict=True):
            assert (await peer.info(segment_id)).length == length
        assert not server.health()
        assert set_aside(tmp_path) == []


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
            await server.opened.flusher.checkpoint()
        older = path.read_bytes()
        if is_same_sequence:
            await saved_and_copied(server)
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        if not is_same_sequence:
            await peer.store(segment_id, b"b" * 100)
            await saved_and_copied(server)
        epoch = server.opened.environment.epoch
        names = storage.names()
        newest = storage.names(CHECKPOINT_PREFIX)[-1]
    path.write_bytes(older)

    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert await peer.read_all(segment_id) == b"a" * 100 + b"b" * 100
        assert server.opened.environment.epoch > epoch or is_same_sequence
        assert server.opened.keeps_orphans
        restored_from = server.opened.summary.restored_from
        assert newest.startswith(f"c0000/{restored_from}-")
        assert path.with_name("checkpoint.db.older-1").read_bytes() == older
        assert storage.names() == names
        assert await peer.store(segment_id, b"c" * 100) == [200]
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert server.opened.summary.restored_from == ""
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
        await server.opened.flusher.checkpoint()
        older = path.read_bytes()
        await peer.store(segment_id, b"b" * 100)
        await server.opened.flusher.flush()
        await server.opened.flusher.checkpoint()
    path.write_bytes(older)

    for _ in range(2):
        async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
            assert await peer.read_all(segment_id) == b"a" * 100 + b"b" * 100
            assert server.opened.summary.restored_from == ""


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
    await storage.publish(name, [others.content(name)])
    assert name == storage.names(CHECKPOINT_PREFIX)[-1]

    for is_missing in (False, True):
        if is_missing:
            (tmp_path / CONTAINER / "checkpoint.db").unlink()
        async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
            assert await peer.read_all(segment_id) == b"a" * 100
            assert bool(server.opened.summary.restored_from) == is_missing


@pytest.mark.asyncio
async def test_a_copy_that_the_log_was_recycled_beyond_is_refused(tmp_path: Path) -> None:
    """Behaviour 41: restored, it would serve holes; refused, however often one tries, until a newer one is there."""
    storage = FaultyStorage()
    # So large that the flusher sees no reason to do anything by itself.
    options = server_options(tmp_path, container=QUIET, wal=replace(SMALL_WAL, files_max=64))
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segment_id, other = await peer.create_segment("raw/a"), await peer.create_segment("raw/other")
        flusher = server.opened.flusher
        for number in range(3):
            await peer.store(segment_id, b"%d" % number * 100)
            await peer.store(other, *[bytes(32 * KIB)] * 12)
            await flusher.flush()
            await flusher.checkpoint()
            await flusher.copy()
        content = await peer.read_all(segment_id)
        wal = server.opened.container.log
        assert isinstance(wal, Wal)
        # A thread recycles them one after the other; a stop waits for one only.
        async with asyncio.timeout(PATIENCE_S):
            while wal._pool._released:
                await peer.info(segment_id)
    newest = storage.names(CHECKPOINT_PREFIX)[-1]
    good = storage.content(newest)
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
            await server.opened.flusher.flush()
            await server.opened.flusher.checkpoint()
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
            server.opened.container.segment(target).index.check()
