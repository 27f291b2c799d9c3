"""Simulated streams: what may be forgotten, against every single append."""

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.key_range import KEY_SPACE, KeyRange, covers_once
from millrace.model.lineage import Lineage, StreamPart
from millrace.model.policy import RetentionKind, RetentionPolicy
from millrace.server.container.state.stream import Stream
from millrace.server.streams.retention import (
    PartFacts,
    StreamFacts,
    as_cut,
    decide,
    held_bytes,
    keeping,
    progress_of_cut,
)
from millrace.wire import messages as m

NEVER = -(2**62)


class Append(NamedTuple):
    segment_id: int
    offset: int
    size: int
    stamp_us: int


@dataclass
class World:
    """A stream, with every append known."""

    stream: Stream = field(default_factory=lambda: Stream(stream_id=1, name="a/b", configuration="", created_us=0))
    appends: list[Append] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    now_us: int = 1000
    known: int = 1

    def __post_init__(self) -> None:
        self._begin([], [(0, KEY_SPACE - 1)])

    def _begin(self, sealed: list[int], ranges: list[tuple[int, int]]) -> None:
        created = [m.SegmentRangeRecord(len(self.lengths) + n + 1, low, last) for n, (low, last) in enumerate(ranges)]
        number = len(self.stream.epochs)
        self.stream.begin_epoch(m.EpochRecord(number, self.now_us, "", sealed, created))
        for segment_id, _, _ in created:
            self.lengths[segment_id] = self.starts[segment_id] = 0

    def append(self, choice: int, size: int) -> None:
        parts = self.stream.open_parts
        segment_id = parts[choice % len(parts)].segment_id
        self.appends.append(Append(segment_id, self.lengths[segment_id], size, self.now_us))
        self.lengths[segment_id] += size

    def split(self, choice: int) -> None:
        parts = self.stream.open_parts
        part = parts[choice % len(parts)]
        border = part.key_range.low + (part.key_range.last - part.key_range.low) // 2 + 1
        self._begin([part.segment_id], [(part.key_range.low, border - 1), (border, part.key_range.last)])

    def merge(self, choice: int) -> None:
        parts = self.stream.open_parts
        first = choice % len(parts)
        if first + 1 < len(parts):
            sealed = parts[first : first + 2]
            self._begin([part.segment_id for part in sealed], [(sealed[0].key_range.low, sealed[1].key_range.last)])

    def facts(self) -> StreamFacts:
        parts = {}
        for part in self.stream.parts:
            appends = [a for a in self.appends if a.segment_id == part.segment_id]
            index = appends[:: self.known]
            stamps = [max(a.stamp_us for a in appends if a.offset <= entry.offset) for entry in index]
            parts[part.segment_id] = PartFacts(
                start_offset=self.starts[part.segment_id],
                length=self.lengths[part.segment_id],
                offsets=[a.offset for a in index],
                stamps_us=stamps,
                end_stamp_us=max((a.stamp_us for a in appends), default=self.now_us),
            )
        return StreamFacts(parts, Lineage(self.stream.history()))

    def tail_cut(self) -> dict[int, int]:
        return {part.segment_id: self.lengths[part.segment_id] for part in self.stream.open_parts}

    def check_cut(self, positions: dict[int, int]) -> None:
        """Behaviour 26: the key space is covered once, at borders of appends, and predecessors come first."""
        parts = [part for part in self.stream.parts if part.segment_id in positions]
        assert covers_once(part.key_range for part in parts)
        borders = {(a.segment_id, a.offset) for a in self.appends}
        for segment_id, offset in positions.items():
            assert (segment_id, offset) in borders or offset in (self.starts[segment_id], self.lengths[segment_id])
        assert not any(a.precedes(b) for a in parts for b in parts)


@st.composite
def worlds(draw: st.DrawFn, *, may_jump: bool = True) -> World:
    world = World(known=draw(st.sampled_from([1, 1, 3])))
    steps = st.tuples(st.sampled_from(["append"] * 5 + ["split", "merge"]), st.integers(0, 9), st.integers(1, 99))
    for kind, choice, amount in draw(st.lists(steps, max_size=40)):
        if kind == "append":
            world.append(choice, amount)
        elif kind == "split":
            world.split(choice)
        else:
            world.merge(choice)
        world.now_us += amount if not may_jump or choice < 9 else -amount
    return world


