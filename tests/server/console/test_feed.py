"""What a feed says: each event once from any place on, and what else there is to say."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

import millrace
from applications.change_feed.messages import Message, Messages
from millrace.model.cut import CutChoice
from millrace.server.app import Server
from millrace.server.console import feed as feed_module
from millrace.server.console import feed_places
from millrace.server.console.counters import FeedCounters
from millrace.server.console.feed import Feed, FeedOverError, FeedRequest
from millrace.server.console.feed_places import FeedMemory, FeedPlace, FeedPlaces
from millrace.server.console.listener import Uptake
from millrace.server.console.options import WINDOW_BYTES_MIN, FeedOptions
from millrace.server.console.sse import KEEP_ALIVE
from millrace.wire.limits import MIB
from tests.support.folders import tmp_path
from tests.support.servers import SMALL_WAL, server_options
from tests.support.waiting import PATIENCE_S, until

__all__ = ["tmp_path"]

STREAM = "shop/orders"
LARGE_COUNT = 3
KEYS = [f"customer-{number}" for number in range(7)]


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(server_options(tmp_path)) as running:
        yield running


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[millrace.Client]:
    async with millrace.connect(server.address) as connected:
        yield connected


class Fed:
    """A feed that is read."""

    def __init__(
        self,
        server: Server,
        start: CutChoice,
        *,
        key: str | None = None,
        is_resumed: bool = False,
        keepalive_s: float = PATIENCE_S,
        places: FeedPlaces | None = None,
    ) -> None:
        self.counters = FeedCounters()
        self._messages = Messages()
        self._read: list[Message] = []
        options = FeedOptions(window_bytes=WINDOW_BYTES_MIN, keepalive_s=keepalive_s)
        places = FeedPlaces(options) if places is None else places
        place = FeedPlace("10.0.0.1", Uptake(), lambda: None)
        assert places.open(place)
        self.feed = Feed(
            FeedRequest(stream=STREAM, start=start, key=key, is_resumed=is_resumed),
            address=server.address,
            token="",
            options=options,
            counters=self.counters,
            memory=FeedMemory(places, place),
        )

    async def __aenter__(self) -> "Fed":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.feed.aclose()

    @property
    def place(self) -> str:
        return self._messages.last_id

    async def chunk(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            chunk = await anext(self.feed)
        self._read += self._messages.read(chunk.splitlines(keepends=True))
        return chunk

    async def next(self, count: int) -> list[Message]:
        """So many messages."""
        while len(self._read) < count:
            await self.chunk()
        found, self._read = self._read[:count], self._read[count:]
        return found

    async def rest(self) -> list[Message]:
        """All messages until the feed ends."""
        with suppress(StopAsyncIteration):
            while True:
                await self.chunk()
        return self._read


async def create(client: millrace.Client, segments: int = 2) -> None:
    scaling = millrace.ScalingPolicy.fixed(segments)
    await client.create_stream(STREAM, millrace.StreamConfig(scaling=scaling))


async def write(client: millrace.Client, numbers: Sequence[int], *, key: str | None = None) -> None:
    """Write numbers under keys in turn, a few of one key in each block."""
    async with client.writer(STREAM) as writer:
        for turn, each in enumerate(KEYS if key is None else [key]):
            if values := [b"%d" % number for number in numbers if key is not None or number % len(KEYS) == turn]:
                await writer.write_many(values, key=each)


async def write_much(client: millrace.Client) -> None:
    """Write a hundred events, far more than a feed fetches ahead."""
    async with client.writer(STREAM) as writer:
        for _ in range(100):
            await writer.write(bytes(10_000), key="k")


async def scale(client: millrace.Client, ranges: Sequence[tuple[float, float]]) -> None:
    info = await client.stream_info(STREAM)
    await client.scale_stream(STREAM, seal=[part.segment_id for part in info.open_segments], ranges=list(ranges))


def numbers_of(messages: Sequence[Message]) -> list[int]:
    return [int(message.content()["value"]) for message in messages if message.event == "message"]


def check_once_and_in_order(messages: Sequence[Message], count: int) -> None:
    assert sorted(numbers_of(messages)) == list(range(count))
    of_key = defaultdict[str, list[int]](list)
    for message in messages:
        of_key[message.content()["key"]].append(int(message.content()["value"]))
    assert all(numbers == sorted(numbers) for numbers in of_key.values())


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_from_the_place_after_each_event_on_nothing_is_missing_or_twice(
    server: Server, client: millrace.Client
) -> None:
    """Behaviours 22, 26 and 27: inside of blocks, at their ends, and over segments that split and merge."""
    await create(client)
    await write(client, range(30))
    await scale(client, [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
    await write(client, range(30, 45))
    await scale(client, [(0.0, 1.0)])
    await write(client, range(45, 60))
    await client.seal_stream(STREAM)
    async with Fed(server, millrace.HEAD) as fed:
        await fed.chunk()
        start = fed.place
        *messages, end = await fed.rest()
        assert fed.counters.events_total == 60
    check_once_and_in_order(messages, 60)
    assert (end.event, end.content()) == ("end", {"reason": "sealed"})

    for count, place in enumerate([start, *(message.last_id for message in messages)][:-1]):
        async with Fed(server, millrace.StreamCut.parse(place), is_resumed=True) as again:
            *others, last = await again.rest()
        assert last.event == "end"
        check_once_and_in_order([*messages[:count], *others], 60)
    for place in (messages[-1].last_id, end.last_id):
        async with Fed(server, millrace.StreamCut.parse(place), is_resumed=True) as over:
            with pytest.raises(FeedOverError):
                await over.chunk()


@pytest.mark.asyncio
async def test_what_comes_later_is_said_when_it_comes(server: Server, client: millrace.Client) -> None:
    """The place is known before the first event: who is cut off until then misses nothing."""
    await create(client)
    await write(client, range(7))
    async with Fed(server, millrace.TAIL) as fed, Fed(server, millrace.TAIL) as cut_off:
        for each in (fed, cut_off):
            assert b"retry: 2000\n" in await each.chunk()
        place = millrace.StreamCut.parse(cut_off.place)
        await write(client, range(7, 14))
        assert sorted(numbers_of(await fed.next(7))) == list(range(7, 14))
    async with Fed(server, place, is_resumed=True) as fed:
        assert sorted(numbers_of(await fed.next(7))) == list(range(7, 14))


@pytest.mark.asyncio
async def test_only_the_events_of_a_key(server: Server, client: millrace.Client) -> None:
    """The place moves with what is passed over; an end of the stream is an end for the key."""
    await create(client)
    await write(client, range(21))
    async with Fed(server, millrace.HEAD, key=KEYS[3], keepalive_s=0.05) as fed:
        messages = await fed.next(3)
        assert numbers_of(messages) == [3, 10, 17]
        async with Fed(server, millrace.StreamCut.parse(messages[0].last_id), key=KEYS[3], is_resumed=True) as again:
            assert numbers_of(await again.next(2)) == [10, 17]
        while await fed.chunk() != KEEP_ALIVE:
            pass
        before = fed.place
        # Another key of the same segment, found by trying.
        for number, key in enumerate(KEYS):
            await write(client, [21 + number], key=key if key != KEYS[3] else "another")
        while fed.place == before:
            assert b"data" not in await fed.chunk()
        await client.seal_stream(STREAM)
        (end,) = await fed.rest()
    async with Fed(server, millrace.StreamCut.parse(end.last_id), key=KEYS[3], is_resumed=True) as over:
        with pytest.raises(FeedOverError):
            await over.chunk()


@pytest.mark.asyncio
async def test_a_place_that_was_truncated_is_told_and_the_rest_follows(server: Server, client: millrace.Client) -> None:
    """Behaviour 26: never a silent gap."""
    await create(client, 1)
    await write(client, range(7))
    start = await client.stream_cut(STREAM)
    await write(client, range(7, 14))
    resume_at = await client.stream_cut(STREAM)
    await client.truncate_stream(STREAM, resume_at)
    await write(client, range(14, 21))
    async with Fed(server, start, is_resumed=True) as fed:
        truncated, *messages = await fed.next(8)
    assert truncated.event == "truncated"
    assert truncated.content()["resume_at"] == truncated.last_id == str(resume_at)
    assert "truncated" in truncated.content()["error"]
    assert numbers_of(messages) == list(range(14, 21))


@pytest.mark.asyncio
async def test_a_truncation_under_a_feed_is_told(server: Server, client: millrace.Client) -> None:
    await create(client, 1)
    await write_much(client)
    async with Fed(server, await client.stream_cut(STREAM, after_events=1)) as fed:
        await fed.chunk()
        await client.truncate_stream(STREAM, millrace.TAIL)
        await write(client, [1], key="k")
        count = 0
        while (await fed.next(1))[0].event == "message":
            count += 1
        assert count < 99, "the next one is what tells of the truncation"
        assert numbers_of(await fed.next(1)) == [1]


@pytest.mark.asyncio
async def test_a_stream_that_is_deleted_is_an_end(server: Server, client: millrace.Client) -> None:
    await create(client, 1)
    await write_much(client)
    async with Fed(server, millrace.HEAD) as fed:
        await fed.chunk()
        start = fed.place
        await client.seal_stream(STREAM)
        await client.delete_stream(STREAM)
        *messages, end = await fed.rest()
    assert len(messages) < 100
    assert (end.event, end.content()["reason"]) == ("end", "deleted")
    assert end.last_id == (messages[-1].last_id if messages else start)


@pytest.mark.asyncio
async def test_what_is_no_event_is_told_and_ends_the_feed(server: Server, client: millrace.Client) -> None:
    await create(client, 1)
    async with client.byte_writer(STREAM) as writer:
        await writer.write(bytes(1000))
    async with Fed(server, millrace.HEAD) as fed:
        (failed,) = await fed.rest()
    assert failed.event == "failed"
    assert "BlockCorruptError" in failed.content()["error"]


@pytest.mark.asyncio
async def test_what_cannot_be_read_is_refused_before_anything_is_said(server: Server, client: millrace.Client) -> None:
    await create(client, 1)
    strange = millrace.StreamCut.of(STREAM, {999: (0, 0)})
    async with Fed(server, strange) as fed:
        with pytest.raises(millrace.CutInvalidError):
            await fed.chunk()
    await client.seal_stream(STREAM)
    await client.delete_stream(STREAM)
    async with Fed(server, millrace.HEAD) as fed:
        with pytest.raises(millrace.StreamNotFoundError):
            await fed.chunk()


@pytest.mark.asyncio
async def test_many_small_events_of_a_block_are_sent_together(server: Server, client: millrace.Client) -> None:
    await create(client, 1)
    async with client.writer(STREAM) as writer:
        _ = writer.write_many([b"%d" % number for number in range(2000)], key="k")
    async with Fed(server, millrace.HEAD) as fed:
        await fed.chunk()
        first = await fed.chunk()
        assert 64 << 10 <= len(first) < 65 << 10
        assert [message.content()["index"] for message in await fed.next(2000)] == list(range(2000))


@pytest.mark.asyncio
async def test_a_feed_that_rests_between_any_two_chunks_sends_each_event_once(
    server: Server, client: millrace.Client
) -> None:
    """Behaviour 104: what it held is fetched again from its position, also in the middle of a block."""
    await create(client, segments=1)
    values = [bytes([65 + number]) * 20_000 for number in range(9)]
    async with client.writer(STREAM) as writer:
        for start in (0, 3, 6):  # blocks of two chunks
            await writer.write_many(values[start : start + 3], key="k")
            await writer.flush()
    await client.seal_stream(STREAM)
    async with Fed(server, millrace.HEAD) as fed:
        with suppress(StopAsyncIteration):
            while True:
                await fed.chunk()
                await fed.feed.rest()
        messages = await fed.rest()
        assert [message.content()["value"] for message in messages[:-1]] == [value.decode() for value in values]
        assert messages[-1].event == "end"
        assert fed.counters.events_total == len(values)


@pytest_asyncio.fixture
async def large(tmp_path: Path) -> AsyncIterator[Server]:
    """A server with a sealed stream of blocks that are larger than a feed fetches ahead."""
    wal = replace(SMALL_WAL, file_size_bytes=8 * MIB, batch_size_bytes_max=4 * MIB, run_size_bytes_max=4 * MIB)
    async with Server(server_options(tmp_path, wal=wal)) as running:
        async with millrace.connect(running.address) as client:
            await create(client, segments=1)
            async with client.writer(STREAM) as writer:
                for _ in range(LARGE_COUNT):
                    await writer.write(bytes(4 * WINDOW_BYTES_MIN), key="k")
                    await writer.flush()
            await client.seal_stream(STREAM)
        yield running


@pytest.mark.asyncio
async def test_a_large_block_that_comes_slowly_is_sent(large: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 104: the feed waits until the block has come, however long the store takes."""
    monkeypatch.setattr(feed_module, "IDLE_S", 0.0)  # no block comes in so short a time
    async with Fed(large, millrace.HEAD) as fed:
        *messages, end = await fed.rest()
    assert len(messages) == LARGE_COUNT
    assert end.event == "end"


