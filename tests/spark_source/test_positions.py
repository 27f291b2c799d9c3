import json
import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.read.ranges import SegmentRange
from millrace.model.position import Mark
from millrace.spark_source.errors import CheckpointError
from millrace.spark_source.positions import RANGE_COST_BYTES, RangePartition, StreamOffset, pack
from tests.support.tables import table

MARKS = st.dictionaries(
    st.integers(1, (1 << 63) - 1),
    st.builds(Mark, st.integers(0, 1 << 62), st.integers(0, 1 << 31), st.integers(0, 1 << 62)),
    min_size=1,
    max_size=8,
)


@given(MARKS, st.integers(0, 1 << 40))
def test_an_offset_comes_back_from_its_json(marks: dict[int, Mark], lost: int) -> None:
    others = {segment_id + (1 << 63): mark for segment_id, mark in marks.items()}
    offset = StreamOffset({"shop/orders": marks, "shop/returns": others}, lost, "billing")
    backwards = StreamOffset(
        {"shop/returns": others, "shop/orders": dict(reversed(marks.items()))}, lost, cursor="billing"
    )

    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert json.dumps(backwards.to_json()) == json.dumps(offset.to_json())


def test_the_example_of_the_docstring_is_an_offset() -> None:
    from millrace.spark_source import positions

    assert positions.__doc__ is not None
    example = next(line for line in positions.__doc__.splitlines() if line.strip().startswith("{"))
    offset = StreamOffset.from_json(json.loads(example))

    assert offset.places == {"shop/orders": {12: Mark(4096, 0, 130), 13: Mark(8192, 17, 217)}}
    assert json.dumps(offset.to_json()) == example.strip()


def test_an_offset_from_before_queries_had_cursors_is_one() -> None:
    content = {"cut": "shop/orders@12:4096.0", "events": {"12": 130}, "lost": 3}
    offset = StreamOffset.from_json(content)

    assert offset == StreamOffset({"shop/orders": {12: Mark(4096, 0, 130)}}, lost=3)
    assert offset.to_json() == content


@table(
    "content",
    [
        {},
        {"cut": "a/b@1:0.0"},
        {"cut": "a/b@1:0.0", "events": {}},
        {"cut": 1, "events": {}},
        {"cut": "x", "events": {}},
        {"cut": "a/b@1:0.0;a/b@2:0.0", "events": {"1": 0, "2": 0}},
    ],
)
def test_anything_else_is_no_offset(content: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="no offset of this source"):
        StreamOffset.from_json(content)


def ranges_of(sizes: Sequence[int]) -> list[SegmentRange]:
    return [
        SegmentRange(segment_id=number, start_offset=0, start_index=0, end_offset=size, end_index=0)
        for number, size in enumerate(sizes, 1)
    ]


@given(st.lists(st.integers(0, 100 << 20), max_size=40), st.integers(1, 64 << 20), st.sets(st.integers(1, 40)))
def test_ranges_are_packed_in_order_up_to_the_size(sizes: list[int], size_bytes: int, apart: set[int]) -> None:
    ranges = ranges_of(sizes)
    partitions = pack(ranges, size_bytes=size_bytes, apart=apart)

    assert [part for partition in partitions for part in partition] == ranges
    for partition in partitions:
        cost = sum(part.size_bytes + RANGE_COST_BYTES for part in partition)
        assert len(partition) == 1 or cost <= size_bytes
        assert len(partition) == 1 or apart.isdisjoint(part.segment_id for part in partition)


def test_without_a_size_each_range_is_a_partition() -> None:
    ranges = ranges_of([0, 5, 100 << 20])
    assert pack(ranges, size_bytes=None) == [[part] for part in ranges]


def test_a_partition_travels_to_a_task() -> None:
    part = SegmentRange(segment_id=1, start_offset=8, start_index=2, end_offset=64, end_index=0)
    there = pickle.loads(pickle.dumps(RangePartition([part], {1: "shop/orders", 2: "shop/returns"})))

    assert there.ranges == (part,)
    assert there.streams == {1: "shop/orders"}
