"""What a caller may get wrong about places, on a real server: always an error of the client's own, and never a wait."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.testing import TestServer
from millrace.model.cut import HEAD, TAIL, StreamCut
from millrace.model.errors import BlockCorruptError, CutInvalidError, InvalidArgumentError, MillraceError
from millrace.model.event import EventPosition
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio

HUGE = 1 << 70


async def three_blocks(client: Client, name: str) -> tuple[int, int]:
    """Write three blocks of one size; return the segment and that size."""
    await client.create_stream(name)
    async with client.writer(name) as writer:
        for number in range(3):
            await writer.write_many([b"a%d" % number, b"b%d" % number], key="k")
    (segment,) = (await client.stream_info(name)).segments
    return segment.segment_id, segment.length // 3


async def values(client: Client, name: str, *, start: millrace.Cut, end: millrace.Cut) -> list[bytes]:
    async with asyncio.timeout(PATIENCE_S), client.reader(name, start=start, end=end) as reader:
        return [event.value async for event in reader]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, name, _: client.stream_cut(name).at_time(HUGE),
        lambda client, name, _: client.stream_cut(name).at_time(-HUGE),
        lambda client, _, id_: client.fetch_event(EventPosition(id_, -1, 0)),
        lambda client, _, id_: client.fetch_event(EventPosition(id_, HUGE, 0)),
        lambda client, _, id_: client.fetch_event(EventPosition(id_ + HUGE, 0, 0)),
        lambda client, _, id_: client.fetch_event(EventPosition(id_, 0, -1)),
        lambda client, _, id_: client.segments.read(f"{_}#0.0", HUGE),
        lambda client, name, _: client.plan_ranges(name, max_bytes=0),
        lambda client, name, _: client.stream_cut(name).after_events(-1),
    ],
)
async def test_numbers_that_cannot_be_sent_are_invalid_arguments(
    server: TestServer, name: str, ask: Callable[[Client, str, int], Awaitable[Any]]
) -> None:
    """Nothing remains either: a future that nobody looks at would be reported when it is collected."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    async with millrace.connect(server.address) as client:
        segment_id, _ = await three_blocks(client, name)
        with pytest.raises(InvalidArgumentError):
            await ask(client, name, segment_id)
        assert await client.ping() > 0
    gc.collect()
    assert reports == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, name: client.reader(name, start=b"head").__aenter__(),
        lambda client, name: client.reader(name, start="noon").__aenter__(),
        lambda client, name: client.truncate_stream(name, "noon"),
        lambda client, name: client.truncate_stream(name, None),
        lambda client, name: client.distance(1.5, 2.5, stream=name),
    ],
)
async def test_what_is_no_place_is_an_invalid_argument_that_says_what_is_one(
    client: Client, name: str, ask: Callable[[Client, str], Awaitable[Any]]
) -> None:
    await client.create_stream(name)
    with pytest.raises(InvalidArgumentError, match=r"is not a place in a stream: write head, tail, 2026-01-31"):
        await ask(client, name)