@pytest.mark.asyncio
async def test_feeds_whose_peers_keep_up_take_turns(large: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 104: a feed that reads a long history does not keep the others from their blocks."""
    monkeypatch.setattr(feed_places, "SLICE_S", 0.0)
    monkeypatch.setattr(feed_module, "IDLE_S", PATIENCE_S)
    places = FeedPlaces(FeedOptions(bytes_max=1 * MIB))
    async with Fed(large, millrace.HEAD, places=places) as first, Fed(large, millrace.HEAD, places=places) as second:
        await first.next(1)
        late = asyncio.create_task(second.next(1))
        await until(lambda: places._waiting)
        reading = asyncio.create_task(first.next(LARGE_COUNT))
        await late
        assert first.counters.events_total == 1
        await second.feed.rest()
        await reading
        await first.feed.rest()
        assert [message.event for message in await second.rest()] == ["message"] * (LARGE_COUNT - 1) + ["end"]


@pytest.mark.asyncio
async def test_a_feed_that_waits_for_memory_sends_comments(large: Server) -> None:
    """Behaviour 104: proxies end a connection that is silent."""
    places = FeedPlaces(FeedOptions(bytes_max=1 * MIB))
    other = FeedPlace("10.0.0.2", Uptake(), lambda: None)
    assert places.open(other)
    assert places.hold(other, 8 * MIB)
    async with Fed(large, millrace.HEAD, places=places, keepalive_s=0.01) as fed:
        await fed.chunk()
        while not places._waiting:  # until the size of the block is known
            assert await fed.chunk() == KEEP_ALIVE
        assert await fed.chunk() == KEEP_ALIVE
        places.close(other)
        assert len(await fed.next(LARGE_COUNT)) == LARGE_COUNT
        assert not places._waiting


@pytest.mark.asyncio
async def test_a_feed_that_waits_for_memory_can_rest_and_end(large: Server) -> None:
    places = FeedPlaces(FeedOptions(bytes_max=1 * MIB))
    other = FeedPlace("10.0.0.2", Uptake(), lambda: None)
    assert places.open(other)
    assert places.hold(other, 8 * MIB)
    async with Fed(large, millrace.HEAD, places=places, keepalive_s=0.01) as fed:
        await fed.chunk()
        for _ in range(2):
            while not places._waiting:  # until the size of the block is known
                assert await fed.chunk() == KEEP_ALIVE
            await fed.feed.rest()
            assert not places._waiting
        while not places._waiting:
            assert await fed.chunk() == KEEP_ALIVE
    assert not places._waiting
