"""Reading a stream that was scaled, or is scaled meanwhile."""

# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.client.testing import TestServer
from millrace.model.cut import HEAD, TAIL, StreamCut
from millrace.model.errors import CutInvalidError, CutOrderError
from millrace.model.policy import ScalingPolicy, StreamConfig
from tests.client.read.streams import read
from tests.client.scaling import check_order, scale
from tests.client.scaling import filled as filled_over_epochs

pytestmark = pytest.mark.asyncio


async def test_events_of_all_epochs_come_in_the_order_of_their_keys(client: Client, name: str) -> None:
    """Behaviours 22 and 27."""
    values = await filled_over_epochs(client, name)
    async with client.reader(name, end=TAIL) as reader:
        events = [event async for event in reader]
        assert reader.position() == await client.stream_cut(name)

    assert sorted(event.value for event in events) == values
    check_order(events)
    assert len({event.segment for event in events}) == 8


@pytest.mark.parametrize("key", [None, "key-3"])
async def test_a_reader_at_the_head_finds_what_follows_on_its_way(client: Client, name: str, key: str | None) -> None:
    """Behaviours 27 and 106: it knows the first segments with events, and learns of others when it has read these."""
    await client.create_stream(name)
    for _ in range(4):
        await scale(client, name)
    first = [segment.segment_id for segment in (await client.stream_info(name)).open_segments]
    values = await filled_over_epochs(client, name, scalings=5)
    async with client.reader(name, key=key) as reader:
        start = reader.position()
        wanted = [value for value in values if key is None or value.endswith(key.encode())]
        events = [await anext(reader) for _ in wanted]
        await scale(client, name)
        async with client.writer(name) as writer:
            await writer.write(b"%06d last" % len(values), key="key-3")
        events.append(await anext(reader))

    assert [segment_id for segment_id, _ in start.positions] == first
    assert sorted(event.value for event in events) == [*wanted, b"%06d last" % len(values)]
    check_order(events)


async def test_successors_come_only_after_all_predecessors(client: Client, name: str) -> None:
    """Behaviour 27."""
    await filled_over_epochs(client, name, scalings=4)
    lineage = (await client.stream_info(name)).lineage()
    seen: set[int] = set()
    async with client.reader(name, end=TAIL) as reader:
        async for event in reader:
            segment = lineage.by_id[event.segment]
            assert not any(segment.precedes(lineage.by_id[other]) for other in seen)
            seen.add(event.segment)


async def test_the_place_is_a_cut_at_every_event_and_can_be_started_from(client: Client, name: str) -> None:
    """Behaviours 26 and 27: what was read up to a place and what is read from it are everything, once."""
    values = await filled_over_epochs(client, name, per_epoch=25)
    info = await client.stream_info(name)
    cuts = []
    async with client.reader(name, end=TAIL) as reader:
        async for _ in reader:
            cuts.append(reader.position())
            info.lineage().check_cut(cuts[-1].places)
    seen = []
    starts: list[millrace.Cut] = [HEAD, *cuts[9::10]]
    ends: list[millrace.Cut] = [*cuts[9::10], TAIL]
    for start, end in zip(starts, ends, strict=True):
        seen.append(await read(client, name, start=start, end=end))
    assert [len(part) for part in seen[:10]] == [10] * 10
    assert sorted(value for part in seen for value in part) == values
    for place, cut in enumerate(cuts[::13]):
        assert len(await read(client, name, start=HEAD, end=cut)) == place * 13 + 1


async def test_batches_follow_successors_too(client: Client, name: str) -> None:
    values = await filled_over_epochs(client, name)
    async with client.reader(name, end=TAIL) as reader:
        first = await anext(reader)
        rows = [first.value]
        async for batch in reader.arrow_batches():
            rows += batch.column("value").to_pylist()
            (await client.stream_info(name)).lineage().check_cut(reader.position().places)
    assert sorted(rows) == values
    assert reader.position() == await client.stream_cut(name)


