"""The cut at which a condition begins to hold, in streams that were scaled, and in some that are scaled meanwhile."""

# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections.abc import Callable

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.read.conditional_cut import cut_before_first
from millrace.model.cut import HEAD, TAIL, CutChoice, StreamCut
from millrace.model.event import Event, EventPosition
from millrace.model.policy import ScalingPolicy, StreamConfig
from millrace.model.slice import Slice
from tests.client.read.streams import read
from tests.client.scaling import filled, scale

pytestmark = pytest.mark.asyncio

Condition = Callable[[Event], bool]


def number_of(event: Event) -> int:
    return int(event.value[:6])


# Of streams of four epochs of 60 events each, with 1, 3, 1 and 3 segments.
CONDITIONS: dict[str, Condition] = {
    "always": lambda _: True,
    "never": lambda _: False,
    "a time": lambda event: number_of(event) >= 75,
    "between epochs": lambda event: number_of(event) >= 60,
    "a number": lambda event: number_of(event) % 41 == 40,
    "a key": lambda event: event.key == "key-3",
    "a key in the middle": lambda event: event.key == "key-3" and number_of(event) >= 70,
    "a key at the end": lambda event: event.key == "key-3" and number_of(event) >= 185,
}


async def cut_at(
    client: Client, name: str, holds: Condition, *, start: CutChoice = HEAD, end: CutChoice | None = TAIL
) -> StreamCut:
    return await cut_before_first(client._readers.open, Slice(name, start, end), holds)


async def check(client: Client, cut: StreamCut, holds: Condition) -> None:
    """Assert that a cut is one, that the condition holds nowhere before it, and that no further cut is so."""
    lineage = (await client.stream_info(cut.stream)).lineage()
    lineage.check_cut(cut.places)
    async with client.reader(cut.stream, end=cut) as reader:
        assert not [event async for event in reader if holds(event)]
    at_end = set()
    for segment_id, (offset, index) in cut.positions:
        if (offset, index) == (lineage.by_id[segment_id].length, 0):
            at_end.add(segment_id)
        else:
            assert holds(await client.fetch_event(EventPosition(segment_id, offset, index)))
    for segment_id in at_end:
        replacement = lineage.replacement(segment_id)
        assert replacement is None or not at_end.issuperset(part.segment_id for part in replacement.predecessors)


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_it_is_the_furthest_cut_before_which_the_condition_holds_nowhere(
    client: Client, name: str, condition: str
) -> None:
    """Behaviour 79."""
    holds = CONDITIONS[condition]
    await filled(client, name)

    cut = await cut_at(client, name, holds)

    await check(client, cut, holds)
    if condition == "never":
        assert cut == await client.stream_cut(name)
    if condition == "always":
        assert cut == await client.stream_cut(name).head()


async def test_a_segment_that_is_merged_with_one_that_meets_it_is_cut_at_its_end(client: Client, name: str) -> None:
    """Behaviour 79: one place is fixed, and the others are the ends of what was merged with it."""
    values = await filled(client, name, scalings=2)
    lineage = (await client.stream_info(name)).lineage()
    thirds = {part.segment_id for part in lineage.by_id.values() if part.epoch == 1}
    key = values[80][7:].decode()  # in one of them

    def holds(event: Event) -> bool:
        return event.key == key and number_of(event) >= 60

    cut = await cut_at(client, name, holds)

    assert cut.places.keys() == thirds
    ends = [id_ for id_, place in cut.positions if place.offset == lineage.by_id[id_].length]
    assert len(ends) == 2
    await check(client, cut, holds)


async def test_where_times_ascend_it_is_the_cut_at_the_time(client: Client, name: str) -> None:
    await filled(client, name)

    for number in (0, 33, 75, 150, 239):
        found = await cut_at(client, name, lambda event, number=number: number_of(event) >= number)  # type: ignore[misc]
        assert found == await client.stream_cut(name, at_time=number)


