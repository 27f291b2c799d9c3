"""Decides up to where a stream may forget: sizes, ages and cursors in, a cut out.

Nothing here reads a clock or changes a stream. How far each segment may be cut is first found for each bound by itself:

    wanted      what is above the maximum of bytes or of age, and by consumption what every cursor has passed
    allowed     what leaves the minimum of bytes and everything younger than the minimum of age

The result is the lesser of both in every segment, then the furthest cut that does not pass it: it covers the key space
once, and starts successors only when everything that they replaced is forgotten. Offsets are those of the sparse index,
so that a cut never falls into an append; where the index is coarse, more is kept.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from millrace.model.lineage import Lineage, StreamPart
from millrace.model.policy import RetentionKind, RetentionPolicy

SLACK_SIZE_BYTES_MAX: Final = 64 << 20
"""A stream above its maximum is cut to a tenth below it, but by no more than this: so it is not cut all the time."""

Progress = dict[int, int]
"""How far each segment is passed: an offset, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFacts:
    """A segment of the stream.

    Attributes:
        offsets, stamps_us: its sparse index: borders of appends; nothing before one was written after its stamp.
        end_stamp_us: nothing in it was written after this.
    """

    start_offset: int
    length: int
    offsets: Sequence[int]
    stamps_us: Sequence[int]
    end_stamp_us: int

    def border_at(self, offset: int) -> int:
        """Return the last known border of an append at or before `offset`."""
        if offset >= self.length:
            return self.length
        place = bisect_right(self.offsets, offset)
        return max(self.start_offset, self.offsets[place - 1] if place else 0)

    def border_before(self, stamp_us: int) -> int:
        """Return the last known border before which everything was written earlier than `stamp_us`."""
        if self.end_stamp_us < stamp_us:
            return self.length
        place = bisect_left(self.stamps_us, stamp_us)
        return max(self.start_offset, self.offsets[place - 1] if place else 0)


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream: the segments that it has, and the lineage of all that it ever had."""

    parts: Mapping[int, PartFacts]
    lineage: Lineage[StreamPart]

    @property
    def size_bytes(self) -> int:
        """Bytes that can be read."""
        return sum(part.length - part.start_offset for part in self.parts.values())


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that covers the key space once, and what is after it.

    Attributes:
        positions: offsets by segment.
        progress: the same for every segment of the stream.
    """

    positions: dict[int, int]
    progress: Progress
    remaining_bytes: int


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """Where to cut (None: nowhere), why, and in words what keeps the rest.

    Attributes:
        near: the cut, or where it would be if borders were known better; None if nothing is to go anyway.
    """

    cut: Cut | None
    reason: str
    kept_reasons: tuple[str, ...]
    near: Cut | None


def decide(
    policy: RetentionPolicy,
    facts: StreamFacts,
    *,
    cursors: Mapping[str, Mapping[int, int]],
    young_from_us: int,
    old_before_us: int,
    is_sharp: bool = True,
) -> RetentionDecision:
    """Return where to cut a stream.

    Args:
        is_sharp: whether all borders near the cut are known. Else events between two known ones are kept; if they
            are, a maximum of bytes is kept to even if a single append is larger.
        cursors: offsets by segment, by the name of the cursor.
        young_from_us: what was written earlier is older than the minimum of age.
        old_before_us: what was written earlier is older than the maximum of age; only read if there is one.
    """
    size_bytes = facts.size_bytes
    wanted: list[tuple[Progress, str]] = []
    kept_reasons: list[str] = []
    if policy.max_bytes is not None:
        if size_bytes > policy.max_bytes:
            wanted.append(
                (
                    _above(facts, policy, policy.max_bytes, is_sharp=is_sharp),
                    f"{size_bytes:,} bytes, the maximum is {policy.max_bytes:,}",
                )
            )
        else:
            kept_reasons.append(f"{size_bytes:,} bytes of at most {policy.max_bytes:,}")
    if policy.max_age_s is not None:
        wanted.append((progress_before(facts, old_before_us), f"older than the maximum of {policy.max_age_s:,g} s"))
    if policy.kind is RetentionKind.CONSUMPTION:
        if cursors:
            consumed = slowest(facts, cursors.values())
            wanted.append((consumed, "passed by every cursor"))
        else:
            kept_reasons.append("no cursor is registered, so nothing counts as consumed")
    head = as_cut(facts, {})
    chosen = [(progress, reason) for progress, reason in wanted if as_cut(facts, progress).progress != head.progress]
    if not chosen:
        kept_reasons.append("nothing is to be forgotten")
        return RetentionDecision(None, "", tuple(kept_reasons), head if wanted else None)
    goal = as_cut(facts, _union([progress for progress, _ in chosen]))
    cut = goal
    if policy.min_bytes:
        cut = as_cut(facts, _intersection(cut.progress, keeping(facts, policy.min_bytes).progress))
        if cut.progress != goal.progress:
            kept_reasons.append(f"the minimum of {policy.min_bytes:,} bytes keeps some")
    if policy.min_age_s:
        before = cut
        cut = as_cut(facts, _intersection(cut.progress, progress_before(facts, young_from_us)))
        if cut.progress != before.progress:
            kept_reasons.append(f"what is younger than {policy.min_age_s:,g} s is kept")
    if cut.progress == head.progress:
        return RetentionDecision(None, "", tuple(kept_reasons), head)
    reason = f"{policy.kind}: {'; '.join(reason for _, reason in chosen)}"
    return RetentionDecision(cut, reason, tuple(kept_reasons), cut)


