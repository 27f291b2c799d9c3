"""Many who want something from the checkpoint at the same time, and one thread that reads it."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from millrace.model.key_range import KeyRange
from millrace.model.lineage import StreamPart
from millrace.server.container.residency import entity_cache as shelves
from millrace.server.container.residency.entity_cache import EmptyArchive
from millrace.server.container.residency.loader import BATCH_COUNT_MAX, EntityLoader
from millrace.server.container.state.container_state import ContainerState, Stored
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.stream import Stream
from millrace.server.errors import StorageError
from tests.support.waiting import PATIENCE_S

COUNT = 2 * BATCH_COUNT_MAX + 10
"""Segments 1, 3, 5 and so on up to that are stored; the even numbers are not."""


def segment_named(number: int, *, created_us: int = 0) -> Segment:
    return Segment(segment_id=number, name=f"raw/{number}", created_us=created_us, stream_id=0)


@dataclass
class SlowArchive:
    """Segments that are read when the test says so, and never in the event loop."""

    created_us: int = 0
    failing: bool = False
    reads: list[int | str] = field(default_factory=list)
    # Reads of these wait until the gate is open.
    slow: set[int | str] = field(default_factory=set)
    waiting: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)

    def load(self, number: int) -> Segment | None:
        created_us = self.created_us
        self._read(number)
        return segment_named(number, created_us=created_us) if number % 2 else None

    def find(self, name: str) -> int:
        self._read(name)
        number = int(name.removeprefix("raw/"))
        return number if number % 2 else 0

    def numbers(self, *, after: int, count_max: int) -> list[int]:
        raise NotImplementedError

    def names(self, *, prefix: str, after: str, count_max: int) -> list[str]:
        raise NotImplementedError

    def _read(self, key: int | str) -> None:
        assert threading.current_thread() is not threading.main_thread(), f"{key} read in the event loop"
        self.reads.append(key)
        if key in self.slow:
            self.waiting.set()
            assert self.gate.wait(10)
        if self.failing:
            raise StorageError("the disk is away")


def state_over(archive: SlowArchive, *, resident_count_max: int = 0) -> ContainerState:
    stored = Stored(
        archives={"segments": archive, "writers": EmptyArchive(), "streams": EmptyArchive()},
        counts={"segments": COUNT // 2, "writers": 0, "streams": 0},
        next_id=COUNT + 1,
        uptime_us=0,
    )
    return ContainerState(stored, resident_count_max=resident_count_max)


@pytest.fixture
def archive() -> Iterator[SlowArchive]:
    archive = SlowArchive()
    yield archive
    archive.gate.set()


def numbers_of(held: list[object]) -> list[int]:
    return [segment.segment_id for segment in held if isinstance(segment, Segment)]


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_many_who_want_the_same_share_one_read(archive: SlowArchive) -> None:
    bringer = EntityLoader(state_over(archive))

    held = await asyncio.gather(*(bringer.bring(segments=[7, 9]) for _ in range(50)))

    assert archive.reads == [7, 9]
    assert all(numbers_of(each) == [7, 9] for each in held)
    assert len({id(item) for each in held for item in each}) == 2


@pytest.mark.asyncio
async def test_those_who_come_during_a_read_share_the_next_one(archive: SlowArchive) -> None:
    bringer = EntityLoader(state_over(archive))
    archive.slow.add(1)
    first = asyncio.ensure_future(bringer.bring(segments=[1]))
    await asyncio.to_thread(archive.waiting.wait, 10)
    others = [asyncio.ensure_future(bringer.bring(segments=[3])) for _ in range(20)]
    await asyncio.sleep(0)

    archive.gate.set()

    assert numbers_of(await first) == [1]
    assert [numbers_of(held) for held in await asyncio.gather(*others)] == [[3]] * 20
    assert archive.reads == [1, 3]


@pytest.mark.asyncio
async def test_nobody_waits_for_more_than_a_batch(archive: SlowArchive) -> None:
    """A request that names thousands does not hold up one that names a single segment."""
    bringer = EntityLoader(state_over(archive))
    everything = range(1, COUNT + 1)
    archive.slow.add(BATCH_COUNT_MAX + 1)
    many = asyncio.ensure_future(bringer.bring(segments=everything))
    few = asyncio.ensure_future(bringer.bring(segments=[1]))

    async with asyncio.timeout(PATIENCE_S):
        assert numbers_of(await few) == [1]
    assert await asyncio.to_thread(archive.waiting.wait, 10)
    assert not many.done()
    archive.gate.set()

    assert numbers_of(await many) == list(range(1, COUNT + 1, 2))
    assert archive.reads == list(everything)


@pytest.mark.asyncio
async def test_what_is_absent_is_read_once_however_many_are(
    archive: SlowArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the shelf remembers fewer of them: then nobody reads again, least of all in the event loop."""
    monkeypatch.setattr(shelves, "ABSENT_COUNT_MAX", 3)
    bringer = EntityLoader(state_over(archive))

    assert await bringer.bring(segments=[*range(2, 40, 2), *(f"raw/{number}" for number in range(2, 40, 2))]) == []

    assert len(archive.reads) == len(set(archive.reads)) == 2 * len(range(2, 40, 2))


