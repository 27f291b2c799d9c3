from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.checkpoint.segment_tables import chunk_borders
from millrace.server.tier2 import ChunkRecord


def chunk(start: int, length: int = 10, *, wall: int = 0) -> ChunkRecord:
    return ChunkRecord(start, length, f"chunk-{start}-{length}", length + 99, start // 5, (start + length) // 5, wall)


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=9), st.integers(-100, 100))
def test_borders_are_never_dated_later_than_the_append_there(walls: list[int], created: int) -> None:
    chunks = [chunk(10 * number, wall=wall) for number, wall in enumerate(walls)]
    borders = chunk_borders(chunks, created_us=created)

    assert [border.offset for border in borders] == list(range(0, 10 * len(walls) + 1, 10))
    assert [border.events for border in borders] == list(range(0, 2 * len(walls) + 1, 2))
    times = [border.wall_time_us for border in borders]
    assert times == sorted(times)
    assert times[0] <= walls[0]
    for number, time in enumerate(times[1:], start=1):
        assert time == max(walls[:number])
