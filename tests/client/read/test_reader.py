# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import CutTruncatedError, OffsetBeyondEndError, StreamNotFoundError
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.client.testing import TestServer
from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES
from millrace.model.block_packing import pack_block
from millrace.model.cut import HEAD, TAIL, StreamCut
from millrace.model.errors import BlockCorruptError, CutInvalidError, CutOrderError, InvalidArgumentError
from millrace.model.event_block import block_checksum
from millrace.model.lineage import Lineage
from millrace.model.policy import ScalingPolicy, StreamConfig
from tests.client.scaling import check_order, scale
from tests.client.scaling import filled as filled_over_epochs
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


async def filled(client: Client, name: str, *, segments: int = 2, count: int = 200, size: int = 0) -> list[bytes]:
    """A stream with that many events in blocks of many sizes; return their values in the order of each key."""
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(segments)))
    values = [b"%06d" % number + b"." * size for number in range(count)]
    dice = random.Random(name)
    async with client.writer(name) as writer:
        place = 0
        while place < count:
            width = dice.randint(1, 20)
            writer.write_many(values[place : place + width], key=f"key-{place % 5}")
            place += width
    return values


async def read(
    client: Client, name: str, *, start: millrace.Cut = HEAD, end: millrace.Cut | None = None
) -> list[bytes]:
    async with client.reader(name, start=start, end=end) as reader:
        return [event.value async for event in reader]


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
    with pytest.raises(InvalidArgumentError):
        await client.stream_cut(name).at_time(datetime(2030, 1, 1))  # noqa: DTZ001  # without a zone on purpose


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


# --- a stream that was scaled ---


async def test_events_of_all_epochs_come_in_the_order_of_their_keys(client: Client, name: str) -> None:
    """Behaviours 22 and 27."""
    values = await filled_over_epochs(client, name)
    async with client.reader(name, end=TAIL) as reader:
        events = [event async for event in reader]
        assert reader.position() == await client.stream_cut(name)

    assert sorted(event.value for event in events) == values
    check_order(events)
    assert len({event.segment for event in events}) == 8


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
        assert left not in reader._lineage.by_id


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
            await writer.write(b"behind", key="k")
        with pytest.raises(CutTruncatedError, match=rf"{name}: segments \[{only.segment_id}\] .* HEAD") as caught:
            await take(reader, seen)
    assert caught.value.resume_at == head
    assert seen == values[: len(seen)]
    assert await read(client, name, start=caught.value.resume_at, end=TAIL) == [b"behind"]


async def test_a_reader_whose_stream_was_deleted_says_so(client: Client, name: str) -> None:
    """Behaviours 15 and 19: it waited at the tail, or had not come so far."""
    await filled(client, name, segments=1, size=10_000)
    async with (
        client.reader(name, start=TAIL) as waiting,
        client.reader(name, options=ReaderOptions(window_bytes=64 * 1024)) as behind,
    ):
        await anext(behind)
        next_event = asyncio.create_task(anext(waiting))
        await client.seal_stream(name)
        with pytest.raises(StopAsyncIteration):
            await next_event
        await client.delete_stream(name)
        with pytest.raises(StreamNotFoundError):
            await take_events(behind, [])


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
