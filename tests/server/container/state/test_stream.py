from millrace.model.key_range import KeyRange
from millrace.model.lineage import StreamPart
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
