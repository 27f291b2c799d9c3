"""Plans where the parts of a transaction go at its commit, if its stream was scaled since it began.

A part has events of one range of keys, that of a segment which was open when the transaction began. By the commit other
segments may be open:

    one open segment covers the whole range    the part is merged into it
    several do                                 the part is *torn*: its events would belong to several segments

No event is routed again, and no byte is copied. For torn parts the commit begins two epochs instead:

    open         |------ 7 ------|------ 8 ------|---- 9 ----|       7 and 8 overlap a torn part: sealed
    torn part            |####### 5 #######|
    epoch n + 1  |- 10 --|------- 11 ------|- 12 |                   the part is all of 11; 10 and 12 are empty; all
                                                                     three are sealed at once
    epoch n + 2  |------ 13 -----|------ 14 -----|                   open, with the ranges of 7 and 8

So the events of a key are in order: in 7, then in 11, then in 13. Another part that lies within a sealed segment goes
to epoch n + 1 as well. In each epoch every key is covered once.

The planning is pure. `tests/model/test_commit_plan.py` checks it with random streams and transactions.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .key_range import KeyRange
from .lineage import StreamPart
from .transaction import TransactionPart


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEpoch:
    """An epoch that a commit begins.

    Attributes:
        sealed_ids: the segments that it replaces.
        created: its new segments, (id, keys), in the order of their keys.
    """

    number: int
    sealed_ids: tuple[int, ...]
    created: tuple[tuple[int, KeyRange], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPlan:
    """The effect of a commit on one stream.

    Attributes:
        epochs: none, or two: one for torn parts, and one for the segments that are open afterwards.
        targets: the segment into which each part is merged, by the id of the part. Parts of one target are merged in
            the given order.
    """

    epochs: tuple[PlannedEpoch, ...]
    targets: Mapping[int, int]


def plan_commit(
    parts: Sequence[TransactionPart], *, open_parts: Sequence[StreamPart], epoch: int, take_id: Callable[[], int]
) -> CommitPlan:
    """Return the effect of a commit of some parts on their stream.

    Args:
        parts: parts with events; their ranges are equal or disjoint.
        open_parts: the open segments of the stream, which cover each key once, in the order of their keys.
        epoch: the current one of the stream.
        take_id: returns a fresh id for a segment.
    """
    segments = open_parts
    lows = [segment.key_range.low for segment in segments]
    targets: dict[int, int] = {}
    for part in parts:
        segment = segments[bisect_right(lows, part.key_range.low) - 1]
        if part.key_range.high > segment.key_range.high:
            break  # it is torn
        targets[part.segment_id] = segment.segment_id
    else:
        return CommitPlan(epochs=(), targets=targets)
    # By range: the indexes of the open segments that overlap it.
    spans = {
        each: range(bisect_right(lows, each.low) - 1, bisect_right(lows, each.last))
        for each in {part.key_range for part in parts}
    }
    sealed_places = sorted({place for span in spans.values() if len(span) > 1 for place in span})
    sealed = [segments[place] for place in sealed_places]
    taken = set(sealed_places)
    # A part within a segment that is sealed for other parts moves with them.
    moved = sorted(key_range for key_range, span in spans.items() if span[0] in taken)
    created = sorted([*moved, *_gaps([segment.key_range for segment in sealed], moved)])
    between = tuple((take_id(), key_range) for key_range in created)
    after = tuple((take_id(), segment.key_range) for segment in sealed)
    target_of = {key_range: segments[span[0]].segment_id for key_range, span in spans.items()}
    target_of |= {key_range: segment_id for segment_id, key_range in between}
    epochs = (
        PlannedEpoch(number=epoch + 1, sealed_ids=tuple(each.segment_id for each in sealed), created=between),
        PlannedEpoch(number=epoch + 2, sealed_ids=tuple(segment_id for segment_id, _ in between), created=after),
    )
    return CommitPlan(
        epochs=epochs,
        targets={part.segment_id: target_of[part.key_range] for part in parts},
    )


def _gaps(covered: Sequence[KeyRange], kept: Sequence[KeyRange]) -> Iterator[KeyRange]:
    """Yield the ranges of `covered` that `kept`, a part of it, leaves free; both ascend and are disjoint."""
    borders = iter(kept)
    following = next(borders, None)
    for low, high in _joined(covered):
        place = low
        while following is not None and following.low < high:
            if place < following.low:
                yield KeyRange(place, following.low)
            place = following.high
            following = next(borders, None)
        if place < high:
            yield KeyRange(place, high)


def _joined(ranges: Iterable[KeyRange]) -> list[tuple[int, int]]:
    """Join adjacent ranges in an ascending list."""
    joined: list[tuple[int, int]] = []
    for each in ranges:
        if joined and joined[-1][1] == each.low:
            joined[-1] = (joined[-1][0], each.high)
        else:
            joined.append((each.low, each.high))
    return joined
