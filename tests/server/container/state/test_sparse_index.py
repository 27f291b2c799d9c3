from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.state.sparse_index import SPACING_BYTES, SPACING_US, SparseIndex
from millrace.server.tier2 import IndexEntry

# Appends as (payload bytes, events, microseconds since the one before; the clock may go back).
APPENDS = st.lists(
    st.tuples(st.integers(1, 3 * SPACING_BYTES), st.integers(0, 50), st.integers(-2 * SPACING_US, 2 * SPACING_US)),
    min_size=1,
    max_size=60,
)


class History:
    """A segment's appends, and the index made while they were applied."""

    def __init__(self, appends: list[tuple[int, int, int]]) -> None:
        sizes, events, pauses = zip(*appends, strict=True)
        self.offsets: list[int] = [0, *accumulate(sizes)]
        self.events: list[int] = [0, *accumulate(events)]
        self.walls = list(accumulate(accumulate(pauses), max))
        self.index = SparseIndex()
        for offset, count, wall in zip(self.offsets, self.events, accumulate(pauses), strict=False):
            self.index.add(offset, events=count, wall_time_us=wall)
        self.index.check()

    @property
    def length(self) -> int:
        return self.offsets[-1]


HISTORIES = APPENDS.map(History)


def everything(index: SparseIndex) -> list[IndexEntry]:
    return index.entries(0, 2**63)


@given(HISTORIES)
def test_entries_are_true_and_dense_enough(history: History) -> None:
    entries = everything(history.index)

    truth = dict(zip(history.offsets, zip(history.events, history.walls, strict=False), strict=False))
    assert [(entry.events, entry.wall_time_us) for entry in entries] == [truth[entry.offset] for entry in entries]
    assert entries[0].offset == 0
    known = {entry.offset for entry in entries}
    for offset, wall in zip(history.offsets, history.walls, strict=False):
        nearest = history.index.floor(offset)
        assert nearest is not None
        if offset not in known:
            assert offset - nearest.offset < SPACING_BYTES
            assert wall - nearest.wall_time_us < SPACING_US


@given(HISTORIES, st.integers(0, 10**8))
def test_the_floor_is_the_nearest_border_at_or_before(history: History, offset: int) -> None:
    found = history.index.floor(offset)

    assert found == max(entry for entry in everything(history.index) if entry.offset <= offset)


@given(HISTORIES, st.integers(1, 20 * SPACING_BYTES), st.data())
def test_parts_are_borders_and_no_shorter_than_asked(history: History, target: int, data: st.DataObject) -> None:
    start = data.draw(st.sampled_from(history.offsets))
    end = data.draw(st.integers(start, history.length))

    parts = history.index.split(start, end, target_bytes=target)

    assert set(parts) <= set(everything(history.index))
    borders = [entry.offset for entry in parts]
    assert all(start < border < end for border in borders)
    assert all(right - left >= target for left, right in pairwise([start, *borders]))
    # No part could have ended earlier.
    for left, right in pairwise([start, *borders, end]):
        assert history.index.entries(left + target, right) == []


@given(HISTORIES, st.data())
def test_chunks_hold_all_entries_and_give_them_back(history: History, data: st.DataObject) -> None:
    """Evicted but for the first entry of each chunk, then merged in any order, twice: the same index."""
    borders = sorted(data.draw(st.sets(st.sampled_from(history.offsets))) | {0, history.length})
    ranges = list(pairwise(borders))
    before = everything(history.index)
    chunks = [history.index.entries(start, end) for start, end in ranges]
    assert [entry for chunk in chunks for entry in chunk] == before

    for start, end in ranges:
        history.index.evict(start, end)
    assert everything(history.index) == [chunk[0] for chunk in chunks if chunk]
    for chunk in data.draw(st.permutations(chunks + chunks)):
        history.index.merge(chunk)
        history.index.check()

    assert everything(history.index) == before
    assert everything(SparseIndex(before)) == before


@given(HISTORIES, st.integers(0, 10**8))
def test_truncation_keeps_the_count_of_what_remains(history: History, offset: int) -> None:
    """The nearest entry below the new start stays: without it, events before the next entry were unknown."""
    before = everything(history.index)
    floor = history.index.floor(offset)

    history.index.truncate(offset)

    assert floor is not None
    assert everything(history.index) == [entry for entry in before if entry.offset >= floor.offset]
    history.index.check()


def test_an_empty_index_knows_nothing() -> None:
    index = SparseIndex()
    index.truncate(10)
    index.evict(0, 10)

    assert index.floor(5) is None
    assert index.split(0, 100, target_bytes=10) == []
    assert len(index) == 0


def test_time_continues_from_the_entries_that_were_merged() -> None:
    """The clock of the machine may have gone back while the server was down."""
    index = SparseIndex([IndexEntry(0, 0, 5 * SPACING_US)])

    index.add(SPACING_BYTES, events=1, wall_time_us=0)

    assert everything(index)[-1] == IndexEntry(SPACING_BYTES, 1, 5 * SPACING_US)


def test_an_idle_segment_gets_an_entry_after_a_second() -> None:
    index = SparseIndex()
    index.add(0, events=0, wall_time_us=0)
    index.add(10, events=1, wall_time_us=SPACING_US - 1)
    index.add(20, events=2, wall_time_us=SPACING_US)
    index.add(20, events=2, wall_time_us=9 * SPACING_US)

    assert [entry.offset for entry in everything(index)] == [0, 20]


def test_a_long_segment_costs_one_entry_a_chunk() -> None:
    index = SparseIndex()
    chunk = 64 * SPACING_BYTES
    for start in range(0, 100 * chunk, chunk):
        for offset in range(start, start + chunk, SPACING_BYTES):
            index.add(offset, events=offset, wall_time_us=offset)
        index.evict(start, start + chunk)

    assert len(index) == 100


def test_times_are_held_between_those_beside_them() -> None:
    """A border may be dated earlier than entries before it that were not in memory when it was made."""
    index = SparseIndex([IndexEntry(0, 0, 10), IndexEntry(300, 3, 20)])
    index.merge([IndexEntry(100, 1, 30), IndexEntry(200, 2, 5)])
    index.check()
    assert [entry.wall_time_us for entry in everything(index)] == [10, 20, 20, 20]
