import random

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.state.stream import Stream, StreamPart
from millrace.server.streams.cuts import CutParts, earliest_of_place
from millrace.wire import messages as m

LAST = (1 << 64) - 1
HALF = LAST // 2


def scaled(dice: random.Random, *, scalings: int) -> Stream:
    """A stream whose neighbours were replaced again and again, by one to three segments each."""
    stream = Stream(stream_id=1, name="a/b", configuration="", created_us=0)
    stream.begin_epoch(m.EpochRecord(0, 0, "", [], [m.SegmentRangeRecord(1, 0, LAST)]))
    next_id = 2
    for number in range(1, scalings + 1):
        opened = stream.open_parts
        first = dice.randrange(len(opened))
        chosen = opened[first : first + dice.randint(1, 3)]
        low, last = chosen[0].low, chosen[-1].last
        borders = sorted({low, *(dice.randint(low, last) for _ in range(dice.randint(0, 2)))})
        ranges = [
            m.SegmentRangeRecord(next_id + index, border, (borders[index + 1] - 1) if border != borders[-1] else last)
            for index, border in enumerate(borders)
        ]
        next_id += len(ranges)
        stream.begin_epoch(m.EpochRecord(number, 0, "", [part.segment_id for part in chosen], ranges))
    return stream


def progress(parts: list[StreamPart], positions: dict[int, int], lengths: dict[int, int]) -> dict[int, int]:
    """How many bytes of each segment lie in front of a cut."""
    cut = CutParts(part for part in parts if part.segment_id in positions)
    assert cut.covers_all_once
    assert not any(cut.tears(part) for part in parts)
    return {
        part.segment_id: positions.get(part.segment_id, lengths[part.segment_id] if cut.is_behind(part) else 0)
        for part in parts
    }


@given(seed=st.integers(0, 1 << 32), scalings=st.integers(0, 8))
def test_the_earliest_cut_of_a_place_has_the_same_in_front_of_it(seed: int, scalings: int) -> None:
    dice = random.Random(seed)
    stream = scaled(dice, scalings=scalings)
    lengths = {segment_id: dice.choice([0, 0, 10]) for segment_id in stream.segment_ids}
    # A reader's place: it goes on in the successors, here and there, of what it has finished.
    positions = {part.segment_id: 0 for part in stream.parts if not part.epoch}
    for epoch in stream.epochs[1:]:
        if all(segment_id in positions for segment_id in epoch.sealed_ids) and dice.random() < 0.8:
            positions = {segment_id: at for segment_id, at in positions.items() if segment_id not in epoch.sealed_ids}
            positions |= {segment_id: 0 for segment_id, _, _ in epoch.created}
    positions = {segment_id: dice.choice([0, 0, 0, lengths[segment_id]]) for segment_id in positions}

    earliest = earliest_of_place(stream.parts, positions, length_of=lengths.__getitem__)

    assert progress(stream.parts, earliest, lengths) == progress(stream.parts, positions, lengths)
    assert earliest_of_place(stream.parts, earliest, length_of=lengths.__getitem__) == earliest


def test_it_goes_back_over_segments_that_held_nothing_and_not_over_what_is_gone() -> None:
    """1 was split into 2 and 3, which were merged into 4 before anything came; 4 was split into 5 and 6."""
    parts = [
        StreamPart(1, 0, LAST, 0, 1),
        StreamPart(2, 0, HALF, 1, 2),
        StreamPart(3, HALF + 1, LAST, 1, 2),
        StreamPart(4, 0, LAST, 2, 3),
        StreamPart(5, 0, HALF, 3, 0),
        StreamPart(6, HALF + 1, LAST, 3, 0),
    ]
    lengths = {1: 10, 2: 0, 3: 0, 4: 20, 5: 30, 6: 0}
    for cut, expected in [
        ({4: 0}, {1: 10}),
        ({2: 0, 3: 0}, {1: 10}),
        ({5: 0, 6: 0}, {4: 20}),
        ({5: 30, 6: 0}, {5: 30, 6: 0}),
        ({4: 20}, {4: 20}),
    ]:
        assert earliest_of_place(parts, cut, length_of=lengths.__getitem__) == expected
    without_2 = [part for part in parts if part.segment_id != 2]
    assert earliest_of_place(without_2, {4: 0}, length_of=lengths.__getitem__) == {4: 0}


def test_one_of_several_replacements_of_a_scale_is_entered_alone() -> None:
    stream = Stream(stream_id=1, name="a/b", configuration="", created_us=0)
    halves = [(0, HALF), (HALF + 1, LAST)]
    stream.begin_epoch(
        m.EpochRecord(0, 0, "", [], [m.SegmentRangeRecord(1 + n, *each) for n, each in enumerate(halves)])
    )
    stream.begin_epoch(
        m.EpochRecord(1, 0, "", [1, 2], [m.SegmentRangeRecord(3 + n, *each) for n, each in enumerate(halves)])
    )
    assert earliest_of_place(stream.parts, {3: 0, 2: 8}, length_of={1: 70, 2: 80}.__getitem__) == {1: 70, 2: 8}
