"""Decides when segments of a stream are split and merged, and where: load in, plan out.

Nothing here reads a clock or changes a stream. A segment is *hot* while its rate is clearly above its target, over some
seconds or over a minute. Hot for long enough, and not because of a burst that is over, it is split there where the load
is: at the places that halve what its sampled keys weigh. When one key alone holds most of it no border would help, and
it is left as it is. Two neighbours are *cold* while together they are clearly below the target of one; cold for long
enough, they are merged. Between hot and cold there is a wide band in which nothing happens, so a steady load never
makes a stream split and merge by turns.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from millrace.model.key_range import KEY_SPACE
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.model.policy import ScalingKind, ScalingPolicy
from millrace.server.kinds.streams.resizing import ScalePlan

from .options import StreamsOptions

HOT_KEY_SHARE: Final = 0.5
"""A key that holds more than this of the load of a segment keeps it from being split."""
SAMPLES_COUNT_MIN: Final = 8
"""With fewer events to judge by, a segment is split in the middle,"""
BLIND_WIDTH_MIN: Final = KEY_SPACE >> 8
"""but not below this width: if it was one key after all, halving its range would never end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLoad:
    """What is known of the load of an open segment.

    Attributes:
        low, last: its keys, inclusive.
        last_per_s: its rate since the previous measurement, in what the policy counts.
        fast_per_s, slow_per_s: the same over the two windows.
        weights: what sampled events weigh, by the place of their key, ascending.
        weight_unkeyed: what sampled events without a key weigh.
        sample_count: how many events were sampled.
    """

    segment_id: int
    low: int
    last: int
    last_per_s: float
    fast_per_s: float
    slow_per_s: float
    weights: Sequence[tuple[int, float]] = ()
    weight_unkeyed: float = 0.0
    sample_count: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What one decision leaves to the next one: since when segments are hot, and pairs of neighbours cold."""

    hot_since_s: Mapping[int, float] = field(default_factory=dict)
    cold_since_s: Mapping[tuple[int, int], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now, what to remember, and what each segment waits for."""

    plans: tuple[ScalePlan, ...]
    memory: Memory
    reasons: Mapping[int, str]


def decide(
    policy: ScalingPolicy, loads: Sequence[SegmentLoad], *, memory: Memory, now_s: float, options: StreamsOptions
) -> Decision:
    """Return what to do with the open segments of a stream, given in the order of their keys.

    Args:
        memory: what the decision before returned.
        now_s: monotonic seconds.
    """
    if policy.kind is ScalingKind.FIXED:
        return Decision(plans=(), memory=Memory(), reasons={})
    memory = _remember(policy, loads, memory=memory, now_s=now_s, options=options)
    reasons: dict[int, str] = {}
    plans: list[ScalePlan] = []
    room = SEGMENTS_PER_STREAM_MAX - len(loads)
    taken: set[int] = set()
    for load in sorted(loads, key=lambda load: load.fast_per_s, reverse=True):
        hot_s = now_s - memory.hot_since_s.get(load.segment_id, now_s)
        plan = None
        if len(loads) + len(plans) < policy.segment_count and load.low < load.last:
            plan = _split(load, count=2, reason=f"the stream has fewer than {policy.segment_count} segments")
        elif load.segment_id in memory.hot_since_s:
            reason = _obstacle(policy, load, hot_s=hot_s, room=room, options=options)
            if reason:
                reasons[load.segment_id] = reason
            else:
                count = min(policy.factor, math.ceil(load.fast_per_s / policy.target_per_s), room + 1)
                plan = _split(load, count=max(2, count), reason=_above(policy, load, hot_s))
        if plan is not None:
            plans.append(plan)
            taken.add(load.segment_id)
            room -= len(plan.ranges) - 1
    plans += _merges(policy, loads, taken, reasons=reasons, memory=memory, now_s=now_s, options=options)
    return Decision(plans=tuple(plans), memory=memory, reasons=reasons)


def _remember(
    policy: ScalingPolicy, loads: Sequence[SegmentLoad], *, memory: Memory, now_s: float, options: StreamsOptions
) -> Memory:
    """Return since when which segments are hot and which neighbours are cold."""
    hot_above = policy.target_per_s * options.split_above
    cold_below = policy.target_per_s * options.merge_below
    hot = [load.segment_id for load in loads if max(load.fast_per_s, load.slow_per_s) > hot_above]
    cold = [
        (left.segment_id, right.segment_id)
        for left, right in pairwise(loads)
        if max(left.fast_per_s + right.fast_per_s, left.slow_per_s + right.slow_per_s) < cold_below
    ]
    return Memory(
        {segment_id: memory.hot_since_s.get(segment_id, now_s) for segment_id in hot},
        {pair: memory.cold_since_s.get(pair, now_s) for pair in cold},
    )


