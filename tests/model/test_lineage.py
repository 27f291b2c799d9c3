import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model.errors import CutInvalidError
from millrace.model.key_range import KEY_SPACE, KeyRange, covers_once
from millrace.model.lineage import Epoch, Lineage, StreamPart, parts_of_history
from tests.support.tables import table

SEEDS = st.integers(0, 2**32 - 1)


def segment(segment_id: int, low: float, high: float, epoch: int = 0, sealed_epoch: int = 0) -> StreamPart:
    key_range = KeyRange(int(low * KEY_SPACE), int(high * KEY_SPACE))
    return StreamPart(segment_id=segment_id, key_range=key_range, epoch=epoch, sealed_epoch=sealed_epoch)


def scaled(dice: random.Random, *, scalings: int) -> list[StreamPart]:
    """A history of scalings of chance: each replaces some neighbours by others with borders of their own."""
    live = [segment(1, 0.0, 1.0)]
    past: list[StreamPart] = []
    number = 1
    for epoch in range(1, scalings + 1):
        live.sort(key=lambda each: each.key_range.low)
        first = dice.randrange(len(live))
        count = dice.randint(1, min(3, len(live) - first))
        sealed, live[first : first + count] = live[first : first + count], []
        low, high = sealed[0].key_range.fractions[0], sealed[-1].key_range.fractions[1]
        borders = [low, *sorted(dice.uniform(low, high) for _ in range(dice.randint(0, 2))), high]
        for a, b in itertools.pairwise(borders):
            if int(a * KEY_SPACE) < int(b * KEY_SPACE):
                number += 1
                live.append(segment(number, a, b, epoch))
        past += [
            StreamPart(segment_id=each.segment_id, key_range=each.key_range, epoch=each.epoch, sealed_epoch=epoch)
            for each in sealed
        ]
    return past + live


# Two segments, merged, and split elsewhere:   a |--1--|--2--|   b |-----3-----|   c |--4--|--5--|
DIAMOND = [
    segment(1, 0.0, 0.5, 0, 1),
    segment(2, 0.5, 1.0, 0, 1),
    segment(3, 0.0, 1.0, 1, 2),
    segment(4, 0.0, 0.25, 2),
    segment(5, 0.25, 1.0, 2),
]


def ids(segments: list[StreamPart]) -> list[int]:
    return [each.segment_id for each in segments]


def successors(lineage: Lineage[StreamPart], segment_id: int) -> list[StreamPart]:
    replacement = lineage.replacement(segment_id)
    assert replacement is not None
    return [each for each in replacement.successors if each.overlaps(lineage.by_id[segment_id])]


def test_who_precedes_whom() -> None:
    lineage = Lineage(DIAMOND)

    assert ids(lineage.head()) == [1, 2]
    assert ids(lineage.tail()) == [4, 5]
    assert ids(successors(lineage, 1)) == ids(successors(lineage, 2)) == [3]
    assert ids(lineage.predecessors(3)) == [1, 2]
    assert ids(successors(lineage, 3)) == [4, 5]
    assert lineage.replacement(4) is None
    assert lineage.predecessors(1) == []
    assert DIAMOND[0].precedes(DIAMOND[4])
    assert not DIAMOND[1].precedes(DIAMOND[3])


def test_segments_that_are_replaced_in_one_step_without_a_common_key_are_apart() -> None:
    lineage = Lineage(
        [segment(1, 0, 0.5, 0, 1), segment(2, 0.5, 1, 0, 1), segment(3, 0, 0.5, 1), segment(4, 0.5, 1, 1)]
    )
    replacement = lineage.replacement(1)
    assert replacement is not None
    assert (ids(list(replacement.predecessors)), ids(list(replacement.successors))) == ([1], [3])


@table("cut", [[1, 2], [3], [4, 5]])
def test_what_covers_the_keys_once_is_a_cut(cut: list[int]) -> None:
    """Behaviour 26."""
    Lineage(DIAMOND).check_cut(cut)