def as_cut(facts: StreamFacts, progress: Mapping[int, int]) -> Cut:
    """Return the furthest cut that passes `progress` nowhere; segments that it does not name were not passed at all."""
    cut = {part.segment_id: 0 for part in facts.lineage.by_id.values() if not part.epoch}
    # Segments that the stream has no more were forgotten as a whole.
    passed = facts.lineage.advance(
        cut,
        lambda segment_id: (
            segment_id not in facts.parts or progress.get(segment_id, 0) >= facts.parts[segment_id].length
        ),
        start=0,
    )
    positions: dict[int, int] = {}
    everywhere: Progress = {}
    remaining_bytes = 0
    for segment_id, part in facts.parts.items():
        offset = part.start_offset
        if segment_id in passed:
            offset = part.length
        elif segment_id in cut:
            offset = positions[segment_id] = max(offset, min(progress.get(segment_id, 0), part.length))
        everywhere[segment_id] = offset
        remaining_bytes += part.length - offset
    return Cut(positions, everywhere, remaining_bytes)


def progress_before(facts: StreamFacts, stamp_us: int) -> Progress:
    """Return how far everything was written earlier than a time."""
    return {segment_id: part.border_before(stamp_us) for segment_id, part in facts.parts.items()}


def progress_of_cut(facts: StreamFacts, positions: Mapping[int, int]) -> Progress:
    """Return how far a saved cut has passed each segment; what it names and the stream has no more is left out."""
    passed = facts.lineage.before(segment_id for segment_id in positions if segment_id in facts.parts)
    progress: Progress = {}
    for segment_id, part in facts.parts.items():
        if segment_id in positions:
            progress[segment_id] = part.border_at(positions[segment_id])
        elif segment_id in passed:
            progress[segment_id] = part.length
        else:
            progress[segment_id] = part.start_offset
    return progress


def slowest(facts: StreamFacts, cursors: Iterable[Mapping[int, int]]) -> Progress:
    """Return how far all of some cursors (at least one) have passed each segment."""
    return reduce(_intersection, (progress_of_cut(facts, positions) for positions in cursors))


def held_bytes(facts: StreamFacts, passed: Mapping[str, Progress]) -> dict[str, int]:
    """Return, for each cursor, how many bytes would count as consumed if it alone were not there."""
    # Who is the slowest in a segment, and how far the others have all come there.
    holders: dict[int, tuple[str, int]] = {}
    for segment_id, part in facts.parts.items():
        offsets = sorted((progress[segment_id], name) for name, progress in passed.items())[:2]
        if offsets:
            holders[segment_id] = (offsets[0][1], offsets[1][0] if len(offsets) > 1 else part.length)
    everywhere = {segment_id: passed[name][segment_id] for segment_id, (name, _) in holders.items()}
    held = as_cut(facts, everywhere).remaining_bytes
    result = dict.fromkeys(passed, 0)
    for name in {name for name, _ in holders.values()}:
        without = {
            segment_id: others if holder == name else everywhere[segment_id]
            for segment_id, (holder, others) in holders.items()
        }
        result[name] = held - as_cut(facts, without).remaining_bytes
    return result


def keeping(facts: StreamFacts, size_bytes: int) -> Cut:
    """Return the furthest cut, the oldest first, that leaves at least so many bytes."""
    cut, later = _around(facts, size_bytes)
    spare = cut.remaining_bytes - size_bytes
    if spare <= 0:
        return cut
    # What was written in the same moment does not fit as a whole: take of it what does.
    progress = dict(cut.progress)
    for segment_id in cut.positions:
        part = facts.parts[segment_id]
        offset = part.border_at(min(later.progress[segment_id], progress[segment_id] + spare))
        if offset > progress[segment_id] and offset <= progress[segment_id] + spare:
            spare -= offset - progress[segment_id]
            progress[segment_id] = offset
    return as_cut(facts, progress)


def _above(facts: StreamFacts, policy: RetentionPolicy, max_bytes: int, *, is_sharp: bool) -> Progress:
    """Return how far to cut what is above the maximum of bytes."""
    target = max(policy.min_bytes or 0, max_bytes - min(max_bytes // 10, SLACK_SIZE_BYTES_MAX))
    cut = keeping(facts, target)
    if cut.remaining_bytes > max_bytes and is_sharp:
        cut = _around(facts, target)[1]  # a single append is larger than the range between the bounds
    return cut.progress


def _around(facts: StreamFacts, size_bytes: int) -> tuple[Cut, Cut]:
    """Return the last cut by time that leaves at least so many bytes, and the one after it."""
    stamps = [stamp for part in facts.parts.values() for stamp in (*part.stamps_us[:1], part.end_stamp_us)]
    low, high = min(stamps, default=0), max(stamps, default=0) + 1
    # At `low` nothing is passed; at `high` everything is.
    while high - low > 1:
        middle = (low + high) // 2
        if as_cut(facts, progress_before(facts, middle)).remaining_bytes >= size_bytes:
            low = middle
        else:
            high = middle
    earlier, later = (as_cut(facts, progress_before(facts, stamp)) for stamp in (low, high))
    return (later, later) if later.remaining_bytes >= size_bytes else (earlier, later)


def _union(all_progress: Sequence[Progress]) -> Progress:
    return {segment_id: max(progress[segment_id] for progress in all_progress) for segment_id in all_progress[0]}


def _intersection(first: Progress, second: Progress) -> Progress:
    return {segment_id: min(offset, second[segment_id]) for segment_id, offset in first.items()}
