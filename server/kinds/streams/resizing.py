"""Chooses what to split or merge so that a stream has a given number of open segments: ranges in, plan out.

As many segments as can stay as they are. The widest ones are split into equal parts; or neighbours are merged in such a
way that the borders that are left lie near those of equal ranges. It is one plan, and so one epoch of the stream.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from millrace.model.key_range import KEY_SPACE
from millrace.model.lineage import StreamPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan:
    """A split or a merge: segments to seal, ranges of keys (inclusive) that replace them, and why."""

    sealed_ids: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    reason: str


def resize(parts: Sequence[StreamPart], count: int) -> ScalePlan | None:
    """Return the plan by which a stream has `count` open segments, None if it has them.

    Args:
        parts: the open ones, in the order of their keys.
    """
    if len(parts) == count:
        return None
    reason = f"the stream is to have {count} segments instead of {len(parts)}"
    if len(parts) < count:
        return _split(parts, count, reason=f"split: {reason}")
    return _merge(parts, count, reason=f"merge: {reason}")


def _split(parts: Sequence[StreamPart], count: int, *, reason: str) -> ScalePlan:
    numbers = [1] * len(parts)
    # By the width of the pieces of each part, the widest first.
    pieces = [(-part.key_range.width, place) for place, part in enumerate(parts)]
    heapq.heapify(pieces)
    for _ in range(count - len(parts)):
        _, place = pieces[0]
        numbers[place] += 1
        heapq.heapreplace(pieces, (-(parts[place].key_range.width // numbers[place]), place))
    ranges: list[tuple[int, int]] = []
    for part, number in zip(parts, numbers, strict=True):
        if number > 1:
            low, width = part.key_range.low, part.key_range.width
            borders = [low + width * index // number for index in range(number + 1)]
            ranges += [(first, high - 1) for first, high in pairwise(borders)]
    sealed_ids = tuple(part.segment_id for part, number in zip(parts, numbers, strict=True) if number > 1)
    return ScalePlan(sealed_ids=sealed_ids, ranges=tuple(ranges), reason=reason)


def _merge(parts: Sequence[StreamPart], count: int, *, reason: str) -> ScalePlan:
    groups: list[list[StreamPart]] = []
    start = 0
    for number in range(1, count + 1):
        # Each later group needs a part at least.
        end_max = len(parts) - (count - number)
        end = start + 1 if number < count else end_max
        wanted = KEY_SPACE * number // count
        while end < end_max and abs(parts[end].key_range.high - wanted) <= abs(parts[end - 1].key_range.high - wanted):
            end += 1
        groups.append(list(parts[start:end]))
        start = end
    merged = [group for group in groups if len(group) > 1]
    return ScalePlan(
        sealed_ids=tuple(part.segment_id for group in merged for part in group),
        ranges=tuple((group[0].key_range.low, group[-1].key_range.last) for group in merged),
        reason=reason,
    )