async def test_each_event_is_asked_about_once_and_none_after_it_holds(client: Client, name: str) -> None:
    values = await filled(client, name)
    asked: list[Event] = []

    def holds(event: Event) -> bool:
        asked.append(event)
        return number_of(event) >= 75

    cut = await cut_at(client, name, holds)

    before = await read(client, name, end=cut)
    assert len({event.position for event in asked}) == len(asked)
    assert sorted(event.value for event in asked if number_of(event) < 75) == sorted(before) == values[:75]
    assert len(asked) == 75 + len(cut.positions)


async def test_it_begins_at_its_start_and_gives_up_at_its_end(client: Client, name: str) -> None:
    await filled(client, name)
    start, end = [await client.stream_cut(name, at_time=number) for number in (80, 170)]

    async def between(holds: Condition) -> StreamCut:
        return await cut_at(client, name, holds, start=start, end=end)

    assert await between(lambda _: True) == start
    assert await between(lambda event: number_of(event) in (10, 79, 170)) == end
    late = await between(lambda event: number_of(event) >= 150)
    assert sorted(int(value[:6]) for value in await read(client, name, start=start, end=late)) == [*range(80, 150)]


async def test_it_waits_over_scalings_until_all_segments_meet_it(client: Client, name: str) -> None:
    """Behaviour 79: splits and merges come while the search waits."""
    await client.create_stream(name)
    asked: asyncio.Queue[bytes] = asyncio.Queue()

    def holds(event: Event) -> bool:
        asked.put_nowait(event.value)
        return event.value == b"stop"

    search = asyncio.create_task(cut_at(client, name, holds, end=None))
    keys = [f"key-{number}" for number in range(20)]  # of every third of the key space
    written = 0
    for _ in range(3):
        async with client.writer(name) as writer:
            writer.write_many([b"%d" % number for number in range(len(keys))], keys=keys)
        written += len(keys)
        for _ in keys:
            await asked.get()
        await scale(client, name)

    first, *others = (await client.stream_info(name)).open_segments
    async with client.writer(name) as writer:
        places = {key: (await writer.write(b"more", key=key)).segment_id for key in keys}
        written += len(keys)
        for _ in keys:
            await asked.get()
        of_first = next(key for key in keys if places[key] == first.segment_id)
        await writer.write(b"stop", key=of_first)
        await asked.get()
        await writer.write(b"after", key=of_first)  # never asked about
        await writer.write(b"more", key=next(key for key in keys if places[key] == others[0].segment_id))
        written += 1
        await asked.get()
    assert not search.done()
    await scale(client, name)  # merges what waits with what does not
    cut = await asyncio.wait_for(search, 60)

    assert cut.places.keys() == {first.segment_id, *(other.segment_id for other in others)}
    assert len(await read(client, name, end=cut)) == written
    assert (await read(client, name, start=cut, end=TAIL)) == [b"stop", b"after"]
    await check(client, cut, lambda event: event.value == b"stop")
    assert await cut_at(client, name, lambda event: event.value == b"stop") == cut


async def test_a_stream_that_is_sealed_ends_the_wait(client: Client, name: str) -> None:
    await filled(client, name, scalings=1)
    search = asyncio.create_task(cut_at(client, name, lambda _: False, end=None))
    await client.seal_stream(name)

    assert await asyncio.wait_for(search, 60) == await client.stream_cut(name)


async def test_what_the_condition_raises_is_raised(client: Client, name: str) -> None:
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(2)))
    async with client.writer(name) as writer:
        writer.write(b"no number", key="a")

    with pytest.raises(ValueError, match="invalid literal"):
        await cut_at(client, name, lambda event: number_of(event) > 0)


async def test_a_truncation_under_the_search_is_told(client: Client, name: str) -> None:
    """Behaviour 26: what may have met the condition is lost."""
    await filled(client, name, scalings=1)
    start = await client.stream_cut(name).head()
    await client.truncate_stream(name, TAIL)

    with pytest.raises(millrace.CutTruncatedError):
        await cut_at(client, name, lambda _: False, start=start)
