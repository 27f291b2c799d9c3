"""Seeking by event time: in chunks, in the tail, in merged segments; before and after a flush."""

import asyncio
from bisect import bisect_right
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model.block_packing import pack_block
from millrace.server.container.seek import seek_before_event_time, seek_event_time
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.sparse_index import SPACING_BYTES
from millrace.server.tier2 import EventTimes
from millrace.wire import messages as m
from millrace.wire.limits import KIB, MIB
from tests.server.container.flush.test_uploader import OPTIONS, Tier2
from tests.server.container.histories import apply
from tests.support.examples import examples
from tests.support.tables import table


def block(*timestamps_us: int, size: int = 100) -> bytes:
    return bytes(pack_block([bytes(size)] * len(timestamps_us), timestamps_us=list(timestamps_us)))


async def sought(tier2: Tier2, timestamp_us: int) -> int | None:
    """Return the offset from which the caller scans; None if the segment has no such event."""
    entry = await seek_event_time(tier2.container.reader, tier2.state.merged, tier2.segment, timestamp_us=timestamp_us)
    return None if entry is None else entry.offset


async def sought_back(tier2: Tier2, timestamp_us: int, *, end: int | None = None) -> tuple[int, int] | None:
    """Return the interval in which the caller looks for the last event that is earlier."""
    end = tier2.segment.length if end is None else end
    return await seek_before_event_time(
        tier2.container.reader, tier2.state.merged, tier2.segment, timestamp_us=timestamp_us, end=end
    )


@pytest.mark.asyncio
@table("flushed_count", range(5))
async def test_the_interval_of_the_first_event_of_a_time_is_found_wherever_it_is(flushed_count: int) -> None:
    """Behaviour 26: event times that go up and down, and lie far from the time of writing."""
    tier2 = Tier2()
    offsets = []
    for number, times in enumerate([(50, 60), (10, 20), (90, 30), (40, 70)]):
        offsets.append(tier2.segment.length)
        tier2.append(block(*times, size=1000))
        if number < flushed_count:
            await tier2.uploader.upload([tier2.segment])
    found = [await sought(tier2, timestamp_us) for timestamp_us in (0, 50, 60, 61, 90, 91)]
    expected = [offsets[0], offsets[0], offsets[0], offsets[2], offsets[2], None]
    assert [None if each is None else bisect_right(offsets, each) for each in found] == [
        None if each is None else bisect_right(offsets, each) for each in expected
    ]


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 50), min_size=1, max_size=3), st.booleans()), min_size=1, max_size=12),
    st.integers(-1, 51),
)
def test_nothing_of_that_time_is_before_what_is_found(appends: list[tuple[list[int], bool]], timestamp_us: int) -> None:
    async def check() -> None:
        tier2 = Tier2()
        first: int | None = None
        for times, is_flushed in appends:
            if first is None and max(times) >= timestamp_us:
                first = tier2.segment.length
            tier2.append(block(*times, size=1000))
            if is_flushed:
                await tier2.uploader.upload([tier2.segment])
        found = await sought(tier2, timestamp_us)
        assert (found is None) == (first is None)
        assert found is None or first is None or found <= first
        for chunk in tier2.segment.chunks:
            footer = await tier2.container.reader.footer(chunk)
            entries = [*footer.entries()]
            assert entries[0].offset == chunk.start_offset
            summary = footer.summary
            assert (summary.timestamp_us_min, summary.timestamp_us_max) == chunk.event_times()

    asyncio.run(check())


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 50), min_size=1, max_size=3), st.booleans()), min_size=1, max_size=12),
    st.integers(-1, 51),
    st.data(),
)
def test_nothing_earlier_is_after_the_interval_that_is_found(
    appends: list[tuple[list[int], bool]], timestamp_us: int, data: st.DataObject
) -> None:
    """Behaviour 26."""

    async def check() -> None:
        tier2 = Tier2()
        offsets, borders = [], {0}
        for times, is_flushed in appends:
            offsets.append((tier2.segment.length, min(times)))
            tier2.append(block(*times, size=1000))
            borders.add(tier2.segment.length)
            if is_flushed:
                await tier2.uploader.upload([tier2.segment])
        end = data.draw(st.sampled_from(sorted(borders)))
        found = await sought_back(tier2, timestamp_us, end=end)
        earlier = [offset for offset, least in offsets if offset < end and least < timestamp_us]
        assert (found is not None) or not earlier
        if found is not None:
            assert found[0] < end
            assert found[0] < found[1]
            assert {*found} <= borders
            assert not [offset for offset in earlier if offset >= found[1]]

    asyncio.run(check())


@pytest.mark.asyncio
@pytest.mark.parametrize("is_flushed", [False, True])
async def test_going_back_ends_where_nothing_earlier_is_left(is_flushed: bool) -> None:
    """Behaviour 26: from interval to interval, each before the last one, and not before a truncation."""
    tier2 = Tier2()
    tier2.append(block(10))
    tier2.append(block(70))
    border = tier2.segment.length
    tier2.append(block(80))
    if is_flushed:
        await tier2.uploader.upload([tier2.segment])
    found = await sought_back(tier2, 75)
    while found is not None and found[0] > 0:
        assert found[0] <= border
        found = await sought_back(tier2, 75, end=found[0])
    assert found is not None
    assert await sought_back(tier2, 10) is None
    tier2.segment.start_offset = tier2.segment.length
    assert await sought_back(tier2, 75) is None


@pytest.mark.asyncio
async def test_chunks_that_are_written_again_keep_their_event_times() -> None:
    tier2 = Tier2()
    for size, times in ((1, (50, 60)), (1, (10, 20)), (300, (90, 30))):
        tier2.append(block(*times, size=size))
        await tier2.uploader.upload([tier2.segment])
    (chunk,) = tier2.segment.chunks
    assert chunk.event_times() == EventTimes(10, 90)


