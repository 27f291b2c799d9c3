from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.memtable import Extent, LinkedExtent, Memtable
from millrace.wire.append_run import AppendRun
from millrace.wire.framing import encode_append_header
from tests.server.container.extents import extent


def tail_of(*extents: Extent) -> Memtable:
    tail = Memtable()
    for each in extents:
        tail.add(each)
    return tail


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=9))
def test_the_payload_is_the_appends_without_their_headers(payloads: list[bytes]) -> None:
    run = extent(100, *payloads)
    assert run.end == 100 + len(b"".join(payloads))
    assert bytes(run.payload()) == b"".join(payloads)
    assert bytes(run.payload()) == b"".join(payloads)


@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 255))
def test_appends_of_one_size_are_stripped_at_once(size: int, count: int, first: int) -> None:
    payloads = [bytes((first + number) % 256 for _ in range(size)) for number in range(count)]
    assert bytes(extent(0, *payloads).payload()) == b"".join(payloads)


def test_the_payload_of_one_append_is_not_copied() -> None:
    frames = bytearray(encode_append_header(request_id=1, segment_id=5, payload=b"abc") + b"abc")
    logged = AppendRun(segment_id=5, offset=0, frames=frames, frame_count=1, frame_size=67, event_count=1)
    run = Extent(logged, sequence=1, end_events=1, wall_time_us=0)
    frames[-1] = ord("X")
    assert bytes(run.payload()) == b"abX"


def test_events_before_a_run_follow_from_those_after_it() -> None:
    assert extent(0, b"a", b"b", b"c", end_events=10).start_events == 7


# Payloads of the runs, and how many bytes damage took before each.
RUNS = st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.sampled_from([0, 0, 0, 5])), min_size=1, max_size=12)


class Model:
    """The tail of a segment and, for each offset, the byte that is there."""

    def __init__(self, runs: list[tuple[bytes, int]]) -> None:
        self.tail = Memtable()
        self.bytes: dict[int, int] = {}
        self.ends: list[int] = []
        end = 50
        for payload, lost in runs:
            offset = end + lost
            self.tail.add(extent(offset, payload))
            self.bytes.update(enumerate(payload, offset))
            end = offset + len(payload)
            self.ends.append(end)


@given(RUNS, st.integers(0, 100), st.integers(0, 100))
def test_a_read_returns_the_contiguous_bytes_from_an_offset_on(
    runs: list[tuple[bytes, int]], place: int, size_max: int
) -> None:
    model = Model(runs)
    offset = 50 + runs[0][1] + place
    expected = bytearray()
    while len(expected) < size_max and offset + len(expected) in model.bytes:
        expected.append(model.bytes[offset + len(expected)])

    assert (model.tail.at(offset) is not None) == (offset in model.bytes)
    assert b"".join(model.tail.read(offset, size_max)) == expected


def test_nothing_is_held_before_the_first_run() -> None:
    assert tail_of(extent(10, b"abc")).at(9) is None
    assert Memtable().at(0) is None


@given(RUNS, st.integers(40, 300))
def test_release_drops_whole_runs_only_and_counts_them(runs: list[tuple[bytes, int]], offset: int) -> None:
    model = Model(runs)
    before = model.tail.size
    assert before == len(model.bytes)

    released = sum(extent.size for extent in model.tail.release(offset))

    left = sum(len(payload) for (payload, _), end in zip(runs, model.ends, strict=True) if end > offset)
    assert (before - released, model.tail.size) == (left, left)
    assert bool(model.tail) == bool(left)
    if model.tail:
        assert model.tail.first.end > offset
    assert model.tail.release(offset) == []


@given(RUNS, st.integers(1, 60))
def test_the_head_is_contiguous_and_about_as_long_as_asked(runs: list[tuple[bytes, int]], size_max: int) -> None:
    model = Model(runs)

    head = model.tail.head(size_max, joins=lambda _: False, links_count_max=1)

    assert head[0] is model.tail.first
    assert all(one.end == next_one.offset for one, next_one in pairwise(head))
    size = sum(run.size for run in head)
    assert len(head) == 1 or size <= size_max
    following = model.tail.extents[len(head)] if len(head) < len(model.tail.extents) else None
    assert following is None or following.offset != head[-1].end or size + following.size > size_max


def test_an_empty_tail_has_no_head() -> None:
    assert Memtable().head(100, joins=lambda _: False, links_count_max=1) == []


@given(RUNS, st.data())
def test_exactly_what_is_asked_for_is_in_memory_or_nothing(runs: list[tuple[bytes, int]], data: st.DataObject) -> None:
    model = Model(runs)
    start, end = data.draw(st.sampled_from([50, *model.ends])), data.draw(st.sampled_from(model.ends))

    found = model.tail.exactly(start, end)

    is_all = sorted(model.bytes) == list(range(start, end))
    assert (found is not None) == is_all
    if found is not None:
        assert b"".join(each.payload() for each in found) == bytes(model.bytes[place] for place in range(start, end))


def test_what_was_merged_is_not_in_memory_itself() -> None:
    link = LinkedExtent(
        target_id=1,
        offset=0,
        size=3,
        source_id=2,
        source_offset=0,
        event_count=1,
        sequence=1,
        end_events=1,
        wall_time_us=0,
    )
    tail = Memtable()
    tail.add(link)

    assert tail.exactly(0, 3) is None
    assert Memtable().exactly(0, 0) == []
