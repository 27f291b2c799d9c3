"""Planning over epochs, on a model of a stream: no server, no Spark."""

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.client.read.ranges import ranges_between
from millrace.model.cut import StreamCut
from millrace.model.errors import CutInvalidError
from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.lineage import Lineage
from millrace.model.policy import StreamConfig
from millrace.model.position import START_MARK, Mark
from millrace.model.stream import StreamInfo, StreamSegment
from millrace.spark_source.errors import MissingRange
from millrace.spark_source.snapshot import UNCOUNTED, Marks, StreamSnapshot, cut_of, uncounted
from tests.support.tables import table

SEEDS = st.integers(0, 2**32 - 1)
KEYS = [KEY_SPACE * number // 16 + 1 for number in range(16)]
EVENT_BYTES = 10

Written = tuple[int, int]
"""A key, and the number of the event in the stream."""


class Model:
    """A stream as the server keeps it, with every event it ever had. A block is one to three events of one key."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.ever = {1: StreamSegment(segment_id=1, key_range=KeyRange(0, KEY_SPACE))}
        self.dropped: set[int] = set()
        # Of each segment its events, by the place at which they stand.
        self.events: dict[int, dict[tuple[int, int], Written]] = {1: {}}
        self.epoch = 0
        self.written = 0

    def write(self) -> None:
        key = self.dice.choice(KEYS)
        (segment,) = (each for each in self.ever.values() if not each.sealed_epoch and key in _keys(each))
        count = self.dice.randint(1, 3)
        for index in range(count):
            self.events[segment.segment_id][segment.length, index] = (key, self.written)
            self.written += 1
        self.ever[segment.segment_id] = replace(
            segment, length=segment.length + count * EVENT_BYTES, event_count=segment.event_count + count
        )

    def scale(self) -> None:
        """Replace some neighbours by others with borders of their own."""
        live = sorted(
            (each for each in self.ever.values() if not each.sealed_epoch), key=lambda each: each.key_range.low
        )
        first = self.dice.randrange(len(live))
        sealed = live[first : first + self.dice.randint(1, 3)]
        self.epoch += 1
        for each in sealed:
            self.ever[each.segment_id] = replace(each, sealed_epoch=self.epoch, sealed=True)
        low, high = sealed[0].key_range.low, sealed[-1].key_range.high
        borders = sorted({low, high, *(self.dice.randrange(low, high) for _ in range(self.dice.randint(0, 2)))})
        for a, b in itertools.pairwise(borders):
            number = len(self.ever) + 1
            self.ever[number] = StreamSegment(segment_id=number, key_range=KeyRange(a, b), epoch=self.epoch)
            self.events[number] = {}

    def truncate(self, cut: Marks) -> None:
        """Drop what is before a cut, as the server does: what its members replaced is deleted."""
        lineage = Lineage(self.ever.values())
        self.dropped |= lineage.before(cut)
        for segment_id, mark in cut.items():
            segment = self.ever[segment_id]
            self.ever[segment_id] = replace(segment, start_offset=max(segment.start_offset, mark.offset))

    def look(self, *cuts: Iterable[int]) -> StreamSnapshot:
        """Return what a planner learns."""
        listed = [each for each in self.ever.values() if each.segment_id not in self.dropped]
        info = StreamInfo(
            name="a/b", stream_id=1, created_us=0, epoch=self.epoch, sealed=False, configuration=StreamConfig(),
            segments=tuple(listed),
        )  # fmt: skip
        if all(segment_id not in self.dropped for cut in cuts for segment_id in cut):
            return StreamSnapshot(info)
        past = [replace(each, length=0, start_offset=0, event_count=0) for each in self.ever.values()]
        return StreamSnapshot(info, past=past)

    def counted(self, cut: Marks) -> dict[int, Mark]:
        """Return the marks, counted as the planner counts them: by asking the server."""
        return {
            segment_id: Mark(*mark.position, sum(place < mark.position for place in self.events[segment_id]))
            for segment_id, mark in cut.items()
        }

    def any_cut(self, start: Marks) -> dict[int, Mark]:
        """Return a cut of chance between another and the tail."""
        snapshot = self.look(start)
        cut = snapshot.maximum(start, snapshot.head)
        for _ in range(self.dice.randint(1, 4)):
            ends = snapshot.progress(snapshot.tail)
            cut = {segment_id: self._between(segment_id, mark, ends[segment_id]) for segment_id, mark in cut.items()}
            cut = snapshot.enter_successors(cut, bound=snapshot.tail)
        return self.counted(cut)

    def _between(self, segment_id: int, start: Mark, end: Mark) -> Mark:
        places = [place for place in self.events[segment_id] if start.position <= place < end.position]
        if not places or self.dice.random() < 0.5:
            return max(start, end)
        return Mark(*self.dice.choice(places), UNCOUNTED)

    def between(self, start: Marks, end: Marks, snapshot: StreamSnapshot) -> list[tuple[int, Written]]:
        """Return the events that tasks read, with their segments, in the order of the partitions."""
        return [
            (part.segment_id, event)
            for part in ranges_between(cut_of("a/b", start), cut_of("a/b", end), snapshot.stream)
            for place, event in self.events[part.segment_id].items()
            if part.start <= place < part.end
        ]

    def inside(self, gap: MissingRange) -> list[Written]:
        end = (KEY_SPACE if gap.end_offset is None else gap.end_offset, 0)
        return [
            event
            for place, event in self.events[gap.segment_id].items()
            if (gap.start_offset, gap.start_index) <= place < end
        ]


def _keys(segment: StreamSegment) -> range:
    return range(segment.key_range.low, segment.key_range.high)


class Query:
    """Does what the stream reader does, with limits of chance."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.offset: dict[int, Mark] = {1: START_MARK}
        self.read: list[Written] = []
        self.lost: list[Written] = []

    def batch(self, *, target: Marks | None = None, limited: bool = True) -> bool:
        """Run a batch; return whether there was one."""
        model = self.model
        snapshot = model.look(self.offset, target or ())
        snapshot.check(cut_of("a/b", self.offset))
        missing = snapshot.missing(self.offset)
        begin = model.counted(snapshot.maximum(self.offset, snapshot.head))
        bound = snapshot.tail if target is None else snapshot.minimum(snapshot.tail, target)
        ends = snapshot.progress(bound)
        start = snapshot.enter_successors(begin, bound=bound)
        reached = {segment_id: max(mark, ends[segment_id]) for segment_id, mark in start.items()}
        if limited:
            reached = {
                segment_id: model._between(segment_id, start[segment_id], mark) for segment_id, mark in reached.items()
            }
        reached = model.counted(snapshot.enter_successors(reached, bound=bound))
        if reached == self.offset:
            return False
        snapshot.check(cut_of("a/b", reached))
        rows = model.between(begin, reached, snapshot)
        segment_of: dict[int, int] = {}
        for segment_id, (key, _) in rows:
            assert segment_of.setdefault(key, segment_id) == segment_id, "a batch has one segment for each key"
        self.read += [event for _, event in rows]
        self.lost += [event for gap in missing for event in model.inside(gap)]
        self.offset = reached
        return True

    def check(self) -> None:
        """Check that everything was read once or is lost, and each key in its order."""
        done = self.read + self.lost
        assert sorted(done, key=lambda event: event[1]) == sorted(
            (event for events in self.model.events.values() for event in events.values()), key=lambda event: event[1]
        )
        for key in KEYS:
            numbers = [number for each, number in self.read if each == key]
            assert numbers == sorted(numbers)


@settings(deadline=None, print_blob=True)
@given(seed=SEEDS, steps=st.integers(1, 60), truncating=st.booleans())
def test_the_batches_of_a_query_are_the_stream_in_the_order_of_each_key(
    seed: int, steps: int, *, truncating: bool
) -> None:
    """Behaviours 55, 57 and 58: whatever is split, merged and truncated between the batches."""
    dice = random.Random(seed)
    model = Model(dice)
    query = Query(model)
    truncated: dict[int, Mark] = {1: START_MARK}
    for _ in range(steps):
        act = dice.choice(["write", "write", "write", "scale", "batch", "batch", "truncate"])
        if act == "truncate" and truncating:
            truncated = model.any_cut(truncated)
            model.truncate(truncated)
        elif act == "scale":
            model.scale()
        elif act == "batch":
            query.batch()
        elif act == "write":
            model.write()
    batches = 0
    while query.batch(limited=False):
        batches += 1
    query.check()
    assert truncating or not query.lost
    assert batches <= 2 + model.epoch
    # It has left everything that was replaced.
    assert query.offset == model.look().tail


@settings(deadline=None, print_blob=True)
@given(seed=SEEDS, before=st.integers(0, 25), after=st.integers(0, 25))
def test_a_query_ends_where_it_is_told_wherever_the_stream_was_scaled_since(seed: int, before: int, after: int) -> None:
    """Behaviour 56: exactly what is before the target is read, and no more."""
    dice = random.Random(seed)
    model = Model(dice)
    query = Query(model)
    acts: list[Callable[[], object]] = [model.write, model.scale, query.batch]
    for _ in range(before):
        dice.choice(acts)()
    target = model.look().tail
    written = model.written
    acts[2] = lambda: query.batch(target=target)
    for _ in range(after):
        dice.choice(acts)()
    while query.batch(target=target, limited=False):
        pass

    assert sorted(number for _, number in query.read) == list(range(written))


@settings(deadline=None, print_blob=True)
@given(seed=SEEDS, steps=st.integers(0, 40))
def test_the_maximum_and_the_minimum_of_two_cuts_are_cuts(seed: int, steps: int) -> None:
    """Behaviour 26."""
    dice = random.Random(seed)
    model = Model(dice)
    for _ in range(steps):
        dice.choice([model.write, model.scale])()
    one, other = model.any_cut({1: START_MARK}), model.any_cut({1: START_MARK})
    snapshot = model.look()
    maximum, minimum = snapshot.maximum(one, other), snapshot.minimum(one, other)
    for cut in (maximum, minimum):
        snapshot.check(cut_of("a/b", cut))
    a, b = snapshot.progress(one), snapshot.progress(other)

    assert snapshot.progress(maximum) == {segment_id: max(a[segment_id], b[segment_id]) for segment_id in a}
    assert snapshot.progress(minimum) == {segment_id: min(a[segment_id], b[segment_id]) for segment_id in a}
    assert maximum == snapshot.maximum(other, one)
    assert minimum == snapshot.minimum(other, one)
    assert snapshot.missing(one) == []


def info(*segments: StreamSegment) -> StreamInfo:
    return StreamInfo(
        name="a/b", stream_id=1, created_us=0, epoch=2, sealed=False, configuration=StreamConfig(), segments=segments
    )


def part(segment_id: int, low: int, high: int, epoch: int, sealed_epoch: int, start: int = 0) -> StreamSegment:
    return StreamSegment(
        segment_id=segment_id,
        key_range=KeyRange(low * KEY_SPACE // 4, high * KEY_SPACE // 4),
        epoch=epoch,
        sealed_epoch=sealed_epoch,
        start_offset=start,
        length=1000,
        event_count=10,
    )


# 11 was split into 12 and 13, those were merged into 14.
PARTS = (part(11, 0, 4, 0, 1), part(12, 0, 2, 1, 2), part(13, 2, 4, 1, 2), part(14, 0, 4, 2, 0))


def test_a_merge_waits_for_all_that_it_merges() -> None:
    """Behaviour 57."""
    snapshot = StreamSnapshot(info(*PARTS))
    half = {12: snapshot.end(12), 13: Mark(500, 0, 5)}

    assert snapshot.enter_successors(half, bound=snapshot.tail) == half
    assert snapshot.enter_successors({12: snapshot.end(12), 13: snapshot.end(13)}, bound=snapshot.tail) == {
        14: START_MARK
    }
    assert snapshot.enter_successors({11: snapshot.end(11)}, bound={12: START_MARK, 13: START_MARK}) == {
        12: START_MARK,
        13: START_MARK,
    }
    assert snapshot.enter_successors({11: snapshot.end(11)}, bound={11: snapshot.end(11)}) == {11: snapshot.end(11)}


def test_what_is_deleted_is_named_and_not_counted() -> None:
    """Behaviour 58."""
    snapshot = StreamSnapshot(info(part(14, 0, 4, 2, 0, start=300)), past=PARTS)

    assert snapshot.missing({12: Mark(1000, 0, 10), 13: Mark(40, 2, 3)}) == [
        MissingRange(segment_id=12, start_offset=1000, start_index=0, end_offset=None),
        MissingRange(segment_id=13, start_offset=40, start_index=2, end_offset=None),
        MissingRange(segment_id=14, start_offset=0, start_index=0, end_offset=300),
    ]
    assert snapshot.maximum({11: START_MARK}, snapshot.head) == {14: Mark(300, 0, UNCOUNTED)}
    assert snapshot.missing({14: Mark(300, 0, 3)}) == []
    assert "segment 13 from 40.2 to its end" in str(snapshot.missing({12: START_MARK, 13: Mark(40, 2, 3)})[1])


def test_of_two_marks_at_one_position_the_counted_one_is_kept() -> None:
    snapshot = StreamSnapshot(info(*PARTS))
    counted, uncounted_mark = {14: Mark(300, 2, 7)}, {14: Mark(300, 2, UNCOUNTED)}

    for one, other in ((counted, uncounted_mark), (uncounted_mark, counted)):
        assert snapshot.maximum(one, other) == counted
        assert snapshot.minimum(one, other) == counted


def test_what_came_to_be_after_the_answer_is_left_out() -> None:
    """The history was asked for after the stream, and may know more."""
    newer = [*PARTS[:3], replace(PARTS[3], sealed_epoch=3), part(15, 0, 4, 3, 0)]
    snapshot = StreamSnapshot(info(PARTS[3]), past=newer)

    assert snapshot.tail == {14: snapshot.end(14)}
    assert not snapshot.is_replaced(14)


@table(
    ("places", "reason"),
    [
        ({99: (0, 0)}, r"\[99\], which a/b never had"),
        ({12: (0, 0)}, "every key exactly once"),
        ({11: (1001, 0)}, "beyond the end of segment 11"),
        ({14: (1000, 1)}, "beyond the end of segment 14"),
    ],
)
def test_what_is_no_cut_of_the_stream_is_refused(places: dict[int, tuple[int, int]], reason: str) -> None:
    with pytest.raises(CutInvalidError, match=reason):
        StreamSnapshot(info(*PARTS)).check(StreamCut.of("a/b", places))
    with pytest.raises(CutInvalidError, match="a cut of a/c"):
        StreamSnapshot(info(*PARTS)).check(StreamCut.of("a/c", {14: (0, 0)}))


def test_marks_and_cuts() -> None:
    cut = StreamCut.of("a/b", {12: (8, 1), 13: (0, 0)})
    assert cut_of("a/b", uncounted(cut)) == cut