async def test_a_reader_continues_while_the_stream_is_scaled(client: Client, name: str) -> None:
    """Behaviour 22: an endless reader finds the successors by itself, and ends with the stream."""
    await client.create_stream(name)
    async with client.writer(name) as writer, client.reader(name) as reader:
        for number in range(30):
            await writer.write(b"%d" % number, key="k")
            assert int((await anext(reader)).value) == number
            if number % 5 == 4:
                await scale(client, name)
        await scale(client, name)
        waiting = asyncio.create_task(anext(reader))
        await writer.write(b"30", key="k")
        assert int((await waiting).value) == 30
        await client.seal_stream(name)
        with pytest.raises(StopAsyncIteration):
            await anext(reader)
        assert reader.position() == await client.stream_cut(name)


async def test_the_windows_of_all_segments_stay_within_the_bound(client: Client, name: str) -> None:
    """Also after a split; a merge brings the whole window back."""
    await client.create_stream(name)
    info = await client.stream_info(name)
    window_bytes = 1 << 20
    options = ReaderOptions(window_bytes=window_bytes)
    async with (
        client.writer(name) as writer,
        Reader(client._reads, info, start=info.head(), end=None, options=options) as reader,
    ):
        for segment_count in (1, 3, 1):
            await writer.write(b"x", key="k")
            await anext(reader)
            windows = [source.window_bytes for source in reader._sources.values()]
            assert windows == [window_bytes // segment_count] * segment_count
            await scale(client, name)


async def test_an_end_cut_in_an_earlier_epoch_ends_the_reader_there(client: Client, name: str) -> None:
    """Behaviour 27."""
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write_many([b"a", b"b", b"c"], key="k")
        tail = await client.stream_cut(name)
        await scale(client, name)
        await writer.write_many([b"d"], key="k")
    assert await read(client, name, end=tail) == [b"a", b"b", b"c"]
    assert await read(client, name, start=tail, end=TAIL) == [b"d"]
    with pytest.raises(CutOrderError):
        await read(client, name, start=TAIL, end=tail)


async def test_a_cut_that_mixes_before_and_after_is_none(client: Client, name: str) -> None:
    """Behaviour 26."""
    await filled_over_epochs(client, name, scalings=3)
    info = await client.stream_info(name)
    by_epoch = {epoch: [part for part in info.segments if part.epoch == epoch] for epoch in range(4)}
    mixed = [*by_epoch[1][:2], by_epoch[3][2]]
    with pytest.raises(CutInvalidError, match="before the cut and after it"):
        await read(client, name, start=StreamCut.of(name, {part.segment_id: (0, 0) for part in mixed}))


async def test_a_cut_at_a_time_goes_by_the_times_of_the_events(client: Client, name: str) -> None:
    """Behaviour 26: whatever the clock said when they were written, in blocks of any order."""
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(1)))
    far_us = 4_000_000_000_000_000
    stamps = [far_us + 50, 10, far_us + 20, 30, far_us + 90, far_us + 70]
    async with client.writer(name) as writer:
        for number, stamp in enumerate(stamps):
            await writer.write(b"%d" % number, timestamp_us=stamp)
    for timestamp_us, first in ((0, 0), (far_us + 50, 0), (far_us + 51, 4), (far_us + 90, 4)):
        cut = await client.stream_cut(name, at_time=timestamp_us)
        assert await read(client, name, start=cut, end=TAIL) == [b"%d" % number for number in range(first, 6)]
    assert await client.stream_cut(name, at_time=far_us + 91) == await client.stream_cut(name)


@pytest.mark.slow
async def test_a_reader_continues_over_a_kill_in_the_middle_of_a_scale(millrace_server: TestServer, name: str) -> None:
    """Behaviours 22 and 27."""
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name)
        async with client.writer(name) as writer, client.reader(name) as reader:
            for number in range(5):
                await writer.write(b"%d" % number, key="k")
                scaling = asyncio.create_task(scale(client, name))
                await asyncio.to_thread(millrace_server.kill)
                await asyncio.to_thread(millrace_server.start)
                await scaling
                assert int((await anext(reader)).value) == number