def _obstacle(policy: ScalingPolicy, load: SegmentLoad, *, hot_s: float, room: int, options: StreamsOptions) -> str:
    """Return why a hot segment is not split now; empty if it may be."""
    if hot_s < options.split_after_s:
        return f"{_above(policy, load, hot_s)}; it is split after {options.split_after_s:.0f} s"
    if load.last_per_s < policy.target_per_s:
        # A short burst keeps the average up for longer than a split is waited for.
        return f"{_above(policy, load, hot_s)} on average, but {load.last_per_s:,.0f} {policy.kind}/s now"
    if room < 1:
        return f"the stream has {SEGMENTS_PER_STREAM_MAX} segments, no more are possible"
    if load.low == load.last:
        return "its range is a single place"
    if load.sample_count < SAMPLES_COUNT_MIN and load.last - load.low < 2 * BLIND_WIDTH_MIN:
        return "its keys cannot be read, and its range is narrow already"
    share = _hot_key_share(load)
    if share > HOT_KEY_SHARE:
        return f"one key holds {share:.0%} of its load; splitting would not help"
    return ""


def _hot_key_share(load: SegmentLoad) -> float:
    """Return which part of the sampled load the heaviest key holds; 0 if there is too little to judge by."""
    total = load.weight_unkeyed + sum(weight for _, weight in load.weights)
    if load.sample_count < SAMPLES_COUNT_MIN or not load.weights or not total:
        return 0.0
    return max(weight for _, weight in load.weights) / total


def _above(policy: ScalingPolicy, load: SegmentLoad, hot_s: float) -> str:
    rate = max(load.fast_per_s, load.slow_per_s)
    return f"{rate:,.0f} {policy.kind}/s, above its target of {policy.target_per_s:,.0f} for {hot_s:.0f} s"


def _split(load: SegmentLoad, *, count: int, reason: str) -> ScalePlan:
    borders, where = _borders(load, count)
    places = [load.low, *borders, load.last + 1]
    return ScalePlan(
        sealed_ids=(load.segment_id,),
        ranges=tuple((low, high - 1) for low, high in pairwise(places)),
        reason=f"split: {reason}; {where}",
    )


def _borders(load: SegmentLoad, count: int) -> tuple[list[int], str]:
    """Return where to split into `count` parts or fewer, at least one border, and in words why there."""
    keyed = sum(weight for _, weight in load.weights)
    if load.sample_count < SAMPLES_COUNT_MIN:
        return _even_borders(load, count), "in equal parts, there are too few events to judge by"
    if keyed <= load.weight_unkeyed:
        return _even_borders(load, count), "in equal parts, most of its events have no key"
    borders: list[int] = []
    goal = 1
    below = 0.0  # what the keys before a place weigh
    for place, weight in load.weights:
        # A border before this place is better than one after it: it is nearer to what is wanted.
        if place > load.low and (not borders or place > borders[-1]) and below > 0:
            wanted = keyed * goal / count
            if below + weight / 2 >= wanted:
                borders.append(place)
                while goal < count and below + weight / 2 >= keyed * goal / count:
                    goal += 1
                if goal == count:
                    break
        below += weight
    if not borders:
        return _even_borders(load, count), "in equal parts, its sampled keys fall into one place"
    fractions = ", ".join(f"{border / KEY_SPACE:.4f}" for border in borders)
    return borders, f"its load is divided at {fractions}"


def _even_borders(load: SegmentLoad, count: int) -> list[int]:
    width = load.last + 1 - load.low
    count = min(count, width)
    return [load.low + width * number // count for number in range(1, count)]


def _merges(
    policy: ScalingPolicy,
    loads: Sequence[SegmentLoad],
    taken: set[int],
    *,
    reasons: dict[int, str],
    memory: Memory,
    now_s: float,
    options: StreamsOptions,
) -> list[ScalePlan]:
    """Return merges of cold neighbours, the coldest first; each segment takes part in one at most."""
    plans: list[ScalePlan] = []
    spare = len(loads) - policy.segment_count
    by_id = {load.segment_id: load for load in loads}
    pairs = [(by_id[left], by_id[right], since_s) for (left, right), since_s in memory.cold_since_s.items()]
    for left, right, since_s in sorted(pairs, key=lambda pair: pair[0].slow_per_s + pair[1].slow_per_s):
        if left.segment_id in taken or right.segment_id in taken:
            continue
        rate = max(left.fast_per_s + right.fast_per_s, left.slow_per_s + right.slow_per_s)
        cold_s = now_s - since_s
        why = (
            f"{rate:,.0f} {policy.kind}/s together, below {options.merge_below:g} of the target of"
            f" {policy.target_per_s:,.0f} for {cold_s:.0f} s"
        )
        if spare < 1:
            reason = f"the stream keeps at least {policy.segment_count} segments"
        elif cold_s < options.merge_after_s:
            reason = f"with a neighbour {why}; they are merged after {options.merge_after_s:.0f} s"
        else:
            taken |= {left.segment_id, right.segment_id}
            spare -= 1
            plans.append(
                ScalePlan(
                    sealed_ids=(left.segment_id, right.segment_id),
                    ranges=((left.low, right.last),),
                    reason=f"merge: {why}",
                )
            )
            continue
        for load in (left, right):
            reasons.setdefault(load.segment_id, reason)
    return plans
