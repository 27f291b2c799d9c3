import pytest

from millrace.server.container.state.segment import DamagedRange, Segment
from millrace.server.errors import (
    OffsetBeyondEndError,
    SegmentDamagedError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from millrace.server.tier2 import ChunkRecord


@pytest.fixture
def segment() -> Segment:
    """[100, 1000) durable, up to 1200 admitted, [300, 400) and [600, 700) damaged."""
    segment = Segment(segment_id=5, name="scope/segment", created_us=0)
    segment.start_offset = 100
    segment.length = 1000
    segment.next_offset = 1200
    segment.damages = [DamagedRange(300, 400, "the log"), DamagedRange(600, 700, "chunk-7")]
    return segment


def test_an_open_segment_takes_appends(segment: Segment) -> None:
    segment.check_appendable()


@pytest.mark.parametrize("flag", ["sealed", "closing"])
def test_a_sealed_segment_takes_no_appends_nor_does_one_whose_seal_is_queued(segment: Segment, flag: str) -> None:
    setattr(segment, flag, True)
    with pytest.raises(SegmentSealedError) as caught:
        segment.check_appendable()
    assert (caught.value.subject, caught.value.start_offset, caught.value.length) == ("scope/segment", 100, 1200)


def test_a_deleted_segment_is_not_found(segment: Segment) -> None:
    segment.deleted = True
    with pytest.raises(SegmentNotFoundError):
        segment.check_appendable()
    with pytest.raises(SegmentNotFoundError):
        segment.check_readable(100)


@pytest.mark.parametrize("offset", [100, 299, 400, 599, 700, 999, 1000])
def test_offsets_between_start_and_length_are_readable(segment: Segment, offset: int) -> None:
    segment.check_readable(offset)


@pytest.mark.parametrize("offset", [0, 99])
def test_truncated_offsets_are_refused_with_the_valid_range(segment: Segment, offset: int) -> None:
    with pytest.raises(SegmentTruncatedError, match=r"now holds \[100, 1000\)") as caught:
        segment.check_readable(offset)
    assert (caught.value.start_offset, caught.value.length) == (100, 1000)


@pytest.mark.parametrize("offset", [1001, 1200])
def test_offsets_that_are_only_admitted_are_beyond_the_end(segment: Segment, offset: int) -> None:
    with pytest.raises(OffsetBeyondEndError) as caught:
        segment.check_readable(offset)
    assert (caught.value.start_offset, caught.value.length) == (100, 1000)


@pytest.mark.parametrize(("offset", "source"), [(300, "the log"), (399, "the log"), (600, "chunk-7"), (699, "chunk-7")])
def test_only_damaged_ranges_refuse_and_say_where(segment: Segment, offset: int, source: str) -> None:
    """Behaviour 41: only that range refuses, with file and offset; everything else is served."""
    with pytest.raises(SegmentDamagedError, match=source):
        segment.check_readable(offset)


@pytest.mark.parametrize(
    ("offset", "end", "limit"),
    [(100, 300, 300), (100, 301, 300), (100, 1000, 300), (400, 1000, 600), (700, 1000, 1000), (100, 200, 200)],
)
def test_reads_end_before_the_next_damage(segment: Segment, offset: int, end: int, limit: int) -> None:
    assert segment.limit_before_damage(offset, end) == limit


def test_watchers_may_leave_while_they_are_told(segment: Segment) -> None:
    told = []

    class Watcher:
        def segment_changed(self) -> None:
            told.append(self)
            segment.watchers.discard(self)

    watchers = {Watcher(), Watcher(), Watcher()}
    segment.watchers |= watchers

    segment.notify()

    assert set(told) == watchers
    assert not segment.watchers


def test_a_chunk_ends_after_its_last_byte() -> None:
    assert ChunkRecord(100, 50, "name", 300, 0, 5, 0).end_offset == 150
