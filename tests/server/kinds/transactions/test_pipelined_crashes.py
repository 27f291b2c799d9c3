"""Transactions whose frames arrive back to back are never half a commit, whatever is lost or killed meanwhile."""

from dataclasses import replace
from random import Random

import pytest

from millrace.model.transaction import TransactionState
from millrace.server.container.options import ContainerOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.server.container.histories import durable_view
from tests.support.files import MemoryFileSystem
from tests.support.pipelines import WHOLE, Pipeline
from tests.support.protocol import Peer
from tests.support.scenario import Scenario
from tests.support.servers import BUSY, QUIET, SMALL_WAL
from tests.support.transactions import content_of, create_stream, outcome_of

pytestmark = pytest.mark.asyncio


@pytest.mark.slow
@pytest.mark.parametrize("container", [QUIET, BUSY])
@pytest.mark.parametrize("batch_size", [1, 200, 64 * 1024])
async def test_a_kill_or_power_loss_leaves_all_or_nothing(container: ContainerOptions, batch_size: int) -> None:
    """Behaviours 31, 40: at each sync of it, whether it is one batch or cut into as many as there are records."""
    # A batch takes at least one run, so it can be cut at each border.
    scenario = Scenario(wal=replace(SMALL_WAL, batch_size_bytes_max=batch_size))
    files = scenario.files
    disks: list[MemoryFileSystem] = []
    async with scenario.running(container=container, in_background=True) as run, run.peer() as peer:
        segments = await create_stream(peer, "a/b", 2)
        pipeline = await Pipeline.open(peer)
        files.before_sync = lambda path: disks.append(files.copy()) if path.parent.name == "wal" else None
        number = pipeline.whole("a/b", segments, b"one ", b"two")
        told = await pipeline.told()
        assert told.names() == WHOLE
        files.before_sync = lambda path: None
        disks.append(files.copy())
    assert len(disks) >= (6 if batch_size == 1 else 2)

    states = set()
    for place, disk in enumerate(disks):
        for seed in (None, place, place + 100):  # killed, or without power
            left = disk.copy()
            if seed is not None:
                left.crash(seed)
            for _ in range(2):
                async with replace(scenario, files=left).running() as run, run.peer() as peer:
                    found = await outcome_of(peer, number=number)
                    is_committed = found.state == TransactionState.COMMITTED
                    states.add(TransactionState(found.state))
                    assert found.state in (
                        TransactionState.UNKNOWN,
                        TransactionState.ABORTED,  # it never began, and cannot any more
                        TransactionState.OPEN,
                        TransactionState.COMMITTED,
                    )
                    expected = dict.fromkeys(segments, b"one two") if is_committed else {}
                    assert await content_of(peer, "a/b") == expected, (place, seed)
                    if place == len(disks) - 1 and seed is None:
                        assert is_committed
    assert TransactionState.COMMITTED in states
    if batch_size < 64 * 1024:
        assert TransactionState.OPEN in states
    elif container is QUIET:  # else what was idle may have to be fetched from disk, between two requests of it
        assert TransactionState.OPEN not in states


async def test_a_failed_sync_fails_all_of_it() -> None:
    """Behaviour 43: nothing of it is told as stored or as refused; after the recovery it is there or not, whole."""
    scenario = Scenario(wal=SMALL_WAL)
    async with scenario.running() as run, run.peer() as peer:
        segments = await create_stream(peer, "a/b", 2)
        pipeline = await Pipeline.open(peer)
        scenario.files.fail_syncs(10)  # more than the log needs: the thread that prepares its files may take some
        pipeline.whole("a/b", segments, b"event")
        number = pipeline.begin("a/none")
        pipeline.commit(number)

        told = await pipeline.told()
        scenario.files.fail_syncs(0)

        unknown = ErrorCode.OUTCOME_UNKNOWN
        assert told.names()[:3] == [unknown.name] * 3
        assert told.outcomes == [unknown] * 2
        assert told.names()[3:] == ["SHUTTING_DOWN"] * 2  # nothing was stored: to be sent again
    async with scenario.running() as run, run.peer() as peer:
        assert await content_of(peer, "a/b") in ({}, dict.fromkeys(segments, b"event"))


