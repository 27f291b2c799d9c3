"""Idle entities are bounded by the bytes that they take."""

import tracemalloc
from collections.abc import Callable
from typing import Any

from millrace.model.key_range import KeyRange
from millrace.model.lineage import StreamPart
from millrace.server.container.entity_cache import EntityCache
from millrace.server.container.idle_budget import IdleBudget
from millrace.server.container.state.segment import Segment, WriterProgress
from millrace.server.container.state.stream import Stream
from millrace.server.container.state.writer import Writer, WriterRow
from millrace.server.tier2 import ChunkRecord
from millrace.wire import messages as m
from tests.server.container.states import evict_at_once
from tests.server.container.test_entity_cache import MemoryArchive, Thing, stored_things
from tests.support.tables import table


def cache_of(idle: IdleBudget, *, count: int, size_of: Callable[[Thing], int]) -> EntityCache[Thing]:
    return EntityCache(
        number_of=lambda thing: thing.number,
        name_of=lambda thing: thing.name,
        archive=MemoryArchive(dict(stored_things(count))),
        count=count,
        stored_below=count + 1,
        size_of=size_of,
        idle=idle,
    )


def test_bytes_are_counted_over_all_kinds_and_the_least_recently_used_leave() -> None:
    """Behaviour 86: the sum of idle entities is bounded in bytes."""
    idle = evict_at_once(IdleBudget(100))
    large = cache_of(idle, count=10, size_of=lambda thing: 30)
    small = cache_of(idle, count=100, size_of=lambda thing: 1)
    for number in (1, 2, 3):
        assert large.get(number)
    for number in range(1, 11):
        assert small.get(number)
    assert (idle.size_bytes, len(idle)) == (100, 13)
    assert large.get(1)
    assert small.get(11)
    assert [thing.number for thing in large.present()] == [1, 3]
    assert len(small.present()) == 11
    with large.pin([1, 3]):
        assert idle.size_bytes == 11
    assert idle.size_bytes == 71


def test_what_grew_while_it_was_in_use_counts_as_it_is_then() -> None:
    """Behaviour 86."""
    idle = evict_at_once(IdleBudget(100))
    sizes = {1: 10, 2: 10}
    cache = cache_of(idle, count=2, size_of=lambda thing: sizes[thing.number])
    with cache.pin([1]):
        cache.get(2)
        sizes[1] = 95
    assert [thing.number for thing in cache.present()] == [1]
    sizes[2] = 101
    cache.get(2)
    assert cache.present() == []
    assert idle.size_bytes == 0


def test_nothing_is_evicted_within_a_step() -> None:
    """Behaviour 97: what a decision looks at is still the object that it then pins."""
    idle = IdleBudget(0)
    full: list[int] = []
    idle.on_full = lambda: full.append(len(idle))
    cache = cache_of(idle, count=3, size_of=lambda thing: 1)

    found = [cache.get(number) for number in (1, 2, 3)]

    assert full == [1]
    with cache.pin([2]):
        assert [cache.peek(number) for number in (1, 2, 3)] == found
        idle.trim()
        assert cache.present() == [found[1]]
    assert full == [1, 1]


def segment(number: int) -> Segment:
    made = Segment(segment_id=number, name=f"scope/segment-{number}", created_us=number)
    made.chunks = [
        ChunkRecord(10 * each + number, 10, f"segments/{number}/{each}.chunk", 100, each, each + 1, 5)
        for each in range(9)
    ]
    made.writers = {
        1000 * number + each: WriterProgress(durable=1000 * number, last_offset=1000 + number) for each in range(9)
    }
    made.replace_attributes({f"key-{number}-{each}": b"%200d" % number for each in range(9)})
    return made


def stream(number: int) -> Stream:
    made = Stream(
        stream_id=number,
        name=f"scope/stream-{number}",
        configuration="{" + " " * 200 + f"{number}" + "}",
        created_us=number,
    )
    for epoch in range(5):
        base = 1000 * number + 10 * epoch
        made.epochs.append(
            m.EpochRecord(
                number=base,
                started_us=base,
                sealed_ids=[base + each for each in range(3)],
                created=[m.SegmentRangeRecord(base + each, base << 20, base << 21) for each in range(3)],
                cause=f"asked for {base}",
            )
        )
        made.parts.append(StreamPart(segment_id=base, key_range=KeyRange.inclusive(base, base + 5), epoch=base))
    return made


@table(
    "make",
    [
        segment,
        stream,
        lambda number: Segment(segment_id=number, name=f"scope/segment-{number}", created_us=number),
        lambda number: Writer(WriterRow(number=number, writer_id=f"writer-{number}", epoch=1, opened_us=number)),
    ],
    ids=["segment", "stream", "empty segment", "writer"],
)
def test_the_estimate_is_what_entities_take(make: Callable[[int], Any]) -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        made = {number: make(number) for number in range(10_000, 10_500)}
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    estimate = sum(each.memory_bytes for each in made.values())
    # What the caches keep of each beside it, in their dictionaries, is in the estimate too.
    own = after - before
    assert own <= estimate <= 2 * own + 600 * len(made), (own / len(made), estimate / len(made))
