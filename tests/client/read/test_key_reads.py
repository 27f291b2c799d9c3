"""Reading the events of one key: only from the segments that may hold it."""

# Nobody needs to look at the future of a write: flush raises what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import pickle
import random

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import CutTruncatedError
from millrace.model.cut import HEAD, TAIL, StreamCut, TimeCut
from millrace.model.errors import CutOrderError, InvalidArgumentError
from millrace.model.event import Event
from millrace.model.slice import Slice
from tests.client.scaling import check_order, filled, scale

pytestmark = pytest.mark.asyncio

KEYS = [f"key-{number}" for number in range(7)]


def of_key(values: list[bytes], key: str) -> list[bytes]:
    return [value for value in values if value.endswith(key.encode())]


@pytest.mark.parametrize("key", [KEYS[0], KEYS[3], "no such key"])
async def test_a_reader_of_a_key_reads_its_events_from_the_segments_that_may_hold_it(
    client: Client, name: str, key: str
) -> None:
    """Behaviour 72: over splits and merges, resumed at any event."""
    values = of_key(await filled(client, name, scalings=4), key)
    info = await client.stream_info(name)
    seen: list[Event] = []
    position = await client.stream_cut(name).head()
    dice = random.Random(key)
    while len(seen) < len(values):
        async with client.reader(name, start=position, end=TAIL, key=key) as reader:
            count = min(dice.randint(1, 30), len(values) - len(seen))
            seen += [await anext(reader) for _ in range(count)]
            position = reader.position()
            info.lineage().check_cut(position.places)
            assert all(info.lineage().by_id[segment_id].holds(key) for segment_id in reader._sources)
    async with client.reader(name, start=position, end=TAIL, key=key) as reader:
        assert [event async for event in reader] == []
    assert [event.value for event in seen] == values
    check_order(seen)


async def test_batches_and_ranges_hold_the_events_of_the_key(client: Client, name: str) -> None:
    """Behaviour 72."""
    values = await filled(client, name)
    info = await client.stream_info(name)
    start, end = TimeCut(50), TimeCut(200)
    for key in (KEYS[1], KEYS[2]):
        expected = of_key(values[50:200], key)
        async with client.reader(name, start=start, end=end, key=key) as reader:
            batches = [batch async for batch in reader.arrow_batches()]
        assert [value for batch in batches for value in batch.column("value").to_pylist()] == expected
        parts = pickle.loads(pickle.dumps(await client.plan_ranges(name, start=start, end=end, key=key, max_bytes=500)))
        rows = [
            value for part in parts async for batch in client.read_range(part) for value in batch.column(0).to_pylist()
        ]
        assert rows == expected
        held = [segment.segment_id for segment in info.segments if segment.holds(key)]
        assert {part.segment_id for part in parts} <= {*held}
        assert len(held) < len(info.segments)


async def test_a_reader_of_a_key_follows_splits_and_merges(client: Client, name: str) -> None:
    """Behaviour 72: where segments of other keys are replaced, too, before and together with those of the key."""
    await client.create_stream(name, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(3)))

    async def read() -> list[bytes]:
        async with client.reader(name, key="mine") as reader:
            return [event.value async for event in reader]

    reading = asyncio.create_task(read())
    written = []
    for round_ in range(6):
        async with client.writer(name) as writer:
            for number in range(20):
                written.append(b"%d" % (20 * round_ + number))
                await writer.write(written[-1], key="mine")
                writer.write(b"other", key=f"other-{number}")
                writer.write(b"none")
        if round_ % 2:
            await scale(client, name)
        else:  # only one of them, which may hold the key or not
            part = (await client.stream_info(name)).open_segments[0]
            middle = (part.key_range.low + part.key_range.high) // 2
            ranges = [(part.key_range.low, middle), (middle, part.key_range.high)]
            await client.scale_stream(
                name, seal=[part.segment_id], ranges=[(max(low, 0), high) for low, high in ranges]
            )
    await client.seal_stream(name)
    assert await reading == written


async def test_what_is_truncated_of_other_keys_does_not_concern_a_reader_of_a_key(client: Client, name: str) -> None:
    """Behaviour 72."""
    await client.create_stream(name, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2)))
    async with client.writer(name) as writer:
        for number in range(20):
            await writer.write(b"%d" % number, key=f"key-{number}")
    info = await client.stream_info(name)
    key, other = (
        next(f"key-{number}" for number in range(20) if part.holds(f"key-{number}")) for part in info.segments
    )
    start = await client.stream_cut(name).head()
    mine, theirs = (segment.segment_id for segment in info.segments)
    await client.truncate_stream(name, StreamCut.of(name, {mine: (0, 0), theirs: (info.segments[1].length, 0)}))
    async with client.reader(name, start=start, end=TAIL, key=key) as reader:
        assert len([event async for event in reader]) == 1
    with pytest.raises(CutTruncatedError):
        async with client.reader(name, start=start, end=TAIL, key=other):
            pass
    with pytest.raises(CutOrderError):
        async with client.reader(name, start=TAIL, end=HEAD, key=key):
            pass


async def test_a_slice_has_all_that_says_what_is_read(client: Client, name: str) -> None:
    """Behaviour 27: as a value and as a text."""
    values = await filled(client, name)
    start, end = await client.stream_cut(name).after_events(30), await client.stream_cut(name).after_events(200)
    part = Slice(name, start, end, KEYS[4])
    for same in (part, Slice.parse(str(part))):
        async with client.reader(same) as reader:
            found = [event.value async for event in reader]
        parts = await client.plan_ranges(same)
        assert found == [
            value for each in parts async for batch in client.read_range(each) for value in batch.column(0).to_pylist()
        ]
    async with client.reader(name, start=str(start), end=str(end), key=KEYS[4]) as reader:
        assert found == [event.value async for event in reader]
    assert set(found) < set(of_key(values, KEYS[4]))
    async with client.reader(name, start="head", end="tail") as reader:
        assert sorted([event.value async for event in reader]) == values
    with pytest.raises(InvalidArgumentError, match="has its own start, end and key"):
        async with client.reader(part, key="another"):
            pass
