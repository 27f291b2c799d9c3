"""Simulated streams: what the policy makes of loads over minutes and days, in moments."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model.key_range import KEY_SPACE
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.model.policy import ScalingKind, ScalingPolicy
from millrace.server.kinds.streams.resizing import ScalePlan
from millrace.server.streams.load import Meter
from millrace.server.streams.options import StreamsOptions
from millrace.server.streams.scaling import Decision, Memory, SegmentLoad, decide
from tests.support.examples import examples
from tests.support.tables import table

OPTIONS = StreamsOptions()
TARGET = 100.0
BY_EVENTS = ScalingPolicy(kind=ScalingKind.EVENTS, target_per_s=TARGET)


@dataclass
class Simulated:
    """A segment with its meters."""

    segment_id: int
    low: int
    last: int
    fast: Meter = field(default_factory=lambda: Meter(OPTIONS.fast_window_s))
    slow: Meter = field(default_factory=lambda: Meter(OPTIONS.slow_window_s))


class Simulation:
    """A stream whose keys are spread evenly over `places`, but for one hot key with a share of its own."""

    def __init__(
        self, policy: ScalingPolicy = BY_EVENTS, *, hot_share: float = 0.0, spread: float = 1.0, seed: int = 1
    ) -> None:
        self.policy = policy
        self.random = random.Random(seed)
        count = 500
        self.places = sorted(self.random.randrange(int(KEY_SPACE * spread)) for _ in range(count))
        self.weights = dict.fromkeys(self.places, (1 - hot_share) / count)
        self.hot_place = self.places[count // 3]
        self.weights[self.hot_place] += hot_share
        self.memory = Memory()
        self.now_s = 0.0
        self.segments = [Simulated(1, 0, KEY_SPACE - 1)]
        self.next_id = 2
        self.events: list[tuple[float, ScalePlan]] = []
        self.counts: list[tuple[float, int]] = []
        self.decision = Decision(plans=(), memory=Memory(), reasons={})

    def run(
        self, duration_s: float, rate: Callable[[float], float], *, noise: float = 0.0, tick_s: float = 2.0
    ) -> None:
        end_s = self.now_s + duration_s
        while self.now_s < end_s:
            self.now_s += tick_s
            total = rate(self.now_s)
            loads = []
            for segment in self.segments:
                weights = [(p, w) for p, w in self.weights.items() if segment.low <= p <= segment.last]
                share = sum(weight for _, weight in weights)
                count = total * share * tick_s * (1 + noise * self.random.uniform(-1, 1))
                segment.fast.add(count, tick_s)
                segment.slow.add(count, tick_s)
                loads.append(
                    SegmentLoad(
                        segment_id=segment.segment_id,
                        low=segment.low,
                        last=segment.last,
                        last_per_s=count / tick_s,
                        fast_per_s=segment.fast.per_s,
                        slow_per_s=segment.slow.per_s,
                        weights=sorted(weights),
                        sample_count=256 if weights else 0,
                    )
                )
            self.decision = decide(self.policy, loads, memory=self.memory, now_s=self.now_s, options=OPTIONS)
            self.memory = self.decision.memory
            for plan in self.decision.plans:
                self.carry_out(plan)
            self.counts.append((self.now_s, len(self.segments)))

    def carry_out(self, plan: ScalePlan) -> None:
        sealed = [segment for segment in self.segments if segment.segment_id in plan.sealed_ids]
        assert len(sealed) == len(plan.sealed_ids)
        assert plan.ranges[0][0] == sealed[0].low
        assert plan.ranges[-1][1] == sealed[-1].last
        self.segments = [segment for segment in self.segments if segment not in sealed]
        for low, last in plan.ranges:
            self.segments.append(Simulated(self.next_id, low, last))
            self.next_id += 1
        self.segments.sort(key=lambda segment: segment.low)
        assert self.segments[0].low == 0
        assert self.segments[-1].last == KEY_SPACE - 1
        assert all(a.last + 1 == b.low for a, b in pairwise(self.segments))
        assert len(self.segments) >= self.policy.segment_count or len(plan.ranges) > 1
        self.events.append((self.now_s, plan))


def test_a_sustained_load_is_split_within_a_minute() -> None:
    """Behaviour 24: within a minute; the reason says what was seen."""
    it = Simulation()
    it.run(120, lambda now_s: 20.0)
    assert it.events == []
    it.run(60, lambda now_s: 3.2 * TARGET)

    assert 10 < it.events[0][0] - 120 < 60
    assert len(it.segments) >= 2
    assert "events/s, above its target of 100 for 1" in it.events[0][1].reason
    it.run(120, lambda now_s: 3.2 * TARGET)
    assert len(it.segments) == 4


def test_a_large_factor_splits_into_as_many_parts_as_are_needed() -> None:
    it = Simulation(ScalingPolicy(kind=ScalingKind.EVENTS, target_per_s=TARGET, factor=8))
    it.run(40, lambda now_s: 4.8 * TARGET)
    assert [len(plan.ranges) for _, plan in it.events] == [5]


def test_the_border_is_where_the_load_is() -> None:
    """Behaviour 24: all keys fall into the first hundredth of the key space; each half gets half of the load."""
    it = Simulation(spread=0.01)
    it.run(40, lambda now_s: 1.8 * TARGET)

    assert len(it.segments) == 2
    border = it.segments[1].low
    assert border < 0.01 * KEY_SPACE
    below = sum(weight for place, weight in it.weights.items() if place < border)
    assert below == pytest.approx(0.5, abs=0.02)


def test_one_hot_key_does_not_split_forever() -> None:
    """Behaviour 24: what can be split off is split off, then the hot key is left alone, and says why."""
    it = Simulation(hot_share=0.6)
    it.run(1200, lambda now_s: 10 * TARGET)

    assert len(it.segments) == 1
    assert it.decision.reasons[1] == "one key holds 60% of its load; splitting would not help"

    it = Simulation(hot_share=0.4)
    it.run(1200, lambda now_s: 10 * TARGET)
    last_s = it.events[-1][0]
    assert last_s < 400
    assert len(it.segments) < 16
    hot = next(segment for segment in it.segments if segment.low <= it.hot_place <= segment.last)
    assert "one key holds" in it.decision.reasons[hot.segment_id]


def steady(load: float) -> Callable[[float], float]:
    return lambda now_s: load


def test_a_steady_load_near_a_border_does_not_flap() -> None:
    """Behaviour 24: no flapping; whatever the load is, nothing that was split is merged again."""
    for tenths in (4, 5, 6, 9, 10, 11, 12, 18, 20, 21, 22, 25):
        it = Simulation(seed=tenths)
        it.run(1200, steady(tenths / 10 * TARGET), noise=0.3)
        assert not any(plan.reason.startswith("merge") for _, plan in it.events)
        assert tenths > 9 or not it.events
        assert len(it.segments) == len(it.events) + 1 <= max(1, 2.5 * tenths / 10)


def test_a_day_of_load_is_followed_up_and_down() -> None:
    it = Simulation(ScalingPolicy(kind=ScalingKind.EVENTS, target_per_s=TARGET, segment_count=2))
    hour_s = 1800.0
    it.run(6 * hour_s, lambda now_s: TARGET * (4.2 + 4 * math.sin(now_s * math.tau / (6 * hour_s))), tick_s=4.0)

    peak = max(count for now_s, count in it.counts)
    assert 7 <= peak <= 16
    assert it.counts[0][1] >= 1
    assert min(count for now_s, count in it.counts if now_s > 60) == 2
    assert it.counts[-1][1] < peak
    assert len(it.events) < 4 * peak
    kinds = [plan.reason.split(":")[0] for _, plan in it.events]
    assert sum(a != b for a, b in pairwise(kinds)) <= 8


@table(("times", "length_s", "period_s"), [(8, 4, 120), (30, 4, 120), (5, 10, 90), (100, 2, 300)])
def test_short_bursts_change_nothing(times: float, length_s: float, period_s: float) -> None:
    """However high they are: a split takes longer to come than the burst takes to go."""
    it = Simulation()
    it.run(1800, lambda now_s: times * TARGET if now_s % period_s < length_s else 0.1 * TARGET)
    assert it.events == []


def test_a_burst_that_stays_is_a_load() -> None:
    it = Simulation()
    it.run(1800, lambda now_s: 6 * TARGET if now_s % 20 < 6 else 0.0)  # 1.8 of the target on average
    assert len(it.segments) >= 2
    assert not any(plan.reason.startswith("merge") for _, plan in it.events)


def test_a_short_pause_merges_nothing() -> None:
    it = Simulation()
    it.run(300, lambda now_s: 8 * TARGET)
    before = it.events[-1][0]
    for _ in range(5):
        it.run(70, lambda now_s: 0.0)
        it.run(180, lambda now_s: 8 * TARGET)
    assert it.events[-1][0] == before


def test_a_load_that_swings_about_its_target_is_followed_once() -> None:
    """Behaviour 24: what is split when it is high is not merged when it is a little low, again and again."""
    it = Simulation()
    it.run(3600, lambda now_s: TARGET * (1 + 0.35 * math.sin(now_s * math.tau / 600)), noise=0.2)
    assert [len(plan.ranges) for _, plan in it.events] == [2]


def test_cold_neighbours_are_merged_down_to_the_minimum() -> None:
    """Behaviour 24: merges come when neighbours are cold, never below the minimum."""
    it = Simulation(ScalingPolicy(kind=ScalingKind.EVENTS, target_per_s=TARGET, segment_count=3))
    it.run(300, lambda now_s: 8 * TARGET)
    before = len(it.segments)
    assert before >= 8
    started_s = it.now_s
    it.run(1200, lambda now_s: 0.01 * TARGET)

    assert len(it.segments) == 3
    merges = [(when, plan) for when, plan in it.events if when > started_s]
    assert merges[0][0] - started_s > OPTIONS.merge_after_s
    assert all(plan.reason.startswith("merge: ") for _, plan in merges)
    assert set(it.decision.reasons.values()) == {"the stream keeps at least 3 segments"}


def test_segments_that_were_never_warm_are_merged_after_the_same_wait() -> None:
    it = Simulation()
    quarter = KEY_SPACE // 4
    it.segments = [Simulated(number, number * quarter, (number + 1) * quarter - 1) for number in range(1, 4)]
    it.segments.insert(0, Simulated(9, 0, quarter - 1))
    it.next_id = 10
    it.run(200, lambda now_s: 0.0)
    assert [len(plan.sealed_ids) for _, plan in it.events] == [2, 2, 2]
    waits = [b - a for a, b in pairwise([0.0, *sorted({when for when, _ in it.events})])]
    assert all(OPTIONS.merge_after_s <= wait_s <= OPTIONS.merge_after_s + 6 for wait_s in waits)


def test_neighbours_that_are_warm_only_together_are_left_alone() -> None:
    low, high = (0, KEY_SPACE // 2 - 1), (KEY_SPACE // 2, KEY_SPACE - 1)
    for left_per_s, right_per_s in ((0.3, 0.3), (0.1, 0.5), (0.5, 0.1)):
        loads = [
            SegmentLoad(
                segment_id=number, low=keys[0], last=keys[1], last_per_s=rate * TARGET, fast_per_s=rate * TARGET,
                slow_per_s=rate * TARGET,
            )
            for number, keys, rate in ((1, low, left_per_s), (2, high, right_per_s))
        ]  # fmt: skip
        decision = decide(BY_EVENTS, loads, memory=Memory(), now_s=0.0, options=OPTIONS)
        assert not decision.memory.cold_since_s


def test_there_are_never_more_segments_than_a_stream_can_have() -> None:
    width = KEY_SPACE // SEGMENTS_PER_STREAM_MAX
    borders = [*range(0, KEY_SPACE - 8 * width, width), KEY_SPACE]  # seven fewer than the bound
    loads = [
        SegmentLoad(
            segment_id=low,
            low=low,
            last=high - 1,
            last_per_s=1e4,
            fast_per_s=1e4,
            slow_per_s=1e4,
            sample_count=99,
            weights=[(low + part * (high - low) // 9, 1.0) for part in range(9)],
        )
        for low, high in pairwise(borders)
    ]
    policy = ScalingPolicy(kind=ScalingKind.EVENTS, target_per_s=TARGET, factor=4)
    memory = Memory({load.segment_id: 0.0 for load in loads})
    decision = decide(policy, loads, memory=memory, now_s=99.0, options=OPTIONS)
    assert len(loads) + sum(len(plan.ranges) - 1 for plan in decision.plans) == SEGMENTS_PER_STREAM_MAX
    assert sum("no more are possible" in reason for reason in decision.reasons.values()) == len(loads) - 3


def test_only_where_it_is_cold_there_are_merges() -> None:
    """The lower half of the keys falls silent, the upper half continues."""
    it = Simulation()
    it.run(300, lambda now_s: 8 * TARGET)
    upper = [segment.segment_id for segment in it.segments if segment.low >= KEY_SPACE // 2 + KEY_SPACE // 16]
    it.weights = {place: weight for place, weight in it.weights.items() if place >= KEY_SPACE // 2}
    it.run(900, lambda now_s: 8 * TARGET)

    assert {segment.segment_id for segment in it.segments} >= set(upper)
    assert sum(segment.last < KEY_SPACE // 2 for segment in it.segments) <= 1


def test_a_minimum_that_was_raised_is_reached_at_once() -> None:
    it = Simulation(ScalingPolicy(kind=ScalingKind.BYTES, target_per_s=TARGET, segment_count=5))
    it.run(8, lambda now_s: 0.0)
    assert len(it.segments) == 5


def test_what_cannot_be_read_is_split_evenly_but_not_forever() -> None:
    load = SegmentLoad(segment_id=1, low=0, last=KEY_SPACE - 1, fast_per_s=900, slow_per_s=900, last_per_s=900)
    memory = Memory(hot_since_s={1: 0.0})
    decision = decide(BY_EVENTS, [load], memory=memory, now_s=99.0, options=OPTIONS)
    half = KEY_SPACE // 2
    assert decision.plans[0].ranges == ((0, half - 1), (half, KEY_SPACE - 1))
    assert "too few events to judge by" in decision.plans[0].reason

    narrow = SegmentLoad(segment_id=1, low=0, last=KEY_SPACE >> 8, fast_per_s=900, slow_per_s=900, last_per_s=900)
    decision = decide(BY_EVENTS, [narrow], memory=memory, now_s=99.0, options=OPTIONS)
    assert decision.plans == ()
    assert "cannot be read" in decision.reasons[1]


def test_events_without_keys_are_split_evenly() -> None:
    load = SegmentLoad(
        segment_id=1, low=0, last=99, fast_per_s=900, slow_per_s=900, last_per_s=900, weights=[(7, 3.0)],
        weight_unkeyed=9.0, sample_count=12,
    )  # fmt: skip
    decision = decide(BY_EVENTS, [load], memory=Memory({1: 0.0}), now_s=99.0, options=OPTIONS)
    assert decision.plans[0].ranges == ((0, 49), (50, 99))
    assert "have no key" in decision.plans[0].reason


def rate_of(kind: str, size: float, phase: float) -> Callable[[float], float]:
    """Return the load of a stream over time."""

    def rate(now_s: float) -> float:
        if kind == "idle":
            return 0.0
        if kind == "low":
            return size / 10
        if kind == "burst":
            return size if (now_s + phase) % 150 < 6 else 0.0
        if kind == "day":
            return size * (1 + math.sin((now_s + phase) * math.tau / 1800)) / 2
        return size

    return rate


def loads_of_many(count: int) -> list[tuple[str, Simulation, Callable[[float], float]]]:
    """Return as many streams, of six kinds, each with figures of its own."""
    chance = random.Random(5)
    streams = []
    for number in range(count):
        kind = ("idle", "low", "steady", "burst", "day", "hot key")[number % 6]
        rate = rate_of(kind, chance.uniform(2, 9) * TARGET, chance.uniform(0, 600))
        streams.append((kind, Simulation(hot_share=0.6 if kind == "hot key" else 0.0, seed=number), rate))
    return streams


@pytest.mark.slow
def test_many_streams_are_each_treated_by_what_they_have() -> None:
    """Behaviour 24: dozens of streams at once, whose segments even have the same ids; none disturbs another."""
    together = loads_of_many(72)
    for _ in range(450):
        for _, it, rate in together:
            it.run(4, rate, noise=0.1, tick_s=4.0)

    for kind, it, rate in together:
        if kind in ("idle", "low", "burst", "hot key"):
            assert it.events == [], kind
        elif kind == "steady":
            share = rate(0.0) / TARGET
            assert share / OPTIONS.split_above / 1.1 <= len(it.segments) <= 2.5 * share
            assert it.events[0][0] < 60
            assert not any(plan.reason.startswith("merge") for _, plan in it.events)
            assert it.events[-1][0] < 900  # and then never again
        else:
            kinds = [plan.reason.split(":")[0] for _, plan in it.events]
            assert kinds.count("split") >= 1 <= kinds.count("merge")
            assert sum(a != b for a, b in pairwise(kinds)) <= 3
    for (kind, it, _), (_, alone, rate) in list(zip(together, loads_of_many(72), strict=True))[::7]:
        alone.run(1800, rate, noise=0.1, tick_s=4.0)
        assert [when for when, _ in alone.events] == [when for when, _ in it.events], kind
        assert [plan for _, plan in alone.events] == [plan for _, plan in it.events], kind


def test_a_fixed_stream_is_left_alone() -> None:
    load = SegmentLoad(segment_id=1, low=0, last=99, fast_per_s=1e9, slow_per_s=1e9, last_per_s=1e9)
    decision = decide(ScalingPolicy(), [load], memory=Memory({1: 0.0}), now_s=999.0, options=OPTIONS)
    assert decision == Decision(plans=(), memory=Memory(), reasons={})


@settings(max_examples=examples(60))
@given(st.data())
def test_any_decision_keeps_the_key_space_covered(data: st.DataObject) -> None:
    """Behaviour 23, 24: whatever is seen, plans cover what they seal, and no segment is in two of them."""
    borders = data.draw(st.sets(st.integers(1, KEY_SPACE - 1), max_size=9))
    rates = st.floats(0, 5 * TARGET)
    loads = []
    for number, (low, high) in enumerate(pairwise([0, *sorted(borders), KEY_SPACE])):
        places = data.draw(st.dictionaries(st.integers(low, high - 1), st.floats(0.1, 9), max_size=12))
        loads.append(
            SegmentLoad(
                segment_id=number, low=low, last=high - 1, fast_per_s=data.draw(rates), slow_per_s=data.draw(rates),
                last_per_s=data.draw(rates), weights=sorted(places.items()),
                weight_unkeyed=data.draw(st.floats(0, 9)), sample_count=data.draw(st.integers(0, 30)),
            )
        )  # fmt: skip
    memory = Memory(
        {load.segment_id: 0.0 for load in loads},
        {(a.segment_id, b.segment_id): 0.0 for a, b in pairwise(loads)},
    )
    policy = ScalingPolicy(
        kind=ScalingKind.EVENTS,
        target_per_s=TARGET,
        factor=data.draw(st.integers(2, 6)),
        segment_count=data.draw(st.integers(1, 12)),
    )

    decision = decide(policy, loads, memory=memory, now_s=data.draw(st.floats(0, 200)), options=OPTIONS)

    by_id = {load.segment_id: load for load in loads}
    sealed = [segment_id for plan in decision.plans for segment_id in plan.sealed_ids]
    assert len(sealed) == len(set(sealed))
    for plan in decision.plans:
        old = [(by_id[segment_id].low, by_id[segment_id].last) for segment_id in plan.sealed_ids]
        for ranges in (old, list(plan.ranges)):
            assert all(low <= last for low, last in ranges)
            assert all(a[1] + 1 == b[0] for a, b in pairwise(ranges))
        assert (old[0][0], old[-1][1]) == (plan.ranges[0][0], plan.ranges[-1][1])
        assert len(plan.ranges) <= policy.factor
    count = len(loads) + sum(len(plan.ranges) - len(plan.sealed_ids) for plan in decision.plans)
    assert count >= min(len(loads), policy.segment_count)