@table("cut", [[1], [1, 3], [1, 5], [4], [1, 2, 3], [2, 4]])
def test_what_does_not_is_none(cut: list[int]) -> None:
    """Behaviour 26."""
    with pytest.raises(CutInvalidError, match="every key exactly once"):
        Lineage(DIAMOND).check_cut(cut)


def test_a_cut_cannot_have_a_segment_on_both_sides() -> None:
    """Segment 3 is after segment 1 and before segment 5, though both cover each key once."""
    lineage = Lineage(
        [segment(1, 0, 0.5, 0, 1), segment(2, 0.5, 1, 0, 1), segment(3, 0, 1, 1, 2), segment(4, 0, 0.5, 2),
         segment(5, 0.5, 1, 2)]
    )  # fmt: skip
    lineage.check_cut([4, 5])
    with pytest.raises(CutInvalidError, match="segment 3 would be before the cut and after it"):
        lineage.check_cut([1, 5])


def test_progress_says_what_is_before_a_cut() -> None:
    lineage = Lineage(DIAMOND)

    assert lineage.progress({3: 40}, start=0, end_of=lambda _: 100) == {1: 100, 2: 100, 3: 40, 4: 0, 5: 0}
    assert lineage.before([4, 5]) == {1, 2, 3}
    assert lineage.before([1, 2]) == set()


@settings(deadline=None, print_blob=True)
@given(seed=SEEDS, scalings=st.integers(0, 15))
def test_a_reader_is_at_a_cut_at_any_moment(seed: int, scalings: int) -> None:
    """Behaviours 26 and 27: finishing segments in any order never leaves the cuts, and reads all there is, in order."""
    dice = random.Random(seed)
    lineage = Lineage(scaled(dice, scalings=scalings))
    assert covers_once(each.key_range for each in lineage.head())
    assert covers_once(each.key_range for each in lineage.tail())
    place = set(ids(lineage.head()))
    finished: set[int] = set()
    while True:
        lineage.check_cut(place)
        after = {each for each in lineage.by_id if each not in place and each not in lineage.before(place)}
        assert lineage.before(place) <= finished
        assert finished.isdisjoint(after)
        unfinished = place - finished
        if not unfinished:
            break
        done = dice.choice(sorted(unfinished))
        assert all(each.segment_id in finished for each in lineage.predecessors(done))
        finished.add(done)
        replacement = lineage.replacement(done)
        if replacement is not None and finished.issuperset(ids(list(replacement.predecessors))):
            place -= set(ids(list(replacement.predecessors)))
            place |= set(ids(list(replacement.successors)))
    assert place == set(ids(lineage.tail()))
    assert finished == set(lineage.by_id)


@settings(deadline=None, print_blob=True)
@given(seed=SEEDS, scalings=st.integers(0, 12))
def test_successors_cover_the_keys_of_their_predecessors(seed: int, scalings: int) -> None:
    lineage = Lineage(scaled(random.Random(seed), scalings=scalings))
    for segment_id, each in lineage.by_id.items():
        replacement = lineage.replacement(segment_id)
        assert (replacement is None) == (each.sealed_epoch == 0)
        if replacement is not None:
            before, after = (sum(part.key_range.high - part.key_range.low for part in parts) for parts in replacement)
            assert before == after
            assert all(each.precedes(successor) for successor in successors(lineage, segment_id))


@settings(deadline=None, print_blob=True)
@given(seed=SEEDS, scalings=st.integers(0, 12))
def test_the_earliest_cut_of_a_place_has_the_same_before_it(seed: int, scalings: int) -> None:
    dice = random.Random(seed)
    lineage = Lineage(scaled(dice, scalings=scalings))
    lengths = {segment_id: dice.choice([0, 0, 10]) for segment_id in lineage.by_id}
    cut = dict.fromkeys(ids(lineage.head()), 0)
    finished = {segment_id for segment_id in lineage.by_id if dice.random() < 0.8}
    lineage.advance(cut, finished.__contains__, start=0)
    cut = {segment_id: dice.choice([0, 0, 0, lengths[segment_id]]) for segment_id in cut}

    earliest = lineage.earliest(cut, start=0, end_of=lengths.__getitem__)

    before, after = (
        lineage.progress(each, start=0, end_of=lambda part: lengths[part.segment_id]) for each in (cut, earliest)
    )
    lineage.check_cut(earliest)
    assert before == after
    assert lineage.earliest(earliest, start=0, end_of=lengths.__getitem__) == earliest


