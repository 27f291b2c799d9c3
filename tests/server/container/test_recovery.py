"""Recovering the checkpoint, its copies and the log, where one of them is missing, older or damaged."""

import uuid
from contextlib import closing
from dataclasses import replace

import pytest

from millrace.server.container.checkpoint.backup import (
    CHECKPOINT_PREFIX,
    PART_HEADER_SIZE_BYTES,
    decode_part,
    encode_part,
    parse_part_name,
)
from millrace.server.errors import LogCorruptError
from millrace.server.wal import LogOwner
from millrace.wire import messages as m
from millrace.wire.limits import KIB
from tests.server.container.restarts import damage_checkpoint, filled, flip, found, set_aside
from tests.support.clock import passing_time
from tests.support.scenario import CHECKPOINT, FOLDER, WAL, Scenario
from tests.support.servers import QUIET, SMALL_WAL


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_lost_checkpoint_is_rebuilt_from_a_log_that_goes_back_to_the_beginning(scenario: Scenario) -> None:
    """Behaviour 41: derived files are rebuilt."""
    scenario.wal = SMALL_WAL
    content = await filled(scenario, size=20 * KIB)
    scenario.files.remove(CHECKPOINT)
    for _ in range(2):
        assert await found(scenario) == content


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("damage", ["lost", "flipped"])
async def test_a_lost_checkpoint_comes_back_from_its_copy_in_tier_2(scenario: Scenario, damage: str) -> None:
    """Behaviour 41: a flipped bit in the checkpoint: detected, restored, nothing deleted; the damaged one is kept."""
    scenario.wal = SMALL_WAL
    content = await filled(scenario, size=900 * KIB, is_published=True)
    if damage == "lost":
        scenario.files.remove(CHECKPOINT)
    else:
        damage_checkpoint(scenario)
    known = set(scenario.storage.names())
    impatient = replace(QUIET, orphan_grace_s=0.0, garbage_interval_s=0.0, checkpoint_interval_s=0.01)
    for _ in range(2):
        async with (
            scenario.running(container=impatient, in_background=True) as run,
            run.peer() as peer,
            passing_time(scenario.clock),
        ):
            info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
            assert await peer.read_all(info.segment_id) == content
        assert known <= set(scenario.storage.names())
    assert (damage == "lost") == (not set_aside(scenario))


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["the log was recycled", "the log is gone, too"])
async def test_without_checkpoint_and_copies_nothing_is_started_and_nothing_deleted(
    scenario: Scenario, what: str
) -> None:
    """Behaviour 41: starting would take the chunks of tier 2 for orphans."""
    scenario.wal = SMALL_WAL
    await filled(scenario, size=900 * KIB, is_published=True)
    scenario.files.remove(CHECKPOINT)
    for name in scenario.storage.names(CHECKPOINT_PREFIX):
        await scenario.storage.delete(name)
    if "gone" in what:
        for name in scenario.files.list_directory(WAL):
            scenario.files.remove(WAL / name)
    before = scenario.storage.names()
    with pytest.raises(LogCorruptError, match="the checkpoint is missing, and the log"):
        async with scenario.running():
            pass
    assert scenario.storage.names() == before


@pytest.mark.asyncio
@pytest.mark.parametrize("copies", ["none", "damaged"])
async def test_a_damaged_checkpoint_is_rebuilt_from_a_log_that_goes_back_to_the_beginning(
    scenario: Scenario, copies: str
) -> None:
    """Behaviour 41: also where no copy helps; at the first start, and nothing is set aside again at the next ones."""
    storage, scenario.wal = scenario.storage, SMALL_WAL
    async with scenario.running() as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"x" * 100)
        await run.opened.flusher.checkpoint()
        if copies == "damaged":
            await run.opened.flusher.copy()
    for name in storage.names(CHECKPOINT_PREFIX):
        storage.replace(name, flip(storage.content(name)))
    damage_checkpoint(scenario)
    for _ in range(3):
        assert await found(scenario) == b"x" * 100
        assert set_aside(scenario) == ["checkpoint.db.damaged-1"]


