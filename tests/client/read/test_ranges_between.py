import pickle
from dataclasses import replace

import pytest

from millrace.client.errors import CutTruncatedError, OffsetBeyondEndError
from millrace.client.read.cut_resolution import resolve_cut
from millrace.client.read.ranges import SegmentRange, ranges_between
from millrace.model.cut import HEAD, TAIL, StreamCut
from millrace.model.errors import CutInvalidError, CutOrderError
from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.policy import StreamConfig
from millrace.model.position import Position
from millrace.model.stream import StreamInfo, StreamSegment
from tests.support.tables import table

HALF = KEY_SPACE // 2


def part(segment_id: int, low: int, high: int, epoch: int, sealed_epoch: int, start: int = 0) -> StreamSegment:
    return StreamSegment(
        segment_id=segment_id,
        key_range=KeyRange(low, high),
        epoch=epoch,
        sealed_epoch=sealed_epoch,
        start_offset=start,
        length=1000,
    )


# 5, which is gone, was replaced by 11. That, truncated to 100, was split into 12 and 13, those were merged into 14.
GONE = part(5, 0, KEY_SPACE, 0, 1)
INFO = StreamInfo(
    name="a/b",
    stream_id=1,
    created_us=0,
    epoch=3,
    sealed=False,
    configuration=StreamConfig(),
    segments=(
        part(11, 0, KEY_SPACE, 1, 2, start=100),
        part(12, 0, HALF, 2, 3),
        part(13, HALF, KEY_SPACE, 2, 3),
        part(14, 0, KEY_SPACE, 3, 0),
    ),
)


def cut(places: dict[int, tuple[int, int]], stream: str = "a/b") -> StreamCut:
    return StreamCut.of(stream, places)


def test_head_and_tail_are_those_of_the_stream() -> None:
    assert resolve_cut(HEAD, INFO) == cut({11: (100, 0)})
    assert resolve_cut(TAIL, INFO) == cut({14: (1000, 0)})
    assert INFO.size_bytes == 3900


def between(segment_id: int, start: tuple[int, int], end: tuple[int, int]) -> SegmentRange:
    return SegmentRange.between(segment_id, Position(*start), Position(*end))


def test_ranges_go_across_epochs_and_hold_each_place_once() -> None:
    start, end = cut({11: (500, 3)}), cut({12: (64, 1), 13: (0, 0)})

    assert ranges_between(start, end, INFO) == [between(11, (500, 3), (1000, 0)), between(12, (0, 0), (64, 1))]
    assert ranges_between(start, start, INFO) == []
    assert ranges_between(end, resolve_cut(TAIL, INFO), INFO) == [
        between(12, (64, 1), (1000, 0)),
        between(13, (0, 0), (1000, 0)),
        between(14, (0, 0), (1000, 0)),
    ]


@table(
    ("wrong", "error"),
    [
        (cut({11: (100, 0)}, stream="a/c"), CutInvalidError),
        (cut({12: (0, 0)}), CutInvalidError),
        (cut({12: (0, 0), 14: (0, 0)}), CutInvalidError),
        (cut({99: (0, 0)}), CutInvalidError),
        (cut({14: (1001, 0)}), OffsetBeyondEndError),
        (cut({14: (1000, 1)}), OffsetBeyondEndError),
        (cut({11: (99, 0)}), CutTruncatedError),
        (cut({5: (0, 0)}), CutTruncatedError),
    ],
)
def test_cuts_that_do_not_fit_are_refused(wrong: StreamCut, error: type[Exception]) -> None:
    """Behaviour 26."""
    with pytest.raises(error):
        resolve_cut(wrong, INFO, known=[GONE])


def test_a_start_after_the_end_is_refused() -> None:
    """Behaviour 27: in any segment, across epochs too; both cuts are named."""
    start, end = cut({11: (500, 3)}), cut({12: (64, 1), 13: (0, 0)})
    for first, last in ((end, start), (cut({12: (64, 2), 13: (0, 0)}), end), (cut({12: (0, 0), 13: (8, 0)}), end)):
        with pytest.raises(CutOrderError) as caught:
            ranges_between(first, last, INFO)
        assert str(first) in str(caught.value)
        assert str(last) in str(caught.value)
    # The ends of what was replaced and the starts of the successors are the same place.
    for same in (cut({11: (1000, 0)}), cut({12: (0, 0), 13: (0, 0)})):
        assert ranges_between(same, cut({11: (1000, 0)}), INFO) == []


def test_a_truncated_cut_says_what_is_lost() -> None:
    """Behaviour 26."""
    with pytest.raises(
        CutTruncatedError, match="segment 11 is truncated: the cut is at 40, 60 bytes are lost"
    ) as caught:
        resolve_cut(cut({11: (40, 0)}), INFO)
    assert caught.value.start_offset == 100
    with pytest.raises(CutTruncatedError, match=r"segments \[5\].*a/b@11:100.0"):
        resolve_cut(cut({5: (0, 0)}), INFO, known=[GONE])


def info(*segments: StreamSegment) -> StreamInfo:
    return replace(INFO, segments=segments)


@pytest.mark.parametrize(
    ("place", "first"),
    [
        # A place in what is left stays, one in what was truncated moves to where that begins.
        ({1: (50, 3), 2: (700, 9)}, {1: (100, 0), 2: (700, 9)}),
        ({1: (99, 0), 2: (0, 0)}, {1: (100, 0), 2: (0, 0)}),
    ],
)
def test_a_truncated_cut_says_where_to_resume(
    place: dict[int, tuple[int, int]], first: dict[int, tuple[int, int]]
) -> None:
    """Behaviour 26."""
    halves = info(part(1, 0, HALF, 0, 0, start=100), part(2, HALF, KEY_SPACE, 0, 0))
    with pytest.raises(CutTruncatedError) as caught:
        resolve_cut(cut(place), halves)
    assert caught.value.resume_at == cut(first)
    assert str(cut(first)) in str(caught.value)
    assert "HEAD" in str(caught.value)
    assert resolve_cut(cut(first), halves) == cut(first)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.resume_at, str(copy)) == (cut(first), str(caught.value))


def test_where_segments_are_deleted_it_continues_in_what_is_left_of_their_keys() -> None:
    """1 and 2 were halves; 1 became 3 and 4, then 3 became 5. Gone are 1 and 3; 2 was not touched."""
    quarter = HALF // 2
    gone = [part(1, 0, HALF, 0, 1), part(3, 0, quarter, 1, 2)]
    left = info(
        part(2, HALF, KEY_SPACE, 0, 0), part(4, quarter, HALF, 1, 0, start=8), part(5, 0, quarter, 2, 0, start=16)
    )
    for place in ({1: (40, 0), 2: (500, 1)}, {3: (40, 0), 4: (0, 0), 2: (500, 1)}):
        with pytest.raises(CutTruncatedError) as caught:
            resolve_cut(cut(place), left, known=gone)
        assert caught.value.resume_at == cut({2: (500, 1), 4: (8, 0), 5: (16, 0)})
        assert caught.value.start_offset is None
    # What does not cover the keys is no cut, truncated or not.
    with pytest.raises(CutInvalidError):
        resolve_cut(cut({1: (0, 0)}), left, known=gone)
