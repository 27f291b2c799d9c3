"""A store on a folder of its own, and one with a rich checkpoint in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.server.container.checkpoint.store import CheckpointStore
from tests.server.container.checkpoint.stores import RICH, exported, opened, save_all
from tests.support.databases import FaultyDatabases


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.db"


@pytest.fixture
def files() -> FaultyDatabases:
    """Where the store is: its newest database is the one that it saves into."""
    return FaultyDatabases()


@pytest.fixture
def store(path: Path, files: FaultyDatabases) -> Iterator[CheckpointStore]:
    with opened(path, files) as store:
        yield store


@pytest.fixture
def rich_copy(store: CheckpointStore) -> bytes:
    """An export of a rich state as of sequence 10; the store is left with it."""
    assert store.load() is None
    save_all(store, RICH, 10)
    return exported(store)
