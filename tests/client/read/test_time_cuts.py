"""Cuts at a time, held against all events: whatever order their times have, and however the stream was scaled."""

# Nobody needs to look at the future of a write: flush raises what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.read.time_cuts import end_at_time
from millrace.model.cut import HEAD, TAIL, CutChoice, StreamCut, TimeCut
from millrace.model.errors import CutOrderError
from millrace.model.event import Event
from tests.client.scaling import THIRDS, filled, scale
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

SMALL_FLUSHES = {"MILLRACE_CONTAINER_FLUSH_SIZE_BYTES": str(64 << 10), "MILLRACE_CONTAINER_FLUSH_AGE_S": "0.1"}


async def read(client: Client, name: str, *, start: CutChoice = HEAD, end: CutChoice = TAIL) -> list[Event]:
    async with client.reader(name, start=start, end=end) as reader:
        return [event async for event in reader]


def times_of(events: Sequence[Event]) -> list[int]:
    return [event.timestamp_us or 0 for event in events]


async def check_sides(client: Client, name: str, start: StreamCut, end: StreamCut, timestamp_us: int) -> None:
    """Assert that each event is on the side of the cuts at a time on which it has to be, and that they are tight."""
    assert all(time < timestamp_us for time in times_of(await read(client, name, end=start)))
    assert all(time >= timestamp_us for time in times_of(await read(client, name, start=end)))
    (await client.stream_info(name)).check_order(start, end)
    # The start is as far as it can be: the next event in one of the segments is of that time, or there is none.
    following = await read(client, name, start=start)
    assert not following or any(
        next(event for event in following if event.segment == segment_id).timestamp_us >= timestamp_us  # type: ignore[operator]
        for segment_id, _ in start.positions
        if any(event.segment == segment_id for event in following)
    )
    # The end is no further than it has to be.
    between = await read(client, name, start=start, end=end)
    assert not between or any(time < timestamp_us for time in times_of(between))


@pytest.mark.parametrize("seed", range(4))
async def test_each_event_is_on_its_side_of_a_cut_at_a_time(client: Client, name: str, seed: int) -> None:
    """Behaviour 26: two writers, times that go up and down, splits and merges between."""
    dice = random.Random(seed)
    await client.create_stream(name)
    for epoch in range(dice.randint(1, 5)):
        if epoch:
            await scale(client, name)
        async with client.writer(name) as one, client.writer(name) as other:
            for number in range(60):
                writer = dice.choice((one, other))
                time = 100 * epoch + number + dice.choice((0, 0, -150, 130, 1000))
                writer.write(b"%06d" % number, key=f"key-{dice.randrange(9)}", timestamp_us=time)
                if dice.random() < 0.2:
                    await writer.flush()
    if seed % 2:
        size_bytes = (await client.stream_info(name)).size_bytes
        await client.truncate_stream(name, await client.stream_cut(name).after_bytes(dice.randrange(size_bytes)))
    events = await read(client, name)
    stamps = sorted(set(times_of(events)))
    for timestamp_us in (stamps[0] - 1, stamps[0], *dice.sample(stamps, min(8, len(stamps))), stamps[-1], 10**12):
        start = await client.stream_cut(name).at_time(timestamp_us)
        end = await client.stream_cut(name, at_time=timestamp_us, as_end=True)
        await check_sides(client, name, start, end, timestamp_us)
        choice = TimeCut(timestamp_us)
        for by_time, by_cut in (
            (await read(client, name, start=choice), await read(client, name, start=start)),
            (await read(client, name, end=choice), await read(client, name, end=end)),
        ):
            assert {event.position for event in by_time} == {event.position for event in by_cut}


async def test_where_times_ascend_a_time_is_one_cut(client: Client, name: str) -> None:
    """Behaviour 26: and exactly the one between older and newer."""
    values = await filled(client, name)
    for number in (0, 1, 59, 60, 61, 119, 150, 200, 239, 240):
        start = await client.stream_cut(name).at_time(number)
        assert await client.stream_cut(name).at_time(number, as_end=True) == start
        assert sorted(event.value for event in await read(client, name, end=start)) == values[:number]


