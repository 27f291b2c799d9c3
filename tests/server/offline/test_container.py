import asyncio
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.app import Server
from millrace.server.offline.container import (
    join_ranges,
    log_files,
    logged_ranges,
    missing_ranges,
    opened_container,
    read_log,
    survey,
)
from millrace.wire import messages as m
from tests.server.container.histories import durable_view
from tests.support.protocol import Peer, set_attribute
from tests.support.servers import server_options

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)))


def places(ranges: list[tuple[int, int]]) -> set[int]:
    return {place for start, end in ranges for place in range(start, end)}


@given(RANGES)
def test_joined_ranges_hold_the_same_bytes_apart_and_ascending(ranges: list[tuple[int, int]]) -> None:
    joined = join_ranges(ranges)

    assert places(joined) == places(ranges)
    assert all(before[1] < after[0] for before, after in pairwise(joined))


@given(st.integers(0, 30), st.integers(0, 30), RANGES)
def test_missing_ranges_are_what_no_range_holds(start: int, end: int, present: list[tuple[int, int]]) -> None:
    missing = missing_ranges(start, end, present)

    assert places(missing) == set(range(start, end)) - places(present)
    assert sum(high - low for low, high in missing) == len(places(missing))


def test_a_killed_container_is_found_in_its_log_alone(killed_folder: Path) -> None:
    with opened_container(killed_folder / "containers" / "0000") as found:
        done = list(read_log(found))
        segment = found.state.segments.find("raw/a")
        assert segment is not None
        assert segment.length == 3000
        assert logged_ranges(segment) == [(0, 3000)]
        assert sum(done) == sum(path.stat().st_size for path in log_files(found.folder))


def test_surveying_changes_no_file(killed_folder: Path) -> None:
    before = {path: path.read_bytes() for path in killed_folder.rglob("*") if path.is_file()}

    with survey(opened_container(killed_folder / "containers" / "0000")):
        pass

    assert {path: path.read_bytes() for path in killed_folder.rglob("*") if path.is_file()} == before


async def decide_everything(peer: Peer) -> None:
    """Let the log hold a record of every kind that a client can ask for, and appends with and without a writer."""
    kept, merged, deleted = [await peer.create_segment(f"raw/{name}") for name in ("kept", "merged", "deleted")]
    writer = await peer.open_writer("w", kept)
    fields = {"writer_number": writer.writer_number, "writer_epoch": writer.writer_epoch}
    for number, payload in enumerate((b"one", b"three", b"four"), start=1):
        await peer.store(kept, payload, event_number=number, **fields)
        await peer.store(merged, payload * 2)
        await peer.store(deleted, payload)
    await peer.ask(m.TruncateSegment(merged, 6), m.SegmentInfo)
    await peer.ask(m.SealSegment(merged), m.SegmentInfo)
    await peer.ask(m.MergeSegment(target_id=kept, source_id=merged), m.SegmentInfo)
    await peer.store(kept, b"after the merge", event_number=4, **fields)
    await peer.ask(m.TruncateSegment(kept, 3), m.SegmentInfo)
    await peer.ask(m.DeleteSegment(deleted), m.Done)
    await peer.ask(set_attribute(kept, "key", expected=None, value=b"value"), m.Attribute)
    for name in ("scaled", "deleted"):
        stream = await peer.ask(m.CreateStream(f"a/{name}", 1, ""), m.StreamInfo)
    await peer.ask(m.SealStream("a/deleted"), m.StreamInfo)
    await peer.ask(m.DeleteStream("a/deleted"), m.Done)
    stream = await peer.ask(m.GetStream("a/scaled"), m.StreamInfo)
    (first,) = (part.segment_id for part in stream.segments)
    await peer.store(first, b"before")
    ranges = [m.KeyRangeRecord(0, 9), m.KeyRangeRecord(10, 2**64 - 1)]
    stream = await peer.ask(m.ScaleStream("a/scaled", [first], ranges), m.StreamInfo)
    second, third = (part.segment_id for part in stream.segments if part.segment_id != first)
    await peer.store(third, b"after")
    positions = [m.SavedPosition(second, 0, 0), m.SavedPosition(third, 0, 0)]
    for name in ("kept", "forgotten"):
        await peer.ask(m.SaveCuts("a/scaled", [m.NamedCut(1, name, positions)]), m.Done)
    await peer.ask(m.ForgetCut("a/scaled", 1, "forgotten"), m.Done)
    await peer.ask(m.UpdateStream("a/scaled", '{"tags": ["x"]}'), m.StreamInfo)
    await peer.ask(m.TruncateStream("a/scaled", [m.SavedPosition(second, 0), m.SavedPosition(third, 0)]), m.StreamInfo)


@pytest.mark.asyncio
async def test_the_server_its_recovery_and_a_survey_come_to_the_same(tmp_path: Path) -> None:
    """Behaviour 41: `verify` judges by what the server that wrote the log holds, and the next one recovers."""
    folder, copy = tmp_path / "served", tmp_path / "killed"
    async with Server(server_options(folder)) as server:
        async with await Peer.connect(server.address) as peer:
            await decide_everything(peer)
        # As a kill leaves it: nobody writes at this moment.
        await asyncio.to_thread(shutil.copytree, folder, copy)
        written = durable_view(server.opened.container.state)
    with survey(opened_container(copy / "containers" / "0000")) as found:
        assert durable_view(found.state) == written
    async with Server(server_options(copy)) as server:
        assert durable_view(server.opened.container.state) == written