def merge(tier2: Tier2, source: Segment, target: Segment) -> None:
    """Merge a segment into another, which is the one that is asked from then on."""
    apply(tier2.state, m.SegmentSealed(source.segment_id))
    apply(
        tier2.state,
        m.SegmentMerged(
            target_id=target.segment_id, source_id=source.segment_id, target_offset=target.length, source_start=0,
            size=source.length, event_count=source.event_count,
        ),
    )  # fmt: skip
    target.next_offset = target.length
    tier2.segment = target


@pytest.mark.asyncio
@pytest.mark.parametrize("is_source_flushed", [False, True])
async def test_a_merged_segment_keeps_its_event_times(is_source_flushed: bool) -> None:
    tier2 = Tier2()
    tier2.append(block(5, size=SPACING_BYTES))
    target = tier2.segment
    source = tier2.another()
    tier2.append(block(50, 60))
    if is_source_flushed:
        await tier2.uploader.upload([source])
    merge(tier2, source, target)
    border = target.length - source.length
    assert [await sought(tier2, at) for at in (5, 6, 60, 61)] == [0, border, border, None]
    assert [await sought_back(tier2, at) for at in (5, 6, 51)] == [None, (0, border), (border, target.length)]
    while target.tail:
        await tier2.uploader.upload([target])
    assert [await sought_back(tier2, at) for at in (5, 6, 51)] == [None, (0, border), (border, target.length)]
    assert [chunk.event_times() for chunk in target.chunks] == [EventTimes(5, 5), EventTimes(50, 60)]
    assert [await sought(tier2, at) for at in (5, 6, 60, 61)] == [0, border, border, None]
    target.index.check()


@pytest.mark.asyncio
async def test_times_of_a_damaged_merged_segment_are_found_between_chunks() -> None:
    """Behaviours 26 and 41: it is not copied, what is before and after it is in chunks."""
    tier2 = Tier2()
    tier2.append(block(5, size=SPACING_BYTES))
    target = tier2.segment
    source = tier2.another()
    tier2.append(block(50, 60))
    await tier2.uploader.upload([source])
    name = source.chunks[0].name
    tier2.storage.replace(name, bytes(source.chunks[0].size))
    merge(tier2, source, target)
    border, end = target.length - source.length, target.length
    tier2.append(block(40, 70))
    while target.tail:
        await tier2.uploader.upload([target])
    assert target.unreadable == [source.link]
    assert [await sought(tier2, at) for at in (5, 6, 60, 61, 71)] == [0, border, border, end, None]
    assert [await sought_back(tier2, at) for at in (5, 6, 41)] == [None, (0, border), (end, target.length)]
    assert await sought_back(tier2, 51, end=end) == (border, end)


@pytest.mark.asyncio
@table("flushed_count", range(4))
@table("chunk_size_bytes_small", [MIB, KIB])
@table("has_inner", [True, False])
async def test_inside_of_what_was_merged_times_are_found_where_they_are(
    chunk_size_bytes_small: int, flushed_count: int, *, has_inner: bool
) -> None:
    """Behaviour 26: copied together with what is beside it or for itself, with a merged segment inside of it or not."""
    options = replace(OPTIONS, chunk_size_bytes_small=chunk_size_bytes_small, chunk_size_bytes_max=MIB)
    tier2 = Tier2(options)
    target = tier2.segment
    tier2.append(block(5, size=SPACING_BYTES))
    source, offsets = tier2.another(), [0]
    offsets.append(target.length)
    for number in range(3):
        tier2.append(block(100 * number + 10, 100 * number + 20, size=SPACING_BYTES))
        offsets.append(target.length + source.length)
        if number < flushed_count:
            await tier2.uploader.upload([source])
    inner = tier2.another() if has_inner else source
    tier2.append(block(500, size=SPACING_BYTES))
    if flushed_count == 3:
        await tier2.uploader.upload([inner])
    if has_inner:
        merge(tier2, inner, source)
    merge(tier2, source, target)
    end = target.length
    tier2.append(block(7, size=100))
    before = [await sought(tier2, at) for at in (5, 501)]
    events = target.event_count

    while target.tail:
        await tier2.uploader.upload([target])

    assert before == [await sought(tier2, at) for at in (5, 501)] == [0, None]
    assert [await sought(tier2, at) for at in (6, 20, 21, 120, 121, 220, 221, 500)] == [
        place for place in offsets[1:] for _ in range(2)
    ]
    assert await sought_back(tier2, 8) in ((offsets[-1], target.length), (end, target.length))
    entries = [entry for chunk in target.chunks for entry in (await tier2.container.reader.footer(chunk)).entries()]
    assert [entry.events for entry in entries if entry.offset in offsets] == [0, 1, 2, 3, 4]
    assert target.chunks[-1].end_events == events
    assert len(tier2.state.segments) == 1
    for chunk in target.chunks:
        await tier2.container.reader.load_index(target, chunk.start_offset, chunk.end_offset)
    target.index.check()


@pytest.mark.asyncio
async def test_what_was_truncated_is_not_found() -> None:
    tier2 = Tier2()
    tier2.append(block(50))
    tier2.append(block(60))
    await tier2.uploader.upload([tier2.segment])
    tier2.segment.start_offset = tier2.segment.length // 2
    assert await sought(tier2, 0) == tier2.segment.start_offset


@pytest.mark.asyncio
async def test_in_a_raw_segment_every_byte_may_be_it() -> None:
    tier2 = Tier2()
    tier2.append(b"no block")
    assert await sought(tier2, 2**62) == 0
    await tier2.uploader.upload([tier2.segment])
    assert await sought(tier2, 2**62) == 0
