"""Selects due background work of a container: segments to flush, a checkpoint, a copy of it.

Pure: sizes, ages and numbers in, a decision out; no clock, no I/O, no state of its own. So each rule is a test.

Owns the rules. Does not own when it is asked (`flusher`), nor how it is done (`uploader`, `checkpointer`), nor which
chunks may be deleted (`state.garbage`).
"""

from collections.abc import Iterable
from heapq import nsmallest
from typing import Final

from millrace.server.container.options import ContainerOptions
from millrace.server.container.state.segment import Segment

ADDED_COUNT_MAX: Final = 4_000
CHANGED_COUNT_MAX: Final = 50_000
"""With so many new entities, or changed ones, a checkpoint is due: until then they are held in memory."""
CHECKPOINT_INTERVAL_S_MIN: Final = 0.1
LOG_FULLNESS_LOW: Final = 0.25
LOG_FULLNESS_HIGH: Final = 0.5
"""Where two copies keep the log, each is made of at most a quarter of it; see `recycling_pays`."""
LOG_SHARE_OF_TAILS_MAX: Final = 0.5
"""Where flushes are paid for, tails wait until they hold on to so much of what the log may grow to."""
PRESSED_COUNT_MAX: Final = 64
"""Tails that are flushed for the log before it is looked again how much of it they hold on to."""
PASS_INTERVAL_S_MIN: Final = 0.05
_LOOK_S: Final = 5e-6
"""Ten times what it takes to look at one tail."""


def is_checkpoint_due(*, has_changes: bool, is_pressing: bool, age_s: float, options: ContainerOptions) -> bool:
    """Return whether a checkpoint should be stored now.

    Args:
        has_changes: whether it has anything to store, or something waits for it.
        is_pressing: whether that should not wait much longer.
        age_s: since the last checkpoint was begun.
        options: the intervals.
    """
    return has_changes and age_s >= (CHECKPOINT_INTERVAL_S_MIN if is_pressing else options.checkpoint_interval_s)


def is_copy_due(
    *,
    frees_log: bool,
    frees_garbage: bool,
    is_short_of_room: bool,
    has_news: bool,
    age_s: float,
    options: ContainerOptions,
) -> bool:
    """Return whether a copy of the last checkpoint should be published now.

    Args:
        frees_log: whether it lets so much of the log be recycled that it pays.
        frees_garbage: whether it lets chunks be deleted.
        is_short_of_room: whether tier 2 has no room: chunks are not kept until the garbage interval is over.
        has_news: whether the last checkpoint is another than that of the last copy.
        age_s: since the last copy was begun.
        options: the intervals.
    """
    is_old = 0 < options.copy_interval_s <= age_s
    frees_room = frees_garbage and (is_short_of_room or age_s >= options.garbage_interval_s)
    return frees_log or frees_room or (has_news and is_old)


def recycling_pays(*, reclaimable_bytes: int, capacity_bytes: int, copy_size_bytes: int, is_full: bool) -> bool:
    """Return whether more of the log could be recycled than a copy of the checkpoint costs, or has to be.

    Soon, because a recycled file is in the memory of the system already: writing it again is several times as fast
    as writing a fresh one (measured 1.4 against 0.3 GB/s).

    Args:
        reclaimable_bytes: what could be recycled after the copy.
        capacity_bytes: what the log may grow to.
        copy_size_bytes: of the last copy; 0 before the first one.
        is_full: whether the log refuses appends: no more can come that would make recycling pay.
    """
    is_worth_a_copy = reclaimable_bytes >= 2 * copy_size_bytes
    return reclaimable_bytes > 0 and (is_full or is_worth_a_copy or 2 * reclaimable_bytes > capacity_bytes)


def is_log_filling(fullness: float) -> bool:
    """Return whether bytes should be flushed before they are old: more than a quarter of the log is in use."""
    return fullness > LOG_FULLNESS_LOW


def is_log_short_of_room(fullness: float) -> bool:
    """Return whether whatever frees some of the log is worth it: more than half of it is in use."""
    return fullness > LOG_FULLNESS_HIGH


def are_many(*, added_count: int, changed_count: int) -> bool:
    """Return whether so many entities were added, or changed, that a checkpoint is due before its time."""
    return added_count >= ADDED_COUNT_MAX or changed_count >= CHANGED_COUNT_MAX