async def test_a_byte_stream_knows_no_huge_places_either(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.byte_writer(name) as writer:
        await writer.write(b"0123456789")
        await writer.flush()
        for offset in (-1, HUGE):
            with pytest.raises(InvalidArgumentError):
                await writer.truncate(offset)
    async with client.byte_reader(name) as reader:
        await reader.seek(HUGE)
        with pytest.raises(InvalidArgumentError):
            await reader.read(1)
        await reader.seek(4)
        assert await reader.read() == b"456789"


async def test_a_start_inside_of_a_block_is_an_error_and_no_wait(client: Client, name: str) -> None:
    """Behaviour 26: also so near to the tail that no header of a block fits after it."""
    segment_id, size = await three_blocks(client, name)
    for offset in (8, size + 8, 3 * size - 8):
        with pytest.raises((BlockCorruptError, CutInvalidError)):
            await values(client, name, start=StreamCut.of(name, {segment_id: (offset, 0)}), end=TAIL)
        with pytest.raises(MillraceError):
            await client.distance(StreamCut.of(name, {segment_id: (offset, 0)}), TAIL)


async def test_an_end_inside_of_a_block_is_an_error(client: Client, name: str) -> None:
    """Behaviour 27: exactly the events between two cuts; what has no answer has no events either."""
    segment_id, size = await three_blocks(client, name)
    for offset in (size + 8, 2 * size - 8):
        with pytest.raises(CutInvalidError, match=f"the end {offset} is not a block border"):
            await values(client, name, start=HEAD, end=StreamCut.of(name, {segment_id: (offset, 0)}))


async def test_an_event_after_the_last_of_a_block_is_no_place(client: Client, name: str) -> None:
    segment_id, size = await three_blocks(client, name)
    inside = StreamCut.of(name, {segment_id: (size, 2)})
    assert await values(client, name, start=inside, end=TAIL) == [b"a2", b"b2"]
    beyond = StreamCut.of(name, {segment_id: (size, 3)})
    for ask in (
        values(client, name, start=beyond, end=TAIL),
        client.distance(beyond, TAIL),
        client.bookmarks(name).save("x", beyond),
    ):
        with pytest.raises(CutInvalidError):
            await ask


async def test_the_server_says_where_a_stream_can_be_cut(client: Client, name: str) -> None:
    """Behaviour 26: inside of an append it cannot, and the error names the border before it."""
    segment_id, size = await three_blocks(client, name)
    inside = StreamCut.of(name, {segment_id: (size + 8, 0)})
    for ask in (client.truncate_stream(name, inside), client.cursors(name).set("x", inside)):
        with pytest.raises(CutInvalidError, match="inside of an append") as refused:
            await ask
        assert refused.value.start_offset == size
    assert await values(client, name, start=HEAD, end=TAIL) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    await client.truncate_stream(name, StreamCut.of(name, {segment_id: (size, 0)}))
    assert await values(client, name, start=HEAD, end=TAIL) == [b"a1", b"b1", b"a2", b"b2"]


WRONG_TYPES: list[Callable[[Client, str], Awaitable[Any]]] = [
    lambda client, name: client.create_stream(name, "x"),  # type: ignore[arg-type]
    lambda client, name: client.create_stream(name, False),  # type: ignore[arg-type]
    lambda client, name: client.update_stream(name, None),  # type: ignore[arg-type]
    lambda client, _: client.fetch_event("x"),  # type: ignore[arg-type]
    lambda client, _: client.fetch_event(None),  # type: ignore[arg-type]
    lambda client, _: client.fetch_event(("a", "b", "c")),  # type: ignore[arg-type]
    lambda client, name: client.scale_stream(name, seal=["x"], ranges=[(0, 1)]),  # type: ignore[list-item]
    lambda client, name: client.scale_stream(name, seal=[1], ranges=["ab"]),  # type: ignore[list-item]
    lambda client, name: client.scale_stream(name, seal=[1], ranges=[("0", "1")]),  # type: ignore[list-item]
    lambda client, _: client.reader(5).__aenter__(),  # type: ignore[call-overload]
    lambda client, _: client.begin_transaction(5),  # type: ignore[arg-type]
    lambda client, name: client.begin_transaction(name, lease_s="x"),  # type: ignore[arg-type]
    lambda client, name: client.segments.read(name, "x"),  # type: ignore[arg-type]
    lambda client, name: client.bookmarks(name).save(5),  # type: ignore[arg-type]
    lambda client, _: anext(client.list_streams(5)),  # type: ignore[arg-type]
    lambda client, _: anext(client.list_streams("x" * 70_000)),
    lambda client, _: anext(client.list_streams(tag="x" * 70_000)),
]


@pytest.mark.parametrize("number", range(len(WRONG_TYPES)))
async def test_what_is_of_a_wrong_type_is_an_invalid_argument_in_words(client: Client, name: str, number: int) -> None:
    """An error of Python's own, from the depth of the client, would tell nobody which argument it means."""
    await client.create_stream(name)
    with pytest.raises(InvalidArgumentError) as refused:
        await WRONG_TYPES[number](client, name)
    told = str(refused.value)
    assert not any(words in told for words in ("object", "attribute", "argument", "format", "unpack")), told
    assert len(told) < 300
    assert (await client.stream_info(name)).name == name
