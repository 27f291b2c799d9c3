from pathlib import Path

import pytest

from millrace.model.policy import StreamConfig
from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.recovery import state_of
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.labels import tag_label
from millrace.server.errors import StorageError
from millrace.server.host.files import OsFileSystem
from millrace.wire import messages as m
from tests.server.container.histories import apply


def saved(store: CheckpointStore, state: ContainerState) -> None:
    rows = take_rows(state)
    store.save(rows, sequence=1, replay_from=1, container_epoch=1)
    state.stored(stored_below=rows.next_id)


def test_idle_writers_are_found_a_page_at_a_time(tmp_path: Path) -> None:
    store = CheckpointStore(OsFileSystem(), tmp_path / "checkpoint.db")
    store.load()
    state = state_of(store, None)
    for number in range(1, 8):
        apply(state, m.UptimeCounted(number, 0, 0, ""))
        apply(state, m.WriterRecorded(writer_number=number, writer_epoch=1, opened_us=1, writer_id=""))
    state.writers[2].seen_uptime_us = 50
    saved(store, state)

    pages = []
    after = 0
    while page := store.writers.idle(before_uptime_us=6, after=after, count_max=3):
        pages.append(page)
        after = page[-1]

    assert pages == [[1, 3, 4], [5]]
    store.close()


def test_streams_are_found_by_label_and_prefix(tmp_path: Path) -> None:
    store = CheckpointStore(OsFileSystem(), tmp_path / "checkpoint.db")
    store.load()
    state = state_of(store, None)
    for name, tags in (("a/1", "xy"), ("a/2", "y"), ("b/1", "x"), ("b/\N{SNOWMAN}", "x"), ("c/1", "")):
        apply(
            state,
            m.StreamCreated(
                stream_id=state.take_id(),
                created_us=0,
                name=name,
                configuration=StreamConfig(tags=tuple(tags)).to_json(),
                segments=[],
                cursors=[],
            ),
        )
    saved(store, state)

    def names(tag: str, prefix: str, after: str, count_max: int) -> list[str]:
        found = store.streams.labelled(tag_label(tag), prefix=prefix, after=after, count_max=count_max)
        assert all(state.streams[stream_id].name == name for name, stream_id in found)
        return [name for name, _ in found]

    assert names("x", "", "", 9) == ["a/1", "b/1", "b/\N{SNOWMAN}"]
    assert names("x", "", "", 2) == ["a/1", "b/1"]
    assert names("x", "b/", "", 9) == ["b/1", "b/\N{SNOWMAN}"]
    assert names("x", "b/", "b/1", 9) == ["b/\N{SNOWMAN}"]
    assert names("y", "b/", "", 9) == []
    assert names("z", "", "", 9) == []
    store.close()


def test_nothing_is_told_of_a_closed_checkpoint(tmp_path: Path) -> None:
    """What is not known must not be taken for absent."""
    store = CheckpointStore(OsFileSystem(), tmp_path / "checkpoint.db")
    store.load()
    assert store.segments.load(1) is None
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.segments.load(1)