def segments_to_flush(
    unflushed: Iterable[Segment], *, tail_bytes: int, is_log_filling: bool, now_us: int, options: ContainerOptions
) -> list[Segment]:
    """Return the segments whose tails are large or old enough to be flushed, the largest first.

    All of them are due when memory or the log runs full.

    Args:
        unflushed: the segments that have a tail.
        tail_bytes: the sum of their tails.
        is_log_filling: whether the log is.
        now_us: the wall time.
        options: the bounds.
    """
    due = list(unflushed)
    if tail_bytes <= options.tail_size_bytes_low // 2 and not is_log_filling:
        oldest_us = now_us - int(options.flush_age_s * 1e6)
        due = [
            segment
            for segment in due
            if segment.tail.size >= options.flush_size_bytes or segment.tail.first.wall_time_us <= oldest_us
        ]
    return largest_first(due)


def segments_to_flush_sparingly(
    unflushed: Iterable[Segment],
    *,
    tail_bytes: int,
    small_count_max: int,
    is_log_held: bool,
    now_us: int,
    options: ContainerOptions,
) -> list[Segment]:
    """Return the segments to be flushed where each flush is paid for, the largest first: no more than have to be.

    All whose tails are large, and of the others:

    - if tails hold on to too much of the log, those with the oldest bytes, some at a time;
    - else those that are old, the oldest first, as many as may be flushed now;
    - if memory runs full then, the largest of the rest, until what is left is below `tail_size_bytes_low`.

    The oldest go first also while memory is full: it may stay so for long, a small tail to which nothing is added is
    never among the largest, and the log keeps all that came after it.

    Args:
        unflushed: the segments that have a tail.
        tail_bytes: of memory that their tails take.
        small_count_max: how many small ones may be flushed for their age.
        is_log_held: whether tails hold on to too much of the log; see `is_log_held`.
        now_us: the wall time.
        options: the bounds.
    """
    due: list[Segment] = []
    small: list[Segment] = []
    for segment in unflushed:
        (due if segment.tail.size >= options.flush_size_bytes else small).append(segment)
    if is_log_held:
        due += nsmallest(PRESSED_COUNT_MAX, small, key=lambda segment: segment.tail.first.sequence)
    elif small_count_max:
        oldest_us = now_us - int(options.flush_age_s * 1e6)
        old = [segment for segment in small if segment.tail.first.wall_time_us <= oldest_us]
        due += nsmallest(small_count_max, old, key=lambda segment: segment.tail.first.wall_time_us)
    excess_bytes = tail_bytes - sum(segment.tail.held_bytes for segment in due) - options.tail_size_bytes_low
    if excess_bytes > 0:
        taken = {id(segment) for segment in due}
        small.sort(key=lambda segment: segment.tail.held_bytes, reverse=True)
        for segment in small:
            if excess_bytes <= 0:
                break
            if id(segment) not in taken:
                due.append(segment)
                excess_bytes -= segment.tail.held_bytes
    return largest_first(due)


def is_log_held(*, used_bytes: int, reclaimable_bytes: int, capacity_bytes: int) -> bool:
    """Return whether tails hold on to so much of the log that they are flushed whatever it costs.

    Args:
        used_bytes: of the log.
        reclaimable_bytes: of these, what only holds what is in tier 2.
        capacity_bytes: what the log may grow to.
    """
    return used_bytes - reclaimable_bytes > LOG_SHARE_OF_TAILS_MAX * capacity_bytes


def pass_interval_s(unflushed_count: int) -> float:
    """Return how long to wait between two looks at that many tails: looking takes a tenth of the time at most."""
    return max(PASS_INTERVAL_S_MIN, unflushed_count * _LOOK_S)


def flush_wait_s(unflushed: Iterable[Segment], *, now_us: int, options: ContainerOptions) -> float:
    """Return after how many seconds the oldest of these bytes should be flushed for their age, at most `flush_age_s`.

    At least a tenth of that, so that segments which are due one after the other are flushed together.
    """
    oldest_us = min((segment.tail.first.wall_time_us for segment in unflushed), default=now_us)
    # A wall clock that was set back says that bytes were written in the future.
    age_s = max(0.0, (now_us - oldest_us) / 1e6)
    return max(options.flush_age_s / 10, options.flush_age_s - age_s)


def largest_first(segments: Iterable[Segment]) -> list[Segment]:
    """Return segments by the size of their tails: flushing the largest first frees the most memory soonest."""
    return sorted(segments, key=lambda segment: segment.tail.size, reverse=True)
