from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.checkpoint.segment_tables import chunk_borders
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.tier2 import ChunkRecord
from tests.server.container.checkpoint.stores import loaded_state


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


def test_the_index_of_a_loaded_segment_has_the_borders_of_its_chunks(store: CheckpointStore, rich_copy: bytes) -> None:
    segments = [segment for segment in loaded_state(store).segments.values() if segment.chunks]

    assert any(len(segment.chunks) > 1 for segment in segments)
    for segment in segments:
        segment.index.check()
        borders = segment.index.entries(0, 2**63)
        assert [entry.offset for entry in borders[:-1]] == [chunk.start_offset for chunk in segment.chunks]
        assert [entry.events for entry in borders[:-1]] == [chunk.start_events for chunk in segment.chunks]
        assert borders[-1].offset == segment.chunks[-1].end_offset
        assert borders[-1].wall_time_us == max(chunk.end_wall_time_us for chunk in segment.chunks)