@pytest.mark.asyncio
async def test_numbers_that_nothing_can_have_are_not_read(archive: SlowArchive) -> None:
    state = state_over(archive)
    bringer = EntityLoader(state)
    fresh = state.take_id()

    assert await bringer.bring(segments=[0, "", fresh, COUNT + 99]) == []

    assert archive.reads == []


@pytest.mark.asyncio
async def test_an_error_reaches_all_who_wait_and_the_next_ones_read_anew(archive: SlowArchive) -> None:
    bringer = EntityLoader(state_over(archive))
    archive.failing = True

    outcomes = await asyncio.gather(
        *(bringer.bring(segments=[number]) for number in (1, 1, 3, 3)), return_exceptions=True
    )
    archive.failing = False

    assert [str(outcome) for outcome in outcomes] == ["the disk is away"] * 4
    assert all(isinstance(outcome, StorageError) for outcome in outcomes)
    assert numbers_of(await bringer.bring(segments=[1, 3])) == [1, 3]


@pytest.mark.asyncio
async def test_what_was_read_while_a_checkpoint_was_stored_is_read_again(archive: SlowArchive) -> None:
    """It may be older than what memory has forgotten since."""
    state = state_over(archive)
    bringer = EntityLoader(state)
    archive.slow |= {1, 2}
    there = asyncio.ensure_future(bringer.bring(segments=[1]))
    absent = asyncio.ensure_future(bringer.bring(segments=[2]))
    await asyncio.to_thread(archive.waiting.wait, 10)

    state.segments.take()
    archive.created_us = 5
    state.segments.stored(stored_below=COUNT + 1)
    archive.gate.set()

    (segment,) = await there
    assert isinstance(segment, Segment)
    assert segment.created_us == 5
    assert state.segments.get(1) is segment
    assert await absent == []
    assert archive.reads == [1, 2, 1, 2]


@pytest.mark.asyncio
async def test_one_who_gives_up_takes_nothing_from_the_others(archive: SlowArchive) -> None:
    bringer = EntityLoader(state_over(archive))
    archive.slow.add(1)
    waiters = [asyncio.ensure_future(bringer.bring(segments=[1])) for _ in range(3)]
    await asyncio.to_thread(archive.waiting.wait, 10)
    waiters[0].cancel()
    await asyncio.gather(waiters[0], return_exceptions=True)

    archive.gate.set()

    assert [numbers_of(held) for held in await asyncio.gather(*waiters[1:])] == [[1], [1]]
    assert archive.reads == [1]


@pytest.mark.asyncio
async def test_what_was_brought_stays_in_memory_while_it_is_held(archive: SlowArchive) -> None:
    state = state_over(archive)
    bringer = EntityLoader(state)

    held = await bringer.bring(segments=range(1, 40, 2))
    archive.failing = True

    assert [state.segments.get(number) for number in range(1, 40, 2)] == held
    assert bringer.has_segment(39)
    held.clear()
    assert not bringer.has_segment(39)


@pytest.mark.asyncio
async def test_with_a_stream_its_segments_are_brought(archive: SlowArchive) -> None:
    state = state_over(archive)
    stream = Stream(stream_id=COUNT + 1, name="a/b", configuration="", created_us=0)
    stream.parts = [StreamPart(segment_id=segment_id, key_range=KeyRange(0, 10)) for segment_id in (5, 6, 7)]
    state.streams.add(stream)
    bringer = EntityLoader(state)

    held = await bringer.bring(streams=["a/b", "a/c"])

    assert held[0] is stream
    assert numbers_of(held) == [5, 7]
    assert archive.reads == [5, 6, 7]
