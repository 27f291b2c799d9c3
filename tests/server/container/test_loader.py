"""Many requests for entities in the checkpoint at the same time, and one thread that reads it."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from millrace.model.key_range import KeyRange
from millrace.model.lineage import StreamPart
from millrace.server.container import entity_cache
from millrace.server.container.loader import BATCH_COUNT_MAX, EntityLoader
from millrace.server.container.state.container_state import ContainerState, StoredState
from millrace.server.container.state.scalars import Scalars
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.stream import Stream
from millrace.server.errors import StorageError
from millrace.server.kinds.registry import KINDS
from millrace.wire import messages as m
from tests.server.container.states import EmptyArchive, evict_at_once
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

    def names(self, *, prefix: str, after: str, count_max: int) -> list[tuple[str, int]]:
        raise NotImplementedError

    def _read(self, key: int | str) -> None:
        assert threading.current_thread() is not threading.main_thread(), f"{key} read in the event loop"
        self.reads.append(key)
        if key in self.slow:
            self.waiting.set()
            assert self.gate.wait(10)
        if self.failing:
            raise StorageError("the disk is away")


def state_over(archive: SlowArchive, *, idle_bytes_max: int = 0) -> ContainerState:
    stored = StoredState(
        kinds=KINDS,
        archives={kind.name: EmptyArchive() for kind in KINDS} | {"segments": archive},
        counts={kind.name: 0 for kind in KINDS} | {"segments": COUNT // 2},
        internal_count=0,
        attribute_bytes=0,
        scalars=Scalars(next_id=COUNT + 1),
    )
    state = ContainerState(stored, idle_bytes_max=idle_bytes_max)
    evict_at_once(state.idle)
    return state


@pytest.fixture
def archive() -> Iterator[SlowArchive]:
    archive = SlowArchive()
    yield archive
    archive.gate.set()


def pinned(state: ContainerState) -> dict[int, int]:
    return dict(sorted(state.segments.pin_counts.items()))


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_concurrent_requests_for_one_entity_share_a_read(archive: SlowArchive) -> None:
    state = state_over(archive)
    loader = EntityLoader(state)

    pins = await asyncio.gather(*(loader.pin(m.Required(segments=[7, 9])) for _ in range(50)))

    assert archive.reads == [7, 9]
    assert pinned(state) == {7: 50, 9: 50}
    for each in pins:
        each.release()
    assert pinned(state) == {}


@pytest.mark.asyncio
async def test_those_who_come_during_a_read_share_the_next_one(archive: SlowArchive) -> None:
    state = state_over(archive)
    loader = EntityLoader(state)
    archive.slow.add(1)
    first = asyncio.ensure_future(loader.pin(m.Required(segments=[1])))
    await asyncio.to_thread(archive.waiting.wait, 10)
    others = [asyncio.ensure_future(loader.pin(m.Required(segments=[3]))) for _ in range(20)]
    await asyncio.sleep(0)

    archive.gate.set()

    assert len(await first) == 1
    assert [len(pins) for pins in await asyncio.gather(*others)] == [1] * 20
    assert archive.reads == [1, 3]


@pytest.mark.asyncio
async def test_no_request_waits_for_more_than_a_batch(archive: SlowArchive) -> None:
    """A request that names thousands does not hold up one that names a single segment."""
    state = state_over(archive)
    loader = EntityLoader(state)
    everything = range(1, COUNT + 1)
    archive.slow.add(BATCH_COUNT_MAX + 1)
    many = asyncio.ensure_future(loader.pin(m.Required(segments=everything)))
    few = asyncio.ensure_future(loader.pin(m.Required(segments=[1])))

    async with asyncio.timeout(PATIENCE_S):
        assert len(await few) == 1
    assert await asyncio.to_thread(archive.waiting.wait, 10)
    assert not many.done()
    archive.gate.set()

    assert len(await many) == COUNT
    assert archive.reads == list(everything)
    assert pinned(state) == {number: 1 + (number == 1) for number in everything}


@pytest.mark.asyncio
async def test_what_is_absent_is_read_once_however_many_are(
    archive: SlowArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the cache remembers fewer of them: then they are not read again, least of all in the event loop."""
    monkeypatch.setattr(entity_cache, "ABSENT_COUNT_MAX", 3)
    loader = EntityLoader(state_over(archive))

    pins = await loader.pin(m.Required(segments=[*range(2, 40, 2), *(f"raw/{number}" for number in range(2, 40, 2))]))

    assert len(pins) == len(range(2, 40, 2))  # the numbers
    assert len(archive.reads) == len(set(archive.reads)) == 2 * len(range(2, 40, 2))


