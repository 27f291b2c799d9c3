import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.model.commit_plan import CommitPlan, plan_commit
from millrace.model.key_range import KEY_SPACE, KeyRange, covers_once
from millrace.model.lineage import Lineage, StreamPart
from millrace.model.transaction import TransactionPart
from tests.support.examples import examples

PLACES_COUNT = 16
"""The borders of all ranges are among so many: they often meet."""


def keys(low: int, high: int) -> KeyRange:
    return KeyRange(low * KEY_SPACE // PLACES_COUNT, high * KEY_SPACE // PLACES_COUNT)


def segment(segment_id: int, low: int, high: int, epoch: int = 0, sealed_epoch: int = 0) -> StreamPart:
    return StreamPart(segment_id=segment_id, key_range=keys(low, high), epoch=epoch, sealed_epoch=sealed_epoch)


def part(segment_id: int, low: int, high: int, *, branch: int = 0) -> TransactionPart:
    return TransactionPart(segment_id=segment_id, branch=branch, stream_id=1, key_range=keys(low, high))


def plan_of(parts: list[TransactionPart], segments: list[StreamPart], *, epoch: int = 0) -> CommitPlan:
    return plan_commit(parts, open_parts=opened(segments), epoch=epoch, take_id=count(1000).__next__)


def opened(segments: list[StreamPart]) -> list[StreamPart]:
    """The open segments of the stream, in the order of their keys."""
    return sorted((each for each in segments if not each.sealed_epoch), key=lambda each: each.key_range.low)


def planned(segments: list[StreamPart], plan: CommitPlan) -> list[StreamPart]:
    """The segments of the stream after the commit."""
    after = list(segments)
    for epoch in plan.epochs:
        after = [replace(each, sealed_epoch=epoch.number) if each.segment_id in epoch.sealed_ids else each
                 for each in after]  # fmt: skip
        after += [StreamPart(segment_id=number, key_range=each, epoch=epoch.number) for number, each in epoch.created]
    return after


def test_a_part_goes_where_its_keys_go() -> None:
    segments = [segment(1, 0, 8), segment(2, 8, 16)]

    plan = plan_of([part(11, 0, 8), part(12, 8, 16), part(13, 0, 8, branch=5)], segments)

    assert plan == CommitPlan(epochs=(), targets={11: 1, 12: 2, 13: 1})


def test_a_part_goes_to_the_segment_that_its_own_was_merged_into() -> None:
    """Behaviour 32."""
    segments = [segment(1, 0, 8, 0, 1), segment(2, 8, 16, 0, 1), segment(3, 0, 16, 1)]

    assert plan_of([part(11, 0, 8), part(12, 8, 16)], segments).targets == {11: 3, 12: 3}


def test_a_part_whose_segment_was_split_is_an_epoch_of_its_own() -> None:
    """Behaviours 32, 63: the example of the module."""
    segments = [segment(7, 0, 6, 1), segment(8, 6, 12, 1), segment(9, 12, 16, 1)]

    plan = plan_of([part(5, 3, 9), part(6, 12, 16)], segments, epoch=1)

    between, after = plan.epochs
    assert (between.number, between.sealed_ids) == (2, (7, 8))
    assert between.created == ((1000, keys(0, 3)), (1001, keys(3, 9)), (1002, keys(9, 12)))
    assert (after.number, after.sealed_ids) == (3, (1000, 1001, 1002))
    assert after.created == ((1003, keys(0, 6)), (1004, keys(6, 12)))
    assert plan.targets == {5: 1001, 6: 9}


def test_parts_of_one_range_share_a_segment_and_others_within_the_sealed_ones_get_their_own() -> None:
    segments = [segment(1, 0, 2), segment(2, 2, 12), segment(3, 12, 16)]

    plan = plan_of([part(11, 0, 4), part(12, 4, 8), part(13, 0, 4, branch=5), part(14, 12, 16)], segments)

    assert plan.epochs[0].sealed_ids == (1, 2)
    assert [each for _, each in plan.epochs[0].created] == [keys(0, 4), keys(4, 8), keys(8, 12)]
    assert plan.targets == {11: 1000, 12: 1001, 13: 1000, 14: 3}


def test_what_is_sealed_may_lie_apart() -> None:
    segments = [segment(1, 0, 2), segment(2, 2, 4), segment(3, 4, 12), segment(4, 12, 14), segment(5, 14, 16)]

    plan = plan_of([part(11, 1, 3), part(12, 13, 15)], segments)

    assert plan.epochs[0].sealed_ids == (1, 2, 4, 5)
    assert [each for _, each in plan.epochs[0].created] == [
        keys(0, 1), keys(1, 3), keys(3, 4), keys(12, 13), keys(13, 15), keys(15, 16),
    ]  # fmt: skip


def test_a_commit_of_nothing_does_nothing() -> None:
    assert plan_of([], [segment(1, 0, 16)]) == CommitPlan(epochs=(), targets={})


SEEDS = st.integers(0, 2**32 - 1)


def scaled(segments: list[StreamPart], dice: random.Random, *, scalings: int, ids: Iterator[int]) -> list[StreamPart]:
    """The stream after some more scalings of chance."""
    epoch = max(max(each.epoch, each.sealed_epoch) for each in segments)
    for number in range(epoch + 1, epoch + scalings + 1):
        live = sorted((each for each in segments if not each.sealed_epoch), key=lambda each: each.key_range)
        first = dice.randrange(len(live))
        sealed = live[first : first + dice.randint(1, 3)]
        low, high = (
            border * PLACES_COUNT // KEY_SPACE for border in (sealed[0].key_range.low, sealed[-1].key_range.high)
        )
        borders = sorted({low, high, *(dice.randint(low, high) for _ in range(dice.randint(0, 2)))})
        segments = [replace(each, sealed_epoch=number) if each in sealed else each for each in segments]
        segments += [segment(next(ids), *between, number) for between in pairwise(borders)]
    return segments


@settings(deadline=None, print_blob=True, max_examples=examples(300))
@given(seed=SEEDS, before=st.integers(0, 4), meanwhile=st.integers(0, 6), rounds=st.integers(1, 3))
@example(seed=0, before=0, meanwhile=0, rounds=1)
def test_commits_that_scalings_overtook(seed: int, before: int, meanwhile: int, rounds: int) -> None:
    """Behaviours 32, 63: whatever is scaled meanwhile, keys are covered once, and in their order."""
    dice = random.Random(seed)
    ids = count(1)
    segments = scaled([segment(next(ids), 0, PLACES_COUNT)], dice, scalings=before, ids=ids)
    for _ in range(rounds):
        routes = [each.key_range for each in segments if not each.sealed_epoch]
        segments = scaled(segments, dice, scalings=meanwhile, ids=ids)
        parts = [
            TransactionPart(segment_id=next(ids), branch=branch, stream_id=1, key_range=each)
            for branch in range(2)
            for each in dice.sample(routes, dice.randint(0, len(routes)))
        ]
        epoch = max(max(each.epoch, each.sealed_epoch) for each in segments)

        plan = plan_commit(parts, open_parts=opened(segments), epoch=epoch, take_id=ids.__next__)

        after = planned(segments, plan)
        check_coverage(after)
        check_places(parts, plan, before=segments, after=after)
        check_reader(after)
        segments = after


def check_coverage(segments: list[StreamPart]) -> None:
    """Every epoch covers each key once."""
    last = max(max(each.epoch, each.sealed_epoch) for each in segments)
    for epoch in range(last + 1):
        live = [each for each in segments if each.epoch <= epoch and not 0 < each.sealed_epoch <= epoch]
        assert covers_once(each.key_range for each in live), epoch


def check_places(
    parts: list[TransactionPart], plan: CommitPlan, *, before: list[StreamPart], after: list[StreamPart]
) -> None:
    """Each part is whole in one segment, after all that was written to its keys, and before all that follows."""
    by_id = {each.segment_id: each for each in after}
    targets = [(each, by_id[plan.targets[each.segment_id]]) for each in parts]
    open_before = [each for each in before if not each.sealed_epoch]
    for each, target in targets:
        assert target.key_range.low <= each.key_range.low
        assert each.key_range.high <= target.key_range.high
        for other in open_before:
            if other.key_range.overlaps(each.key_range):
                assert other.segment_id == target.segment_id or by_id[other.segment_id].precedes(target)
        for other in after:
            if not other.sealed_epoch and other.key_range.overlaps(each.key_range):
                assert other is target or target.precedes(other)
    # No more is done than is needed.
    torn = [each for each in parts if sum(other.key_range.overlaps(each.key_range) for other in open_before) > 1]
    sealed = {each.segment_id for each in open_before if by_id[each.segment_id].sealed_epoch}
    assert sealed == {
        each.segment_id for each in open_before if any(each.key_range.overlaps(other.key_range) for other in torn)
    }
    assert sorted(each.key_range for each in open_before) == sorted(
        each.key_range for each in after if not each.sealed_epoch
    )


def check_reader(segments: list[StreamPart]) -> None:
    """A reader comes from the first segments to the last ones."""
    lineage = Lineage(segments)
    reached = {each.segment_id: 0 for each in lineage.head()}
    read = set(reached)
    while any(lineage.replacement(each) is not None for each in reached):
        assert lineage.advance(reached, lambda _: True, start=0), "it is stuck"
        lineage.check_cut(reached)
        read |= set(reached)
    assert sorted(reached) == sorted(each.segment_id for each in lineage.tail())
