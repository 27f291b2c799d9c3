# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import random
import struct
from datetime import datetime

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import OffsetBeyondEndError, StreamNotFoundError
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.client.testing import TestServer
from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES
from millrace.model.block_packing import pack_block
from millrace.model.cut import HEAD, TAIL, StreamCut
from millrace.model.errors import BlockCorruptError, CutInvalidError, CutOrderError
from millrace.model.event_block import block_checksum
from millrace.model.policy import StreamConfig
from tests.client.read.streams import filled, read
from tests.client.scaling import filled as filled_over_epochs

pytestmark = pytest.mark.asyncio


@pytest.mark.both_loops
async def test_a_bounded_reader_returns_every_event_once_and_ends(client: Client, name: str) -> None:
    """Behaviour 27."""
    values = await filled(client, name)

    assert sorted(await read(client, name, end=TAIL)) == values


async def test_a_reader_that_stops_anywhere_is_continued_without_gap_or_repeat(client: Client, name: str) -> None:
    """Behaviour 26: a position is exact to the event; two cuts bound exactly what is between them."""
    values = await filled(client, name)
    dice = random.Random(5)
    seen: list[bytes] = []
    cut: millrace.Cut = HEAD
    between: list[bytes] = []
    while len(seen) < len(values):
        async with client.reader(name, start=cut, end=TAIL) as reader:
            wanted = dice.randint(1, 30)
            start = len(seen)
            async for event in reader:
                seen.append(event.value)
                if len(seen) - start == wanted:
                    break
            before, cut = cut, reader.position()
        between += await read(client, name, start=before, end=StreamCut.parse(str(cut)))

    assert sorted(seen) == values
    assert sorted(between) == values


async def test_arrow_batches_hold_the_same_events(client: Client, name: str) -> None:
    values = await filled(client, name)
    async with client.reader(name, end=TAIL) as reader:
        events = [event async for event in reader]
    async with client.reader(name, end=TAIL) as reader:
        first = await anext(reader)
        rows = [row async for batch in reader.arrow_batches() for row in batch.to_pylist()]
        cut = reader.position()

    assert sorted([first.value, *(row["value"] for row in rows)]) == values
    places = {(event.segment, event.offset, event.index): event for event in events}
    for row in rows:
        event = places[row["segment"], row["offset"], row["index"]]
        moment_us = round(row["timestamp"].timestamp() * 1_000_000)
        assert (row["value"], row["key"], moment_us) == (event.value, event.key, event.timestamp_us)
    assert cut == await client.stream_cut(name)


