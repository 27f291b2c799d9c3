from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.key_range import KeyRange
from millrace.model.lineage import Lineage, StreamPart
from millrace.server.container.state.stream import Stream
from millrace.wire import messages as m

LAST = 2**64 - 1
HALF = 2**63


def stream() -> Stream:
    """A stream of one segment (1), split in two (2, 3), of which the upper is split again (4, 5); 2 and 4 merge."""
    result = Stream(stream_id=9, name="shop/orders", configuration="", created_us=0)
    quarter = HALF + HALF // 2
    for number, (sealed, created) in enumerate([
        ([], [(1, 0, LAST)]),
        ([1], [(2, 0, HALF - 1), (3, HALF, LAST)]),
        ([3], [(4, HALF, quarter - 1), (5, quarter, LAST)]),
        ([2, 4], [(6, 0, quarter - 1)]),
    ]):  # fmt: skip
        ranges = [m.SegmentRangeRecord(*item) for item in created]
        result.begin_epoch(m.EpochRecord(number, number, "for a test", sealed, ranges))
    return result


def test_an_epoch_replaces_segments_by_their_successors() -> None:
    it = stream()

    assert it.epoch == 3
    assert [(part.segment_id, part.epoch, part.sealed_epoch) for part in it.parts] == [
        (1, 0, 1), (2, 1, 3), (3, 1, 2), (4, 2, 3), (5, 2, 0), (6, 3, 0),
    ]  # fmt: skip
    assert [part.segment_id for part in it.open_parts] == [6, 5]
    assert [epoch.number for epoch in it.epochs] == [0, 1, 2, 3]


def test_predecessors_hold_the_same_keys_earlier() -> None:
    """Behaviour 27: successors come after all of their predecessors."""
    it = stream()
    pairs = {(a.segment_id, b.segment_id) for a in it.parts for b in it.parts if a.precedes(b)}

    assert pairs == {
        (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 6), (3, 4), (3, 5), (3, 6), (4, 6),
    }  # fmt: skip


def test_a_part_is_found_by_its_segment() -> None:
    it = stream()

    assert it.part(4) == StreamPart(segment_id=4, key_range=KeyRange(HALF, HALF + HALF // 2), epoch=2, sealed_epoch=3)
    assert it.part(7) is None


def test_the_history_is_told_by_the_epochs() -> None:
    it = stream()
    everything = it.history()
    assert everything == it.parts

    it.parts = it.parts[3:]
    assert it.history() == everything


@given(st.data())
def test_the_head_passes_what_was_replaced_before_anything_with_events(data: st.DataObject) -> None:
    """Behaviour 106: it is the cut at the starts, moved over segments that are empty."""
    it = Stream(stream_id=9, name="shop/orders", configuration="", created_us=0)
    it.begin_epoch(m.EpochRecord(0, 0, "", [], [m.SegmentRangeRecord(1, 0, LAST)]))
    next_id = 2
    for number in range(1, data.draw(st.integers(1, 8)) + 1):
        opened = it.open_parts
        first = data.draw(st.integers(0, len(opened) - 1))
        sealed = opened[first : data.draw(st.integers(first + 1, len(opened)))]
        low, high = sealed[0].key_range.low, sealed[-1].key_range.high
        middle = data.draw(st.sampled_from([[], [(low + high) // 2]]))
        created = [m.SegmentRangeRecord(next_id + n, *pair) for n, pair in enumerate(ranges([low, *middle, high]))]
        next_id += len(created)
        it.begin_epoch(m.EpochRecord(number, 0, "", [part.segment_id for part in sealed], created))
        for part in sealed:
            if data.draw(st.booleans()):
                it.mark_empty(part.segment_id)
        if data.draw(st.booleans()):
            it.head()
    lineage = Lineage(it.parts)
    reached = {1: 0}
    held = [part.sealed_epoch for part in it.replaced_parts(0) if not it.is_empty(part.segment_id)]
    border = min(held, default=it.epoch + 1)
    lineage.advance(reached, lambda segment_id: lineage.by_id[segment_id].sealed_epoch < border, start=0)

    epoch, head = it.head()

    assert epoch == border - 1
    assert {part.segment_id for part in head} == reached.keys()
    lineage.check_cut(part.segment_id for part in head)


def test_the_head_of_a_truncated_stream_may_be_of_several_epochs() -> None:
    it = stream()
    it.drop_parts([1, 3])  # at the end of 2, 4, and in 5
    assert [part.segment_id for part in it.head()[1]] == [2, 4, 5]
    it.mark_empty(2)
    it.mark_empty(4)
    assert [part.segment_id for part in it.head()[1]] == [6, 5]


def ranges(borders: list[int]) -> list[tuple[int, int]]:
    return [(low, high - 1) for low, high in pairwise(borders)]