def repacked(name: str, data: bytes, content: bytes) -> bytes:
    """Return a part of a copy with another content, and good checksums of it."""
    name = name.removeprefix("c0000/")
    part = parse_part_name(name)
    assert part is not None
    version, _ = decode_part(data, name=name, owner=None)
    owner = LogOwner(0, uuid.UUID(bytes=data[8:24]))
    return b"".join(encode_part(part, content, replay_from=version.replay_from, owner=owner))


@pytest.mark.asyncio
async def test_a_damaged_copy_of_a_large_checkpoint_gives_way_to_an_older_one(scenario: Scenario) -> None:
    """Behaviour 41: every row of a copy is verified before it is used, for an older one may be better."""
    storage = scenario.storage
    container = replace(QUIET, verified_at_once_count_max=0)
    async with scenario.running(container=container) as run, run.peer() as peer:
        segments = [await peer.create_segment(f"raw/{name}") for name in "abc"]
        for _ in range(2):
            await peer.store(segments[-1], b"x" * 100)
            await run.opened.flusher.checkpoint()
            await run.opened.flusher.copy()
    _, newer = storage.names(CHECKPOINT_PREFIX)
    # A row that a start does not read.
    scenario.files.replace_content(CHECKPOINT, storage.content(newer)[PART_HEADER_SIZE_BYTES:])
    with closing(scenario.files.database(CHECKPOINT)) as connection:
        connection.execute("UPDATE segments SET created_us = created_us + 1 WHERE segment_id = ?", [segments[0]])
    storage.replace(newer, repacked(newer, storage.content(newer), scenario.files.content(CHECKPOINT)))
    scenario.files.remove(CHECKPOINT)

    async with scenario.running(container=container) as run, run.peer() as peer:
        for segment_id, length in zip(segments, (0, 0, 200), strict=True):
            assert (await peer.info(segment_id)).length == length
        assert not run.container.refusal
        assert set_aside(scenario) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("is_same_sequence", [False, True], ids=["later sequence", "same sequence"])
async def test_an_older_checkpoint_gives_way_to_its_newest_copy(scenario: Scenario, is_same_sequence: bool) -> None:
    """Behaviour 85: it leads to a chunk that was written again and deleted since; its epoch was used since, too."""
    storage = scenario.storage
    container = replace(QUIET, garbage_interval_s=0.0)
    files = scenario.files
    async with scenario.running(container=container) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"a" * 100)
        await run.published()
        if is_same_sequence:
            # The bytes are in the log still: a flush adds nothing to it.
            await peer.store(segment_id, b"b" * 100)
            await run.opened.flusher.checkpoint()
        older = files.content(CHECKPOINT)
        if is_same_sequence:
            await run.published()
    async with scenario.running(container=container) as run, run.peer() as peer:
        if not is_same_sequence:
            await peer.store(segment_id, b"b" * 100)
            await run.published()
        epoch = run.opened.environment.epoch
        names = storage.names()
        newest = storage.names(CHECKPOINT_PREFIX)[-1]
    files.replace_content(CHECKPOINT, older)

    async with scenario.running(container=container) as run, run.peer() as peer:
        assert await peer.read_all(segment_id) == b"a" * 100 + b"b" * 100
        assert run.opened.environment.epoch > epoch or is_same_sequence
        assert run.opened.keeps_orphans
        restored_from = run.opened.summary.restored_from
        assert newest.startswith(f"c0000/{restored_from}-")
        assert files.content(FOLDER / "checkpoint.db.older-1") == older
        assert storage.names() == names
        assert await peer.store(segment_id, b"c" * 100) == [200]
    async with scenario.running(container=container) as run, run.peer() as peer:
        assert run.opened.summary.restored_from == ""
        assert await peer.read_all(segment_id) == b"a" * 100 + b"b" * 100 + b"c" * 100
    assert set_aside(scenario, "older") == ["checkpoint.db.older-1"]


