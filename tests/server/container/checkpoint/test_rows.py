import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.schema import (
    ATTRIBUTES,
    CHUNKS,
    PROGRESS,
    SEGMENTS,
    STREAMS,
    WRITERS,
    chunk_borders,
)
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.recovery import state_of
from millrace.server.host.files import OsFileSystem
from millrace.server.tier2 import ChunkRecord
from tests.server.container.histories import history


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


def test_only_what_changed_is_taken(tmp_path: Path) -> None:
    store = CheckpointStore(OsFileSystem(), tmp_path / "checkpoint.db")
    store.load()
    past = history(
        *[("create", 0, 0)] * 5, *[("open_writer", number, 1) for number in range(3)], state=state_of(store, None)
    )
    for number in range(15):
        past.step("append_as_writer", number % 5, number)
        past.step("set_attribute", number % 5, number)
    rows = take_rows(past.state)
    store.save(rows, sequence=1, replay_from=1, container_epoch=1)
    past.state.stored(stored_below=rows.next_id)
    past.step("append_as_writer", 2, 1)
    past.step("set_attribute", 3, 1)

    rows = take_rows(past.state)

    assert [row[0] for row in rows.added[SEGMENTS.table]] == [3, 4]
    assert [row[0] for row in rows.added[PROGRESS]] == [3]
    assert [row[:2] for row in rows.added[ATTRIBUTES]] == [(4, "schlüssel-1")]
    assert rows.added[WRITERS.table] == []
    assert rows.added[CHUNKS] == []
    assert rows.counts[SEGMENTS.table] == 5
    store.close()


def test_what_was_deleted_meanwhile_is_not_taken() -> None:
    """Changes that a save which failed had taken may be of what is gone by now."""
    past = history(("create", 0, 0), ("open_writer", 0, 1), ("append_as_writer", 0, 5), ("set_attribute", 0, 5))
    take_rows(past.state)
    past.step("delete", 0, 0)

    rows = take_rows(past.state)

    assert not any((rows.added[SEGMENTS.table], rows.added[PROGRESS], rows.added[ATTRIBUTES], rows.added[CHUNKS]))
    assert all((1,) in rows.removed[table] for table in (SEGMENTS.table, PROGRESS, ATTRIBUTES, CHUNKS))


def test_key_ranges_keep_all_64_bits() -> None:
    past = history(("create_stream", 0, 2**16))
    rows = take_rows(past.state)
    ((*_, parts, _epochs),) = rows.added[STREAMS.table]
    assert [part[1:3] for part in json.loads(parts)] == [
        ["0000000000000000", "8000000000000000"],
        ["8000000000000001", "ffffffffffffffff"],
    ]
