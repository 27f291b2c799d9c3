"""Reading a stream of which a part, or all, is truncated or deleted."""

# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace.client.client import Client
from millrace.client.errors import CutTruncatedError, StreamNotFoundError
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.model.cut import HEAD, TAIL, StreamCut
from millrace.model.lineage import Lineage
from millrace.model.policy import ScalingPolicy, StreamConfig
from millrace.model.stream import StreamSegment
from tests.client.read.streams import filled, read
from tests.client.scaling import check_order, scale
from tests.client.scaling import filled as filled_over_epochs
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


async def test_a_cut_before_the_truncation_says_what_is_lost(client: Client, name: str) -> None:
    """Behaviour 26."""
    values = await filled(client, name, segments=1)
    head = await client.stream_cut(name).head()
    async with client.reader(name, end=TAIL) as reader:
        for _ in range(100):
            await anext(reader)
        middle = reader.position()
    info = await client.truncate_stream(name, middle)
    assert info.segments[0].start_offset == middle.positions[0][1].offset

    with pytest.raises(CutTruncatedError, match="bytes are lost") as caught:
        await read(client, name, start=head)
    assert caught.value.start_offset == info.segments[0].start_offset
    assert await read(client, name, start=middle, end=TAIL) == values[100:]
    assert (await read(client, name, end=TAIL))[-100:] == values[100:]


async def test_a_cut_through_segments_that_are_deleted_says_so(client: Client, name: str) -> None:
    """Behaviour 26."""
    values = await filled_over_epochs(client, name, scalings=2)
    head = await client.stream_cut(name).head()
    middle = await client.stream_cut(name).at_time(90)
    after = await client.stream_cut(name).at_time(150)
    await client.truncate_stream(name, after)

    for gone in (head, middle):
        with pytest.raises(CutTruncatedError, match="are truncated"):
            await read(client, name, start=gone)
    assert set(await read(client, name, end=TAIL)) >= set(values[150:])
    assert sorted(await read(client, name, start=after, end=TAIL)) == values[150:]
    assert (await client.stream_cut(name).head()).places.keys() == after.places.keys()


async def test_truncating_between_epochs_leaves_a_stream_that_can_be_read(client: Client, name: str) -> None:
    """Wherever the cut goes, head and tail cover the keys once, and what is after the cut is left."""
    values = await filled_over_epochs(client, name, per_epoch=20)
    for number in range(0, 80, 7):
        cut = await client.stream_cut(name).at_time(number)
        await client.truncate_stream(name, cut)
        info = await client.stream_info(name)
        info.lineage().check_cut(info.head().places)
        assert sorted(await read(client, name, start=cut, end=TAIL)) == values[number:]
        assert set(await read(client, name, end=TAIL)) >= set(values[number:])