@pytest.mark.asyncio
async def test_an_older_checkpoint_after_its_newest_copy_is_completed_by_the_log(scenario: Scenario) -> None:
    """Behaviour 85: what it does not know is in the log, which is recycled after a copy only."""
    container = replace(QUIET, garbage_interval_s=0.0)
    files = scenario.files
    async with scenario.running(container=container) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await run.published()
        await peer.store(segment_id, b"a" * 100)
        await run.opened.flusher.checkpoint()
        older = files.content(CHECKPOINT)
        await peer.store(segment_id, b"b" * 100)
        await run.opened.flusher.flush()
        await run.opened.flusher.checkpoint()
    files.replace_content(CHECKPOINT, older)

    for _ in range(2):
        async with scenario.running(container=container) as run, run.peer() as peer:
            assert await peer.read_all(segment_id) == b"a" * 100 + b"b" * 100
            assert run.opened.summary.restored_from == ""


@pytest.mark.asyncio
async def test_a_copy_of_another_server_is_not_restored(scenario: Scenario) -> None:
    """Behaviour 81: however new its name says that it is, and whether the checkpoint is there or not."""
    storage = scenario.storage
    async with scenario.running() as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"a" * 100)
        await run.published()
    foreign = Scenario(server_id=uuid.UUID(int=8))
    async with foreign.running() as run, run.peer() as peer:
        for name in "abcdefghij":
            await peer.create_segment(f"raw/{name}")
        await run.published()
    (name,) = foreign.storage.names(CHECKPOINT_PREFIX)
    await storage.publish(name, [foreign.storage.content(name)])
    assert name == storage.names(CHECKPOINT_PREFIX)[-1]

    for is_missing in (False, True):
        if is_missing:
            scenario.files.remove(CHECKPOINT)
        async with scenario.running() as run, run.peer() as peer:
            assert await peer.read_all(segment_id) == b"a" * 100
            assert bool(run.opened.summary.restored_from) == is_missing


@pytest.mark.asyncio
async def test_a_copy_that_the_log_was_recycled_beyond_is_refused(scenario: Scenario) -> None:
    """Behaviour 41: restored, it would serve holes; refused, however often one tries, until a newer one is there."""
    storage = scenario.storage
    async with scenario.running() as run, run.peer() as peer:
        segment_id, other = await peer.create_segment("raw/a"), await peer.create_segment("raw/other")
        for number in range(3):
            await peer.store(segment_id, b"%d" % number * 100)
            await peer.store(other, *[bytes(32 * KIB)] * 12)
            await run.published()
        content = await peer.read_all(segment_id)
    newest = storage.names(CHECKPOINT_PREFIX)[-1]
    good = storage.content(newest)
    storage.replace(newest, flip(good))
    damage_checkpoint(scenario)
    chunk_names = storage.names()

    for _ in range(3):
        with pytest.raises(LogCorruptError, match="needs the log from sequence"):
            async with scenario.running():
                pass
        assert storage.names() == chunk_names
    storage.replace(newest, good)
    async with scenario.running() as run, run.peer() as peer:
        assert await peer.read_all(segment_id) == content


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("flushes", [False, True], ids=["unflushed", "flushed"])
async def test_a_merge_in_the_log_is_replayed_with_what_is_around_it(scenario: Scenario, flushes: bool) -> None:
    """Behaviours 20 and 39: appends, a merge and appends again, after a kill, in any state of flushing."""
    async with scenario.running() as run, run.peer() as peer:
        target, source = await peer.create_segment("raw/target"), await peer.create_segment("raw/source")
        await peer.store(target, *[b"a" * 100] * 3)
        await peer.store(source, *[b"b" * 100] * 3)
        await peer.ask(m.SealSegment(source), m.SegmentInfo)
        if flushes:
            await run.opened.flusher.flush()
            await run.opened.flusher.checkpoint()
        await peer.ask(m.MergeSegment(target_id=target, source_id=source), m.SegmentInfo)
        await peer.store(target, *[b"c" * 100] * 3)
    for _ in range(2):
        async with scenario.running() as run, run.peer() as peer:
            assert await peer.read_all(target) == b"a" * 300 + b"b" * 300 + b"c" * 300
            assert (await peer.info(target)).event_count == 9
            run.container.segment(target).index.check()
