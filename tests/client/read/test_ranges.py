# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import pickle
import random
from dataclasses import replace

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import OffsetBeyondEndError, SegmentTruncatedError
from millrace.client.read.ranges import KeptBlocks, SegmentRange, ranges_between
from millrace.model.cut import StreamCut
from millrace.model.errors import CutInvalidError, CutOrderError, InvalidArgumentError
from millrace.model.policy import ScalingPolicy, StreamConfig
from tests.client.scaling import filled as filled_over_epochs

pytestmark = pytest.mark.asyncio


async def filled(client: Client, name: str) -> list[bytes]:
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(2)))
    values = [b"%06d" % number + b"." * 1000 for number in range(3000)]
    async with client.writer(name) as writer:
        for place in range(0, 3000, 30):
            writer.write_many(values[place : place + 30], key=f"{place % 7}")
            if place % 300 == 0:
                await writer.flush()
    return values


async def rows(client: Client, ranges: list[SegmentRange]) -> list[bytes]:
    found = []
    for part in ranges:
        async for batch in client.read_range(part):
            found += batch.column("value").to_pylist()
    return found


@pytest.mark.parametrize("max_bytes", [70_000, 500_000, 1 << 40])
async def test_the_ranges_of_a_plan_are_exactly_the_events(client: Client, name: str, max_bytes: int) -> None:
    values = await filled(client, name)

    ranges = await client.plan_ranges(name, max_bytes=max_bytes)

    assert sorted(await rows(client, pickle.loads(pickle.dumps(ranges)))) == values
    if max_bytes == 70_000:
        assert len(ranges) > 10
    elif max_bytes > 1 << 30:
        assert len(ranges) == 2


async def test_a_plan_between_two_cuts_inside_blocks(client: Client, name: str) -> None:
    values = await filled(client, name)
    async with client.reader(name, end=millrace.TAIL) as reader:
        before = [(await anext(reader)).value for _ in range(1001)]
        start = reader.position()
        between = [(await anext(reader)).value for _ in range(1007)]
        end = reader.position()

    ranges = await client.plan_ranges(name, start=start, end=StreamCut.parse(str(end)), max_bytes=100_000)

    assert sorted(await rows(client, ranges)) == sorted(between)
    assert set(before).isdisjoint(between)
    assert len(values) > len(before) + len(between)
    with pytest.raises(CutOrderError):
        await client.plan_ranges(name, start=end, end=start)