@pytest.mark.asyncio
async def test_numbers_that_nothing_can_have_are_not_read(archive: SlowArchive) -> None:
    state = state_over(archive)
    loader = EntityLoader(state)
    fresh = state.take_id()

    assert len(await loader.pin(m.Required(segments=[0, "", fresh, COUNT + 99]))) == 2

    assert archive.reads == []


@pytest.mark.asyncio
async def test_an_error_reaches_all_who_wait_and_the_next_ones_read_again(archive: SlowArchive) -> None:
    state = state_over(archive)
    loader = EntityLoader(state)
    archive.failing = True

    outcomes = await asyncio.gather(
        *(loader.pin(m.Required(segments=[number])) for number in (1, 1, 3, 3)), return_exceptions=True
    )
    archive.failing = False

    assert [str(outcome) for outcome in outcomes] == ["the disk is away"] * 4
    assert all(isinstance(outcome, StorageError) for outcome in outcomes)
    assert pinned(state) == {}
    with await loader.pin(m.Required(segments=[1, 3])):
        assert pinned(state) == {1: 1, 3: 1}


@pytest.mark.asyncio
async def test_what_was_read_while_a_checkpoint_was_stored_is_read_again(archive: SlowArchive) -> None:
    """It may be older than what was evicted since."""
    state = state_over(archive)
    loader = EntityLoader(state)
    archive.slow |= {1, 2}
    there = asyncio.ensure_future(loader.pin(m.Required(segments=[1])))
    absent = asyncio.ensure_future(loader.pin(m.Required(segments=[2])))
    await asyncio.to_thread(archive.waiting.wait, 10)

    state.segments.take()
    archive.created_us = 5
    state.segments.stored(stored_below=COUNT + 1)
    archive.gate.set()

    with await there:
        segment = state.segments.peek(1)
        assert segment is not None
        assert segment.created_us == 5
    with await absent:
        assert state.segments.peek(2) is None
    assert archive.reads == [1, 2, 1, 2]


@pytest.mark.asyncio
async def test_a_cancelled_request_pins_nothing_and_takes_nothing_from_the_others(archive: SlowArchive) -> None:
    state = state_over(archive)
    loader = EntityLoader(state)
    archive.slow.add(1)
    waiters = [asyncio.ensure_future(loader.pin(m.Required(segments=[3, 1]))) for _ in range(3)]
    await asyncio.to_thread(archive.waiting.wait, 10)
    waiters[0].cancel()
    await asyncio.gather(waiters[0], return_exceptions=True)

    archive.gate.set()

    assert [len(pins) for pins in await asyncio.gather(*waiters[1:])] == [2, 2]
    assert pinned(state) == {1: 2, 3: 2}
    assert archive.reads == [3, 1]


@pytest.mark.asyncio
async def test_what_was_loaded_stays_in_memory_while_it_is_pinned(archive: SlowArchive) -> None:
    state = state_over(archive)
    loader = EntityLoader(state)

    with await loader.pin(m.Required(segments=[*range(1, 40, 2), "raw/39"])):
        archive.failing = True
        assert [state.segments[number].segment_id for number in range(1, 40, 2)] == list(range(1, 40, 2))
        assert state.segments.is_resident(39)
    assert not state.segments.is_resident(39)


@pytest.mark.asyncio
async def test_with_a_stream_its_segments_are_loaded(archive: SlowArchive) -> None:
    state = state_over(archive)
    stream = Stream(stream_id=COUNT + 1, name="a/b", configuration="", created_us=0)
    stream.parts = [StreamPart(segment_id=segment_id, key_range=KeyRange(0, 10)) for segment_id in (5, 6, 7)]
    state.streams.add(stream)

    with await EntityLoader(state).pin(m.Required(streams=["a/b", "a/c"])):
        assert COUNT + 1 in state.streams.pin_counts
        assert pinned(state) == {5: 1, 6: 1, 7: 1}
    assert archive.reads == [5, 6, 7]