async def test_empty_segments_after_a_truncation_stay(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write_many([b"a", b"b"], key="k")
        for _ in range(4):
            await scale(client, name)
        await writer.write(b"c", key="k")
    await client.truncate_stream(name, HEAD)
    assert await read(client, name, end=TAIL) == [b"a", b"b", b"c"]


async def test_a_reader_does_not_continue_in_another_stream_of_that_name(client: Client, name: str) -> None:
    """Behaviour 19."""
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write(b"old")
    old = await client.stream_info(name)
    async with client.reader(name) as reader:
        assert (await anext(reader)).value == b"old"
        await client.seal_stream(name)
        await client.delete_stream(name)
        await client.create_stream(name)
        reader._lineage, reader._sealed = Lineage(old.segments), False
        with pytest.raises(StreamNotFoundError):
            await reader._ask_lineage()


async def test_a_reader_that_read_what_is_truncated_continues(client: Client, name: str) -> None:
    """Its segment is gone, its successors are left: nothing was missed."""
    await client.create_stream(name)
    async with client.writer(name) as writer, client.reader(name) as reader:
        await writer.write(b"0", key="k")
        assert (await anext(reader)).value == b"0"
        await scale(client, name)
        at_end, tail = reader.position(), await client.stream_cut(name)
        await client.truncate_stream(name, tail)
        assert at_end != tail
        assert await read(client, name, start=at_end, end=tail) == []  # the same place
        await writer.write(b"1", key="k")
        assert (await anext(reader)).value == b"1"


async def test_a_reader_whose_next_bytes_are_truncated_says_what_is_lost_and_where_to_resume(
    client: Client, name: str
) -> None:
    """Behaviours 16 and 26: it hands out what it had fetched; the place in the other segment stays."""
    values = await filled(client, name, size=10_000)
    tail = await client.stream_cut(name)
    (kept, _), (cut_off, cut_end) = tail.positions
    async with client.reader(name, options=ReaderOptions(window_bytes=64 * 1024)) as reader:
        seen = [(await anext(reader)).value]
        await client.truncate_stream(name, StreamCut.of(name, {kept: (0, 0), cut_off: cut_end}))
        with pytest.raises(CutTruncatedError, match=f"{name}.*segment {cut_off} .* bytes are lost.*HEAD") as caught:
            await take_events(reader, seen)
        place = reader.position()
        assert caught.value.start_offset == cut_end.offset
        assert f"the cut is at {place.places[cut_off].offset}," in str(caught.value)
        assert caught.value.resume_at == StreamCut.of(name, {kept: place.places[kept], cut_off: cut_end})
        with pytest.raises(CutTruncatedError):  # it stays where it is
            await anext(reader)
    seen += await read(client, name, start=caught.value.resume_at, end=TAIL)
    assert len(set(seen)) == len(seen) < len(values)
    lost = set(values) - set(seen)
    assert sorted([*seen, *lost]) == values


@pytest.mark.parametrize("at", [50, 100, 150])
async def test_a_reader_from_the_head_starts_where_the_head_is_when_it_starts(
    client: Client, name: str, at: int
) -> None:
    """Truncated between asking what the stream is and reading: nobody had a place yet that could be lost."""
    values = await filled_over_epochs(client, name, scalings=2)
    info = await client.stream_info(name)
    end = await client.stream_cut(name)
    cut = await client.stream_cut(name).at_time(at)
    await client.truncate_stream(name, cut)
    for last in (end, info.head()):
        reader = Reader(client._reads, info, start=info.head(), end=last, options=ReaderOptions(), is_from_head=True)
        async with reader:
            events = [event async for event in reader]
        seen = sorted(event.value for event in events)
        if last == end:
            check_order(events)
            assert seen[-len(values[at:]) :] == values[at:]
            assert seen == sorted(await read(client, name, end=end))
        else:
            assert seen == []
    with pytest.raises(CutTruncatedError):
        async with Reader(client._reads, info, start=info.head(), end=end, options=ReaderOptions()) as other:
            await anext(other)


async def test_a_segment_that_is_left_while_its_stream_is_asked_for_may_be_deleted(client: Client, name: str) -> None:
    """Another segment ended, so the stream is asked for; meanwhile the reader continues where it knew the way."""
    await client.create_stream(name)
    async with client.writer(name) as writer, client.reader(name) as reader:
        await writer.write(b"0", key="k")
        (left,) = reader.position().places
        await anext(reader)
        await scale(client, name)
        await until(lambda: reader._sources[left].finished)
        await writer.write_many([b"1"] * 20, keys=[f"key-{number}" for number in range(20)])
        await client.truncate_stream(name, TAIL)
        assert left not in (await client.stream_cut(name).head()).places
        asking = asyncio.create_task(reader._ask_lineage())
        await asyncio.sleep(0)
        reader._sources.pop(left).close()
        del reader._places[left]
        await asking
        opened = (await client.stream_info(name)).open_segments
        assert {part.segment_id for part in reader._lineage.tail()} == {part.segment_id for part in opened}


async def take_events(reader: Reader, into: list[bytes]) -> None:
    async for event in reader:
        into += [event.value]


async def take_batches(reader: Reader, into: list[bytes]) -> None:
    async for batch in reader.arrow_batches():
        into += batch.column("value").to_pylist()


@pytest.mark.parametrize("take", [take_events, take_batches])
async def test_a_reader_whose_next_segment_is_deleted_says_so(
    client: Client, name: str, take: Callable[[Reader, list[bytes]], Awaitable[None]]
) -> None:
    """Behaviour 26: the segment was replaced, and truncated away before it was read."""
    values = await filled(client, name, segments=1, size=10_000)
    (only,) = (await client.stream_info(name)).segments
    async with client.reader(name, options=ReaderOptions(window_bytes=64 * 1024)) as reader:
        seen = [(await anext(reader)).value]
        await scale(client, name)
        async with client.writer(name) as writer:
            await writer.write(b"lost", key="k")
            head = await client.stream_cut(name)
            await client.truncate_stream(name, head)
            await writer.write(b"after", key="k")
        with pytest.raises(CutTruncatedError, match=rf"{name}: segments \[{only.segment_id}\] .* HEAD") as caught:
            await take(reader, seen)
    assert caught.value.resume_at == head
    assert seen == values[: len(seen)]
    assert await read(client, name, start=caught.value.resume_at, end=TAIL) == [b"after"]


async def test_a_reader_whose_stream_was_deleted_says_so(client: Client, name: str) -> None:
    """Behaviours 15 and 19: it waited at the tail, or had not come so far."""
    await filled(client, name, segments=1, size=10_000)
    async with (
        client.reader(name, start=TAIL) as waiting,
        client.reader(name, options=ReaderOptions(window_bytes=64 * 1024)) as late,
    ):
        await anext(late)
        next_event = asyncio.create_task(anext(waiting))
        await client.seal_stream(name)
        with pytest.raises(StopAsyncIteration):
            await next_event
        await client.delete_stream(name)
        with pytest.raises(StreamNotFoundError):
            await take_events(late, [])


async def test_a_successor_that_was_truncated_is_not_skipped(client: Client, name: str) -> None:
    """Behaviour 26, for a slow reader: a neighbour ends after the successor, which it knows, was replaced and lost."""
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(2)))
    low, high = (await client.stream_info(name)).open_segments
    low_key, high_key = (next(key for key in map(str, range(99)) if part.holds(key)) for part in (low, high))

    async def write(*values: bytes, key: str) -> None:
        async with client.writer(name) as writer:
            for value in values:
                await writer.write(value, key=key)  # a block for each

    async def replace(part: StreamSegment) -> StreamSegment:
        info = await client.scale_stream(name, seal=[part.segment_id], ranges=[(part.low, part.high)])
        return next(each for each in info.open_segments if each.key_range == part.key_range)

    await write(*[b"low"] * 100, key=low_key)
    await write(b"high", key=high_key)
    successor = await replace(low)
    async with client.reader(name) as reader:
        while (await anext(reader)).value != b"high":
            await client.stream_info(name)  # while the blocks of both arrive
        await replace(high)
        last = await replace(successor)
        await write(b"lost", key=low_key)
        tail = await client.stream_cut(name).tail()
        await client.truncate_stream(
            name, StreamCut.of(name, {last.segment_id: tail.places[last.segment_id], high.segment_id: (0, 0)})
        )
        await write(b"left", key=low_key)
        await client.seal_stream(name)

        async def drain() -> None:
            async for _ in reader:
                await client.stream_info(name)  # while the reader asks what has replaced the neighbour

        with pytest.raises(CutTruncatedError, match="are truncated"):
            await drain()
