"""Stores of checkpoints, and a state with something of everything in it."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from millrace.server.container.checkpoint.checkpoint import Checkpoint
from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.recovery import state_of
from millrace.server.container.state.container_state import ContainerState
from millrace.server.host.files import FileSystem, OsFileSystem
from millrace.server.kinds.registry import KINDS
from tests.server.container.histories import History, durable_view, history

RICH = history(
    *[("create", 0, 1), ("open_writer", 0, 3), ("create_stream", 0, 77), ("open_writer", 1, 4)] * 3,
    *[("open_on_stream", number, number) for number in range(3)],
    *[("append_sequenced", number, 1000 + 7 * number) for number in range(5)],
    *[(kind, number, 1000 + 7 * number) for number in range(14) for kind in ("append", "append_as_writer", "flush")],
    *[(kind, number, 333) for number in range(5) for kind in ("lose", "set_attribute", "flush", "append", "flush")],
    ("truncate", 3, 5), ("seal_stream", 1, 0), ("delete", 4, 0), ("merge", 1, 2),
    *[(kind, number, 41 + number) for number in range(6) for kind in ("scale_stream", "save_cut", "update_stream")],
    ("open_exclusive", 0, 0), ("open_exclusive", 1, 1),
    ("begin_transaction", 0, 3), ("add_parts", 0, 0), ("append_to_part", 0, 5),
    ("begin_transaction", 1, 5), ("add_parts", 1, 1), ("append_to_part", 1, 6), ("commit", 1, 0),
    ("take_over", 0, 1), ("take_over", 0, 2), ("reset_producer", 0, 1), ("take_over", 1, 4),
).state  # fmt: skip
assert all((RICH.segments, RICH.writers, RICH.streams, RICH.open_transactions, RICH.durable.exclusive_writers))
assert RICH.caches["producers"]


def save(store: CheckpointStore, state: ContainerState, sequence: int) -> None:
    rows = take_rows(state)
    store.save(rows, sequence=sequence, replay_from=sequence // 2, container_epoch=7)
    state.stored(stored_below=rows.next_id)


def save_all(store: CheckpointStore, state: ContainerState, sequence: int) -> None:
    """Save a state that was never saved, and leave it so, for the next test."""
    rows = take_rows(state)
    store.save(rows, sequence=sequence, replay_from=sequence // 2, container_epoch=7)


def loaded(store: CheckpointStore) -> Checkpoint:
    checkpoint = store.load()
    assert checkpoint is not None
    return checkpoint


def loaded_state(store: CheckpointStore, *, idle_bytes_max: int = 10_000) -> ContainerState:
    return state_of(store, loaded(store), idle_bytes_max=idle_bytes_max)


def empty_state(store: CheckpointStore) -> ContainerState:
    assert store.load() is None
    return state_of(store, None, idle_bytes_max=10_000)


def exported(store: CheckpointStore) -> bytes:
    assert store.export() == store.copy_path.stat().st_size
    store.verify_copy()
    data = store.copy_path.read_bytes()
    store.remove_copy()
    return data


def restore(store: CheckpointStore, data: bytes) -> None:
    store.begin_restore()
    for offset in range(0, len(data), 5000):
        store.restore_part(data[offset : offset + 5000], offset=offset)
    store.finish_restore()


@contextlib.contextmanager
def opened(path: Path, files: FileSystem | None = None) -> Iterator[CheckpointStore]:
    store = CheckpointStore(files or OsFileSystem(), path, KINDS, progress_steps_count=100)
    try:
        yield store
    finally:
        store.close()


def assert_saves_arrive(store: CheckpointStore, state: ContainerState) -> None:
    past = History(state)
    for kind in ("create", "append", "flush", "set_attribute", "open_writer", "append_as_writer", "delete_stream"):
        past.step(kind, 3, 100)
    save(store, past.state, 12)
    assert durable_view(loaded_state(store)) == durable_view(past.state)


def damage_row(path: Path) -> None:
    """Change a row without its checksum."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE segments SET length = length + 1 WHERE segment_id = 1")