# --- the live state is that of the fold ---


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("batch_size", [300, 64 * 1024])
async def test_the_live_state_is_the_one_that_is_recovered(seed: int, batch_size: int) -> None:
    """Pipelines of chance, cut into batches anywhere, by several peers at once: the fold makes the same of the log."""
    print(f"seed={seed}")
    dice = Random(seed)
    scenario = Scenario(wal=replace(SMALL_WAL, batch_size_bytes_max=batch_size, files_max=32))
    async with scenario.running() as run:
        peers = [run.peer(session_id=bytes([number] * 16)) for number in range(3)]
        pipelines = [await Pipeline.open(peer, ids_count=3000) for peer in peers]
        for name in ("a/b", "a/c"):
            await create_stream(peers[0], name, 2)
        for _ in range(8):
            routed = {
                name: [
                    segment.segment_id
                    for segment in (await peers[0].ask(m.GetStream(name), m.StreamInfo)).segments
                    if not segment.sealed
                ]
                for name in ("a/b", "a/c")
            }
            for pipeline in pipelines:
                for _ in range(dice.randrange(1, 4)):
                    add_of_chance(pipeline, dice, routed)
                await pipeline.send()
            if dice.random() < 0.4:
                await scale_of_chance(peers[0], dice)
            for pipeline in pipelines:
                await pipeline.told()
        state = run.state
        live = durable_view(state)
        assert not state.admitted_transactions.queued
        assert not state.admitted_segments
        for transaction in state.open_transactions.by_number.values():
            assert transaction.admitted_parts == transaction.parts
            assert transaction.admitted == transaction.durable
        for peer in peers:
            await peer.close()
    async with scenario.running() as run:
        assert durable_view(run.state) == live


def add_of_chance(pipeline: Pipeline, dice: Random, routed: dict[str, list[int]]) -> None:
    """Add the frames of a transaction that may leave something out, do too much, or end in any way."""
    streams = dice.sample(sorted(routed), dice.choice([1, 1, 2]))
    number = pipeline.begin(*streams, name=dice.choice(["", "", f"n{dice.randrange(5)}"]))
    counts: dict[int, int] = {}
    for stream in streams:
        for branch in dice.sample([0, 1, 2], dice.randrange(1, 3)):
            ids = dice.sample(routed[stream], dice.randrange(1, len(routed[stream]) + 1))
            for part_id in pipeline.parts(number, ids, branch=branch):
                payloads = [bytes(dice.randrange(1, 60)) for _ in range(dice.randrange(0, 3))]
                if payloads:
                    pipeline.append(part_id, *payloads)
                counts[branch] = counts.get(branch, 0) + len(payloads)
    named = sorted(counts.items())
    if dice.random() < 0.15:
        named = [(branch, count + 1) for branch, count in named]
    if dice.random() < 0.3:
        pipeline.prepare(number, *named[:1], drops_others=True)
        named = named[:1]
    if dice.random() < 0.7:
        pipeline.commit(number, *named, drops_others=dice.random() < 0.5)
    elif dice.random() < 0.5:
        pipeline.ask(m.AbortTransaction(number, ""))


async def scale_of_chance(peer: Peer, dice: Random) -> None:
    """Split an open segment of a stream, or merge all."""
    info = await peer.ask(m.GetStream("a/b"), m.StreamInfo)
    parts = [segment for segment in info.segments if not segment.sealed]
    if len(parts) > 3:
        last = max(segment.last for segment in parts)
        sealed, ranges = [segment.segment_id for segment in parts], [m.KeyRangeRecord(0, last)]
    else:
        chosen = dice.choice(parts)
        middle = (chosen.low + chosen.last) // 2
        sealed = [chosen.segment_id]
        ranges = [m.KeyRangeRecord(chosen.low, middle), m.KeyRangeRecord(middle + 1, chosen.last)]
    request_id = await peer.start(m.ScaleStream("a/b", sealed, ranges))
    await peer.reply(request_id, m.StreamInfo)
