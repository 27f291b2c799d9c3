from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.cache.spans import Spans


@dataclass(slots=True, eq=False)
class Range:
    segment_id: int
    offset: int
    end: int


RANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100), st.integers(1, 20)), max_size=40)


def disjoint(drawn: list[tuple[int, int, int]]) -> list[Range]:
    taken: set[tuple[int, int]] = set()
    ranges = []
    for segment_id, offset, size in drawn:
        bytes_of = {(segment_id, place) for place in range(offset, offset + size)}
        if not taken & bytes_of:
            taken |= bytes_of
            ranges.append(Range(segment_id, offset, offset + size))
    return ranges


@given(RANGES, st.integers(0, 3), st.integers(0, 130), st.integers(0, 130))
def test_every_question_is_answered_as_by_looking_at_all(
    drawn: list[tuple[int, int, int]], segment_id: int, offset: int, end: int
) -> None:
    ranges = disjoint(drawn)
    spans: Spans[Range] = Spans()
    for item in ranges:
        spans.add(item)
    own = sorted((item for item in ranges if item.segment_id == segment_id), key=lambda item: item.offset)

    assert spans.covering(segment_id, offset) == next((i for i in own if i.offset <= offset < i.end), None)
    assert spans.next_start(segment_id, offset, end) == next((i.offset for i in own if offset < i.offset < end), end)
    assert spans.below(segment_id, offset) == [item for item in own if item.end <= offset]
    assert spans.below(segment_id, None) == own
    assert list(spans) == sorted(ranges, key=lambda item: (item.segment_id, item.offset))
    for item in ranges:
        assert item in spans
        spans.remove(item)
        assert item not in spans
    assert len(spans) == 0