@given(worlds(), st.data())
def test_retention_by_size(world: World, data: st.DataObject) -> None:
    """Behaviour 25: never less than the minimum, nor more than the maximum as far as borders of appends allow."""
    facts = world.facts()
    min_bytes = data.draw(st.integers(0, 500))
    max_bytes = data.draw(st.integers(min_bytes, 900))
    policy = RetentionPolicy(kind=RetentionKind.SIZE, min_bytes=min_bytes, max_bytes=max_bytes)

    decision = decide(policy, facts, cursors={}, young_from_us=NEVER, old_before_us=NEVER)

    if facts.size_bytes <= max_bytes:
        assert decision.cut is None
    if decision.cut is None:
        return
    world.check_cut(decision.cut.positions)
    assert decision.cut.remaining_bytes >= min_bytes
    assert f"the maximum is {max_bytes}" in decision.reason
    if world.known == 1 and max_bytes - min_bytes >= 200:
        assert decision.cut.remaining_bytes <= max_bytes


@given(worlds(may_jump=False), st.data())
def test_retention_by_time(world: World, data: st.DataObject) -> None:
    """Behaviour 25: all that is younger is kept; where every border is known, nothing older is."""
    facts = world.facts()
    old_before_us = data.draw(st.integers(800, max(800, world.now_us + 10)))
    policy = RetentionPolicy(kind=RetentionKind.TIME, max_age_s=60.0)

    decision = decide(policy, facts, cursors={}, young_from_us=NEVER, old_before_us=old_before_us)

    cut = decision.cut or as_cut(facts, {})
    world.check_cut(cut.positions)
    for append in world.appends:
        kept = append.offset >= cut.progress[append.segment_id]
        assert kept or append.stamp_us < old_before_us
    if world.known == 1:
        newest_old = [a for a in world.appends if a.stamp_us < old_before_us]
        left = sum(a.offset >= cut.progress[a.segment_id] for a in newest_old)
        # The last one before a border stays while the one after it is not old, in each segment.
        assert left <= len(cut.positions)


@given(worlds(), st.data())
def test_retention_by_consumption(world: World, data: st.DataObject) -> None:
    """Behaviour 25: never past the slowest registered cursor, inside the bounds."""
    facts = world.facts()
    cursors = {}
    for name in data.draw(st.sets(st.sampled_from(["a", "b", "c"]))):
        stamp = data.draw(st.integers(800, max(800, world.now_us + 10)))
        progress = {s: p.border_before(stamp) for s, p in facts.parts.items()}
        cursors[name] = as_cut(facts, progress).positions
    min_bytes = data.draw(st.sampled_from([0, 100, 300]))
    policy = RetentionPolicy(kind=RetentionKind.CONSUMPTION, min_bytes=min_bytes)

    decision = decide(policy, facts, cursors=cursors, young_from_us=NEVER, old_before_us=NEVER)

    if decision.cut is None:
        if not cursors and facts.size_bytes:
            assert "no cursor" in decision.kept_reasons[0]
        return
    assert cursors
    world.check_cut(decision.cut.positions)
    assert decision.cut.remaining_bytes >= min_bytes
    for positions in cursors.values():
        passed = progress_of_cut(facts, positions)
        assert all(offset <= passed[segment_id] for segment_id, offset in decision.cut.progress.items())


def test_between_borders_that_are_not_known_everything_is_kept() -> None:
    part = PartFacts(
        start_offset=0,
        length=2000,
        offsets=[0],
        stamps_us=[5],
        end_stamp_us=9,
    )
    facts = StreamFacts({1: part}, Lineage([StreamPart(segment_id=1, key_range=KeyRange(0, KEY_SPACE))]))
    policy = RetentionPolicy(kind=RetentionKind.SIZE, max_bytes=1000)

    blurred = decide(policy, facts, cursors={}, young_from_us=NEVER, old_before_us=NEVER, is_sharp=False)
    assert (blurred.cut, blurred.near and blurred.near.positions) == (None, {1: 0})
    sharp = decide(policy, facts, cursors={}, young_from_us=NEVER, old_before_us=NEVER)
    assert sharp.cut is not None
    assert sharp.cut.positions == {1: 2000}