async def test_position_is_after_what_was_handed_out(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write_many([b"a", b"b", b"c"])
    async with client.reader(name, end=TAIL) as reader:
        assert reader.position() == await client.stream_cut(name).head()
        events = [await anext(reader), await anext(reader)]
        ((segment_id, place),) = reader.position().positions
        assert (segment_id, *place) == (events[1].segment, 0, 2)
        await anext(reader)
        assert reader.position() == await client.stream_cut(name)


async def test_next_events_hands_out_whole_blocks(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write_many([b"a", b"b", b"c"])
        await writer.write_many([b"d"])
    async with client.reader(name, end=TAIL) as reader:
        await anext(reader)
        assert [event.value for event in await reader.next_events()] == [b"b", b"c"]
        assert [event.value for event in await reader.next_events()] == [b"d"]
        assert await reader.next_events() == []


async def test_an_endless_reader_waits_and_ends_with_the_stream(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer, client.reader(name) as reader:
        waiting = asyncio.create_task(anext(reader))
        await writer.write(b"x")
        assert (await waiting).value == b"x"
        await client.seal_stream(name)
        with pytest.raises(StopAsyncIteration):
            await anext(reader)


async def test_a_cancelled_wait_loses_no_event(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer, client.reader(name) as reader:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(reader)
        await writer.write_many([b"a", b"b"])
        waiting = asyncio.create_task(anext(reader))
        await asyncio.sleep(0)
        waiting.cancel()
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        # The event may have been there already: then the wait was over before it could be cancelled.
        seen = [] if isinstance(outcome, BaseException) else [outcome.value]
        while len(seen) < 2:
            seen.append((await anext(reader)).value)
        assert seen == [b"a", b"b"]


async def test_blocks_larger_than_the_window_come_through(client: Client, name: str) -> None:
    """Behaviour 18: a reader has bounded memory, and still reads what is larger than its bound."""
    values = await filled(client, name, count=40, size=100_000)
    async with client.reader(name, end=TAIL, options=ReaderOptions(window_bytes=65536)) as reader:
        assert sorted([event.value async for event in reader]) == values


async def test_the_same_events_after_a_restart(millrace_server: TestServer, name: str) -> None:
    """Behaviour 17; and a reader in the middle of the stream continues where it was."""
    async with millrace.connect(millrace_server.address) as client:
        values = await filled(client, name, count=2000, size=2000)
        async with client.reader(name, end=TAIL, options=ReaderOptions(window_bytes=131072)) as reader:
            seen = [(await anext(reader)).value for _ in range(100)]
            await asyncio.to_thread(millrace_server.kill)
            await asyncio.to_thread(millrace_server.start)
            seen += [event.value async for event in reader]
        assert sorted(seen) == values


async def test_a_cut_at_a_time_is_before_the_first_event_of_that_time(client: Client, name: str) -> None:
    """Behaviour 26."""
    await filled(client, name, count=300)
    async with client.reader(name, end=TAIL) as reader:
        events = [event async for event in reader]
    for middle in (events[0], events[150], events[-1]):
        assert middle.timestamp_us is not None
        cut = await client.stream_cut(name).at_time(middle.timestamp_us)
        expected = sorted(event.value for event in events if (event.timestamp_us or 0) >= middle.timestamp_us)
        assert sorted(await read(client, name, start=cut, end=TAIL)) == expected
    assert await client.stream_cut(name, at_time=2**62) == await client.stream_cut(name)
    naive = datetime(2030, 1, 1)  # noqa: DTZ001  # without a zone on purpose: it is UTC
    assert await client.stream_cut(name, at_time=naive) == await client.stream_cut(name)


async def test_cuts_that_do_not_fit_are_refused(client: Client, name: str) -> None:
    await client.create_stream(name)
    segment_id = (await client.stream_info(name)).segments[0].segment_id
    for cut, error in [
        (StreamCut.of("other/one", {segment_id: (0, 0)}), CutInvalidError),
        (StreamCut.of(name, {segment_id + 1000: (0, 0)}), CutInvalidError),
        (StreamCut.of(name, {segment_id: (8, 0)}), OffsetBeyondEndError),
        (StreamCut.of(name, {segment_id: (0, 1)}), OffsetBeyondEndError),
    ]:
        with pytest.raises(error):
            await read(client, name, start=cut)
    with pytest.raises(StreamNotFoundError):
        await read(client, "tests/none")


async def test_a_start_after_the_end_is_refused(client: Client, name: str) -> None:
    """Behaviour 27: by the reader, by a plan of ranges, and naming both cuts."""
    await filled_over_epochs(client, name)
    first = await client.stream_cut(name).after_events(70)
    second = await client.stream_cut(name).after_events(170)
    with pytest.raises(CutOrderError) as caught:
        async with client.reader(name, start=second, end=first):
            pass
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)
    for start, end in ((TAIL, HEAD), (first, HEAD), (TAIL, second)):
        with pytest.raises(CutOrderError):
            async with client.reader(name, start=start, end=end):
                pass
        with pytest.raises(CutOrderError):
            await client.plan_ranges(name, start=start, end=end)
    for same in (HEAD, first, second, TAIL):
        async with client.reader(name, start=same, end=same) as reader:
            assert [event async for event in reader] == []


async def test_a_place_after_the_last_event_of_a_block_is_refused(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write_many([b"a", b"b"])
    segment_id = (await client.stream_info(name)).segments[0].segment_id
    with pytest.raises(CutInvalidError, match="has 2 events"):
        await read(client, name, start=StreamCut.of(name, {segment_id: (0, 3)}), end=TAIL)


async def test_bytes_that_are_no_block_are_named(client: Client, name: str) -> None:
    """Behaviour 49: garbage in a stream is a typed error that names segment and offset."""
    await client.create_stream(name)
    async with client.writer(name) as writer:
        stored = await writer.write(b"good")
    connection = await client._writes.connection()
    await connection.append(b"neither magic nor size" * 5, segment_id=stored.segment_id)

    async with client.reader(name) as reader:
        assert (await anext(reader)).value == b"good"
        place = reader.position().places[stored.segment_id].offset
        with pytest.raises(BlockCorruptError, match=f"segment {stored.segment_id} at offset {place}"):
            await anext(reader)


@pytest.mark.parametrize("way", ["one", "several"])
@pytest.mark.parametrize("is_arrow", [False, True])
async def test_a_block_that_cannot_be_handed_out_is_never_passed(
    client: Client, name: str, way: str, is_arrow: bool
) -> None:
    """Behaviour 49: whoever asks again meets the same error, and the position stays before the block."""
    await client.create_stream(name)
    async with client.writer(name) as writer:
        segment_id = (await writer.write(b"before", key="k")).segment_id
    block = pack_block([b"strange"], keys="ab")
    assert block.count(b"ab") == 1
    block[:] = block.replace(b"ab", b"\xff\xfe")  # which is not UTF-8
    struct.pack_into("<I", block, BLOCK_HEADER_SIZE_BYTES - 4, block_checksum(memoryview(block)))
    place = await (await client._writes.connection()).append(bytes(block), segment_id=segment_id)
    async with client.writer(name) as writer:
        await writer.write(b"after", key="k")

    reading = client.reader(name) if way == "one" else client.reader([name])
    async with reading as reader:
        assert (await anext(reader)).value == b"before"
        for _ in range(3):
            with pytest.raises(BlockCorruptError, match=f"segment {segment_id} at offset {place}"):
                await (anext(reader.arrow_batches()) if is_arrow else anext(reader))
            cut = reader.position() if isinstance(reader, Reader) else reader.positions()[name]
            assert cut.places[segment_id] == (place, 0)


async def test_a_closed_reader_still_knows_its_position(client: Client, name: str) -> None:
    await filled(client, name)
    async with client.reader(name) as reader:
        assert isinstance(reader, Reader)
        await anext(reader)
        before = reader.position()
    assert reader.position() == before


async def test_streams_are_created_listed_sealed_and_deleted(client: Client) -> None:
    """Behaviours 19 and 21."""
    names = [f"listing/{number}" for number in range(3)]
    for name in names:
        assert await client.create_stream(name)
        assert not await client.create_stream(name)
    assert [name async for name in client.list_streams("listing/")] == names
    with pytest.raises(millrace.StreamNotSealedError):
        await client.delete_stream(names[0])
    assert (await client.seal_stream(names[0])).sealed
    assert await client.delete_stream(names[0])
    assert not await client.delete_stream(names[0])
    with pytest.raises(StreamNotFoundError):
        await client.stream_info(names[0])
    info = await client.stream_info(names[1])
    assert info.configuration == StreamConfig()
    assert (info.segments[0].low, info.segments[0].high) == (0.0, 1.0)