async def test_a_slice_in_time_is_between_two_times(client: Client, name: str) -> None:
    """Behaviour 26: of readers, of plans of ranges, of a distance."""
    values = await filled(client, name)
    start, end = TimeCut(50), TimeCut.at(datetime.fromtimestamp(0.000130, UTC))
    assert sorted(event.value for event in await read(client, name, start=start, end=end)) == values[50:130]
    assert (await client.distance(start, end, stream=name)).events == 80
    parts = await client.plan_ranges(name, start=start, end=end)
    rows = [batch.num_rows for part in parts async for batch in client.read_range(part)]
    assert sum(rows) == 80
    with pytest.raises(CutOrderError, match=r"1970-01-01T00:00:00.000130Z.*1970-01-01T00:00:00.000050Z"):
        await read(client, name, start=end, end=start)
    await client.truncate_stream(name, start)
    assert set(values[50:]) <= {event.value for event in await read(client, name)}


@pytest.mark.slow
async def test_a_merge_under_load_leaves_nothing_on_the_wrong_side(client: Client, name: str) -> None:
    """Behaviour 26: what was durable when the cut was asked for."""
    config = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(3))
    await client.create_stream(name, config)
    dice = random.Random(name)
    # The time of each event, by its value.
    durable: dict[bytes, int] = {}
    is_over = False

    async def write(first: int) -> None:
        number = first
        async with client.writer(name) as writer:
            while not is_over:
                stamps = {
                    b"%d/%d" % (first, each): each + dice.randrange(200) - 100 for each in range(number, number + 20)
                }
                await asyncio.gather(
                    *(
                        writer.write(value, key=f"key-{dice.randrange(50)}", timestamp_us=stamp)
                        for value, stamp in stamps.items()
                    )
                )
                durable.update(stamps)
                number += 20

    def has_stored(count: int) -> bool:
        return len(durable) >= count

    writers = [asyncio.create_task(write(first)) for first in (1000, 1700)]
    try:
        for wanted in range(400, 2800, 400):
            # Into one, and into three again, while they write and while the cuts are asked for.
            opened = (await client.stream_info(name)).open_segments
            ranges = [(0.0, 1.0)] if len(opened) > 1 else THIRDS
            scaling = asyncio.create_task(
                client.scale_stream(name, seal=[segment.segment_id for segment in opened], ranges=ranges)
            )
            await until(partial(has_stored, wanted))
            before = dict(durable)
            timestamp_us = dice.choice(list(before.values()))
            start = await client.stream_cut(name).at_time(timestamp_us)
            end = await client.stream_cut(name).at_time(timestamp_us, as_end=True)
            await scaling
            assert all(time < timestamp_us for time in times_of(await read(client, name, end=start)))
            until_end = {event.value for event in await read(client, name, end=end)}
            assert {value for value, time in before.items() if time < timestamp_us} <= until_end
            from_start = {event.value for event in await read(client, name, start=start)}
            assert {value for value, time in before.items() if time >= timestamp_us} <= from_start
    finally:
        is_over = True
        await asyncio.gather(*writers)
    info = await client.stream_info(name)
    assert info.epoch == 6
    for timestamp_us in dice.sample(list(durable.values()), 10):
        start = await client.stream_cut(name).at_time(timestamp_us)
        end = await end_at_time(client._reads, info, timestamp_us)
        await check_sides(client, name, start, end, timestamp_us)


@pytest.mark.slow
async def test_event_times_are_found_in_tier_2_too(name: str) -> None:
    """Behaviour 26: by the index of chunks, where most of a history is skipped."""
    with millrace.testing.server(settings=SMALL_FLUSHES) as server:
        await _check_in_tier_2(server.address, name)


async def _check_in_tier_2(address: str, name: str) -> None:
    async with millrace.connect(address) as client:
        await client.create_stream(name)
        dice = random.Random(name)
        async with client.writer(name) as writer:
            for number in range(150):
                writer.write_many([bytes(2000)] * 3, timestamps_us=number * 10 + dice.randrange(-300, 300))
                await writer.flush()
        for timestamp_us in (-1000, 0, 400, 750, 1100, 2000):
            start = await client.stream_cut(name).at_time(timestamp_us)
            end = await client.stream_cut(name).at_time(timestamp_us, as_end=True)
            await check_sides(client, name, start, end, timestamp_us)
