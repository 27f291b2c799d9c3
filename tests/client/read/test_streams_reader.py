"""Reading several streams at once, by name and by pattern."""

# Nobody needs to look at the future of a write: flush raises what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import millrace
from millrace.client.admin.cuts import Cuts
from millrace.client.admin.readers import Choices, Readers
from millrace.client.client import Client
from millrace.client.errors import StreamNotFoundError, ThrottledError
from millrace.client.options import ClientOptions, parse_addresses
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.client.read.streams_reader import StreamsReader
from millrace.client.testing import TestServer
from millrace.client.transport.channel import Channel
from millrace.client.transport.client_guard import ClientGuard
from millrace.model.cut import HEAD, TAIL, TimeCut
from millrace.model.errors import ErrorFacts, InvalidArgumentError
from millrace.model.slice import Slice
from tests.client.scaling import filled
from tests.support.clock import ManualClock
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def reading(
    server: TestServer, pattern: str, *, clock: ManualClock, options: ReaderOptions
) -> AsyncIterator[StreamsReader]:
    """A reader of what matches a pattern, that waits by a clock."""
    channel = Channel(parse_addresses(server.address), ClientOptions(), ClientGuard(), clock=clock)
    readers = Readers(writes=channel, reads=channel, cuts=Cuts(writes=channel, reads=channel))
    try:
        async with readers.several([pattern], start=HEAD, end=None, key=None, options=options) as reader:
            yield reader
    finally:
        await channel.close()


async def write(client: Client, stream: str, *values: bytes) -> None:
    await client.create_stream(stream)
    async with client.writer(stream) as writer:
        for value in values:
            writer.write(value, key="k")


async def test_the_events_of_several_streams_come_with_their_names(client: Client, name: str) -> None:
    """Behaviour 62: each key in its order, bounded by the tails of one moment, resumed at any event."""
    names = [f"{name}-a", f"{name}-b", f"{name}-c"]
    values = {each: await filled(client, each, scalings=count, per_epoch=20) for count, each in enumerate(names)}
    seen: defaultdict[str, list[bytes]] = defaultdict(list)
    async with client.reader(names, end=TAIL) as reader:
        for _ in range(75):
            event = await anext(reader)
            seen[reader.stream_of(event)].append(event.value)
        positions = reader.positions()
    assert {*positions} == {*names}
    async with client.reader(names, start=positions, end="tail") as reader:
        async for batch in reader.arrow_batches():
            (stream,) = set(batch.column("stream").to_pylist())
            seen[stream] += batch.column("value").to_pylist()
        ends = reader.positions()
    assert {each: sorted(found) for each, found in seen.items()} == values
    for found in seen.values():
        for key in range(7):
            of_key = [value for value in found if value.endswith(b"key-%d" % key)]
            assert of_key == sorted(of_key)
    async with client.reader(names, start=ends, end=TAIL) as reader:
        assert [event async for event in reader] == []


async def test_streams_that_come_to_match_join_and_deleted_ones_leave(
    server: TestServer, client: Client, name: str
) -> None:
    """Behaviour 62: from their heads on; what was read of the others is not read again."""
    one, two, three = (f"{name}-{number}" for number in range(3))
    clock = ManualClock()
    await write(client, one, b"1")
    async with reading(server, f"{name}-*", clock=clock, options=ReaderOptions(discover_interval_s=60)) as reader:
        assert (await anext(reader)).value == b"1"
        await write(client, two, b"2", b"3")
        await clock.advance(59)
        assert clock.sleeper_count == 1  # not looked for yet
        clock.move(2)
        found = [await anext(reader) for _ in range(2)]
        assert [(reader.stream_of(event), event.value) for event in found] == [(two, b"2"), (two, b"3")]
        await client.seal_stream(one)
        await client.delete_stream(one)
        waiting = asyncio.create_task(anext(reader))
        await until(lambda: one not in reader.positions() and clock.sleeper_count)
        await write(client, three, b"4")
        clock.move(60)
        assert (await waiting).value == b"4"
        positions = reader.positions()
    assert {*positions} == {two, three}
    await write(client, one, b"5")
    async with client.reader([f"{name}-*"], start=positions, end=TAIL) as reader:
        assert [event.value async for event in reader] == [b"5"]


async def test_a_stream_that_was_named_must_be_there(client: Client, name: str) -> None:
    await write(client, name, b"1")
    with pytest.raises(StreamNotFoundError):
        async with client.reader([name, f"{name}-none"]):
            pass
    several: list[list[str | Slice]] = [[], [name, name], [name, Slice(name)]]
    for wrong in several:
        with pytest.raises(InvalidArgumentError):
            async with client.reader(wrong):
                pass
    given: list[tuple[Choices, Choices | None]] = [
        ({"a/b": HEAD}, None),
        (HEAD, {}),
        (await client.stream_cut(name), TAIL),
    ]
    for start, end in given:
        with pytest.raises(InvalidArgumentError):
            async with client.reader([name, f"{name}-*", "another/one"], start=start, end=end):
                pass
    async with client.reader([name]) as reader:
        assert (await anext(reader)).value == b"1"
        await client.seal_stream(name)
        await client.delete_stream(name)
        with pytest.raises(StreamNotFoundError):
            await anext(reader)