async def test_batches_have_the_documented_columns(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write_many([b"a", b"b"], key="k", timestamps_us=[1, 2])
        await writer.write(b"c", timestamp_us=3)
    (part,) = await client.plan_ranges(name)

    (batch,) = [batch async for batch in client.read_range(part)]

    assert batch.schema.names == ["value", "key", "timestamp", "segment", "offset", "index", "headers"]
    assert batch.column("key").to_pylist() == ["k", "k", None]
    assert batch.column("timestamp").cast("int64").to_pylist() == [1, 2, 3]
    assert batch.column("index").to_pylist() == [0, 1, 0]
    assert batch.column("offset").to_pylist()[:2] == [0, 0]
    assert part.size_bytes == (await client.stream_info(name)).size_bytes


async def test_a_range_beyond_the_end_of_a_sealed_segment_is_an_error(client: Client, name: str) -> None:
    await filled(client, name)
    await client.seal_stream(name)
    (*_, last) = await client.plan_ranges(name)
    wrong = SegmentRange(
        segment_id=last.segment_id,
        start_offset=last.start_offset,
        start_index=0,
        end_offset=last.end_offset + 8,
        end_index=0,
    )
    with pytest.raises(OffsetBeyondEndError):
        await rows(client, [wrong])


async def test_the_size_of_a_range_must_be_above_zero(client: Client, name: str) -> None:
    await client.create_stream(name)
    with pytest.raises(InvalidArgumentError):
        await client.plan_ranges(name, max_bytes=0)


@pytest.mark.parametrize("max_bytes", [2000, 1 << 40])
async def test_ranges_span_epochs_and_are_read_in_any_order(client: Client, name: str, max_bytes: int) -> None:
    """Behaviour 27: a slice between two cuts, whatever was scaled between them."""
    values = await filled_over_epochs(client, name)
    start, end = await client.stream_cut(name).at_time(33), await client.stream_cut(name).at_time(207)

    ranges = await client.plan_ranges(name, start=start, end=end, max_bytes=max_bytes)
    everything = await client.plan_ranges(name, max_bytes=max_bytes)
    random.Random(3).shuffle(ranges)

    assert sorted(await rows(client, pickle.loads(pickle.dumps(ranges)))) == values[33:207]
    assert sorted(await rows(client, everything)) == values
    with pytest.raises(CutOrderError):
        await client.plan_ranges(name, start=end, end=start)
    assert len({part.segment_id for part in everything}) == 8


async def test_a_range_that_was_truncated_away_says_so(client: Client, name: str) -> None:
    values = await filled(client, name)
    first, *_, last = await client.plan_ranges(name, max_bytes=500_000)
    assert first.segment_id != last.segment_id
    tail = await client.stream_cut(name)
    places = {first.segment_id: tail.places[first.segment_id], last.segment_id: (0, 0)}
    await client.truncate_stream(name, StreamCut.of(name, places))
    with pytest.raises(SegmentTruncatedError) as caught:
        await rows(client, [first])
    assert caught.value.start_offset == tail.places[first.segment_id].offset
    assert set(await rows(client, [last])) < set(values)

    await client.scale_stream(name, seal=tail.places, ranges=[(0.0, 1.0)])
    async with client.writer(name) as writer:  # only a truncation after the beginning releases what was replaced
        await writer.write(b"after")
    await client.truncate_stream(name, millrace.TAIL)
    with pytest.raises(SegmentTruncatedError, match=f"segment {last.segment_id} has no range") as caught:
        await rows(client, [last])
    assert caught.value.start_offset is None


@pytest.mark.parametrize("seed", range(4))
async def test_ranges_that_meet_inside_of_blocks_give_the_block_on(client: Client, name: str, seed: int) -> None:
    """Each event once, with a key or without, whatever is kept of what came before."""
    dice = random.Random(seed)
    values = await filled(client, name)
    info = await client.stream_info(name)
    cuts = [await client.stream_cut(name).after_events(count) for count in sorted(dice.sample(range(1, 3000), 60))]
    for key in (None, "3"):
        kept = KeptBlocks(size_bytes_max=dice.choice([1, 40_000, 1 << 30]))
        found = []
        for start, end in zip([info.head(), *cuts], [*cuts, info.tail()], strict=True):
            for part in ranges_between(start, end, info, key=key):
                async for batch in client.read_range(part, kept=kept):
                    found += batch.column("value").to_pylist()
        expected = [value for number, value in enumerate(values) if key is None or f"{number // 30 * 30 % 7}" == key]
        assert sorted(found) == expected


async def test_kept_blocks_are_bounded_and_given_out_once(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        for _ in range(3):
            await writer.write_many([bytes(1000)] * 10, key="a")
    (whole,) = await client.plan_ranges(name)
    size_bytes = whole.size_bytes // 3
    kept = KeptBlocks(size_bytes_max=2 * size_bytes)
    starts = [replace(whole, start_offset=number * size_bytes, start_index=4) for number in range(3)]
    for start in starts:
        part = replace(start, start_index=0, end_offset=start.start_offset, end_index=4)
        assert [batch.num_rows async for batch in client.read_range(part, kept=kept)] == [4]

    assert [kept.take(start) is not None for start in starts] == [False, True, True]  # the first had to make room
    assert [kept.take(start) is not None for start in starts] == [False, False, False]
    wrong = replace(starts[1], start_index=11)
    async for _ in client.read_range(replace(starts[1], end_offset=size_bytes, end_index=6), kept=kept):
        pass
    with pytest.raises(CutInvalidError, match="has 10 events"):
        [batch async for batch in client.read_range(wrong, kept=kept)]
    kept.clear()
    assert kept.take(starts[2]) is None
