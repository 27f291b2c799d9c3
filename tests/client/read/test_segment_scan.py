"""Places found by counting, held to a list of all events."""

import random
from itertools import accumulate

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import OffsetBeyondEndError, SegmentTruncatedError
from millrace.client.options import ClientOptions, parse_addresses
from millrace.client.read.segment_scan import SegmentScan
from millrace.client.testing import TestServer
from millrace.client.transport.channel import Channel
from millrace.client.transport.client_guard import ClientGuard
from millrace.model.errors import InvalidArgumentError
from millrace.model.position import Mark, Position

pytestmark = pytest.mark.asyncio


class Filled:
    """A segment with blocks of many sizes, and what it holds according to a plain reader."""

    def __init__(self, segment_id: int, places: list[tuple[int, int]], tail: Mark) -> None:
        self.segment_id = segment_id
        # The place of each event.
        self.places = places
        self.tail = tail
        # The borders between blocks, the tail included.
        self.borders = [offset for offset, index in places if index == 0] + [tail.offset]

    def mark(self, events: int) -> Mark:
        return self.tail if events == len(self.places) else Mark(*self.places[events], events)


async def fill(client: Client, name: str, *, seed: int, blocks: int, large: bool) -> Filled:
    chance = random.Random(seed)
    await client.create_stream(name)
    async with client.writer(name) as writer:
        for _ in range(blocks):
            count = chance.choice([1, 2, 3, 50])
            size = chance.choice([0, 10, 1000, 100_000 if large else 20])
            await writer.write_many([b"x" * size] * count, key="k")
    async with client.reader(name, end=millrace.TAIL) as reader:
        places = [(event.offset, event.index) async for event in reader]
    (segment,) = (await client.stream_info(name)).segments
    return Filled(segment.segment_id, places, Mark(segment.length, 0, segment.event_count))


def open_channel(server: TestServer) -> Channel:
    return Channel(parse_addresses(server.address), ClientOptions(), ClientGuard())


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
async def test_events_are_counted_exactly_from_anywhere_to_anywhere(
    server: TestServer, client: Client, name: str, *, large: bool
) -> None:
    """Behaviour 56: what a limit of events in a batch stands on."""
    filled = await fill(client, name, seed=7, blocks=120, large=large)
    channel = open_channel(server)
    total = len(filled.places)
    chance = random.Random(8)
    for _ in range(60):
        first, last = sorted(chance.choices(range(total + 1), k=2))
        start, end = filled.mark(first), filled.mark(last)
        count = chance.randrange(1, total)
        assert await SegmentScan(channel, filled.segment_id).mark(position=start.position, tail=filled.tail) == start
        reached = await SegmentScan(channel, filled.segment_id).after_events(start=start, end=end, count=count)
        assert reached == filled.mark(min(first + count, last))
    await channel.close()


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
async def test_bytes_are_counted_to_the_last_border_within(
    server: TestServer, client: Client, name: str, *, large: bool
) -> None:
    filled = await fill(client, name, seed=9, blocks=120, large=large)
    channel = open_channel(server)
    chance = random.Random(10)
    for _ in range(60):
        start = filled.mark(chance.randrange(len(filled.places)))
        size = chance.choice([1, 500, 70_000, 2_000_000])
        reached = await SegmentScan(channel, filled.segment_id).after_bytes(
            start=start, end=filled.tail, size_bytes=size
        )
        within = [border for border in filled.borders if start.offset < border <= start.offset + size]
        assert reached.position == ((within[-1], 0) if within else start.position)
        assert filled.mark(reached.events) == reached
        after = await SegmentScan(channel, filled.segment_id).after_block(start=start, end=filled.tail)
        assert after.position == (next(border for border in filled.borders if border > start.offset), 0)
        assert filled.mark(after.events) == after
    await channel.close()


async def test_places_are_found_after_a_truncation(server: TestServer, client: Client, name: str) -> None:
    filled = await fill(client, name, seed=11, blocks=40, large=False)
    channel = open_channel(server)
    border = filled.borders[20]
    await client.truncate_stream(name, millrace.StreamCut.of(name, {filled.segment_id: (border, 0)}))
    head = filled.mark(filled.places.index((border, 0)))

    assert await SegmentScan(channel, filled.segment_id).mark(position=Position(border, 0), tail=filled.tail) == head
    for count in (1, 5, 100):
        reached = await SegmentScan(channel, filled.segment_id).after_events(start=head, end=filled.tail, count=count)
        assert reached == filled.mark(min(head.events + count, len(filled.places)))
    with pytest.raises(SegmentTruncatedError):
        await SegmentScan(channel, filled.segment_id).mark(position=Position(filled.borders[1], 0), tail=filled.tail)
    await channel.close()


async def test_a_place_that_no_event_has_is_refused(server: TestServer, client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write_many([b"a", b"b"])
    (segment,) = (await client.stream_info(name)).segments
    tail = Mark(segment.length, 0, 2)
    channel = open_channel(server)

    assert await SegmentScan(channel, segment.segment_id).mark(position=Position(0, 2), tail=tail) == Mark(0, 2, 2)
    with pytest.raises(InvalidArgumentError, match="has 2 events"):
        await SegmentScan(channel, segment.segment_id).mark(position=Position(0, 3), tail=tail)
    with pytest.raises(OffsetBeyondEndError):
        await SegmentScan(channel, segment.segment_id).after_events(
            start=Mark(0, 0, 0), end=Mark(tail.offset + 100, 0, 9), count=5
        )
    await channel.close()


async def test_the_time_of_writing_is_near(server: TestServer, client: Client, name: str) -> None:
    filled = await fill(client, name, seed=12, blocks=5, large=False)
    channel = open_channel(server)

    times = [await SegmentScan(channel, filled.segment_id).written_before(offset=border) for border in filled.borders]

    assert times[0] > 1_600_000_000_000_000
    assert times == list(accumulate(times, max))
    await channel.close()
