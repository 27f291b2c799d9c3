"""What a container knows of streams after a kill: what its log says, wholly or not at all."""

import shutil
from pathlib import Path

import pytest

from millrace.model.key_range import KEY_SPACE, covers_once
from millrace.server.container.state.container_state import ContainerState
from millrace.wire import messages as m
from tests.server.container.histories import durable_view
from tests.server.streams.containers import Streams, streams_in
from tests.support.clock import ManualClock
from tests.support.storage import MemoryStorage

HALF = KEY_SPACE // 2
THIRDS = [
    m.KeyRangeRecord(0, HALF // 2 - 1),
    m.KeyRangeRecord(HALF // 2, HALF - 1),
]


async def live(streams: Streams) -> None:
    """Live through a bit of everything."""
    controller = streams.controller
    stream, _ = await controller.create("a/b", segment_count=2, configuration='{"tags":["x"]}', cursors=["early"])
    lower, upper = stream.segment_ids
    for segment_id in (lower, upper):
        await streams.append(segment_id, bytes(100))
    await controller.scale("a/b", sealed_ids=[lower], ranges=THIRDS, cause="first")
    first, second = (part.segment_id for part in stream.open_parts[:2])
    await streams.append(first, bytes(60))
    cut = [m.SavedPosition(first, 60, 0), m.SavedPosition(second, 0, 0), m.SavedPosition(upper, 50, 3)]
    await controller.save_cuts(
        "a/b", [m.NamedCut(m.CutKind.BOOKMARK, "mark", cut), m.NamedCut(m.CutKind.CURSOR, "reader", cut)]
    )
    await controller.save_cuts("a/b", [m.NamedCut(m.CutKind.CURSOR, "mark", cut)])
    await controller.forget_cut("a/b", "mark", kind=m.CutKind.BOOKMARK)
    await controller.update("a/b", configuration='{"tags":["y"]}')
    everything = [m.KeyRangeRecord(0, KEY_SPACE - 1)]
    await controller.scale("a/b", sealed_ids=[first, second, upper], ranges=everything, cause="second")
    await controller.truncate("a/b", [m.SavedPosition(segment_id, offset) for segment_id, offset, _ in cut])
    await streams.append(stream.segment_ids[-1], bytes(10))


def check_whole(state: ContainerState) -> int:
    """Check that each decision is there as a whole or not at all; return the epoch."""
    if not len(state.streams):
        assert not len(state.segments)
        return -1
    (stream,) = state.streams.values()
    assert covers_once(part.key_range for part in stream.open_parts)
    assert (m.CutKind.CURSOR, "early") in stream.cuts
    assert ((m.CutKind.CURSOR, "mark") not in stream.cuts) or ((m.CutKind.CURSOR, "reader") in stream.cuts)
    assert [epoch.number for epoch in stream.epochs] == list(range(stream.epoch + 1))
    for part in stream.parts:
        segment = state.segments[part.segment_id]
        assert segment.sealed == (part.sealed_epoch > 0)
        assert segment.stream_id == stream.stream_id
    assert {part.segment_id for part in stream.parts} == {segment.segment_id for segment in state.segments.values()}
    return stream.epoch


@pytest.mark.asyncio
async def test_decisions_survive_a_kill_and_a_second_one(tmp_path: Path) -> None:
    """Behaviours 22, 26, 39: scalings, cuts and truncations are there after the log was read again, twice."""
    storage, clock = MemoryStorage(), ManualClock()
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        await live(streams)
        before = durable_view(streams.opened.container.state)
    for _ in range(2):
        async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
            assert durable_view(streams.opened.container.state) == before
            stream = streams.controller.find("a/b")
            assert [epoch.cause for epoch in stream.epochs] == ["created", "first", "second"]
            assert sorted(stream.cuts) == [(m.CutKind.CURSOR, name) for name in ("early", "mark", "reader")]
            assert await streams.tagged("y") == ["a/b"]


@pytest.mark.asyncio
async def test_decisions_survive_a_checkpoint(tmp_path: Path) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        await live(streams)
        await streams.opened.flusher.flush()
        await streams.opened.flusher.checkpoint()
        before = durable_view(streams.opened.container.state)
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        assert durable_view(streams.opened.container.state) == before
        assert await streams.tagged("y")
        check_whole(streams.opened.container.state)


@pytest.mark.asyncio
async def test_a_decision_is_there_wholly_or_not_at_all(tmp_path: Path) -> None:
    """Behaviours 22, 39: killed at any byte of the log, a scale is wholly visible or not at all."""
    clock = ManualClock()
    origin = tmp_path / "origin"
    async with streams_in(origin, storage=MemoryStorage(), clock=clock) as streams:
        await live(streams)
    log = max((origin / "wal").iterdir(), key=lambda path: len(path.read_bytes().rstrip(b"\0")))
    data = log.read_bytes()
    used = len(data.rstrip(b"\0"))
    epochs = set()
    for place in range(4096, used + 1, 149):
        folder = tmp_path / "copy"
        shutil.copytree(origin, folder)
        with (folder / "wal" / log.name).open("r+b") as file:
            file.seek(place)
            file.write(bytes(used - place))
        async with streams_in(folder, storage=MemoryStorage(), clock=clock) as streams:
            epochs.add(check_whole(streams.opened.container.state))
        shutil.rmtree(folder)
    assert epochs == {-1, 0, 1, 2}
