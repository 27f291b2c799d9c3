import asyncio

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import CutTruncatedError, OffsetBeyondEndError, StreamNotFoundError
from millrace.client.testing import TestServer
from millrace.model.cut import HEAD, TAIL, StreamCut, TimeCut, parse_choice
from millrace.model.errors import CutInvalidError, InvalidArgumentError
from millrace.model.event import Event
from millrace.model.policy import RetentionPolicy, ScalingPolicy, StreamConfig
from tests.client.scaling import filled

pytestmark = pytest.mark.asyncio


async def test_bookmarks_are_kept_listed_replaced_and_forgotten(client: Client, name: str) -> None:
    values = await filled(client, name)
    bookmarks = client.bookmarks(name)
    assert await bookmarks.list() == []
    start = await bookmarks.save("start", await client.stream_cut(name).after_events(50))
    end = await bookmarks.save("end")

    assert [(saved.name, saved.cut) for saved in await bookmarks.list()] == [("end", end), ("start", start)]
    assert all(saved.saved_us > 0 for saved in await bookmarks.list())
    assert await bookmarks.get("start") == start
    assert end == await client.stream_cut(name)
    async with client.reader(name, start=start, end=end) as reader:
        assert len([event async for event in reader]) == len(values) - 50

    moved = await bookmarks.save("start", HEAD)
    assert await bookmarks.get("start") == moved == await client.stream_cut(name).head()
    assert await bookmarks.forget("start")
    assert not await bookmarks.forget("start")
    assert await bookmarks.get("start") is None
    assert [saved.name for saved in await bookmarks.list()] == ["end"]


async def test_cursors_are_another_kind(client: Client, name: str) -> None:
    await filled(client, name, scalings=1)
    bookmarks, cursors = client.bookmarks(name), client.cursors(name)
    place = await cursors.set("loader", await client.stream_cut(name).after_events(10))
    await bookmarks.save("mark")

    assert [saved.name for saved in await cursors.list()] == ["loader"]
    assert [saved.name for saved in await bookmarks.list()] == ["mark"]
    assert await cursors.get("loader") == place
    assert not await bookmarks.forget("loader")
    assert await cursors.forget("loader")


async def test_a_bookmark_and_a_cursor_may_have_one_name(client: Client, name: str) -> None:
    await filled(client, name)
    bookmarks, cursors = client.bookmarks(name), client.cursors(name)
    head = await bookmarks.save("nächtlich 🌙", HEAD)
    tenth = await cursors.set("nächtlich 🌙", await client.stream_cut(name).after_events(10))

    assert (await bookmarks.get("nächtlich 🌙"), await cursors.get("nächtlich 🌙")) == (head, tenth)
    assert await bookmarks.forget("nächtlich 🌙")
    assert await bookmarks.list() == []
    assert await cursors.get("nächtlich 🌙") == tenth


async def test_cursors_are_registered_with_the_creation(client: Client, name: str) -> None:
    """Behaviour 25: at the head, before anything can be written or truncated."""
    config = StreamConfig(scaling=ScalingPolicy.fixed(3), retention=RetentionPolicy.by_consumption())
    assert await client.create_stream(name, config, cursors=["billing", "größe"])
    head = await client.stream_cut(name).head()
    assert [(saved.name, saved.cut) for saved in await client.cursors(name).list()] == [
        ("billing", head),
        ("größe", head),
    ]
    assert not await client.create_stream(name, config, cursors=["another"])
    assert await client.cursors(name).get("another") is None
    for wrong in (["one", "one"], ["line\nbreak"], [""]):
        with pytest.raises(InvalidArgumentError):
            await client.create_stream(f"{name}-2", config, cursors=wrong)


async def test_several_cuts_are_kept_in_one_step(client: Client, name: str) -> None:
    """Behaviour 25: all of them or none."""
    await filled(client, name)
    cursors, bookmarks = client.cursors(name), client.bookmarks(name)
    head, tail = await client.stream_cut(name).head(), await client.stream_cut(name)
    strange = StreamCut.of(name, {10**9: (0, 0)})
    for several in (cursors.set_many, bookmarks.save_many):
        with pytest.raises(CutInvalidError):
            await several({"one": HEAD, "other": strange})
    assert [*await cursors.list(), *await bookmarks.list()] == []

    assert await cursors.set_many({"slow": HEAD, "fast": TAIL}) == {"slow": head, "fast": tail}
    assert {saved.name: saved.cut for saved in await cursors.list()} == {"slow": head, "fast": tail}
    assert await bookmarks.save_many({"noon": TimeCut(100)}) == {"noon": await client.stream_cut(name).at_time(100)}
    assert await cursors.set_many({}) == {}


async def test_cuts_that_do_not_fit_are_not_kept(client: Client, name: str) -> None:
    await filled(client, name, scalings=1)
    info = await client.stream_info(name)
    first = info.segments[0]
    for cut, error in [
        (StreamCut.of("other/one", {first.segment_id: (0, 0)}), CutInvalidError),
        (StreamCut.of(name, {first.segment_id + 10**6: (0, 0)}), CutInvalidError),
        (StreamCut.of(name, {first.segment_id: (first.length + 8, 0)}), OffsetBeyondEndError),
        (StreamCut.of(name, {info.segments[1].segment_id: (0, 0)}), CutInvalidError),
    ]:
        with pytest.raises(error):
            await client.bookmarks(name).save("x", cut)
    with pytest.raises(InvalidArgumentError):
        await client.bookmarks(name).save("line\nbreak")
    with pytest.raises(StreamNotFoundError):
        await client.bookmarks("tests/none").list()
    assert await client.bookmarks(name).list() == []


