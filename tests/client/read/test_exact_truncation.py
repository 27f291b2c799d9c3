"""A stream that is truncated inside a block: no reader gets an event before the cut."""

# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio

import pytest

from millrace.client.client import Client, connect
from millrace.client.errors import CutTruncatedError, SegmentTruncatedError
from millrace.client.read.ranges import SegmentRange
from millrace.client.testing import TestServer
from millrace.model.cut import HEAD, TAIL, StreamCut
from millrace.model.event import EventPosition
from millrace.model.position import Position
from tests.client.read.streams import read

pytestmark = pytest.mark.asyncio

COUNT = 10
CUT = 4


async def one_block(client: Client, name: str) -> list[EventPosition]:
    """Create a stream of one block, whose events have ascending times; return the positions of the events."""
    await client.create_stream(name)
    async with client.writer(name) as writer:
        writer.write_many([b"%d" % number for number in range(COUNT)], timestamps_us=list(range(COUNT)))
    async with client.reader(name, end=TAIL) as reader:
        positions = [event.position async for event in reader]
    assert {position.offset for position in positions} == {0}
    return positions


def cut_at(name: str, position: EventPosition, index: int) -> StreamCut:
    return StreamCut.of(name, {position.segment_id: (position.offset, index)})


async def values_in(client: Client, parts: list[SegmentRange]) -> list[bytes]:
    return [
        value
        for part in parts
        async for batch in client.read_range(part)
        for value in batch.column("value").to_pylist()
    ]


async def test_every_way_to_read_begins_at_the_cut(client: Client, name: str) -> None:
    """Behaviour 106."""
    first, *_ = await one_block(client, name)
    planned = await client.plan_ranges(name, start=HEAD, end=TAIL)
    cut = cut_at(name, first, CUT)
    left = [b"%d" % number for number in range(CUT, COUNT)]

    info = await client.truncate_stream(name, cut)

    assert info.segments[0].start == Position(0, CUT)
    assert info.head() == await client.stream_cut(name).head() == cut
    assert await read(client, name, end=TAIL) == left
    assert await read(client, name, start=cut, end=TAIL) == left
    async with client.reader(name, end=TAIL) as reader:
        assert [value async for batch in reader.arrow_batches() for value in batch.column("value").to_pylist()] == left
    assert await values_in(client, await client.plan_ranges(name, start=HEAD, end=TAIL)) == left
    for moment in range(CUT + 1):
        assert await client.stream_cut(name).at_time(moment) == cut
        assert await client.stream_cut(name).at_time(moment, as_end=True) == cut
    distance = await client.distance(HEAD, TAIL, stream=name)
    assert distance.events == COUNT - CUT
    assert await client.stream_cut(name).after_events(2) == cut_at(name, first, CUT + 2)
    assert (await client.fetch_event(first._replace(event_index=CUT))).value == left[0]
    # Places before the cut are refused.
    for index in range(CUT):
        with pytest.raises(SegmentTruncatedError, match=f"event {index} of the block at 0") as refused:
            await client.fetch_event(first._replace(event_index=index))
        assert (refused.value.start_offset, refused.value.start_index) == (0, CUT)
    with pytest.raises(SegmentTruncatedError):
        await values_in(client, planned)
    with pytest.raises(CutTruncatedError, match="1 events are lost") as early:
        await read(client, name, start=cut_at(name, first, CUT - 1))
    assert early.value.resume_at == cut
    with pytest.raises(CutTruncatedError, match="1 events are lost"):
        await client.cursors(name).set("early", cut_at(name, first, CUT - 1))


async def test_the_start_moves_forward_only(client: Client, name: str) -> None:
    """Behaviour 106."""
    first, *_ = await one_block(client, name)

    await client.truncate_stream(name, cut_at(name, first, CUT))
    info = await client.truncate_stream(name, cut_at(name, first, CUT - 1))
    assert info.segments[0].start == (0, CUT)
    info = await client.truncate_stream(name, cut_at(name, first, COUNT))

    assert info.segments[0].start == (info.segments[0].length, 0)
    assert await read(client, name, end=TAIL) == []


async def test_a_reader_that_waits_at_the_head_moves_with_it(client: Client, name: str) -> None:
    """Behaviour 106: an open subscription gets no event that was truncated before its block was sent."""
    await client.create_stream(name)
    async with client.reader(name) as reader, client.writer(name) as writer:
        await writer.write_many([b"%d" % number for number in range(COUNT)])
        assert (await anext(reader)).value == b"0"
        event = await anext(reader)
        position = reader.position(before=event)
        await client.truncate_stream(name, position)
        assert await read(client, name, end=TAIL) == [b"%d" % number for number in range(1, COUNT)]


@pytest.mark.slow
async def test_the_start_survives_a_kill(millrace_server: TestServer) -> None:
    """Behaviour 106."""
    name = "exact/restart"
    async with connect(millrace_server.address) as client:
        first, *_ = await one_block(client, name)
        await client.truncate_stream(name, cut_at(name, first, CUT))
    for end in (millrace_server.kill, millrace_server.stop):
        await asyncio.to_thread(end)
        await asyncio.to_thread(millrace_server.start)
        async with connect(millrace_server.address) as client:
            assert await read(client, name, end=TAIL) == [b"%d" % number for number in range(CUT, COUNT)]
            assert (await client.stream_info(name)).segments[0].start == (0, CUT)