@given(SEEDS, st.integers(1, 12))
def test_going_back_from_the_tail_is_going_on_from_the_head(seed: int, scalings: int) -> None:
    """From any place it reaches a cut; over segments that hold nothing it reaches the other end."""
    dice = random.Random(seed)
    lineage = Lineage(scaled(dice, scalings=scalings))
    empty = {each for each in lineage.by_id if dice.random() < 0.5}
    for passed in (set(lineage.by_id), empty):
        back = dict.fromkeys(ids(lineage.tail()), 1)
        lineage.retreat(back, passed.__contains__, end_of=lambda _: 1)
        lineage.check_cut(back)
        if passed == set(lineage.by_id):
            assert sorted(back) == sorted(ids(lineage.head()))
        forward = dict(back)
        lineage.advance(forward, passed.__contains__, start=0)
        lineage.check_cut(forward)
        assert lineage.before(back) <= lineage.before(forward)


def test_the_earliest_cut_goes_back_over_segments_that_held_nothing_and_not_over_deleted_ones() -> None:
    """1 was split into 2 and 3, which were merged into 4 before anything came; 4 was split into 5 and 6."""
    parts = [
        segment(1, 0, 1, 0, 1),
        segment(2, 0, 0.5, 1, 2),
        segment(3, 0.5, 1, 1, 2),
        segment(4, 0, 1, 2, 3),
        segment(5, 0, 0.5, 3),
        segment(6, 0.5, 1, 3),
    ]
    lengths = {1: 10, 2: 0, 3: 0, 4: 20, 5: 30, 6: 0}
    for cut, expected in [
        ({4: 0}, {1: 10}),
        ({2: 0, 3: 0}, {1: 10}),
        ({5: 0, 6: 0}, {4: 20}),
        ({5: 30, 6: 0}, {5: 30, 6: 0}),
        ({4: 20}, {4: 20}),
    ]:
        assert Lineage(parts).earliest(cut, start=0, end_of=lengths.__getitem__) == expected
    without_2 = Lineage(part for part in parts if part.segment_id != 2)
    assert without_2.earliest({4: 0}, start=0, end_of=lengths.__getitem__) == {4: 0}


def test_one_of_several_replacements_of_a_scale_is_entered_alone() -> None:
    lineage = Lineage(
        [segment(1, 0, 0.5, 0, 1), segment(2, 0.5, 1, 0, 1), segment(3, 0, 0.5, 1), segment(4, 0.5, 1, 1)]
    )
    cut = {1: 70, 2: 8}
    assert lineage.advance(cut, {1: True, 2: False, 3: False}.__getitem__, start=0) == {1}
    assert cut == {3: 0, 2: 8}
    assert lineage.earliest(cut, start=0, end_of={1: 70, 2: 80}.__getitem__) == {1: 70, 2: 8}


def test_the_history_has_segments_that_are_deleted() -> None:
    everything, low, high = KeyRange(0, KEY_SPACE), KeyRange(0, 5), KeyRange(5, KEY_SPACE)
    history = [
        Epoch(number=0, started_us=1, cause="created", sealed_ids=(), created=((1, everything),)),
        Epoch(number=1, started_us=2, cause="asked for", sealed_ids=(1,), created=((2, low), (3, high))),
    ]
    found = {each.segment_id: (each.key_range, each.epoch, each.sealed_epoch) for each in parts_of_history(history)}
    assert found == {1: (everything, 0, 1), 2: (low, 1, 0), 3: (high, 1, 0)}