async def test_the_head_is_saved_where_it_is_when_the_server_takes_it(client: Client, name: str) -> None:
    """Truncated between looking it up and saving it; a cut that was given is not exchanged for another one."""
    await filled(client, name, scalings=2)
    head = await client.stream_cut(name).head()
    tail = await client.stream_cut(name)
    tried: list[StreamCut] = []

    async def save(places: list[StreamCut]) -> StreamCut:
        tried.extend(places)
        await client.truncate_stream(name, tail)
        return await client.bookmarks(name).save("head", *places)

    assert await client._cuts.use(name, [HEAD], save) == tail
    assert tried == [head, tail]
    with pytest.raises(CutTruncatedError):
        await client._cuts.use(name, [head], save)


@pytest.mark.slow
async def test_saved_cuts_outlive_a_killed_server(millrace_server: TestServer, name: str) -> None:
    async with millrace.connect(millrace_server.address) as client:
        values = await filled(client, name)
        place = await client.stream_cut(name).after_events(77)
        await client.bookmarks(name).save("here", place)
        millrace_server.kill()
        millrace_server.start()
        found = await client.bookmarks(name).get("here")
        assert found == place
        async with client.reader(name, start=found, end=millrace.TAIL) as reader:
            assert len([event async for event in reader]) == len(values) - 77


async def test_a_saved_place_or_a_time_ago_may_be_given_wherever_a_cut_may(client: Client, name: str) -> None:
    """One set of words for places: in readers, slices and requests about cuts."""
    values = await filled(client, name)
    tenth = await client.stream_cut(name).after_events(10)
    await client.bookmarks(name).save("tenth", tenth)
    await client.cursors(name).set("loader", await client.stream_cut(name).after_events(30))

    async def count(start: str, end: str) -> int:
        async with client.reader(name, start=start, end=end) as reader:
            return len([event async for event in reader])

    assert await count("bookmark:tenth", "cursor:loader") == 20
    async with client.writer(name) as writer:
        await writer.write(b"now", key="key-1")  # all others have the times of long ago
    assert await count("15m ago", "tail") == 1
    assert await count("head", "15m ago") == len(values)
    async with client.reader([name], start={name: "bookmark:tenth"}, end={name: "tail"}) as reader:
        assert len([event async for event in reader]) == len(values) - 9
    assert await client.bookmarks(name).save("copy", parse_choice("bookmark:tenth")) == tenth
    info = await client.truncate_stream(name, parse_choice("bookmark:tenth"))
    assert {(each.segment_id, each.start_offset) for each in info.segments} >= {
        (segment_id, place.offset) for segment_id, place in tenth.positions
    }
    with pytest.raises(CutInvalidError, match="has no cursor 'tenth'"):
        await count("cursor:tenth", "tail")


async def test_a_cursor_may_hold_for_a_time_only(client: Client, name: str) -> None:
    """Behaviour 59: set again, it holds as it is told then."""
    await client.create_stream(name)
    cursors = client.cursors(name)
    await cursors.set("query", hold_s=0.5)
    assert [saved.hold_s for saved in await cursors.list()] == [1]
    await cursors.set_many({"query": TAIL, "other": HEAD}, hold_s=7 * 86_400)
    assert [saved.hold_s for saved in await cursors.list()] == [604_800] * 2
    await cursors.set("query")
    assert [saved.hold_s for saved in await cursors.list()] == [604_800, 0]
    for wrong in (0, -1, 1 << 32):
        with pytest.raises(InvalidArgumentError, match="hold_s"):
            await cursors.set("query", hold_s=wrong)


async def test_a_bookmark_is_saved_when_a_condition_holds_in_each_segment(client: Client, name: str) -> None:
    """Behaviour 79."""
    await filled(client, name, scalings=1)
    async with client.writer(name) as writer:
        for number in range(100):  # each segment has some of them, whatever chance has written so far
            _ = writer.write(b"000120", key=f"late-{number}", timestamp_us=120)

    cut = await client.bookmarks(name).save_when("late", lambda event: int(event.value[:6]) >= 90)

    assert cut == await client.bookmarks(name).get("late") == await client.stream_cut(name, at_time=90)


async def test_nothing_is_saved_before_a_condition_holds(client: Client, name: str) -> None:
    """Behaviour 79: neither by a search that is cancelled, nor by one whose condition fails."""
    await filled(client, name, scalings=1)
    bookmarks = client.bookmarks(name)
    asked = asyncio.Event()

    def holds(event: Event) -> bool:
        asked.set()
        return event.value == b"never"

    waiting = asyncio.create_task(bookmarks.save_when("never", holds))
    await asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(ZeroDivisionError):
        await bookmarks.save_when("failed", lambda event: 1 // event.index == 0)

    assert await bookmarks.list() == []
    assert await bookmarks.save_when("never", holds, end=TAIL) == await client.stream_cut(name)