async def test_one_that_is_deleted_after_it_was_found_is_left_out(client: Client, name: str) -> None:
    """Behaviour 62: a pattern names what is there; between listing and asking a stream may go."""
    gone = f"{name}-gone"
    await write(client, name, b"1")
    readers = client._readers

    assert [*await readers.tails([gone, name], named=[name])] == [name]
    assert await readers.tails([gone], named=[]) == {}
    with pytest.raises(StreamNotFoundError):
        await readers.tails([gone, name], named=[gone])
    for end in (None, TAIL):
        parts = await readers._at_one_moment([Slice(gone, end=end), Slice(name, end=end)], named=[name])
        async with StreamsReader(
            readers._reads, parts, named=[name], open_reader=readers.open, discover=None, options=ReaderOptions()
        ) as reader:
            assert (await anext(reader)).value == b"1"
            assert {*reader.positions()} == {name}


async def test_each_stream_may_have_cuts_and_a_key_of_its_own(client: Client, name: str) -> None:
    """Behaviour 62."""
    one, two = f"{name}-1", f"{name}-2"
    values = await filled(client, one)
    await filled(client, two)
    first, second = Slice(one, TimeCut(50), TimeCut(100), "key-3"), Slice(two, end=TimeCut(10))
    async with client.reader([first, second]) as reader:
        found = [(reader.stream_of(event), event.value) async for event in reader]
    assert [value for stream, value in found if stream == one] == [
        value for value in values[50:100] if value.endswith(b"key-3")
    ]
    assert len([value for stream, value in found if stream == two]) == 10
    async with client.reader([one, two], start={one: TAIL}, end={one: TAIL, two: TimeCut(5)}, key="key-1") as reader:
        assert {event.key async for event in reader} <= {"key-1"}


async def test_a_cancelled_wait_loses_no_event(client: Client, name: str) -> None:
    one, two = f"{name}-1", f"{name}-2"
    await write(client, one)
    await write(client, two)
    seen = []
    async with client.reader([one, two]) as reader, client.writer(one) as first, client.writer(two) as second:
        for number in range(40):
            waiting = asyncio.create_task(anext(reader))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            await (first, second)[number % 2].write(b"%d" % number)
            seen.append(await anext(reader))
    assert [event.value for event in seen] == [b"%d" % number for number in range(40)]


async def test_the_tails_of_several_streams_are_those_of_one_moment(client: Client, name: str) -> None:
    """Behaviour 62: what was durable before something in the cuts is in them, in whatever stream."""
    names = [f"{name}-{number}" for number in range(5)]
    for each in names:
        await client.create_stream(each)
    is_over = False

    async def write_in_turn() -> None:
        async with client.writer(names[0]) as first, client.writer(names[-1]) as last:
            while not is_over:
                await last.write(b"before")
                await first.write(b"after")

    writing = asyncio.create_task(write_in_turn())
    cuts = []
    async with client.reader(names[:1]) as reader:
        for _ in range(40):
            await anext(reader)
            cuts.append(await client.stream_cuts([f"{name}-*"]))
    is_over = True
    await writing
    for cut in cuts:
        assert [*cut] == names
        first, last = [(await client.distance(HEAD, cut[each])).events for each in (names[0], names[-1])]
        assert first <= last <= first + 1
    with pytest.raises(StreamNotFoundError):
        await client.stream_cuts([names[0], "tests/none"])


async def test_threads_read_several_streams_too(server: TestServer, client: Client, name: str) -> None:
    one, two = f"{name}-1", f"{name}-2"
    await write(client, one, b"1", b"2")
    await write(client, two, b"3", b"4")

    def read() -> list[tuple[str, bytes]]:
        with millrace.blocking.connect(server.address) as blocking:
            with blocking.reader([one, two], end="tail") as reader:
                event = next(reader)
                found = [(reader.stream_of(event), event.value)]
                positions = reader.positions()
            with blocking.reader([f"{name}-*"], start=positions, end=blocking.stream_cuts([one, two])) as reader:
                found += [(reader.stream_of(event), event.value) for event in reader]
            with blocking.reader(one, end="tail", key="k") as single:
                assert [event.value for event in single] == [b"1", b"2"]
        return sorted(found)

    assert await asyncio.to_thread(read) == [(one, b"1"), (one, b"2"), (two, b"3"), (two, b"4")]


async def test_a_reader_ends_when_new_streams_cannot_be_looked_for(server: TestServer, name: str) -> None:
    """Whatever the reason is: one that nobody heard of would be a reader that waits forever."""
    clock = ManualClock()
    channel = Channel(parse_addresses(server.address), ClientOptions(), ClientGuard(), clock=clock)
    errors: list[Exception] = [
        ThrottledError(ErrorFacts(message="full", retriable=True)),
        LookupError("a fault of ours"),
    ]

    async def open_reader(part: Slice, options: ReaderOptions) -> Reader:
        raise AssertionError(f"{part} with {options} is opened")

    async def discover() -> list[Slice]:
        raise errors.pop(0)

    options = ReaderOptions(discover_interval_s=60)
    async with StreamsReader(
        channel, [], named=[], open_reader=open_reader, discover=discover, options=options
    ) as reader:
        waiting = asyncio.create_task(anext(reader))
        await clock.advance(0)
        await clock.advance(60)
        assert not waiting.done()
        await clock.advance(60)
        with pytest.raises(LookupError, match="a fault of ours"):
            await waiting
        with pytest.raises(LookupError, match="a fault of ours"):
            await anext(reader)
    await channel.close()
