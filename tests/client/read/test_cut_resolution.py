import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import CutTruncatedError, OffsetBeyondEndError, SegmentNotFoundError
from millrace.client.read.cut_resolution import Distance
from millrace.client.read.time_cuts import start_at_time
from millrace.model.cut import HEAD, TAIL, StreamCut
from millrace.model.errors import BlockCorruptError, CutInvalidError, InvalidArgumentError
from millrace.model.event import Event, EventPosition
from millrace.model.stream import StreamInfo
from tests.client.scaling import check_order, filled

pytestmark = pytest.mark.asyncio


async def read(client: Client, name: str, *, start: millrace.Cut = HEAD, end: millrace.Cut = TAIL) -> list[Event]:
    async with client.reader(name, start=start, end=end) as reader:
        events = [event async for event in reader]
    check_order(events)
    return events


async def test_a_cut_at_a_time_spans_epochs(client: Client, name: str) -> None:
    """Behaviour 26: the first event at or after it, of each key, wherever scaling has put it."""
    values = await filled(client, name)
    for number in (0, 1, 59, 60, 61, 119, 150, 200, 239, 240):
        cut = await client.stream_cut(name).at_time(number)
        assert sorted(event.value for event in await read(client, name, start=cut)) == values[number:]
        assert sorted(event.value for event in await read(client, name, end=cut)) == values[:number]
    assert await client.stream_cut(name).at_time(240) == await client.stream_cut(name)
    assert await client.stream_cut(name).at_time(-1) == await client.stream_cut(name).head()


async def test_so_many_events_after_a_cut(client: Client, name: str) -> None:
    values = await filled(client, name)
    head, tail = await client.stream_cut(name).head(), await client.stream_cut(name)
    for count in (0, 1, 7, 60, 61, 130, 239, 240, 1000):
        cut = await client.stream_cut(name).after_events(count)
        before, after = await read(client, name, end=cut), await read(client, name, start=cut)
        assert len(before) == min(count, 240)
        assert sorted(event.value for event in before + after) == values
        assert (await client.distance(HEAD, cut)).events == len(before)
        assert (await client.distance(cut, TAIL)).events == len(after)
        further = await client.stream_cut(name).after_events(25, start=cut)
        assert (await client.distance(cut, further)).events == min(25, len(after))
    assert await client.stream_cut(name).after_events(0) == head
    assert await client.stream_cut(name).after_events(240) == tail


async def test_about_so_many_bytes_after_a_cut(client: Client, name: str) -> None:
    await filled(client, name)
    info = await client.stream_info(name)
    largest = max(event.offset for event in await read(client, name)) and 4096
    for size_bytes in (0, 500, 3000, info.size_bytes - 1, info.size_bytes, 1 << 40):
        cut = await client.stream_cut(name).after_bytes(size_bytes)
        reached = (await client.distance(HEAD, cut)).size_bytes
        assert min(size_bytes, info.size_bytes) - 3 * largest <= reached <= size_bytes
        assert all(place.event_index == 0 for _, place in cut.positions)
    assert await client.stream_cut(name).after_bytes(1 << 40) == await client.stream_cut(name)


async def test_a_distance_has_a_direction(client: Client, name: str) -> None:
    await filled(client, name)
    info = await client.stream_info(name)
    middle = await client.stream_cut(name).after_events(100)
    whole = await client.distance(HEAD, TAIL, stream=name)
    assert whole == Distance(size_bytes=info.size_bytes, events=240)
    there, back = await client.distance(HEAD, middle), await client.distance(middle, HEAD)
    assert (there.size_bytes, there.events) == (-back.size_bytes, -back.events) == (there.size_bytes, 100)
    assert await client.distance(middle, middle) == Distance(size_bytes=0, events=0)
    with pytest.raises(InvalidArgumentError):
        await client.distance(HEAD, TAIL)
    with pytest.raises(InvalidArgumentError):
        await client.distance(middle, StreamCut.of("other/one", {1: (0, 0)}))
    for count in (-1, -100):
        with pytest.raises(InvalidArgumentError):
            await client.stream_cut(name).after_events(count)
        with pytest.raises(InvalidArgumentError):
            await client.stream_cut(name).after_bytes(count)


async def test_an_event_is_fetched_by_its_position(client: Client, name: str) -> None:
    for event in (await filled(client, name), await read(client, name))[1][::17]:
        assert await client.fetch_event(event.position) == event
        assert await client.fetch_event(EventPosition(*event.position)) == event


async def test_a_position_without_an_event_is_refused(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        large = await writer.write(b"x" * 1_000_000)
        last = await writer.write_many([b"a", b"b"])
    assert last.offset is not None
    assert (await client.fetch_event(EventPosition(large.segment_id, 0, 0))).value == b"x" * 1_000_000
    assert (await client.fetch_event(EventPosition(large.segment_id, last.offset, 1))).value == b"b"
    tail = (await client.stream_info(name)).segments[0].length
    for position, error in [
        (EventPosition(large.segment_id, last.offset, 2), CutInvalidError),
        (EventPosition(large.segment_id, tail, 0), OffsetBeyondEndError),
        (EventPosition(large.segment_id, tail + 8, 0), OffsetBeyondEndError),
        (EventPosition(large.segment_id, 8, 0), BlockCorruptError),
        (EventPosition(large.segment_id + 10**6, 0, 0), SegmentNotFoundError),
    ]:
        with pytest.raises(error):
            await client.fetch_event(position)


async def test_a_search_continues_in_what_is_left_when_the_stream_is_truncated_under_it(
    client: Client, name: str
) -> None:
    """Between asking what the stream is, and looking into its segments."""
    values = await filled(client, name, scalings=2)
    start = await client.stream_cut(name).after_events(0)
    places = [await client.stream_cut(name).at_time(number) for number in (100, 150)]

    async def search(info: StreamInfo) -> StreamCut:
        if places:
            await client.truncate_stream(name, places.pop(0))
        return await start_at_time(client._reads, info, 0)

    cut = await client._cuts.search(name, search)
    assert not places
    assert sorted(event.value for event in await read(client, name, start=cut))[-30:] == values[150:]
    assert cut == await client.stream_cut(name).head() == await client.stream_cut(name).after_events(0)
    with pytest.raises(CutTruncatedError):
        await client.stream_cut(name).after_events(0, start=start)


async def test_a_search_that_finds_a_hole_where_nothing_was_truncated_fails(client: Client, name: str) -> None:
    await client.create_stream(name)

    async def search(info: StreamInfo) -> StreamCut:
        raise SegmentNotFoundError("there is none")

    with pytest.raises(SegmentNotFoundError):
        await client._cuts.search(name, search)
