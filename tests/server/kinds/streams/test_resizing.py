"""How a stream gets a given number of segments: any ranges, any number."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.key_range import KEY_SPACE, KeyRange, covers_once, equal_ranges
from millrace.model.lineage import StreamPart
from millrace.server.kinds.streams.resizing import resize


def parts_of(ranges: list[KeyRange]) -> list[StreamPart]:
    return [
        StreamPart(segment_id=number, key_range=key_range, epoch=0) for number, key_range in enumerate(ranges, start=1)
    ]


def resized(ranges: list[KeyRange], count: int) -> list[KeyRange]:
    """The ranges after the plan was carried out."""
    parts = parts_of(ranges)
    plan = resize(parts, count)
    if plan is None:
        return ranges
    kept = [part.key_range for part in parts if part.segment_id not in plan.sealed_ids]
    return sorted([*kept, *(KeyRange.inclusive(*each) for each in plan.ranges)])


@st.composite
def any_ranges(draw: st.DrawFn) -> list[KeyRange]:
    borders = sorted(draw(st.sets(st.integers(1, KEY_SPACE - 1), max_size=40)))
    places = [0, *borders, KEY_SPACE]
    return [KeyRange(low, high) for low, high in pairwise(places)]


@given(ranges=any_ranges(), count=st.integers(1, 100))
def test_the_keys_are_covered_by_so_many_segments(ranges: list[KeyRange], count: int) -> None:
    after = resized(ranges, count)

    assert len(after) == count
    assert covers_once(after)


@given(ranges=any_ranges(), count=st.integers(1, 100))
def test_what_is_sealed_is_split_or_merged_and_nothing_else_is_touched(ranges: list[KeyRange], count: int) -> None:
    plan = resize(parts_of(ranges), count)

    if len(ranges) == count:
        assert plan is None
    else:
        assert plan is not None
        assert not set(plan.ranges) & {(each.low, each.last) for each in ranges}
        if len(ranges) < count:
            assert len(plan.sealed_ids) <= count - len(ranges)
        else:
            assert len(plan.sealed_ids) <= 2 * (len(ranges) - count)
        assert plan.reason.startswith("split" if len(ranges) < count else "merge")


@given(start=st.sampled_from([1, 2, 4, 8, 16]), count=st.sampled_from([1, 2, 4, 8, 16]))
def test_equal_ranges_stay_equal_where_they_can(start: int, count: int) -> None:
    assert resized(equal_ranges(start), count) == equal_ranges(count)


def test_the_widest_are_split() -> None:
    half, quarter = KEY_SPACE // 2, KEY_SPACE // 4
    ranges = [KeyRange(0, quarter), KeyRange(quarter, half), KeyRange(half, KEY_SPACE)]

    assert resized(ranges, 4) == equal_ranges(4)


def test_merging_keeps_the_borders_near_those_of_equal_ranges() -> None:
    eighth = KEY_SPACE // 8
    ranges = [KeyRange(place * eighth, (place + 1) * eighth) for place in range(4)] + [KeyRange(4 * eighth, KEY_SPACE)]

    assert resized(ranges, 2) == equal_ranges(2)