@given(worlds(), st.data())
def test_a_cursor_holds_what_would_be_consumed_without_it(world: World, data: st.DataObject) -> None:
    facts = world.facts()
    passed = {
        name: {
            s: p.border_before(data.draw(st.integers(800, max(800, world.now_us + 9)))) for s, p in facts.parts.items()
        }
        for name in data.draw(st.sets(st.sampled_from("abc")))
    }

    def left(names: set[str]) -> int:
        slow = {s: min((passed[name][s] for name in names), default=p.length) for s, p in facts.parts.items()}
        return as_cut(facts, slow).remaining_bytes

    assert held_bytes(facts, passed) == {name: left(set(passed)) - left(set(passed) - {name}) for name in passed}


def grown(*, appends: int = 10, size: int = 100) -> World:
    world = World()
    for _ in range(appends):
        world.append(0, size)
        world.now_us += 1_000_000
    return world


def test_the_maximum_passes_a_cursor_that_is_too_slow() -> None:
    world = grown()
    policy = RetentionPolicy(kind=RetentionKind.CONSUMPTION, max_bytes=500)
    decision = decide(policy, world.facts(), cursors={"slow": {1: 100}}, young_from_us=NEVER, old_before_us=NEVER)
    assert decision.cut is not None
    assert decision.cut.positions == {1: 500}
    assert decision.reason == "consumption: 1,000 bytes, the maximum is 500; passed by every cursor"


def test_the_minimum_of_age_keeps_what_was_consumed() -> None:
    world = grown()
    policy = RetentionPolicy(kind=RetentionKind.CONSUMPTION, min_age_s=5.0)
    decision = decide(
        policy,
        world.facts(),
        cursors={"fast": {1: 1000}},
        young_from_us=world.now_us - 5_000_000,
        old_before_us=NEVER,
    )
    assert decision.cut is not None
    assert decision.cut.positions == {1: 400}
    assert decision.kept_reasons == ("what is younger than 5 s is kept",)


def test_the_minimum_of_bytes_wins_over_the_maximum_of_age() -> None:
    world = grown()
    policy = RetentionPolicy(kind=RetentionKind.TIME, max_age_s=1.0, min_bytes=350)
    decision = decide(policy, world.facts(), cursors={}, young_from_us=NEVER, old_before_us=world.now_us + 1)
    assert decision.cut is not None
    assert decision.cut.positions == {1: 600}
    assert decision.kept_reasons == ("the minimum of 350 bytes keeps some",)


def test_everything_may_be_forgotten_when_it_is_old() -> None:
    world = grown()
    world.split(0)
    policy = RetentionPolicy(kind=RetentionKind.TIME, max_age_s=1.0)
    world.now_us += 1
    decision = decide(policy, world.facts(), cursors={}, young_from_us=NEVER, old_before_us=world.now_us + 1)
    assert decision.cut is not None
    assert decision.cut.positions == {2: 0, 3: 0}


def test_successors_wait_for_all_that_they_replaced() -> None:
    """A merge is passed when both of its predecessors are."""
    world = grown()
    world.split(0)
    world.append(0, 50)
    world.append(1, 70)
    world.merge(0)
    facts = world.facts()

    assert as_cut(facts, {1: 1000, 2: 50, 3: 60, 4: 9}).positions == {2: 50, 3: 60}
    assert as_cut(facts, {1: 1000, 2: 50, 3: 70}).positions == {4: 0}
    assert as_cut(facts, {1: 999, 2: 50, 3: 70}).positions == {1: 999}


def test_a_cursor_at_a_deleted_segment_holds_everything() -> None:
    world = grown()
    facts = world.facts()
    assert progress_of_cut(facts, {77: 5}) == {1: 0}


@given(worlds(), st.integers(0, 2000))
def test_keeping_leaves_at_least_so_much(world: World, size: int) -> None:
    facts = world.facts()
    cut = keeping(facts, size)
    world.check_cut(cut.positions)
    assert cut.remaining_bytes >= min(size, facts.size_bytes)
    if world.known == 1 and world.appends:
        assert cut.remaining_bytes <= size + 100 * len(facts.parts)


def test_what_was_truncated_before_is_the_start() -> None:
    part = PartFacts(
        start_offset=150, length=900, offsets=[100, 400], stamps_us=[5, 6],
        end_stamp_us=9,
    )  # fmt: skip
    assert (part.border_at(399), part.border_at(400), part.border_at(899), part.border_at(900)) == (150, 400, 400, 900)
    assert [part.border_before(stamp) for stamp in (5, 6, 7, 9, 10)] == [150, 150, 400, 400, 900]
